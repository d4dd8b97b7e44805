//! CPUs for the two ends of a measurement.

use std::fs;
use std::io;
use std::ops::RangeInclusive;

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
    let list = fs::read_to_string(file).ok().and_then(|list| parse_list(&list));
    list.into_iter().flatten().flatten().take(CpuSet::MAX_CPU).collect()
}

/// Parses a list of the kernel, of CPUs or ports, such as `0-3,8`; `None` for other text.
pub fn parse_list(list: &str) -> Option<Vec<RangeInclusive<usize>>> {
    let parts = list.trim().split(',').filter(|_| !list.trim().is_empty());
    let ranges = parts.map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.trim().parse().ok()?..=last.trim().parse().ok()?;
        (!range.is_empty()).then_some(range)
    });
    ranges.collect()
}

/// Keeps the calling thread on one CPU.
pub fn pin(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
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
    /// The CPUs before, if the placement has one.
    former: Option<CpuSet>,
    is_realtime: bool,
}

impl CpuPlacement {
    /// Applies the placement to the calling thread.
    pub fn apply(self) -> io::Result<PlacementGuard> {
        let mut guard = PlacementGuard { former: None, is_realtime: false };
        if let Some(cpu) = self.cpu {
            guard.former = Some(sched_getaffinity(None)?);
            pin(cpu)?;
        }
        if self.is_realtime {
            schedule(libc::SCHED_FIFO, 1).map_err(realtime_error)?;
            guard.is_realtime = true;
        }
        Ok(guard)
    }
}

impl Drop for PlacementGuard {
    fn drop(&mut self) {
        if self.is_realtime {
            // Returning to ordinary scheduling needs no privilege.
            let _ = schedule(libc::SCHED_OTHER, 0);
        }
        if let Some(former) = &self.former {
            // The CPUs may have been taken away meanwhile; then the thread stays on its CPU.
            let _ = sched_setaffinity(None, former);
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

/// Sets the scheduling policy of the calling thread, by the bare system call: some C libraries refuse to wrap it.
fn schedule(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: priority };
    let (number, this) = (libc::SYS_sched_setscheduler, 0 as libc::pid_t);
    // SAFETY: the parameter is local, and the kernel only reads it.
    let result = unsafe { libc::syscall(number, this, policy, &raw const parameter) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_list__takes_numbers_and_ranges() {
        assert_eq!(parse_list("0,4\n"), Some(vec![0..=0, 4..=4]));
        assert_eq!(parse_list("0-1,8-9"), Some(vec![0..=1, 8..=9]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        for other in ["nonsense", "3-1", "1,,2"] {
            assert_eq!(parse_list(other), None, "{other}");
        }
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
