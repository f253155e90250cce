//! Numbers over time, and their growth.
//!
//! Always holds: growth is that of the straight line through all samples (least squares) over their time, so
//! one high sample at either end has little effect; too few samples give no result, not zero.

use std::collections::BTreeMap;

/// Fewer samples show no growth.
const ENOUGH: usize = 6;

/// Samples of one quantity: (seconds, value).
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(Vec<(f64, f64)>);

impl Series {
    /// Adds a sample.
    pub(crate) fn add(&mut self, at_secs: f64, value: f64) {
        self.0.push((at_secs, value));
    }

    /// The samples from this moment on.
    pub(crate) fn since(&self, at_secs: f64) -> Series {
        Series(self.0.iter().copied().filter(|(at, _)| *at >= at_secs).collect())
    }

    /// The last value.
    pub(crate) fn last(&self) -> Option<f64> {
        self.0.last().map(|(_, value)| *value)
    }

    /// Smallest and largest value.
    pub(crate) fn range(&self) -> Option<(f64, f64)> {
        let values = || self.0.iter().map(|(_, value)| *value);
        (!self.0.is_empty()).then(|| (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max)))
    }

    /// The number of samples.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// By how much the fitted line rises from the first sample to the last; `None` if there are too few.
    pub(crate) fn growth(&self) -> Option<f64> {
        if self.0.len() < ENOUGH {
            return None;
        }
        let count = self.0.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| self.0.iter().map(of).sum::<f64>() / count;
        let (mean_at, mean_value) = (mean(|sample| sample.0), mean(|sample| sample.1));
        let (mut above, mut below) = (0.0, 0.0);
        for (at, value) in &self.0 {
            above += (at - mean_at) * (value - mean_value);
            below += (at - mean_at) * (at - mean_at);
        }
        let (first, last) = (self.0.first()?.0, self.0.last()?.0);
        (below > 0.0).then(|| above / below * (last - first))
    }
}

/// Series by subject and quantity.
pub(crate) type AllSeries = BTreeMap<(String, &'static str), Series>;

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        let mut series = Series::default();
        values.iter().enumerate().for_each(|(at, value)| series.add(at as f64 * 10.0, *value));
        series
    }

    #[test]
    fn growth_is_that_of_the_fitted_line() {
        let check = |values: &[f64], expect: Option<f64>| {
            let growth = series(values).growth().map(|growth| (growth * 1000.0).round() / 1000.0);
            assert_eq!(growth, expect, "{values:?}");
        };
        check(&[5.0; 8], Some(0.0));
        check(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], Some(5.0));
        check(&[5.0, 4.0, 3.0, 2.0, 1.0, 0.0], Some(-5.0));
        check(&[0.0, 1.0, 2.0, 3.0, 4.0], None);
        check(&[], None);
        // a zigzag does not count as growth
        check(&[1.0, 3.0, 1.0, 3.0, 3.0, 1.0, 3.0, 1.0], Some(0.0));
    }

    #[test]
    fn samples_before_the_warm_up_are_ignored() {
        let series = series(&[100.0, 50.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0]);
        assert!(series.growth().is_some_and(|growth| growth < -10.0));
        let settled = series.since(20.0);
        assert_eq!((settled.growth(), settled.len()), (Some(0.0), 6));
        assert_eq!((settled.range(), settled.last()), (Some((7.0, 7.0)), Some(7.0)));
    }
}
