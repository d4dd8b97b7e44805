//! Conversion of events to trace lines and digests.

use std::fmt::Write as _;

use crate::time::Time;

use super::packet::PacketRef;
use super::stats::DropReason;
use super::topology::{LinkId, NodeId, SwitchId};
use super::{Fabric, HostId};

/// An event of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// Entered a transmit queue.
    Send,
    /// Entered a receive queue.
    Arrive,
    /// Was taken by an endpoint.
    Take,
    /// Was dropped.
    Drop(DropReason),
    /// Was copied; the copy arrives this number of nanoseconds later.
    Duplicate(u64),
    /// Was delayed alone, by this number of nanoseconds.
    Reorder(u64),
    /// Was changed.
    Corrupt,
    /// Was marked with "congestion experienced".
    Congested,
    /// Began a spike up to this time.
    Spike(Time),
    /// Was injected from outside.
    Inject,
}

impl Mark {
    /// Returns two numbers for the digest.
    fn code(self) -> (u64, u64) {
        match self {
            Self::Send => (1, 0),
            Self::Arrive => (2, 0),
            Self::Take => (3, 0),
            Self::Drop(reason) => (4, reason as u64),
            Self::Duplicate(ns) => (5, ns),
            Self::Reorder(ns) => (6, ns),
            Self::Corrupt => (7, 0),
            Self::Spike(until) => (8, until.ps()),
            Self::Inject => (9, 0),
            Self::Congested => (10, 0),
        }
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Send => f.write_str("SEND"),
            Self::Arrive => f.write_str("ARRIVE"),
            Self::Take => f.write_str("TAKE"),
            Self::Drop(reason) => write!(f, "DROP({})", reason.name()),
            Self::Duplicate(ns) => write!(f, "DUPLICATE(+{ns} ns)"),
            Self::Reorder(ns) => write!(f, "REORDER(+{ns} ns)"),
            Self::Corrupt => f.write_str("CORRUPT"),
            Self::Spike(until) => write!(f, "SPIKE(until {until})"),
            Self::Inject => f.write_str("INJECT"),
            Self::Congested => f.write_str("CE"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Host(HostId),
    Switch(SwitchId),
    Link(LinkId),
}

impl Place {
    fn code(self) -> u64 {
        match self {
            Self::Host(HostId(index)) => 1 << 32 | u64::from(index),
            Self::Switch(SwitchId(index)) => 2 << 32 | u64::from(index),
            Self::Link(LinkId(index)) => 3 << 32 | u64::from(index),
        }
    }
}

impl Fabric {
    /// Adds a packet's event to the digest and, if the trace is on, to the trace.
    pub(super) fn record(&mut self, packet: &PacketRef, mark: Mark, place: Place) {
        let head = self.packets.head(packet);
        let (kind, detail) = mark.code();
        let length = u64::from(head.payload_bytes);
        for word in [self.now.ps(), kind, detail, place.code(), head.number, length] {
            self.digest = mix(self.digest, word);
        }
        if self.trace.is_on() {
            self.write_line(packet, mark, place);
        }
    }

    #[cold]
    fn write_line(&mut self, packet: &PacketRef, mark: Mark, place: Place) {
        let (head, frames) = (self.packets.head(packet), self.packets.frames(packet));
        let (now, links) = (self.now, &self.links);
        self.trace.write(|line, decoder| {
            let _ = write!(line, "{now} {}->{} #{}", head.from, head.to, head.number);
            for frame in frames.iter() {
                if let Some(decode) = decoder {
                    line.push_str(" [");
                    decode(frame, line);
                    line.push(']');
                }
            }
            let _ = write!(line, " len={}", head.payload_bytes);
            let broken = if head.corrupted { " (corrupted)" } else { "" };
            let _ = match place {
                Place::Host(host) => write!(line, "{broken} at {host} {mark}"),
                Place::Switch(switch) => {
                    write!(line, "{broken} at {} {mark}", NodeId::from(switch))
                }
                Place::Link(LinkId(index)) => {
                    let link = &links[index as usize];
                    write!(line, "{broken} on {}>{} {mark}", link.from, link.to)
                }
            };
        });
    }

    /// Writes text to the trace, and adds the time to the digest.
    pub(crate) fn note(&mut self, text: std::fmt::Arguments<'_>) {
        self.note_frame(text, &[]);
    }

    /// Like `note`, and appends the description of a frame.
    pub(super) fn note_frame(&mut self, text: std::fmt::Arguments<'_>, frame: &[u8]) {
        self.digest = mix(self.digest, self.now.ps());
        let now = self.now;
        if self.trace.is_on() {
            self.trace.write(|line, decoder| {
                let _ = write!(line, "{now} {text}");
                if let Some(decoder) = decoder.filter(|_| !frame.is_empty()) {
                    line.push(' ');
                    decoder(frame, line);
                }
            });
        }
    }
}

/// Returns a digest of a sequence of words; changing any word changes all later digests.
pub(super) fn mix(digest: u64, word: u64) -> u64 {
    let folded = u128::from(digest ^ word) * 0x9e37_79b9_7f4a_7c15;
    (folded >> 64) as u64 ^ folded as u64 ^ digest.rotate_left(23)
}
