//! Chance: what is random in a story. The seed of a run is printed, and `KEDGE_HIL_SEED` repeats it.

use crate::stage::Stage;

/// A small generator of our own: moments need no quality, only repetition (xorshift64*).
pub(super) struct Chance(u64);

impl Chance {
    /// With the seed that is given, else another each time; it is printed.
    pub(super) fn from_environment(stage: &mut Stage<'_>) -> Chance {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let seed = number("KEDGE_HIL_SEED").unwrap_or(now.as_nanos() as u64) | 1;
        stage.say(&format!("KEDGE_HIL_SEED={seed}"));
        Chance(seed)
    }

    /// A number below this one.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// A number from the environment.
pub(super) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
