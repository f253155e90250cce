//! `/fleet/nodes`: the nodes that match a link of the first page.

use super::commands;
use super::frame::{Frame, number, same_by_kubectl};
use super::sees::Sees;
use crate::state::fleet::{By, Filter, Fleet, Sight};

/// Nodes on one page.
pub const MOST_LISTED: usize = 100;

/// One page of a list.
#[derive(Debug)]
pub struct Listed {
    filters: Vec<Filter>,
    total: usize,
    rows: Vec<(String, Sight)>,
    /// More nodes follow, after this name.
    next: Option<String>,
    is_first: bool,
}

impl Listed {
    /// The nodes after a name (empty: from the first on). Filters for facts that the reader may not see are
    /// refused: the number of nodes would reveal them.
    ///
    /// # Errors
    /// The name of an unknown parameter, or of one that the reader may not use.
    pub fn of(
        fleet: &Fleet,
        sees: Sees,
        parameters: &[(String, String)],
        now: i64,
    ) -> Result<Listed, String> {
        let (mut filters, mut after) = (Vec::new(), "");
        for (name, value) in parameters {
            match (name.as_str(), Filter::parse(name, value)) {
                ("still", _) => {}
                ("after", _) => after = value,
                (_, Some(Filter::Waiting(_))) if !sees.pods => return Err(name.clone()),
                (_, Some(Filter::Ends(_))) if !sees.certificates => return Err(name.clone()),
                (_, Some(filter)) => filters.push(filter),
                _ => return Err(name.clone()),
            }
        }
        let (mut total, mut rows, mut next) = (0, Vec::new(), None);
        for (name, sight) in fleet.find(&filters, now) {
            total += 1;
            if name <= after && !after.is_empty() {
                continue;
            }
            if rows.len() < MOST_LISTED {
                rows.push((name.to_owned(), sight.clone()));
            } else if next.is_none() {
                next = rows.last().map(|(name, _)| name.clone());
            }
        }
        Ok(Listed { filters, total, rows, next, is_first: after.is_empty() })
    }
}

/// Writes the page.
pub fn list(frame: &Frame<'_>, listed: &Listed) -> String {
    let parameters: Vec<(&str, String)> = listed.filters.iter().map(Filter::parameter).collect();
    let all: Vec<(&str, &str)> = parameters.iter().map(|(name, value)| (*name, value.as_str())).collect();
    frame.page("Nodes", (&["fleet", "nodes"], &all), |page| {
        page.raw("<p>").show(number(listed.total)).raw(" nodes");
        for (name, value) in &all {
            page.raw(", ").show(*name).raw(" = ").within(value);
        }
        page.raw("</p>\n");
        let line = match listed.filters.as_slice() {
            [] => Some("kubectl get nodes".to_owned()),
            [filter] => commands::find(filter),
            _ => None,
        };
        if let Some(line) = line {
            same_by_kubectl(page, &line);
        }
        if listed.rows.is_empty() {
            return;
        }
        page.raw("<table class=w><thead><tr><th>Node<th>State<th>Configuration<th>Agent<th>System<th>Troubles</tr></thead><tbody>\n");
        for (name, sight) in &listed.rows {
            page.raw("<tr><td>").link(&frame.node(name), name);
            let state = sight.fact(By::State).unwrap_or("");
            page.raw(if state == "ready" { "<td>" } else { "<td class=x>" }).show(state.replace('-', " "));
            if let Some(since) = sight.silent_since {
                page.raw(" ");
                frame.since(page, since);
            }
            let config = sight.fact(By::Config).unwrap_or("");
            page.raw(if config.starts_with("True") || config.is_empty() { "<td>" } else { "<td class=u>" });
            page.within(config);
            for by in [By::Agent, By::Os] {
                page.raw("<td>").within(sight.fact(by).unwrap_or(""));
            }
            page.raw("<td class=u>");
            for (_, trouble) in sight.facts.iter().filter(|(by, _)| *by == By::Trouble) {
                page.show(trouble).raw(" ");
            }
            page.raw("</tr>\n");
        }
        page.raw("</tbody></table>\n<nav aria-label=List>");
        if !listed.is_first {
            page.link(&frame.nodes(&all), "From the first").raw(" ");
        }
        if let Some(next) = &listed.next {
            let mut further = all.clone();
            further.push(("after", next));
            page.link(&frame.nodes(&further), "Next");
        }
        page.raw("</nav>\n");
    })
}
