//! The three system calls without a safe wrapper.
//!
//! They are sound for the same reason. The kernel only uses, during the call, memory that a local
//! variable of the caller owns and whose size the kernel knows; no pointer outlives the call. The
//! descriptor is borrowed for the call, so it is open. No other module of the doctor has `unsafe` code.

use std::io;
use std::mem::size_of;
use std::net::UdpSocket;
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
    // SAFETY: `value` lives until the call returns, and `bytes` is its size; `socket` is borrowed, so `fd` is open.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), bytes) };
    check(result.into())
}

/// Gives the calling thread the lowest first-in-first-out real-time priority.
///
/// Uses the bare system call, because some C libraries refuse to wrap it.
pub(super) fn make_thread_real_time() -> io::Result<()> {
    const THIS_THREAD: libc::pid_t = 0;
    let parameters = [1 as libc::c_int];
    // SAFETY: the kernel reads one `int`, the priority, from `parameters`, which lives until the call returns.
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

/// The words of `struct ethtool_coalesce`.
const COALESCE_WORDS: usize = 23;

/// Returns the words of `struct ethtool_coalesce` of a network device, as `ethtool -c` reads them.
pub(super) fn interrupt_coalescing(device: &str) -> io::Result<[u32; COALESCE_WORDS]> {
    const ETHTOOL_GCOALESCE: u32 = 0x0e;
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    /// `struct ifreq` with a pointer; the union of `struct ifreq` is larger than a pointer.
    #[repr(C)]
    struct Request {
        name: [u8; libc::IFNAMSIZ],
        data: *mut u32,
        rest: [u64; 2],
    }
    let mut name = [0; libc::IFNAMSIZ];
    // The kernel wants a zero at the end.
    if device.len() >= name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    name[..device.len()].copy_from_slice(device.as_bytes());
    let mut words = [0; COALESCE_WORDS];
    words[0] = ETHTOOL_GCOALESCE;
    let mut request = Request { name, data: words.as_mut_ptr(), rest: [0; 2] };
    let socket = UdpSocket::bind(("0.0.0.0", 0))?;
    // SAFETY: the request is at least as large as `struct ifreq` and begins like it. The kernel writes a
    // `struct ethtool_coalesce` to `words`, which has its size; both live until the call returns.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
    check(result.into())?;
    Ok(words)
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
