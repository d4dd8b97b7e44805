//! The choice of the next thread.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use crate::rng::Rng;
use crate::spec::Spec;

/// The world's main thread is the first task, and starts the timekeeper before all others.
const TIMEKEEPER: usize = 1;

/// Consecutive steps of a thread while others could run: loops that wait for another thread end.
const STREAK_MAX: usize = 2_000;

/// Steps for which a thread is held.
const HOLD_STEPS: usize = 400;

/// In worlds whose clock may jump, it advances once in this number of steps, even during work.
const CLOCK_JUMP_ODDS: usize = 400;

/// Parked threads may be chosen once in this number of steps.
const SPURIOUS: usize = 200;

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the seed of the execution on this thread of the operating system.
pub(crate) fn current_seed() -> u64 {
    SEED.get()
}

/// How the next thread is chosen.
#[derive(Debug)]
enum Manner {
    /// Any thread, each time.
    Even,
    /// The same thread goes on, except once in this number of steps.
    Sticky(usize),
    /// The thread of the highest priority; once in this number of steps it gets the lowest (PCT: Burckhardt et al.,
    /// ASPLOS 2010, with random changes in place of a known number of steps).
    Ranked(usize),
}

/// Assigns a seed to each execution, and chooses by the seed.
#[derive(Debug)]
pub(crate) struct Chooser {
    seeds: Range<u64>,
    rng: Rng,
    manner: Manner,
    clock_may_jump: bool,
    /// Once in this number of steps the running thread is held for long, if another can run. The others come to rest
    /// while it is in the middle of an operation.
    holds: Option<usize>,
    held: Option<(usize, usize)>,
    /// Priorities by task; the lowest number runs first.
    ranks: BTreeMap<usize, u64>,
    last_rank: u64,
    last: usize,
    streak: usize,
}

impl Chooser {
    pub(crate) fn new(seeds: Range<u64>) -> Self {
        Self {
            seeds,
            rng: Rng::new(0),
            manner: Manner::Even,
            clock_may_jump: false,
            holds: None,
            held: None,
            ranks: BTreeMap::new(),
            last_rank: 0,
            last: 0,
            streak: 0,
        }
    }

    fn rank(&mut self, task: usize) -> u64 {
        let rng = &mut self.rng;
        *self.ranks.entry(task).or_insert_with(|| rng.next() >> 32)
    }

    /// Gives a task the lowest priority.
    fn demote(&mut self, task: usize) {
        self.last_rank += 1;
        self.ranks.insert(task, (1 << 32) + self.last_rank);
    }

    fn choose(&mut self, runnable: &[usize], current: Option<usize>, yields: bool) -> usize {
        let goes_on = current.filter(|task| runnable.contains(task) && !yields);
        match self.manner {
            Manner::Even => self.rng.pick(runnable),
            Manner::Sticky(switch) => match goes_on {
                Some(current) if !self.rng.once_in(switch) => current,
                _ => self.rng.pick(runnable),
            },
            Manner::Ranked(change) => {
                if let Some(current) = current
                    && (yields || self.rng.once_in(change))
                {
                    self.demote(current);
                }
                let ranked = runnable.iter().copied().map(|task| (self.rank(task), task));
                ranked.min().map_or(runnable[0], |(_, task)| task)
            }
        }
    }

    /// Returns the runnable threads, except a held one.
    fn without_held(&mut self, ready: Vec<usize>, current: Option<usize>) -> Vec<usize> {
        if self.held.is_none()
            && let (Some(holds), Some(current)) = (self.holds, current)
            && self.rng.once_in(holds)
        {
            self.held = Some((current, HOLD_STEPS));
        }
        let Some((held, left)) = &mut self.held else { return ready };
        let others: Vec<usize> = ready.iter().copied().filter(|task| task != held).collect();
        *left -= 1;
        if *left == 0 || others.is_empty() {
            self.held = None;
        }
        if others.is_empty() { ready } else { others }
    }

    /// Limits the consecutive steps of a thread.
    fn limit(&mut self, chosen: usize, runnable: &[usize]) -> usize {
        if chosen != self.last {
            (self.last, self.streak) = (chosen, 0);
        }
        self.streak += 1;
        if self.streak < STREAK_MAX || runnable.len() == 1 {
            return chosen;
        }
        self.demote(chosen);
        self.streak = 0;
        let others: Vec<usize> = runnable.iter().copied().filter(|task| *task != chosen).collect();
        self.rng.pick(&others)
    }
}

fn ids_of(tasks: &[&Task]) -> Vec<usize> {
    tasks.iter().map(|task| usize::from(task.id())).collect()
}

impl Scheduler for Chooser {
    fn new_execution(&mut self) -> Option<Schedule> {
        let seed = self.seeds.next()?;
        SEED.set(seed);
        // Another stream than the world's.
        self.rng = Rng::new(!seed);
        self.manner = match self.rng.below(4) {
            0 => Manner::Even,
            1 => Manner::Sticky(self.rng.pick(&[4, 16, 64])),
            _ => Manner::Ranked(self.rng.pick(&[20, 100, 1_000])),
        };
        (self.holds, self.held) = (self.rng.pick(&[None, Some(50), Some(300), Some(1_000)]), None);
        self.clock_may_jump = Spec::draw(seed).clock_may_jump;
        self.ranks.clear();
        (self.last_rank, self.last, self.streak) = (0, 0, 0);
        Some(Schedule::new(seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        // Includes parked threads: `park` may return spuriously.
        let (ready, parked): (Vec<&Task>, Vec<&Task>) =
            runnable.iter().partition(|task| task.runnable());
        let mut others = ids_of(&ready);
        others.retain(|id| *id != TIMEKEEPER);
        let is_time = others.is_empty()
            || (others.len() < ready.len()
                && self.clock_may_jump
                && self.rng.once_in(CLOCK_JUMP_ODDS));
        others = self.without_held(others, current.map(usize::from));
        if !parked.is_empty() && self.rng.once_in(SPURIOUS) {
            others.extend(ids_of(&parked));
        }
        let chosen = match is_time {
            true => TIMEKEEPER,
            false => {
                let chosen = self.choose(&others, current.map(usize::from), is_yielding);
                self.limit(chosen, &others)
            }
        };
        Some(TaskId::from(chosen))
    }

    fn next_u64(&mut self) -> u64 {
        self.rng.next()
    }
}
