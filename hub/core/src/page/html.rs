//! Writes HTML.
//!
//! Always holds: markup is written from literals alone, and every other text is escaped, cut, and without
//! characters that hide or reorder others. So no string of a node or client becomes markup, however it
//! reaches a page. Left to others: the content of a page.

use std::fmt::Display;

use kedge_api::{head_of, percent_encoded};

use crate::plain::plain;

/// Longest text in a cell, in characters.
pub(super) const CELL: usize = 96;
/// Longest text of a sentence or message.
pub(super) const MESSAGE: usize = 240;

/// Longest part of a link, in bytes: no name is longer.
const NAME_BYTES: usize = 253;

/// A page that is being written.
#[derive(Debug, Default)]
pub(super) struct Html(String);

impl Html {
    /// Markup.
    pub(super) fn raw(&mut self, markup: &'static str) -> &mut Html {
        self.0.push_str(markup);
        self
    }

    /// A text, cut after [`CELL`] characters.
    pub(super) fn text(&mut self, text: &str) -> &mut Html {
        self.cut(text, CELL)
    }

    /// A text, cut after `most` characters.
    pub(super) fn cut(&mut self, text: &str, most: usize) -> &mut Html {
        self.escape(&plain(text, most))
    }

    /// A number, or another value of the hub's own.
    pub(super) fn show(&mut self, value: impl Display) -> &mut Html {
        self.escape(&value.to_string())
    }

    /// A text of nodes within a line: its letters do not reorder the text around it.
    pub(super) fn within(&mut self, text: &str) -> &mut Html {
        self.raw("<bdi>").text(text).raw("</bdi>")
    }

    /// A link within the pages.
    pub(super) fn link(&mut self, to: &Link, text: impl Display) -> &mut Html {
        self.raw("<a href=\"").escape(&to.0).raw("\">").text(&text.to_string()).raw("</a>")
    }

    /// A command for a shell, made by [`super::commands`].
    pub(super) fn command(&mut self, line: &str) -> &mut Html {
        self.raw("<code class=k>").cut(line, 600).raw("</code>")
    }

    /// The value of an attribute, between quotes.
    pub(super) fn value(&mut self, value: impl Display) -> &mut Html {
        self.raw("\"").show(value).raw("\"")
    }

    fn escape(&mut self, text: &str) -> &mut Html {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                other => self.0.push(other),
            }
        }
        self
    }

    pub(super) fn into_text(self) -> String {
        self.0
    }
}

/// A relative link, so that it also leads through `kubectl proxy` and its prefixes.
#[derive(Debug, Clone)]
pub(super) struct Link(String);

impl Link {
    /// `base` leads from the present page to the folder of `/fleet`.
    pub(super) fn new(base: &str, segments: &[&str], parameters: &[(&str, &str)]) -> Link {
        let mut link = base.to_owned();
        for (position, segment) in segments.iter().enumerate() {
            link.push_str(if position == 0 { "" } else { "/" });
            link.push_str(&percent_encoded(head_of(segment, NAME_BYTES)));
        }
        for (position, (name, value)) in parameters.iter().enumerate() {
            link.push(if position == 0 { '?' } else { '&' });
            link.push_str(name);
            if !value.is_empty() {
                link.push('=');
                link.push_str(&percent_encoded(head_of(value, NAME_BYTES)));
            }
        }
        Link(link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let mut page = Html::default();
        page.raw("<p>").text("<script>alert(\"1\")</script>&'\u{202e}\0").raw("</p>");
        assert_eq!(
            page.into_text(),
            "<p>&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#39;\u{fffd}\u{fffd}</p>"
        );
        let mut page = Html::default();
        page.cut(&"<".repeat(1 << 18), 3);
        assert_eq!(page.into_text(), "&lt;&lt;&lt;…");
    }

    #[test]
    fn link_is_relative_and_encoded() {
        let link = Link::new("../", &["fleet", "nodes", "a/b\"<"], &[("os", "A & \"B\""), ("still", "")]);
        let mut page = Html::default();
        page.link(&link, "7");
        assert_eq!(
            page.into_text(),
            "<a href=\"../fleet/nodes/a%2Fb%22%3C?os=A%20%26%20%22B%22&amp;still\">7</a>"
        );
    }
}
