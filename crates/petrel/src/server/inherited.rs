//! Listening sockets and state inherited from the parent process.

use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::fstat;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::socket_acceptconn;

/// The first descriptor inherited from systemd.
const FIRST: RawFd = 3;

/// The variable with the descriptors for a [successor](super::start_successor):
/// `socket:DESCRIPTOR:INODE` and `state:DESCRIPTOR:INODE`, with commas in between. The inodes identify the
/// files: a process further down inherits the variable, and may have different files under the numbers.
pub(super) const HANDED_OVER: &str = "PETREL_HANDED_OVER";
pub(super) const SOCKET: &str = "socket";
pub(super) const STATE: &str = "state";

/// Returns the listening sockets inherited from a [predecessor](super::start_successor), or by the convention of systemd's
/// socket units: `LISTEN_FDS` is the number of sockets, from descriptor 3 on, and `LISTEN_PID` the receiving process.
/// Returns none without these variables, if they are for another process, and at every call after the first.
///
/// A parent that keeps the socket open, as systemd does, can start a process before the end of its predecessor: no
/// connection is refused in between. See [`Server::inherit_or_bind`](super::Server::inherit_or_bind).
///
/// # Errors
/// A variable is not a number, `LISTEN_PID` is missing, or a descriptor is not a listening socket.
pub fn inherited_listeners() -> io::Result<Vec<TcpListener>> {
    static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
    let mut descriptors = handed_over(SOCKET)?;
    descriptors.extend(from_systemd()?);
    if descriptors.is_empty() || ARE_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    descriptors.into_iter().map(take_listener).collect()
}

/// Returns the state inherited from a [predecessor](super::start_successor). Returns `None` without one, and at every call after the
/// first.
///
/// # Errors
/// The predecessor's variable is malformed, or the state cannot be read.
pub fn inherited_state() -> io::Result<Option<Vec<u8>>> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    let Some(descriptor) = handed_over(STATE)?.pop() else { return Ok(None) };
    if IS_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    let mut state = Vec::new();
    File::from(take(descriptor)?).read_to_end(&mut state)?;
    Ok(Some(state))
}

/// Returns the descriptors of a kind handed over by a predecessor, without numbers of different files.
fn handed_over(kind: &str) -> io::Result<Vec<RawFd>> {
    let Some(value) = env::var_os(HANDED_OVER) else { return Ok(Vec::new()) };
    let wrong = || invalid(format!("{HANDED_OVER}={value:?} is malformed"));
    let mut descriptors = Vec::new();
    for entry in value.to_str().ok_or_else(wrong)?.split(',') {
        let mut parts = entry.split(':');
        let (Some(entry_kind), Some(number), Some(inode), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let number: RawFd = number.parse().ok().filter(|number| *number >= 0).ok_or_else(wrong)?;
        let inode: u64 = inode.parse().map_err(|_| wrong())?;
        // SAFETY: the borrow serves only this query; for a closed descriptor the query returns an error.
        let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
        if entry_kind == kind && fstat(borrowed).is_ok_and(|stat| stat.st_ino == inode) {
            descriptors.push(number);
        }
    }
    Ok(descriptors)
}

/// Returns the descriptors inherited from systemd.
fn from_systemd() -> io::Result<impl Iterator<Item = RawFd>> {
    let count = match (number("LISTEN_PID")?, number("LISTEN_FDS")?) {
        (_, None) => 0,
        (Some(process), Some(count)) if process == std::process::id() => count,
        (Some(_), _) => 0,
        (None, Some(count)) => {
            return Err(invalid(format!(
                "LISTEN_FDS={count} without LISTEN_PID: the descriptors may belong to another process"
            )));
        }
    };
    Ok((0..count as RawFd).map(|place| FIRST + place))
}

fn number(variable: &str) -> io::Result<Option<u32>> {
    let Some(value) = env::var_os(variable) else { return Ok(None) };
    let parsed = value.to_str().and_then(|value| value.parse().ok());
    let wrong = || invalid(format!("{variable}={value:?} is no number"));
    parsed.map(Some).ok_or_else(wrong)
}

fn take_listener(descriptor: RawFd) -> io::Result<TcpListener> {
    // SAFETY: the borrow serves only this query; for a closed descriptor the query returns an error.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if !matches!(socket_acceptconn(borrowed), Ok(true)) {
        return Err(invalid(format!("descriptor {descriptor} is no socket that listens")));
    }
    take(descriptor).map(TcpListener::from)
}

fn take(descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor was just queried, and is open. The parent has named this process, or this very file, and the descriptor is
    // taken once.
    let taken = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // Child processes have no use for it.
    fcntl_setfd(taken.as_fd(), FdFlags::CLOEXEC)?;
    Ok(taken)
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
