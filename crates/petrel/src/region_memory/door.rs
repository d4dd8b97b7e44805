//! The thread that hands the memory files of regions to processes of the same host and user.
//!
//! A client learns the name of the thread's Unix socket by an operation of its session, connects, and sends the number
//! and secret of the region. The thread checks both once more, and sends the memory's file. The thread serves up to
//! [`CLIENTS_MAX`] connections at the same time, and never waits for one of them. A connection has [`PATIENCE`] for its
//! whole request.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use petrel_proto::Status;
use petrel_transport::shm::{
    NAME_BYTES, PeerFds, PeerStream, Rendezvous, can_close, connect, recv_with_fds, send_with_fds,
};
use petrel_transport::words::{MappedRights, WordMemory};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::key::RegionKey;
use super::memory::RegionMemory;
use crate::error::Error;

/// The time that a client has for its request.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most connections at a time. A further connection replaces the longest waiting one.
const CLIENTS_MAX: usize = 64;

/// The pause after a failure of the kernel: descriptors or memory are short, and may be free again soon.
const PAUSE: Duration = Duration::from_secs(1);

/// The time that a client waits for the whole response.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a request: number and secret.
const REQUEST_BYTES: usize = 12;

/// Bytes of a response: whether the file comes with it, whether it can be written to, and the region's size.
const RESPONSE_BYTES: usize = 10;

const _: () = assert!(REQUEST_BYTES == size_of::<u32>() + size_of::<u64>());
const _: () = assert!(RESPONSE_BYTES == 2 + size_of::<u64>());

/// A registry's handle of the thread; the thread ends when the handle is dropped.
pub(crate) struct Door {
    name: [u8; NAME_BYTES],
    /// The thread sees this end of a pipe close.
    _alive: OwnedFd,
}

/// A region that a process of this host may map.
pub(crate) struct Mappable {
    file: OwnedFd,
    rights: MappedRights,
    bytes: u64,
}

impl Mappable {
    pub(crate) fn new(file: OwnedFd, rights: MappedRights, bytes: u64) -> Self {
        assert!(bytes > 0, "memory that is mapped has a byte");
        Self { file, rights, bytes }
    }
}

/// Looks a region up by number and secret; `None` if the region is not there, or cannot be mapped.
pub(crate) trait LookUp: Fn(u32, u64) -> Option<Mappable> + Send + 'static {}

impl<F: Fn(u32, u64) -> Option<Mappable> + Send + 'static> LookUp for F {}

impl Door {
    pub(crate) fn open(look_up: impl LookUp) -> io::Result<Self> {
        let rendezvous = Rendezvous::bind()?;
        let name = rendezvous.name();
        let (end, alive) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let (clients, accepts_at) = (VecDeque::new(), Instant::now());
        let keeper = Keeper { rendezvous, end, clients, accepts_at, look_up };
        let thread = std::thread::Builder::new().name("petrel-regions".to_owned());
        thread.spawn(move || keeper.run())?;
        Ok(Self { name, _alive: alive })
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }
}

/// The thread's state.
struct Keeper<L> {
    rendezvous: Rendezvous,
    end: OwnedFd,
    /// The clients, in the order of their arrivals, and so of their deadlines.
    clients: VecDeque<Visitor>,
    /// The time before which no connection is accepted.
    accepts_at: Instant,
    look_up: L,
}

/// A connection, and the part of its request that has arrived.
struct Visitor {
    stream: PeerStream,
    request: [u8; REQUEST_BYTES],
    received: usize,
    until: Instant,
}

impl<L: LookUp> Keeper<L> {
    /// Serves connections until the registry is gone; failures of the kernel pass.
    fn run(mut self) {
        while !self.has_ended() {
            if self.wait().is_err() {
                std::thread::sleep(PAUSE);
            }
            let now = Instant::now();
            self.accept(now);
            let look_up = &self.look_up;
            self.clients.retain_mut(|client| client.waits_on(now, look_up));
            assert!(self.clients.len() <= CLIENTS_MAX, "connections of clients are bounded");
            if self.clients.len() == CLIENTS_MAX {
                self.clients.pop_front();
            }
        }
    }

