//! CPUs for the two ends of a measurement.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns two usable CPUs, of different cores if possible; `None` if the process has only one CPU.
pub fn pair() -> Option<[usize; 2]> {
    let usable = all();
    let (&first, rest) = usable.split_first()?;
    let siblings = siblings(first);
    let apart = rest.iter().find(|cpu| !siblings.contains(cpu));
    let second = *apart.or(rest.first())?;
    Some([first, second])
}

/// Returns the CPUs that this thread may use.
pub fn all() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Returns the CPUs of the same core, according to the kernel.
fn siblings(cpu: usize) -> Vec<usize> {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    fs::read_to_string(file).map(|list| parse_list(&list)).unwrap_or_default()
}

/// Parses `0,4` or `0-1`.
fn parse_list(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().take(CpuSet::MAX_CPU).collect()
}

/// Keeps the calling thread on one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Keeps the calling thread on one CPU until the guard is dropped.
pub struct Pinned {
    former: CpuSet,
}

impl Pinned {
    /// Pins the calling thread to a CPU.
    pub fn to(cpu: usize) -> io::Result<Self> {
        let former = sched_getaffinity(None)?;
        pin(cpu)?;
        Ok(Self { former })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // The CPUs may have been taken away meanwhile; then the thread stays on its CPU.
        let _ = sched_setaffinity(None, &self.former);
    }
}

/// The placement and priority of a thread for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuPlacement {
    /// The CPU to keep to.
    pub cpu: Option<usize>,
    /// Whether the thread runs with real-time priority.
    pub is_realtime: bool,
}

/// A guard that keeps the placement of a thread until dropped.
pub struct PlacementGuard {
    _pinned: Option<Pinned>,
    is_realtime: bool,
}

impl CpuPlacement {
    /// Applies the placement to the calling thread.
    pub fn apply(self) -> io::Result<PlacementGuard> {
        let pinned = self.cpu.map(Pinned::to).transpose()?;
        if self.is_realtime {
            schedule(libc::SCHED_FIFO, 1).map_err(realtime_error)?;
        }
        Ok(PlacementGuard { _pinned: pinned, is_realtime: self.is_realtime })
    }
}

impl Drop for PlacementGuard {
    fn drop(&mut self) {
        if self.is_realtime {
            // Returning to ordinary scheduling needs no privilege.
            let _ = schedule(libc::SCHED_OTHER, 0);
        }
    }
}

fn realtime_error(error: io::Error) -> io::Error {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; it takes root, CAP_SYS_NICE or a limit as by `ulimit -r 1`: go on without --realtime, or see \
             `petrel doctor`"
        }
        _ => "",
    };
    io::Error::new(error.kind(), format!("no realtime priority: {error}{hint}"))
}

/// Sets the scheduling policy of the calling thread.
fn schedule(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameter is local, and the kernel only reads it.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_list__takes_numbers_and_ranges() {
        assert_eq!(parse_list("0,4\n"), [0, 4]);
        assert_eq!(parse_list("2-3"), [2, 3]);
        assert_eq!(parse_list("0-1,8-9"), [0, 1, 8, 9]);
        assert_eq!(parse_list("nonsense"), [0; 0]);
    }

    #[test]
    fn pinned__keeps_the_thread_on_its_cpu_and_lets_it_go() {
        let before = all();
        let pinned = Pinned::to(before[0]).unwrap();
        assert_eq!(all(), before[..1]);
        drop(pinned);
        assert_eq!(all(), before);
    }

    #[test]
    fn placement__is_reset_when_the_guard_is_dropped() {
        let before = all();
        let placement = CpuPlacement { cpu: Some(before[0]), is_realtime: false };
        let guard = placement.apply().unwrap();
        assert_eq!(all(), before[..1]);
        drop(guard);
        assert_eq!(all(), before);
        // Without the privilege, `apply` fails and the thread's placement is unchanged.
        let result = CpuPlacement { cpu: None, is_realtime: true }.apply();
        if let Err(error) = result {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(all(), before);
    }

    #[test]
    fn pair__are_two_usable_cpus() {
        let Some([first, second]) = pair() else { return assert_eq!(all().len(), 1) };
        assert!(first != second && all().contains(&first) && all().contains(&second));
    }
}
