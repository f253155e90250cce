//! `/fleet`: the facts that operators look at first, in that order.

use serde_json::Value;

use super::commands;
use super::frame::{Frame, and_more, heading, message, number, same_by_kubectl};
use super::html::Html;
use super::rollout::Rollout;
use super::sees::Sees;
use crate::state::fleet::{By, CERTIFICATE_DAYS, Filter, Fleet, Groups, SILENCES, STATES};
use crate::value::text;

/// Rows of a table.
const ROWS: usize = 12;
/// Warnings on the page.
const WARNINGS: usize = 20;

/// Something about the hub itself.
#[derive(Debug, Clone)]
pub struct Fact {
    pub name: &'static str,
    pub value: String,
    pub is_bad: bool,
}

/// A device whose certificate was refused lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knock {
    /// The node's name in its certificate.
    pub node: String,
    /// Unix time of the latest refusal.
    pub at: i64,
    pub why: String,
    /// There is a Node of this name.
    pub is_registered: bool,
}

/// The numbers of the page, taken at one moment.
#[derive(Debug, Clone)]
pub struct Numbers {
    nodes: usize,
    states: Vec<(&'static str, usize)>,
    duplicates: usize,
    groups: Vec<(By, Groups)>,
    silences: [usize; SILENCES.len()],
    certificates: [usize; CERTIFICATE_DAYS.len() + 1],
    waiting: Groups,
    phases: Groups,
    /// Keys of the latest warnings, the newest first.
    pub warnings: Vec<String>,
}

impl Numbers {
    /// `now`: Unix time.
    pub fn of(fleet: &Fleet, now: i64) -> Numbers {
        Numbers {
            nodes: fleet.count(),
            states: STATES.map(|state| (state, fleet.count_of(By::State, state))).to_vec(),
            duplicates: fleet.count_of(By::Trouble, kedge_api::DUPLICATE_IDENTITY),
            groups: By::ALL.map(|by| (by, fleet.groups(by, usize::MAX))).to_vec(),
            silences: fleet.silences(now),
            certificates: fleet.certificates(now).0,
            waiting: fleet.waiting(ROWS),
            phases: fleet.phases(),
            warnings: fleet.warnings(WARNINGS),
        }
    }

    fn groups(&self, by: By) -> &Groups {
        let found = self.groups.iter().find(|(known, _)| *known == by);
        &found.expect("there are groups for every property").1
    }
}

/// The facts that the page shows.
#[derive(Debug)]
pub struct Overview<'a> {
    pub numbers: &'a Numbers,
    pub hub: Vec<Fact>,
    /// Those that are not complete first.
    pub rollouts: Vec<Rollout>,
    /// The Events of [`Numbers::warnings`].
    pub warnings: Vec<Value>,
    /// Certificate requests that wait for a person.
    pub requests: usize,
    /// Devices that were refused lately, the latest first.
    pub knocks: Vec<Knock>,
    pub sees: Sees,
}

/// Writes the page.
pub fn overview(frame: &Frame<'_>, shown: &Overview<'_>) -> String {
    frame.page("Fleet", (&["fleet"], &[]), |page| {
        first_line(page, frame, shown);
        rollouts(page, frame, shown);
        not_as_wanted(page, frame, shown);
        versions(page, frame, shown);
        dates(page, frame, shown);
        troubles(page, frame, shown);
        if shown.sees.events {
            warnings(page, frame, &shown.warnings);
        }
    })
}

fn first_line(page: &mut Html, frame: &Frame<'_>, shown: &Overview<'_>) {
    let numbers = shown.numbers;
    page.raw("<ul class=line><li>").link(&frame.nodes(&[]), number(numbers.nodes)).raw(" nodes</li>");
    for (state, count) in &numbers.states {
        page.raw(if *count > 0 && *state != "ready" { "<li class=x>" } else { "<li>" });
        page.link(&frame.nodes(&[("state", state)]), number(*count)).raw(" ").show(state.replace('-', " "));
        page.raw("</li>");
    }
    if numbers.duplicates > 0 {
        let link = frame.nodes(&[("trouble", kedge_api::DUPLICATE_IDENTITY)]);
        page.raw("<li class=x>").link(&link, number(numbers.duplicates)).raw(" duplicates</li>");
    }
    if shown.sees.certificates && numbers.certificates[0] > 0 {
        let link = frame.nodes(&[("ends", "0")]);
        page.raw("<li class=x>").link(&link, number(numbers.certificates[0])).raw(" expired</li>");
    }
    if !shown.knocks.is_empty() {
        page.raw("<li class=x>").show(number(shown.knocks.len())).raw(" refused</li>");
    }
    if shown.requests > 0 {
        page.raw("<li class=x>certificate requests that wait for a person: ").show(number(shown.requests));
        page.raw("</li>");
    }
    page.raw("</ul>\n<ul class=line><li class=m>hub</li>");
    for fact in &shown.hub {
        page.raw(if fact.is_bad { "<li class=x>" } else { "<li>" }).raw(fact.name).raw(": ");
        page.text(&fact.value).raw("</li>");
    }
    page.raw("</ul>\n");
    if let Some(line) = commands::count(By::State) {
        same_by_kubectl(page, &line);
    }
}

