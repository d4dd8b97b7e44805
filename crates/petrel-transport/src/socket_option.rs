//! Options of sockets whose value is one `int`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Returns the value of an option.
///
/// # Errors
/// The kernel's, for example for an option that it does not know.
pub fn int_option(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of_val(&value) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    let to = std::ptr::from_mut(&mut value).cast();
    // SAFETY: `to` and `len` describe a live `int`; the kernel writes at most `len` bytes.
    let result = unsafe { libc::getsockopt(fd, level, name, to, &raw mut len) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets an option.
///
/// # Errors
/// The kernel's, for example for an option that it does not know.
pub fn set_int_option(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let from = std::ptr::from_ref(&value).cast();
    let len = size_of_val(&value) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `from` and `len` describe a live `int`, which the kernel only reads.
    let result = unsafe { libc::setsockopt(fd, level, name, from, len) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
