//! A result: what was measured, beside what, and how it was found. Its fields are those of `--json`.

use serde::Serialize;

use super::pairs::{Pair, Pairs};
use super::probe::Distance;
use super::statistics::{Spread, median, spread};
use super::target::Target;
use super::window::Window;
use crate::load::FailureGroup;
use crate::output::latency::{Latencies, LatencySummary};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Quantity {
    /// The time that a call takes.
    Latency,
    /// Calls per second.
    Rate,
    /// Bits of requests per second.
    Bandwidth,
}

/// What the library is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Baseline {
    /// The same messages on the bare medium.
    BareMedium,
    /// A datagram for each message, on the bare medium.
    SingleDatagrams,
    /// The library with one session.
    OneSession,
    /// The library with everything switched on.
    EverythingOn,
}

/// What was set; the part of a figure that is known beforehand.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Setting {
    /// The subcommand.
    pub(super) bench: &'static str,
    pub(super) transport: &'static str,
    /// `veth` where the ends are in two network namespaces; else they are on loopback, or where
    /// the other end was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<&'static str>,
    /// 1 or 2; none where the other end is somebody else's.
    pub(super) cores: Option<u8>,
    /// The CPUs that the ends were bound to.
    pub(super) cpus: Option<Vec<usize>>,
    pub(super) size_bytes: usize,
    pub(super) in_flight: u16,
    /// Calls started together.
    pub(super) batch: u16,
    pub(super) sessions: usize,
    /// What was switched off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) factor: Option<&'static str>,
    /// What was done in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instead: Option<&'static str>,
    /// What `bare` is.
    pub(super) baseline: Option<Baseline>,
    /// Repeats the measurement.
    pub(super) command: String,
}

/// A result.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    #[serde(flatten)]
    pub(super) setting: Setting,
    /// Median of the windows.
    pub(super) value: f64,
    pub(super) unit: &'static str,
    /// The same of what it is compared with.
    pub(super) bare: Option<f64>,
    /// Median of the pairs' ratios.
    pub(super) ratio: Option<f64>,
    pub(super) ratio_spread: Option<Spread>,
    /// Median of the pairs' differences, of latencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) difference_ns: Option<f64>,
    /// Whose memory it is: `client` or `server`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) side: Option<&'static str>,
    /// Memory of a session that was never used, in the figure's unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unused: Option<f64>,
    /// Time of a call with both ends on one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ns_per_call: Option<f64>,
    /// How far apart the CPUs were: `near`, `far`, `both`, or `unknown` where it never stood still.
    pub(super) distance: Option<&'static str>,
    /// Median time of a cache line's round trip between them.
    pub(super) line_ns: Option<f64>,
    /// Of the pairs with near CPUs alone, where there were both kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) near: Option<Part>,
    /// Of the pairs with far CPUs alone, where there were both kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) far: Option<Part>,
    /// Pairs of windows that count.
    pub(super) windows: usize,
    /// Pairs of windows during which the CPUs' distance changed.
    pub(super) dropped_windows: usize,
    pub(super) calls: u64,
    /// Replies that were compared with what they had to be.
    pub(super) checked: u64,
    pub(super) mismatched: u64,
    pub(super) failures: Vec<FailureGroup>,
    pub(super) retransmissions: u64,
    pub(super) drops: u64,
    /// Of what it is compared with: replies compared, wrong ones, and messages lost.
    pub(super) bare_checked: u64,
    pub(super) bare_mismatched: u64,
    pub(super) bare_lost: u64,
    pub(super) latency: Option<LatencySummary>,
    pub(super) bare_latency: Option<LatencySummary>,
    pub(super) elapsed_ns: u64,
    #[serde(flatten)]
    pub(super) target: Option<Target>,
}

/// Medians of some of the pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Part {
    pub(super) windows: usize,
    pub(super) value: f64,
    pub(super) bare: Option<f64>,
    pub(super) ratio: Option<f64>,
}

impl Quantity {
    /// The name of the subcommand.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Latency => "us",
            Self::Rate => "Mcalls/s",
            Self::Bandwidth => "Gbit/s",
        }
    }

    /// What a window shows.
    fn of(self, window: &Window) -> f64 {
        match self {
            Self::Latency => window.p50_ns() as f64 / 1e3,
            Self::Rate => window.per_second() / 1e6,
            Self::Bandwidth => window.bits_per_second() / 1e9,
        }
    }

    fn ratio(self, pair: &Pair) -> Option<f64> {
        let bare = self.of(pair.bare.as_ref()?);
        (bare > 0.0).then(|| self.of(&pair.library) / bare)
    }

    fn difference_ns(self, pair: &Pair) -> Option<f64> {
        let bare = pair.bare.as_ref().filter(|_| self == Self::Latency)?;
        Some(pair.library.p50_ns() as f64 - bare.p50_ns() as f64)
    }

    fn part(self, pairs: &[&Pair]) -> Part {
        let bare = pairs.iter().filter_map(|pair| pair.bare.as_ref());
        Part {
            windows: pairs.len(),
            value: median(pairs.iter().map(|pair| self.of(&pair.library))).unwrap_or(0.0),
            bare: median(bare.map(|window| self.of(window))),
            ratio: median(pairs.iter().filter_map(|pair| self.ratio(pair))),
        }
    }
}

