//! The thread that hands the memory files of regions to processes of the same host and user.
//!
//! A client learns the name of the thread's Unix socket by an operation of its session, connects, and sends the number
//! and secret of the region. The thread checks both once more, and sends the memory's file. A connection has
//! [`PATIENCE`] for each part of its request, so silent clients of the same user delay others.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use petrel_proto::Status;
use petrel_transport::shm::{
    NAME_BYTES, PeerFds, PeerStream, Rendezvous, can_close, connect, recv_with_fds, send_with_fds,
};
use petrel_transport::words::{MappedRights, WordMemory};
use rustix::event::{PollFd, PollFlags, poll};

use super::key::RegionKey;
use super::memory::RegionMemory;
use crate::error::Error;

/// The time that a client has for each part of its request.
const PATIENCE: Duration = Duration::from_secs(1);

/// The time that a client waits for its turn and the response: some silent clients may be before it.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);

/// Bytes of a request: number and secret.
const REQUEST_BYTES: usize = 12;

/// Bytes of a response: whether the file comes with it, whether it can be written to, and the region's size.
const RESPONSE_BYTES: usize = 10;

/// The thread's end of a registry. The thread ends with the registry.
pub(super) struct Door {
    name: [u8; NAME_BYTES],
}

/// A region that a process of this host may map.
pub(super) struct Mappable {
    pub(super) file: OwnedFd,
    pub(super) rights: MappedRights,
    pub(super) bytes: u64,
}

/// The registry is gone.
pub(super) struct Gone;

/// Looks a region up by number and secret; `None` if the region is not there, or cannot be mapped.
pub(super) trait LookUp:
    Fn(u32, u64) -> Result<Option<Mappable>, Gone> + Send + 'static
{
}

impl<F: Fn(u32, u64) -> Result<Option<Mappable>, Gone> + Send + 'static> LookUp for F {}

impl Door {
    /// Starts the thread.
    pub(super) fn open(look_up: impl LookUp) -> io::Result<Self> {
        let rendezvous = Rendezvous::bind()?;
        let name = rendezvous.name();
        let thread = std::thread::Builder::new().name("petrel-regions".to_owned());
        thread.spawn(move || run(rendezvous, &look_up))?;
        Ok(Self { name })
    }

    /// The name of the socket.
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Drop for Door {
    /// Ends the thread by a request, whose look-up finds the registry gone.
    fn drop(&mut self) {
        if let Ok(stream) = connect(&self.name) {
            let _ = send_with_fds(&stream, &[0; REQUEST_BYTES], &[]);
        }
    }
}

fn run(mut rendezvous: Rendezvous, look_up: &impl LookUp) {
    while wait(&rendezvous).is_ok() {
        loop {
            if !can_close() {
                // A peer sends descriptors that close slowly: more of them would be leaked.
                std::thread::sleep(PATIENCE);
                continue;
            }
            let stream = match rendezvous.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    // Too many descriptors are open: some may be closed soon.
                    std::thread::sleep(PATIENCE);
                    break;
                }
            };
            // A client that left, or sent no request, gets nothing.
            let request = be_patient(&stream, PATIENCE).and_then(|()| receive_request(&stream));
            let Ok((id, secret)) = request else { continue };
            let Ok(found) = look_up(id, secret) else { return };
            let _ = answer(&stream, found);
        }
    }
}

/// Waits for a connection.
fn wait(rendezvous: &Rendezvous) -> io::Result<()> {
    let fd = rendezvous.as_fd();
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes a stream wait, for a limited time.
fn be_patient(stream: &PeerStream, patience: Duration) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))
}

/// Receives the number and the secret of a region.
fn receive_request(stream: &PeerStream) -> io::Result<(u32, u64)> {
    let mut request = [0; REQUEST_BYTES];
    receive(stream, &mut request, 0, &mut PeerFds::default())?;
    let id = u32::from_le_bytes(std::array::from_fn(|i| request[i]));
    let secret = u64::from_le_bytes(std::array::from_fn(|i| request[4 + i]));
    Ok((id, secret))
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

/// Fills `to`, with at most `fds_max` descriptors.
fn receive(
    stream: &PeerStream,
    mut to: &mut [u8],
    fds_max: usize,
    fds: &mut PeerFds,
) -> io::Result<()> {
    while !to.is_empty() {
        let (count, more) = match recv_with_fds(stream, to, fds_max) {
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
pub(super) fn fetch(name: &[u8], key: RegionKey) -> Result<RegionMemory, Error> {
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
    be_patient(stream, CLIENT_PATIENCE)?;
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&key.id().to_le_bytes());
    request[4..].copy_from_slice(&key.secret().to_le_bytes());
    send_with_fds(stream, &request, &[])?;
    let mut response = [0; RESPONSE_BYTES];
    receive(stream, &mut response, 1, fds)?;
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
