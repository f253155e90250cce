//! A path in an object, such as `spec.taints[0].key`.
//!
//! Readers carry one for every value and need its text only for an error, so it is a chain of borrowed steps:
//! a step costs nothing, however long the keys above it are.

/// Most bytes of a path's text: clients choose the keys.
const SHOWN_BYTES: usize = 256;

/// A place, by its parent.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl Path<'_> {
    /// The text, cut when it is long.
    pub(crate) fn text(&self) -> String {
        let mut steps = Vec::new();
        let mut at = self;
        while let Path::Field(parent, _) | Path::Item(parent, _) = at {
            steps.push(at);
            at = parent;
        }
        let mut text = String::new();
        for step in steps.into_iter().rev() {
            match step {
                Path::Root => {}
                Path::Field(_, name) => {
                    let dot = if text.is_empty() { "" } else { "." };
                    text.extend([dot, cut(name)]);
                }
                Path::Item(_, index) => text.push_str(&format!("[{index}]")),
            }
            if text.len() > SHOWN_BYTES {
                return format!("{}...", &text[..text.floor_char_boundary(SHOWN_BYTES)]);
            }
        }
        text
    }

    /// The text of a field below.
    pub(crate) fn child(&self, name: &str) -> String {
        Path::Field(self, name).text()
    }
}

/// The beginning of a long text, a little longer than what is shown, so that the caller notices.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN_BYTES + 4)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_steps_and_is_cut() {
        let taints = Path::Field(&Path::Root, "taints");
        assert_eq!(Path::Root.text(), "");
        assert_eq!(Path::Item(&taints, 3).child("key"), "taints[3].key");
        for long in ["x".repeat(1 << 20), "\u{10ffff}".repeat(1 << 18)] {
            let text = Path::Field(&taints, &long).child("key");
            assert!(text.starts_with("taints.") && text.ends_with("...") && text.len() < 300, "{text}");
            let alone = Path::Field(&Path::Root, &long).text();
            assert!(alone.ends_with("...") && alone.len() < 300, "{alone}");
        }
    }
}
