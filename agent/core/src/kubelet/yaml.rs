//! Text to a tree that knows the place of each value: YAML, or its subset JSON.
//!
//! Always holds: every read is bounded (bytes, depth, nodes, key length, values that aliases may copy),
//! nothing recurses deeper than [`MAX_DEPTH`], and a key appears once per object. Scalars have the same
//! meaning as to the kubelet's reader (YAML 1.1 words such as `yes` and `off` are booleans, `0644` is octal),
//! so a file that has the wrong type there has the wrong type here. Refused, with the line: several
//! documents, merge keys (`<<`), tags other than `!!str`, `!!map` and `!!seq`, keys that are not text, `.inf`
//! and `.nan`. Dates are text. Left to others: the meaning of the values.

use crate::sorted::SortedMap;
use core::fmt;

use kedge_api::excerpt;
use saphyr_parser::{Event, ScalarStyle, Span, Tag};
use serde_json::{Map, Number, Value};

/// Most bytes one text may have. A ConfigMap cannot exceed 1 MiB upstream and one request 1.5 MiB; a larger
/// text cannot have come from an API server.
pub const MAX_TEXT_BYTES: usize = 1536 * 1024;

/// Deepest nesting. The deepest upstream field is 5 levels down; reading and dropping a tree recurses, and
/// this limit keeps that within a small thread's stack.
pub const MAX_DEPTH: usize = 64;

/// Most values in one text, counting the values that aliases repeat. A full KubeletConfiguration has under
/// 300, a kubeconfig for a hundred clusters some 2,000.
pub const MAX_NODES: usize = 10_000;

/// Most tokens that a text's punctuation may announce. The parser keeps all tokens of a `[...]` or `{...}`
/// before it reports the first (a key could follow), about 180 bytes each: 1.5 MB of `[a,a,a` took 278 MB.
/// With this limit it is 18. [`MAX_NODES`] values in JSON need 100,000 at most; prose in comments counts for
/// 5 in 100 bytes.
const MAX_TOKENS: usize = 100_000;

/// Most values that anchors and aliases together may copy: room for a shared block or two, but not for a
/// bomb.
pub const MAX_COPIED_NODES: usize = 5_000;

/// Most bytes of text that anchors and aliases together may copy (one long string aliased often is a bomb
/// too).
pub const MAX_COPIED_BYTES: usize = 256 * 1024;

/// Longest key. A label key, the longest name Kubernetes has, is 317 bytes.
pub const MAX_KEY_BYTES: usize = 512;

/// A place in a text. Line and column count from 1; line 0 means the value came from no text (a flag, a
/// default).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1; 0 if unknown.
    pub line: u32,
    /// Column in characters, from 1; 0 if unknown.
    pub column: u32,
}

impl Position {
    /// The place of a value that comes from no text.
    pub const NOWHERE: Self = Self { line: 0, column: 0 };

    fn of(span: Span) -> Self {
        let clamp = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self { line: clamp(span.start.line()), column: clamp(span.start.col().saturating_add(1)) }
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// Where the value begins.
    pub position: Position,
    pub content: Content,
}

/// The value of a [`Tree`] node.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Nothing: `null`, `~`, or no text at all.
    Null,
    Bool(bool),
    /// A finite number.
    Number(Number),
    Text(String),
    /// A list, in order.
    List(Vec<Tree>),
    /// An object, in the order written; each key once.
    Object(Vec<Entry>),
}

/// One key of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub key: String,
    /// Where the key begins.
    pub key_position: Position,
    /// The value under the key.
    pub value: Tree,
}

/// Why a text could not be read, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Where reading stopped.
    pub position: Position,
    /// The fault, lower case, without a full stop.
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Position::NOWHERE => formatter.write_str(&self.message),
            at => write!(formatter, "{} (line {}, column {})", self.message, at.line, at.column),
        }
    }
}

impl std::error::Error for Error {}

/// Reads one YAML or JSON document. A text without a value (empty, or comments alone) is [`Content::Null`].
///
/// # Errors
/// The first fault in the form, or beyond a limit, with its place.
pub fn parse(text: &[u8]) -> Result<Tree, Error> {
    let text = readable(text)?;
    let mut parser = kedge_api::yaml::parser(text);
    let mut builder = Builder::default();
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| scan_error(text, &error))?;
        builder.add(event, Position::of(span))?;
    }
    Ok(builder.root.unwrap_or(Tree { position: Position { line: 1, column: 1 }, content: Content::Null }))
}

