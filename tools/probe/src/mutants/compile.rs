//! The shared build of all mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::copy::{CompileError, Copy};
use super::steps::{STEPS, Step};
use crate::Outcome;
use crate::build::{Artifacts, Build};
use crate::child::{End, Program};
use crate::failure::Failure;

/// Most builds until all invalid mutants are removed: the compiler finds some only after the removal of
/// others.
const ROUNDS_MAX: usize = 24;

/// All tests except those of threads under a model checker.
const TESTS: &str = "test --no-run --lib --test all --test congestion --test corpus \
    --test memory_returned --test nexus_descriptors --test attacks \
    --example worlds --example nexus_worlds \
    -p petrel-proto -p petrel-transport -p petrel-rpc -p petrel-sim";

/// Tests of threads under a model checker, built with special flags.
const TESTS_ON_THREADS: &str = "test --no-run -p petrel-rpc --test threads";

/// Most time for a step without a mutant.
const CONTROL_MAX: Duration = Duration::from_secs(900);

/// The copy of the workspace, and the programs built from it.
pub(super) struct World {
    pub(super) copy: Copy,
    pub(super) logs: PathBuf,
    artifacts: Artifacts,
    with_threads: bool,
}

/// The result of a step without a mutant.
pub(super) struct Control {
    pub(super) took: Duration,
    /// Mutants whose places the step executes.
    pub(super) reached: BTreeSet<u32>,
}

#[derive(Deserialize)]
struct Line {
    reason: String,
    message: Option<Diagnostic>,
}

#[derive(Deserialize)]
struct Diagnostic {
    level: String,
    message: String,
    spans: Vec<Span>,
    #[serde(default)]
    children: Vec<Diagnostic>,
}

#[derive(Deserialize)]
struct Span {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
}

impl World {
    /// Copies the workspace, and builds all of its tests with all mutants, on request also the tests of
    /// threads.
    pub(super) fn build(from: &Path, with_threads: bool) -> Outcome<Self> {
        let target = from.join("target/mutants");
        let logs = target.join("logs");
        std::fs::create_dir_all(&logs).map_err(Failure::io(format!("{}", logs.display())))?;
        let mut copy = Copy::make(from, target.join("copy"))?;
        let (all, equivalent) = (copy.mutants.len(), copy.equivalent_count());
        eprintln!("{all} mutants, {equivalent} of which are judged to make no difference");
        let root = copy.root.clone();
        let on_threads = Build {
            root: &root,
            target: target.join("threads"),
            variables: flags("--cfg shuttle"),
        };
        let build = Build { root: &root, target: target.join("build"), variables: flags("") };
        leave_out_what_does_not_compile(&build, &mut copy)?;
        if with_threads {
            leave_out_what_does_not_compile(&on_threads, &mut copy)?;
        }
        let mut artifacts = Artifacts::default();
        build.run(&words(TESTS), &mut artifacts)?;
        if with_threads {
            on_threads.run(&words(TESTS_ON_THREADS), &mut artifacts)?;
        }
        Ok(Self { copy, logs, artifacts, with_threads })
    }

    /// Returns the program of a step.
    pub(super) fn program(
        &self,
        step: &Step,
        variable: (&'static str, String),
    ) -> Outcome<Program> {
        let artifact = self.artifacts.get(step.package, step.target)?.clone();
        let arguments = step.arguments.iter().map(|word| (*word).to_owned()).collect();
        let directory = artifact.directory;
        let (path, variables, ends_at) = (artifact.path, vec![variable], Some(" ... FAILED\n"));
        Ok(Program { path, directory, arguments, variables, ends_at })
    }

    /// Runs every step without a mutant. The step must pass, and reports the executed places.
    pub(super) fn reach(&self) -> Outcome<BTreeMap<Step, Control>> {
        let mut controls = BTreeMap::new();
        for step in STEPS.into_iter().filter(|step| self.with_threads || !step.is_of_threads()) {
            let file = self.logs.join(format!("{}.reached", step.name.replace(' ', "-")));
            // On the first run the file does not exist.
            let _ = std::fs::remove_file(&file);
            let log = self.logs.join("control.log");
            let variable = ("PETREL_REACH", file.to_string_lossy().into_owned());
            let ran = self.program(&step, variable)?.run(CONTROL_MAX, &log)?;
            if ran.end != End::Passed {
                return Err(Failure::Control { step: step.name.to_owned(), log });
            }
            let reached = numbers(&std::fs::read(&file).unwrap_or_default());
            let (seconds, count) = (ran.took.as_secs_f64(), reached.len());
            if count == 0 {
                return Err(Failure::Idle(step.name.to_owned()));
            }
            eprintln!("{}: {seconds:.1} s, comes to {count} mutants", step.name);
            controls.insert(step, Control { took: ran.took, reached });
        }
        Ok(controls)
    }
}

/// Parses the runtime's output: numbers of four bytes.
fn numbers(bytes: &[u8]) -> BTreeSet<u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Returns the environment of a build of mutants; lints are capped, because mutants make much code
/// unused or unreachable.
fn flags(more: &str) -> Vec<(&'static str, String)> {
    vec![
        ("RUSTFLAGS", format!("--cap-lints allow {more}")),
        ("CARGO_PROFILE_DEV_DEBUG", "none".to_owned()),
        ("CARGO_INCREMENTAL", "1".to_owned()),
    ]
}

/// Checks the libraries repeatedly, and removes mutants until the compiler reports no error.
fn leave_out_what_does_not_compile(build: &Build<'_>, copy: &mut Copy) -> Outcome<()> {
    for _ in 0..ROUNDS_MAX {
        let arguments = words("check -p petrel-rpc --lib --keep-going");
        let errors = errors(&build.check(&arguments)?);
        if errors.is_empty() {
            let (all, dropped) = (copy.mutants.len(), copy.dropped_count());
            eprintln!("{dropped} of {all} mutants do not compile");
            return Ok(());
        }
        let dropped = copy.drop_blamed(&errors)?;
        eprintln!("{} errors: {dropped} mutants are left out", errors.len());
        if dropped == 0 {
            break;
        }
    }
    Err(Failure::Build)
}

fn errors(lines: &str) -> Vec<CompileError> {
    let parsed = lines.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    let messages = parsed.filter(|line| line.reason == "compiler-message");
    let errors = messages.filter_map(|line| line.message).filter(|m| m.level == "error");
    errors.filter(|error| !error.spans.is_empty()).map(|error| error.located()).collect()
}

impl Diagnostic {
    fn located(self) -> CompileError {
        let place = |span: &Span| -> (String, Range<usize>) {
            (span.file_name.clone(), span.byte_start..span.byte_end)
        };
        let primary = self.spans.iter().filter(|span| span.is_primary).map(place).collect();
        let notes = self.children.iter().flat_map(|child| &child.spans);
        let others = self.spans.iter().filter(|span| !span.is_primary).chain(notes);
        CompileError { text: self.message, primary, secondary: others.map(place).collect() }
    }
}
