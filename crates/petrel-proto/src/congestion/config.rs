//! The choice of an endpoint's congestion controller, and the check of its parameters.

use std::sync::Arc;

use super::state::Control;
use super::{Congestion, Dcqcn, DcqcnConfig, Flow, Rate, Swift, SwiftConfig};
use super::{Timely, TimelyConfig};

/// The congestion control of an endpoint's sessions in the client role. The default is
/// [`DcqcnConfig::default`]: DCQCN alone never mistakes host delays for network queues (`docs/congestion.md`
/// has the measurements).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CongestionConfig {
    /// No control: the credits alone bound the packets in flight.
    None,
    /// Rates from round trips.
    Timely(TimelyConfig),
    /// Rates from ECN marks; for networks whose switches mark.
    Dcqcn(DcqcnConfig),
    /// Windows from round trips.
    Swift(SwiftConfig),
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self::Dcqcn(DcqcnConfig::default())
    }
}

/// An invalid parameter.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CongestionConfigError {
    /// A rate that cannot be paced, or a least rate above the line's.
    #[error("{name} is {} bytes/s; it must be between {} and {}", .rate.get(), .least.get(), .most.get())]
    Rate {
        /// The parameter's name.
        name: &'static str,
        /// The given value.
        rate: Rate,
        /// The least allowed value.
        least: Rate,
        /// The largest allowed value.
        most: Rate,
    },
    /// A time of zero, or two in the wrong order.
    #[error("{name} is {ns} ns; it must be at least {least}")]
    Time {
        /// The parameter's name.
        name: &'static str,
        /// The given value.
        ns: u32,
        /// The least allowed value.
        least: u32,
    },
    /// A number out of its range, or NaN.
    #[error("{name} is {value}; it must be {} {least} and at most {most}", if *.or_equal { "at least" } else { "above" })]
    Number {
        /// The parameter's name.
        name: &'static str,
        /// The given value.
        value: f64,
        /// The lower bound.
        least: f64,
        /// True if the lower bound itself is allowed.
        or_equal: bool,
        /// The largest allowed value.
        most: f64,
    },
    /// A count of zero where zero is not allowed.
    #[error("{name} must not be zero")]
    Zero {
        /// The parameter's name.
        name: &'static str,
    },
}

use CongestionConfigError as Error;

fn rate(name: &'static str, rate: Rate, least: Rate, most: Rate) -> Result<(), Error> {
    match rate >= least && rate <= most {
        true => Ok(()),
        false => Err(Error::Rate { name, rate, least, most }),
    }
}

fn time(name: &'static str, ns: u32, least: u32) -> Result<(), Error> {
    if ns >= least { Ok(()) } else { Err(Error::Time { name, ns, least }) }
}

/// Checks a number with an excluded lower bound, at which the parameter would have no effect. NaN is in no
/// range.
fn number(name: &'static str, value: f64, least: f64, most: f64) -> Result<(), Error> {
    let is_in_range = value > least && value <= most;
    let error = Error::Number { name, value, least, or_equal: false, most };
    if is_in_range { Ok(()) } else { Err(error) }
}

/// Like [`number`], with zero allowed: zero turns a feature off.
fn number_or_zero(name: &'static str, value: f64, most: f64) -> Result<(), Error> {
    let is_in_range = (0.0..=most).contains(&value);
    let error = Error::Number { name, value, least: 0.0, or_equal: true, most };
    if is_in_range { Ok(()) } else { Err(error) }
}

fn share(name: &'static str, value: f64) -> Result<(), Error> {
    number(name, value, 0.0, 1.0)
}

fn not_zero(name: &'static str, value: u32) -> Result<(), Error> {
    if value > 0 { Ok(()) } else { Err(Error::Zero { name }) }
}