impl Tree {
    /// The same value without places.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.content {
            Content::Null => Value::Null,
            Content::Bool(value) => Value::Bool(*value),
            Content::Number(value) => Value::Number(value.clone()),
            Content::Text(value) => Value::String(value.clone()),
            Content::List(items) => Value::Array(items.iter().map(Tree::to_json).collect()),
            Content::Object(entries) => {
                // one by one: collecting into a map would add a whole sort to the program, 9 KB
                let mut map = Map::new();
                for entry in entries {
                    map.insert(entry.key.clone(), entry.value.to_json());
                }
                Value::Object(map)
            }
        }
    }

    /// A tree whose every place is [`Position::NOWHERE`].
    #[must_use]
    pub fn from_json(value: &Value) -> Self {
        let content = match value {
            Value::Null => Content::Null,
            Value::Bool(value) => Content::Bool(*value),
            Value::Number(value) => Content::Number(value.clone()),
            Value::String(value) => Content::Text(value.clone()),
            Value::Array(items) => Content::List(items.iter().map(Tree::from_json).collect()),
            Value::Object(map) => Content::Object(entries_of(map)),
        };
        Self { position: Position::NOWHERE, content }
    }

    /// The value under `key`, if this is an object that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Tree> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The text, if this is text.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The boolean, if this is one.
    #[must_use]
    pub fn bool(&self) -> Option<bool> {
        match self.content {
            Content::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The elements, if this is a list; else none.
    #[must_use]
    pub fn items(&self) -> &[Tree] {
        match &self.content {
            Content::List(items) => items,
            _ => &[],
        }
    }

    /// The keys and values, if this is an object; else none.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        match &self.content {
            Content::Object(entries) => entries,
            _ => &[],
        }
    }

    /// Whether this is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.content == Content::Null
    }
}

fn entries_of(map: &Map<String, Value>) -> Vec<Entry> {
    let entry = |(key, value): (&String, &Value)| Entry {
        key: key.clone(),
        key_position: Position::NOWHERE,
        value: Tree::from_json(value),
    };
    map.iter().map(entry).collect()
}

fn fail<T>(position: Position, message: impl Into<String>) -> Result<T, Error> {
    Err(Error { position, message: message.into() })
}

/// The text as UTF-8 without a byte order mark, or the first byte that a text file cannot have.
fn readable(text: &[u8]) -> Result<&str, Error> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!("text has {} bytes, expected at most {MAX_TEXT_BYTES}", text.len());
        return fail(Position::NOWHERE, message);
    }
    let is_foreign = |byte: &u8| (*byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r')) || *byte == 0x7f;
    if let Some(at) = text.iter().position(is_foreign) {
        let message = format!("text holds the byte 0x{:02x}, expected YAML or JSON in UTF-8", text[at]);
        return fail(place_of_byte(text, at), message);
    }
    let tokens: usize = text.split(|byte| *byte == b'\n').map(announced_tokens).sum();
    if tokens > MAX_TOKENS {
        return fail(Position::NOWHERE, format!("more than {MAX_NODES} values, by its punctuation"));
    }
    match core::str::from_utf8(text) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => fail(place_of_byte(text, error.valid_up_to()), "text is not UTF-8"),
    }
}

/// An upper bound of the tokens of this line: each mark counts for itself and the value it ends, each quote
/// for half a text, a comment for the value it ends unless it has the line to itself.
fn announced_tokens(line: &[u8]) -> usize {
    let of_byte = |byte: &u8| match byte {
        b',' | b':' | b'[' | b']' | b'{' | b'}' | b'?' | b'&' | b'*' | b'!' => 2,
        b'"' | b'\'' | b'#' => 1,
        _ => 0,
    };
    let is_comment = line.trim_ascii_start().starts_with(b"#");
    let is_marker = line.starts_with(b"---") || line.starts_with(b"...");
    let marks = line.iter().map(of_byte).fold(usize::from(is_marker), usize::saturating_add);
    marks.saturating_sub(usize::from(is_comment))
}

fn place_of_byte(text: &[u8], at: usize) -> Position {
    let before = &text[..at];
    let line = before.iter().filter(|byte| **byte == b'\n').count().saturating_add(1);
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count().saturating_add(1);
    let clamp = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Position { line: clamp(line), column: clamp(column) }
}

fn scan_error(text: &str, error: &saphyr_parser::ScanError) -> Error {
    let mut position = Position::of(Span::empty(*error.marker()));
    if error.info().starts_with("simple key expect") {
        position = before_blank(text, position);
    }
    Error { position, message: format!("not YAML or JSON: {}", in_plain_words(error.info())) }
}

/// The parser reports a missing colon of a key after it has read on: at the begin of a later line, or at the
/// end. This is the place before that blank.
fn before_blank(text: &str, at: Position) -> Position {
    let index = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let lines: Vec<&str> = text.lines().take(index(at.line)).collect();
    let here = lines.get(index(at.line).saturating_sub(1)).copied().unwrap_or_default();
    let read = here.chars().take(index(at.column).saturating_sub(1));
    if !read.collect::<String>().trim().is_empty() {
        return at;
    }
    let mut above = lines.iter().take(index(at.line).saturating_sub(1));
    let says = |line: &str| !line.trim_start().starts_with('#') && !line.trim().is_empty();
    match above.rposition(|line| says(line)) {
        Some(found) => {
            Position { line: u32::try_from(found.saturating_add(1)).unwrap_or(u32::MAX), column: 1 }
        }
        None => at,
    }
}

