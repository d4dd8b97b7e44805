//! What both ends do first: stay on a CPU, and end when the runner ends.

use std::io;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, and all that it starts, on a CPU; and has the system end this process when
/// the thread that started it ends, so that nothing is left when the runner is killed.
///
/// # Errors
/// What the system answers, for instance that there is no such CPU.
pub fn settle(cpu: usize) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    pin(cpu)
}

/// Keeps this thread on a CPU.
///
/// # Errors
/// What the system answers, for instance that there is no such CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// The CPUs that this thread may use.
///
/// # Errors
/// What the system answers.
pub fn usable() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}
