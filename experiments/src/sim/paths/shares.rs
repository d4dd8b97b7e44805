//! Sessions that come and go: the shares of several at one receiver, and of two that meet on one path.

use serde::Serialize;

use super::super::ExperimentError;
use super::super::cluster::{Paths, Place};
use super::super::incast::jain;
use super::network::{HOST_GBIT, PathNetwork};
use super::streams::{Own, Streams, gbit, payload_share};
use super::{PathsConfig, Policy, Setting, Variant};

/// A row of `fair`: a number of sessions to one receiver.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FairRow {
    /// Whether the last session has come or gone.
    pub change: &'static str,
    /// Sessions that send.
    pub sessions: usize,
    /// The settings of the sessions.
    #[serde(flatten)]
    pub setting: Setting,
    /// Goodput of all sessions in the second half of the time, in Gbit/s.
    pub goodput_gbit: f64,
    /// Goodput, divided by that of the receiver's link.
    pub share: f64,
    /// Jain's index of the sessions that send.
    pub jain: f64,
    /// Goodput of each session that sends.
    pub session_gbit: Vec<f64>,
    /// Time between two changes; its second half is measured.
    pub between_ns: u64,
}

/// Runs `fair`: eight hosts begin to send to one, one after the other, and end in the same order.
///
/// # Errors
/// See [`ExperimentError`].
pub fn fair(
    config: &PathsConfig,
    mut on_row: impl FnMut(&FairRow),
) -> Result<Vec<FairRow>, ExperimentError> {
    let (senders, between_ns) = if config.is_quick { (3, 2_000_000) } else { (8usize, 20_000_000) };
    let mut rows = Vec::new();
    for variant in config.variants() {
        let mut streams = Streams::new(PathNetwork::Hosts25, variant, config.seed)?;
        let leaves = streams.network.leaves.clone();
        let receiver = leaves[0][0];
        for number in 0..senders {
            // Two hosts of each other leaf.
            let from = leaves[1 + number % 4][number / 4];
            let own = Own { paths: variant.paths(), waits: true };
            streams.add_own(from, Place::new(receiver, 1 + number as u16), own)?;
        }
        streams.cluster.begin()?;
        let comes = (0..senders).map(|stream| (stream, true));
        let goes = (0..senders - 1).map(|stream| (stream, false));
        let mut sending = Vec::new();
        for (stream, comes) in comes.chain(goes) {
            streams.set_sending(stream, comes);
            match comes {
                true => sending.push(stream),
                false => sending.retain(|other| *other != stream),
            }
            streams.cluster.run_for(between_ns / 2);
            let before = streams.counts().arrived;
            streams.cluster.run_for(between_ns / 2);
            let after = streams.counts().arrived;
            let gbit_of = |&stream: &usize| gbit(after[stream] - before[stream], between_ns / 2);
            let session_gbit: Vec<f64> = sending.iter().map(gbit_of).collect();
            let goodput_gbit = session_gbit.iter().fold(0.0, |sum, session| sum + session);
            let row = FairRow {
                change: if comes { "comes" } else { "goes" },
                sessions: sending.len(),
                setting: variant.setting(),
                goodput_gbit,
                share: goodput_gbit / (HOST_GBIT as f64 * payload_share()),
                jain: jain(&session_gbit),
                session_gbit,
                between_ns,
            };
            on_row(&row);
            rows.push(row);
        }
        streams.finish()?;
    }
    Ok(rows)
}

/// A row of `pinned`: a session of several paths, and one that has the fourth of these paths alone.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PinnedRow {
    /// The settings of the session over several paths, and the congestion control of the pinned one.
    #[serde(flatten)]
    pub setting: Setting,
    /// Packets per second over the fourth path before the pinned session comes, as a share of the path.
    pub share_before: f64,
    /// The same, from 5 ms after its beginning.
    pub share_after: f64,
    /// Time until the share was below 0.05 in a sample; `None` if it never was.
    pub left_after_ns: Option<u64>,
    /// Packets over the three other paths from 5 ms on, as a share of these paths.
    pub others: f64,
    /// Goodput of the pinned session from 5 ms on, as a share of the path.
    pub pinned: f64,
    /// Duration of a sample.
    pub sample_ns: u64,
    /// Packets of the first session over each path in each sample, in Gbit/s of their payload; the pinned
    /// session comes after the first third.
    pub samples_gbit: Vec<Vec<f64>>,
}

