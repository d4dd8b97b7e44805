//! A medium of which the library knows nothing: Unix datagrams between processes of one host.
//!
//! Frames for a peer share a datagram, in the form of [`bundle`]. A datagram that the kernel does not take stays in the
//! peer's outbox; a frame without room there is refused.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU32, Ordering};

use petrel::nexus::media::{Agreed, Ends, Medium, Obstacle, ObstacleAt, Opening, OtherOffer};
use petrel_proto::control::Offer;
use petrel_transport::bundle;
use petrel_transport::clock::{Clock, now_ns};
use petrel_transport::mux::{Member, MuxLink};
use petrel_transport::wake::{Waker, Watch};
use petrel_transport::{FrameHandler, LinkError, NoReturn, PeerId, Transport, TransportStats};

/// The kind of the medium's offers.
pub(crate) const KIND: u8 = 200;

const FRAME_BYTES_MAX: usize = 16 << 10;
const DATAGRAM_BYTES_MAX: usize = 60_000;

/// The address of an endpoint, and its largest frame.
#[derive(Clone, Debug)]
pub(crate) struct UnixLink {
    pub(crate) name: Vec<u8>,
    pub(crate) max_frame: usize,
}

struct Peer {
    address: SocketAddr,
    name: Vec<u8>,
    max_frame: usize,
    links: usize,
    /// A bundle of frames on their way.
    outbox: Vec<u8>,
    frames: u64,
    /// Frames of the burst are refused, to keep their order.
    is_full: bool,
}

/// The transport of one endpoint.
pub(crate) struct UnixDatagrams {
    socket: UnixDatagram,
    name: Vec<u8>,
    waker: Waker,
    peers: Vec<Option<Peer>>,
    ids: HashMap<Vec<u8>, usize>,
    received: Vec<u8>,
    /// The sender and the frames of the last datagram that are not delivered yet.
    left: (usize, VecDeque<Range<usize>>),
    stats: TransportStats,
}

impl UnixDatagrams {
    pub(crate) fn new(waker: Waker) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("petrel-test-{}-{number}", std::process::id()).into_bytes();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            name,
            waker,
            peers: Vec::new(),
            ids: HashMap::new(),
            received: vec![0; DATAGRAM_BYTES_MAX],
            left: (0, VecDeque::new()),
            stats: TransportStats::default(),
        }
    }

    pub(crate) fn link(&self) -> UnixLink {
        UnixLink { name: self.name.clone(), max_frame: FRAME_BYTES_MAX }
    }

    fn peer(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(peer.0 as usize)?.as_ref()
    }

    /// Sends a peer's outbox. Returns false if the kernel has no room.
    fn send(&mut self, index: usize) -> bool {
        let Some(peer) = self.peers[index].as_mut().filter(|peer| peer.frames > 0) else {
            return true;
        };
        self.stats.tx_syscalls += 1;
        match self.socket.send_to_addr(&peer.outbox, &peer.address) {
            Ok(_) => {
                let framing = bundle::MARK_BYTES + peer.frames as usize * bundle::LENGTH_BYTES;
                self.stats.tx_datagrams += 1;
                self.stats.tx_frames += peer.frames;
                self.stats.tx_bytes += (peer.outbox.len() - framing) as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => self.stats.tx_dropped_error += peer.frames,
        }
        peer.frames = 0;
        peer.outbox.clear();
        true
    }

    /// Receives a datagram. Returns false if there is none.
    fn refill(&mut self) -> bool {
        self.stats.rx_syscalls += 1;
        let Ok((len, from)) = self.socket.recv_from(&mut self.received) else { return false };
        let sender = from.as_abstract_name().and_then(|name| self.ids.get(name));
        let Some(&sender) = sender else {
            self.stats.rx_dropped_unknown_peer += 1;
            return true;
        };
        let Some(frames) = bundle::frames(&self.received[..len]) else {
            self.stats.rx_dropped_malformed += 1;
            return true;
        };
        let start = self.received.as_ptr().addr();
        let place = |frame: &[u8]| frame.as_ptr().addr() - start;
        let places = frames.map(|frame| place(frame)..place(frame) + frame.len());
        self.left = (sender, places.collect());
        self.stats.rx_datagrams += 1;
        true
    }

    fn has_backlog(&self) -> bool {
        self.peers.iter().flatten().any(|peer| peer.frames > 0)
    }
}

impl Transport for UnixDatagrams {
    type Link = UnixLink;
    type Return = NoReturn;

    fn now(&self) -> u64 {
        now_ns()
    }

    fn clock(&self) -> Clock {
        Clock::machine()
    }

