//! Listening sockets inherited from the parent process.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::sockopt::socket_acceptconn;

/// The first inherited descriptor.
const FIRST: RawFd = 3;

/// Returns the listening sockets inherited by the convention of systemd's socket units. `LISTEN_FDS` is the number of
/// sockets, from descriptor 3 on, and `LISTEN_PID`, if set, the receiving process. Returns none without these
/// variables, and at every call after the first.
///
/// A parent that keeps the socket open, as systemd does, can start a process before the end of its predecessor: no
/// connection is refused in between. See [`Server::inherit_or_bind`](super::Server::inherit_or_bind).
///
/// # Errors
/// A variable is not a number, or a descriptor is not a listening socket.
pub fn inherited_listeners() -> io::Result<Vec<TcpListener>> {
    static ARE_TAKEN: AtomicBool = AtomicBool::new(false);
    let count = match (number("LISTEN_PID")?, number("LISTEN_FDS")?) {
        (Some(process), _) if process != std::process::id() => 0,
        (_, count) => count.unwrap_or(0),
    };
    if count == 0 || ARE_TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    (0..count as RawFd).map(|place| take(FIRST + place)).collect()
}

fn number(variable: &str) -> io::Result<Option<u32>> {
    let Some(value) = env::var_os(variable) else { return Ok(None) };
    let parsed = value.to_str().and_then(|value| value.parse().ok());
    let wrong = || invalid(format!("{variable}={value:?} is no number"));
    parsed.map(Some).ok_or_else(wrong)
}

fn take(descriptor: RawFd) -> io::Result<TcpListener> {
    // SAFETY: the borrow serves only this query; for a closed descriptor the query returns an error.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if !matches!(socket_acceptconn(borrowed), Ok(true)) {
        return Err(invalid(format!("descriptor {descriptor} is no socket that listens")));
    }
    // SAFETY: the descriptor is open, and by the convention it belongs to this process; it is taken once.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // Child processes have no use for it.
    fcntl_setfd(socket.as_fd(), FdFlags::CLOEXEC)?;
    Ok(TcpListener::from(socket))
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
