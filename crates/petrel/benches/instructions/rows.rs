//! From counts of whole runs to instructions per RPC or packet.

use std::collections::HashMap;

use crate::budgets;
use crate::callgrind::{self, Count, Side};
use crate::dump::Place;
use crate::options::Options;
use crate::workload::{Unit, Workload};

/// A row of the table: a workload's instructions per unit.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) client: Cost,
    pub(crate) server: Cost,
    pub(crate) budget: u64,
}

/// Instructions of one side, per unit.
pub(crate) struct Cost {
    /// Without copying, where the unit is a packet.
    pub(crate) instructions: f64,
    /// Of copying.
    pub(crate) copying: f64,
    pub(crate) places: HashMap<Place, f64>,
}

impl Row {
    pub(crate) fn both(&self) -> f64 {
        self.client.instructions + self.server.instructions
    }

    pub(crate) fn copying(&self) -> f64 {
        self.client.copying + self.server.copying
    }

    pub(crate) fn is_over(&self) -> bool {
        self.both() > self.budget as f64
    }
}

/// Counts all rows that were asked for.
///
/// # Errors
/// What could not be counted, and why.
pub(crate) fn count_all(options: &Options) -> Result<Vec<Row>, String> {
    options.rows.iter().map(|workload| count_row(workload)).collect()
}

fn count_row(workload: &'static Workload) -> Result<Row, String> {
    Ok(Row {
        name: workload.name,
        unit: workload.unit,
        budget: budgets::of(workload.name)?,
        client: count_side(workload, Side::Client)?,
        server: count_side(workload, Side::Server)?,
    })
}

/// A short and a long run differ by what the additional calls take.
fn count_side(workload: &Workload, side: Side) -> Result<Cost, String> {
    let short = callgrind::count(workload, workload.calls, side)?;
    let long = callgrind::count(workload, 3 * workload.calls, side)?;
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
