//! Packets in flight, and the memory they use again and again.

use super::topology::HostId;

/// Where an endpoint is reached: a host, and one of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SimAddr {
    /// The host.
    pub host: HostId,
    /// The port on it.
    pub port: u16,
}

impl SimAddr {
    /// The address of `port` on `host`.
    pub const fn new(host: HostId, port: u16) -> Self {
        Self { host, port }
    }
}

impl std::fmt::Display for SimAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// A packet: one or more frames on their way.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Counts packets over the whole run; for traces.
    pub(crate) number: u64,
    pub(crate) from: SimAddr,
    pub(crate) to: SimAddr,
    pub(crate) frames: Frames,
    /// Whether the fabric has changed its bytes.
    pub(crate) corrupted: bool,
}

/// The bytes of some frames, one behind the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frames {
    pub(crate) bytes: Vec<u8>,
    /// Where each frame ends in `bytes`; ascending.
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

    /// Cuts the bytes; frames behind the cut are gone, and the one across it is shorter.
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

/// A packet's place in [`Packets`]. Exactly one queue or event holds it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PacketRef(u32);

/// All packets of a fabric. Places are used again with their memory, so that a run at its cruising
/// height allocates nothing.
///
/// [`PacketRef`] is neither `Copy` nor `Clone`: whoever holds it must hand it on or free it, and
/// [`Packets::live`] counts those that are still held.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    places: Vec<Packet>,
    free: Vec<u32>,
    created: u64,
}

impl Packets {
    pub(crate) fn create(&mut self, from: SimAddr, to: SimAddr) -> PacketRef {
        let number = self.created;
        self.created += 1;
        let Some(index) = self.free.pop() else {
            let frames = Frames::default();
            self.places.push(Packet { number, from, to, frames, corrupted: false });
            return PacketRef((self.places.len() - 1) as u32);
        };
        let place = &mut self.places[index as usize];
        (place.number, place.from, place.to, place.corrupted) = (number, from, to, false);
        PacketRef(index)
    }

    /// A second packet with the same contents.
    pub(crate) fn duplicate(&mut self, packet: &PacketRef) -> PacketRef {
        let (from, to) = (self.get(packet).from, self.get(packet).to);
        let copy = self.create(from, to);
        let corrupted = self.get(packet).corrupted;
        let mut frames = std::mem::take(&mut self.get_mut(&copy).frames);
        frames.copy_from(&self.get(packet).frames);
        let place = self.get_mut(&copy);
        (place.frames, place.corrupted) = (frames, corrupted);
        copy
    }

    pub(crate) fn get(&self, packet: &PacketRef) -> &Packet {
        &self.places[packet.0 as usize]
    }

    pub(crate) fn get_mut(&mut self, packet: &PacketRef) -> &mut Packet {
        &mut self.places[packet.0 as usize]
    }

    /// Frees the place. Its memory stays for the next packet.
    pub(crate) fn free(&mut self, packet: PacketRef) {
        self.get_mut(&packet).frames.clear();
        self.free.push(packet.0);
    }

    /// Frees the place, and gives its frames for `frames`, whose memory it keeps instead.
    pub(crate) fn take(&mut self, packet: PacketRef, frames: &mut Frames) -> SimAddr {
        let place = self.get_mut(&packet);
        std::mem::swap(&mut place.frames, frames);
        let from = place.from;
        self.free(packet);
        from
    }

    /// Packets that somebody holds.
    pub(crate) fn live(&self) -> u64 {
        (self.places.len() - self.free.len()) as u64
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
        packets.get_mut(&first).frames.push(b"ab", b"c");
        let copy = packets.duplicate(&first);
        assert_eq!(packets.get(&copy).frames.bytes, b"abc");
        assert_eq!(packets.live(), 2);
        packets.free(first);
        let again = packets.create(B, A);
        assert_eq!(packets.get(&again).frames, Frames::default());
        assert_eq!(packets.get(&again).number, 2);
        let mut frames = Frames::default();
        assert_eq!(packets.take(copy, &mut frames), A);
        assert_eq!(frames.iter().collect::<Vec<_>>(), [b"abc"]);
        packets.free(again);
        assert_eq!((packets.live(), packets.places.len()), (0, 2));
    }

    proptest! {
        /// The naive model: the frames as separate vectors, of which the cut removes bytes.
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
