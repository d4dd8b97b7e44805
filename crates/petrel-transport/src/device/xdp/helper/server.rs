//! The side with privileges.
//!
//! Every byte and descriptor of a client may be hostile. No step waits for a client. The last close of a descriptor can wait, for the linger time of a
//! connection or for a file system of the client's, so a thread of its own closes whatever a client has sent ([`Elsewhere`]).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recvmsg, sendmsg, socket_with,
};

use super::super::attached::{Attached, Entered};
use super::super::error::{Step, XdpError};
use super::super::interface::{Interface, Link};
use super::super::local::{Local, option};
use super::super::program::SOCKETS_MAX;
use super::super::socket::{self, Sizes};
use super::super::{CHUNKS_MAX, Mode};
use super::{HEAD_BYTES, Kind, Status, TEXT_BYTES_MAX, VERSION, head, parse};

/// Most connections. Connections, UDP sockets, AF_XDP sockets and the descriptors of one message are fewer than 1 024, the usual limit.
const CLIENTS_MAX: usize = 128;

/// Most sockets of a connection, and of all connections.
const CLIENT_SOCKETS_MAX: usize = 64;
const ALL_SOCKETS_MAX: usize = SOCKETS_MAX as usize;

/// A client without a port for this long is disconnected.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The interface is looked at this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a connection that the system could not accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Messages of a client before the other clients' turn.
const MESSAGES_MAX: usize = 16;

/// Most descriptors of a message (`SCM_MAX_FD`). The kernel itself would close those without room, and wait.
const DESCRIPTORS_MAX: usize = 253;

/// Most threads that close descriptors. While all are busy, no client is accepted.
const CLOSING_MAX: usize = 64;

/// While as many descriptors wait for a thread, no message is received.
const WAITING_MAX: usize = 64;

/// The descriptors to close, for all servers of the process.
static CLOSING: Mutex<Closing> = Mutex::new(Closing { threads: 0, waiting: Vec::new() });

struct Closing {
    threads: usize,
    /// Descriptors without a thread yet.
    waiting: Vec<OwnedFd>,
}

impl Closing {
    fn lock() -> MutexGuard<'static, Self> {
        CLOSING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn can_accept() -> bool {
        let closing = Self::lock();
        closing.threads < CLOSING_MAX && closing.waiting.is_empty()
    }

    fn can_receive() -> bool {
        Self::lock().waiting.len() < WAITING_MAX
    }

    /// Closes all waiting descriptors.
    fn work() {
        loop {
            let mut closing = Self::lock();
            let Some(fd) = closing.waiting.pop() else {
                closing.threads -= 1;
                return;
            };
            drop(closing);
            drop(fd);
        }
    }
}

/// Descriptors for further threads to close.
#[derive(Debug)]
pub(super) struct Elsewhere(pub(super) Vec<OwnedFd>);

impl Elsewhere {
    /// Returns the only descriptor.
    fn only(&self) -> Option<BorrowedFd<'_>> {
        if let [fd] = &self.0[..] { Some(fd.as_fd()) } else { None }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let mut closing = Closing::lock();
        let wanted = self.0.len().min(CLOSING_MAX - closing.threads);
        closing.waiting.append(&mut self.0);
        for _ in 0..wanted {
            // Without a thread, the descriptors wait for the next thread.
            if thread::Builder::new().name("petrel-close".into()).spawn(Closing::work).is_ok() {
                closing.threads += 1;
            }
        }
    }
}

/// The helper: a program on an interface, and the clients whose sockets get packets.
#[derive(Debug)]
pub struct Server {
    clients: Vec<Client>,
    listener: OwnedFd,
    path: PathBuf,
    shared: Shared,
    looked: Instant,
}

/// What all clients' requests need.
#[derive(Debug)]
struct Shared {
    interface: Interface,
    attached: Arc<Attached>,
    mode: Mode,
    uids: Vec<u32>,
}

/// The reason why a connection ends.
#[derive(Debug)]
struct Refusal {
    status: Status,
    said: String,
}

impl<S: Into<String>> From<S> for Refusal {
    fn from(said: S) -> Self {
        Self { status: Status::Refused, said: said.into() }
    }
}

/// What all clients have together.
struct AllGiven {
    ports: Vec<u16>,
    sockets: usize,
}

/// A connection.
#[derive(Debug)]
struct Client {
    // First: no packet is sent to a socket whose client has gone.
    sockets: Vec<Given>,
    right: Option<Right>,
    connection: Elsewhere,
    since: Instant,
    is_closing: bool,
}