/// The parser's messages are about YAML's grammar, which operators need not know.
fn in_plain_words(info: &str) -> &str {
    // a message of a later parser falls through, and is shown as it is
    match info {
        "simple key expect ':'" | "simple key expected" => "a line without \": \" (a colon and a space)",
        "mapping values are not allowed in this context" => {
            "a second \": \" in one value (put it in quotes), or a wrong indentation"
        }
        "while parsing a block mapping, did not find expected key" => {
            "a line that is not \"key: value\", or a wrong indentation"
        }
        "while parsing a block collection, did not find expected '-' indicator" => {
            "a line of a list that does not begin with \"- \", or a wrong indentation"
        }
        "tabs disallowed within this context (block indentation)" | "tabs disallowed in this context" => {
            "a tab in the indentation, expected spaces"
        }
        "invalid indentation in quoted scalar"
        | "while scanning a quoted scalar, found unexpected end of stream"
        | "while scanning a quoted scalar, found unexpected document indicator" => {
            "a quote that is not closed"
        }
        "while parsing node, found unknown anchor" => "an alias (*) of an anchor (&) that is not there",
        "illegal placement of ':' indicator" => "a \":\" where a \",\" or a closing bracket was expected",
        "while parsing a flow mapping, did not find expected ',' or '}'" => {
            "neither a \",\" nor a closing brace where one was expected"
        }
        "while parsing a flow sequence, expected ',' or ']'" => {
            "neither a \",\" nor a closing bracket where one was expected"
        }
        "did not find expected <document start>" => "something follows the end of the object",
        "while parsing a quoted scalar, found unknown escape character" => {
            "an unknown escape (\\) in double quotes, expected single quotes around such text"
        }
        "while parsing a quoted scalar, found invalid Unicode character escape code" => {
            "an escape (\\u) that is not a character, expected the character itself"
        }
        other if other.starts_with("unexpected character: ") => {
            "a value that begins with one of @ ` %, expected quotes around it"
        }
        other => other,
    }
}

/// A list or object whose end has not been read.
struct Open {
    position: Position,
    anchor: usize,
    items: OpenItems,
}

enum OpenItems {
    List(Vec<Tree>),
    Object { entries: Vec<Entry>, key: Option<(String, Position)> },
}

/// Puts events together. `open` is never longer than [`MAX_DEPTH`].
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    root: Option<Tree>,
    anchored: SortedMap<usize, Tree>,
    documents: usize,
    nodes: usize,
    copied: Extent,
}

/// The size of a tree.
#[derive(Clone, Copy, Default)]
struct Extent {
    nodes: usize,
    bytes: usize,
    depth: usize,
}

impl Builder {
    fn add(&mut self, event: Event<'_>, position: Position) -> Result<(), Error> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
            Event::DocumentStart(_) => self.document(position),
            Event::Alias(anchor) => self.alias(anchor, position),
            Event::Scalar(text, style, anchor, tag) => {
                let value = Scalar { text: &text, style, tag: tag.as_deref(), position };
                self.scalar(&value, anchor)
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq", position)?;
                self.push(Open { position, anchor, items: OpenItems::List(Vec::new()) })
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map", position)?;
                self.push(Open {
                    position,
                    anchor,
                    items: OpenItems::Object { entries: Vec::new(), key: None },
                })
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
        }
    }

    fn document(&mut self, position: Position) -> Result<(), Error> {
        self.documents = self.documents.saturating_add(1);
        if self.documents > 1 {
            return fail(position, "a second document begins, expected one");
        }
        Ok(())
    }

    fn scalar(&mut self, scalar: &Scalar<'_>, anchor: usize) -> Result<(), Error> {
        if self.expects_key() {
            let key = scalar.key()?;
            self.count(1, scalar.position)?;
            return self.key(key, scalar.position);
        }
        let tree = Tree { position: scalar.position, content: scalar.resolve()? };
        self.count(1, tree.position)?;
        self.value(tree, anchor)
    }

    fn push(&mut self, open: Open) -> Result<(), Error> {
        if self.expects_key() {
            return fail(open.position, "a list or object stands as a key, expected text");
        }
        if self.open.len() >= MAX_DEPTH {
            return fail(open.position, format!("nested more than {MAX_DEPTH} levels deep"));
        }
        self.count(1, open.position)?;
        self.open.push(open);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let content = match open.items {
            OpenItems::List(items) => Content::List(items),
            OpenItems::Object { entries, .. } => {
                check_keys_differ(&entries)?;
                Content::Object(entries)
            }
        };
        self.value(Tree { position: open.position, content }, open.anchor)
    }

