//! Packets in flight, and their reused memory.

use super::ecn::Ecn;
use super::source::SourceId;
use super::topology::HostId;
use super::wiretap::Attack;
use crate::time::Time;

/// The address of an endpoint: a host and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimAddr {
    /// The host.
    pub host: HostId,
    /// The port on it.
    pub port: u16,
}

impl SimAddr {
    /// Makes the address of `port` on `host`.
    pub const fn new(host: HostId, port: u16) -> Self {
        Self { host, port }
    }
}

impl std::fmt::Display for SimAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The metadata of a packet. Small, because each hop reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Counts packets over the whole run; for traces.
    pub(crate) number: u64,
    /// When the packet entered the transmit queue.
    pub(crate) sent_at: Time,
    pub(crate) from: SimAddr,
    pub(crate) to: SimAddr,
    /// The length of the frames. A packet of a source has a length, but no frames.
    pub(crate) payload_bytes: u32,
    /// The source that made the packet, unless an endpoint did.
    pub(crate) source: Option<SourceId>,
    pub(crate) ecn: Ecn,
    /// Whether the fabric has changed the bytes.
    pub(crate) corrupted: bool,
    /// The kind of attack, for a packet of the attacker.
    pub(crate) attack: Option<Attack>,
    /// The time until the sender's device has read the packet.
    pub(crate) read_ns: u32,
}

impl Head {
    fn new(number: u64, from: SimAddr, to: SimAddr) -> Self {
        let (payload_bytes, source, ecn, corrupted) = (0, None, Ecn::NotEct, false);
        let (sent_at, attack, read_ns) = (Time::ZERO, None, 0);
        Self { number, sent_at, from, to, payload_bytes, source, ecn, corrupted, attack, read_ns }
    }
}

/// The concatenated bytes of some frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frames {
    pub(crate) bytes: Vec<u8>,
    /// The ends of all frames in `bytes`; ascending.
    ends: Vec<u32>,
}

impl Frames {
    pub(crate) fn push(&mut self, head: &[u8], body: &[u8]) {
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(body);
        self.ends.push(self.bytes.len() as u32);
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start as usize..end as usize])
    }

    /// Truncates the bytes. Frames after the cut are removed, and the frame across the cut is shortened.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
        let length = self.bytes.len();
        let kept = self.ends.iter().take_while(|&&end| (end as usize) < length).count();
        self.ends.truncate(kept);
        if length > self.ends.last().map_or(0, |&end| end as usize) {
            self.ends.push(length as u32);
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    fn copy_from(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend_from_slice(&other.ends);
    }
}

/// A packet's index in [`Packets`]. Exactly one queue or event holds it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PacketRef(u32);

/// All packets of a fabric. Entries are reused with their memory: a run in steady state allocates nothing.
///
/// [`PacketRef`] is neither `Copy` nor `Clone`: the holder must pass on or free the packet, and
/// [`Packets::live`] counts held packets.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    heads: Vec<Head>,
    /// Separate from the heads: equal in number, but only sender and receiver of a packet touch its frames.
    frames: Vec<Frames>,
    free: Vec<u32>,
    created: u64,
}

impl Packets {
    pub(crate) fn create(&mut self, from: SimAddr, to: SimAddr) -> PacketRef {
        let head = Head::new(self.created, from, to);
        self.created += 1;
        if let Some(index) = self.free.pop() {
            self.heads[index as usize] = head;
            return PacketRef(index);
        }
        self.heads.push(head);
        self.frames.push(Frames::default());
        PacketRef((self.heads.len() - 1) as u32)
    }

    pub(crate) fn duplicate(&mut self, packet: &PacketRef) -> PacketRef {
        let original = *self.head(packet);
        let copy = self.create(original.from, original.to);
        let number = self.head(&copy).number;
        *self.head_mut(&copy) = Head { number, ..original };
        let mut frames = std::mem::take(self.frames_mut(&copy));
        frames.copy_from(self.frames(packet));
        *self.frames_mut(&copy) = frames;
        copy
    }

    #[inline]
    pub(crate) fn head(&self, packet: &PacketRef) -> &Head {
        &self.heads[packet.0 as usize]
    }

    #[inline]
    pub(crate) fn head_mut(&mut self, packet: &PacketRef) -> &mut Head {
        &mut self.heads[packet.0 as usize]
    }

    pub(crate) fn frames(&self, packet: &PacketRef) -> &Frames {
        &self.frames[packet.0 as usize]
    }

    pub(crate) fn frames_mut(&mut self, packet: &PacketRef) -> &mut Frames {
        &mut self.frames[packet.0 as usize]
    }

    /// Frees the entry. Its memory stays for the next packet.
    pub(crate) fn free(&mut self, packet: PacketRef) {
        if self.head(&packet).source.is_none() {
            self.frames_mut(&packet).clear();
        }
        self.free.push(packet.0);
    }

    /// Frees the entry, and swaps its frames with `frames` to reuse memory.
    pub(crate) fn take(&mut self, packet: PacketRef, frames: &mut Frames) -> Head {
        let head = *self.head(&packet);
        std::mem::swap(self.frames_mut(&packet), frames);
        self.free(packet);
        head
    }

    /// Returns the number of packets that are held.
    pub(crate) fn live(&self) -> u64 {
        (self.heads.len() - self.free.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: SimAddr = SimAddr::new(HostId(0), 1);
    const B: SimAddr = SimAddr::new(HostId(1), 2);

    #[test]
    fn packets__places_are_used_again() {
        let mut packets = Packets::default();
        let first = packets.create(A, B);
        packets.frames_mut(&first).push(b"ab", b"c");
        let copy = packets.duplicate(&first);
        assert_eq!(packets.frames(&copy).bytes, b"abc");
        assert_eq!(packets.live(), 2);
        packets.free(first);
        let again = packets.create(B, A);
        assert_eq!(*packets.frames(&again), Frames::default());
        assert_eq!(packets.head(&again).number, 2);
        let mut frames = Frames::default();
        assert_eq!(packets.take(copy, &mut frames).from, A);
        assert_eq!(frames.iter().collect::<Vec<_>>(), [b"abc"]);
        packets.free(again);
        assert_eq!((packets.live(), packets.heads.len()), (0, 2));
    }

    proptest! {
        /// The naive model: the frames as separate vectors, from which the cut removes bytes.
        #[test]
        fn truncate__cuts_frames(lengths in prop::collection::vec(1usize..9, 1..6), cut in 0usize..50) {
            let mut frames = Frames::default();
            let mut expected: Vec<Vec<u8>> = Vec::new();
            let mut left = cut;
            for (index, &length) in lengths.iter().enumerate() {
                let frame = vec![index as u8; length];
                frames.push(&frame[..1], &frame[1..]);
                let kept = length.min(left);
                left -= kept;
                if kept > 0 {
                    expected.push(frame[..kept].to_vec());
                }
            }
            frames.truncate(cut);
            prop_assert_eq!(frames.count(), expected.len());
            prop_assert_eq!(frames.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), expected);
        }
    }
}
