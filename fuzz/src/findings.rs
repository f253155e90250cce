//! What fuzzing found, as inputs that must stay harmless. Each is replayed by its target in every test run.

/// An input that once broke a promise.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// The target it is for.
    pub target: &'static str,
    /// What went wrong, and what was done about it.
    pub story: &'static str,
    /// The input, as small as it could be made.
    pub input: &'static [u8],
}

/// All findings.
pub const FINDINGS: &[Finding] = &[];

/// The findings of one target.
pub fn of(target: &str) -> impl Iterator<Item = &'static Finding> {
    FINDINGS.iter().filter(move |finding| finding.target == target)
}
