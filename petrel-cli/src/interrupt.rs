//! Ctrl-C and the polite request to end, waited for instead of handled.
//!
//! The signals are blocked, and a thread that has time to end well asks for them. So nothing runs
//! in a signal handler, and there is nothing that only such a handler may not do.
//!
//! All unsafe code here passes signal sets and time-outs, local values, to calls that read or
//! write them before they return and keep no pointer. A signal mask belongs to its thread; threads
//! inherit it when they start. So whoever catches signals does it before it starts threads.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use libc::{SIGINT, SIGTERM, sigset_t};

/// While this lives, SIGINT and SIGTERM wait to be asked for. Afterwards they kill again.
pub(crate) struct Interrupt {
    previous: sigset_t,
}

impl Interrupt {
    /// Catches both signals in this thread and those that it starts from now on.
    pub(crate) fn catch() -> io::Result<Self> {
        let mut previous = MaybeUninit::uninit();
        let ours = signals();
        // SAFETY: both point to local memory for one signal set.
        let error = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const ours, previous.as_mut_ptr())
        };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: a call that succeeded has written the former mask.
        Ok(Self { previous: unsafe { previous.assume_init() } })
    }

    /// Waits for one of the signals for as long as this; tells whether it came.
    pub(crate) fn came_within(&self, limit: Duration) -> bool {
        let ours = signals();
        let limit = libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: the set and the time-out are local; information about the signal is not wanted.
        let signal =
            unsafe { libc::sigtimedwait(&raw const ours, std::ptr::null_mut(), &raw const limit) };
        signal > 0
    }

    /// Tells whether one of the signals has come, without waiting.
    pub(crate) fn came(&self) -> bool {
        self.came_within(Duration::ZERO)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // SAFETY: `previous` is a set that the system wrote; the former mask is not wanted. It
        // fails for an unknown first argument only.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.previous,
                std::ptr::null_mut(),
            );
        }
    }
}

fn signals() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set, and `sigaddset` then has one to change. Both fail
    // for unknown signals only.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), SIGINT);
        libc::sigaddset(set.as_mut_ptr(), SIGTERM);
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn came__once_for_each_signal() {
        let interrupt = Interrupt::catch().unwrap();
        assert!(!interrupt.came());
        // SAFETY: the signal goes to this thread, which blocks it.
        unsafe { libc::raise(SIGINT) };
        assert!(interrupt.came_within(Duration::from_secs(10)));
        assert!(!interrupt.came());
    }
}