fn rates(line: Rate, min: Rate, steps: [(&'static str, Rate); 2]) -> Result<(), Error> {
    rate("line_rate", line, Rate::MIN, Rate::MAX)?;
    rate("min_rate", min, Rate::MIN, line)?;
    steps.into_iter().try_for_each(|(name, step)| rate(name, step, Rate::bytes_per_second(1), line))
}

impl TimelyConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        rates(self.line_rate, self.min_rate, [("step", self.step), ("step", self.step)])?;
        time("low_ns", self.low_ns, self.base_rtt_ns.max(1))?;
        time("high_ns", self.high_ns, self.low_ns)?;
        time("min_rtt_ns", self.min_rtt_ns, 1)?;
        share("alpha", self.alpha)?;
        share("beta", self.beta)?;
        not_zero("hai_rounds", self.hai_rounds.into())?;
        // Zero is the published algorithm, one doubles the rate like TCP's slow start.
        number_or_zero("recovery", self.recovery, 1.0)
    }
}

impl DcqcnConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        let steps = [("step", self.step), ("hyper_step", self.hyper_step)];
        rates(self.line_rate, self.min_rate, steps)?;
        share("gain", self.gain)?;
        time("notify_ns", self.notify_ns, 1)?;
        time("alpha_ns", self.alpha_ns, 1)?;
        time("increase_ns", self.increase_ns, 1)?;
        time("window_ns", self.window_ns, self.base_rtt_ns.max(1))?;
        not_zero("increase_bytes", self.increase_bytes)
    }
}

impl SwiftConfig {
    pub(super) fn validate(&self) -> Result<(), Error> {
        time("target_ns", self.target_ns, self.base_rtt_ns.max(1))?;
        number("scaling_window_max", self.scaling_window_max, 0.0, 65_536.0)?;
        let most = self.scaling_window_max / 2.0;
        number("scaling_window_min", self.scaling_window_min, 0.0, most)?;
        number("increase", self.increase, 0.0, 64.0)?;
        share("beta", self.beta)?;
        // A reduction by the whole window would leave nothing to grow from.
        number("reduction_max", self.reduction_max, 0.0, 0.9)?;
        number("window_min", self.window_min, 0.0, 1.0)
    }
}

impl CongestionConfig {
    /// Checks every parameter.
    ///
    /// # Errors
    /// The first invalid parameter.
    pub fn validate(&self) -> Result<(), CongestionConfigError> {
        match self {
            Self::None => Ok(()),
            Self::Timely(timely) => timely.validate(),
            Self::Dcqcn(dcqcn) => dcqcn.validate(),
            Self::Swift(swift) => swift.validate(),
        }
    }
}

/// A checked configuration. All controllers of an endpoint are made from one configuration and share its
/// parameters.
#[derive(Clone, Debug)]
pub struct CongestionControl(Shared);

#[derive(Clone, Debug)]
enum Shared {
    None,
    Timely(Arc<TimelyConfig>),
    Dcqcn(Arc<DcqcnConfig>),
    Swift(Arc<SwiftConfig>),
}

impl Default for CongestionControl {
    fn default() -> Self {
        Self::new(CongestionConfig::default()).expect("the defaults are valid")
    }
}

impl CongestionControl {
    /// Checks and wraps a configuration.
    ///
    /// # Errors
    /// The first invalid parameter.
    pub fn new(config: CongestionConfig) -> Result<Self, CongestionConfigError> {
        config.validate()?;
        Ok(Self(match config {
            CongestionConfig::None => Shared::None,
            CongestionConfig::Timely(config) => Shared::Timely(Arc::new(config)),
            CongestionConfig::Dcqcn(config) => Shared::Dcqcn(Arc::new(config)),
            CongestionConfig::Swift(config) => Shared::Swift(Arc::new(config)),
        }))
    }

    /// Returns true if sessions react to ECN marks: only then may their packets be sent as ECN-capable.
    pub fn heeds_marks(&self) -> bool {
        matches!(self.0, Shared::Dcqcn(_))
    }

