//! Who looks on: a watcher that sees every frame, and an attacker who records packets and sends
//! others in anybody's name.

use crate::rng::Rng;
use crate::time::Time;

use super::cpu::PassClock;
use super::packet::{PacketRef, SimAddr};
use super::topology::HostId;
use super::trace_line::Mark;
use super::{Event, Fabric, Place};

/// What a watcher sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight<'a> {
    /// An endpoint sends a frame; it is in the transmit queue of its NIC.
    Sent {
        /// Who sends.
        from: SimAddr,
        /// To whom.
        to: SimAddr,
        /// The frame.
        frame: &'a [u8],
        /// The clock as its sender has seen it.
        clock: PassClock,
    },
    /// An endpoint takes a frame out of its receive queue.
    Taken {
        /// Who sent it, or seems to have.
        from: SimAddr,
        /// Who takes it.
        to: SimAddr,
        /// The frame.
        frame: &'a [u8],
    },
}

/// Sees everything that endpoints do.
pub(super) struct Watcher(Box<dyn FnMut(Sight<'_>)>);

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watcher")
    }
}

/// A packet that somebody recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Who sent it.
    pub from: SimAddr,
    /// To whom.
    pub to: SimAddr,
    /// Its frames.
    pub frames: Vec<Vec<u8>>,
}

/// A sample of the packets sent so far: old ones stay in it for long, because each new one takes a
/// random place, and only some do.
#[derive(Debug)]
pub(super) struct Wiretap {
    keep: usize,
    rng: Rng,
    recorded: Vec<Recorded>,
}

/// One packet in so many enters a full sample.
const ENTERS_ONE_IN: u64 = 8;

impl Wiretap {
    pub(super) fn new(keep: usize, rng: Rng) -> Self {
        Self { keep, rng, recorded: Vec::new() }
    }

    /// The place for the next packet, if it is to be recorded.
    fn place(&mut self) -> Option<usize> {
        if self.recorded.len() < self.keep {
            return Some(self.recorded.len());
        }
        let enters = self.rng.below(ENTERS_ONE_IN) == 0 && self.keep > 0;
        enters.then(|| self.rng.below(self.keep as u64) as usize)
    }
}

impl Fabric {
    /// Records a sample of `keep` packets from now on.
    pub(super) fn tap(&mut self, keep: usize) {
        let rng = Rng::stream(self.seed, super::STREAM_WIRETAP, 0);
        self.wiretap = Some(Wiretap::new(keep, rng));
    }

    /// Shows everything to `watcher` from now on.
    pub(super) fn watch(&mut self, watcher: impl FnMut(Sight<'_>) + 'static) {
        self.watcher = Some(Watcher(Box::new(watcher)));
    }

    /// Shows the watcher, if there is one, the frames of a packet.
    pub(super) fn show_sent(&mut self, packet: &PacketRef) {
        let clock = self.pass_clock();
        let Some(Watcher(watcher)) = &mut self.watcher else { return };
        let head = self.packets.head(packet);
        for frame in self.packets.frames(packet).iter() {
            watcher(Sight::Sent { from: head.from, to: head.to, frame, clock });
        }
    }

    /// The same for a frame whose packet is made later.
    pub(crate) fn show_frame_sent(&mut self, from: SimAddr, to: SimAddr, frame: &[u8]) {
        let clock = self.pass_clock();
        if let Some(Watcher(watcher)) = &mut self.watcher {
            watcher(Sight::Sent { from, to, frame, clock });
        }
    }

    /// The same for a frame that is received.
    pub(crate) fn show_frame_taken(&mut self, from: SimAddr, to: SimAddr, frame: &[u8]) {
        if let Some(Watcher(watcher)) = &mut self.watcher {
            watcher(Sight::Taken { from, to, frame });
        }
    }

    /// The recorded packets, in no particular order.
    pub(super) fn recorded(&self) -> &[Recorded] {
        self.wiretap.as_ref().map_or(&[], |wiretap| &wiretap.recorded)
    }

    /// Records a packet that is being sent.
    pub(super) fn overhear(&mut self, packet: &PacketRef) {
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

    /// Lets a packet arrive after `delay_ns` as if `from` had sent it.
    pub(super) fn inject(&mut self, from: SimAddr, to: SimAddr, frame: &[u8], delay_ns: u64) {
        let HostId(host) = to.host;
        if usize::from(host) >= self.hosts.len() {
            return;
        }
        let packet = self.packets.create(from, to);
        self.packets.frames_mut(&packet).push(frame, &[]);
        self.packets.head_mut(&packet).payload_bytes = frame.len() as u32;
        self.stats.injected += 1;
        self.record(&packet, Mark::Inject, Place::Host(to.host));
        let at: Time = self.now.plus_ns(delay_ns);
        self.queue.push(at, Event::Direct(packet));
    }
}
