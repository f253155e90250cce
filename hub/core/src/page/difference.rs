//! The lines in which two configurations of a node differ.
//!
//! Always holds: both texts are those of the versions that the node names. If the store has another version
//! by now, the page says so, and compares nothing. Work and lines on the page are bounded, however long the
//! texts are. Left to others: who may read them ([`super::Sees`]).

use serde_json::Value;

use super::frame::{and_more, number};
use super::html::Html;
use crate::value::{at, text};

/// Lines of a difference on the page.
const MOST_LINES: usize = 40;
/// Unchanged lines that are shown around a change.
const AROUND: usize = 2;
/// Lines of a text that are compared.
const MOST_COMPARED: usize = 10_000;
/// Pairs of lines that are compared. Beyond that all lines between the first and the last change count as
/// changed.
const MOST_PAIRS: usize = 250_000;

/// The payload to which a node's `source` refers, if this ConfigMap has it: it must be the same object in the
/// same version. An immutable one has the same payload in every version.
pub fn payload<'a>(source: &Value, config_map: &'a Value) -> Option<&'a str> {
    let same = |field: &str| {
        let (wanted, found) = (text(source, &[field]), text(config_map, &["metadata", field]));
        !wanted.is_empty() && wanted == found
    };
    let is_that = same("uid") && (same("resourceVersion") || config_map["immutable"] == true);
    at(config_map, &["data", text(source, &["kubeletConfigKey"])]).and_then(Value::as_str).filter(|_| is_that)
}

