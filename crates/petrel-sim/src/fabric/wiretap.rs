//! Observers: a watcher that sees every frame, and an attacker that records packets and sends forged packets.

use std::collections::VecDeque;

use crate::rng::Rng;
use crate::time::Time;

use super::cpu::TurnClock;
use super::packet::{PacketRef, SimAddr};
use super::topology::HostId;
use super::trace_line::Mark;
use super::{Event, Fabric, Place};

/// An observation of a watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation<'a> {
    /// An endpoint sends a frame; the frame is in the transmit queue of its NIC.
    Sent {
        /// The sender.
        from: SimAddr,
        /// The receiver.
        to: SimAddr,
        /// The sender's key path of the frame's link, if sealed.
        key_path: Option<u32>,
        /// The frame.
        frame: &'a [u8],
        /// The clock as the sender has seen it.
        clock: TurnClock,
    },
    /// A transport hands a received frame to its endpoint. Frames of unknown senders are dropped before.
    Taken {
        /// The address of the peer that is the sender for the receiver.
        from: SimAddr,
        /// The source port of the peer, by the list that the receiver has accepted; 0 is the port of `from`.
        source: u8,
        /// The receiver.
        to: SimAddr,
        /// The receiver's key path of the frame's link, if sealed. A plain link to the same peer is another link (§17.3).
        key_path: Option<u32>,
        /// The frame.
        frame: &'a [u8],
        /// Whether the packet met congestion: it came with CE.
        is_marked: bool,
    },
}

/// Sees all frames of endpoints.
pub(super) struct Watcher(Box<dyn FnMut(Observation<'_>)>);

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

/// A recorded packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The sender.
    pub from: SimAddr,
    /// The receiver.
    pub to: SimAddr,
    /// Its frames.
    pub frames: Vec<Vec<u8>>,
}

/// A kind of attack on sealed links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attack {
    /// A datagram comes again.
    Replay,
    /// A datagram goes back to the sender.
    Reflect,
    /// A datagram comes from another address, to another address, or under the path of another link.
    Mix,
    /// A bit is changed.
    Flip,
    /// The end is cut off.
    Truncate,
    /// The contents of a datagram come without seal, unchanged or changed, with the token of a session.
    Plain,
    /// A datagram comes to an endpoint without sealed links.
    ToPlain,
}

impl Attack {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Replay,
        Self::Reflect,
        Self::Mix,
        Self::Flip,
        Self::Truncate,
        Self::Plain,
        Self::ToPlain,
    ];
}

/// A sample of the packets sent so far. Old packets stay for long, because each new packet replaces a random packet,
/// and only some packets enter.
#[derive(Debug)]
pub(super) struct Wiretap {
    keep: usize,
    rng: Rng,
    recorded: Vec<Recorded>,
    /// The contents of the last sealed datagrams, the newest first.
    contents: VecDeque<Recorded>,
}

/// The number of kept contents of sealed datagrams.
const CONTENTS: usize = 50;

/// One packet in this number, on average, enters a full sample.
const PACKETS_PER_SAMPLE: u64 = 8;

impl Wiretap {
    pub(super) fn new(keep: usize, rng: Rng) -> Self {
        Self { keep, rng, recorded: Vec::new(), contents: VecDeque::new() }
    }

    /// Returns the place for the next packet, if that packet is to be recorded.
    fn place(&mut self) -> Option<usize> {
        if self.recorded.len() < self.keep {
            return Some(self.recorded.len());
        }
        let enters = self.rng.below(PACKETS_PER_SAMPLE) == 0 && self.keep > 0;
        enters.then(|| self.rng.below(self.keep as u64) as usize)
    }
}

impl Fabric {
    /// Records a sample of `keep` packets from now on.
    pub(super) fn start_recording(&mut self, keep: usize) {
        let rng = Rng::stream(self.seed, super::STREAM_WIRETAP, 0);
        self.wiretap = Some(Wiretap::new(keep, rng));
    }

