//! What the shared-memory transport needs: memory without a name that cannot be cut short, and a
//! way to hand it over. Without it Petrel uses UDP between processes of one host.

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

/// Size of the memory tried; the transport's rings are larger, but the kernel makes no difference.
const TRIAL_BYTES: u64 = 64 << 10;

/// A local socket answers at once; only a starved machine needs any of this.
const PATIENCE: Duration = Duration::from_secs(1);

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

/// Makes memory, seals it, and sees whether a later cut is refused.
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

/// Memory without a name. Hardened systems refuse such files when they could be executed; kernels
/// before 6.3 do not know the flag that says so.
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

/// Connects over an abstract name, which vanishes with its socket, and moves one byte.
fn try_hand_over() -> io::Result<()> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let listener = listen_on_any_name()?;
    let mut client = UnixStream::connect_addr(&listener.local_addr()?)?;
    // The connection is queued by now, so this cannot wait.
    let (mut server, _) = listener.accept()?;
    client.write_all(&[1])?;
    server.set_read_timeout(Some(PATIENCE))?;
    server.read_exact(&mut [0])
}

/// Binding to no name makes the kernel choose an abstract one that is free (unix(7)).
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
        // The name of the first socket must be gone with it.
        for _ in 0..3 {
            try_hand_over().unwrap();
        }
    }
}
