//! Texts of nodes and clients, made harmless to show: without invisible characters, and cut.
//!
//! Always holds: the result has no control character, none that reorders or hides text, and at most the named
//! number of characters. The work is bounded by that number, not by the text. Left to others: escaping for
//! the language that the text is put into.

/// Shown in place of a character that is not shown as it is.
const REPLACEMENT: char = '\u{fffd}';
/// Marks a cut.
const CUT: char = '…';
/// Most marks that are put above or below one character.
const MOST_MARKS: usize = 2;

/// At most `most` characters of a text.
pub fn plain(text: &str, most: usize) -> String {
    let mut shown = String::with_capacity(text.len().min(4 * most));
    let (mut count, mut marks) = (0, 0);
    for character in text.chars() {
        if count == most {
            shown.push(CUT);
            break;
        }
        marks = if is_mark(character) { marks + 1 } else { 0 };
        shown.push(match character {
            '\t' | '\n' => ' ',
            hidden if hidden.is_control() || is_hidden(hidden) || marks > MOST_MARKS => REPLACEMENT,
            visible => visible,
        });
        count += 1;
    }
    shown
}

/// At most `most` characters of a text, all of ASCII and visible: for labels, links and lines of a shell.
pub fn ascii(text: &str, most: usize) -> String {
    let shown = text.chars().take(most);
    shown.map(|character| if matches!(character, ' '..='~') { character } else { '?' }).collect()
}

/// Whether a text is the same in a shell within single quotes, in a pattern of grep and on a terminal.
pub fn is_simple(text: &str) -> bool {
    let simple = |byte: &u8| byte.is_ascii_alphanumeric() || b" ._:/+-,=()".contains(byte);
    !text.is_empty() && !text.starts_with('-') && text.as_bytes().iter().all(simple)
}

/// Characters that reorder their neighbours, or are invisible.
fn is_hidden(character: char) -> bool {
    matches!(character,
        '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
        | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}')
}

/// Marks that are put above or below the character before them.
fn is_mark(character: char) -> bool {
    matches!(character,
        '\u{300}'..='\u{36f}' | '\u{483}'..='\u{489}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}'
        | '\u{20d0}'..='\u{20ff}' | '\u{fe20}'..='\u{fe2f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_replaced_and_long_texts_cut() {
        let check = |text: &str, most: usize, expect: &str| assert_eq!(plain(text, most), expect, "{text:?}");
        check("disk full", 20, "disk full");
        check("a\tb\nc", 20, "a b c");
        check("\u{1b}[31mred", 20, "\u{fffd}[31mred");
        check("\u{202e}gpj.exe", 20, "\u{fffd}gpj.exe");
        check("a\u{200b}b\u{2066}c\u{e0041}", 20, "a\u{fffd}b\u{fffd}c\u{fffd}");
        check("e\u{301}e\u{301}\u{301}\u{301}\u{301}", 20, "e\u{301}e\u{301}\u{301}\u{fffd}\u{fffd}");
        check("Straße 北京 عمان", 20, "Straße 北京 عمان");
        check("abc", 3, "abc");
        check("abcd", 3, "abc…");
        assert_eq!(plain(&"<script>".repeat(1 << 15), 100).chars().count(), 101);
    }

    #[test]
    fn only_simple_texts_stand_in_a_shell() {
        assert!(is_simple("False: failed to sync, reason") && is_simple("v1.36.0+kedge.0.3"));
        for text in ["", "-v", "a'b", "$(x)", "a\\", "a*", "ä", "a\nb", "[a]", "a^"] {
            assert!(!is_simple(text), "{text:?}");
        }
        assert_eq!(ascii("a\u{202e}ä'", 3), "a??");
    }
}
