//! Runs mutants, and determines the step that finds a mutant.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::compile::{Control, World};
use super::steps::{STEPS, Step};
use crate::Outcome;
use crate::child::{End, Program};

/// Time limit of a step with a mutant: a multiple of the recording run, which is slower than other runs,
/// but at least `LIMIT_MIN`.
const SLOWER_MAX: u32 = 2;
const LIMIT_MIN: Duration = Duration::from_secs(15);

/// The result of a mutant.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) id: u32,
    pub(super) end: Verdicts,
    /// The message of the test that found the mutant.
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

/// Runs these mutants, several at a time.
pub(super) fn all(
    world: &World,
    controls: &BTreeMap<Step, Control>,
    ids: &[u32],
    jobs: usize,
) -> Outcome<Vec<Verdict>> {
    let queue: Mutex<VecDeque<u32>> = Mutex::new(ids.iter().copied().collect());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> Outcome<Vec<Verdict>> {
        let mut verdicts = Vec::new();
        while let Some(id) = next() {
            let verdict = judge(world, controls, id)?;
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

fn judge(world: &World, controls: &BTreeMap<Step, Control>, id: u32) -> Outcome<Verdict> {
    let begin = Instant::now();
    let ended = |end, says| Ok(Verdict { id, end, says, took: begin.elapsed() });
    let mut is_reached = false;
    for step in &STEPS {
        let Some(control) = controls.get(step).filter(|control| control.reached.contains(&id))
        else {
            continue;
        };
        is_reached = true;
        let program = world.program(step, ("PETREL_MUTANT", id.to_string()))?;
        let log = world.logs.join(format!("{id}.log"));
        let limit = control.took * SLOWER_MAX + LIMIT_MIN;
        match program.run(limit, &log)?.end {
            End::Passed => {}
            End::TooLong => return ended(Verdicts::Hangs(step.name), String::new()),
            End::Failed => {
                let failed = failed_tests(&log);
                if !step.is_real || fails_again(&program, &failed, limit, &log)? {
                    let says = failed.first().cloned().unwrap_or_default();
                    return ended(Verdicts::Found(step.name), says);
                }
            }
        }
    }
    ended(if is_reached { Verdicts::Lives } else { Verdicts::NotReached }, String::new())
}

/// Returns true if the failed tests fail again alone: on a busy machine a test of real transports may
/// fail without any mutant.
fn fails_again(program: &Program, failed: &[String], limit: Duration, log: &Path) -> Outcome<bool> {
    if failed.is_empty() {
        // The program crashed.
        return Ok(true);
    }
    let mut again = program.clone();
    again.arguments = failed.iter().take(3).cloned().chain(["--exact".to_owned()]).collect();
    Ok(again.run(limit, log)?.end != End::Passed)
}

/// Returns the failed tests, according to the program's output.
fn failed_tests(log: &Path) -> Vec<String> {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let name =
        |line: &str| Some(line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?.to_owned());
    text.lines().filter_map(name).collect()
}
