//! How far apart two words are: for suggestions of names that people misspell.

/// Levenshtein distance, not counting case.
#[must_use]
pub fn distance(one: &str, other: &str) -> usize {
    let other = other.as_bytes();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, byte) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = at.saturating_add(1);
        for (column, candidate) in other.iter().enumerate() {
            let substituted = diagonal.saturating_add(usize::from(!byte.eq_ignore_ascii_case(candidate)));
            diagonal = row[column.saturating_add(1)];
            row[column.saturating_add(1)] =
                substituted.min(diagonal.saturating_add(1)).min(row[column].saturating_add(1));
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_inserts_removals_and_replacements() {
        for (one, other, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "ABC", 0),
            ("xabc", "abc", 1),
            ("abc", "xabc", 1),
            ("abc", "abxc", 1),
            ("flaw", "lawn", 2),
            ("kitten", "sitting", 3),
            ("abcdef", "ghijkl", 6),
        ] {
            assert_eq!(distance(one, other), edits, "{one} {other}");
        }
    }
}
