//! The page that a full run writes into the repository: date, commit, machine, every figure beside its goal.
//!
//! Always holds: the text depends only on its arguments; a run that could not measure something writes no
//! page. The caller examines the machine in a separate step ([`machine`]).

use std::fs;

use kedge_rig::table::{Figure, goals, markdown};

/// The place and time of a run.
pub(crate) struct Run {
    /// `2026-11-22`
    pub(crate) date: String,
    pub(crate) commit: String,
    pub(crate) machine: String,
    /// The measured sections; empty for all.
    pub(crate) sections: String,
}

/// The page.
pub(crate) fn text(run: &Run, figures: &[Figure]) -> String {
    let Run { date, commit, machine, sections } = run;
    let (met, missed) = goals(figures);
    let by = match &**sections {
        "" => "`make bench`, which replaces it after each full run".to_owned(),
        some => format!("`.ci/bench --part FILE {some}`, which replaces it"),
    };
    format!(
        "# What the agent and the hub cost\n\n\
         Written by {by}.\n\n\
         - date: {date}\n- commit: {commit}\n- machine: {machine}\n- goals: {met} met, {missed} missed\n\n{}",
        markdown(figures)
    )
}

/// This machine in a line: processors, memory, kernel, and how busy it is.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':'))
            .map_or("?".to_owned(), |(_, value)| value.trim().to_owned())
    };
    let kib: u64 =
        field(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or_default();
    let load = read("/proc/loadavg");
    format!(
        "{} x {}, {} GiB, Linux {}, load {} before",
        std::thread::available_parallelism().map_or(0, usize::from),
        field(&read("/proc/cpuinfo"), "model name"),
        kib.div_ceil(1 << 20),
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or("?")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kedge_rig::table::Goal;

    #[test]
    fn page_has_goals_beside_figures_and_marks_missed_ones() {
        let run = |sections: &str| Run {
            date: "2026-11-22".into(),
            commit: "abc".into(),
            machine: "2 x CPU".into(),
            sections: sections.to_owned(),
        };
        let figures = [
            Figure::new("agent: PSS", 3296.0, "KiB", "smaps_rollup").with_goal(Goal::AtMost(3072.0)),
            Figure::new("agent: file writes", 0.0, "", "a|b").with_goal(Goal::Exactly(0.0)),
            Figure::new("hub: RSS", 10.5, "MiB", ""),
        ];
        let expect = "\
# What the agent and the hub cost

Written by `make bench`, which replaces it after each full run.

- date: 2026-11-22
- commit: abc
- machine: 2 x CPU
- goals: 1 met, 1 missed

| figure | value | goal | how measured |
|---|---|---|---|
| agent: PSS | **3,296 KiB, missed** | <= 3,072 | smaps_rollup |
| agent: file writes | 0 | = 0 | a\\|b |
| hub: RSS | 10.50 MiB | - |  |
";
        assert_eq!(text(&run(""), &figures), expect);
        let part = expect.replace(
            "`make bench`, which replaces it after each full run",
            "`.ci/bench --part FILE size hub`, which replaces it",
        );
        assert_eq!(text(&run("size hub"), &figures), part);
    }

    #[test]
    fn machine_is_described_in_one_line() {
        let machine = machine();
        assert!(machine.contains("GiB, Linux ") && !machine.contains('\n'), "{machine}");
    }
}
