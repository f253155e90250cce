//! Seeded random numbers for fakes and for every test in the workspace (the rig re-exports the type).
//!
//! Always holds: the same seed gives the same sequence, on every machine and in every version of this
//! crate. Leaves to others: anything that must be unpredictable. This generator is predictable.

/// A small generator (splitmix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next number of the sequence.
    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    /// True `percent` times out of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One element of `from`, which must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let at = self.below(from.len() as u64);
        &from[usize::try_from(at).expect("below a length")]
    }

    /// An index into `length` things; 0 without any.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length.max(1) as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
