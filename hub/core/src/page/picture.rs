//! The picture of a node's last day: one line for each of contact, configuration, system and pressure.
//!
//! Always holds: a quarter of an hour of which the hub knows nothing is drawn grey, not as good. The page has
//! the same in words, for readers that show no picture.

use super::html::Html;
use crate::state::fleet::{CELLS, Level, Levels, TRACKS};

/// Height of a line in the picture's own units; its width has one for each quarter of an hour.
const HEIGHT: usize = 18;

pub(super) fn picture(page: &mut Html, cells: &[Levels; CELLS]) {
    page.raw("<div class=day role=img aria-label=").value(words(cells)).raw(">\n");
    for (track, name) in TRACKS.iter().enumerate() {
        page.raw("<span>").show(name).raw("</span> <svg preserveAspectRatio=none viewBox=");
        page.value(format!("0 0 {CELLS} {HEIGHT}")).raw(">");
        for (from, to, level) in runs(cells, track) {
            // a bad state is higher, too: some readers cannot tell colours apart
            let height = [8, 8, 13, HEIGHT][level as usize];
            page.raw(
                ["<rect class=c0", "<rect class=c1", "<rect class=c2", "<rect class=c3"][level as usize],
            );
            page.raw(" x=").value(from).raw(" y=").value(HEIGHT - height);
            page.raw(" width=").value(to - from).raw(" height=").value(height).raw("/>");
        }
        page.raw("</svg>\n");
    }
    page.raw("<span></span><p class=\"line m\"><span>24 h ago</span> <span>12 h</span> <span>now</span></p></div>\n");
    page.raw("<details><summary>in words</summary><p>").cut(&words(cells), 600);
    page.raw(". Unknown: the hub did not run, or the node was silent. The picture shows it flat and grey, good low, undecided higher, bad highest.</p></details>\n");
}

/// First and last position of equal cells.
fn runs(cells: &[Levels; CELLS], track: usize) -> Vec<(usize, usize, Level)> {
    let mut runs: Vec<(usize, usize, Level)> = Vec::new();
    for (position, levels) in cells.iter().enumerate() {
        match runs.last_mut() {
            Some((_, to, level)) if *level == levels[track] => *to = position + 1,
            _ => runs.push((position, position + 1, levels[track])),
        }
    }
    runs
}

/// The same in words.
fn words(cells: &[Levels; CELLS]) -> String {
    let mut text = String::from("The last 24 hours, in quarters of an hour:");
    for (track, name) in TRACKS.iter().enumerate() {
        let count = |level| cells.iter().filter(|levels| levels[track] == level).count();
        text.push_str(&format!(
            " {name} good {}, undecided {}, bad {}, unknown {};",
            count(Level::Good),
            count(Level::Unsure),
            count(Level::Bad),
            count(Level::Unknown)
        ));
    }
    text.pop();
    text
}
