//! Text archives: many small files in one, readable as text, in the manner of Go's txtar.
//!
//! A line `-- name --` begins an entry; text before the first entry is a comment. Always holds: reading and
//! writing an archive gives the same bytes. An entry with ` (escaped)` after its name uses backslash escapes
//! for characters that a text editor would hide or change, and only `\n` counts as a line end in it; any
//! other entry is plain text.

/// The mark of an entry with escapes.
const ESCAPED: &str = " (escaped)";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Archive {
    pub(crate) comment: String,
    pub(crate) entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    escaped: bool,
    /// The text as in the archive.
    text: String,
}

impl Archive {
    pub(crate) fn read(archive: &str) -> Self {
        let mut this = Self { comment: String::new(), entries: Vec::new() };
        for line in archive.split_inclusive('\n') {
            if let Some(name) = line.strip_prefix("-- ").and_then(|line| line.trim_end().strip_suffix(" --"))
            {
                let plain = name.strip_suffix(ESCAPED);
                let (name, escaped) = (plain.unwrap_or(name).to_owned(), plain.is_some());
                this.entries.push(Entry { name, escaped, text: String::new() });
                continue;
            }
            match this.entries.last_mut() {
                Some(entry) => entry.text.push_str(line),
                None => this.comment.push_str(line),
            }
        }
        this
    }

    pub(crate) fn to_text(&self) -> String {
        let entry = |entry: &Entry| {
            let mark = if entry.escaped { ESCAPED } else { "" };
            format!("-- {}{mark} --\n{}", entry.name, entry.text)
        };
        self.entries.iter().fold(self.comment.clone(), |text, next| text + &entry(next))
    }
}

impl Entry {
    /// The bytes of the file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        if self.escaped { unescape(&self.text) } else { self.text.clone().into_bytes() }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn set_text(&mut self, text: String) {
        self.text = text;
    }
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chars = text.chars().filter(|c| *c != '\n');
    while let Some(c) = chars.next() {
        if c != '\\' {
            bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        match chars.next() {
            Some('n') => bytes.push(b'\n'),
            Some('r') => bytes.push(b'\r'),
            Some('t') => bytes.push(b'\t'),
            Some('\\') => bytes.push(b'\\'),
            Some('x') => {
                let digits: String = chars.by_ref().take(2).collect();
                bytes.push(u8::from_str_radix(&digits, 16).expect("\\x and two hex digits"));
            }
            Some('u') => {
                let code: String = chars.by_ref().skip(1).take_while(|c| *c != '}').collect();
                let code = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
                bytes.extend(code.expect("\\u{hex digits}").encode_utf8(&mut [0; 4]).as_bytes());
            }
            other => panic!("unknown escape \\{other:?}"),
        }
    }
    bytes
}

#[test]
fn entries_are_text_or_escaped_bytes() {
    let text =
        "Two files.\n\n-- a --\nx: 1\n-- b (escaped) --\nx: \\x00\\xff\\u{e9}\\t\\\\\\r\\n\ny\n-- c --\n";
    let archive = Archive::read(text);
    assert_eq!(archive.to_text(), text);
    assert_eq!(archive.comment, "Two files.\n\n");
    let found: Vec<_> = archive.entries.iter().map(|entry| (entry.name.as_str(), entry.bytes())).collect();
    let expect: [(&str, &[u8]); 3] = [("a", b"x: 1\n"), ("b", b"x: \x00\xff\xc3\xa9\t\\\r\ny"), ("c", b"")];
    assert_eq!(found, expect.map(|(name, bytes)| (name, bytes.to_vec())));
}
