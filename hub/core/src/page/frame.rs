//! The frame of every page: its head, the way back, and its foot.

use time::OffsetDateTime;

use super::html::{Html, Link, MESSAGE};
use crate::kinds::schema::parse_time;
use crate::value::rfc3339;

/// The style of all pages; a header has its digest, so a browser uses no other.
pub const STYLE: &str = include_str!("style.css");

/// The place and time of a page.
#[derive(Debug, Clone)]
pub struct Frame<'a> {
    /// The path of the request, as the client wrote it: links are relative to it.
    pub path: &'a str,
    /// The page does not refresh itself.
    pub still: bool,
    pub now: OffsetDateTime,
}

impl Frame<'_> {
    /// A link to another page, which refreshes itself if this one does.
    pub(super) fn link(&self, segments: &[&str], parameters: &[(&str, &str)]) -> Link {
        let depth = self.path.matches('/').count().saturating_sub(1);
        let mut parameters = parameters.to_vec();
        parameters.extend(self.still.then_some(("still", "")));
        Link::new(&"../".repeat(depth), segments, &parameters)
    }

    /// A link to the nodes that match.
    pub(super) fn nodes(&self, parameters: &[(&str, &str)]) -> Link {
        self.link(&["fleet", "nodes"], parameters)
    }

    pub(super) fn node(&self, name: &str) -> Link {
        self.link(&["fleet", "nodes", name], &[])
    }

    /// A whole page. `parameters` are those of this page, for the link that turns its refresh on or off.
    pub(super) fn page(
        &self,
        title: &str,
        here: (&[&str], &[(&str, &str)]),
        body: impl FnOnce(&mut Html),
    ) -> String {
        let mut page = Html::default();
        page.raw("<!doctype html>\n<html lang=en><head><meta charset=utf-8>");
        page.raw("<meta name=viewport content=\"width=device-width,initial-scale=1\">");
        if !self.still {
            page.raw("<meta http-equiv=refresh content=15>");
        }
        page.raw("<title>").text(title).raw("</title><style>").raw(STYLE).raw("</style></head>\n<body>");
        page.raw("<nav aria-label=Pages>");
        page.link(&self.link(&["fleet"], &[]), "Fleet").raw(" ");
        page.link(&self.nodes(&[]), "Nodes").raw(" ");
        let other = Frame { still: !self.still, ..self.clone() };
        page.link(&other.link(here.0, here.1), if self.still { "Refresh every 15 s" } else { "Hold still" });
        page.raw("</nav>\n<main><h1>").text(title).raw("</h1>\n");
        body(&mut page);
        page.raw("</main>\n<footer class=m><p>Made ").show(rfc3339(self.now));
        page.raw(" by the hub's clock. Read-only.</p></footer></body></html>\n");
        page.into_text()
    }

    /// How long ago, and when.
    pub(super) fn since(&self, page: &mut Html, seconds: i64) {
        let Ok(time) = OffsetDateTime::from_unix_timestamp(seconds) else { return };
        let words = ago(self.now.unix_timestamp(), seconds);
        page.raw("<time datetime=").value(rfc3339(time)).raw(" title=").value(rfc3339(time)).raw(">");
        page.show(words).raw("</time>");
    }

    /// The same of a time as objects write it; other texts are shown as they are.
    pub(super) fn since_text(&self, page: &mut Html, text: &str) {
        match parse_time(text) {
            Some(time) => self.since(page, time.unix_timestamp()),
            None => {
                page.cut(text, 32);
            }
        }
    }
}

/// How long before `now` a time was; both are Unix times.
pub fn ago(now: i64, seconds: i64) -> String {
    match now.saturating_sub(seconds) {
        future if future < 0 => format!("in {}", span(future.saturating_neg())),
        past => format!("{} ago", span(past)),
    }
}

/// A time in its largest unit.
pub(super) fn span(seconds: i64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A part of a page with its command, if it has one.
pub(super) fn heading(page: &mut Html, title: &'static str) {
    page.raw("<h2>").raw(title).raw("</h2>\n");
}

/// The command that gives the same numbers.
pub(super) fn same_by_kubectl(page: &mut Html, line: &str) {
    page.raw("<details><summary>kubectl</summary> ").command(line).raw("</details>\n");
}

/// A number of things that a table leaves out.
pub(super) fn and_more(page: &mut Html, more: usize, what: &'static str) {
    if more > 0 {
        page.raw("<p class=m>and ").show(number(more)).raw(" more ").raw(what).raw("</p>\n");
    }
}

/// A message of a node or of a program.
pub(super) fn message(page: &mut Html, text: &str) {
    page.raw("<bdi>").cut(text, MESSAGE).raw("</bdi>");
}

/// A number with its thousands apart.
pub(super) fn number(value: usize) -> String {
    let digits = value.to_string();
    let mut shown = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_the_same_page_from_everywhere() {
        let check = |path: &str, expect: &str| {
            let frame = Frame { path, still: false, now: OffsetDateTime::UNIX_EPOCH };
            let mut page = Html::default();
            page.link(&frame.node("n"), "n");
            assert_eq!(page.into_text(), format!("<a href=\"{expect}\">n</a>"), "{path}");
        };
        check("/fleet", "fleet/nodes/n");
        check("/fleet/", "../fleet/nodes/n");
        check("/fleet/nodes", "../fleet/nodes/n");
        check("/fleet/nodes/n", "../../fleet/nodes/n");
        check("/fleet/rollouts/ns/name", "../../../fleet/nodes/n");
    }

    #[test]
    fn numbers_and_times_are_easy_to_read() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 119, 120, 7_200, 172_800].map(span), ["0 s", "119 s", "2 min", "2 h", "2 days"]);
    }
}