    fn has_ended(&self) -> bool {
        rustix::io::read(&self.end, &mut [0; 1]) == Ok(0)
    }

    /// Waits for a connection, a part of a request, the next due time, or the registry's end.
    fn wait(&self) -> io::Result<()> {
        let now = Instant::now();
        let accepts = now >= self.accepts_at;
        let mut watched = vec![PollFd::new(&self.end, PollFlags::IN)];
        if accepts {
            watched.push(PollFd::new(&self.rendezvous, PollFlags::IN));
        }
        let clients = self.clients.iter();
        watched.extend(clients.map(|client| PollFd::new(&*client.stream, PollFlags::IN)));
        let client_due = self.clients.front().map(|client| client.until);
        let accept_due = (!accepts).then_some(self.accepts_at);
        let timeout = client_due
            .into_iter()
            .chain(accept_due)
            .min()
            .and_then(|due| Timespec::try_from(due.saturating_duration_since(now)).ok());
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Accepts the waiting connections, as many as there is room for.
    fn accept(&mut self, now: Instant) {
        while now >= self.accepts_at && self.clients.len() < CLIENTS_MAX {
            if !can_close() {
                // A peer sent descriptors that close slowly: with more of them, more would leak.
                self.accepts_at = now + PAUSE;
                return;
            }
            match self.rendezvous.accept() {
                Ok(Some(stream)) => self.clients.push_back(Visitor::new(stream, now)),
                Ok(None) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.accepts_at = now + PAUSE,
            }
        }
    }
}

impl Visitor {
    fn new(stream: PeerStream, now: Instant) -> Self {
        Self { stream, request: [0; REQUEST_BYTES], received: 0, until: now + PATIENCE }
    }

    /// Receives a part of the request, and answers a whole one. Returns true if the client may stay: a client that left,
    /// or sent no request in time, gets nothing.
    fn waits_on(&mut self, now: Instant, look_up: &impl LookUp) -> bool {
        match recv_with_fds(&self.stream, &mut self.request[self.received..], 0) {
            Ok((0, _)) => return false,
            Ok((count, _)) => self.received += count,
            Err(error) => {
                let kind = error.kind();
                let comes = kind == io::ErrorKind::WouldBlock || kind == io::ErrorKind::Interrupted;
                return comes && now < self.until;
            }
        }
        assert!(self.received <= REQUEST_BYTES, "a read stays within its buffer");
        if self.received < REQUEST_BYTES {
            return now < self.until;
        }
        let id = u32::from_le_bytes(std::array::from_fn(|i| self.request[i]));
        let secret = u64::from_le_bytes(std::array::from_fn(|i| self.request[4 + i]));
        // The queue of a stream that was never sent to has room for the response.
        let _ = answer(&self.stream, look_up(id, secret));
        false
    }
}

fn answer(stream: &PeerStream, found: Option<Mappable>) -> io::Result<()> {
    let mut response = [0; RESPONSE_BYTES];
    let Some(Mappable { file, rights, bytes }) = found else {
        return send_with_fds(stream, &response, &[]).map(|_| ());
    };
    response[0] = 1;
    response[1] = u8::from(rights == MappedRights::ReadWrite);
    response[2..].copy_from_slice(&bytes.to_le_bytes());
    send_with_fds(stream, &response, &[file.as_fd()]).map(|_| ())
}

/// Receives bytes until `to` is full, and at most one descriptor. Gives up at `until`.
fn receive(
    stream: &PeerStream,
    mut to: &mut [u8],
    fds: &mut PeerFds,
    until: Instant,
) -> io::Result<()> {
    while !to.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let (count, more) = match recv_with_fds(stream, to, 1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            received => received?,
        };
        fds.add(more);
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to = &mut to[count..];
    }
    Ok(())
}

