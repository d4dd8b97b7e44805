//! The figures of windows with and without loss.

use petrel_command::failure::Failure;
use petrel_command::output::latency::{Latencies, LatencySummary};
use petrel_proto::Recovery;
use serde::Serialize;

use super::LossPlan;
use petrel_bench::measure::pairs::{Pair, Pairs};
use petrel_bench::measure::statistics::{Spread, median, spread};
use petrel_bench::measure::test_bed::TestBed;
use petrel_bench::measure::window::Window;

/// A figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LossFigure {
    /// The network: packets of the kernel, no simulation.
    network: &'static str,
    /// `selective` or `go-back-n`.
    pub(crate) recovery: &'static str,
    /// Loss probability of a packet in either direction.
    pub(crate) loss: f64,
    pub(crate) size_bytes: usize,
    pub(crate) in_flight: u16,
    /// The CPUs of the ends.
    cpus: Option<Vec<usize>>,
    pub(crate) pairs: usize,
    /// Bits of answered requests per second under loss, divided by those of the adjacent window without:
    /// the median of all pairs.
    pub(crate) relative: f64,
    pub(crate) spread: Spread,
    /// Additional time per dropped packet, in nanoseconds.
    pub(crate) cost_ns_per_loss: Option<f64>,
    pub(crate) with: Side,
    pub(crate) without: Side,
}

/// All windows with loss, or all without.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Side {
    /// Bits of answered requests per second: the median of the windows.
    pub(crate) goodput_gbit: f64,
    /// Requests answered; every answer was checked.
    pub(crate) answered: u64,
    pub(crate) elapsed_ns: u64,
    /// Datagrams that the two ends sent.
    pub(crate) sent: u64,
    /// Packets that arrived in both namespaces.
    pub(crate) arrived: u64,
    /// Arrived packets that the rules dropped.
    pub(crate) dropped: u64,
    /// Dropped packets in the server's direction.
    pub(crate) dropped_requests: u64,
    /// Packets that passed the rules, but found no room in a socket.
    pub(crate) dropped_by_kernel: u64,
    /// Retransmitted packets.
    pub(crate) retransmissions: u64,
    /// Retransmitted packets, known to the receiver.
    pub(crate) duplicates: u64,
    pub(crate) timeouts: u64,
    pub(crate) probes: u64,
    /// Losses detected without timeout or probe.
    pub(crate) found_early: u64,
    /// Latencies, if calls are timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency: Option<LatencySummary>,
}

/// Returns the name of a kind of recovery.
pub(super) fn name(recovery: Recovery) -> &'static str {
    if recovery == Recovery::GoBackN { "go-back-n" } else { "selective" }
}

/// Returns an error if a call failed or was answered wrongly, which makes the figure invalid.
pub(super) fn check(pairs: &Pairs) -> Result<(), Failure> {
    let windows = pairs.kept.iter().flat_map(|pair| [Some(&pair.library), pair.baseline.as_ref()]);
    for window in windows.flatten() {
        if let Some(failure) = window.failures.first() {
            return Err(Failure::because(failure));
        }
        if window.mismatched > 0 {
            let count = window.mismatched;
            return Err(Failure::because(format!("{count} answers were wrong")));
        }
    }
    Ok(())
}

impl LossFigure {
    pub(super) fn new(
        plan: &LossPlan,
        test_bed: &TestBed,
        (recovery, loss): (Recovery, f64),
        pairs: Pairs,
    ) -> Result<Self, Failure> {
        let list: Vec<[Window; 2]> = pairs.kept.into_iter().filter_map(both).collect();
        let ratio = |[with, without]: &[Window; 2]| rate(with) / rate(without);
        let (Some(relative), Some(spread)) =
            (median(list.iter().map(ratio)), spread(list.iter().map(ratio)))
        else {
            return Err(Failure::because("there is no pair of windows"));
        };
        let count = list.len();
        let (with, without): (Vec<_>, Vec<_>) = list.into_iter().map(<(_, _)>::from).unzip();
        let (with, without) = (Side::new(&with), Side::new(&without));
        [&with, &without].into_iter().try_for_each(Side::check)?;
        let measurement = plan.measurement();
        Ok(Self {
            network: "veth",
            recovery: name(recovery),
            loss,
            size_bytes: measurement.size,
            in_flight: measurement.in_flight,
            cpus: test_bed.cpus(),
            pairs: count,
            relative,
            spread,
            cost_ns_per_loss: with.cost_ns_per_loss(&without),
            with,
            without,
        })
    }
}

