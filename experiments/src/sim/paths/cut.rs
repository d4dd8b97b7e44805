//! Paths go down in turn, and come back: goodput over time.

use serde::Serialize;

use super::super::ExperimentError;
use super::network::PathNetwork;
use super::streams::{Streams, gbit, payload_share};
use super::{PathsConfig, Setting, Variant};
use petrel_sim::fabric::{Action, LinkId, LinkSet};

/// The network's treatment of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutKind {
    /// No switch notices.
    Silent,
    /// Routes lead around the path after a millisecond.
    LinkDown,
}

impl CutKind {
    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::LinkDown => "link-down",
        }
    }
}

/// A row of results: the time between two changes of the network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CutRow {
    /// The network's treatment of a cut.
    pub kind: CutKind,
    /// The change with which the time begins.
    pub change: &'static str,
    /// The settings of the sessions.
    #[serde(flatten)]
    pub setting: Setting,
    /// Paths that work.
    pub paths_up: usize,
    /// Goodput that these paths could carry, in Gbit/s.
    pub capacity_gbit: f64,
    /// Goodput during this time.
    pub goodput_gbit: f64,
    /// Goodput divided by this capacity.
    pub share: f64,
    /// Time from the change to the first 2 ms with a mean of 0.95 of this capacity; `None` without. A single sample may have
    /// packets that queues have kept.
    pub full_after_ns: Option<u64>,
    /// When the time began, since the first.
    pub start_ns: u64,
    /// Duration of a sample.
    pub sample_ns: u64,
    /// Goodput of each sample.
    pub samples_gbit: Vec<f64>,
}

/// The changes: paths 0 to 2 go down, then come back in the same order.
const CHANGES: [(&str, Option<(usize, bool)>); 7] = [
    ("none", None),
    ("cut 1", Some((0, false))),
    ("cut 2", Some((1, false))),
    ("cut 3", Some((2, false))),
    ("back 1", Some((0, true))),
    ("back 2", Some((1, true))),
    ("back 3", Some((2, true))),
];

/// The least share of the capacity that counts as full.
const FULL_SHARE: f64 = 0.95;

/// Samples of 2 ms.
const FULL_SAMPLES: usize = 8;

/// The times of the experiment.
#[derive(Clone, Copy, Debug)]
struct CutTimes {
    warm_up_ns: u64,
    between_ns: u64,
    sample_ns: u64,
    reconverge_ns: u64,
}

impl CutTimes {
    fn of(config: &PathsConfig) -> Self {
        let between_ns = if config.is_quick { 3_000_000 } else { 20_000_000 };
        Self {
            warm_up_ns: 5_000_000,
            between_ns,
            sample_ns: 250_000,
            // As fast as local protection; routing protocols take up to seconds.
            reconverge_ns: 1_000_000,
        }
    }
}

/// Runs `cut`: one session over the first of four paths of 10 Gbit/s, and cuts of three of them.
///
/// # Errors
/// See [`ExperimentError`]: a call that fails because of a cut is an error.
pub fn cut(
    config: &PathsConfig,
    mut on_row: impl FnMut(&CutRow),
) -> Result<Vec<CutRow>, ExperimentError> {
    let times = CutTimes::of(config);
    let mut rows = Vec::new();
    for kind in [CutKind::Silent, CutKind::LinkDown] {
        for variant in config.variants() {
            let mut streams = Streams::new(PathNetwork::FourEqual, variant, config.seed)?;
            streams.add_over(0, 0)?;
            streams.cluster.begin()?;
            streams.cluster.run_for(times.warm_up_ns);
            let mut run = Run { streams, times, kind, variant, is_up: [true; 4], start_ns: 0 };
            for (name, change) in CHANGES {
                let row = run.measure(name, change);
                on_row(&row);
                rows.push(row);
            }
            run.streams.finish()?;
        }
    }
    Ok(rows)
}

fn mean(samples_gbit: &[f64]) -> f64 {
    samples_gbit.iter().sum::<f64>() / samples_gbit.len() as f64
}

/// A session during the changes.
struct Run {
    streams: Streams,
    times: CutTimes,
    kind: CutKind,
    variant: Variant,
    is_up: [bool; 4],
    start_ns: u64,
}

impl Run {
    /// Makes a change, and measures until the next.
    fn measure(&mut self, name: &'static str, change: Option<(usize, bool)>) -> CutRow {
        if let Some((path, is_up)) = change {
            self.change(path, is_up);
        }
        let CutTimes { between_ns, sample_ns, .. } = self.times;
        let samples_gbit = self.sample();
        let (network, is_up) = (&self.streams.network, &self.is_up);
        let up_bps: u64 =
            network.path_bps.iter().zip(is_up).filter(|path| *path.1).map(|path| path.0).sum();
        let capacity_gbit = up_bps as f64 / 1e9 * payload_share();
        let is_full = |samples: &[f64]| mean(samples) >= FULL_SHARE * capacity_gbit;
        let full = samples_gbit.windows(FULL_SAMPLES).position(is_full);
        let goodput_gbit = mean(&samples_gbit);
        let start_ns = self.start_ns;
        self.start_ns += between_ns;
        CutRow {
            kind: self.kind,
            change: name,
            setting: self.variant.setting(),
            paths_up: self.is_up.iter().filter(|is_up| **is_up).count(),
            capacity_gbit,
            goodput_gbit,
            share: goodput_gbit / capacity_gbit,
            full_after_ns: full.map(|sample| sample as u64 * sample_ns),
            start_ns,
            sample_ns,
            samples_gbit,
        }
    }

    fn change(&mut self, path: usize, is_up: bool) {
        self.is_up[path] = is_up;
        let link: LinkId = self.streams.network.paths[path][0];
        let reconverge_ns = match self.kind {
            CutKind::Silent => None,
            CutKind::LinkDown => Some(self.times.reconverge_ns),
        };
        let links = LinkSet::Cable(link);
        self.streams.cluster.fabric.apply(Action::Link { links, is_up, reconverge_ns });
    }

    fn sample(&mut self) -> Vec<f64> {
        let CutTimes { between_ns, sample_ns, .. } = self.times;
        let mut before = self.streams.counts().arrived[0];
        let samples = (0..between_ns / sample_ns).map(|_| {
            self.streams.cluster.run_for(sample_ns);
            let now = self.streams.counts().arrived[0];
            let packets = now - std::mem::replace(&mut before, now);
            gbit(packets, sample_ns)
        });
        samples.collect()
    }
}
