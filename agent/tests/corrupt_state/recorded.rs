//! State that an older release left: its agent's root directory and its hub's data directory, as they are in
//! this repository, opened by the present programs. Each release adds its own; none is taken away as long as
//! a device may still have it.

use std::fs;
use std::path::Path;

use crate::api::Api;
use crate::board::{Board, active};

/// The configurations that were known to the node of that release.
struct Release {
    name: &'static str,
    good: &'static str,
    bad: &'static str,
    tried: &'static str,
}

const RELEASES: [Release; 1] = [Release {
    name: "0.1.0",
    good: "5e54fd5a-0239-4473-b232-bf1cd788fd05",
    bad: "ccb56e27-c322-489c-a32f-e5758c9fcdfd",
    tried: "970a9a5a-1ae7-4941-a247-dc69d2e9d2ce",
}];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

#[test]
fn state_of_each_release_is_opened() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    for Release { name, good, bad, tried } in RELEASES {
        let mut board = Board::of(Api::start(Some(&here.join("../hub/tests/data").join(name))));
        copy(&here.join("tests/data").join(name).join("root"), board.root());
        let (status, _) =
            board.run_until("the configuration in trial runs", |status| active(status) == tried);
        let config = &status["config"];
        assert_eq!(config["status"]["lastKnownGood"]["configMap"]["uid"], good, "{name}: {config}");
        assert_eq!(config["bad"][0]["uid"], bad, "{name}: the verdict is lost: {config}");
        let log = board.log();
        for lost in ["panicked", "unreadable", "set aside", "cannot be read"] {
            assert!(!log.contains(lost), "{name}: {log}");
        }
        board.stop();
    }
}