fn rollouts(page: &mut Html, frame: &Frame<'_>, shown: &Overview<'_>) {
    if !shown.sees.daemon_sets && !shown.sees.config_rollouts {
        return;
    }
    heading(page, "Under way or stopped");
    let open: Vec<&Rollout> = shown.rollouts.iter().filter(|rollout| !rollout.is_complete()).collect();
    let complete = shown.rollouts.len() - open.len();
    if !open.is_empty() {
        page.raw("<table class=w><thead><tr><th>Rollout<th>Phase<th>Updated<th>Not well<th>Why</tr></thead><tbody>\n");
        for rollout in open.iter().take(ROWS) {
            rollout.row(page, frame);
        }
        page.raw("</tbody></table>\n");
        and_more(page, open.len().saturating_sub(ROWS), "rollouts");
    }
    page.raw("<p class=m>").show(number(complete)).raw(" complete:");
    for rollout in shown.rollouts.iter().filter(|rollout| rollout.is_complete()).take(ROWS) {
        page.raw(" ").link(&rollout.link(frame), rollout.title());
    }
    page.raw("</p>\n");
    let line = match (shown.sees.daemon_sets, shown.sees.config_rollouts) {
        (true, true) => "kubectl get daemonsets -A; kubectl get configrollouts",
        (true, false) => "kubectl get daemonsets -A",
        _ => "kubectl get configrollouts",
    };
    same_by_kubectl(page, line);
}

fn not_as_wanted(page: &mut Html, frame: &Frame<'_>, shown: &Overview<'_>) {
    heading(page, "Not as wanted");
    let mut is_empty = true;
    for (by, title) in [
        (By::Config, "<th>Configuration"),
        (By::System, "<th>System"),
        (By::Image, "<th>Disk image"),
        (By::Field, "<th>First wrong field"),
    ] {
        let mut groups = shown.numbers.groups(by).clone();
        groups.rows.retain(|(value, _)| by == By::Field || !value.starts_with("True: "));
        if groups.rows.is_empty() {
            continue;
        }
        is_empty = false;
        table(page, frame, title, &groups, |value| Filter::Fact(by, value.to_owned()));
        if let Some(line) = commands::count(by) {
            same_by_kubectl(page, &line);
        }
    }
    if shown.sees.pods {
        let waiting = &shown.numbers.waiting;
        if !waiting.rows.is_empty() {
            is_empty = false;
            table(page, frame, "<th>Pods that wait, by their nodes", waiting, |reason| {
                Filter::Waiting(reason.to_owned())
            });
        }
        page.raw("<p class=m>Pods:");
        for (phase, count) in shown.numbers.phases.rows.iter().take(ROWS) {
            page.raw(" ").show(number(*count)).raw(" ").within(phase);
        }
        page.raw("</p>\n");
        same_by_kubectl(page, "kubectl get pods -A -o wide | grep -v ' Running '");
    }
    if !shown.knocks.is_empty() {
        is_empty = false;
        knocks(page, frame, &shown.knocks);
    }
    if is_empty {
        page.raw("<p class=g>Every node that reports is as wanted.</p>\n");
    }
}