/// A client's right to packets. The duplicate of the UDP socket keeps the port the client's.
#[derive(Debug)]
struct Right {
    local: Local,
    udp: OwnedFd,
}

/// A client's AF_XDP socket.
#[derive(Debug)]
struct Given {
    entered: Option<Entered>,
    fd: OwnedFd,
}

/// An answer without a refusal.
struct Answer {
    status: Status,
    words: [u32; 2],
    /// The number of the socket that goes with the answer.
    socket: Option<usize>,
}

impl Server {
    /// Attaches the program to an interface of the calling thread's network namespace, and listens at the path. Processes of root, of this process's
    /// user and of the users `uids` may connect. The overflow user (65534) stands for every user of a namespace without a number here.
    ///
    /// The socket's access control list keeps further users away. With the overflow user, or on a file system without access control lists, every user
    /// can connect: the helper refuses wrong users, but a wrong user can delay new clients by connections with descriptors of slow close.
    ///
    /// # Errors
    /// The kernel refuses, or another helper listens at the path.
    pub fn open(interface: &str, path: &Path, mode: Mode, uids: &[u32]) -> Result<Self, XdpError> {
        let interface = Interface::find(interface)?;
        let attached = Attached::to(&interface, mode)?;
        let listener = listen_at(path, uids).map_err(|error| XdpError::Helper {
            path: path.display().to_string(),
            said: format!("cannot listen: {error}"),
        })?;
        let own = rustix::process::geteuid().as_raw();
        let uids = [&[0, own], uids].concat();
        let shared = Shared { interface, attached, mode, uids };
        let (clients, looked) = (Vec::new(), Instant::now());
        Ok(Self { clients, listener, path: path.to_owned(), shared, looked })
    }

    /// Waits for clients at most a given time, and answers their requests.
    ///
    /// # Errors
    /// The interface was deleted, or the program was detached.
    pub fn turn(&mut self, time: Duration) -> Result<(), XdpError> {
        let are_ready = if Closing::can_receive() {
            self.wait(time)
        } else {
            thread::sleep(time.min(ACCEPT_PAUSE));
            Vec::new()
        };
        for (place, _) in are_ready.iter().skip(1).enumerate().filter(|(_, is_ready)| **is_ready) {
            self.serve(place);
        }
        let is_silent =
            |client: &Client| client.right.is_none() && client.since.elapsed() >= SILENCE_MAX;
        self.clients.retain(|client| !client.is_closing && !is_silent(client));
        if are_ready.first() == Some(&true) {
            self.accept();
        }
        if self.looked.elapsed() >= LOOK_INTERVAL {
            self.looked = Instant::now();
            self.clients.retain(Client::has_its_port);
            if self.shared.interface.link() == Link::Gone {
                let interface = self.shared.interface.name().to_owned();
                return Err(XdpError::NoInterface { interface });
            }
            if !self.shared.attached.is_attached() {
                let interface = self.shared.interface.name().to_owned();
                return Err(XdpError::Detached { interface });
            }
        }
        Ok(())
    }

