//! The results of mutants, for human readers and for programs.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::copy::Copy;
use super::crates::CRATES;
use super::judge::{Verdict, Verdicts};
use super::steps::{RECORD, Step};
use crate::Outcome;
use crate::failure::Failure;
use crate::table::table;

#[derive(Serialize)]
struct Record<'a> {
    seed: u64,
    found: usize,
    sample: usize,
    mutants: Vec<MutantRecord<'a>>,
}

#[derive(Serialize)]
struct MutantRecord<'a> {
    id: u32,
    file: &'a str,
    line: usize,
    operator: &'a str,
    source: &'a str,
    end: &'static str,
    by: &'static str,
    steps: &'a [&'static str],
    says: &'a str,
    seconds: f64,
}

/// Returns the outcome of a mutant in words, and the step that decided.
fn words(end: Verdicts) -> (&'static str, &'static str) {
    match end {
        Verdicts::Found(by) => ("found", by),
        Verdicts::Hangs(by) => ("hangs", by),
        Verdicts::Lives => ("lives", ""),
        Verdicts::NotReached => ("not reached", ""),
    }
}

/// Returns the directory of a file in its crate's sources: `petrel/nexus` for
/// `crates/petrel/src/nexus/links.rs`.
pub(super) fn area(file: &str) -> String {
    let (crate_, path) = file.split_once("/src/").unwrap_or(("", file));
    let crate_ = crate_.rsplit('/').next().unwrap_or_default();
    let part = path.split('/').next().unwrap_or_default();
    format!("{crate_}/{}", part.trim_end_matches(".rs"))
}

/// Prints the mutants that live, and the sums of every area and crate.
pub(super) fn print(copy: &Copy, verdicts: &[Verdict]) {
    let mut living = table(&["number", "place", "mutant", "source", ""]);
    let mut areas: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    for verdict in verdicts {
        let mutant = &copy.mutants[verdict.id as usize];
        let column = match verdict.end {
            Verdicts::Found(_) => 0,
            Verdicts::Hangs(_) => 1,
            Verdicts::Lives => 2,
            Verdicts::NotReached => 3,
        };
        areas.entry(area(&mutant.file)).or_default()[column] += 1;
        if !verdict.is_found() {
            let place = format!("{}:{}", mutant.file, mutant.line);
            let (end, _) = words(verdict.end);
            living.add_row([
                &verdict.id.to_string(),
                &place,
                &mutant.operator,
                &mutant.source,
                end,
            ]);
        }
    }
    println!("{living}");
    let mut sums = table(&["area", "found", "hangs", "lives", "not reached"]);
    for (area, counts) in &areas {
        sums.add_row(
            [&area[..]].into_iter().map(str::to_owned).chain(counts.map(|n| n.to_string())),
        );
    }
    println!("{sums}");
    let mut shares = table(&["crate", "found", "live", "share"]);
    for (place, one) in CRATES.iter().enumerate() {
        let of_crate = || verdicts.iter().filter(|v| copy.mutants[v.id as usize].crate_ == place);
        let (all, found) = (of_crate().count(), of_crate().filter(|v| v.is_found()).count());
        if let Some(share) = (100 * found).checked_div(all) {
            let (found, live) = (found.to_string(), (all - found).to_string());
            shares.add_row([one.name, &found, &live, &format!("{share} %")]);
        }
    }
    println!("{shares}");
    let found = verdicts.iter().filter(|verdict| verdict.is_found()).count();
    let by_record =
        verdicts.iter().filter(|verdict| verdict.end == Verdicts::Found(RECORD)).count();
    println!(
        "{found} of {} mutants were found, {by_record} of them by the record alone.",
        verdicts.len()
    );
}

/// Prints how many mutants every step finds, and alone finds.
pub(super) fn print_matrix(steps: &[Step], verdicts: &[Verdict]) {
    let mut rows = table(&["step", "finds", "finds alone"]);
    let mut finds_none_alone = Vec::new();
    for step in steps {
        let finds = || verdicts.iter().filter(|verdict| verdict.by.contains(&step.name));
        let alone = finds().filter(|verdict| verdict.by.len() == 1).count();
        rows.add_row([step.name, &finds().count().to_string(), &alone.to_string()]);
        finds_none_alone.extend((alone == 0).then_some(step.name));
    }
    println!("{rows}");
    println!("Steps that find nothing alone: {}.", finds_none_alone.join(", "));
}

pub(super) fn write(copy: &Copy, verdicts: &[Verdict], seed: u64, path: &Path) -> Outcome<()> {
    let record = |verdict: &'_ Verdict| {
        let (mutant, (end, by)) = (&copy.mutants[verdict.id as usize], words(verdict.end));
        (mutant, end, by, verdict.took.as_secs_f64())
    };
    let mutants = verdicts.iter().map(|verdict| {
        let (mutant, end, by, seconds) = record(verdict);
        let (file, line) = (&mutant.file[..], mutant.line);
        let (operator, source, says) =
            (&mutant.operator[..], &mutant.source[..], &verdict.says[..]);
        let (id, steps) = (mutant.id, &verdict.by[..]);
        MutantRecord { id, file, line, operator, source, end, by, steps, says, seconds }
    });
    let found = verdicts.iter().filter(|verdict| verdict.is_found()).count();
    let record = Record { seed, found, sample: verdicts.len(), mutants: mutants.collect() };
    let text =
        serde_json::to_string_pretty(&record).map_err(|error| Failure::io("JSON")(error.into()))?;
    std::fs::write(path, text).map_err(Failure::io(format!("{}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area__is_the_crate_and_its_part() {
        assert_eq!(area("crates/petrel/src/nexus/links.rs"), "petrel/nexus");
        assert_eq!(area("crates/petrel-proto/src/bitmap.rs"), "petrel-proto/bitmap");
    }
}
