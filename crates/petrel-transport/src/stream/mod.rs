//! Frames over TCP connections, for peers that datagrams do not reach (`docs/wire-protocol.md` §16).
//!
//! | item | meaning |
//! | --- | --- |
//! | [`Stream`] | the [`Transport`]: all connections of one endpoint |
//! | [`StreamLink`] | a connection that the control plane has made |
//!
//! The control plane dials the address that the application gave, and both sides agree on the connection's purpose before
//! the transport gets the socket. Each frame is a `u32` length and the bytes. TCP repeats lost segments and paces the sender,
//! so a stream loses nothing, keeps the order, and counts as a medium without a network ([`Transport::is_networked`]). A lost
//! segment delays all frames behind it.
//!
//! Memory is bounded: a peer that does not read has [`OUT_BYTES_MAX`] bytes of frames kept for it, all peers together have
//! [`OUT_BYTES_OF_ALL_MAX`], and later frames are refused. A
//! peer that breaks the framing, or whose connection ends, is *broken*: its frames are dropped, and
//! [`Transport::take_broken`] reports the reason once.

mod cipher;
mod incoming;
mod outgoing;
mod sockets;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use crate::clock::{Clock, now_ns};
use crate::mux::Member;
use crate::transport::{
    FrameHandler, LinkError, MIN_FRAME_BYTES, NoReturn, PeerId, Transport, TransportStats,
};
use crate::wake::{Waker, Watch};
use incoming::{Incoming, Scratch};
use outgoing::Outgoing;
use sockets::Sockets;

pub use cipher::StreamCipher;
pub use outgoing::{OUT_BYTES_MAX, OUT_BYTES_OF_ALL_MAX};

/// The largest frame that the transport offers: large messages then cost few headers, and one frame does not fill the buffers.
pub const STREAM_FRAME_BYTES: usize = 64 << 10;

/// Up to this number of connections, a burst reads all connections. With more connections, a system call first finds
/// the readable connections.
const READ_ALL_MAX: usize = 2;

/// Time without traffic after which the kernel asks the peer, and between questions: translators forget silent connections.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A TCP connection for the frames of two endpoints.
#[derive(Debug)]
pub struct StreamLink {
    socket: TcpStream,
    max_frame: usize,
    received: Vec<u8>,
    cipher: Option<Box<dyn StreamCipher>>,
}

impl StreamLink {
    /// A connection whose two sides have agreed on frames of up to `max_frame` bytes. `received` are bytes read behind the
    /// agreement: the first of the frames.
    ///
    /// # Errors
    /// When the connection is broken.
    pub fn new(socket: TcpStream, max_frame: usize, received: Vec<u8>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
        SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
        Ok(Self { socket, max_frame, received, cipher: None })
    }

    /// Has the frames go on inside the TLS in which the two sides agreed. `received` of [`StreamLink::new`] are decrypted bytes.
    #[must_use]
    pub fn inside(mut self, cipher: Option<Box<dyn StreamCipher>>) -> Self {
        self.cipher = cipher;
        self
    }
}

/// The connection to a peer.
#[derive(Debug)]
struct Peer {
    socket: TcpStream,
    max_frame: usize,
    incoming: Incoming,
    outgoing: Outgoing,
    /// The connection's TLS.
    cipher: Option<Box<dyn StreamCipher>>,
    /// Why the connection cannot be used any more.
    broken: Option<String>,
    /// Whether the peer stands in the queue of peers to read.
    is_queued: bool,
    /// Whether the peer stands in the list of peers to write to.
    is_listed: bool,
}

/// The transport of one endpoint's TCP connections. See the [module](self).
#[derive(Debug)]
pub struct Stream {
    waker: Waker,
    /// Created with the first peer.
    sockets: Option<Sockets>,
    /// By id.
    peers: Vec<Option<Box<Peer>>>,
    count: usize,
    /// Peers with bytes to write.
    to_write: Vec<u32>,
    /// Peers to read, or with complete frames.
    to_read: VecDeque<u32>,
    /// Bytes kept for all peers.
    kept_bytes: usize,
    /// Broken peers that have not been reported.
    to_report: Vec<PeerId>,
    scratch: Scratch,
    stats: TransportStats,
}

impl Stream {
    /// Creates a transport without peers. Local threads wake the transport by `waker`.
    pub fn new(waker: Waker) -> Self {
        Self {
            waker,
            sockets: None,
            peers: Vec::new(),
            count: 0,
            to_write: Vec::new(),
            to_read: VecDeque::new(),
            kept_bytes: 0,
            to_report: Vec::new(),
            scratch: Scratch::default(),
            stats: TransportStats::default(),
        }
    }

