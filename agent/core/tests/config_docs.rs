//! docs/reference/config.md lists exactly the fields of the schema, each under its effect. This fails until the page
//! follows a changed kind, default or name of a field.

// a build with fault injection has fields that no release has, and the page is about releases
#![cfg(not(feature = "fault-injection"))]

use kedge_core::kubelet::schema::{self, Default, Effect, Field};

const PAGE: &str = include_str!("../../../docs/reference/config.md");

/// The lines between the markers of this name.
fn section(name: &str) -> Vec<&'static str> {
    let begin = format!("<!-- {name}: begin");
    let end = format!("<!-- {name}: end -->");
    let lines = PAGE.lines().skip_while(|line| !line.starts_with(&begin)).skip(1);
    let found: Vec<&str> = lines.take_while(|line| *line != end).collect();
    assert!(!found.is_empty(), "the page has a section {name}");
    found
}

fn fields(effect: Effect) -> Vec<(String, &'static Field)> {
    schema::leaves().into_iter().filter(|(_, field)| field.effect == effect).collect()
}

fn shown(default: Default) -> String {
    match default {
        Default::None => String::new(),
        Default::Bool(value) => format!("`{value}`"),
        Default::Int(value) => format!("`{value}`"),
        Default::Text(value) => format!("`{value}`"),
    }
}

#[test]
fn table_has_every_honoured_field_with_default_and_bounds() {
    let rows: Vec<[String; 3]> = section("honoured")
        .into_iter()
        .skip(2)
        .map(|row| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let mut cell = || cells.next().unwrap_or_default().to_owned();
            let (field, default, meaning, bounds) = (cell(), cell(), cell(), cell());
            assert!(!meaning.is_empty(), "{row}");
            [field, default, bounds]
        })
        .collect();
    let expect: Vec<[String; 3]> = fields(Effect::Honoured)
        .into_iter()
        .map(|(path, field)| [format!("`{path}`"), shown(field.default), field.bounds()])
        .collect();
    assert_eq!(rows, expect);
}

#[track_caller]
fn check_list(name: &str, effect: Effect) {
    let text = section(name).join(" ");
    let listed: Vec<&str> = text.split(", ").map(|field| field.trim().trim_matches('`')).collect();
    let expect: Vec<String> = fields(effect).into_iter().map(|(path, _)| path).collect();
    assert_eq!(listed, expect);
}

#[test]
fn lists_have_every_field_without_effect() {
    check_list("with pods", Effect::WithPods);
    check_list("no effect", Effect::NoEffect);
}
