//! Computes instructions per RPC or packet from counts of whole runs.

use std::collections::HashMap;

use super::callgrind::{self, Count, Side};
use super::dump::Place;
use super::workload::{Unit, Workload};

/// Instructions of one side, per unit.
pub(crate) struct Cost {
    /// Instructions per unit; without copying if the unit is a packet.
    pub(crate) instructions: f64,
    /// Instructions for copying.
    pub(crate) copying: f64,
    pub(crate) places: HashMap<Place, f64>,
}

/// Counts one side of a workload: the difference between a short and a long run is due to the additional calls. `again`
/// makes this program run a workload: see [`callgrind::count`].
///
/// # Errors
/// Why counting failed.
pub(crate) fn of(workload: &Workload, side: Side, again: &[&str]) -> Result<Cost, String> {
    let short = callgrind::count(workload, workload.calls, side, again)?;
    let long = callgrind::count(workload, 3 * workload.calls, side, again)?;
    let units = match workload.unit {
        Unit::Rpc => 2 * workload.calls,
        Unit::Packet => long.packets - short.packets,
    };
    Ok(difference(&short, &long, workload.unit, units as f64))
}

fn difference(short: &Count, long: &Count, unit: Unit, units: f64) -> Cost {
    let per_unit = |short: u64, long: u64| (long as f64 - short as f64) / units;
    let total = per_unit(short.costs.total, long.costs.total);
    let copying = per_unit(short.costs.copying, long.costs.copying);
    let before = |place: &Place| short.costs.places.get(place).copied().unwrap_or(0);
    let places = long
        .costs
        .places
        .iter()
        .map(|(place, &cost)| (place.clone(), per_unit(before(place), cost)))
        .collect();
    let left_out = if unit == Unit::Packet { copying } else { 0.0 };
    Cost { instructions: total - left_out, copying, places }
}
