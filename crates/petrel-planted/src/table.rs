//! All planted defects.

/// The table: a line of name, failure and detectors for each defect, in the order of their names.
const TABLE: &str = include_str!("planted.tsv");

/// A planted defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defect {
    /// The name: the defective part, and the failure.
    pub name: &'static str,
    /// The failure, in one sentence.
    pub says: &'static str,
    /// The tests that look for it, the cheapest first, as `petrel-probe` reads them.
    pub detectors: &'static str,
}

/// Returns all defects, in the order of their names.
///
/// # Panics
/// If a line of the table does not have three columns.
pub fn defects() -> impl Iterator<Item = Defect> {
    TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| {
        match line.split('\t').collect::<Vec<_>>()[..] {
            [name, says, detectors] => Defect { name, says, detectors },
            _ => panic!("a line of planted.tsv has three columns: {line}"),
        }
    })
}
