//! The side without privileges.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    recvmsg, sendmsg, socket_with,
};

use super::super::DEFAULT_HELPER;
use super::super::attached::FRAME_BYTES_MAX;
use super::super::error::XdpError;
use super::super::interface::Interface;
use super::super::local::option;
use super::super::socket::Sizes;
use super::{HEAD_BYTES, Kind, Status, TEXT_BYTES_MAX, VERSION, head, parse};

/// The time for all answers, during which an endpoint that opens stands still. The helper binds in milliseconds; beside other tests a
/// helper waits for a CPU.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 1 });

/// A connection to the helper, with the rights to the packets of one UDP socket.
#[derive(Debug)]
pub(in super::super) struct Client {
    connection: OwnedFd,
    deadline: Instant,
    path: String,
    frame_bytes_max: usize,
}

/// An answer that is no refusal.
struct Answer {
    status: u32,
    words: [u32; 2],
    fd: Option<OwnedFd>,
}

impl Client {
    /// Connects to the helper, and shows the UDP socket.
    pub(in super::super) fn open(
        path: &Path,
        interface: &Interface,
        udp: BorrowedFd<'_>,
    ) -> Result<Self, XdpError> {
        let text = path.display().to_string();
        let deadline = Instant::now() + ANSWER_TIME_MAX;
        let connection = connected(path).map_err(|error| {
            let said = match error {
                Errno::ACCESS => "this user is not among the allowed users".to_owned(),
                error => error.to_string(),
            };
            XdpError::Helper { path: text.clone(), said }
        })?;
        let mut client = Self { connection, deadline, path: text, frame_bytes_max: 0 };
        if path == Path::new(DEFAULT_HELPER) {
            check_listener(&client.connection).map_err(|said| client.failed(said))?;
        }
        let answer = client.ask(Kind::Hello, [VERSION, 0], Some(udp))?;
        let [frame_bytes_max, index] = answer.words;
        if index != interface.index() {
            let name = interface.name();
            return Err(client.failed(format!("serves another interface than {name}")));
        }
        client.frame_bytes_max = frame_bytes_max as usize;
        if client.frame_bytes_max > FRAME_BYTES_MAX {
            return Err(client.failed(format!("passes frames of {frame_bytes_max} bytes")));
        }
        Ok(client)
    }

    pub(in super::super) fn frame_bytes_max(&self) -> usize {
        self.frame_bytes_max
    }

    /// Returns a socket with its number.
    pub(in super::super) fn create(&self, sizes: Sizes) -> Result<(OwnedFd, u32), XdpError> {
        let answer = self.ask(Kind::Create, [sizes.receive, sizes.send], None)?;
        let fd = answer.fd.ok_or_else(|| self.failed("sent no socket"))?;
        Ok((fd, answer.words[0]))
    }

    /// Gets a socket bound to a queue and entered, or the kernel's reason why the socket cannot have the queue.
    pub(in super::super) fn enter(
        &self,
        number: u32,
        queue: u32,
    ) -> Result<Result<(), Errno>, XdpError> {
        let answer = self.ask(Kind::Enter, [number, queue], None)?;
        let is_invalid = answer.words[0] == Errno::INVAL.raw_os_error().unsigned_abs();
        Ok(match answer.status {
            status if status == Status::Done as u32 => Ok(()),
            _ => Err(if is_invalid { Errno::INVAL } else { Errno::BUSY }),
        })
    }

    /// Returns false if the helper has ended.
    pub(in super::super) fn is_alive(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(&self.connection, &mut [0_u8; 1], flags) == Err(Errno::AGAIN)
    }

    fn failed(&self, said: impl Into<String>) -> XdpError {
        XdpError::Helper { path: self.path.clone(), said: said.into() }
    }

    fn ask(
        &self,
        kind: Kind,
        words: [u32; 2],
        shown: Option<BorrowedFd<'_>>,
    ) -> Result<Answer, XdpError> {
        let lost = |error: Errno| self.failed(format!("does not answer: {error}"));
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(lost(Errno::TIMEDOUT));
        }
        for direction in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&self.connection, direction, Some(left)).map_err(lost)?;
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(fd) = &shown {
            let is_pushed = control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
            assert!(is_pushed, "the space is for one descriptor");
        }
        let request = head(kind as u32, words);
        let slices = [IoSlice::new(&request)];
        // A helper that refuses a user closes its end, and its reason waits here.
        match sendmsg(&self.connection, &slices, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => return Err(lost(error)),
        }
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; HEAD_BYTES + TEXT_BYTES_MAX];
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let mut received = recvmsg(&self.connection, &mut slices, &mut control, flags);
        if matches!(received, Err(Errno::CONNRESET)) {
            // Told once, before the messages that came earlier.
            received = recvmsg(&self.connection, &mut slices, &mut control, flags);
        }
        let count = received.map_err(lost)?.bytes;
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let bytes = &bytes[..count];
        let Some((status, words)) = parse(bytes) else {
            return Err(self.failed("has ended"));
        };
        if status == Status::Done as u32 || status == Status::QueueTaken as u32 {
            return Ok(Answer { status, words, fd });
        }
        let said = String::from_utf8_lossy(&bytes[HEAD_BYTES..]);
        if status == Status::PortTaken as u32 {
            return Err(XdpError::PortTaken { path: self.path.clone(), said: said.into() });
        }
        Err(self.failed(said))
    }
}

fn connected(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    let connection = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    set_socket_timeout(&connection, Timeout::Send, Some(ANSWER_TIME_MAX))?;
    connect(&connection, &SocketAddrUnix::new(path)?)?;
    Ok(connection)
}

/// Checks the user of the listening process: root or the own user. A process of another user that takes the default path first would be shown the
/// UDP sockets of all programs.
pub(super) fn check_listener(connection: &impl AsFd) -> Result<(), &'static str> {
    // The type of `rustix` has no place for a process in another PID namespace.
    let nobody = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let listener = option(connection.as_fd(), libc::SO_PEERCRED, nobody);
    let own = rustix::process::geteuid().as_raw();
    let is_believed = listener.is_ok_and(|listener| listener.uid == 0 || listener.uid == own);
    if is_believed { Ok(()) } else { Err("another user's process listens there") }
}
