//! docs/reference/conformance.md refers to existing tests, and its numbers add up.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

const PAGE: &str = include_str!("../../docs/reference/conformance.md");
/// Number of the suite's tests that need running pods.
const ALL: usize = 179;

/// The names of all test functions below a directory.
fn tests_below(directory: &Path, found: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() && !path.ends_with("target") {
            tests_below(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
                if let Some(rest) = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ") {
                    let name = rest.split('(').next().unwrap_or_default();
                    found.extend(std::mem::take(&mut is_test).then(|| name.to_owned()));
                }
            }
        }
    }
    Ok(())
}

/// The numbers and last cells of the table's rows.
fn rows(page: &str) -> Vec<(usize, &str)> {
    let lines = page.lines().skip_while(|line| !line.starts_with("<!-- tests: begin")).skip(3);
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, number, last, _] = cells[..] else { panic!("three cells: {row}") };
        (number.parse().unwrap_or_else(|_| panic!("a number: {row}")), last)
    })
    .collect()
}

#[test]
fn page_names_tests_that_exist() {
    let mut tests = BTreeSet::new();
    for part in ["agent", "hub", "platform"] {
        let part = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(part);
        tests_below(&part, &mut tests).unwrap_or_else(|error| panic!("{}: {error}", part.display()));
    }
    assert!(tests.len() > 1000, "too few tests found: {}", tests.len());
    let mut missing = Vec::new();
    for (_, last) in rows(PAGE).into_iter().filter(|(_, last)| !last.starts_with("not: ")) {
        let named: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "neither a test nor a reason: {last}");
        missing.extend(named.into_iter().filter(|name| !tests.contains(*name)));
    }
    assert!(missing.is_empty(), "docs/reference/conformance.md names tests that do not exist: {missing:?}");
}

#[test]
fn numbers_of_the_page_add_up() {
    let rows = rows(PAGE);
    let all: usize = rows.iter().map(|(number, _)| number).sum();
    let others: usize =
        rows.iter().filter(|(_, last)| last.starts_with("not: ")).map(|(number, _)| number).sum();
    assert_eq!(all, ALL);
    let said = format!("promise: {}, and why not, of the other {others}.", all - others);
    assert!(PAGE.contains(&said), "the page does not say: {said}");
}
