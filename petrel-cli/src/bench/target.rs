//! What a measurement must reach, and whether it did.

use std::fmt;

use serde::Serialize;

use super::figure::Figure;

/// Largest share of a bar that is told apart, for bars that a value must stay below.
const SHARE_MAX: f64 = 100.0;

/// A bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// So much of what it is compared with.
    RatioAtLeast(f64),
    /// No more than so much of what it is compared with.
    RatioAtMost(f64),
    /// So many nanoseconds beyond what it is compared with.
    DifferenceAtMost(f64),
    /// So many nanoseconds per call, on one core.
    NsPerCallAtMost(f64),
    /// So much in its own unit.
    ValueAtMost(f64),
    /// So much in its own unit, or so many times what it is compared with.
    ValueOrRatioAtLeast(f64, f64),
}

/// A bar beside a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Target {
    pub(super) target: String,
    /// `yes` or `no`.
    pub(super) reached: &'static str,
    /// How much of it was reached: from 1 on all of it.
    pub(super) share: f64,
}

impl Goal {
    /// Judges a figure.
    pub(super) fn judge(self, figure: &Figure) -> Target {
        let share = if figure.is_flawless() { self.share(figure).unwrap_or(0.0) } else { 0.0 };
        let target = self.to_string().replace("UNIT", figure.unit);
        Target { target, reached: if share >= 1.0 { "yes" } else { "no" }, share }
    }

    /// How much of it a figure reaches; `None` where it has not what is judged.
    fn share(self, figure: &Figure) -> Option<f64> {
        Some(match self {
            Self::RatioAtLeast(bar) => figure.ratio? / bar,
            Self::RatioAtMost(bar) => at_most(figure.ratio?, bar),
            Self::DifferenceAtMost(bar) => at_most(figure.difference_ns?, bar),
            Self::NsPerCallAtMost(bar) => at_most(figure.ns_per_call?, bar),
            Self::ValueAtMost(bar) => at_most(figure.value, bar),
            Self::ValueOrRatioAtLeast(value, ratio) => {
                let by_ratio = figure.ratio.map_or(0.0, |of| of / ratio);
                (figure.value / value).max(by_ratio)
            }
        })
    }
}

/// The share of a bar that a value must stay below; what is far below is as good as it gets.
fn at_most(value: f64, bar: f64) -> f64 {
    bar / value.max(bar / SHARE_MAX)
}

/// In words; `UNIT` stands for the figure's.
impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtLeast(bar) => write!(f, "ratio >= {bar}"),
            Self::RatioAtMost(bar) => write!(f, "ratio <= {bar}"),
            Self::DifferenceAtMost(bar) => write!(f, "bare + {bar} ns"),
            Self::NsPerCallAtMost(bar) => write!(f, "<= {bar} ns per call"),
            Self::ValueAtMost(bar) => write!(f, "<= {bar} UNIT"),
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

    fn judge(goal: Goal, change: impl FnOnce(&mut Figure)) -> &'static str {
        let mut figure = figure();
        change(&mut figure);
        goal.judge(&figure).reached
    }

    #[test]
    fn judge__compares_with_the_bar() {
        let ratio = |ratio| move |figure: &mut Figure| figure.ratio = ratio;
        assert_eq!(judge(Goal::RatioAtLeast(0.6), ratio(Some(0.6))), "yes");
        assert_eq!(judge(Goal::RatioAtLeast(0.6), ratio(Some(0.59))), "no");
        assert_eq!(judge(Goal::RatioAtLeast(0.6), ratio(None)), "no");
        assert_eq!(judge(Goal::RatioAtMost(1.1), ratio(Some(1.1))), "yes");
        assert_eq!(judge(Goal::RatioAtMost(1.1), ratio(Some(1.2))), "no");
        let ns = |ns| move |figure: &mut Figure| figure.difference_ns = Some(ns);
        assert_eq!(judge(Goal::DifferenceAtMost(90.0), ns(90.0)), "yes");
        assert_eq!(judge(Goal::DifferenceAtMost(90.0), ns(91.0)), "no");
        let ns = |ns| move |figure: &mut Figure| figure.ns_per_call = Some(ns);
        assert_eq!(judge(Goal::NsPerCallAtMost(45.0), ns(44.0)), "yes");
        assert_eq!(judge(Goal::NsPerCallAtMost(45.0), ns(46.0)), "no");
    }

    #[test]
    fn judge__one_of_two_bars_is_enough() {
        let goal = Goal::ValueOrRatioAtLeast(3.0, 10.0);
        for (value, ratio, reached) in [(3.0, 1.0, "yes"), (1.0, 10.0, "yes"), (2.9, 9.9, "no")] {
            let set = |figure: &mut Figure| (figure.value, figure.ratio) = (value, Some(ratio));
            assert_eq!(judge(goal, set), reached);
        }
        assert_eq!(goal.judge(&figure()).target, ">= 3 Mcalls/s or ratio >= 10");
    }

    #[test]
    fn share__is_one_at_the_bar() {
        let share = |ns: f64| {
            let mut figure = figure();
            figure.difference_ns = Some(ns);
            Goal::DifferenceAtMost(90.0).judge(&figure).share
        };
        assert_eq!([share(180.0), share(90.0), share(45.0)], [0.5, 1.0, 2.0]);
        assert_eq!([share(0.0), share(-5.0)], [SHARE_MAX; 2], "faster than the bare medium");
    }

    #[test]
    fn judge__a_flawed_figure_reaches_nothing() {
        let spoil = |figure: &mut Figure| {
            (figure.ratio, figure.mismatched) = (Some(1.0), 1);
        };
        assert_eq!(judge(Goal::RatioAtLeast(0.6), spoil), "no");
    }
}
