//! Signals by name, as images and pods write them: `SIGTERM`, `TERM`, `15`, `SIGRTMIN+3`.
//!
//! Always holds: the numbers are those of Linux on x86, ARM and RISC-V, which are the same.

/// Ends a container that sets no stop signal.
pub const TERM: i32 = 15;

const FIRST_REAL_TIME: i32 = 34;
const LAST: i32 = 64;

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

/// The number of a signal; `None` if it does not exist.
#[must_use]
pub fn number(text: &str) -> Option<i32> {
    let known = |number: &i32| (1..=LAST).contains(number);
    if let Ok(number) = text.parse::<i32>() {
        return Some(number).filter(known);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(index) = NAMES.iter().position(|known| *known == name) {
        return i32::try_from(index + 1).ok();
    }
    let (from, offset) = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
        (Some(rest), _) => (FIRST_REAL_TIME, rest),
        (_, Some(rest)) => (LAST, rest),
        _ => return None,
    };
    let offset: i32 = if offset.is_empty() { 0 } else { offset.parse().ok()? };
    from.checked_add(offset).filter(|number| (FIRST_REAL_TIME..=LAST).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_found_by_every_spelling() {
        let check = |text: &str, expect: Option<i32>| assert_eq!(number(text), expect, "{text}");
        for text in ["SIGTERM", "TERM", "15", "sigterm"] {
            check(text, Some(15));
        }
        check("SIGKILL", Some(9));
        check("SIGSYS", Some(31));
        check("SIGRTMIN+3", Some(37));
        check("RTMAX-1", Some(63));
        for text in
            ["", "SIG", "SIGRTMIN-1", "RTMAX+1", "0", "65", "-9", "SIGRTMINx", "NONE", "RTMIN+99999999999"]
        {
            check(text, None);
        }
    }
}