    /// Makes the state of a new session, which is uncongested.
    ///
    /// # Panics
    /// If the session has no credits, or packets of no bytes.
    pub fn start(&self, flow: Flow) -> Congestion {
        assert!(flow.credits > 0 && flow.packet_bytes > 0, "a session has credits and packets");
        let control = match &self.0 {
            Shared::None => Control::None,
            Shared::Timely(config) => Control::Timely(Timely::new(Arc::clone(config), flow)),
            Shared::Dcqcn(config) => Control::Dcqcn(Dcqcn::new(Arc::clone(config), flow)),
            Shared::Swift(config) => Control::Swift(Swift::new(Arc::clone(config), flow)),
        };
        Congestion::new(control, flow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::Gradient;

    fn error_of(config: CongestionConfig) -> String {
        CongestionControl::new(config).unwrap_err().to_string()
    }

    fn timely(change: impl FnOnce(&mut TimelyConfig)) -> CongestionConfig {
        let mut config = TimelyConfig::for_line(Rate::gbit(25));
        change(&mut config);
        CongestionConfig::Timely(config)
    }

    fn swift(change: impl FnOnce(&mut SwiftConfig)) -> CongestionConfig {
        let mut config = SwiftConfig::new();
        change(&mut config);
        CongestionConfig::Swift(config)
    }

    #[test]
    fn default__is_dcqcn() {
        assert!(CongestionControl::default().heeds_marks());
        assert_eq!(CongestionConfig::default().validate(), Ok(()));
    }

    #[test]
    fn defaults__are_valid_for_all_links() {
        for gbit in [1, 10, 25, 100, 400, 1000] {
            let line = Rate::gbit(gbit);
            for config in [
                CongestionConfig::None,
                CongestionConfig::Timely(TimelyConfig::for_line(line)),
                CongestionConfig::Dcqcn(DcqcnConfig::for_line(line)),
                CongestionConfig::Swift(SwiftConfig::new()),
            ] {
                assert_eq!(config.validate(), Ok(()), "{gbit} Gbit/s");
            }
        }
    }

    /// The table of parameters in `docs/congestion.md`.
    #[test]
    fn defaults__are_those_that_the_document_gives_reasons_for() {
        let line_rate = Rate::gbit(25);
        let [step, hyper_step] = [25, 250].map(Rate::mbit);
        let timely = TimelyConfig {
            line_rate,
            min_rate: Rate::mbit(10),
            base_rtt_ns: 10_000,
            low_ns: 50_000,
            high_ns: 1_000_000,
            min_rtt_ns: 10_000,
            alpha: 0.46,
            beta: 0.26,
            step: Rate::bytes_per_second(5_000_000),
            hai_rounds: 5,
            recovery: 0.25,
            gradient: Gradient::Weighted,
            bypass: true,
            pacer_bypass: true,
        };
        assert_eq!(TimelyConfig::for_line(line_rate), timely);
        let dcqcn = DcqcnConfig {
            line_rate,
            min_rate: Rate::mbit(10),
            gain: 1.0 / 256.0,
            notify_ns: 50_000,
            alpha_ns: 55_000,
            increase_ns: 55_000,
            increase_bytes: 65_536,
            base_rtt_ns: 10_000,
            window_ns: 40_000,
            recovery_stages: 5,
            step,
            hyper_step,
        };
        assert_eq!(DcqcnConfig::for_line(line_rate), dcqcn);
        let swift = SwiftConfig {
            base_rtt_ns: 10_000,
            target_ns: 30_000,
            scaling_ns: 50_000,
            scaling_window_min: 0.1,
            scaling_window_max: 100.0,
            increase: 1.0,
            beta: 0.8,
            reduction_max: 0.5,
            window_min: 0.01,
        };
        assert_eq!(SwiftConfig::default(), swift);
        let of_endpoints = CongestionConfig::Dcqcn(DcqcnConfig::for_line(Rate::gbit(100)));
        assert_eq!(CongestionConfig::default(), of_endpoints);
    }

    /// Every parameter at the ends of its range: the last valid value, and the first invalid one.
    #[test]
    fn parameters__at_the_ends_of_their_ranges() {
        fn dcqcn(change: impl FnOnce(&mut DcqcnConfig)) -> CongestionConfig {
            let mut config = DcqcnConfig::for_line(Rate::gbit(25));
            change(&mut config);
            CongestionConfig::Dcqcn(config)
        }
        let bytes = Rate::bytes_per_second;
        let line = Rate::gbit(25);
        let faster = bytes(line.get() + 1);
        let (above_1, tiny) = (1.0 + f64::EPSILON, f64::MIN_POSITIVE);
        let may_be = [
            timely(|c| (c.line_rate, c.min_rate, c.step) = (Rate::MAX, Rate::MAX, Rate::MAX)),
            timely(|c| (c.line_rate, c.min_rate, c.step) = (Rate::MIN, Rate::MIN, Rate::MIN)),
            timely(|c| (c.min_rate, c.step) = (line, bytes(1))),
            timely(|c| c.low_ns = c.base_rtt_ns),
            timely(|c| (c.base_rtt_ns, c.low_ns) = (0, 1)),
            timely(|c| c.high_ns = c.low_ns),
            timely(|c| c.min_rtt_ns = 1),
            timely(|c| (c.alpha, c.beta, c.recovery) = (1.0, 1.0, 1.0)),
            timely(|c| (c.alpha, c.beta, c.recovery) = (tiny, tiny, 0.0)),
            timely(|c| c.hai_rounds = 1),
            dcqcn(|c| (c.step, c.hyper_step, c.min_rate) = (line, line, line)),
            dcqcn(|c| (c.step, c.hyper_step, c.min_rate) = (bytes(1), bytes(1), Rate::MIN)),
            dcqcn(|c| (c.gain, c.notify_ns, c.alpha_ns, c.increase_ns) = (1.0, 1, 1, 1)),
            dcqcn(|c| c.window_ns = c.base_rtt_ns),
            dcqcn(|c| (c.base_rtt_ns, c.window_ns, c.increase_bytes) = (0, 1, 1)),
            swift(|c| c.target_ns = c.base_rtt_ns),
            swift(|c| (c.base_rtt_ns, c.target_ns) = (0, 1)),
            swift(|c| c.scaling_window_max = 65_536.0),
            swift(|c| c.scaling_window_min = c.scaling_window_max / 2.0),
            swift(|c| (c.increase, c.beta, c.reduction_max, c.window_min) = (64.0, 1.0, 0.9, 1.0)),
            swift(|c| (c.increase, c.beta, c.reduction_max) = (tiny, tiny, tiny)),
        ];
        for config in may_be {
            assert_eq!(config.validate(), Ok(()), "{config:?}");
        }
        let may_not = [
            ("line_rate", timely(|c| c.line_rate = bytes(Rate::MAX.get() + 1))),
            ("line_rate", timely(|c| c.line_rate = bytes(Rate::MIN.get() - 1))),
            ("min_rate", timely(|c| c.min_rate = bytes(Rate::MIN.get() - 1))),
            ("min_rate", timely(|c| c.min_rate = faster)),
            ("step", timely(|c| c.step = bytes(0))),
            ("step", timely(|c| c.step = faster)),
            ("low_ns", timely(|c| c.low_ns = c.base_rtt_ns - 1)),
            ("low_ns", timely(|c| (c.base_rtt_ns, c.low_ns) = (0, 0))),
            ("high_ns", timely(|c| c.high_ns = c.low_ns - 1)),
            ("min_rtt_ns", timely(|c| c.min_rtt_ns = 0)),
            ("alpha", timely(|c| c.alpha = 0.0)),
            ("alpha", timely(|c| c.alpha = above_1)),
            ("beta", timely(|c| c.beta = 0.0)),
            ("beta", timely(|c| c.beta = above_1)),
            ("hai_rounds", timely(|c| c.hai_rounds = 0)),
            ("recovery", timely(|c| c.recovery = -tiny)),
            ("recovery", timely(|c| c.recovery = above_1)),
            ("line_rate", dcqcn(|c| c.line_rate = bytes(Rate::MAX.get() + 1))),
            ("min_rate", dcqcn(|c| c.min_rate = faster)),
            ("step", dcqcn(|c| c.step = bytes(0))),
            ("step", dcqcn(|c| c.step = faster)),
            ("hyper_step", dcqcn(|c| c.hyper_step = bytes(0))),
            ("hyper_step", dcqcn(|c| c.hyper_step = faster)),
            ("gain", dcqcn(|c| c.gain = 0.0)),
            ("gain", dcqcn(|c| c.gain = above_1)),
            ("notify_ns", dcqcn(|c| c.notify_ns = 0)),
            ("alpha_ns", dcqcn(|c| c.alpha_ns = 0)),
            ("increase_ns", dcqcn(|c| c.increase_ns = 0)),
            ("window_ns", dcqcn(|c| c.window_ns = c.base_rtt_ns - 1)),
            ("window_ns", dcqcn(|c| (c.base_rtt_ns, c.window_ns) = (0, 0))),
            ("increase_bytes", dcqcn(|c| c.increase_bytes = 0)),
            ("target_ns", swift(|c| c.target_ns = c.base_rtt_ns - 1)),
            ("target_ns", swift(|c| (c.base_rtt_ns, c.target_ns) = (0, 0))),
            ("scaling_window_max", swift(|c| c.scaling_window_max = 65_537.0)),
            ("scaling_window_max", swift(|c| c.scaling_window_max = 0.0)),
            ("scaling_window_min", swift(|c| c.scaling_window_min = 50.1)),
            ("scaling_window_min", swift(|c| c.scaling_window_min = 0.0)),
            ("increase", swift(|c| c.increase = 0.0)),
            ("increase", swift(|c| c.increase = 64.1)),
            ("beta", swift(|c| c.beta = 0.0)),
            ("beta", swift(|c| c.beta = above_1)),
            ("reduction_max", swift(|c| c.reduction_max = 0.0)),
            ("reduction_max", swift(|c| c.reduction_max = 0.91)),
            ("window_min", swift(|c| c.window_min = 0.0)),
            ("window_min", swift(|c| c.window_min = above_1)),
        ];
        for (name, config) in may_not {
            let said = error_of(config);
            assert!(said.starts_with(&format!("{name} ")), "{name}: {said}");
        }
    }

    #[test]
    fn impossible_values__say_which() {
        let fast = timely(|c| c.line_rate = Rate::gbit(1001));
        assert_eq!(
            error_of(fast),
            "line_rate is 125125000000 bytes/s; it must be between 125000 and 125000000000"
        );
        assert!(error_of(timely(|c| c.min_rate = Rate::gbit(26))).starts_with("min_rate is "));
        assert!(error_of(timely(|c| c.step = Rate::bytes_per_second(0))).starts_with("step is 0 "));
        assert_eq!(
            error_of(timely(|c| c.high_ns = 49_999)),
            "high_ns is 49999 ns; it must be at least 50000"
        );
        assert_eq!(
            error_of(timely(|c| c.alpha = f64::NAN)),
            "alpha is NaN; it must be above 0 and at most 1"
        );
        assert_eq!(error_of(timely(|c| c.hai_rounds = 0)), "hai_rounds must not be zero");
        assert!(error_of(timely(|c| c.recovery = 1.5)).starts_with("recovery is 1.5;"));
        assert!(error_of(swift(|c| c.reduction_max = 1.0)).starts_with("reduction_max is 1;"));
        assert!(error_of(swift(|c| c.scaling_window_min = 51.0)).contains("at most 50"));
        assert!(error_of(swift(|c| c.window_min = 0.0)).starts_with("window_min is 0;"));
        let mut dcqcn = DcqcnConfig::for_line(Rate::gbit(25));
        dcqcn.increase_bytes = 0;
        assert_eq!(error_of(CongestionConfig::Dcqcn(dcqcn)), "increase_bytes must not be zero");
    }

    panics! {
        start__of_a_session_without_credits: "a session has credits and packets" => {
            CongestionControl::default().start(Flow {
                credits: 0,
                packet_bytes: 1_200,
                base_rtt_ns: 0,
            });
        };
    }
}