    fn peer(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(peer.0 as usize)?.as_deref()
    }

    /// Writes the pending bytes of all peers, as far as the sockets accept.
    fn write_all(&mut self) {
        let mut at = 0;
        while let Some(&index) = self.to_write.get(at) {
            match self.write(index) {
                true => _ = self.to_write.swap_remove(at),
                false => at += 1,
            }
        }
    }

    /// Writes the pending bytes of a peer. Returns true if no byte is left.
    fn write(&mut self, index: u32) -> bool {
        let Some(peer) = self.peers[index as usize].as_deref_mut() else { return true };
        let before = peer.outgoing.pending();
        let cipher = peer.cipher.as_mut();
        let is_done = match peer.outgoing.write(&peer.socket, cipher, &mut self.stats) {
            Ok(is_done) => is_done,
            Err(error) => {
                let report = (&mut self.to_report, &mut self.stats);
                break_off(peer, index, report, error.to_string());
                true
            }
        };
        peer.is_listed &= !is_done;
        assert!(self.kept_bytes >= before, "the bytes of each peer are counted");
        self.kept_bytes -= before - peer.outgoing.pending();
        is_done
    }

    /// Queues the peers that may have bytes.
    fn find_readable(&mut self) {
        if self.count > READ_ALL_MAX {
            return self.queue_ready();
        }
        let all = (0..).zip(&mut self.peers);
        let there = all.filter_map(|(index, peer)| Some((index, peer.as_deref_mut()?)));
        there.for_each(|(index, peer)| queue(peer, index, &mut self.to_read));
    }

    /// Queues the peers whose sockets have changed.
    fn queue_ready(&mut self) {
        let Some(sockets) = &self.sockets else { return };
        self.stats.rx_syscalls += 1;
        sockets.take_ready(|index| {
            if let Some(peer) = self.peers.get_mut(index as usize).and_then(Option::as_deref_mut) {
                queue(peer, index, &mut self.to_read);
            }
        });
    }

    /// Delivers up to `budget` frames of a peer. Returns their number, and true if the peer may have more.
    fn read<H: FrameHandler<NoReturn>>(
        &mut self,
        index: u32,
        budget: usize,
        handler: &mut H,
    ) -> (usize, bool) {
        let Some(peer) = self.peers[index as usize].as_deref_mut() else { return (0, false) };
        peer.is_queued = false;
        if peer.broken.is_some() {
            return (0, false);
        }
        let Peer { socket, max_frame, incoming, cipher, .. } = peer;
        let id = PeerId(index);
        let mut deliver = |frame: &[u8]| handler.handle(id, frame, None);
        let (count, end) = incoming.deliver(
            (socket, cipher.as_mut(), *max_frame),
            budget,
            &mut self.scratch,
            &mut self.stats,
            &mut deliver,
        );
        let may_have_more = match end {
            Ok(may_have_more) => may_have_more,
            Err(why) => {
                self.kept_bytes -= peer.outgoing.pending();
                break_off(peer, index, (&mut self.to_report, &mut self.stats), why);
                false
            }
        };
        (count, may_have_more)
    }
}

/// Queues a peer to be read, once.
fn queue(peer: &mut Peer, index: u32, to_read: &mut VecDeque<u32>) {
    if !std::mem::replace(&mut peer.is_queued, true) {
        to_read.push_back(index);
    }
}

/// Stops the use of a peer's connection.
fn break_off(
    peer: &mut Peer,
    index: u32,
    (to_report, stats): (&mut Vec<PeerId>, &mut TransportStats),
    why: String,
) {
    // A frame may have been pushed after the write that failed.
    peer.outgoing.drop_all(stats);
    if peer.broken.is_none() {
        peer.broken = Some(why);
        to_report.push(PeerId(index));
    }
}

impl Transport for Stream {
    type Link = StreamLink;
    type Return = NoReturn;

    #[inline]
    fn now(&self) -> u64 {
        now_ns()
    }

    fn clock(&self) -> Clock {
        Clock::machine()
    }