/// A line of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line<'a> {
    Both(&'a str),
    Gone(&'a str),
    New(&'a str),
}

/// Writes the difference.
pub(super) fn difference(page: &mut Html, from: &str, to: &str) {
    let all = lines(from, to);
    let is_cut = [from, to].iter().any(|text| text.lines().nth(MOST_COMPARED).is_some());
    let is_near = |at: usize| {
        let near = &all[at.saturating_sub(AROUND)..all.len().min(at + AROUND + 1)];
        near.iter().any(|line| !matches!(line, Line::Both(_)))
    };
    let shown: Vec<usize> = (0..all.len()).filter(|at| is_near(*at)).collect();
    if is_cut {
        page.raw("<p class=m>Of the first ").show(number(MOST_COMPARED)).raw(" lines:</p>\n");
    }
    if shown.is_empty() {
        page.raw("<p class=m>The content is the same.</p>\n");
        return;
    }
    page.raw("<pre class=k>");
    let mut next = 0;
    for at in shown.iter().take(MOST_LINES) {
        if *at > next {
            page.raw("  (").show(number(*at - next)).raw(" equal lines)\n");
        }
        next = *at + 1;
        match all[*at] {
            Line::Both(line) => page.raw("  ").text(line).raw("\n"),
            Line::Gone(line) => page.raw("<span class=x>- ").text(line).raw("</span>\n"),
            Line::New(line) => page.raw("<span class=g>+ ").text(line).raw("</span>\n"),
        };
    }
    page.raw("</pre>\n");
    and_more(page, shown.len().saturating_sub(MOST_LINES), "lines");
}

fn lines<'a>(from: &'a str, to: &'a str) -> Vec<Line<'a>> {
    let [from, to] = [from, to].map(|text| text.lines().take(MOST_COMPARED).collect::<Vec<&str>>());
    let pairs = || from.iter().zip(&to);
    let head = pairs().take_while(|(from, to)| from == to).count();
    let most = from.len().min(to.len()) - head;
    let ends = from.iter().rev().zip(to.iter().rev());
    let tail = ends.take(most).take_while(|(from, to)| from == to).count();
    let (from_end, to_end) = (from.len() - tail, to.len() - tail);
    let mut all: Vec<Line<'a>> = from[..head].iter().map(|line| Line::Both(line)).collect();
    between(&from[head..from_end], &to[head..to_end], &mut all);
    all.extend(from[from_end..].iter().map(|line| Line::Both(line)));
    all
}

/// The longest common lines stay; the others are gone or new.
fn between<'a>(from: &[&'a str], to: &[&'a str], all: &mut Vec<Line<'a>>) {
    if from.len().saturating_mul(to.len()) > MOST_PAIRS {
        all.extend(from.iter().map(|line| Line::Gone(line)));
        all.extend(to.iter().map(|line| Line::New(line)));
        return;
    }
    // the number of common lines of what follows a pair of positions
    let width = to.len() + 1;
    let mut common = vec![0_usize; (from.len() + 1) * width];
    for (row, old) in from.iter().enumerate().rev() {
        for (column, new) in to.iter().enumerate().rev() {
            let (below, right) = (common[(row + 1) * width + column], common[row * width + column + 1]);
            common[row * width + column] =
                if old == new { common[(row + 1) * width + column + 1] + 1 } else { below.max(right) };
        }
    }
    let (mut row, mut column) = (0, 0);
    while row < from.len() || column < to.len() {
        if row < from.len() && column < to.len() && from[row] == to[column] {
            all.push(Line::Both(from[row]));
            (row, column) = (row + 1, column + 1);
        } else if column == to.len()
            || (row < from.len() && common[(row + 1) * width + column] >= common[row * width + column + 1])
        {
            all.push(Line::Gone(from[row]));
            row += 1;
        } else {
            all.push(Line::New(to[column]));
            column += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_lines_are_shown_with_those_around() {
        let check = |from: &str, to: &str, expect: &str| {
            let mut page = Html::default();
            difference(&mut page, from, to);
            let text = page.into_text().replace("<span class=x>", "").replace("<span class=g>", "");
            assert_eq!(text.replace("</span>", ""), expect, "{from:?} {to:?}");
        };
        check("a\nb\n", "a\nb\n", "<p class=m>The content is the same.</p>\n");
        check("a\nb\nc", "a\nB\nc", "<pre class=k>  a\n- b\n+ B\n  c\n</pre>\n");
        check("", "a", "<pre class=k>+ a\n</pre>\n");
        check("a", "", "<pre class=k>- a\n</pre>\n");
        check(
            "1\n2\n3\n4\nx\n6",
            "1\n2\n3\n4\n6",
            "<pre class=k>  (2 equal lines)\n  3\n  4\n- x\n  6\n</pre>\n",
        );
        check("a\na\nb", "a\nb", "<pre class=k>  a\n- a\n  b\n</pre>\n");
        check("x\nb\nc", "b\nc\ny", "<pre class=k>- x\n  b\n  c\n+ y\n</pre>\n");
    }

    /// Two texts of a mebibyte without a common line, and one that is nothing but ends of lines.
    #[test]
    fn page_and_work_are_bounded() {
        let long: Vec<String> = (0..100_000).map(|number| format!("<{number}>")).collect();
        let other: Vec<String> = (0..100_000).map(|number| format!("&{number}")).collect();
        for (from, to) in [(long.join("\n"), other.join("\n")), ("\n".repeat(1 << 20), "<".repeat(1 << 20))] {
            let mut page = Html::default();
            difference(&mut page, &from, &to);
            let text = page.into_text();
            assert!(text.len() < 10_000 && text.contains(" more lines"), "{} bytes", text.len());
        }
    }

    #[test]
    fn payload_is_of_the_version_that_the_node_names() {
        let source = json!({"uid": "u", "resourceVersion": "7", "kubeletConfigKey": "k"});
        let check = |uid: &str, version: &str, immutable: bool, expect: Option<&str>| {
            let map = json!({"metadata": {"uid": uid, "resourceVersion": version}, "immutable": immutable,
                "data": {"k": "text"}});
            assert_eq!(payload(&source, &map), expect, "{uid} {version} {immutable}");
        };
        check("u", "7", false, Some("text"));
        check("u", "8", false, None);
        check("u", "8", true, Some("text"));
        check("v", "7", true, None);
        assert_eq!(payload(&json!({}), &json!({"data": {"": "text"}})), None);
    }
}
