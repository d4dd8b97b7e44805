//! The shared build of all mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::copy::{CompileError, Copy};
use super::crates::CRATES;
use super::judge::{fail_alone, failed_tests};
use super::steps::{Chosen, STEPS, Step};
use crate::Outcome;
use crate::build::{Artifacts, Build};
use crate::child::{End, Limits, Program};
use crate::failure::Failure;

/// Most builds until all invalid mutants are removed: the compiler finds some only after the removal of
/// others.
const ROUNDS_MAX: usize = 24;

/// Tests of threads under a model checker, built with special flags.
const TESTS_ON_THREADS: &str = "test --no-run -p petrel-rpc --test threads";

/// Most time for a step without a mutant.
const CONTROL_MAX: Duration = Duration::from_secs(900);

/// The copy of the workspace, and the programs built from it.
pub(super) struct World {
    pub(super) copy: Copy,
    pub(super) logs: PathBuf,
    artifacts: Artifacts,
    steps: Vec<Step>,
}

/// The result of a step without a mutant.
pub(super) struct Control {
    pub(super) took: Duration,
    pub(super) cpu: Duration,
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
    /// Copies the workspace, and builds the chosen steps of the chosen crates with all mutants.
    pub(super) fn build(from: &Path, crates: &[&str], chosen: &Chosen) -> Outcome<Self> {
        let is_met = |step: &Step| step.crates.iter().any(|name| crates.contains(name));
        let steps: Vec<Step> =
            STEPS.into_iter().filter(|step| is_met(step) && chosen.has(step)).collect();
        let target = from.join("target/mutants");
        let logs = target.join("logs");
        std::fs::create_dir_all(&logs).map_err(Failure::io(format!("{}", logs.display())))?;
        let mut copy = Copy::make(from, target.join("copy"), crates)?;
        let (all, equivalent) = (copy.chosen().count(), copy.equivalent_count());
        eprintln!("{all} mutants, {equivalent} of which are judged to make no difference");
        let root = copy.root.clone();
        let on_threads = Build {
            root: &root,
            target: target.join("threads"),
            variables: flags("--cfg shuttle"),
        };
        let build = Build { root: &root, target: target.join("build"), variables: flags("") };
        leave_out_what_does_not_compile(&build, &mut copy, crates)?;
        let with_threads = steps.iter().any(Step::is_of_threads);
        if with_threads {
            leave_out_what_does_not_compile(&on_threads, &mut copy, &["petrel-rpc"])?;
        }
        let mut artifacts = Artifacts::default();
        build.run(&tests_of(&steps), &mut artifacts)?;
        if with_threads {
            on_threads.run(&words(TESTS_ON_THREADS), &mut artifacts)?;
        }
        Ok(Self { copy, logs, artifacts, steps })
    }

    /// Returns the steps that a mutant may meet.
    pub(super) fn steps_of(&self, id: u32) -> impl Iterator<Item = &Step> {
        let name = CRATES[self.copy.mutants[id as usize].crate_].name;
        self.steps.iter().filter(move |step| step.crates.contains(&name))
    }

    /// Returns all steps of the chosen crates.
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

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
        for step in self.steps.iter().copied() {
            let file = self.logs.join(format!("{}.reached", step.name.replace(' ', "-")));
            // On the first run the file does not exist.
            let _ = std::fs::remove_file(&file);
            let log = self.logs.join("control.log");
            let variable = ("PETREL_REACH", file.to_string_lossy().into_owned());
            let program = Program { ends_at: None, ..self.program(&step, variable)? };
            let limits = Limits::wall(CONTROL_MAX);
            let ran = program.run(limits, &log)?;
            let failed = failed_tests(&log);
            let passes = match ran.end {
                End::Passed => true,
                End::TooLong => false,
                // On a busy machine a test of real transports may fail by chance.
                End::Failed => {
                    step.is_real
                        && !failed.is_empty()
                        && !fail_alone(&program, &failed, limits, &log)?
                }
            };
            if !passes {
                return Err(Failure::Control { step: step.name.to_owned(), log });
            }
            let reached = numbers(&std::fs::read(&file).unwrap_or_default());
            let (seconds, cpu, count) =
                (ran.took.as_secs_f64(), ran.cpu.as_secs_f64(), reached.len());
            if count == 0 {
                return Err(Failure::Idle(step.name.to_owned()));
            }
            eprintln!("{}: {seconds:.1} s, {cpu:.1} of a CPU, {count} mutants", step.name);
            controls.insert(step, Control { took: ran.took, cpu: ran.cpu, reached });
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

/// Returns the arguments of cargo for a build of the steps, except threads under a model checker.
fn tests_of(steps: &[Step]) -> Vec<String> {
    let mut arguments = BTreeSet::new();
    for step in steps.iter().filter(|step| !step.is_of_threads()) {
        arguments.insert(format!("-p {}", step.package_name()));
        arguments.insert(match step.target {
            "lib" => "--lib".to_owned(),
            example @ ("worlds" | "nexus_worlds" | "seeds") => format!("--example {example}"),
            test => format!("--test {test}"),
        });
    }
    let arguments = arguments.iter().flat_map(|argument| words(argument));
    words("test --no-run").into_iter().chain(arguments).collect()
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
fn leave_out_what_does_not_compile(
    build: &Build<'_>,
    copy: &mut Copy,
    crates: &[&str],
) -> Outcome<()> {
    let mut arguments = words("check --lib --keep-going");
    arguments.extend(crates.iter().flat_map(|name| ["-p".to_owned(), (*name).to_owned()]));
    for _ in 0..ROUNDS_MAX {
        let (passes, lines) = build.check(&arguments)?;
        let errors = errors(&lines);
        if errors.is_empty() && !passes {
            break;
        }
        if errors.is_empty() {
            let (all, dropped) = (copy.chosen().count(), copy.dropped_count());
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