    fn add_peer(&mut self, link: StreamLink) -> Result<PeerId, LinkError> {
        if link.max_frame < MIN_FRAME_BYTES {
            let why = format!("a stream with frames of only {} bytes", link.max_frame);
            return Err(LinkError::Unsupported(why));
        }
        let sockets = match &mut self.sockets {
            Some(sockets) => sockets,
            none => none.insert(Sockets::new()?),
        };
        let free = self.peers.iter().position(Option::is_none);
        let index = free.unwrap_or(self.peers.len()) as u32;
        sockets.add(&link.socket, index)?;
        let StreamLink { socket, max_frame, received, cipher } = link;
        let mut peer = Box::new(Peer {
            socket,
            max_frame,
            incoming: Incoming::new(received),
            outgoing: Outgoing::default(),
            cipher,
            broken: None,
            is_queued: false,
            is_listed: false,
        });
        queue(&mut peer, index, &mut self.to_read);
        match free {
            Some(free) => self.peers[free] = Some(peer),
            None => self.peers.push(Some(peer)),
        }
        self.count += 1;
        Ok(PeerId(index))
    }

    fn remove_peer(&mut self, peer: PeerId) {
        let Some(mut gone) = self.peers.get_mut(peer.0 as usize).and_then(Option::take) else {
            return;
        };
        self.kept_bytes -= gone.outgoing.pending();
        gone.outgoing.drop_all(&mut self.stats);
        // The kernel forgets a closed socket by itself.
        drop(gone);
        assert!(self.count > 0, "a peer that is removed was counted");
        self.count -= 1;
        self.to_read.retain(|index| *index != peer.0);
        self.to_write.retain(|index| *index != peer.0);
        self.to_report.retain(|broken| *broken != peer);
    }

    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.peer(peer).map_or(0, |peer| peer.max_frame)
    }

    /// TCP repeats lost segments, and controls the congestion.
    fn is_networked(&self, _: PeerId) -> bool {
        false
    }

    fn medium_of(&self, _: PeerId) -> &'static str {
        "stream"
    }

    #[inline]
    fn has_broken(&self) -> bool {
        !self.to_report.is_empty()
    }

    fn take_broken(&mut self) -> Option<(PeerId, String)> {
        let peer = self.to_report.pop()?;
        let why = self.peer(peer)?.broken.clone()?;
        Some((peer, why))
    }

    unsafe fn push(&mut self, id: PeerId, head: &[u8], body: &[u8]) -> bool {
        let Some(peer) = self.peers.get_mut(id.0 as usize).and_then(Option::as_deref_mut) else {
            self.stats.tx_dropped_no_peer += 1;
            return true;
        };
        let len = head.len() + body.len();
        if len > peer.max_frame {
            self.stats.tx_dropped_oversize += 1;
            return true;
        }
        if peer.broken.is_some() {
            self.stats.tx_dropped_error += 1;
            return true;
        }
        if !peer.outgoing.has_room(len, self.kept_bytes) {
            self.write(id.0);
        }
        let Some(peer) = self.peers[id.0 as usize].as_deref_mut() else { return true };
        let before = peer.outgoing.pending();
        let is_taken = peer.outgoing.push(head, body, self.kept_bytes);
        self.kept_bytes += peer.outgoing.pending() - before;
        if !std::mem::replace(&mut peer.is_listed, true) {
            self.to_write.push(id.0);
        }
        self.stats.tx_blocked += u64::from(!is_taken);
        is_taken
    }

    #[inline]
    fn flush(&mut self) {
        if !self.to_write.is_empty() {
            self.write_all();
        }
    }

    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut handler: H) -> usize {
        self.flush();
        self.find_readable();
        let mut received = 0;
        // Each peer gets one turn.
        for _ in 0..self.to_read.len() {
            if received >= budget {
                break;
            }
            let Some(index) = self.to_read.pop_front() else { break };
            let (count, may_have_more) = self.read(index, budget - received, &mut handler);
            received += count;
            if may_have_more && let Some(peer) = self.peers[index as usize].as_deref_mut() {
                queue(peer, index, &mut self.to_read);
            }
        }
        received
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        self.wait_as_member(timeout_ns);
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}

impl Member for Stream {
    #[inline]
    fn has_peers(&self) -> bool {
        self.count > 0
    }

    /// Takes the sockets' events so far, each of which would end the sleep: the next burst reads the sockets instead.
    fn prepare_wait(&mut self) -> bool {
        self.queue_ready();
        self.to_read.is_empty() && self.to_report.is_empty()
    }

    fn watch<'a>(&'a self, watch: &mut Watch<'a>) {
        if let Some(sockets) = &self.sockets {
            watch.add(sockets.as_fd(), false);
        }
    }
}