impl Figure {
    /// What the windows showed.
    pub(super) fn new(quantity: Quantity, setting: Setting, pairs: Pairs) -> Self {
        let kept: Vec<&Pair> = pairs.kept.iter().collect();
        let at = |distance| {
            let some: Vec<&Pair> =
                kept.iter().copied().filter(|pair| pair.distance == Some(distance)).collect();
            (!some.is_empty() && some.len() < kept.len()).then(|| quantity.part(&some))
        };
        let all = quantity.part(&kept);
        let ratios = || kept.iter().filter_map(|pair| quantity.ratio(pair));
        let is_call_time = quantity == Quantity::Rate && setting.cores == Some(1);
        let (library, bare) = (Sum::of_library(&pairs), Sum::of_bare(&pairs));
        Self {
            value: all.value,
            unit: quantity.unit(),
            bare: all.bare,
            ratio: all.ratio,
            ratio_spread: spread(ratios()),
            difference_ns: median(kept.iter().filter_map(|pair| quantity.difference_ns(pair))),
            side: None,
            unused: None,
            ns_per_call: is_call_time.then(|| 1e3 / all.value),
            distance: distance(&pairs.kept),
            line_ns: median(kept.iter().filter_map(|pair| pair.line_ns).map(|ns| ns as f64)),
            near: at(Distance::Near),
            far: at(Distance::Far),
            windows: pairs.kept.len(),
            dropped_windows: pairs.dropped.len(),
            calls: library.calls,
            checked: library.checked,
            mismatched: library.mismatched,
            retransmissions: library.retransmissions,
            drops: library.drops,
            bare_checked: bare.checked,
            bare_mismatched: bare.mismatched,
            bare_lost: bare.lost,
            elapsed_ns: library.elapsed_ns + bare.elapsed_ns,
            latency: library.latency,
            bare_latency: bare.latency,
            failures: failures(pairs),
            setting,
            target: None,
        }
    }

    /// Whether every call was answered, and rightly, on either side.
    pub(crate) fn is_flawless(&self) -> bool {
        self.mismatched == 0 && self.bare_mismatched == 0 && self.failures.is_empty()
    }

    /// In words: `rate over shm`.
    pub(super) fn title(&self) -> String {
        let Setting { bench, factor, .. } = &self.setting;
        let transport = self.setting.network.unwrap_or(self.setting.transport);
        let side = self.side.map_or(String::new(), |side| format!(" of a {side}"));
        let factor = factor.map_or(String::new(), |factor| format!(" without {factor}"));
        format!("{bench}{side} over {transport}{factor}")
    }
}

/// The distance in one word.
fn distance(kept: &[Pair]) -> Option<&'static str> {
    let first = kept.first()?.distance?;
    if kept.iter().any(|pair| pair.distance != Some(first)) {
        return Some("both");
    }
    Some(match first {
        Distance::Near => "near",
        Distance::Far => "far",
        Distance::Unknown => "unknown",
    })
}

/// The failures of all windows: one group for each kind.
fn failures(pairs: Pairs) -> Vec<FailureGroup> {
    let mut groups: Vec<FailureGroup> = Vec::new();
    let windows = pairs.kept.into_iter().chain(pairs.dropped).map(|pair| pair.library);
    for group in windows.flat_map(|window| window.failures) {
        let is_alike = |other: &&mut FailureGroup| {
            (other.status, other.executed) == (group.status, group.executed)
        };
        match groups.iter_mut().find(is_alike) {
            Some(known) => known.count += group.count,
            None => groups.push(group),
        }
    }
    groups
}

/// All windows of one side together. What was counted counts also where the window is dropped;
/// the times do not.
#[derive(Default)]
struct Sum {
    calls: u64,
    checked: u64,
    mismatched: u64,
    lost: u64,
    retransmissions: u64,
    drops: u64,
    elapsed_ns: u64,
    latency: Option<LatencySummary>,
}

impl Sum {
    fn of_library(pairs: &Pairs) -> Self {
        Self::of(pairs, |pair| Some(&pair.library))
    }

    fn of_bare(pairs: &Pairs) -> Self {
        Self::of(pairs, |pair| pair.bare.as_ref())
    }

