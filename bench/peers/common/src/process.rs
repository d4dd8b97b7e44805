//! The set-up of server and client: stay on a CPU, and end when the runner ends.

use std::io;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, and its child threads, on a CPU, with a real-time priority if `priority` is not 0.
/// Lets the system kill the process when the parent thread ends, so a killed runner leaves no process
/// behind.
///
/// # Errors
/// The system's error, for instance for a missing CPU or a forbidden priority.
pub fn settle(cpu: usize, priority: u8) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    pin(cpu)?;
    if priority > 0 { hurry(priority) } else { Ok(()) }
}

/// Gives this thread real-time priority. Round robin, because the threads of a process share its CPU: a
/// polling thread must yield from time to time.
fn hurry(priority: u8) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: the call reads the structure, which lives until it returns, and 0 is this thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &param) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Keeps this thread on a CPU.
///
/// # Errors
/// The system's error, for instance for a missing CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no CPU {cpu}")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the CPUs that this thread may use.
///
/// # Errors
/// The system's error.
pub fn usable() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}