    fn alias(&mut self, anchor: usize, position: Position) -> Result<(), Error> {
        if self.expects_key() {
            return fail(position, "an alias stands as a key, expected text");
        }
        let Some(target) = self.anchored.get(&anchor) else {
            return fail(position, "alias stands inside the value it refers to");
        };
        let extent = extent(target);
        if self.open.len().saturating_add(extent.depth) > MAX_DEPTH {
            return fail(position, format!("nested more than {MAX_DEPTH} levels deep"));
        }
        let copy = target.clone();
        self.charge_copy(extent, position)?;
        self.count(extent.nodes, position)?;
        self.value(copy, 0)
    }

    /// Puts a finished value into its place; remembers it if it has an anchor.
    fn value(&mut self, tree: Tree, anchor: usize) -> Result<(), Error> {
        if anchor != 0 {
            self.charge_copy(extent(&tree), tree.position)?;
            self.anchored.insert(anchor, tree.clone());
        }
        match self.open.last_mut().map(|open| &mut open.items) {
            None => self.root = Some(tree),
            Some(OpenItems::List(items)) => items.push(tree),
            Some(OpenItems::Object { entries, key }) => {
                let (key, key_position) = key.take().expect("a value without a key is taken as the key");
                entries.push(Entry { key, key_position, value: tree });
            }
        }
        Ok(())
    }

    fn key(&mut self, text: String, position: Position) -> Result<(), Error> {
        if text.len() > MAX_KEY_BYTES {
            return fail(position, format!("key has {} bytes, expected at most {MAX_KEY_BYTES}", text.len()));
        }
        if let Some(OpenItems::Object { key, .. }) = self.open.last_mut().map(|open| &mut open.items) {
            *key = Some((text, position));
        }
        Ok(())
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { items: OpenItems::Object { key: None, .. }, .. }))
    }

    fn count(&mut self, nodes: usize, position: Position) -> Result<(), Error> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            return fail(position, format!("more than {MAX_NODES} values"));
        }
        Ok(())
    }

    fn charge_copy(&mut self, extent: Extent, position: Position) -> Result<(), Error> {
        self.copied.nodes = self.copied.nodes.saturating_add(extent.nodes);
        self.copied.bytes = self.copied.bytes.saturating_add(extent.bytes);
        if self.copied.nodes > MAX_COPIED_NODES || self.copied.bytes > MAX_COPIED_BYTES {
            let limits = format!("{MAX_COPIED_NODES} values or {MAX_COPIED_BYTES} bytes");
            return fail(position, format!("anchors and aliases repeat more than {limits}"));
        }
        Ok(())
    }
}

fn extent(tree: &Tree) -> Extent {
    let mut sum = Extent { nodes: 1, bytes: 0, depth: 0 };
    let mut add = |child: &Tree, key_bytes: usize| {
        let child = extent(child);
        sum.nodes = sum.nodes.saturating_add(child.nodes);
        sum.bytes = sum.bytes.saturating_add(child.bytes).saturating_add(key_bytes);
        sum.depth = sum.depth.max(child.depth.saturating_add(1));
    };
    match &tree.content {
        Content::Null | Content::Bool(_) | Content::Number(_) => {}
        Content::Text(text) => sum.bytes = text.len(),
        Content::List(items) => items.iter().for_each(|item| add(item, 0)),
        Content::Object(entries) => {
            entries.iter().for_each(|entry| add(&entry.value, entry.key.len().saturating_add(1)))
        }
    }
    // an empty list is a level too
    if matches!(tree.content, Content::List(_) | Content::Object(_)) {
        sum.depth = sum.depth.max(1);
    }
    sum
}

/// Sorts the keys, so that equal ones become neighbours: without a copy of the keys, and without quadratic
/// time unless one repeats.
fn check_keys_differ(entries: &[Entry]) -> Result<(), Error> {
    let mut keys: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    keys.sort_unstable();
    if keys.windows(2).all(|pair| pair[0] != pair[1]) {
        return Ok(());
    }
    for (index, entry) in entries.iter().enumerate() {
        if let Some(first) = entries[..index].iter().find(|first| first.key == entry.key) {
            let message = format!("duplicate key {:?}, first at line {}", entry.key, first.key_position.line);
            return fail(entry.key_position, message);
        }
    }
    Ok(())
}

fn check_tag(tag: Option<&Tag>, plain: &str, position: Position) -> Result<(), Error> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == plain) => {
            fail(position, format!("tag {} is not supported", shown(tag)))
        }
        _ => Ok(()),
    }
}

/// A tag can be as long as its text, and `%00` in it is a byte no terminal should get.
fn shown(tag: &Tag) -> String {
    let handle = if tag.is_yaml_core_schema() { "!!" } else { &tag.handle };
    excerpt(&format!("{handle}{}", tag.suffix)).escape_debug().to_string()
}

/// A scalar in its written form.
struct Scalar<'a> {
    text: &'a str,
    style: ScalarStyle,
    tag: Option<&'a Tag>,
    position: Position,
}