    fn of(pairs: &Pairs, side: impl Fn(&Pair) -> Option<&Window>) -> Self {
        let mut sum = Self::default();
        for window in pairs.kept.iter().chain(&pairs.dropped).filter_map(&side) {
            sum.calls += window.calls;
            sum.checked += window.checked;
            sum.mismatched += window.mismatched;
            sum.lost += window.lost;
            sum.retransmissions += window.traffic.retransmissions;
            sum.drops += window.traffic.drops;
            sum.elapsed_ns += window.elapsed_ns;
        }
        let mut all: Option<Latencies> = None;
        for latencies in pairs.kept.iter().filter_map(side).filter_map(|w| w.latencies.as_ref()) {
            all.get_or_insert_with(Latencies::new).add(latencies);
        }
        sum.latency = all.and_then(|all| all.summary());
        sum
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn setting() -> Setting {
        Setting {
            bench: "rate",
            transport: "shm",
            network: None,
            cores: Some(1),
            cpus: None,
            size_bytes: 32,
            in_flight: 60,
            batch: 3,
            sessions: 8,
            factor: None,
            instead: None,
            baseline: Some(Baseline::BareMedium),
            command: "petrel bench rate".to_owned(),
        }
    }

    fn window(answered: u64) -> Window {
        Window { calls: answered, checked: answered, elapsed_ns: 1_000, ..Window::new(None) }
    }

    fn pair(library: u64, bare: u64, distance: Distance) -> Pair {
        let distance = Some(distance);
        Pair { library: window(library), bare: Some(window(bare)), distance, line_ns: Some(100) }
    }

    fn pairs() -> Pairs {
        Pairs {
            kept: vec![
                pair(10, 100, Distance::Near),
                pair(30, 100, Distance::Near),
                pair(10, 20, Distance::Far),
            ],
            dropped: vec![pair(1, 1, Distance::Near)],
        }
    }

    /// Some figure without a flaw.
    pub(in super::super) fn figure() -> Figure {
        Figure::new(Quantity::Rate, setting(), pairs())
    }

    #[test]
    fn new__takes_medians_of_the_kept_pairs() {
        let figure = Figure::new(Quantity::Rate, setting(), pairs());
        assert_eq!((figure.value, figure.bare, figure.ratio), (10.0, Some(100.0), Some(0.3)));
        assert_eq!((figure.windows, figure.dropped_windows), (3, 1));
        assert_eq!((figure.distance, figure.ns_per_call), (Some("both"), Some(100.0)));
        let near = figure.near.unwrap();
        assert_eq!((near.windows, near.value, near.ratio), (2, 20.0, Some(0.2)));
        assert_eq!(figure.far.unwrap().ratio, Some(0.5));
        assert_eq!((figure.calls, figure.bare_checked), (51, 221), "dropped ones count here");
        assert!(figure.is_flawless());
    }

    #[test]
    fn new__says_near_and_far_apart_only_where_there_are_both() {
        let pairs = Pairs { kept: vec![pair(1, 2, Distance::Far)], dropped: Vec::new() };
        let figure = Figure::new(Quantity::Rate, setting(), pairs);
        assert_eq!((figure.distance, figure.far), (Some("far"), None));
    }

    #[test]
    fn is_flawless__not_with_a_wrong_answer_on_either_side() {
        for (library, bare) in [(1, 0), (0, 1)] {
            let mut pairs = pairs();
            pairs.dropped[0].library.mismatched = library;
            pairs.dropped[0].bare.as_mut().unwrap().mismatched = bare;
            assert!(!Figure::new(Quantity::Rate, setting(), pairs).is_flawless());
        }
    }

    #[test]
    fn new__of_latencies_has_differences() {
        let timed = |ns: u64| {
            let mut latencies = Latencies::new();
            latencies.record(ns);
            Window { checked: 1, elapsed_ns: 1, ..Window::new(Some(latencies)) }
        };
        let pair =
            Pair { library: timed(190), bare: Some(timed(100)), distance: None, line_ns: None };
        let pairs = Pairs { kept: vec![pair], dropped: Vec::new() };
        let figure = Figure::new(Quantity::Latency, setting(), pairs);
        assert_eq!((figure.value, figure.difference_ns), (0.19, Some(90.0)));
        assert_eq!(figure.latency.unwrap().p50_ns, 190);
        assert_eq!(figure.bare_latency.unwrap().p50_ns, 100);
        assert_eq!(figure.ns_per_call, None);
    }

    #[test]
    fn json__has_the_fields_that_scripts_read() {
        let figure = Figure::new(Quantity::Rate, setting(), pairs());
        let json = serde_json::to_value(&figure).unwrap();
        for field in [
            "bench",
            "transport",
            "cores",
            "size_bytes",
            "in_flight",
            "batch",
            "value",
            "unit",
            "bare",
            "ratio",
            "ratio_spread",
            "windows",
            "dropped_windows",
            "checked",
            "distance",
            "calls",
            "retransmissions",
            "drops",
            "command",
        ] {
            assert!(!json[field].is_null(), "{field}: {json}");
        }
        assert_eq!(json["baseline"], "bare-medium");
        assert!(json.get("target").is_none());
    }
}
