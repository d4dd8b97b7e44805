//! Synthetic sources: packets without endpoints, to load a network or to measure it.
//!
//! A packet of a source has a length but no bytes, and its destination host consumes it at once: no port,
//! no receive queue, no processor. Otherwise links and switches treat it like any other packet. Watchers
//! and wiretaps do not see source packets, because they observe frames.

use crate::rng::Rng;
use crate::time::Time;

use super::arrivals::{ArrivalProcess, Arrivals};
use super::ecn::Ecn;
use super::histogram::Histogram;
use super::packet::{PacketRef, SimAddr};
use super::topology::HostId;
use super::trace_line::{Mark, Place};
use super::{Event, Fabric, STREAM_SOURCE};

/// Maximum number of sources of one fabric.
pub const SOURCES_MAX: usize = 1 << 16;

/// Maximum payload of a packet of a source, in bytes: the largest UDP payload over IPv4.
const PAYLOAD_BYTES_MAX: u32 = 65_507;

/// A source, numbered from 0 in the order in which sources are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

/// Settings of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// The source's address. The port need not be bound; it is hashed to choose among equal paths.
    pub from: SimAddr,
    /// The targets of the packets, chosen at random per packet.
    pub to: Vec<SimAddr>,
    /// The payload of each packet, in bytes.
    pub payload_bytes: u32,
    /// The arrival process.
    pub arrivals: Arrivals,
    /// Whether switches may mark its packets.
    pub ecn_capable: bool,
    /// The start time, in nanoseconds.
    pub start_ns: u64,
    /// The stop time, in nanoseconds.
    pub stop_ns: u64,
}

impl SourceConfig {
    /// Makes a source without marks on packets, which starts at once and never stops.
    pub fn new(from: SimAddr, to: SimAddr, payload_bytes: u32, arrivals: Arrivals) -> Self {
        let (to, ecn_capable, start_ns, stop_ns) = (vec![to], false, 0, u64::MAX);
        Self { from, to, payload_bytes, arrivals, ecn_capable, start_ns, stop_ns }
    }
}

/// The error of adding a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The topology lacks the source's host or a target's host.
    #[error("there is no host {0} in this fabric")]
    UnknownHost(HostId),
    /// The source has no target.
    #[error("a source needs at least one target that is not its own address")]
    NoTarget,
    /// The packets are larger than a datagram.
    #[error("packets of {bytes} bytes; a datagram has at most {PAYLOAD_BYTES_MAX}")]
    Payload {
        /// The requested size.
        bytes: u32,
    },
    /// The arrival process is impossible.
    #[error("the source cannot send like this: {0}")]
    Arrivals(&'static str),
    /// There are too many sources.
    #[error("a fabric has at most {SOURCES_MAX} sources")]
    TooMany,
}

/// The fate of a source's packets, since the start or since
/// [`FabricHandle::begin_measuring`](super::FabricHandle::begin_measuring).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceStats {
    /// Packets that entered the transmit queue.
    pub sent: u64,
    /// Packets that were not sent because the transmit queue was full, or the host was down.
    pub refused: u64,
    /// Packets that arrived; answers of a window are not counted.
    pub delivered: u64,
    /// Delivered packets that switches had marked.
    pub marked: u64,
    /// Packets and answers that were dropped, for any reason.
    pub lost: u64,
    /// The time from the transmit queue to the arrival of the last bit, for packets sent since the reset.
    pub delay: Histogram,
}

#[derive(Debug)]
pub(super) struct Source {
    config: SourceConfig,
    process: ArrivalProcess,
    pub(super) stats: SourceStats,
    /// Packets of a window that are not in flight.
    owed: u32,
    /// Whether an event is scheduled that tries to send owed packets.
    is_waiting: bool,
}

impl Fabric {
    pub(super) fn add_source(&mut self, config: SourceConfig) -> Result<SourceId, SourceError> {
        self.check_source(&config)?;
        let id = SourceId(self.sources.len() as u32);
        let rng = Rng::stream(self.seed, STREAM_SOURCE, id.0);
        let mut process = ArrivalProcess::new(config.arrivals, rng);
        let first = process.first(self.now.max(Time::from_ns(config.start_ns)));
        let owed = match config.arrivals {
            Arrivals::Window { packets, .. } => packets,
            _ => 0,
        };
        let stats = SourceStats::default();
        self.sources.push(Source { config, process, stats, owed, is_waiting: owed > 0 });
        self.queue.push(first, Event::Emit(id));
        Ok(id)
    }

