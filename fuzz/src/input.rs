//! Cuts an input into choices, numbers and texts, for targets that perform acts instead of reading one text.
//!
//! Always holds: the same bytes give the same choices; after the end of an input follow zeros, so every
//! prefix of an input is an input. Choices take one byte each: a mutation of one byte changes one choice.

use kedge_hub_core::kinds::{KINDS, Kind};

/// Separates the texts of an input that has several. YAML and JSON refuse this byte within a text, so no
/// useful input is lost.
pub(crate) const SEPARATOR: u8 = 0x1e;

/// The texts between separators, in order; those that are missing are empty.
pub(crate) fn sections<const COUNT: usize>(data: &[u8]) -> [&[u8]; COUNT] {
    let mut all = data.splitn(COUNT, |byte| *byte == SEPARATOR);
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

/// The kind that a byte of an input chooses.
pub(crate) fn chosen_kind(number: u8) -> &'static Kind {
    KINDS[usize::from(number) % KINDS.len()]
}

/// The inverse of [`sections`].
pub(crate) fn joined(texts: &[&str]) -> Vec<u8> {
    let separator = [SEPARATOR];
    texts.iter().map(|text| text.as_bytes()).collect::<Vec<_>>().join(&separator[..])
}

/// The part of an input that was not used yet.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((first, rest)) => {
                self.rest = rest;
                *first
            }
            None => 0,
        }
    }

    /// A number below `count`.
    pub(crate) fn choice(&mut self, count: u8) -> u8 {
        self.byte() % count
    }

    /// One of these.
    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Takes as many bytes as the next byte says.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        bytes
    }

    pub(crate) fn text(&mut self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    /// Everything that is left.
    pub(crate) fn remainder(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}
