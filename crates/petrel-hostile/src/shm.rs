//! A peer in shared memory (`docs/wire-protocol.md` §8.4; the segment's header defines the layout of the
//! rings). The peer writes to the segment by `pwrite` and maps no memory.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixStream};

use rustix::cmsg_space;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::control::{Connection, Link, Message, PREFACE, Session, Shape, hello, kind};
use crate::frames;

const RING_BYTES: u64 = 1 << 20;

const MAX_FRAME_BYTES: u32 = 8_192;

const LAYOUT_VERSION: u32 = 3;

/// Offset of the ring to the server.
const RING_OFFSET: u64 = 4_096;

/// Offset of the word by which this side announces sleep: in the control words of the ring from the server.
const SLEEP_OFFSET: u64 = 512;

/// Offset of the word by which the server announces sleep: odd while it sleeps.
const SERVER_SLEEP_OFFSET: u64 = 256;

/// Marks the last record of a publication.
const LAST: u64 = 1 << 31;

/// Records begin at multiples of this number.
const RECORD_ALIGN: u64 = 64;

/// A process of the server's user and host, with a link through shared memory.
#[derive(Debug)]
pub struct Neighbour {
    connection: Connection,
    memory: OwnedFd,
    /// The bell for wake-ups of either side. This side never reads it.
    bell: UnixStream,
    session: Session,
    position: u64,
    request: u64,
    /// Number of sleeps announced by this side, and the server's sleep that this side ended last.
    sleeps: u64,
    ended: u64,
}

fn refused(what: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, format!("the server refused {what}"))
}

impl Neighbour {
    /// Opens a link through shared memory, and a session on it.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] if the server refuses a step; otherwise the system's error.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let mut connection = Connection::silent(address)?;
        connection.stream().write_all(&PREFACE)?;
        let theirs = connection.receive_any(&[kind::HELLO])?;
        let (Some(identity), Some(rendezvous)) = (theirs.value(6), theirs.value(7)) else {
            return Err(refused("shared memory"));
        };
        let own = hello(crate::control::HEARTBEAT_MS_MAX).with(6, identity).with(7, "elsewhere");
        connection.send(&own)?;
        let mut offer = vec![2];
        offer.extend(MAX_FRAME_BYTES.to_le_bytes());
        let open = Message::new(kind::LINK_OPEN)
            .with(1, 1u32.to_le_bytes())
            .with(2, 0u16.to_le_bytes())
            .with(3, 0u16.to_le_bytes())
            .with(4, offer);
        connection.send(&open)?;
        let accept = connection.receive_any(&[kind::LINK_ACCEPT, kind::LINK_REFUSE])?;
        let theirs = accept.value(4).and_then(|offer| offer.get(1..5)?.try_into().ok());
        let (Some(ticket), Some(theirs)) = (accept.value(5), theirs) else {
            return Err(refused("a link"));
        };
        let max_frame = MAX_FRAME_BYTES.min(u32::from_le_bytes(theirs));
        let memory = segment(max_frame)?;
        let name = net::SocketAddr::from_abstract_name(rendezvous)?;
        let mut bell = UnixStream::connect_addr(&name)?;
        show_ticket(&bell, ticket, &memory)?;
        let mut granted = [0];
        if bell.read(&mut granted)? != 1 || granted != [1] {
            return Err(refused("the rendezvous"));
        }
        bell.set_nonblocking(true)?;
        let data = address;
        let link = Link { number: 1, data, max_frame };
        let session = connection.open_session(&link, 1, Shape::default())?;
        let session = session.ok_or_else(|| refused("a session"))?;
        let (position, request, sleeps, ended) = (0, 0, 0, 0);
        Ok(Self { connection, memory, bell, session, position, request, sleeps, ended })
    }

    /// Returns the control connection.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Announces sleep once more: the server's next answer has to wake this side. The wake-ups are never
    /// read, and the bell's buffer fills up eventually.
    ///
    /// # Errors
    /// The system's error.
    pub fn declare_sleep(&mut self) -> io::Result<()> {
        let odd = 2 * self.sleeps + 1;
        self.sleeps += 1;
        rustix::io::pwrite(&self.memory, &odd.to_ne_bytes(), SLEEP_OFFSET)?;
        Ok(())
    }

    /// Returns true if the server has put more than `answers` answers into the ring to this side: the
    /// records of small answers are one line each.
    ///
    /// # Errors
    /// The system's error.
    pub fn has_answer(&self, answers: u64) -> io::Result<bool> {
        let mut word = [0; 8];
        let at = RING_OFFSET + RING_BYTES + answers * RECORD_ALIGN % RING_BYTES;
        rustix::io::pread(&self.memory, &mut word[..], at)?;
        Ok(u64::from_ne_bytes(word) != 0)
    }

    /// Sends a small request, and wakes the server for it.
    ///
    /// # Errors
    /// The system's error.
    pub fn send_request(&mut self, method: u16, payload: &[u8]) -> io::Result<()> {
        let slots = u64::from(self.session.slots);
        let (slot, round) = (self.request % slots, self.request / slots);
        self.request += 1;
        let frame = frames::request(&self.session, slot + round * slots, method, payload);
        let at = RING_OFFSET + self.position % RING_BYTES;
        rustix::io::pwrite(&self.memory, &frame, at + 8)?;
        let record = (8 + frame.len() as u64).next_multiple_of(RECORD_ALIGN);
        rustix::io::pwrite(&self.memory, &0u64.to_ne_bytes(), at + record)?;
        let header = frame.len() as u64 | LAST | self.position << 26;
        rustix::io::pwrite(&self.memory, &header.to_ne_bytes(), at)?;
        self.position += record;
        self.wake_sleeper()
    }

    /// Wakes the server if it sleeps: once for each sleep, as the server demands.
    fn wake_sleeper(&mut self) -> io::Result<()> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let mut word = [0; 8];
        rustix::io::pread(&self.memory, &mut word[..], SERVER_SLEEP_OFFSET)?;
        let word = u64::from_ne_bytes(word);
        if word % 2 == 1 && word != self.ended {
            self.ended = word;
            self.bell.write_all(&[0])?;
        }
        Ok(())
    }
}

/// Makes a sealed memory file with the header of a segment.
fn segment(max_frame: u32) -> io::Result<OwnedFd> {
    let memory = memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, RING_OFFSET + 2 * RING_BYTES)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let mut header = b"petrelsm".to_vec();
    header.extend(LAYOUT_VERSION.to_le_bytes());
    header.extend(max_frame.to_le_bytes());
    header.extend(RING_BYTES.to_le_bytes());
    rustix::io::pwrite(&memory, &header, 0)?;
    Ok(memory)
}

fn show_ticket(bell: &UnixStream, ticket: &[u8], memory: &OwnedFd) -> io::Result<()> {
    let fds = [memory.as_fd()];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    sendmsg(bell, &[IoSlice::new(ticket)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
