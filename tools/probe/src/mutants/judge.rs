//! Runs mutants, and determines the successful steps.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::compile::{Control, World};
use super::steps::Step;
use crate::Outcome;
use crate::child::{End, Limits, Program};

/// Limit of a step's CPU time with a mutant: a multiple of the slow recording run, and `CPU_MORE`.
const CPU_TIMES: u32 = 2;
const CPU_MORE: Duration = Duration::from_secs(15);

/// Limit of the time on the clock, for mutants waiting for ever: generous, because the CPUs may be busy.
const WALL_TIMES: u32 = 4;
const WALL_MORE: Duration = Duration::from_secs(60);

/// The result of a mutant.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) id: u32,
    pub(super) end: Verdicts,
    /// All successful steps: at most the first if not all run.
    pub(super) by: Vec<&'static str>,
    /// The name of the test that found the mutant.
    pub(super) says: String,
    pub(super) took: Duration,
}

/// The outcome of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdicts {
    /// Found by this step.
    Found(&'static str),
    /// The step took too long with the mutant.
    Hangs(&'static str),
    /// No step has found the mutant.
    Lives,
    /// No step executes the mutant's place.
    NotReached,
}

impl Verdict {
    pub(super) fn is_found(&self) -> bool {
        matches!(self.end, Verdicts::Found(_) | Verdicts::Hangs(_))
    }
}

/// Runs these mutants, several at a time: up to the first successful step, or, for a `matrix`, against
/// all steps.
pub(super) fn all(
    world: &World,
    controls: &BTreeMap<Step, Control>,
    ids: &[u32],
    jobs: usize,
    matrix: bool,
) -> Outcome<Vec<Verdict>> {
    let queue: Mutex<VecDeque<u32>> = Mutex::new(ids.iter().copied().collect());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> Outcome<Vec<Verdict>> {
        let mut verdicts = Vec::new();
        while let Some(id) = next() {
            let verdict = judge(world, controls, id, matrix)?;
            eprintln!("{id}: {:?} {}", verdict.end, verdict.says);
            verdicts.push(verdict);
        }
        Ok(verdicts)
    };
    let mut verdicts = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            verdicts.extend(done?);
        }
        Ok(())
    })?;
    verdicts.sort_by_key(|verdict| verdict.id);
    Ok(verdicts)
}

fn judge(
    world: &World,
    controls: &BTreeMap<Step, Control>,
    id: u32,
    matrix: bool,
) -> Outcome<Verdict> {
    let begin = Instant::now();
    let (mut end, mut by, mut says) = (Verdicts::NotReached, Vec::new(), String::new());
    for step in world.steps_of(id) {
        let Some(control) = controls.get(step).filter(|control| control.reached.contains(&id))
        else {
            continue;
        };
        let program = world.program(step, ("PETREL_MUTANT", id.to_string()))?;
        let log = world.logs.join(format!("{id}.log"));
        let cpu = control.cpu * CPU_TIMES + CPU_MORE;
        let limits = Limits { cpu, wall: control.took * WALL_TIMES + WALL_MORE };
        let (found, test) = match program.run(limits, &log)?.end {
            End::Passed => (Verdicts::Lives, None),
            End::TooLong => (Verdicts::Hangs(step.name), None),
            End::Failed => {
                let failed = failed_tests(&log);
                match !step.is_real || fails_again(&program, &failed, limits, &log)? {
                    // The log is that of the last run.
                    true => (Verdicts::Found(step.name), failed_tests(&log).into_iter().next()),
                    false => (Verdicts::Lives, None),
                }
            }
        };
        if by.is_empty() {
            (end, says) = (found, test.unwrap_or_default());
        }
        if found != Verdicts::Lives {
            by.push(step.name);
            if !matrix {
                break;
            }
        }
    }
    Ok(Verdict { id, end, by, says, took: begin.elapsed() })
}

/// Returns true if failed tests fail again alone: on a busy machine a test of real transports may fail
/// without any mutant. The first run ended at the first failure. If the failure was chance, a complete
/// run shows all failures.
fn fails_again(program: &Program, failed: &[String], limits: Limits, log: &Path) -> Outcome<bool> {
    if fail_alone(program, failed, limits, log)? {
        return Ok(true);
    }
    let complete = Program { ends_at: None, ..program.clone() };
    match complete.run(limits, log)?.end {
        End::Passed => Ok(false),
        End::TooLong => Ok(true),
        End::Failed => fail_alone(program, &failed_tests(log), limits, log),
    }
}

pub(super) fn fail_alone(
    program: &Program,
    failed: &[String],
    limits: Limits,
    log: &Path,
) -> Outcome<bool> {
    if failed.is_empty() {
        // The program crashed.
        return Ok(true);
    }
    let mut again = program.clone();
    again.arguments = failed.iter().cloned().chain(["--exact".to_owned()]).collect();
    Ok(again.run(limits, log)?.end != End::Passed)
}

/// Returns the failed tests, according to the program's output.
pub(super) fn failed_tests(log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let name =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    text.lines().filter_map(name).collect()
}