    fn add_peer(&mut self, link: UnixLink) -> Result<PeerId, LinkError> {
        if let Some(&known) = self.ids.get(&link.name)
            && let Some(peer) = &mut self.peers[known]
        {
            peer.links += 1;
            return Ok(PeerId(known as u32));
        }
        let UnixLink { name, max_frame } = link;
        let address = SocketAddr::from_abstract_name(&name)?;
        let max_frame = max_frame.min(FRAME_BYTES_MAX);
        let peer = Peer {
            address,
            name: name.clone(),
            max_frame,
            links: 1,
            outbox: Vec::new(),
            frames: 0,
            is_full: false,
        };
        self.ids.insert(name, self.peers.len());
        self.peers.push(Some(peer));
        Ok(PeerId(self.peers.len() as u32 - 1))
    }

    fn remove_peer(&mut self, peer: PeerId) {
        let index = peer.0 as usize;
        let Some(Some(entry)) = self.peers.get_mut(index) else { return };
        entry.links -= 1;
        if entry.links > 0 {
            return;
        }
        self.stats.tx_dropped_no_peer += entry.frames;
        self.ids.remove(&entry.name);
        self.peers[index] = None;
        if self.left.0 == index {
            self.left.1.clear();
        }
    }

    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.peer(peer).map_or(0, |peer| peer.max_frame)
    }

    #[expect(unsafe_code, reason = "the trait's contract, which copying at once needs nothing of")]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let index = peer.0 as usize;
        let Some(Some(entry)) = self.peers.get(index) else {
            self.stats.tx_dropped_no_peer += 1;
            return true;
        };
        let len = head.len() + body.len();
        if len > entry.max_frame {
            self.stats.tx_dropped_oversize += 1;
            return true;
        }
        let has_room = |outbox: &[u8]| {
            outbox.len() + bundle::MARK_BYTES + bundle::record_bytes(len) <= DATAGRAM_BYTES_MAX
        };
        let is_taken = !entry.is_full && (has_room(&entry.outbox) || self.send(index));
        let Some(entry) = &mut self.peers[index] else { return true };
        entry.is_full = !is_taken;
        if !is_taken {
            self.stats.tx_blocked += 1;
            return false;
        }
        let mut used = entry.outbox.len();
        entry.outbox.resize(used.max(bundle::MARK_BYTES) + bundle::record_bytes(len), 0);
        if used == 0 {
            used = bundle::begin(&mut entry.outbox);
        }
        bundle::append(&mut entry.outbox, used, head, body);
        entry.frames += 1;
        true
    }

    fn flush(&mut self) {
        for index in 0..self.peers.len() {
            let is_sent = self.send(index);
            if let Some(peer) = &mut self.peers[index] {
                self.stats.tx_kept += if is_sent { 0 } else { peer.frames };
                peer.is_full = false;
            }
        }
    }

    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut handler: H) -> usize {
        if self.has_backlog() {
            self.flush();
        }
        let mut delivered = 0;
        while delivered < budget {
            let Some(place) = self.left.1.pop_front() else {
                if self.refill() {
                    continue;
                }
                break;
            };
            self.stats.rx_frames += 1;
            self.stats.rx_bytes += place.len() as u64;
            handler.handle(PeerId(self.left.0 as u32), &self.received[place], None);
            delivered += 1;
        }
        delivered
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        if self.prepare_wait() {
            let mut watch = Watch::new(&self.waker);
            self.watch(&mut watch);
            watch.sleep(timeout_ns);
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}

impl Member for UnixDatagrams {
    fn has_peers(&self) -> bool {
        !self.ids.is_empty()
    }

    fn prepare_wait(&mut self) -> bool {
        self.left.1.is_empty()
    }

    fn watch<'a>(&'a self, watch: &mut Watch<'a>) {
        watch.add(self.socket.as_fd(), self.has_backlog());
    }
}

/// The medium's part in the agreement: an endpoint's own address.
#[derive(Debug)]
pub(crate) struct UnixMedium(pub(crate) UnixLink);

impl<A> Medium<MuxLink<A, UnixLink>> for UnixMedium {
    fn name(&self) -> &'static str {
        "unix"
    }

    fn title(&self) -> &'static str {
        "Unix datagrams"
    }

    fn kind(&self) -> u8 {
        KIND
    }

    fn offer(&self, ends: &Ends<'_>) -> Result<Offer, Obstacle> {
        if !ends.is_one_host() {
            return Err(Obstacle::new(ObstacleAt::Peer, "the peer is on another host"));
        }
        let offer = OtherOffer::new(KIND, self.0.max_frame as u32, &self.0.name);
        let too_long = || Obstacle::new(ObstacleAt::Endpoint, "the name is too long");
        offer.map(Offer::Other).ok_or_else(too_long)
    }

    fn open(&self, agreed: Agreed) -> Opening<MuxLink<A, UnixLink>> {
        let Offer::Other(offer) = agreed.offer else { panic!("offers of kind {KIND} are others") };
        let (name, max_frame) = (offer.fields().to_vec(), agreed.max_frame as usize);
        Opening::Link(MuxLink::Far(UnixLink { name, max_frame }))
    }
}