    pub(super) fn handle_emit(&mut self, id: SourceId) {
        let source = &mut self.sources[id.0 as usize];
        if self.now >= Time::from_ns(source.config.stop_ns) {
            return;
        }
        if let Arrivals::Window { .. } = source.config.arrivals {
            source.is_waiting = false;
            return self.fill_window(id);
        }
        let next = source.process.next(self.now);
        let is_sent = self.emit(id);
        self.sources[id.0 as usize].stats.refused += u64::from(!is_sent);
        self.queue.push(next, Event::Emit(id));
    }

    /// Handles the arrival of a source's packet.
    pub(super) fn absorb(&mut self, id: SourceId, packet: PacketRef) {
        let head = *self.packets.head(&packet);
        self.stats.delivered += 1;
        self.record(&packet, Mark::Take, Place::Host(head.to.host));
        self.packets.free(packet);
        let source = &mut self.sources[id.0 as usize];
        let is_answer = head.to == source.config.from;
        if is_answer {
            source.owed = source.owed.saturating_add(1);
            return self.fill_window(id);
        }
        source.stats.delivered += 1;
        source.stats.marked += u64::from(head.ecn == Ecn::Ce);
        if head.sent_at >= self.measured_since {
            source.stats.delay.record(self.now.ps() - head.sent_at.ps());
        }
        if let Arrivals::Window { reply_bytes, .. } = source.config.arrivals {
            // An answer always finds room, in place of the packet that has just arrived.
            let answer = self.packet_of(id, head.to, head.from, reply_bytes);
            self.dispatch(answer);
        }
    }

    pub(super) fn begin_measuring(&mut self) {
        let now = self.now;
        self.measured_since = now;
        self.links.iter_mut().for_each(|link| link.begin_measuring(now));
        self.switches.iter_mut().for_each(|switch| switch.begin_measuring());
        self.sources.iter_mut().for_each(|source| source.stats = SourceStats::default());
    }

    /// Sends the missing packets of a window while the transmit queue has room.
    fn fill_window(&mut self, id: SourceId) {
        let has_stopped = self.now >= Time::from_ns(self.sources[id.0 as usize].config.stop_ns);
        while !has_stopped && self.sources[id.0 as usize].owed > 0 {
            if !self.emit(id) {
                return self.try_later(id);
            }
            self.sources[id.0 as usize].owed -= 1;
        }
    }

    /// Tries again when the link has sent about one more packet.
    fn try_later(&mut self, id: SourceId) {
        let source = &mut self.sources[id.0 as usize];
        if std::mem::replace(&mut source.is_waiting, true) {
            return;
        }
        let (host, payload) = (source.config.from.host, source.config.payload_bytes as usize);
        let uplink = &self.links[self.routes.uplink(host).0 as usize];
        let packet_ps = uplink.serialization_ps(self.wire_bytes(payload)).max(1);
        self.queue.push(self.now.plus_ps(packet_ps), Event::Emit(id));
    }

    /// Sends a packet and returns true if the host runs and its transmit queue has room.
    fn emit(&mut self, id: SourceId) -> bool {
        let source = &mut self.sources[id.0 as usize];
        let (from, payload_bytes) = (source.config.from, source.config.payload_bytes);
        let target = source.process.pick(source.config.to.len());
        let to = source.config.to[target];
        let is_up = self.hosts[usize::from(from.host.0)].is_up;
        if !is_up || !self.has_tx_room(from.host, payload_bytes as usize) {
            return false;
        }
        self.sources[id.0 as usize].stats.sent += 1;
        let packet = self.packet_of(id, from, to, payload_bytes);
        self.dispatch(packet);
        true
    }

    fn packet_of(&mut self, id: SourceId, from: SimAddr, to: SimAddr, bytes: u32) -> PacketRef {
        let ecn_capable = self.sources[id.0 as usize].config.ecn_capable;
        let packet = self.packets.create(from, to);
        let head = self.packets.head_mut(&packet);
        (head.payload_bytes, head.source) = (bytes, Some(id));
        head.ecn = if ecn_capable { Ecn::Ect0 } else { Ecn::NotEct };
        packet
    }

    fn check_source(&self, config: &SourceConfig) -> Result<(), SourceError> {
        if self.sources.len() >= SOURCES_MAX {
            return Err(SourceError::TooMany);
        }
        let hosts = std::iter::once(config.from).chain(config.to.iter().copied());
        let unknown = |at: &SimAddr| usize::from(at.host.0) >= self.hosts.len();
        if let Some(at) = hosts.into_iter().find(unknown) {
            return Err(SourceError::UnknownHost(at.host));
        }
        if config.to.is_empty() || config.to.contains(&config.from) {
            return Err(SourceError::NoTarget);
        }
        if config.payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(SourceError::Payload { bytes: config.payload_bytes });
        }
        match config.arrivals.problem() {
            Some(problem) => Err(SourceError::Arrivals(problem)),
            None => Ok(()),
        }
    }
}
