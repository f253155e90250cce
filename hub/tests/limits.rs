//! Compares the table of served kinds in `docs/limits.md` with the kinds of the hub, row by row.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use kedge_hub_core::kinds::{Kind, served};

/// The row of a kind as the document must have it.
fn row(kind: &Kind) -> String {
    let mut parts = Vec::new();
    if kind.status {
        parts.push("status (get patch update)".to_owned());
    }
    parts.extend(kind.subresources().iter().map(|part| format!("{} ({})", part.name, part.verbs.join(" "))));
    let short = if kind.short_names.is_empty() {
        String::new()
    } else {
        format!(" ({})", kind.short_names.join(" "))
    };
    let scope = if kind.namespaced { "namespace" } else { "cluster" };
    let selectors: Vec<&str> = kind.selectable.iter().map(|selectable| selectable.label).collect();
    format!(
        "| {}{short} | {} | {scope} | {} | {} | {} |",
        kind.plural,
        kind.api_version(),
        kind.verbs.join(" "),
        parts.join(", "),
        selectors.join(" "),
    )
    .replace("  ", " ")
}

#[test]
fn limits_page_lists_exactly_the_served_kinds() {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/limits.md");
    let text = std::fs::read_to_string(document).unwrap();
    let listed: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.starts_with("| resource |"))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .collect();
    let served: Vec<String> = served().map(row).collect();
    assert_eq!(listed, served, "the table of docs/limits.md must read:\n{}\n", served.join("\n"));
}
