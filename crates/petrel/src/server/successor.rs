//! The parent's half of a hand-over: a process gets the listening sockets and the state of its predecessor.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use rustix::fs::{MemfdFlags, fstat, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Resource, getrlimit};

use super::inherited::{HANDED_OVER, SOCKET, STATE};

/// Starts a process to continue a service. The process inherits the listening sockets and a state, by
/// [`inherited_listeners`](super::inherited_listeners) or [`Server::inherit_or_bind`](super::Server::inherit_or_bind), and by
/// [`inherited_state`](super::inherited_state). The command's own descriptors and variables are as usual.
///
/// No connection is refused: while no process accepts, connections wait in the queue of the socket. A stateless server starts the
/// successor first, and then stops. A server with a state stops first, takes the state out at the end
/// ([`ReadyServer::at_end`](super::ReadyServer::at_end)), and starts the successor with the state. Calls of clients with `wait_for_ready`
/// wait meanwhile.
///
/// ```no_run
/// use std::net::TcpListener;
/// use std::process::Command;
/// use petrel::{Server, server};
///
/// let socket = TcpListener::bind("127.0.0.1:31850")?;
/// Server::listen_on(socket.try_clone()?).serve(|_| (), |_| {}).run()?;
/// server::start_successor(&mut Command::new(std::env::current_exe()?), [&socket], b"the state")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The operating system's, of starting the process or of keeping the state in memory.
pub fn start_successor<'a>(
    command: &mut Command,
    sockets: impl IntoIterator<Item = &'a TcpListener>,
    state: &[u8],
) -> io::Result<Child> {
    let mut handed = Vec::new();
    for socket in sockets {
        handed.push((SOCKET, socket.as_fd().try_clone_to_owned()?));
    }
    handed.push((STATE, in_memory(state)?));
    let mut names = Vec::new();
    for (kind, file) in &handed {
        names.push(format!("{kind}:{}:{}", file.as_raw_fd(), fstat(file)?.st_ino));
    }
    command.env(HANDED_OVER, names.join(","));
    let keep_open = move || -> io::Result<()> {
        for (_, file) in &handed {
            fcntl_setfd(file, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: after the fork, the closure makes system calls only, on descriptors that it owns.
    unsafe { command.pre_exec(keep_open) };
    command.spawn()
}

/// Returns a file in memory with these bytes, at its beginning.
fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    // Writing beyond the limit would end the process by a signal.
    if let Some(most) = getrlimit(Resource::Fsize).current
        && most < bytes.len() as u64
    {
        let text =
            format!("a state of {} bytes exceeds the limit of file sizes, {most}", bytes.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    let mut file = File::from(memfd_create("petrel-state", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}
