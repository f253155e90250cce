//! Random numbers for stories. A run prints its seed, and `KEDGE_HIL_SEED` repeats it.

use kedge_rig::Random;

use crate::stage::Stage;

/// Random numbers that a seed repeats.
pub(super) struct Chance(Random);

impl Chance {
    /// Takes the seed from the environment, or else a new one each time; prints it.
    pub(super) fn from_environment(stage: &mut Stage<'_>) -> Chance {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let seed = number("KEDGE_HIL_SEED").unwrap_or(now.as_nanos() as u64);
        stage.say(&format!("KEDGE_HIL_SEED={seed}"));
        Chance(Random::new(seed))
    }

    /// A number below `limit`.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }
}

/// A number from the environment.
pub(super) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