impl Scalar<'_> {
    fn is_text(&self) -> bool {
        self.tag.is_some() || self.style != ScalarStyle::Plain
    }

    fn key(&self) -> Result<String, Error> {
        check_tag(self.tag, "str", self.position)?;
        if !self.is_text() && self.text == "<<" {
            return fail(self.position, "merge key << is not supported, write the fields out");
        }
        match self.resolve()? {
            Content::Text(text) => Ok(text),
            other => fail(
                self.position,
                format!(
                    "key {} reads as {}, expected text (put it in quotes)",
                    excerpt(self.text),
                    kind(&other)
                ),
            ),
        }
    }

    /// The value to the kubelet's YAML reader.
    fn resolve(&self) -> Result<Content, Error> {
        check_tag(self.tag, "str", self.position)?;
        if self.is_text() {
            return Ok(Content::Text(self.text.to_owned()));
        }
        Ok(match self.text {
            "" | "~" | "null" | "Null" | "NULL" => Content::Null,
            "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => {
                Content::Bool(true)
            }
            "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => {
                Content::Bool(false)
            }
            ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf"
            | "-.Inf" | "-.INF" => {
                return fail(self.position, format!("{} is not a finite number", self.text));
            }
            text => number(text).map_or_else(|| Content::Text(text.to_owned()), Content::Number),
        })
    }
}

/// Whether this word, written without quotes, reads as text.
pub(super) fn plain_is_text(word: &str) -> bool {
    let scalar = Scalar { text: word, style: ScalarStyle::Plain, tag: None, position: Position::NOWHERE };
    matches!(scalar.resolve(), Ok(Content::Text(_)))
}

/// A value's kind in words, for messages.
fn kind(content: &Content) -> &'static str {
    match content {
        Content::Null => "null",
        Content::Bool(_) => "a boolean",
        Content::Number(_) => "a number",
        Content::Text(_) => "text",
        Content::List(_) => "a list",
        Content::Object(_) => "an object",
    }
}

/// A plain scalar as a number, by the rules of the kubelet's reader: `_` may group digits, `0x`, `0o`, `0b`
/// and a leading `0` choose the base, a number that fits neither `i64` nor `u64` is a float. A whole float is
/// an integer, as it becomes on its way through JSON there.
fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|first: char| matches!(first, '0'..='9' | '+' | '-' | '.')) {
        return None;
    }
    let text = text.replace('_', "");
    integer(&text).or_else(|| float(&text))
}

fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let prefix = digits.get(..2).unwrap_or_default();
    let (radix, digits) = match prefix {
        "0x" | "0X" => (16, &digits[2..]),
        "0o" | "0O" => (8, &digits[2..]),
        "0b" | "0B" => (2, &digits[2..]),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    // from_str_radix would take a second sign
    if !digits.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(digits, radix).ok()?);
    let value = if negative { magnitude.saturating_neg() } else { magnitude };
    i64::try_from(value).map(Number::from).or_else(|_| u64::try_from(value).map(Number::from)).ok()
}

/// Uses the JSON reader, which the agent has anyway: the standard library's own costs 20 KB more.
fn float(text: &str) -> Option<Number> {
    if !has_float_form(text) {
        return None;
    }
    let (sign, unsigned) = match text.strip_prefix(['-', '+']) {
        Some(unsigned) if text.starts_with('-') => ("-", unsigned),
        Some(unsigned) => ("", unsigned),
        None => ("", text),
    };
    // JSON wants one digit before the point, no leading zeros, and a digit after it
    let end = unsigned.find(['.', 'e', 'E']).unwrap_or(unsigned.len());
    let (whole, rest) = unsigned.split_at(end);
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let missing = if rest == "." || rest.starts_with(".e") || rest.starts_with(".E") { "0" } else { "" };
    let (point, rest) = rest.split_at(usize::from(rest.starts_with('.')));
    let number: Number =
        serde_json::from_slice(format!("{sign}{whole}{point}{missing}{rest}").as_bytes()).ok()?;
    let value = number.as_f64()?;
    // beyond this not every integer is a float
    const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= LARGEST_EXACT {
        // whole and within 53 bits, so the cast loses nothing
        return Some(Number::from(value as i64));
    }
    Some(number)
}

