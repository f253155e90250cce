//! One figure, and the table of all: the value, its goal, and how it was measured.
//!
//! Always holds: a verdict is computed from the value and the goal beside it; a figure without a goal has no
//! verdict. This module does not measure.

use std::fmt::Write as _;

/// The goal of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// At most this.
    AtMost(f64),
    /// Exactly this.
    Exactly(f64),
    /// Without a goal: for information.
    None,
}

/// One row.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The measured quantity.
    pub name: String,
    /// The number, in `unit`.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The goal, in the same unit.
    pub goal: Goal,
    /// How it was measured, and other remarks.
    pub how: String,
}

impl Figure {
    /// A figure without a goal.
    pub fn new(name: &str, value: f64, unit: &'static str, how: impl Into<String>) -> Figure {
        Figure { name: name.to_owned(), value, unit, goal: Goal::None, how: how.into() }
    }

    /// Adds a goal.
    pub fn with_goal(mut self, goal: Goal) -> Figure {
        self.goal = goal;
        self
    }

    /// True if the goal is met; `None` without a goal.
    pub fn is_met(&self) -> Option<bool> {
        match self.goal {
            Goal::AtMost(limit) => Some(self.value <= limit),
            Goal::Exactly(wanted) => Some(self.value == wanted),
            Goal::None => None,
        }
    }

    fn cells(&self) -> [String; 5] {
        let goal = match self.goal {
            Goal::AtMost(limit) => format!("<= {}", number(limit)),
            Goal::Exactly(wanted) => format!("= {}", number(wanted)),
            Goal::None => "-".to_owned(),
        };
        let verdict = match self.is_met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "-",
        };
        [
            self.name.clone(),
            format!("{} {}", number(self.value), self.unit).trim_end().to_owned(),
            goal,
            verdict.to_owned(),
            self.how.clone(),
        ]
    }
}

/// The value below which this share of the values are, such as half.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// All rows, aligned; the last column is not padded.
pub fn render(figures: &[Figure]) -> String {
    let heading = ["figure", "value", "goal", "verdict", "how measured"].map(str::to_owned);
    let rows: Vec<[String; 5]> = std::iter::once(heading).chain(figures.iter().map(Figure::cells)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 4] = std::array::from_fn(width);
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        for (cell, width) in row.iter().zip(widths) {
            let _ = write!(text, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", row[4]);
        if index == 0 {
            let _ = writeln!(text, "{}", "-".repeat(widths.iter().sum::<usize>() + 8 + row[4].len()));
        }
    }
    text
}

/// All rows as a Markdown table; a missed goal is bold.
pub fn markdown(figures: &[Figure]) -> String {
    let mut text = "| figure | value | goal | how measured |\n|---|---|---|---|\n".to_owned();
    for figure in figures {
        let [name, value, goal, _, how] = figure.cells().map(|cell| cell.replace('|', "\\|"));
        let value = if figure.is_met() == Some(false) { format!("**{value}, missed**") } else { value };
        let _ = writeln!(text, "| {name} | {value} | {goal} | {how} |");
    }
    text
}

/// The number of met goals, and of missed ones.
pub fn goals(figures: &[Figure]) -> (usize, usize) {
    let count = |wanted| figures.iter().filter(|figure| figure.is_met() == Some(wanted)).count();
    (count(true), count(false))
}

/// Whole numbers in groups of three, small ones with their significant digits.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "?".to_owned();
    }
    if value != value.trunc() && value.abs() < 100.0 {
        let digits = if value.abs() < 1.0 { 3 } else { 2 };
        return format!("{value:.digits$}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_rounded() {
        let check = |value: f64, expect: &str| assert_eq!(number(value), expect);
        check(0.0, "0");
        check(1_234_567.0, "1,234,567");
        check(999.0, "999");
        check(1000.4, "1,000");
        check(0.0456, "0.046");
        check(2.345, "2.35");
        check(-12_345.0, "-12,345");
        check(f64::NAN, "?");
    }

    #[test]
    fn goal_is_met_by_value() {
        let check = |value: f64, goal: Goal, expect: Option<bool>| {
            assert_eq!(Figure::new("x", value, "B", "").with_goal(goal).is_met(), expect);
        };
        check(400.0, Goal::AtMost(400.0), Some(true));
        check(400.1, Goal::AtMost(400.0), Some(false));
        check(0.0, Goal::Exactly(0.0), Some(true));
        check(1.0, Goal::Exactly(0.0), Some(false));
        check(1.0, Goal::None, None);
        check(f64::NAN, Goal::AtMost(1.0), Some(false));
    }

    #[test]
    fn quantiles_are_of_sorted_values() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), 2.0);
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 1.0), 3.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
