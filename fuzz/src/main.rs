//! The program that libFuzzer drives: one target, named by `KEDGE_FUZZ_TARGET`, searched until libFuzzer's
//! options end the search. The arguments are libFuzzer's own. `make fuzz` builds it with coverage and runs
//! it.
#![no_main]

use kedge_fuzz::{Target, target};
use std::sync::OnceLock;

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fn chosen() -> &'static Target {
    CHOSEN.get_or_init(|| {
        let name = std::env::var("KEDGE_FUZZ_TARGET").unwrap_or_default();
        target(&name).unwrap_or_else(|| {
            let names: Vec<&str> = kedge_fuzz::TARGETS.iter().map(|target| target.name).collect();
            eprintln!("KEDGE_FUZZ_TARGET is {name:?}, expected one of {}", names.join(", "));
            std::process::exit(2)
        })
    })
}

libfuzzer_sys::fuzz_target!(init: { chosen(); kedge_fuzz::cost::judge_from_now_on(); }, |data: &[u8]| {
    (chosen().run)(data);
});
