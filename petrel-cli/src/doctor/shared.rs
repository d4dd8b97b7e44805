//! Requirements of the shared-memory transport: anonymous memory protected from truncation, and a way to
//! share memory with a peer. Otherwise Petrel uses UDP between processes of a host.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use super::check::Check;

const AREA: &str = "shared memory";

/// Size of the test memory; the transport's rings are larger, but the kernel treats both alike.
const TRIAL_BYTES: u64 = 64 << 10;

/// A local socket answers at once; only a starved machine needs this time.
const TIMEOUT: Duration = Duration::from_secs(1);

const FALL_BACK: &str = "Petrel uses UDP between processes of this host until then.";

pub(super) fn checks() -> Vec<Check> {
    vec![sealed_memory(), hand_over()]
}

fn sealed_memory() -> Check {
    match try_sealed_memory() {
        Ok(()) => Check::ok(AREA, "sealed-memory", "memfd_create works, and seals hold the size"),
        Err(error) => Check::warn(
            AREA,
            "sealed-memory",
            format!("not usable: {error}"),
            format!(
                "Allow memfd_create and its seals in the container's seccomp filter. {FALL_BACK}"
            ),
        ),
    }
}

/// Creates and seals memory, and checks that truncation fails.
fn try_sealed_memory() -> io::Result<()> {
    let file = new_memory_file(MemfdFlags::empty())?;
    ftruncate(&file, TRIAL_BYTES)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    match ftruncate(&file, TRIAL_BYTES / 2) {
        Err(Errno::PERM) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Err(io::Error::other("a sealed file could be cut")),
    }
}

/// Creates anonymous memory. Hardened systems refuse executable files; kernels before 6.3 do not know
/// the flag that makes them non-executable.
pub(super) fn new_memory_file(kind: MemfdFlags) -> io::Result<OwnedFd> {
    const NAME: &std::ffi::CStr = c"petrel-doctor";
    let flags = kind | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(memfd_create(NAME, flags)?),
        other => Ok(other?),
    }
}

fn hand_over() -> Check {
    match try_hand_over() {
        Ok(()) => Check::ok(
            AREA,
            "memory-hand-over",
            "abstract Unix sockets work; processes need one network namespace",
        ),
        Err(error) => Check::warn(
            AREA,
            "memory-hand-over",
            format!("not usable: {error}"),
            format!(
                "Allow Unix sockets, eventfd and epoll in the container's sandbox. {FALL_BACK}"
            ),
        ),
    }
}

/// Connects over an abstract name, which vanishes with its socket, and moves a byte.
fn try_hand_over() -> io::Result<()> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let listener = listen_on_any_name()?;
    let mut client = UnixStream::connect_addr(&listener.local_addr()?)?;
    // The connection is queued by now, so `accept` cannot block.
    let (mut server, _) = listener.accept()?;
    client.write_all(&[1])?;
    server.set_read_timeout(Some(TIMEOUT))?;
    server.read_exact(&mut [0])
}

/// Listens on a free abstract name: the kernel chooses it when a socket binds without a name (unix(7)).
fn listen_on_any_name() -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrUnix::new_unnamed())?;
    listen(&socket, 1)?;
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn try_sealed_memory__works_on_every_host_that_builds_petrel() {
        try_sealed_memory().unwrap();
    }

    #[test]
    fn try_hand_over__can_be_repeated() {
        // The name of the first socket must disappear with the socket.
        for _ in 0..3 {
            try_hand_over().unwrap();
        }
    }
}
