//! Medians over the windows, separately for near and far CPUs.

use serde::Serialize;

use crate::building::Entry;
use crate::catalog::{Measurement, Waits};
use crate::probe::Distance;
use crate::window::Window;

/// A row of the table: a variant of a peer, at a distance of the CPUs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) peer: &'static str,
    pub(crate) variant: &'static str,
    #[serde(skip)]
    pub(crate) title: &'static str,
    pub(crate) version: Option<String>,
    pub(crate) waits: Waits,
    pub(crate) cores: Distance,
    /// Median of the probes, in nanoseconds.
    pub(crate) probe_ns: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) p999_us: Option<f64>,
    pub(crate) calls_per_second: Option<f64>,
    pub(crate) gbit_per_second_1: Option<f64>,
    pub(crate) gbit_per_second_4: Option<f64>,
    /// Largest share of all CPUs that other programs used in one of the windows.
    pub(crate) others: Option<f64>,
    /// Valid windows.
    pub(crate) windows: usize,
    /// Windows during which the distance changed, at both distances together.
    pub(crate) dropped_windows: usize,
}

/// Returns the rows of the table, in the order of the peers.
pub(crate) fn rows(entries: &[Entry], windows: &[Window]) -> Vec<Row> {
    let pairs = entries.iter().flat_map(|entry| {
        [Distance::Near, Distance::Far].into_iter().map(move |distance| (entry, distance))
    });
    pairs.filter_map(|(entry, distance)| row(entry, distance, windows)).collect()
}

fn row(entry: &Entry, cores: Distance, windows: &[Window]) -> Option<Row> {
    let (peer, variant) = (entry.peer.name, entry.variant.name);
    let own = windows.iter().filter(|window| window.peer == peer && window.variant == variant);
    let counted: Vec<_> = own.clone().filter(|window| window.cores == Some(cores)).collect();
    let told = counted.first()?.outcome.version.clone();
    let of = |measurement, value: &dyn Fn(&Window) -> Option<f64>| {
        let windows = counted.iter().filter(|window| window.measurement == measurement);
        median(&mut windows.filter_map(|window| value(window)).collect::<Vec<_>>())
    };
    let micros = |ns: Option<u64>| ns.map(|ns| ns as f64 / 1e3);
    Some(Row {
        peer,
        variant,
        title: entry.variant.title,
        version: told.or_else(|| entry.version.clone()),
        waits: entry.variant.waits,
        cores,
        probe_ns: median(&mut counted.iter().flat_map(|one| one.probes_ns).collect::<Vec<_>>()),
        p50_us: of(Measurement::Latency, &|window| micros(window.outcome.p50_ns)),
        p99_us: of(Measurement::Latency, &|window| micros(window.outcome.p99_ns)),
        p999_us: of(Measurement::Latency, &|window| micros(window.outcome.p999_ns)),
        calls_per_second: of(Measurement::Rate, &|window| Some(window.outcome.calls_per_second)),
        gbit_per_second_1: of(Measurement::Bandwidth1, &gbit),
        gbit_per_second_4: of(Measurement::Bandwidth4, &gbit),
        others: counted.iter().filter_map(|window| window.others).reduce(f64::max),
        windows: counted.len(),
        dropped_windows: own.filter(|window| window.cores.is_none()).count(),
    })
}

fn gbit(window: &Window) -> Option<f64> {
    Some(window.outcome.gbit_per_second)
}

/// Returns the median; for an even number of values the mean of the two in the middle.
pub(crate) fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median__of_any_number() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