/// A smaller share of a path counts as zero.
const LEFT_SHARE: f64 = 0.05;

/// Time that a session has to leave a path.
const LEAVE_NS: u64 = 5_000_000;

/// Runs `pinned`: a session over four paths of 10 Gbit/s, and after a while one more, whose only path is the
/// fourth. Policies of one path are left out.
///
/// # Errors
/// See [`ExperimentError`].
pub fn pinned(
    config: &PathsConfig,
    mut on_row: impl FnMut(&PinnedRow),
) -> Result<Vec<PinnedRow>, ExperimentError> {
    let third_ns = if config.is_quick { 6_000_000 } else { 20_000_000 };
    let mut rows = Vec::new();
    for variant in config.variants() {
        if variant.policy == Policy::SINGLE {
            continue;
        }
        let row = pinned_to(config.seed, third_ns, variant)?;
        on_row(&row);
        rows.push(row);
    }
    Ok(rows)
}

fn pinned_to(seed: u64, third_ns: u64, variant: Variant) -> Result<PinnedRow, ExperimentError> {
    const SAMPLE_NS: u64 = 500_000;
    let mut streams = Streams::new(PathNetwork::FourEqual, variant, seed)?;
    streams.add_own_over(0, (0, 0), Own { paths: variant.paths(), waits: false })?;
    streams.add_own_over(1, (3, 0), Own { paths: Paths::ONE, waits: true })?;
    streams.cluster.begin()?;
    streams.cluster.run_for(5_000_000);
    let path_gbit = streams.network.path_bps[3] as f64 / 1e9 * payload_share();
    let mut samples_gbit: Vec<Vec<f64>> = Vec::new();
    let mut pinned_gbit = Vec::new();
    for sample in 0..3 * third_ns / SAMPLE_NS {
        if sample * SAMPLE_NS == third_ns {
            streams.set_sending(1, true);
        }
        let (before, pinned_before) = (streams.sent_by_path(0), streams.counts().arrived[1]);
        streams.cluster.run_for(SAMPLE_NS);
        let rates = streams.sent_by_path(0).into_iter().zip(before);
        samples_gbit.push(rates.map(|(after, before)| gbit(after - before, SAMPLE_NS)).collect());
        pinned_gbit.push(gbit(streams.counts().arrived[1] - pinned_before, SAMPLE_NS));
    }
    streams.finish()?;

    let mean = |of: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = of.fold((0.0, 0.0), |(sum, count), rate| (sum + rate, count + 1.0));
        sum / count / path_gbit
    };
    let comes = (third_ns / SAMPLE_NS) as usize;
    let settled = comes + (LEAVE_NS / SAMPLE_NS) as usize;
    let fourth = |samples: &[Vec<f64>]| mean(&mut samples.iter().map(|paths| paths[3]));
    let is_left = |paths: &Vec<f64>| paths[3] < LEFT_SHARE * path_gbit;
    let left = samples_gbit[comes..].iter().position(is_left);
    Ok(PinnedRow {
        setting: variant.setting(),
        share_before: fourth(&samples_gbit[..comes]),
        share_after: fourth(&samples_gbit[settled..]),
        left_after_ns: left.map(|sample| (sample as u64 + 1) * SAMPLE_NS),
        others: mean(&mut samples_gbit[settled..].iter().flat_map(|paths| paths[..3].to_vec())),
        pinned: mean(&mut pinned_gbit[settled..].iter().copied()),
        sample_ns: SAMPLE_NS,
        samples_gbit,
    })
}
