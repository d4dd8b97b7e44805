//! Planted defects: every defect must be found by its named test.

mod detectors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use petrel_planted::{Defect, VARIABLE, defects};

use crate::Outcome;
use crate::build::{self, Artifacts, Build};
use crate::child::{End, Limits, Program};
use crate::failure::Failure;
use crate::table::table;
use detectors::{PACKAGES, Step, steps_of};

/// Break the library and the services in known ways, one at a time, and report the tests that find the
/// defects
///
/// There is one build, with `--cfg petrel_break`, and a separate target directory. Every test first runs
/// without a defect, and has to pass. Then the tests of every defect run in the order of `--list`, up to
/// the first that fails, or hangs. The exit code is 1 if a defect survives all of its tests.
#[derive(Debug, Args)]
pub(crate) struct PlantedArgs {
    /// Only these defects
    #[arg(value_name = "DEFECT")]
    only: Vec<String>,

    /// Print the defects and their tests, and run nothing
    #[arg(long)]
    list: bool,

    /// Continue after the first test that finds a defect, to see which other tests find it
    #[arg(long)]
    all_tests: bool,
}

/// Time limit of a test with a defect: a multiple of its time without a defect, but at least
/// `LIMIT_MIN`.
const SLOWER_MAX: u32 = 10;
const LIMIT_MIN: Duration = Duration::from_secs(20);

/// Time limit of a test without a defect.
const CONTROL_MAX: Duration = Duration::from_secs(1_200);

pub(crate) fn run(args: &PlantedArgs) -> Outcome {
    let defects = chosen(&args.only)?;
    if args.list {
        list(&defects);
        return Ok(ExitCode::SUCCESS);
    }
    let probe = Probe::build(&build::workspace()?, &defects)?;
    let limits = probe.control(&defects)?;
    let mut table = table(&["defect", "found by", "what it says", "seconds"]);
    let mut living = 0;
    for defect in &defects {
        let found = probe.look_for(defect, &limits, args.all_tests)?;
        living += usize::from(found.is_empty());
        if found.is_empty() {
            eprintln!("{} LIVES", defect.name);
            table.add_row([defect.name, "NOTHING", defect.says, ""]);
        }
        for Found { by, says, took } in found {
            let seconds = format!("{:.1}", took.as_secs_f64());
            eprintln!("{} found by {by} in {seconds} s: {says}", defect.name);
            table.add_row([defect.name, &by, &says, &seconds]);
        }
    }
    println!("{table}");
    println!("{} of {} planted defects were found.", defects.len() - living, defects.len());
    Ok(if living == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(only: &[String]) -> Outcome<Vec<Defect>> {
    let unknown = only.iter().find(|name| defects().all(|defect| defect.name != **name));
    if let Some(name) = unknown {
        return Err(Failure::UnknownDefect(name.clone()));
    }
    let is_chosen = |defect: &Defect| only.is_empty() || only.iter().any(|o| o == defect.name);
    Ok(defects().filter(is_chosen).collect())
}

fn list(defects: &[Defect]) {
    let mut table = table(&["defect", "what goes wrong", "looked for by"]);
    for defect in defects {
        let steps: Vec<String> = steps_of(defect).iter().map(Step::to_string).collect();
        table.add_row([defect.name, defect.says, &steps.join("\n")]);
    }
    println!("{table}");
}

/// The build, and the directory of the logs.
struct Probe {
    artifacts: Artifacts,
    logs: PathBuf,
}

/// A step that found a defect.
struct Found {
    by: String,
    says: String,
    took: Duration,
}

impl Probe {
    fn build(root: &Path, defects: &[Defect]) -> Outcome<Self> {
        let target = root.join("target/planted");
        let logs = target.join("logs");
        std::fs::create_dir_all(&logs).map_err(Failure::io(format!("{}", logs.display())))?;
        let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
        let flags = format!("{flags} --cfg petrel_break");
        let variables = |flags| vec![("RUSTFLAGS", flags), ("CARGO_INCREMENTAL", "0".to_owned())];
        let (of_threads, others): (Vec<Step>, Vec<Step>) =
            defects.iter().flat_map(steps_of).partition(|step| *step == Step::Threads);
        let mut artifacts = Artifacts::default();
        if !of_threads.is_empty() {
            // The library on a model checker's threads needs special flags, and a separate target
            // directory.
            let target = target.join("threads");
            let variables = variables(format!("{flags} --cfg shuttle"));
            let arguments = ["test", "--no-run", "-p", "petrel-rpc", "--test", "threads"];
            let build = Build { root, target, variables };
            build.run(&arguments.map(str::to_owned), &mut artifacts)?;
        }
        if !others.is_empty() {
            let build = Build { root, target, variables: variables(flags) };
            let targets = ["--lib", "--test", "all", "--example", "worlds"];
            let examples = ["--example", "seeds"];
            let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
            let arguments = ["test", "--no-run"].into_iter().chain(targets).chain(examples);
            let arguments: Vec<String> = arguments.chain(packages).map(str::to_owned).collect();
            build.run(&arguments, &mut artifacts)?;
        }
        Ok(Self { artifacts, logs })
    }

    /// Runs every test without a defect, which must pass. Returns the time limits with a defect.
    fn control(&self, defects: &[Defect]) -> Outcome<BTreeMap<Step, Duration>> {
        let mut limits = BTreeMap::new();
        for step in defects.iter().flat_map(steps_of) {
            if limits.contains_key(&step) {
                continue;
            }
            let log = self.logs.join("control.log");
            let ran = self.program(&step, "")?.run(Limits::wall(CONTROL_MAX), &log)?;
            if ran.end != End::Passed || !step.has_run(&read(&log)) {
                return Err(Failure::Control { step: step.to_string(), log });
            }
            eprintln!("without a defect: {step} passes in {:.1} s", ran.took.as_secs_f64());
            limits.insert(step, (ran.took * SLOWER_MAX).max(LIMIT_MIN));
        }
        Ok(limits)
    }

    fn look_for(
        &self,
        defect: &Defect,
        limits: &BTreeMap<Step, Duration>,
        by_all: bool,
    ) -> Outcome<Vec<Found>> {
        let mut found = Vec::new();
        for step in steps_of(defect) {
            let log = self.logs.join(format!("{}.log", defect.name));
            let limit = limits.get(&step).copied().unwrap_or(LIMIT_MIN);
            let ran = self.program(&step, defect.name)?.run(Limits::wall(limit), &log)?;
            let says = match ran.end {
                End::Passed => continue,
                End::Failed => step.first_sign(&read(&log)),
                End::TooLong => format!("not over after {} s", limit.as_secs()),
            };
            found.push(Found { by: step.to_string(), says, took: ran.took });
            if !by_all {
                break;
            }
        }
        Ok(found)
    }

    fn program(&self, step: &Step, defect: &str) -> Outcome<Program> {
        let (package, target, arguments) = step.program();
        let artifact = self.artifacts.get(package, target)?.clone();
        let variables = vec![(VARIABLE, defect.to_owned())];
        let (path, directory, ends_at) = (artifact.path, artifact.directory, Some(" ... FAILED\n"));
        Ok(Program { path, directory, arguments, variables, ends_at })
    }
}

/// Returns the output; empty if the log is unreadable, as after a full disk.
fn read(log: &Path) -> String {
    std::fs::read(log).map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into())
}
