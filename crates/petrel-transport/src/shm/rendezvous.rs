//! The meeting of two processes of one host, of one user or group, to exchange descriptors.
//!
//! One process listens on a Unix socket in the abstract namespace, which leaves no file behind. The
//! socket's name has 128 random bits, and reaches the peer over the control plane. Any process in
//! the network namespace may connect; therefore either end asks the kernel for the peer's user and
//! accepts only our own.
//!
//! Processes of different network namespaces meet in a directory that both see ([`MeetingDir`]), as
//! containers do in a shared volume: the socket is a file there. A listener removes its file at the
//! end, and files of killed processes at its beginning. In a directory for a group, users of the group meet, too.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;

use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect as connect_socket,
    shutdown, socket_with,
};

use super::credentials::{is_member, peer_process};
use super::fds::PeerStream;

const NAME_PREFIX: &[u8; 10] = b"petrel-shm";

/// Bytes of a rendezvous name: a prefix for the reader of `ss -x`, and 32 hexadecimal digits.
pub const NAME_BYTES: usize = NAME_PREFIX.len() + 1 + 32;

/// Foreign connections refused in one call of [`Rendezvous::accept`]: the kernel's default queue
/// length, to keep a flood from holding the caller.
const MAX_REFUSALS_PER_CALL: usize = 128;

/// Connections that may wait when the listener closes: more than the kernel queues (`somaxconn`).
const WAITING_MAX: usize = 1 << 16;

/// The listening end. Never blocks.
#[derive(Debug)]
pub struct Rendezvous {
    listener: UnixListener,
    name: [u8; NAME_BYTES],
    /// The directory of the socket's file.
    directory: Option<MeetingDir>,
    refused_count: u64,
}

/// A directory in which processes of one host and user meet, whatever their network namespace. The processes may see the
/// directory under different paths.
///
/// If the set-group-ID bit and the sticky bit are set and the group may write, but others may not (mode 3770), the processes of all users of
/// the group meet. Without the sticky bit a user could replace the socket of another.
#[derive(Debug)]
pub struct MeetingDir {
    directory: OwnedFd,
    group: Option<u32>,
}

/// The bits of a directory's mode that tell whether a group uses the directory, and their values if so.
const GROUP_BITS: u32 = 0o3022;
const GROUP_MODE: u32 = 0o3020;

/// Files examined for [`MeetingDir::remove_dead`]: more than the processes of a host that meet in one directory.
const DEAD_FILES_MAX: usize = 4096;

