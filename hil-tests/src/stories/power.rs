//! Power cuts at random moments; `KEDGE_HIL_CYCLES` sets how many.

use std::time::Duration;

use super::chance::{Chance, number};
use crate::error::HilError;
use crate::machine::Start;
use crate::stage::{NODE, Stage, patience, payload};

/// Cycles unless `KEDGE_HIL_CYCLES` says otherwise: one boot is half a minute.
const CYCLES: u64 = 12;

pub(super) fn cuts(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let mut chance = Chance::from_environment(stage);
    let good = super::config::good(stage)?;
    let mut expected = vec![good];
    for cycle in 1..=number("KEDGE_HIL_CYCLES").unwrap_or(CYCLES) {
        // odd: adopted, then promoted; even: does not parse, so rolled back
        let is_good = cycle % 2 == 1;
        // new content each time, because a payload that was proven before would be good at once
        let fields = if is_good {
            format!("maxPods: {}\n", 100 + cycle)
        } else {
            "nodeStatusUpdateFrequency: [".to_owned()
        };
        let uid = stage.push(&format!("edge-{cycle}"), &payload("1s", 3, &fields))?;
        let millis = chance.below(8_000);
        std::thread::sleep(Duration::from_millis(millis));
        stage.power_cut()?;
        stage.renews()?;
        if is_good {
            stage.runs(&uid)?;
            stage.promotes(&uid)?;
            expected.push(uid);
        } else {
            let last = expected.last().cloned().unwrap_or_default();
            stage.wait("the roll back", patience(), |stage| {
                let found = crate::stage::condition(&stage.node()?, "ConfigOK");
                let is_so = found.0 == "False" && found.1 == format!("using last known good: (UID: {last})");
                Ok(if is_so { Ok(()) } else { Err(format!("{found:?}")) })
            })?;
        }
        let aside = stage.guest("ls -R /var/lib/kedge | grep corrupt- || true")?;
        stage.expect("files set aside as corrupt", aside.as_str(), "")?;
        stage.say(&format!(
            "cycle {cycle}: cut {millis} ms after the push; the node came back and runs the right config"
        ));
    }
    Ok(())
}

pub(super) fn first_boot_cuts(stage: &mut Stage<'_>) -> Result<(), HilError> {
    let mut chance = Chance::from_environment(stage);
    for cycle in 1..=number("KEDGE_HIL_CYCLES").unwrap_or(CYCLES / 2) {
        stage.cut()?;
        stage.machine.flash()?;
        let millis = 5_000 + chance.below(35_000);
        stage.machine.start(&Start::default())?;
        std::thread::sleep(Duration::from_millis(millis));
        stage.power_cut()?;
        stage.renews()?;
        stage.ready()?;
        let name = stage.guest("cat /etc/kedge/node-name")?;
        stage.expect("node name", name.as_str(), NODE)?;
        stage.say(&format!("cycle {cycle}: cut {millis} ms after power on; the node came back and joined"));
    }
    Ok(())
}
