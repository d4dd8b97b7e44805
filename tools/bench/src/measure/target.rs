//! The required values of a measurement, and the result of the comparison.

use std::fmt;

use serde::Serialize;

use super::figure::Figure;

/// The largest reported share of values with an upper bound.
const SHARE_MAX: f64 = 100.0;

/// A required value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Requirement {
    /// Minimum ratio to the baseline.
    RatioAtLeast(f64),
    /// Maximum ratio to the baseline.
    RatioAtMost(f64),
    /// Maximum difference to the baseline, in nanoseconds.
    DifferenceAtMost(f64),
    /// Maximum nanoseconds per call, on one core.
    NsPerCallAtMost(f64),
    /// Maximum in the figure's own unit.
    ValueAtMost(f64),
    /// Minimum in the figure's own unit, or minimum ratio to the baseline.
    ValueOrRatioAtLeast(f64, f64),
}

/// A figure's required value and the result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    pub target: String,
    /// `yes` or `no`.
    pub reached: &'static str,
    /// The reached share of the target: complete from 1 on.
    pub share: f64,
}

impl Requirement {
    /// Judges a figure.
    pub fn judge(self, figure: &Figure) -> Target {
        let share = if figure.is_valid() { self.share(figure).unwrap_or(0.0) } else { 0.0 };
        let target = self.to_string().replace("UNIT", figure.unit);
        Target { target, reached: if share >= 1.0 { "yes" } else { "no" }, share }
    }

    /// Returns the reached share; `None` if the figure lacks the judged value.
    fn share(self, figure: &Figure) -> Option<f64> {
        Some(match self {
            Self::RatioAtLeast(bound) => figure.ratio? / bound,
            Self::RatioAtMost(bound) => at_most(figure.ratio?, bound),
            Self::DifferenceAtMost(bound) => at_most(figure.difference_ns? as f64, bound),
            Self::NsPerCallAtMost(bound) => at_most(figure.ns_per_call?, bound),
            Self::ValueAtMost(bound) => at_most(figure.value, bound),
            Self::ValueOrRatioAtLeast(value, ratio) => {
                let by_ratio = figure.ratio.map_or(0.0, |of| of / ratio);
                (figure.value / value).max(by_ratio)
            }
        })
    }
}

/// Returns the share of a value with an upper bound, at most `SHARE_MAX`.
fn at_most(value: f64, bound: f64) -> f64 {
    bound / value.max(bound / SHARE_MAX)
}

/// The requirement in words; `UNIT` stands for the figure's unit.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtLeast(bound) => write!(f, "ratio >= {bound}"),
            Self::RatioAtMost(bound) => write!(f, "ratio <= {bound}"),
            Self::DifferenceAtMost(bound) => write!(f, "bare + {bound} ns"),
            Self::NsPerCallAtMost(bound) => write!(f, "<= {bound} ns per call"),
            Self::ValueAtMost(bound) => write!(f, "<= {bound} UNIT"),
            Self::ValueOrRatioAtLeast(value, ratio) => {
                write!(f, ">= {value} UNIT or ratio >= {ratio}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::figure::tests::figure;
    use super::*;

    fn judge(requirement: Requirement, change: impl FnOnce(&mut Figure)) -> &'static str {
        let mut figure = figure();
        change(&mut figure);
        requirement.judge(&figure).reached
    }

    #[test]
    fn judge__compares_with_the_bound() {
        let ratio = |ratio| move |figure: &mut Figure| figure.ratio = ratio;
        assert_eq!(judge(Requirement::RatioAtLeast(0.6), ratio(Some(0.6))), "yes");
        assert_eq!(judge(Requirement::RatioAtLeast(0.6), ratio(Some(0.59))), "no");
        assert_eq!(judge(Requirement::RatioAtLeast(0.6), ratio(None)), "no");
        assert_eq!(judge(Requirement::RatioAtMost(1.1), ratio(Some(1.1))), "yes");
        assert_eq!(judge(Requirement::RatioAtMost(1.1), ratio(Some(1.2))), "no");
        let ns = |ns| move |figure: &mut Figure| figure.difference_ns = Some(ns);
        assert_eq!(judge(Requirement::DifferenceAtMost(90.0), ns(90)), "yes");
        assert_eq!(judge(Requirement::DifferenceAtMost(90.0), ns(91)), "no");
        let ns = |ns| move |figure: &mut Figure| figure.ns_per_call = Some(ns);
        assert_eq!(judge(Requirement::NsPerCallAtMost(45.0), ns(44.0)), "yes");
        assert_eq!(judge(Requirement::NsPerCallAtMost(45.0), ns(46.0)), "no");
    }

    #[test]
    fn judge__one_of_two_bounds_is_enough() {
        let requirement = Requirement::ValueOrRatioAtLeast(3.0, 10.0);
        for (value, ratio, reached) in [(3.0, 1.0, "yes"), (1.0, 10.0, "yes"), (2.9, 9.9, "no")] {
            let set = |figure: &mut Figure| (figure.value, figure.ratio) = (value, Some(ratio));
            assert_eq!(judge(requirement, set), reached);
        }
        assert_eq!(requirement.judge(&figure()).target, ">= 3 Mcalls/s or ratio >= 10");
    }

    #[test]
    fn share__is_one_at_the_bound() {
        let share = |ns| {
            let mut figure = figure();
            figure.difference_ns = Some(ns);
            Requirement::DifferenceAtMost(90.0).judge(&figure).share
        };
        assert_eq!([share(180), share(90), share(45)], [0.5, 1.0, 2.0]);
        assert_eq!([share(0), share(-5)], [SHARE_MAX; 2], "faster than the bare medium");
    }

    #[test]
    fn judge__an_invalid_figure_reaches_nothing() {
        let corrupt = |figure: &mut Figure| {
            (figure.ratio, figure.mismatched) = (Some(1.0), 1);
        };
        assert_eq!(judge(Requirement::RatioAtLeast(0.6), corrupt), "no");
    }
}