impl MeetingDir {
    /// Opens the directory, which must exist.
    ///
    /// # Errors
    /// The kernel's: above all if there is no such directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(path, flags, Mode::empty())?;
        let stat = fstat(&directory)?;
        let group = (stat.st_mode & GROUP_BITS == GROUP_MODE).then_some(stat.st_gid);
        Ok(Self { directory, group })
    }

    /// Returns the group whose users meet here; `None` if the processes of a single user meet.
    pub fn group(&self) -> Option<u32> {
        self.group
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { directory: self.directory.try_clone()?, group: self.group })
    }

    /// Returns the device, and the number on the device.
    pub(super) fn numbers(&self) -> io::Result<(u64, u64)> {
        let stat = fstat(&self.directory)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Returns the path of a file by the descriptor of the directory: short enough for a socket's address.
    fn path_of(&self, name: &[u8]) -> PathBuf {
        let directory = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        Path::new(&directory).join(OsStr::from_bytes(name))
    }

    /// Removes the sockets of killed processes, which refuse connections.
    fn remove_dead(&self) {
        let Ok(files) = std::fs::read_dir(self.path_of(b".")) else { return };
        let names = files.take(DEAD_FILES_MAX).flatten().map(|file| file.file_name());
        for name in names.filter(|name| is_name(name.as_bytes())) {
            let path = self.path_of(name.as_bytes());
            let answer = SocketAddrUnix::new(&path).and_then(|address| dial(&address));
            if answer.is_err_and(|error| error == Errno::CONNREFUSED) {
                // Another process may have removed the file meanwhile.
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

/// Returns true if a name can come from [`Rendezvous::name`]: no path leads out of the directory.
fn is_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(NAME_PREFIX).and_then(|rest| rest.strip_prefix(b"-"));
    name.len() == NAME_BYTES
        && digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

impl Rendezvous {
    /// Listens under a fresh name.
    ///
    /// # Errors
    /// When the system lacks descriptors or randomness.
    pub fn bind() -> io::Result<Self> {
        let name = random_name()?;
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, name, directory: None, refused_count: 0 })
    }

    /// Listens under a fresh name in a directory.
    ///
    /// # Errors
    /// As [`Rendezvous::bind`], and when no file can be made in the directory.
    pub fn bind_in(directory: &MeetingDir) -> io::Result<Self> {
        directory.remove_dead();
        let name = random_name()?;
        let path = directory.path_of(&name);
        // The file gets its final name when the socket listens: until then no process takes the socket for dead.
        let fresh = path.with_extension("new");
        let listener = UnixListener::bind(&fresh)?;
        listener.set_nonblocking(true)?;
        if directory.group.is_some() {
            // The directory gives the file its group.
            std::fs::set_permissions(&fresh, Permissions::from_mode(0o660))?;
        }
        std::fs::rename(&fresh, &path)?;
        let directory = Some(directory.try_clone()?);
        Ok(Self { listener, name, directory, refused_count: 0 })
    }

    /// The name the peer needs for [`connect`].
    pub fn name(&self) -> [u8; NAME_BYTES] {
        self.name
    }

    /// Connections from other users refused so far.
    pub fn refused_count(&self) -> u64 {
        self.refused_count
    }

    /// Returns the next connection of a process of our own user, or of the directory's group, non-blocking; `None` if no
    /// connection is waiting. Foreign connections are dropped and counted.
    ///
    /// # Errors
    /// The kernel's errors, and [`io::ErrorKind::Interrupted`] after very many refused connections:
    /// more may wait, so call again, if need be after other work.
    pub fn accept(&mut self) -> io::Result<Option<PeerStream>> {
        for _ in 0..MAX_REFUSALS_PER_CALL {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => PeerStream::from(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The peer left between connecting and this call.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            if is_trusted(stream.as_fd(), self.directory.as_ref())? {
                stream.set_nonblocking(true)?;
                return Ok(Some(stream));
            }
            self.refused_count += 1;
        }
        Err(io::ErrorKind::Interrupted.into())
    }
}

impl Drop for Rendezvous {
    /// Closes waiting connections one by one. Otherwise the kernel would close the queues in this
    /// thread, with any queued descriptors.
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            // A later listener removes a file that stays.
            let _ = std::fs::remove_file(directory.path_of(&self.name));
        }
        // From now on the kernel refuses new connections.
        let _ = shutdown(&self.listener, Shutdown::Both);
        for _ in 0..WAITING_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => drop(PeerStream::from(stream)),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Rendezvous {
    /// For waiting for connections.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Connects to the rendezvous of a process of our own user. The stream is non-blocking.
///
/// # Errors
/// [`io::ErrorKind::ConnectionRefused`] if there is no listener under the name,
/// [`io::ErrorKind::PermissionDenied`] if the listener belongs to another user,
/// [`io::ErrorKind::WouldBlock`] if too many connections wait there: try again later.
/// [`io::ErrorKind::InvalidInput`] if `name` cannot come from [`Rendezvous::name`].
pub fn connect(name: &[u8]) -> io::Result<PeerStream> {
    if name.len() != NAME_BYTES || !name.starts_with(NAME_PREFIX) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    connect_at(&SocketAddrUnix::new_abstract_name(name)?, None)
}

/// Connects as [`connect`], in a directory.
///
/// # Errors
/// As [`connect`], and [`io::ErrorKind::NotFound`] if there is no such socket in the directory.
pub fn connect_in(directory: &MeetingDir, name: &[u8]) -> io::Result<PeerStream> {
    if !is_name(name) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    connect_at(&SocketAddrUnix::new(directory.path_of(name))?, Some(directory))
}

/// Connects without waiting.
fn dial(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect_socket(&socket, address)?;
    Ok(socket)
}

fn connect_at(address: &SocketAddrUnix, directory: Option<&MeetingDir>) -> io::Result<PeerStream> {
    let stream = PeerStream::from(UnixStream::from(dial(address)?));
    match is_trusted(stream.as_fd(), directory)? {
        true => Ok(stream),
        false => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// Returns true if the process that listened or connected at the far end was our user's, or of the directory's group.
fn is_trusted(socket: BorrowedFd<'_>, directory: Option<&MeetingDir>) -> io::Result<bool> {
    if is_our_user(peer_process(socket)?.uid) {
        return Ok(true);
    }
    directory.and_then(MeetingDir::group).map_or(Ok(false), |group| is_member(socket, group))
}

fn is_our_user(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

fn random_name() -> io::Result<[u8; NAME_BYTES]> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let mut name = [b'-'; NAME_BYTES];
    name[..NAME_PREFIX.len()].copy_from_slice(NAME_PREFIX);
    for (digits, byte) in name[NAME_PREFIX.len() + 1..].chunks_exact_mut(2).zip(random) {
        digits.copy_from_slice(&[hex_digit(byte >> 4), hex_digit(byte & 15)]);
    }
    Ok(name)
}

fn hex_digit(value: u8) -> u8 {
    match value {
        0..=9 => b'0' + value,
        _ => b'a' + value - 10,
    }
}

#[cfg(test)]
#[allow(non_snake_case)]
mod tests {
    use super::*;

    #[test]
    fn accept__returns_our_own_connections_and_never_blocks() {
        let mut rendezvous = Rendezvous::bind().unwrap();
        assert!(rendezvous.accept().unwrap().is_none());
        let _client = connect(&rendezvous.name()).unwrap();
        assert!(rendezvous.accept().unwrap().is_some());
        assert!(rendezvous.accept().unwrap().is_none());
        assert_eq!(rendezvous.refused_count(), 0);
    }

    #[test]
    fn accept__tells_what_the_kernel_says() {
        let mut rendezvous = Rendezvous::bind().unwrap();
        // A blocking `accept` reports the shutdown at once; a non-blocking call would only report
        // an empty queue.
        rendezvous.listener.set_nonblocking(false).unwrap();
        shutdown(&rendezvous.listener, Shutdown::Both).unwrap();
        assert_eq!(rendezvous.accept().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn streams__do_not_block_and_end_with_the_program() {
        use rustix::fs::{OFlags, fcntl_getfl};
        use rustix::io::{FdFlags, fcntl_getfd};
        let mut rendezvous = Rendezvous::bind().unwrap();
        let client = connect(&rendezvous.name()).unwrap();
        let server = rendezvous.accept().unwrap().unwrap();
        for stream in [rendezvous.as_fd(), client.as_fd(), server.as_fd()] {
            assert!(fcntl_getfl(stream).unwrap().contains(OFlags::NONBLOCK), "{stream:?}");
            assert!(fcntl_getfd(stream).unwrap().contains(FdFlags::CLOEXEC), "{stream:?}");
        }
    }

    #[test]
    fn name__is_a_prefix_and_hexadecimal_digits() {
        let digits: Vec<u8> = (0..16).map(hex_digit).collect();
        assert_eq!(digits, b"0123456789abcdef");
        let names = [random_name().unwrap(), random_name().unwrap()];
        assert_ne!(names[0], names[1]);
        for name in names {
            let digits =
                name.strip_prefix(NAME_PREFIX).and_then(|rest| rest.strip_prefix(b"-")).unwrap();
            assert!(digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit), "{digits:?}");
        }
    }

    #[test]
    fn connect__after_the_listener_is_gone_is_refused() {
        let name = Rendezvous::bind().unwrap().name();
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn bind_in__meets_in_the_directory_and_leaves_no_file() {
        let path = std::env::temp_dir().join(format!("petrel-meeting-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let files = || std::fs::read_dir(&path).unwrap().count();
        let directory = MeetingDir::open(&path).unwrap();
        // The file of a killed process.
        let dead = random_name().unwrap();
        drop(UnixListener::bind(path.join(OsStr::from_bytes(&dead))).unwrap());
        // A file of another program stays.
        std::fs::write(path.join("other"), b"").unwrap();
        let mut rendezvous = Rendezvous::bind_in(&directory).unwrap();
        assert_eq!(files(), 2, "the listener's and the other");
        let elsewhere = MeetingDir::open(&path).unwrap();
        let _client = connect_in(&elsewhere, &rendezvous.name()).unwrap();
        assert!(rendezvous.accept().unwrap().is_some());
        for wrong in [&b"../../etc/passwd"[..], &[b'/'; NAME_BYTES], &dead[1..]] {
            let error = connect_in(&directory, wrong).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(connect_in(&directory, &dead).unwrap_err().kind(), io::ErrorKind::NotFound);
        drop(rendezvous);
        assert_eq!(files(), 1);
        std::fs::remove_dir_all(&path).unwrap();
        assert!(MeetingDir::open(&path).is_err());
    }

    #[test]
    fn bind_in__users_of_a_group_meet_in_its_directory() {
        use rustix::fs::chown;
        use rustix::process::Gid;
        use rustix::thread::{set_thread_gid, set_thread_groups};
        const GROUP: u32 = 54_321;
        let path = std::env::temp_dir().join(format!("petrel-group-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let with_mode = |mode| {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            MeetingDir::open(&path).unwrap()
        };
        assert_eq!(with_mode(0o770).group(), None, "of one user");
        assert_eq!(with_mode(0o3777).group(), None, "of everybody");
        assert_eq!(with_mode(0o2770).group(), None, "users could replace each other's sockets");
        // The rest needs the right to become another user of the group.
        if chown(&path, None, Some(Gid::from_raw(GROUP))).is_ok() {
            let directory = with_mode(0o3770);
            assert_eq!(directory.group(), Some(GROUP));
            let bind = || {
                set_thread_groups(&[Gid::from_raw(GROUP)]).unwrap();
                Rendezvous::bind_in(&directory).unwrap()
            };
            let mut rendezvous = std::thread::scope(|scope| scope.spawn(bind).join().unwrap());
            let connect_with = |own: u32, groups: &[u32]| {
                let groups: Vec<_> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
                std::thread::scope(|scope| {
                    let connect = || {
                        set_thread_groups(&groups).unwrap();
                        set_thread_gid(Gid::from_raw(own)).unwrap();
                        rustix::thread::set_thread_uid(another_user()).unwrap();
                        connect_in(&directory, &rendezvous.name())
                    };
                    scope.spawn(connect).join().unwrap()
                })
            };
            let members = [connect_with(GROUP, &[]), connect_with(7, &[5, GROUP])];
            let users = members.map(|member| member.unwrap().user().unwrap());
            assert_eq!(users, [rustix::process::geteuid().as_raw(); 2]);
            let stranger = connect_with(7, &[5]).unwrap_err();
            assert_eq!(stranger.kind(), io::ErrorKind::PermissionDenied);
            let accepted = [(); 2].map(|()| rendezvous.accept().unwrap().expect("a member"));
            assert!(accepted.iter().all(|s| s.user().unwrap() == another_user().as_raw()));
            assert!(rendezvous.accept().unwrap().is_none() && rendezvous.refused_count() == 0);
        }
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn connect__refuses_names_of_others() {
        for name in [&b""[..], b"/tmp/x", &[0; NAME_BYTES], &[b'a'; 300]] {
            assert_eq!(connect(name).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
    }

    fn another_user() -> rustix::process::Uid {
        rustix::process::Uid::from_raw(rustix::process::geteuid().as_raw() ^ 1)
    }

    /// Runs `f` as another user, in a separate thread. `None` without the right to change users.
    fn as_other_user<R: Send>(f: impl FnOnce() -> R + Send) -> Option<R> {
        let other = another_user();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| rustix::thread::set_thread_uid(other).is_ok().then(f));
            thread.join().unwrap()
        })
    }

    #[test]
    fn accept_and_connect__refuse_another_user() {
        let mut rendezvous = Rendezvous::bind().unwrap();
        let name = rendezvous.name();
        assert!(is_our_user(rustix::process::geteuid().as_raw()));
        assert!(!is_our_user(another_user().as_raw()));
        // The rest needs the right to become another user.
        let Some(connected) = as_other_user(|| connect(&name)) else { return };
        assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(rendezvous.accept().unwrap().is_none());
        assert_eq!(rendezvous.refused_count(), 1);
    }

    #[test]
    fn accept__gives_the_caller_a_turn_during_a_flood() {
        let mut rendezvous = Rendezvous::bind().unwrap();
        let name = rendezvous.name();
        let flood = || (0..=MAX_REFUSALS_PER_CALL).map_while(|_| knock(&name).ok()).collect();
        let Some(flood) = as_other_user(flood) else { return };
        let flood: Vec<_> = flood;
        let _ours = connect(&name);
        let mut calls = 0;
        while rendezvous.accept().is_err_and(|e| e.kind() == io::ErrorKind::Interrupted) {
            calls += 1;
            assert_eq!(rendezvous.refused_count(), (calls * MAX_REFUSALS_PER_CALL) as u64);
        }
        assert_eq!(rendezvous.refused_count(), flood.len() as u64);
        assert_eq!(calls, flood.len() / MAX_REFUSALS_PER_CALL);
    }

    /// Connects without checking the listener's user.
    fn knock(name: &[u8]) -> io::Result<UnixStream> {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
    }

    #[test]
    fn bind__names_differ() {
        let names = [(); 2].map(|()| Rendezvous::bind().unwrap().name());
        assert_ne!(names[0], names[1]);
        assert!(names[0].is_ascii());
    }
}
