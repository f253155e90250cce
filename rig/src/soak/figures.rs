//! The results of a soak, as figures with their goals.
//!
//! Always holds: a bound is a const with its reason; growth is counted only after the warm-up; a quantity
//! that could not be counted misses its goal.

use kedge_rig::table::{Figure, Goal, quantile};

use crate::disruptions::HUB;
use crate::pushes::PushKind;
use crate::run::{HANGING, STEADY, SoakResult};
use crate::series::Series;

/// A renewal is due every 3 s, retried after at most 3.75 s, and a request that hangs is given up after 3 s;
/// the hub declares a node lost after 50 s at the earliest. No node may be silent for longer than its Lease's
/// duration while its link and the hub are up.
const SILENCE_SECS: f64 = 12.0;
/// For the node that gets configurations under which its main loop hangs: that is noticed after 20 s, the
/// withheld ping is missed 10 s later, and the next start hangs as well, perhaps before its first renewal.
const HANGING_SILENCE_SECS: f64 = 75.0;
/// After an outage the back-off has reached its limit of one renewal period: allow one of those, and one
/// request.
const RETURN_SECS: f64 = 12.0;
/// Allowed growth of an agent's private, written memory in the whole time after the warm-up: the allocator's
/// pages vary by tens.
const AGENT_MEMORY_KIB: f64 = 192.0;
/// The same for an agent that is restarted every few seconds: its memory depends on its age when it is
/// measured.
const YOUNG_MEMORY_KIB: f64 = 512.0;
/// The same for the hub, which keeps every event of the last hour in memory.
const HUB_MEMORY_KIB: f64 = 8192.0;
/// It has up to three more connections while it reports than while the hub is away, and the outage is early
/// in the judged time: the line rose by 1.3 over counts between 14 and 17. A leak at every disruption would
/// show tens.
const AGENT_COUNT: f64 = 2.0;
/// The same for an agent that is restarted every few seconds, and may be measured while it opens its
/// connections.
const YOUNG_COUNT: f64 = 3.0;
/// The same for the hub, which has the connections of four nodes and of the kubectls that push: between 28
/// and 35 were seen.
const HUB_COUNT: f64 = 8.0;
/// Verdicts on 32 UIDs are kept, some hundred bytes each; pushed contents differ in length by some bytes.
const AGENT_BYTES: f64 = 16_384.0;
/// A record that is being written at the moment of a sample.
const AGENT_FILES: f64 = 1.0;
/// A node that gets pushes has more or fewer checkpoints and records from one push to the next: between 5 and
/// 9 files were seen, and a line that rose by 1.01 in an hour.
const YOUNG_FILES: f64 = 3.0;
/// Events of an hour are kept (about a kilobyte each with their indexes), and a write-ahead log of four
/// megabytes.
const HUB_BYTES: f64 = 8_388_608.0;
/// A write-ahead log and its index may or may not exist.
const HUB_FILES: f64 = 2.0;

/// All figures.
pub(crate) fn figures(result: &SoakResult) -> Vec<Figure> {
    let mut figures = pushes(result);
    figures.extend(silences(result));
    figures.extend(ends(result));
    figures.extend(growths(result));
    figures
}

fn pushes(result: &SoakResult) -> Vec<Figure> {
    let tally = &result.tally;
    let failed = tally.failures.len() + tally.further;
    let minutes = result.run_secs / 60.0;
    let mut figures = vec![
        Figure::new(
            "pushes answered",
            tally.answered.len() as f64,
            "",
            format!(
                "of {} in {minutes:.0} minutes; {} disrupted links, {} restarts and {} kills of the hub",
                tally.made, result.disrupted_links, result.restarts, result.kills
            ),
        ),
        Figure::new(
            "pushes not answered, or otherwise than they must be",
            (failed + tally.made.saturating_sub(tally.answered.len() + failed)) as f64,
            "",
            "what went wrong stands below the table",
        )
        .with_goal(Goal::Exactly(0.0)),
    ];
    let mut kinds: Vec<PushKind> = tally.answered.iter().map(|(kind, _)| *kind).collect();
    kinds.sort();
    kinds.dedup();
    for kind in kinds {
        let secs: Vec<f64> =
            tally.answered.iter().filter(|(found, _)| *found == kind).map(|(_, secs)| *secs).collect();
        figures.push(Figure::new(
            &format!("answer to a push, {kind:?}: p50"),
            quantile(&secs, 0.5),
            "s",
            format!(
                "{} answers, the slowest after {:.1} s without disruption",
                secs.len(),
                quantile(&secs, 1.0)
            ),
        ));
    }
    figures
}