    /// Waits, and returns true for a listener with connections, and true for every client with a request.
    fn wait(&self, time: Duration) -> Vec<bool> {
        let wanted = if Closing::can_accept() { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&self.listener, wanted)];
        fds.extend(
            self.clients.iter().map(|client| PollFd::from_borrowed_fd(client.fd(), PollFlags::IN)),
        );
        let time = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        // A signal, or no memory: as if no client had said anything.
        let _ = poll(&mut fds, Some(&time));
        fds.iter().map(|fd| !fd.revents().is_empty()).collect()
    }

    /// Returns the number of sockets that get packets.
    pub fn entered(&self) -> usize {
        let sockets = self.clients.iter().flat_map(|client| &client.sockets);
        sockets.filter(|given| given.entered.is_some()).count()
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn accept(&mut self) {
        for _ in 0..MESSAGES_MAX {
            if !Closing::can_accept() {
                return;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let connection = match accept_with(&self.listener, flags) {
                Ok(connection) => connection,
                Err(Errno::AGAIN) => return,
                // No descriptor or no memory: the listener stays ready, and the loop must not spin.
                Err(_) => return thread::sleep(ACCEPT_PAUSE),
            };
            let (sockets, since) = (Vec::new(), Instant::now());
            let connection = Elsewhere(vec![connection]);
            let client = Client { sockets, right: None, connection, since, is_closing: false };
            // The type of `rustix` has no place for a process in another PID namespace.
            let nobody = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
            let peer = option(client.fd(), libc::SO_PEERCRED, nobody);
            match peer.map(|peer| peer.uid) {
                Ok(uid) if !self.shared.uids.contains(&uid) => {
                    let said = format!("user {uid} is not among the allowed users");
                    client.refuse(&said.into());
                }
                Ok(_) if self.clients.len() >= CLIENTS_MAX => {
                    client.refuse(&"there are too many clients".into());
                }
                Ok(_) => self.clients.push(client),
                Err(_) => {}
            }
        }
    }

    /// Answers a client's requests.
    fn serve(&mut self, place: usize) {
        for _ in 0..MESSAGES_MAX {
            let client = self.clients.get(place).filter(|client| !client.is_closing);
            let Some(client) = client.filter(|_| Closing::can_receive()) else { return };
            let mut bytes = [0; HEAD_BYTES + 1];
            let (count, fds) = match client.receive(&mut bytes) {
                Ok(received) => received,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => (0, Elsewhere(Vec::new())),
            };
            if count == 0 {
                return self.clients[place].close();
            }
            let sockets = self.clients.iter().map(|client| client.sockets.len()).sum();
            let ports = self.clients.iter().filter_map(Client::port).collect();
            let given = AllGiven { ports, sockets };
            let client = &mut self.clients[place];
            if !client.answer(&self.shared, &bytes[..count], fds, &given) {
                client.close();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Client {
    fn fd(&self) -> BorrowedFd<'_> {
        self.connection.only().expect("a connection is one descriptor")
    }

    /// Takes everything back at once: the next request may be the same process's, on a new connection.
    fn close(&mut self) {
        self.is_closing = true;
        self.sockets.clear();
        self.right = None;
    }

    fn has_its_port(&self) -> bool {
        self.right.as_ref().is_none_or(|right| right.local.is_of(right.udp.as_fd()))
    }

    fn port(&self) -> Option<u16> {
        self.right.as_ref().map(|right| right.local.port())
    }

    /// Receives a request with its descriptors.
    fn receive(&self, bytes: &mut [u8]) -> Result<(usize, Elsewhere), Errno> {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut slices = [IoSliceMut::new(bytes)];
        let received = recvmsg(self.fd(), &mut slices, &mut control, flags)?;
        let mut fds = Elsewhere(Vec::new());
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                fds.0.extend(more);
            }
        }
        let is_whole = !received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        if is_whole { Ok((received.bytes, fds)) } else { Err(Errno::MSGSIZE) }
    }

    /// Answers a request. Returns false if the connection ends.
    fn answer(
        &mut self,
        shared: &Shared,
        request: &[u8],
        fds: Elsewhere,
        given: &AllGiven,
    ) -> bool {
        let parsed = parse(request).filter(|_| request.len() == HEAD_BYTES);
        let Some((kind, words)) = parsed else {
            return self.refuse(&"a request has twelve bytes".into());
        };
        let result = match fds.0.len() {
            1 if kind == Kind::Hello as u32 => self.hello(shared, words, fds, given),
            0 if kind == Kind::Create as u32 => self.create(shared, words, given),
            0 if kind == Kind::Enter as u32 => self.enter(shared, words),
            _ => Err("there is no such request, or not with that many descriptors".into()),
        };
        match result {
            Ok(Answer { status, words, socket }) => {
                let fd = socket.map(|number| self.sockets[number].fd.as_fd());
                self.send(&head(status as u32, words), fd)
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }

    fn hello(
        &mut self,
        shared: &Shared,
        words: [u32; 2],
        mut shown: Elsewhere,
        given: &AllGiven,
    ) -> Result<Answer, Refusal> {
        if words[0] != VERSION {
            return Err(format!("the helper speaks version {VERSION}, not {}", words[0]).into());
        }
        if self.right.is_some() {
            return Err("the connection has a port already".into());
        }
        let udp = shown.only().ok_or("a client shows one descriptor")?;
        let local = Local::of_client(udp, &shared.interface).map_err(|why| why.to_string())?;
        if given.ports.contains(&local.port()) {
            let said = format!("another process has port {}", local.port());
            return Err(Refusal { status: Status::PortTaken, said });
        }
        // A UDP socket closes without waiting.
        self.right = shown.0.pop().map(|udp| Right { local, udp });
        let words = [shared.attached.frame_bytes_max() as u32, shared.interface.index()];
        Ok(Answer { status: Status::Done, words, socket: None })
    }

    fn create(
        &mut self,
        shared: &Shared,
        words: [u32; 2],
        all: &AllGiven,
    ) -> Result<Answer, Refusal> {
        if self.right.is_none() {
            return Err("a client shows its UDP socket first".into());
        }
        let [receive, send] = words;
        let is_size = |chunks: u32| chunks.is_power_of_two() && chunks <= CHUNKS_MAX;
        if !(is_size(receive) && is_size(send)) {
            return Err(format!("chunks are powers of two up to {CHUNKS_MAX}").into());
        }
        if self.sockets.len() >= CLIENT_SOCKETS_MAX {
            return Err(format!("a client has at most {CLIENT_SOCKETS_MAX} sockets").into());
        }
        if all.sockets >= ALL_SOCKETS_MAX {
            return Err(format!("the clients have all {ALL_SOCKETS_MAX} sockets").into());
        }
        let interface = shared.interface.name();
        let refused = |error: Errno| Step::Create.refused(interface, error).to_string();
        let fd = socket::create(Sizes { receive, send }).map_err(refused)?;
        // Since Linux 6.6, the client can then bind the socket to no other interface; the client lacks the right to undo the option.
        let interface = socket2::SockRef::from(&fd).bind_device(Some(interface.as_bytes()));
        interface.map_err(|error| error.to_string())?;
        let number = self.sockets.len();
        self.sockets.push(Given { entered: None, fd });
        Ok(Answer { status: Status::Done, words: [number as u32, 0], socket: Some(number) })
    }

    fn enter(&mut self, shared: &Shared, words: [u32; 2]) -> Result<Answer, Refusal> {
        let [number, queue] = words;
        let given = self.sockets.get_mut(number as usize).ok_or("there is no such socket")?;
        let right = self.right.as_ref().ok_or("a client shows its UDP socket first")?;
        if given.entered.is_some() {
            return Err("the socket has a queue already".into());
        }
        let entered = shared.attached.enter(given.fd.as_fd(), &right.local, queue, shared.mode);
        let status = match entered {
            Ok(entered) => {
                given.entered = Some(entered);
                Status::Done
            }
            Err((Step::Bind, error @ (Errno::BUSY | Errno::INVAL))) => {
                let words = [error.raw_os_error().unsigned_abs(), 0];
                return Ok(Answer { status: Status::QueueTaken, words, socket: None });
            }
            Err((step, error)) => {
                return Err(step.refused(shared.interface.name(), error).to_string().into());
            }
        };
        Ok(Answer { status, words: [0, 0], socket: None })
    }

    /// Says why the connection ends; returns false.
    fn refuse(&self, refusal: &Refusal) -> bool {
        let mut bytes = head(refusal.status as u32, [0, 0]).to_vec();
        bytes.extend(refusal.said.bytes().take(TEXT_BYTES_MAX));
        self.send(&bytes, None);
        false
    }

    /// Sends an answer. Returns false if the client takes none: its queue is full, or its end is closed.
    fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> bool {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if let Some(fd) = &fd {
            let is_pushed = control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)));
            assert!(is_pushed, "the space is for one descriptor");
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(self.fd(), &[IoSlice::new(bytes)], &mut control, flags).is_ok()
    }
}

/// Listens at a path where the users may connect.
fn listen_at(path: &Path, uids: &[u32]) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let seqpacket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let address = SocketAddrUnix::new(path)?;
    let listener = seqpacket()?;
    // A path without a listener is left from a helper that was killed.
    if connect(&seqpacket()?, &address) == Err(Errno::CONNREFUSED) {
        fs::remove_file(path)?;
    }
    bind(&listener, &address)?;
    // A connection of any user occupies the helper, even if refused.
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let is_allowed = !uids.contains(&OVERFLOW_UID)
        && rustix::fs::setxattr(path, ACL, &acl_of(uids), rustix::fs::XattrFlags::empty()).is_ok();
    if !is_allowed && !uids.is_empty() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    }
    listen(&listener, 128)?;
    Ok(listener)
}

/// The user of processes without a number in the own namespace. An access control list does not let such processes in.
const OVERFLOW_UID: u32 = 65534;

/// The attribute of a file with the access control list.
pub(super) const ACL: &str = "system.posix_acl_access";

/// Returns an access control list for the owner and some users (`linux/posix_acl_xattr.h`).
fn acl_of(uids: &[u32]) -> Vec<u8> {
    const VERSION: u32 = 2;
    const READ_WRITE: u16 = 6;
    let of_kind = |tag: u16, rights: u16| (tag, rights, u32::MAX);
    let (owner, group, mask) = (of_kind(1, READ_WRITE), of_kind(4, 0), of_kind(0x10, READ_WRITE));
    let users = uids.iter().map(|uid| (2, READ_WRITE, *uid));
    let entries = std::iter::once(owner).chain(users).chain([group, mask, of_kind(0x20, 0)]);
    let bytes = entries.flat_map(|(tag, rights, id)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    VERSION.to_le_bytes().into_iter().chain(bytes).collect()
}
