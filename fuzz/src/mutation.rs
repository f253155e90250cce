//! Mutations that are the same on every machine and every day, so that plain tests try more than the corpora.
//!
//! Small changes of one input, crossings of two, and words of the target. Unlike a fuzzer it does not measure
//! coverage.

use kedge_rig::Random;

/// Bytes that readers of text treat specially, and some unexpected ones.
const SPICE: &[u8] = b"{}[]:,-?&*!|>'\"%@`#\n\r\t \\~<=./0129eExX_+an\x00\x1e\x7f\x80\xc3\xff";

/// Changes inputs, the same way for the same seed.
pub struct Dice(Random);

impl Dice {
    /// Each seed gives its own numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    fn roll(&mut self, sides: usize) -> usize {
        self.0.index(sides)
    }

    /// A few changes of one of `inputs`.
    pub fn mutation(&mut self, inputs: &[Vec<u8>], words: &[&str], longest_bytes: usize) -> Vec<u8> {
        let mut data = inputs.get(self.roll(inputs.len())).cloned().unwrap_or_default();
        for _ in 0..=self.roll(4) {
            self.change(&mut data, inputs, words);
        }
        data.truncate(longest_bytes);
        data
    }

    fn change(&mut self, data: &mut Vec<u8>, inputs: &[Vec<u8>], words: &[&str]) {
        let at = self.roll(data.len() + 1);
        let end = (at + 1 + self.roll(16)).min(data.len());
        match self.roll(8) {
            0 => data.insert(at, SPICE[self.roll(SPICE.len())]),
            1 if at < data.len() => data[at] = SPICE[self.roll(SPICE.len())],
            2 if at < data.len() => data[at] ^= 1 << self.roll(8),
            3 if at < end => drop(data.drain(at..end)),
            4 if at < end => {
                let piece = data[at..end].to_vec();
                let to = self.roll(data.len() + 1);
                data.splice(to..to, piece);
            }
            5 if !words.is_empty() => {
                let word = words[self.roll(words.len())].as_bytes().to_vec();
                data.splice(at..at, word);
            }
            6 if !inputs.is_empty() => {
                let other = &inputs[self.roll(inputs.len())];
                let from = self.roll(other.len() + 1);
                data.truncate(at);
                data.extend_from_slice(&other[from..]);
            }
            _ => data.truncate(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutations_are_varied_and_reproducible() {
        let inputs = [b"maxPods: 110\n".to_vec(), b"{}".to_vec()];
        let all = |seed| {
            let mut dice = Dice::new(seed);
            (0..200).map(|_| dice.mutation(&inputs, &["kind"], 20)).collect::<Vec<_>>()
        };
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(8));
        let different: std::collections::BTreeSet<_> = all(7).into_iter().collect();
        assert!(different.len() > 100, "{}", different.len());
        assert!(different.iter().all(|data| data.len() <= 20));
    }
}