fn silences(result: &SoakResult) -> Vec<Figure> {
    let mut figures: Vec<Figure> = result
        .silences
        .iter()
        .map(|(node, secs)| {
            let how = format!(
                "{} renewals; without the time in which its link was cut or stalled or the hub away",
                result.renewals.get(node).copied().unwrap_or(0)
            );
            let limit = if *node == HANGING { HANGING_SILENCE_SECS } else { SILENCE_SECS };
            Figure::new(&format!("longest silence: {node}"), *secs, "s", how).with_goal(Goal::AtMost(limit))
        })
        .collect();
    for (node, secs) in &result.returns {
        let how = format!("the hub was away for {:.0} s", result.outage_secs);
        figures.push(
            Figure::new(&format!("first renewal after the outage: {node}"), *secs, "s", how)
                .with_goal(Goal::AtMost(if *node == HANGING { HANGING_SILENCE_SECS } else { RETURN_SECS })),
        );
    }
    figures
}

fn ends(result: &SoakResult) -> Vec<Figure> {
    result
        .ends
        .iter()
        .map(|(node, ends)| {
            let expected: usize = result
                .tally
                .unclean_ends
                .iter()
                .filter(|(pushed, _)| pushed == node)
                .map(|(_, ends)| *ends)
                .sum();
            let (value, goal, what) = match *node {
                STEADY => ((ends.clean + ends.unclean) as f64, 0, "ends at all"),
                _ => (ends.unclean as f64, expected, "unclean ends"),
            };
            let how = format!(
                "{} more by its own choice, to adopt; two for each push it crashes or hangs under",
                ends.clean
            );
            Figure::new(&format!("{what}: {node}"), value, "", how).with_goal(Goal::Exactly(goal as f64))
        })
        .collect()
}

fn growths(result: &SoakResult) -> Vec<Figure> {
    let mut figures = Vec::new();
    for ((subject, what), series) in &result.series {
        let is_hub = subject == HUB;
        let of = |hub: f64, steady: f64, young: f64| match subject.as_str() {
            HUB => hub,
            STEADY => steady,
            _ => young,
        };
        let (limit, unit) = match *what {
            "memory" => (of(HUB_MEMORY_KIB, AGENT_MEMORY_KIB, YOUNG_MEMORY_KIB), "KiB"),
            "threads" | "descriptors" => (of(HUB_COUNT, AGENT_COUNT, YOUNG_COUNT), ""),
            "bytes" => (if is_hub { HUB_BYTES } else { AGENT_BYTES }, "B"),
            "files" => (of(HUB_FILES, AGENT_FILES, YOUNG_FILES), ""),
            // pages are shared with other processes of the program: shown without a goal
            _ => {
                figures.push(level(subject, what, series));
                continue;
            }
        };
        let settled = series.since(result.warm_up_secs);
        let growth = settled.growth().unwrap_or(f64::NAN);
        let range = settled.range().map_or(String::new(), |(least, most)| format!("{least:.0} to {most:.0}"));
        let how = format!("{} samples after the warm-up, {range}", settled.len());
        figures.push(
            Figure::new(&format!("growth of {what}: {subject}"), growth, unit, how)
                .with_goal(Goal::AtMost(limit)),
        );
    }
    figures
}

fn level(subject: &str, what: &str, series: &Series) -> Figure {
    let (least, most) = series.range().unwrap_or((f64::NAN, f64::NAN));
    let how = format!("at the end; {least:.0} to {most:.0}");
    Figure::new(&format!("{what}: {subject}"), series.last().unwrap_or(f64::NAN), "KiB", how)
}
