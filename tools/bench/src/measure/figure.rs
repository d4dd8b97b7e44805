//! A result: the measured value, the baseline, and the settings. The fields are those of `--json`.

mod sum;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use petrel_command::Outcome;
use petrel_command::load::FailureGroup;
use petrel_command::output::latency::LatencySummary;
use serde::Serialize;

use self::sum::Sum;
use super::pairs::{Pair, Pairs};
use super::probe::Distance;
use super::statistics::{Spread, median, spread};
use super::target::Target;
use super::window::Window;

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Quantity {
    /// The duration of a call.
    Latency,
    /// Calls per second.
    Rate,
    /// Bits of requests per second.
    Bandwidth,
}

/// The baseline that the library is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum Baseline {
    /// Equal messages on the bare medium.
    BareMedium,
    /// A datagram per message, on the bare medium.
    SingleDatagrams,
    /// A polled TCP stream of equal messages.
    Tcp,
    /// The library with one session.
    OneSession,
    /// The library with other settings, in an experiment.
    Other {
        /// The name, as `--json` prints it.
        name: &'static str,
        /// The description below the table.
        text: &'static str,
    },
}

impl Baseline {
    /// Returns the name, as `--json` prints it, and the description below the table.
    pub fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::BareMedium => {
                ("bare-medium", "the same messages on the bare medium, with no protocol")
            }
            Self::SingleDatagrams => {
                ("single-datagrams", "a datagram per message on plain sockets")
            }
            Self::Tcp => ("tcp", "the same messages in a polled TCP stream, with no protocol"),
            Self::OneSession => ("one-session", "the same with one session"),
            Self::Other { name, text } => (name, text),
        }
    }
}

impl From<Baseline> for &'static str {
    fn from(baseline: Baseline) -> Self {
        baseline.words().0
    }
}

/// The settings: the part of a figure known before the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// The subcommand.
    pub bench: &'static str,
    pub transport: &'static str,
    /// `veth` if the ends are in two network namespaces, `memif` for two processes by DPDK; else they are on loopback, or at `--connect`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<&'static str>,
    /// 1 or 2; `None` if the other end is another process.
    pub cores: Option<u8>,
    /// The CPUs that the ends were bound to.
    pub cpus: Option<Vec<usize>>,
    pub size_bytes: usize,
    pub in_flight: u16,
    /// Calls started together.
    pub batch: u16,
    pub sessions: usize,
    /// `default` or `raised`: the slots and credits of the sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings: Option<&'static str>,
    /// Whether calls were announced ahead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announced: Option<bool>,
    /// The change that an experiment compares, in words: `without short ways`.
    #[serde(skip)]
    pub change: Option<String>,
    /// Further fields of an experiment, by name.
    #[serde(flatten)]
    pub further: BTreeMap<&'static str, serde_json::Value>,
    /// The kind of baseline that `bare` measures.
    pub baseline: Option<Baseline>,
    /// The command that repeats the measurement.
    pub command: String,
}

impl Setting {
    /// Describes calls of one session, one at a time; the caller sets the further fields.
    pub fn new(bench: &'static str, transport: &'static str, command: String) -> Self {
        Self {
            bench,
            transport,
            network: None,
            cores: None,
            cpus: None,
            size_bytes: 0,
            in_flight: 1,
            batch: 1,
            sessions: 1,
            settings: None,
            announced: None,
            change: None,
            further: BTreeMap::new(),
            baseline: None,
            command,
        }
    }
}

/// The parts of `value`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Parts {
    /// `rpc`, or `packet` of a large request, without the copying of its data.
    pub per: &'static str,
    pub client: f64,
    pub server: f64,
}

/// A result.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    #[serde(flatten)]
    pub setting: Setting,
    /// Median of the windows.
    pub value: f64,
    pub unit: &'static str,
    /// Median of the baseline's windows.
    pub bare: Option<f64>,
    /// The two medians of latencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bare_ns: Option<u64>,
    /// Median of the pairs' ratios.
    pub ratio: Option<f64>,
    pub ratio_spread: Option<Spread>,
    /// Median of the pairs' differences, of latencies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference_ns: Option<i64>,
    /// The owner of the measured memory: `client` or `server`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side: Option<&'static str>,
    /// Memory of an unused session, in the figure's unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused: Option<f64>,
    /// Time of a call with the two ends on one core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ns_per_call: Option<f64>,
    /// The unit of instruction counts, and the counts of client and server.
    #[serde(flatten)]
    pub parts: Option<Parts>,
    /// Distance between the CPUs: `near`, `far`, `both`, or `unknown` if it changed in every pair.
    pub distance: Option<&'static str>,
    /// Median time of a cache line's round trip between the CPUs.
    pub line_ns: Option<u64>,
    /// Medians of the pairs with near CPUs alone, if both kinds occurred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub near: Option<FigurePart>,
    /// Medians of the pairs with far CPUs alone, if both kinds occurred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub far: Option<FigurePart>,
    /// Valid pairs of windows.
    pub windows: usize,
    /// Pairs of windows during which the CPUs' distance changed.
    pub dropped_windows: usize,
    pub calls: u64,
    /// Replies compared with the expected content.
    pub checked: u64,
    pub mismatched: u64,
    pub failures: Vec<FailureGroup>,
    pub retransmissions: u64,
    pub drops: u64,
    /// Baseline: replies compared, wrong replies, and messages lost.
    pub bare_checked: u64,
    pub bare_mismatched: u64,
    pub bare_lost: u64,
    pub latency: Option<LatencySummary>,
    pub bare_latency: Option<LatencySummary>,
    pub elapsed_ns: u64,
    #[serde(flatten)]
    pub target: Option<Target>,
}

