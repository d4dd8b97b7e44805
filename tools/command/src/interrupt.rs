//! Waits for Ctrl-C and SIGTERM instead of handling them.
//!
//! The signals are blocked, and a thread that can end orderly polls for signals. No code runs under the
//! restrictions of a signal handler.
//!
//! All unsafe code here passes local values, signal sets and timeouts, to calls that access the values
//! before returning and keep no pointer. A signal mask belongs to its thread; threads inherit the mask
//! when they start. Therefore a program must block the signals before starting threads.

use std::io;
use std::mem::MaybeUninit;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libc::{SIGINT, SIGTERM, sigset_t};

/// While this guard lives, SIGINT and SIGTERM are pending until polled. Afterwards they kill again.
pub struct Interrupt {
    previous: sigset_t,
}

impl Interrupt {
    /// Blocks the two signals in this thread and in later child threads.
    pub fn install() -> io::Result<Self> {
        let mut previous = MaybeUninit::uninit();
        let ours = signals();
        // SAFETY: both pointers lead to local memory for one signal set.
        let error = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const ours, previous.as_mut_ptr())
        };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: a successful call has written the former mask.
        Ok(Self { previous: unsafe { previous.assume_init() } })
    }

    /// Waits for one of the signals up to `limit`; returns true if a signal came.
    pub fn wait_for(&self, limit: Duration) -> bool {
        let ours = signals();
        let limit = libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: the set and the timeout are local; the null pointer declines information about the
        // signal.
        let signal =
            unsafe { libc::sigtimedwait(&raw const ours, std::ptr::null_mut(), &raw const limit) };
        signal > 0
    }

    /// Returns true if one of the signals has come, without waiting.
    pub fn is_raised(&self) -> bool {
        self.wait_for(Duration::ZERO)
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // SAFETY: the system has written the set `previous`; the null pointer declines the former mask.
        // The call fails only for an unknown first argument.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.previous,
                std::ptr::null_mut(),
            );
        }
    }
}

/// Whether a signal has come since [`note`].
static IS_NOTED: AtomicBool = AtomicBool::new(false);

/// The exit code of a shell's command that SIGINT ends.
const ENDED_BY_SIGINT: i32 = 130;

/// Notes Ctrl-C and SIGTERM from now on, for work that asks [`is_noted`] between two steps and then reports its results
/// so far. A second signal ends the process.
///
/// # Errors
/// The kernel's. Call it before any other thread starts.
pub fn note() -> io::Result<()> {
    let interrupt = Interrupt::install()?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        loop {
            if interrupt.wait_for(Duration::from_secs(3_600))
                && IS_NOTED.swap(true, Ordering::Relaxed)
            {
                process::exit(ENDED_BY_SIGINT);
            }
        }
    })?;
    Ok(())
}

/// Returns true if a signal has come since [`note`].
pub fn is_noted() -> bool {
    IS_NOTED.load(Ordering::Relaxed)
}

fn signals() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set before `sigaddset` changes it. Both calls fail only for
    // unknown signals.
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
    fn is_raised__once_for_each_signal() {
        let interrupt = Interrupt::install().unwrap();
        assert!(!interrupt.is_raised());
        // SAFETY: the signal goes to this thread, which blocks the signal.
        unsafe { libc::raise(SIGINT) };
        assert!(interrupt.wait_for(Duration::from_secs(10)));
        assert!(!interrupt.is_raised());
    }
}
