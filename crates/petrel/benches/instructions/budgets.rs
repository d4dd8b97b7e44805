//! The committed budgets: the most instructions allowed for a row, client and server together.

use crate::workload::WORKLOADS;

const FILE: &str = include_str!("budgets.txt");

/// Returns the budget of a row.
///
/// # Errors
/// The invalid line of `budgets.txt`, or the row without a budget.
pub(crate) fn of(row: &str) -> Result<u64, String> {
    for (index, line) in FILE.lines().enumerate() {
        let text = line.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let (name, budget) =
            parse(text).map_err(|reason| format!("budgets.txt, line {}: {reason}", index + 1))?;
        if name == row {
            return Ok(budget);
        }
    }
    Err(format!("budgets.txt has no line for {row}"))
}

fn parse(text: &str) -> Result<(&str, u64), String> {
    let (name, budget) = text.split_once(char::is_whitespace).ok_or("a row and its budget")?;
    if !WORKLOADS.iter().any(|workload| workload.name == name) {
        return Err(format!("there is no row {name}"));
    }
    let budget = budget.trim();
    let budget = budget.parse().map_err(|_| format!("`{budget}` is not a whole number"))?;
    Ok((name, budget))
}