/// Medians of a subset of the pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FigurePart {
    pub windows: usize,
    pub value: f64,
    pub bare: Option<f64>,
    pub ratio: Option<f64>,
}

impl Quantity {
    /// Returns the name of the subcommand.
    pub fn name(self) -> &'static str {
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

    /// Returns the quantity's value in a window.
    fn of(self, window: &Window) -> f64 {
        match self {
            Self::Latency => window.p50_ns() as f64 / 1e3,
            Self::Rate => window.per_second() / 1e6,
            Self::Bandwidth => window.bits_per_second() / 1e9,
        }
    }

    fn ratio(self, pair: &Pair) -> Option<f64> {
        let baseline = self.of(pair.baseline.as_ref()?);
        (baseline > 0.0).then(|| self.of(&pair.library) / baseline)
    }

    fn difference_ns(self, pair: &Pair) -> Option<f64> {
        let baseline = pair.baseline.as_ref().filter(|_| self == Self::Latency)?;
        Some(pair.library.p50_ns() as f64 - baseline.p50_ns() as f64)
    }

    fn part(self, pairs: &[&Pair]) -> FigurePart {
        let baseline = pairs.iter().filter_map(|pair| pair.baseline.as_ref());
        FigurePart {
            windows: pairs.len(),
            value: median(pairs.iter().map(|pair| self.of(&pair.library))).unwrap_or(0.0),
            bare: median(baseline.map(|window| self.of(window))),
            ratio: median(pairs.iter().filter_map(|pair| self.ratio(pair))),
        }
    }
}

impl Figure {
    /// Computes a figure from the windows.
    pub fn new(quantity: Quantity, setting: Setting, pairs: Pairs) -> Self {
        let kept: Vec<&Pair> = pairs.kept.iter().collect();
        let at = |distance| {
            let some: Vec<&Pair> =
                kept.iter().copied().filter(|pair| pair.distance == Some(distance)).collect();
            (!some.is_empty() && some.len() < kept.len()).then(|| quantity.part(&some))
        };
        let all = quantity.part(&kept);
        let ratios = || kept.iter().filter_map(|pair| quantity.ratio(pair));
        let is_call_time = quantity == Quantity::Rate && setting.cores == Some(1);
        let in_ns = |us: f64| (quantity == Quantity::Latency).then(|| whole(us * 1e3) as u64);
        let (library, baseline) = (Sum::of_library(&pairs), Sum::of_baseline(&pairs));
        Self {
            value: all.value,
            unit: quantity.unit(),
            bare: all.bare,
            value_ns: in_ns(all.value),
            bare_ns: all.bare.and_then(in_ns),
            ratio: all.ratio,
            ratio_spread: spread(ratios()),
            difference_ns: median(kept.iter().filter_map(|pair| quantity.difference_ns(pair)))
                .map(whole),
            side: None,
            unused: None,
            ns_per_call: is_call_time.then(|| 1e3 / all.value),
            parts: None,
            distance: distance(&pairs.kept),
            line_ns: median(kept.iter().filter_map(|pair| pair.line_ns).map(|ns| ns as f64))
                .map(|ns| whole(ns) as u64),
            near: at(Distance::Near),
            far: at(Distance::Far),
            windows: pairs.kept.len(),
            dropped_windows: pairs.dropped.len(),
            calls: library.calls,
            checked: library.checked,
            mismatched: library.mismatched,
            retransmissions: library.retransmissions,
            drops: library.drops,
            bare_checked: baseline.checked,
            bare_mismatched: baseline.mismatched,
            bare_lost: baseline.lost,
            elapsed_ns: library.elapsed_ns + baseline.elapsed_ns,
            latency: library.latency,
            bare_latency: baseline.latency,
            failures: failures(pairs),
            setting,
            target: None,
        }
    }

    /// Returns true if every call of either side was answered correctly.
    pub fn is_valid(&self) -> bool {
        self.mismatched == 0 && self.bare_mismatched == 0 && self.failures.is_empty()
    }

    /// Returns the title in words: `rate over shm`.
    pub fn title(&self) -> String {
        let Setting { bench, change, .. } = &self.setting;
        let transport = self.setting.network.unwrap_or(self.setting.transport);
        let side = self.side.map_or(String::new(), |side| format!(" of a {side}"));
        let per = self.parts.map_or(String::new(), |parts| format!(" per {}", parts.per));
        let change = change.as_ref().map_or(String::new(), |change| format!(" {change}"));
        let announced = if self.setting.announced == Some(true) { " (announced)" } else { "" };
        format!("{bench}{announced}{per}{side} over {transport}{change}")
    }
}

/// Returns a failure if a call of any measurement failed or was answered wrongly.
pub fn outcome(figures: &[Figure]) -> Outcome {
    match figures.iter().all(Figure::is_valid) {
        true => Outcome::Success,
        false => Outcome::Failure,
    }
}

/// Returns a time in whole nanoseconds.
fn whole(ns: f64) -> i64 {
    ns.round() as i64
}

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

/// Returns the failures of all windows: one group per kind.
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
