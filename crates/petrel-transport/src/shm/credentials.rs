//! The process at the far end of a Unix socket, as the kernel knows it.
//!
//! Between PID namespaces, as of two containers of one pod, the kernel reports process 0: the far process has no number
//! here. The type of `rustix` has no place for that number, and reading it fails without an error code.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::PeerProcess;

/// Returns the process that listened or connected at the far end.
///
/// # Errors
/// The kernel's, above all for a descriptor that is no Unix stream socket.
pub(super) fn peer_process(socket: BorrowedFd<'_>) -> io::Result<PeerProcess> {
    let mut found = MaybeUninit::<libc::ucred>::zeroed();
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `found`, and the length to `bytes`; both are local.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            found.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    assert!(bytes as usize == size_of::<libc::ucred>(), "the kernel writes the whole structure");
    // SAFETY: three integers, of which any values are valid; all bytes were set above.
    let libc::ucred { pid, uid, gid } = unsafe { found.assume_init() };
    Ok(PeerProcess { pid: pid.unsigned_abs(), uid, gid })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn peer_process__is_this_process_at_the_far_end_of_a_pair() {
        let (near, _far) = UnixStream::pair().unwrap();
        let process = peer_process(near.as_fd()).unwrap();
        assert_eq!(process.pid, std::process::id());
        assert_eq!(process.uid, rustix::process::geteuid().as_raw());
        assert_eq!(process.gid, rustix::process::getegid().as_raw());
    }

    #[test]
    fn peer_process__of_a_file_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_process(file.as_fd()).is_err());
    }
}
