//! Random numbers for stories. A run prints its seed, and `KEDGE_HIL_SEED` repeats it.

use crate::stage::Stage;

/// A small generator of our own: moments need no quality, only repetition (xorshift64*).
pub(super) struct Chance(u64);

impl Chance {
    /// With the seed from the environment, else a new one each time; prints it.
    pub(super) fn from_environment(stage: &mut Stage<'_>) -> Chance {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let seed = number("KEDGE_HIL_SEED").unwrap_or(now.as_nanos() as u64) | 1;
        stage.say(&format!("KEDGE_HIL_SEED={seed}"));
        Chance(seed)
    }

    /// A number below `limit`.
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