/// `[-+]? ( . digits | digits [. digits?] ) ( [eE] [-+]? digits )?`
fn has_float_form(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mantissa_is_number = match mantissa.split_once('.') {
        None => digits(mantissa),
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
    };
    let exponent_is_number =
        exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)));
    mantissa_is_number && exponent_is_number
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(text: &str, expect: Value) {
        assert_eq!(parse(text.as_bytes()).map(|tree| tree.to_json()), Ok(expect), "{text}");
    }

    #[track_caller]
    fn check_error(text: &str, expect: &str) {
        let error = parse(text.as_bytes()).expect_err(text);
        assert_eq!(error.to_string(), expect, "{text}");
    }

    #[test]
    fn plain_scalars_are_read_as_by_the_kubelet() {
        for text in ["true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"] {
            check(&format!("a: {text}"), json!({"a": true}));
        }
        for text in ["false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"] {
            check(&format!("a: {text}"), json!({"a": false}));
        }
        let bool_of = |text: &str| parse(text.as_bytes()).expect("YAML").bool();
        assert_eq!(["yes", "no", "1", "'no'"].map(bool_of), [Some(true), Some(false), None, None]);
        for text in ["", "~", "null", "Null", "NULL"] {
            check(&format!("a: {text}"), json!({"a": null}));
        }
        for text in [
            "tRue",
            "nULL",
            "yEs",
            "oN",
            "0x",
            "0xg",
            "1.2.3",
            "10s",
            "1e",
            "e1",
            "--1",
            "+-1",
            "0b2",
            "2001-12-14",
            "1e999",
            ".",
            "-.",
            "+",
            ".e1",
            "+e1",
            "+-1.",
            "+-1.5",
            "+-1e1",
        ] {
            check(&format!("a: {text}"), json!({"a": text}));
        }
    }

    #[test]
    fn tabs_separate_as_in_gos_reader() {
        for text in [
            "a:\tb",
            "a:\t\tb",
            "a: \tb",
            "a:\t b",
            "a:\t\"b\"",
            "a:\t'b'",
            "{a:\tb}",
            "\"a\":\tb",
            "a:\tb\t# c",
            "a:\t!!str b",
        ] {
            check(text, json!({"a": "b"}));
        }
        check("a:\t1\nb:\ttrue\nc:\t[x,\tz]\nd:\t-1", json!({"a": 1, "b": true, "c": ["x", "z"], "d": -1}));
        check("a:\tb\tc", json!({"a": "b\tc"}));
        check("a:\t# c\n  b:\tc", json!({"a": {"b": "c"}}));
        check("a:\t\n  b: c", json!({"a": {"b": "c"}}));
        check("a:\t&x b\nc:\t*x", json!({"a": "b", "c": "b"}));
        check("- a:\tb\n  c:\td", json!([{"a": "b", "c": "d"}]));
        // not a separator, but text
        check("a:\t|\n  x:\ty\n", json!({"a": "x:\ty\n"}));
        check("a: 'x:\ty'", json!({"a": "x:\ty"}));
        for text in ["a:\n\tb: c", "a:\t- b", "a:\tb: c", "a: b\n\tc: d"] {
            assert!(parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn numbers_follow_the_kubelets_reader() {
        let table = [
            ("0", json!(0)),
            ("-0", json!(0)),
            ("10", json!(10)),
            ("+10", json!(10)),
            ("-10", json!(-10)),
            ("1_000", json!(1000)),
            ("0x1F", json!(31)),
            ("0o17", json!(15)),
            ("0b11", json!(3)),
            ("0644", json!(420)),
            ("089", json!(89)),
            ("9223372036854775807", json!(i64::MAX)),
            ("-9223372036854775808", json!(i64::MIN)),
            ("18446744073709551615", json!(u64::MAX)),
            ("18446744073709551616", json!(18446744073709551616.0)),
            ("1.5", json!(1.5)),
            (".5", json!(0.5)),
            ("10.0", json!(10)),
            ("1e3", json!(1000)),
            ("1.5e-3", json!(0.0015)),
            ("1.", json!(1)),
            ("-1.e1", json!(-10)),
            ("+.5", json!(0.5)),
            ("-0.25", json!(-0.25)),
            ("00.50", json!(0.5)),
            ("0.", json!(0)),
            ("1.E1", json!(10)),
            ("+0x1F", json!(31)),
            ("-0x10", json!(-16)),
            ("+18446744073709551615", json!(u64::MAX)),
            // the last whole number up to which all are floats, too
            ("9007199254740992.0", json!(9_007_199_254_740_992_i64)),
            ("9007199254740994.0", json!(9_007_199_254_740_994.0)),
        ];
        for (text, expect) in table {
            check(&format!("a: {text}"), json!({"a": expect}));
        }
    }

    #[test]
    fn quoted_and_block_scalars_are_text() {
        check(
            "a: \"10\"\nb: 'yes'\nc: |\n  7\nd: >-\n  no\n",
            json!({"a": "10", "b": "yes", "c": "7\n", "d": "no"}),
        );
        check("a: !!str 10", json!({"a": "10"}));
        check("!!str e: !!seq [1]\nf: !!map {g: 2}\n\"<<\": 3\n", json!({"e": [1], "f": {"g": 2}, "<<": 3}));
    }

    #[test]
    fn json_is_read_unchanged() {
        let text = r#"{"a":{"b":[1,2.5,"x\n\u0041\/",true,null]},"c":{}}"#;
        check(text, json!({"a": {"b": [1, 2.5, "x\nA/", true, null]}, "c": {}}));
        check("{\n\t\"a\": 1,\n\t\"b\": [\n\t\t2\n\t]\n}\n", json!({"a": 1, "b": [2]}));
    }

    #[test]
    fn text_without_a_value_is_null() {
        for text in ["", "\n\n", "# only a comment\n", "---\n", "---\n# nothing\n...\n", "\u{feff}"] {
            check(text, Value::Null);
        }
        check("\u{feff}a: 1", json!({"a": 1}));
    }

    #[test]
    fn positions_count_from_one() {
        let tree = parse(b"a: 1\nb:\n  - x\n  - {c: 2}\n").unwrap();
        let list = tree.get("b").unwrap();
        assert_eq!(tree.entries()[1].key_position, Position { line: 2, column: 1 });
        assert_eq!(list.items()[0].position, Position { line: 3, column: 5 });
        assert_eq!(list.items()[1].get("c").unwrap().position, Position { line: 4, column: 9 });
    }

    #[test]
    fn syntax_error_names_the_line() {
        check_error("a: 1\nb: 2\na: 3\n", "duplicate key \"a\", first at line 1 (line 3, column 1)");
        check_error("a:\n  b: {c: 1, c: 2}\n", "duplicate key \"c\", first at line 2 (line 2, column 13)");
        check_error("{\"a\": 1, \"a\": 1}", "duplicate key \"a\", first at line 1 (line 1, column 10)");
        check_error("a: 1\n---\nb: 2\n", "a second document begins, expected one (line 2, column 1)");
        check_error("a: \0", "text holds the byte 0x00, expected YAML or JSON in UTF-8 (line 1, column 4)");
        check_error(
            "a: &x {b: 1}\nc:\n  <<: *x\n",
            "merge key << is not supported, write the fields out (line 3, column 3)",
        );
        check_error(
            "on: 1",
            "key on reads as a boolean, expected text (put it in quotes) (line 1, column 1)",
        );
        check_error("1: x", "key 1 reads as a number, expected text (put it in quotes) (line 1, column 1)");
        let long = format!("? 0.{}\n: x\n", "0".repeat(1_000_000));
        let short =
            format!("key 0.{}... reads as a number, expected text (put it in quotes)", "0".repeat(58));
        check_error(&long, &format!("{short} (line 1, column 3)"));
        check_error("? [a]\n: b\n", "a list or object stands as a key, expected text (line 1, column 3)");
        check_error("a: !!int 7", "tag !!int is not supported (line 1, column 4)");
        check_error("a: !secret x", "tag !secret is not supported (line 1, column 4)");
        check_error("a: !s%00 x", "tag !s\\0 is not supported (line 1, column 4)");
        check_error("a: -.inf", "-.inf is not a finite number (line 1, column 4)");
        check_error("a: &x\n  b: *x\n", "alias stands inside the value it refers to (line 2, column 6)");
        let error = parse(b"a: \xff\xfe").expect_err("no UTF-8");
        assert_eq!(error.to_string(), "text is not UTF-8 (line 1, column 4)");
    }

    #[test]
    fn control_byte_error_names_the_position() {
        for (byte, shown) in [('\u{1}', "0x01"), ('\u{1f}', "0x1f"), ('\u{7f}', "0x7f")] {
            let expect = format!("text holds the byte {shown}, expected YAML or JSON in UTF-8");
            check_error(&format!("a: 1\nb: 2\nc:{byte} 3\n"), &format!("{expect} (line 3, column 3)"));
        }
        check("a: ' ~\t'\r\nb: 2\r\n", json!({"a": " ~\t", "b": 2}));
        let error = parse(b"a: 1\nb: \xe9\n").expect_err("Latin-1");
        assert_eq!(error.to_string(), "text is not UTF-8 (line 2, column 4)");
    }

    #[test]
    fn missing_colon_error_names_the_right_line() {
        let expect = "not YAML or JSON: a line without \": \" (a colon and a space) (line 2, column 1)";
        check_error("a: 1\nbroken\nb: 2\n", expect);
        check_error("a: 1\nbroken\n\n# a comment\n  # another\n\nb: 2\n", expect);
    }

    #[test]
    fn parser_errors_are_put_into_plain_words() {
        for (info, words) in [
            ("simple key expected", "a line without \": \" (a colon and a space)"),
            ("unexpected character: `@'", "a value that begins with one of @ ` %, expected quotes around it"),
            ("what nobody has met", "what nobody has met"),
        ] {
            assert_eq!(in_plain_words(info), words);
        }
    }

    #[test]
    fn announced_tokens_are_bounded_by_the_line() {
        for (line, tokens) in [
            ("", 0),
            ("word", 0),
            ("a: 1", 2),
            ("{a: [b, c]}", 12),
            ("? &a *b !c", 8),
            ("a: \"b\"", 4),
            ("it's", 1),
            ("a # b", 1),
            ("# a", 0),
            ("  # a, b", 2),
            ("---", 1),
            ("...", 1),
            ("--- # a", 2),
        ] {
            assert_eq!(announced_tokens(line.as_bytes()), tokens, "{line}");
        }
    }

    #[test]
    fn tree_extent_counts_values_bytes_and_levels() {
        for (text, expect) in [
            ("~", (1, 0, 0)),
            ("17", (1, 0, 0)),
            ("xyz", (1, 3, 0)),
            ("[]", (1, 0, 1)),
            ("[xx, yyy]", (3, 5, 1)),
            ("[[[]]]", (3, 0, 3)),
            // a key counts with its colon
            ("{a: {b: [xx, yyy], cc: []}}", (6, 12, 3)),
        ] {
            let found = extent(&parse(text.as_bytes()).expect(text));
            assert_eq!((found.nodes, found.bytes, found.depth), expect, "{text}");
        }
    }

    #[test]
    fn aliases_repeat_their_value() {
        check("a: &x [1, 2]\nb: *x\n", json!({"a": [1, 2], "b": [1, 2]}));
        check("a: &x yes\nb: {c: *x}\n", json!({"a": true, "b": {"c": true}}));
    }

    #[test]
    fn billion_laughs_are_refused() {
        let mut text = String::from("a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n");
        for level in 1..10 {
            let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
            text.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        let error = parse(text.as_bytes()).expect_err("a bomb");
        assert_eq!(error.message, "anchors and aliases repeat more than 5000 values or 262144 bytes");
    }

    #[test]
    fn long_text_repeated_often_is_refused() {
        let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 100].join(", "));
        let error = parse(text.as_bytes()).expect_err("a bomb");
        assert_eq!(error.message, "anchors and aliases repeat more than 5000 values or 262144 bytes");
    }

    #[test]
    fn aliases_cannot_nest_deeper_than_text() {
        let mut text = format!("a0: &a0 {}{}\n", "[".repeat(40), "]".repeat(40));
        text.push_str(&format!("b: {}*a0{}\n", "[".repeat(40), "]".repeat(40)));
        assert_eq!(parse(text.as_bytes()).expect_err("80 levels").message, "nested more than 64 levels deep");
    }

    #[test]
    fn every_limit_holds() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(deep(MAX_DEPTH).as_bytes()).is_ok());
        assert_eq!(
            parse(deep(MAX_DEPTH + 1).as_bytes()).expect_err("deep").message,
            "nested more than 64 levels deep"
        );
        for endless in
            ["[".repeat(1_000_000), "{a: ".repeat(300_000), "- ".repeat(700_000), "? ".repeat(700_000)]
        {
            assert!(parse(endless.as_bytes()).is_err());
        }
        let many = |count: usize| format!("[{}]", vec!["1"; count].join(","));
        assert!(parse(many(MAX_NODES - 1).as_bytes()).is_ok());
        assert_eq!(parse(many(MAX_NODES).as_bytes()).expect_err("many").message, "more than 10000 values");
        let key = |bytes: usize| format!("{}: 1", "k".repeat(bytes));
        assert!(parse(key(MAX_KEY_BYTES).as_bytes()).is_ok());
        assert_eq!(
            parse(key(513).as_bytes()).expect_err("key").message,
            "key has 513 bytes, expected at most 512"
        );
        let error = parse(&vec![b'#'; 2_000_000]).expect_err("large");
        assert_eq!(error.to_string(), "text has 2000000 bytes, expected at most 1572864");
    }

    #[track_caller]
    fn check_limit(longest: &str, longer: &str, expect: &str) {
        let found = |text: &str| parse(text.as_bytes()).map(drop).map_err(|error| error.message);
        assert_eq!(found(longest), Ok(()));
        assert_eq!(found(longer), Err(expect.to_owned()));
    }

    #[test]
    fn text_at_a_limit_is_read_and_beyond_it_refused() {
        let comment = format!("#{}", "x".repeat(MAX_TEXT_BYTES - 1));
        check_limit(&comment, &format!("{comment}x"), "text has 1572865 bytes, expected at most 1572864");
        let commas = format!("#{}", ",".repeat(MAX_TOKENS / 2));
        check_limit(&commas, &format!("{commas}\""), "more than 10000 values, by its punctuation");
        // copied once for the anchor and once for each alias
        let copied = "anchors and aliases repeat more than 5000 values or 262144 bytes";
        let half = format!("[{}]", vec!["1"; MAX_COPIED_NODES / 2 - 1].join(","));
        let all = format!("a: &a {half}\nb: *a\n");
        check_limit(&all, &format!("{all}c: &c 1\n"), copied);
        let all = format!("a: &a {}\nb: *a\n", "x".repeat(MAX_COPIED_BYTES / 2));
        check_limit(&all, &format!("{all}c: &c x\n"), copied);
        let nested =
            |levels: usize| format!("a: &a [1]\nb: {}*a{}\n", "[".repeat(levels), "]".repeat(levels));
        check_limit(&nested(MAX_DEPTH - 2), &nested(MAX_DEPTH - 1), "nested more than 64 levels deep");
    }

    #[test]
    fn tree_from_json_loses_nothing_but_positions() {
        let value = json!({"a": [1, "x", null, {"b": true}]});
        let tree = Tree::from_json(&value);
        assert_eq!(tree.to_json(), value);
        assert_eq!(tree.get("a").unwrap().position, Position::NOWHERE);
    }
}