    /// Shows everything to `watcher` from now on.
    pub(super) fn watch(&mut self, watcher: impl FnMut(Observation<'_>) + 'static) {
        self.watcher = Some(Watcher(Box::new(watcher)));
    }

    /// Shows the frames of a packet to a watcher.
    pub(super) fn show_sent(&mut self, packet: &PacketRef) {
        let clock = self.turn_clock();
        let Some(Watcher(watcher)) = &mut self.watcher else { return };
        let head = self.packets.head(packet);
        for frame in self.packets.frames(packet).iter() {
            let (from, to, key_path) = (head.from, head.to, None);
            watcher(Observation::Sent { from, to, key_path, frame, clock });
        }
    }

    /// Like `show_sent`, for a frame without a packet yet.
    pub(crate) fn show_frame_sent(
        &mut self,
        from: SimAddr,
        to: SimAddr,
        key_path: Option<u32>,
        frame: &[u8],
    ) {
        let clock = self.turn_clock();
        if let Some(Watcher(watcher)) = &mut self.watcher {
            watcher(Observation::Sent { from, to, key_path, frame, clock });
        }
    }

    /// Like `show_frame_sent`, for a frame that its receiver attributes to a source port of a peer.
    pub(crate) fn show_frame_taken(
        &mut self,
        (from, source): (SimAddr, u8),
        to: SimAddr,
        key_path: Option<u32>,
        frame: &[u8],
        is_marked: bool,
    ) {
        if let Some(Watcher(watcher)) = &mut self.watcher {
            watcher(Observation::Taken { from, source, to, key_path, frame, is_marked });
        }
    }

    /// The recorded packets, in no particular order.
    pub(super) fn recorded(&self) -> &[Recorded] {
        self.wiretap.as_ref().map_or(&[], |wiretap| &wiretap.recorded)
    }

    /// Records a packet that is being sent.
    pub(super) fn record_sample(&mut self, packet: &PacketRef) {
        let Some(wiretap) = &mut self.wiretap else { return };
        let Some(place) = wiretap.place() else { return };
        let head = self.packets.head(packet);
        let frames = self.packets.frames(packet).iter().map(<[u8]>::to_vec).collect();
        let recorded = Recorded { from: head.from, to: head.to, frames };
        if place < wiretap.recorded.len() {
            wiretap.recorded[place] = recorded;
        } else {
            wiretap.recorded.push(recorded);
        }
    }

    /// Records the contents of a departing sealed datagram: an attacker knows the contents, and lacks the key.
    pub(crate) fn record_contents(&mut self, from: SimAddr, to: SimAddr, contents: Vec<u8>) {
        let Some(Wiretap { contents: kept, .. }) = &mut self.wiretap else { return };
        kept.truncate(CONTENTS - 1);
        kept.push_front(Recorded { from, to, frames: vec![contents] });
    }

    /// The contents of the last sealed datagrams.
    pub(super) fn recorded_contents(&self) -> Option<&VecDeque<Recorded>> {
        self.wiretap.as_ref().map(|wiretap| &wiretap.contents)
    }

    /// Makes a packet arrive after `delay_ns` as if `from` had sent it.
    pub(super) fn inject(
        &mut self,
        from: SimAddr,
        to: SimAddr,
        frame: &[u8],
        delay_ns: u64,
        attack: Option<Attack>,
    ) {
        let HostId(host) = to.host;
        if usize::from(host) >= self.hosts.len() {
            return;
        }
        let packet = self.packets.create(from, to);
        self.packets.frames_mut(&packet).push(frame, &[]);
        let head = self.packets.head_mut(&packet);
        (head.payload_bytes, head.attack) = (frame.len() as u32, attack);
        self.stats.injected += 1;
        self.record(&packet, Mark::Inject, Place::Host(to.host));
        let at: Time = self.now.plus_ns(delay_ns);
        self.queue.push(at, Event::Direct(packet));
    }
}
