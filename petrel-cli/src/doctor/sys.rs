//! The two system calls without a safe wrapper.
//!
//! Both are sound for the same reason. The kernel only reads, during the call, from memory that a local
//! variable of the caller owns and whose size is passed along; no pointer outlives the call. The
//! descriptor is borrowed for the call, so it is open. No other module of the doctor has `unsafe` code.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option whose value is an `int`.
pub(super) fn set_int_option(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let bytes = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` lives until the call returns, and `bytes` is its size; `socket` is borrowed,
    // so `fd` is open.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), bytes) };
    check(result.into())
}

/// Gives the calling thread the lowest first-in-first-out real-time priority.
///
/// Uses the bare system call, because some C libraries refuse to wrap it.
pub(super) fn make_thread_real_time() -> io::Result<()> {
    const THIS_THREAD: libc::pid_t = 0;
    let parameters = [1 as libc::c_int];
    // SAFETY: the kernel reads one `int`, the priority, from `parameters`, which lives until the
    // call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            THIS_THREAD,
            libc::SCHED_FIFO,
            parameters.as_ptr(),
        )
    };
    check(result)
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn set_int_option__takes_a_real_option_and_refuses_an_unknown_one() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        set_int_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        let error = set_int_option(&socket, libc::SOL_SOCKET, 9_999, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT));
    }
}
