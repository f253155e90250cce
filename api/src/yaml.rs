//! Text for the YAML parser, with blanks treated as Go's reader treats them.
//!
//! Always holds: the parser sees each character unchanged; a tab between a key's colon and its value
//! separates them, as for the kubelet and kubectl, while the parser alone requires a space among the blanks.
//! Leaves to others: the meaning of the parser's events.

use saphyr_parser::input::SkipTabs;
use saphyr_parser::{Input, Parser, StrInput};

/// A parser of this text.
#[must_use]
pub fn parser(text: &str) -> Parser<'_, Text<'_>> {
    Parser::new(Text(StrInput::new(text)))
}

/// A text.
pub struct Text<'a>(StrInput<'a>);

// the default methods of the trait do the same as the other methods of `StrInput`
impl Input for Text<'_> {
    /// Blanks that consist of tabs alone are accepted. The scanner calls this only after a colon: it judges
    /// tabs in the indentation, or after a dash, in another way.
    fn skip_ws_to_eol(&mut self, skip_tabs: SkipTabs) -> (usize, Result<SkipTabs, &'static str>) {
        let (count, found) = self.0.skip_ws_to_eol(skip_tabs);
        (count, found.map(|found| SkipTabs::Result(found.found_tabs(), true)))
    }

    fn lookahead(&mut self, count: usize) {
        self.0.lookahead(count);
    }

    fn buflen(&self) -> usize {
        self.0.buflen()
    }

    fn bufmaxlen(&self) -> usize {
        self.0.bufmaxlen()
    }

    fn buf_is_empty(&self) -> bool {
        self.0.buf_is_empty()
    }

    fn raw_read_ch(&mut self) -> char {
        self.0.raw_read_ch()
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        self.0.raw_read_non_breakz_ch()
    }

    fn skip(&mut self) {
        self.0.skip();
    }

    fn skip_n(&mut self, count: usize) {
        self.0.skip_n(count);
    }

    fn peek(&self) -> char {
        self.0.peek()
    }

    fn peek_nth(&self, n: usize) -> char {
        self.0.peek_nth(n)
    }

    fn peek_opt(&self) -> Option<char> {
        self.0.peek_opt()
    }

    fn look_ch(&mut self) -> char {
        self.0.look_ch()
    }

    fn next_is_document_indicator(&self) -> bool {
        self.0.next_is_document_indicator()
    }

    fn next_is_document_start(&self) -> bool {
        self.0.next_is_document_start()
    }

    fn next_is_document_end(&self) -> bool {
        self.0.next_is_document_end()
    }

    fn next_can_be_plain_scalar(&self, in_flow: bool) -> bool {
        self.0.next_can_be_plain_scalar(in_flow)
    }

    fn skip_while_non_breakz(&mut self) -> usize {
        self.0.skip_while_non_breakz()
    }

    fn skip_while_blank(&mut self) -> usize {
        self.0.skip_while_blank()
    }

    fn fetch_while_is_alpha(&mut self, out: &mut String) -> usize {
        self.0.fetch_while_is_alpha(out)
    }

    fn fetch_while_is_yaml_non_space(&mut self, out: &mut String) -> usize {
        self.0.fetch_while_is_yaml_non_space(out)
    }
}
