//! The rows of the table: costs and budgets of the workloads.

use crate::budgets;
use crate::callgrind::Side;
use crate::cost::{self, Cost};
use crate::options::{Options, RUN_AGAIN};
use crate::workload::{Unit, Workload};

/// The most counts of a row.
const COUNTS_MAX: usize = 3;

/// A row of the table: a workload's instructions per unit.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) unit: Unit,
    pub(crate) client: Cost,
    pub(crate) server: Cost,
    pub(crate) budget: u64,
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

/// Counts all requested rows.
///
/// # Errors
/// The failed count, and its cause.
pub(crate) fn count_all(options: &Options) -> Result<Vec<Row>, String> {
    options.rows.iter().map(|workload| count_within(workload)).collect()
}

/// Repeats the count of a row over budget. Work driven by the clock occurs more often on a busy machine, up to half a
/// per cent; instructions added by a change recur in every count.
fn count_within(workload: &'static Workload) -> Result<Row, String> {
    let mut row = count_row(workload)?;
    for _ in 1..COUNTS_MAX {
        if !row.is_over() {
            break;
        }
        let again = count_row(workload)?;
        if again.both() < row.both() {
            row = again;
        }
    }
    Ok(row)
}

fn count_row(workload: &'static Workload) -> Result<Row, String> {
    Ok(Row {
        name: workload.name,
        unit: workload.unit,
        budget: budgets::of(workload.name)?,
        client: cost::of(workload, Side::Client, RUN_AGAIN)?,
        server: cost::of(workload, Side::Server, RUN_AGAIN)?,
    })
}