/// Devices that knock and are refused.
fn knocks(page: &mut Html, frame: &Frame<'_>, knocks: &[Knock]) {
    page.raw(
        "<table class=w><thead><tr><th>Refused within the last hour<th>Latest<th>Why</tr></thead><tbody>\n",
    );
    for knock in knocks.iter().take(ROWS) {
        page.raw("<tr><td>");
        match knock.is_registered {
            true => page.link(&frame.node(&knock.node), &knock.node),
            false => page.within(&knock.node),
        };
        page.raw("<td class=m>");
        frame.since(page, knock.at);
        page.raw("<td>");
        message(page, &knock.why);
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table>\n");
    and_more(page, knocks.len().saturating_sub(ROWS), "devices");
    same_by_kubectl(page, "kedge-hub node list");
}

fn versions(page: &mut Html, frame: &Frame<'_>, shown: &Overview<'_>) {
    heading(page, "Versions");
    for (by, title) in
        [(By::Agent, "<th>Agent"), (By::Os, "<th>System"), (By::Watchdog, "<th>Hardware watchdog")]
    {
        let mut groups = shown.numbers.groups(by).clone();
        if groups.rows.is_empty() {
            continue;
        }
        // the oldest first: these are what is left to update
        groups.rows.sort_by(|a, b| versions_in_order(&a.0, &b.0));
        table(page, frame, title, &groups, |value| Filter::Fact(by, value.to_owned()));
        if let Some(line) = commands::count(by) {
            same_by_kubectl(page, &line);
        }
    }
}

/// Compares versions by their numbers, as `sort -V` does.
fn versions_in_order(a: &str, b: &str) -> std::cmp::Ordering {
    let parts = |text: &str| -> Vec<(u64, String)> {
        let mut parts = Vec::new();
        for part in text.split(|separator: char| !separator.is_ascii_alphanumeric()) {
            let digits = part.find(|first: char| first.is_ascii_digit()).unwrap_or(part.len());
            let (word, number) = part.split_at(digits);
            parts.push((number.parse().unwrap_or(0), word.to_owned()));
        }
        parts
    };
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}

fn dates(page: &mut Html, frame: &Frame<'_>, shown: &Overview<'_>) {
    heading(page, "Dates");
    let numbers = shown.numbers;
    if shown.sees.certificates {
        page.raw("<table><thead><tr><th>Certificates that end within<th class=n>Nodes</tr></thead><tbody>\n");
        for (days, count) in CERTIFICATE_DAYS.iter().zip(numbers.certificates).take(4) {
            page.raw("<tr><td>");
            match days {
                0 => page.raw("(ended)"),
                days => page.show(days).raw(" days"),
            };
            let days = days.to_string();
            number_cell(page, &frame.nodes(&[("ends", &days)]), count);
        }
        page.raw("</tbody></table>\n");
        same_by_kubectl(page, "kedge-hub node list");
    }
    let silent = numbers.states.iter().find(|(state, _)| *state == "silent").map_or(0, |(_, count)| *count);
    let dated: usize = numbers.silences.iter().sum();
    if silent > 0 || dated > 0 {
        page.raw("<table><thead><tr><th>Silent for less than a<th class=n>Nodes</tr></thead><tbody>\n");
        for ((name, _), count) in SILENCES.iter().zip(numbers.silences) {
            page.raw("<tr><td>").raw(name);
            number_cell(page, &frame.nodes(&[("silent", name)]), count);
        }
        if silent > dated {
            page.raw("<tr><td>(unknown)<td class=n>").show(number(silent - dated)).raw("</tr>\n");
        }
        page.raw("</tbody></table>\n");
    } else {
        page.raw("<p class=g>No node is silent.</p>\n");
    }
}

fn troubles(page: &mut Html, frame: &Frame<'_>, shown: &Overview<'_>) {
    heading(page, "Pressure and other troubles");
    let groups = shown.numbers.groups(By::Trouble);
    if groups.rows.is_empty() {
        page.raw("<p class=g>None is reported.</p>\n");
        return;
    }
    table(page, frame, "<th>Condition", groups, |value| Filter::Fact(By::Trouble, value.to_owned()));
    if let Some(line) = commands::count(By::Trouble) {
        same_by_kubectl(page, &line);
    }
}

/// Values with their numbers, the first [`ROWS`] of them.
fn table(
    page: &mut Html,
    frame: &Frame<'_>,
    title: &'static str,
    groups: &Groups,
    filter: impl Fn(&str) -> Filter,
) {
    page.raw("<table><thead><tr>").raw(title).raw("<th class=n>Nodes</tr></thead><tbody>\n");
    for (value, count) in groups.rows.iter().take(ROWS) {
        let (name, wanted) = filter(value).parameter();
        page.raw("<tr><td>").within(value);
        number_cell(page, &frame.nodes(&[(name, &wanted)]), *count);
    }
    page.raw("</tbody></table>\n");
    and_more(page, groups.rows.len().saturating_sub(ROWS) + groups.more, "values");
}

fn number_cell(page: &mut Html, link: &super::html::Link, count: usize) {
    page.raw("<td class=n>").link(link, number(count)).raw("</tr>\n");
}

/// Events, the newest first.
fn warnings(page: &mut Html, frame: &Frame<'_>, events: &[Value]) {
    heading(page, "Latest warnings");
    if events.is_empty() {
        page.raw("<p class=g>There are none.</p>\n");
    }
    table_of_events(page, frame, events);
    same_by_kubectl(page, "kubectl get events -A --field-selector type=Warning --sort-by .lastTimestamp");
}

pub(super) fn table_of_events(page: &mut Html, frame: &Frame<'_>, events: &[Value]) {
    if events.is_empty() {
        return;
    }
    page.raw("<table class=w><thead><tr><th>Last seen<th>About<th>Reason<th>Message</tr></thead><tbody>\n");
    for event in events {
        let field = |name: &str| text(event, &["involvedObject", name]);
        page.raw("<tr><td class=m>");
        frame.since_text(page, last_seen(event));
        page.raw("<td>");
        match field("kind") {
            "Node" => page.raw("<bdi>").link(&frame.node(field("name")), field("name")).raw("</bdi>"),
            kind => page.within(kind).raw(" ").within(field("name")),
        };
        page.raw(if text(event, &["type"]) == "Warning" { "<td class=u>" } else { "<td>" });
        page.within(text(event, &["reason"])).raw("<td>");
        message(page, text(event, &["message"]));
        let count = event["count"].as_u64().unwrap_or(1);
        if count > 1 {
            page.raw(" <span class=m>(").show(count).raw(" times)</span>");
        }
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table>\n");
}

/// The latest time of an Event.
fn last_seen(event: &Value) -> &str {
    let series = text(event, &["series", "lastObservedTime"]);
    let all = [series, text(event, &["lastTimestamp"]), text(event, &["eventTime"])];
    let found = all.into_iter().find(|time| !time.is_empty());
    found.unwrap_or_else(|| text(event, &["metadata", "creationTimestamp"]))
}