fn both(pair: Pair) -> Option<[Window; 2]> {
    Some([pair.library, pair.baseline?])
}

fn rate(window: &Window) -> f64 {
    window.bits_per_second()
}

impl Side {
    fn new(windows: &[Window]) -> Self {
        let sum = |of: fn(&Window) -> u64| windows.iter().map(of).sum();
        Self {
            goodput_gbit: median(windows.iter().map(rate)).unwrap_or(0.0) / 1e9,
            answered: sum(|window| window.checked),
            elapsed_ns: sum(|window| window.elapsed_ns),
            sent: sum(|window| window.traffic.datagrams),
            arrived: sum(|window| window.packets.arrived),
            dropped: sum(|window| window.packets.dropped),
            dropped_requests: sum(|window| window.packets.dropped_requests),
            dropped_by_kernel: sum(|window| window.traffic.dropped_by_kernel),
            retransmissions: sum(|window| window.traffic.retransmissions),
            duplicates: sum(|window| window.traffic.duplicates),
            timeouts: sum(|window| window.traffic.timeouts),
            probes: sum(|window| window.traffic.probes),
            found_early: sum(|window| window.traffic.found_early),
            latency: latency(windows),
        }
    }

    /// Returns an error if packets and datagrams differ in number: then a drop would not hit a single
    /// packet.
    fn check(&self) -> Result<(), Failure> {
        let Self { sent, arrived, .. } = self;
        // Packets may be in flight when the counters are read, and a busy host drops some before the
        // rules apply. If runs of datagrams arrived uncut, the number would be smaller by a factor.
        if (sent / 2..=sent + sent / 100 + 100).contains(arrived) || *sent < 100 {
            return Ok(());
        }
        let text = format!(
            "{sent} datagrams were sent, and {arrived} packets arrived: the devices pass on runs of \
             datagrams, or something else sends"
        );
        Err(Failure::because(text))
    }

    fn cost_ns_per_loss(&self, without: &Self) -> Option<f64> {
        let per_answer = without.elapsed_ns as f64 / without.answered.max(1) as f64;
        let more_ns = self.elapsed_ns as f64 - per_answer * self.answered as f64;
        (self.dropped > 0).then(|| more_ns / self.dropped as f64)
    }
}

fn latency(windows: &[Window]) -> Option<LatencySummary> {
    let mut all = Latencies::default();
    windows.iter().filter_map(|window| window.latencies.as_ref()).for_each(|one| all.add(one));
    all.summary()
}

#[cfg(test)]
mod tests {
    use super::*;
    use petrel_bench::measure::window::Packets;

    fn window(answered: u64, elapsed_ns: u64, dropped: u64) -> Window {
        let mut window = Window::new(None);
        (window.checked, window.bytes, window.elapsed_ns) =
            (answered, answered * 1_000, elapsed_ns);
        window.packets = Packets { arrived: 10 * answered, dropped, dropped_requests: dropped };
        window.traffic.datagrams = 10 * answered;
        window
    }

    #[test]
    fn cost__is_the_time_beyond_that_of_the_same_answers_without_loss() {
        let without = Side::new(&[window(10, 1_000, 0), window(30, 3_000, 0)]);
        let with = Side::new(&[window(5, 700, 4)]);
        assert_eq!(with.cost_ns_per_loss(&without), Some(50.0));
        assert_eq!(without.cost_ns_per_loss(&without), None);
    }

    #[test]
    fn check__finds_runs_of_datagrams_and_strangers() {
        let side = Side::new(&[window(1_000, 1, 0)]);
        side.check().unwrap();
        for arrived in [1_000, 11_000] {
            let side = Side { arrived, ..side.clone() };
            assert!(side.check().unwrap_err().to_string().contains("10000 datagrams"));
        }
    }

    #[test]
    fn check__takes_no_window_with_a_wrong_answer() {
        for mismatched in [0, 1] {
            let mut without = window(1, 1, 0);
            without.mismatched = mismatched;
            let (library, baseline) = (window(1, 1, 0), Some(without));
            let pair = Pair { library, baseline, distance: None, line_ns: None };
            let pairs = Pairs { kept: vec![pair], dropped: Vec::new() };
            assert_eq!(check(&pairs).is_ok(), mismatched == 0);
        }
    }
}
