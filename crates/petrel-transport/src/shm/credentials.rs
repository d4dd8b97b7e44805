//! The process at the far end of a Unix socket, as the kernel knows it.
//!
//! Between PID namespaces, as of two containers of one pod, the kernel reports process 0: the far process has no number
//! here. The type of `rustix` has no place for that number, and reading it fails without an error code.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::PeerProcess;

/// Returns the process that listened or connected at the far end.
///
/// # Errors
/// The kernel's, above all for a descriptor that is no Unix stream socket.
pub(super) fn peer_process(socket: BorrowedFd<'_>) -> io::Result<PeerProcess> {
    const { assert!(size_of::<libc::ucred>() == size_of::<[u32; 3]>()) };
    let mut ids = [0; 3];
    let count = read_ids(socket, libc::SO_PEERCRED, &mut ids)?;
    assert!(count == ids.len(), "the kernel writes the whole structure");
    let [pid, uid, gid] = ids;
    Ok(PeerProcess { pid: pid.cast_signed().unsigned_abs(), uid, gid })
}

/// Reads an option of a socket that consists of numbers, and returns their count.
fn read_ids(socket: BorrowedFd<'_>, option: i32, ids: &mut [u32]) -> io::Result<usize> {
    let mut bytes = size_of_val(ids) as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `ids`, and the length to `bytes`; both are local or lent.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            ids.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(bytes as usize / size_of::<u32>())
}

/// Groups that [`is_member`] reads first: more than most users have.
const GROUPS: usize = 64;

/// The largest number of groups that the kernel allows a process (`NGROUPS_MAX`).
const GROUPS_MAX: usize = 65_536;

/// Returns true if the process at the far end belongs to a group, by its effective group or by a supplementary
/// group.
///
/// # Errors
/// As [`peer_process`].
pub(super) fn is_member(socket: BorrowedFd<'_>, group: u32) -> io::Result<bool> {
    if peer_process(socket)?.gid == group {
        return Ok(true);
    }
    match supplementary_groups(socket, GROUPS) {
        Err(error) if error.raw_os_error() == Some(libc::ERANGE) => {
            Ok(supplementary_groups(socket, GROUPS_MAX)?.contains(&group))
        }
        groups => Ok(groups?.contains(&group)),
    }
}

fn supplementary_groups(socket: BorrowedFd<'_>, max: usize) -> io::Result<Vec<u32>> {
    let mut groups = vec![0; max];
    let count = read_ids(socket, libc::SO_PEERGROUPS, &mut groups)?;
    groups.truncate(count);
    Ok(groups)
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
    fn is_member__of_the_groups_of_this_process_alone() {
        let (near, _far) = UnixStream::pair().unwrap();
        let is_member = |group| is_member(near.as_fd(), group).unwrap();
        assert!(is_member(rustix::process::getegid().as_raw()));
        let groups = rustix::process::getgroups().unwrap();
        assert!(groups.iter().all(|group| is_member(group.as_raw())));
        assert!(!is_member(u32::MAX - 7));
        assert_eq!(supplementary_groups(near.as_fd(), GROUPS_MAX).unwrap().len(), groups.len());
    }

    #[test]
    fn peer_process__of_a_file_is_an_error() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(peer_process(file.as_fd()).is_err());
    }
}