/// Fetches the memory of a region from the process behind the socket.
pub(crate) fn fetch(name: &[u8], key: RegionKey) -> Result<RegionMemory, Error> {
    let stream = connect(name).map_err(|error| cannot_map(&error))?;
    let mut fds = PeerFds::default();
    let response = ask(&stream, key, &mut fds).map_err(|error| cannot_map(&error))?;
    let [is_there, is_writable, bytes @ ..] = response;
    let Some(file) = fds.take_only().filter(|_| is_there == 1) else {
        let text = "the region cannot be mapped any more";
        return Err(Error::new(Status::PermissionDenied, text));
    };
    if u64::from_le_bytes(bytes) != key.bytes() {
        return Err(Error::new(Status::Internal, "the server's region has another size"));
    }
    let rights = if is_writable == 1 { MappedRights::ReadWrite } else { MappedRights::Read };
    let words = WordMemory::open(file, key.bytes(), rights);
    let words = words.map_err(|error| Error::new(Status::Internal, error.to_string()))?;
    Ok(RegionMemory::mapped(words))
}

fn ask(stream: &PeerStream, key: RegionKey, fds: &mut PeerFds) -> io::Result<[u8; RESPONSE_BYTES]> {
    // A request has room in the queue of a new stream; only the response is waited for.
    stream.set_nonblocking(false)?;
    let until = Instant::now() + CLIENT_PATIENCE;
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&key.id().to_le_bytes());
    request[4..].copy_from_slice(&key.secret().to_le_bytes());
    send_with_fds(stream, &request, &[])?;
    let mut response = [0; RESPONSE_BYTES];
    receive(stream, &mut response, fds, until)?;
    Ok(response)
}

fn cannot_map(error: &io::Error) -> Error {
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "the region's server is on another host, in another network namespace, or gone"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => "the region's server belongs to another user".to_owned(),
        io::ErrorKind::InvalidInput => "the server's answer is no name of a socket".to_owned(),
        _ => format!("cannot get the region's memory: {error}"),
    };
    Error::not_sent(Status::Unavailable, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A door whose regions are not there.
    fn door() -> Door {
        Door::open(|_, _| None).unwrap()
    }

    fn is_refused(name: &[u8]) -> bool {
        let refused = fetch(name, RegionKey::new(1, 2, 8)).unwrap_err();
        assert_eq!(refused.status, Status::PermissionDenied, "{refused}");
        true
    }

    /// More silent clients than the door serves: a silent client would delay the others.
    #[test]
    fn run__serves_clients_beside_silent_ones() {
        let (door, began) = (door(), Instant::now());
        let silent: Vec<_> = (0..CLIENTS_MAX + 6).map(|_| connect(door.name())).collect();
        assert!(silent.iter().all(|client| client.is_ok()));
        assert!(is_refused(door.name()));
        assert!(began.elapsed() < CLIENT_PATIENCE, "none of them had its whole time");
    }

    /// A client that sends a request byte by byte has a single timeout for the request.
    #[test]
    fn run__ends_connections_whose_request_is_slow() {
        let door = door();
        let slow = connect(door.name()).unwrap();
        let began = Instant::now();
        let mut sent = 0;
        while sent < REQUEST_BYTES && send_with_fds(&slow, &[0], &[]).is_ok() {
            sent += 1;
            std::thread::sleep(PATIENCE / 4);
        }
        assert!(sent < REQUEST_BYTES, "{sent} bytes in {:?}", began.elapsed());
        assert!(is_refused(door.name()));
    }

    /// The end of the thread needs no connection: the queue of connections may be full.
    #[test]
    fn drop__ends_the_thread() {
        let kept = std::sync::Arc::new(());
        let held = std::sync::Arc::clone(&kept);
        let door = Door::open(move |_, _| {
            let _ = &held;
            None
        });
        let door = door.unwrap();
        let name = door.name;
        assert!(is_refused(&name) && std::sync::Arc::strong_count(&kept) == 2);
        drop(door);
        let began = Instant::now();
        while std::sync::Arc::strong_count(&kept) == 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "it hangs");
            std::thread::yield_now();
        }
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
