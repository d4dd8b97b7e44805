//! A device in memory, for simulators: completions come late, ways change, and some peers have none.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use super::Nic;
use super::ether::frame::{MacAddr, Template, parse};
use super::ether::sum::Sum;
use super::ether::ways::{Changes, Link, NoWay, Way};
use super::port::FindWays;

/// Frames that the device holds to send, and to receive.
const FRAMES: usize = 64;

/// Bytes of a frame: more than the largest datagram of a simulation.
const FRAME_BYTES_MAX: usize = 10_000;

/// One way in this number is not known when it is asked for.
const WAYS_PER_UNKNOWN: u64 = 8;

/// One look at the changes in this number finds some.
const LOOKS_PER_CHANGE: u64 = 64;

/// Pseudo-random draws (SplitMix64).
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// The device.
pub(crate) struct Simulated {
    begun: Option<Vec<u8>>,
    /// Queued frames.
    queued: VecDeque<Vec<u8>>,
    /// Sent frames whose memory has not come back.
    uncompleted: usize,
    received: VecDeque<Vec<u8>>,
    draws: Draws,
}

/// A frame that leaves the device: its destination and payload.
pub(crate) struct Leaving<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) payload: &'a [u8],
}

impl Simulated {
    pub(crate) fn new(seed: u64) -> Self {
        let (queued, received) = (VecDeque::new(), VecDeque::new());
        Self { begun: None, queued, uncompleted: 0, received, draws: Draws(seed) }
    }

    /// The oldest frame to send.
    ///
    /// # Panics
    /// When the frame is none that a peer accepts.
    pub(crate) fn leaving(&self) -> Option<Leaving<'_>> {
        let frame = self.queued.front()?;
        let parsed = parse(frame).expect("frames to send are well-formed");
        let to = (parsed.to_ip, parsed.to_port).into();
        Some(Leaving { to, payload: &frame[parsed.payload] })
    }

    /// The oldest frame has left the device; its memory comes back later.
    pub(crate) fn note_left(&mut self) {
        assert!(self.queued.pop_front().is_some(), "a frame has left");
        self.uncompleted += 1;
    }

    /// Returns true if the next datagrams arrive by the device, and not by the kernel's socket.
    pub(crate) fn catches(&mut self) -> bool {
        self.draws.below(8) > 0
    }

    /// Returns true if a frame has arrived.
    pub(crate) fn has_arrived(&self) -> bool {
        !self.received.is_empty()
    }

    pub(crate) fn has_room_to_receive(&self) -> bool {
        self.received.len() < FRAMES
    }

    /// A datagram arrives.
    pub(crate) fn arrive(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
        is_marked: bool,
    ) {
        let template = Template::new(from.ip(), to, MAC, MAC);
        let head_bytes = template.head_bytes();
        let mut frame = vec![0; head_bytes];
        frame.extend_from_slice(payload);
        template.write(&mut frame, payload.len(), from.port(), is_marked);
        if is_marked {
            mark(&mut frame);
        }
        // A short frame is padded to 60 bytes by its device.
        frame.resize(frame.len().max(60), 0xEE);
        self.received.push_back(frame);
    }
}

const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

/// Marks an ECN-capable packet of IPv4 as a router does (RFC 3168 §5).
fn mark(frame: &mut [u8]) {
    let ip = &mut frame[14..34];
    assert!(ip[0] == 0x45, "simulated packets are of IPv4");
    ip[1] |= 0b11;
    ip[10..12].fill(0);
    let checksum = Sum::of(ip).checksum();
    ip[10..12].copy_from_slice(&checksum);
}

impl Nic for Simulated {
    fn frame_bytes_max(&self) -> usize {
        FRAME_BYTES_MAX
    }

    fn receive_frames(&self) -> usize {
        FRAMES
    }

    fn has_room(&mut self, frames: usize) -> bool {
        self.uncompleted -= self.draws.below(self.uncompleted as u64 + 1) as usize;
        FRAMES - self.queued.len() - self.uncompleted >= frames
    }

    fn begin(&mut self) -> Option<&mut [u8]> {
        let is_full = self.queued.len() + self.uncompleted >= FRAMES;
        (!is_full).then(|| &mut self.begun.get_or_insert_with(|| vec![0xDD; FRAME_BYTES_MAX])[..])
    }

    fn commit(&mut self, bytes: usize) {
        let mut frame = self.begun.take().expect("a frame was begun");
        frame.truncate(bytes);
        self.queued.push_back(frame);
    }

    /// The simulator takes the frames when it likes.
    fn flush(&mut self) -> u64 {
        1
    }

    fn has_unsent(&mut self) -> bool {
        false
    }

    fn received(&mut self) -> Option<&mut [u8]> {
        self.received.front_mut().map(Vec::as_mut_slice)
    }

    fn has_received(&mut self) -> bool {
        self.has_arrived()
    }

    fn release(&mut self) {
        assert!(self.received.pop_front().is_some(), "a frame was received");
    }
}

/// The kernel's tables.
pub(crate) struct SimulatedWays {
    draws: Draws,
    /// Changes with the tables, and decides about the known ways: two questions between two changes have the same answer.
    version: u64,
}

impl SimulatedWays {
    pub(crate) fn new(seed: u64) -> Self {
        Self { draws: Draws(!seed), version: seed }
    }

    fn knows(&self, next_hop: IpAddr) -> bool {
        let bits = match next_hop {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            IpAddr::V6(v6) => v6.to_bits() as u64,
        };
        Draws(self.version ^ bits.rotate_left(32)).below(WAYS_PER_UNKNOWN) > 0
    }
}

impl FindWays for SimulatedWays {
    fn way_to(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Way, NoWay> {
        let next_hop = to.ip();
        if !self.knows(next_hop) {
            return Err(NoWay::Unresolved(next_hop));
        }
        let from_ip = from.expect("a simulated port has an address");
        Ok(Way { from_mac: MAC, to_mac: MAC, from_ip, next_hop, mtu_bytes: FRAME_BYTES_MAX })
    }

    fn read_events(&mut self) -> Changes {
        let must_ask_again = self.draws.below(LOOKS_PER_CHANGE) == 0;
        self.version += u64::from(must_ask_again);
        Changes { must_ask_again, neighbours: Vec::new(), link: Link::Up }
    }
}
