//! The part of the library that every kind of test executes.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use clap::Args;

use super::compile::World;
use super::crates::LIBRARY;
use super::report::area;
use super::steps::Chosen;
use crate::table::table;
use crate::{Outcome, build};

/// Show the share of mutable places that every kind of test executes
///
/// The build is the build of `mutants`. A place that no test executes can hide any defect.
#[derive(Debug, Args)]
pub(crate) struct ReachArgs {
    #[command(flatten)]
    chosen: Chosen,

    /// Also list the lines that no test executes
    #[arg(long)]
    unreached: bool,
}

pub(crate) fn run(args: &ReachArgs) -> Outcome {
    let world = World::build(&build::workspace()?, LIBRARY, &args.chosen)?;
    let controls = world.reach()?;
    let steps: Vec<_> =
        world.steps().iter().filter_map(|step| Some((step, controls.get(step)?))).collect();
    let mut areas: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    let mut unreached = BTreeSet::new();
    for mutant in world.copy.built() {
        let counts = areas.entry(area(&mutant.file)).or_insert_with(|| vec![0; steps.len() + 2]);
        counts[0] += 1;
        let mut is_reached = false;
        for (place, (_, control)) in steps.iter().enumerate() {
            let comes = control.reached.contains(&mutant.id);
            is_reached |= comes;
            counts[place + 1] += usize::from(comes);
        }
        counts[steps.len() + 1] += usize::from(is_reached);
        if !is_reached {
            unreached.insert((&mutant.file, mutant.line, &mutant.source));
        }
    }
    let names = steps.iter().map(|(step, _)| step.name);
    let header: Vec<&str> = ["area", "mutants"].into_iter().chain(names).chain(["any"]).collect();
    let mut shares = table(&header);
    for (area, counts) in &areas {
        let share = |count: &usize| format!("{} %", 100 * count / counts[0].max(1));
        let cells = [area.clone(), counts[0].to_string()].into_iter();
        shares.add_row(cells.chain(counts[1..].iter().map(share)));
    }
    println!("{shares}");
    if args.unreached {
        for (file, line, source) in unreached {
            println!("{file}:{line}: {source}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
