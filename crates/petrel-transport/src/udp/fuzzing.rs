//! The fuzz targets `plan` and, in `sealed`, `sealed` (`fuzz/README.md`). Of `plan`, frames pass through the sending plan into messages,
//! are cut and joined as by the kernel, and become frames again in the receive buffers. No socket
//! takes part.

pub mod sealed;

use std::net::SocketAddr;
use std::ops::ControlFlow;

use super::addr::RawAddr;
use super::deliver::deliver_train;
use super::peers::PeerTable;
use super::plan::{Loose, Message, PIECES_MAX, Plan, SMALL_FRAME_BYTES_MAX};
use super::receive::Receiver;
use crate::bundle::{self, BUNDLE_MARK};
use crate::transport::{FrameHandler, NoReturn, PeerId, TransportStats};

/// The largest datagram of each peer.
const LIMITS: [usize; 4] = [1_232, 1_472, 8_972, 65_507];

/// Most bytes of a message: with offload, with little of it, and without.
const MESSAGE_BYTES_MAX: [usize; 3] = [65_507, 6_000, 0];

/// Most datagrams that the kernel cuts from a message.
const SEGMENTS_MAX: usize = 64;

/// Most bytes the kernel joins.
const TRAIN_BYTES_MAX: usize = 65_507;

/// Most bursts and bytes of an input, to bound the time.
const BURSTS_MAX: usize = 8;
const BYTES_MAX: usize = 1 << 20;

/// Sends bursts of frames. The input chooses their peers and lengths, and the kernel's refusals.
/// The result must obey the kernel's rules, and be exactly the sent frames in each peer's order.
/// Then receives buffers no plan has made.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(&mut input);
    for _ in 0..BURSTS_MAX {
        if input.is_empty() || world.bytes > BYTES_MAX {
            break;
        }
        world.burst(&mut input);
    }
    world.receive_anything(&mut input);
}

/// A source of decisions: bytes from the front of the input, then zeros.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn below(&mut self, end: usize) -> usize {
        self.take(1).first().map_or(0, |byte| usize::from(*byte)) % end
    }

    fn number(&mut self) -> usize {
        self.below(256) << 8 | self.below(256)
    }
}

struct World {
    plan: Plan,
    /// The last queue of each peer, as in the peer table.
    lanes: [u32; LIMITS.len()],
    message_bytes_max: usize,
    receiver: Receiver,
    peers: PeerTable,
    /// The senders' ids in the peer table.
    names: [PeerId; LIMITS.len()],
    stats: TransportStats,
    /// Peers removed in this burst: their order holds separately before and after the removal.
    is_reused: [bool; LIMITS.len()],
    bytes: usize,
    next: u8,
}

fn address(peer: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 1 + peer as u16))
}

/// The received frames, with the id of their sender.
#[derive(Default)]
struct Came(Vec<(PeerId, Vec<u8>)>);

impl FrameHandler<NoReturn> for Came {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: Option<&mut NoReturn>) {
        self.0.push((peer, frame.to_vec()));
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.push((peer, frame.to_vec()));
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let message_bytes_max = MESSAGE_BYTES_MAX[input.below(3)];
        let mut peers = PeerTable::new();
        let mut add = |peer| peers.add(address(peer), LIMITS[peer], (false, None));
        let names = [0, 1, 2, 3].map(|peer| add(peer).expect("four peers fit"));
        Self {
            plan: Plan::new(message_bytes_max).expect("memory for a plan"),
            lanes: [0; LIMITS.len()],
            message_bytes_max,
            receiver: Receiver::new(true).expect("memory for buffers"),
            peers,
            names,
            stats: TransportStats::default(),
            is_reused: [false; LIMITS.len()],
            bytes: 0,
            next: 0,
        }
    }

    /// A burst of frames, until the plan is full or the input ends it.
    fn burst(&mut self, input: &mut Input<'_>) {
        // A frame's memory stays in place when the list grows.
        let mut sent: Vec<(usize, Vec<u8>)> = Vec::new();
        while !input.is_empty() && self.bytes <= BYTES_MAX {
            if self.step(input, &mut sent).is_break() {
                break;
            }
            self.check_loose(&sent);
        }
        self.plan.close();
        assert!(self.plan.is_closed() && self.plan.loose().is_none());
        self.check_messages(self.plan.messages(), self.message_bytes_max);
        let first = input.below(64).min(self.plan.messages().len());
        let (refused, frames) = (input.below(4), sent.clone());
        let mut arrived = Vec::new();
        match refused {
            // The kernel does not segment the messages after these.
            1 => {
                self.plan.ungroup(first);
                self.check_messages(&self.plan.messages()[first..], 0);
            }
            // The kernel accepts these and has no room for the rest. Callers may change their
            // frames from now on.
            2 => {
                arrived = self.datagrams(&self.plan.messages()[..first]);
                self.plan.keep(first);
                sent.iter_mut().for_each(|(_, frame)| frame.fill(BUNDLE_MARK));
                self.check_messages(self.plan.messages(), self.message_bytes_max);
            }
            _ => {}
        }
        arrived.extend(self.datagrams(self.plan.messages()));
        self.check_received(arrived, &frames, input);
        self.plan.clear();
        self.is_reused = [false; LIMITS.len()];
        assert!(self.plan.is_empty());
        if refused == 1 {
            // This plan would never segment again.
            self.plan = Plan::new(self.message_bytes_max).expect("memory for a plan");
        }
    }

    fn step(&mut self, input: &mut Input<'_>, sent: &mut Vec<(usize, Vec<u8>)>) -> ControlFlow<()> {
        let (choice, peer) = (input.below(16), input.below(LIMITS.len()));
        let sizes = [
            1 + input.below(100),
            1 + input.number() % LIMITS[peer],
            LIMITS[peer],
            [1_200, 1_232, 600, SMALL_FRAME_BYTES_MAX, SMALL_FRAME_BYTES_MAX + 1][input.below(5)],
        ];
        let size = sizes[input.below(4)].min(LIMITS[peer]);
        let count = match choice {
            0 => return ControlFlow::Break(()),
            1 => {
                self.plan.close_lane(PeerId(peer as u32), false);
                self.is_reused[peer] = true;
                return ControlFlow::Continue(());
            }
            2..=9 => 1,
            _ => 1 + input.below(70),
        };
        for _ in 0..count {
            if !self.plan.has_room() {
                return ControlFlow::Break(());
            }
            self.next = self.next.wrapping_add(1) % BUNDLE_MARK;
            sent.push((peer, vec![0x10 + self.next; size]));
            let frame = &sent[sent.len() - 1].1;
            let (head, body) = frame.split_at([0, 16, 24, size][choice % 4].min(size));
            // SAFETY: the frames live until the end of the burst, where the plan is cleared; they
            // change only after `keep`.
            unsafe { self.add(peer, head, body, choice.is_multiple_of(2)) };
            self.bytes += size;
        }
        ControlFlow::Continue(())
    }

    /// # Safety
    /// As for [`Plan::add_large`].
    unsafe fn add(&mut self, peer: usize, head: &[u8], body: &[u8], has_short_way: bool) {
        let id = PeerId(peer as u32);
        // SAFETY: by this function's contract.
        if has_short_way && unsafe { self.plan.try_extend(id, head, body) } {
            return;
        }
        let target = super::plan::Target {
            peer: id,
            name: &RawAddr::from(address(peer)),
            datagram_bytes_max: LIMITS[peer],
            lane: &mut self.lanes[peer],
        };
        if head.len() + body.len() <= SMALL_FRAME_BYTES_MAX {
            self.plan.add_small(target, head, body);
        } else {
            // SAFETY: by this function's contract.
            unsafe { self.plan.add_large(target, head, body) };
        }
    }

    /// A burst of one bundle can be sent before it is closed.
    fn check_loose(&self, sent: &[(usize, Vec<u8>)]) {
        let Some(Loose { piece, load, .. }) = self.plan.loose() else { return };
        // SAFETY: the piece lies in the plan, which is not changed meanwhile.
        let datagram =
            unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) };
        assert!(sent.iter().all(|(peer, _)| *peer == sent[0].0));
        assert!(datagram.len() <= LIMITS[sent[0].0]);
        let frames = bundle::frames(datagram).expect("a bundle, or a frame");
        assert!(frames.eq(sent.iter().map(|(_, frame)| &frame[..])));
        assert_eq!(load.frames as usize, sent.len());
    }

    /// The kernel's rules for segmentation offload, and the peers' limits for datagrams.
    fn check_messages(&self, messages: &[Message], message_bytes_max: usize) {
        for message in messages {
            let (peer, pieces) = (self.peer_of(message), self.plan.pieces_of(message).count());
            let bytes: usize = self.plan.pieces_of(message).map(|piece| piece.iov_len).sum();
            let (count, size) = (message.datagram_count, self.plan.segment_bytes(message));
            assert!((1..=PIECES_MAX).contains(&pieces) && (1..=SEGMENTS_MAX).contains(&count));
            assert!(count == 1 || bytes <= message_bytes_max);
            // Equal sizes, except a last datagram that is no longer and not empty.
            assert!(size <= LIMITS[peer] && size * (count - 1) < bytes && bytes <= size * count);
            assert!(size > 0);
            let loads = self.plan.load_of(message);
            assert!(loads.frames as usize >= count && loads.frame_bytes as usize <= bytes);
            if let Some(slice) = self.plan.slice_of(message) {
                assert_eq!(slice.len(), pieces);
            }
        }
    }

    fn peer_of(&self, message: &Message) -> usize {
        let RawAddr::V4(name) = self.plan.name_of(message) else { panic!("an IPv6 address") };
        usize::from(u16::from_be(name.sin_port)) - 1
    }

    /// Messages as the kernel cuts them: datagrams, with their peers.
    fn datagrams(&self, messages: &[Message]) -> Vec<(usize, Vec<u8>)> {
        let mut all = Vec::new();
        for message in messages {
            let mut bytes = Vec::new();
            for piece in self.plan.pieces_of(message) {
                // SAFETY: the frames are still in place and unchanged, or kept; the plan's own
                // memory is alive.
                bytes.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
                });
            }
            let peer = self.peer_of(message);
            let cut = bytes.chunks(self.plan.segment_bytes(message));
            all.extend(cut.map(|datagram| (peer, datagram.to_vec())));
        }
        all
    }

    /// Delivers the datagrams, joined as the kernel may join them, and compares with the sent
    /// frames.
    fn check_received(
        &mut self,
        datagrams: Vec<(usize, Vec<u8>)>,
        sent: &[(usize, Vec<u8>)],
        input: &mut Input<'_>,
    ) {
        let mut came = Came::default();
        let mut rest = &datagrams[..];
        while let Some((peer, first)) = rest.first() {
            let wanted = 1 + input.below(SEGMENTS_MAX);
            let (mut count, mut train) = (1, first.clone());
            while let Some((next, datagram)) = rest.get(count)
                && next == peer
                && count < wanted
                && train.len() == count * first.len()
                && datagram.len() <= first.len()
                && train.len() + datagram.len() <= TRAIN_BYTES_MAX
            {
                train.extend_from_slice(datagram);
                count += 1;
            }
            let segment = (count > 1 || wanted.is_multiple_of(2)).then_some(first.len() as u32);
            rest = &rest[count..];
            self.receiver.fill_with_any(&RawAddr::from(address(*peer)), &train, segment, 0);
            self.deliver(1 + input.below(5), &mut came);
        }
        for (peer, name) in self.names.into_iter().enumerate() {
            let of_peer = sent.iter().filter(|(to, _)| *to == peer).map(|(_, frame)| frame);
            let received = came.0.iter().filter(|(from, _)| *from == name).map(|(_, frame)| frame);
            let (mut of_peer, mut received) = (Vec::from_iter(of_peer), Vec::from_iter(received));
            if self.is_reused[peer] {
                of_peer.sort();
                received.sort();
            }
            assert!(received == of_peer, "frames of peer {peer} are lost, changed or out of order");
        }
        assert_eq!(came.0.len(), sent.len());
    }

    /// Delivers all received frames, some at a time.
    fn deliver(&mut self, budget: usize, came: &mut Came) {
        let Self { receiver, peers, stats, .. } = self;
        let mut turns = 0;
        while receiver.has_ready() {
            let before = came.0.len();
            let (frames, work) = deliver_train(receiver, peers, stats, budget, came);
            assert_eq!(frames, came.0.len() - before);
            assert!(work > 0, "a turn without work would have no end");
            turns += 1;
            assert!(turns <= TRAIN_BYTES_MAX + 1);
        }
    }

    /// Receives buffers with arbitrary bytes, senders and segment sizes, truncated or not.
    fn receive_anything(&mut self, input: &mut Input<'_>) {
        while !input.is_empty() {
            let peer = input.below(LIMITS.len() + 1);
            let segment = match input.below(4) {
                0 => None,
                1 => Some(input.below(4) as u32),
                2 => Some(input.number() as u32),
                _ => Some(u32::MAX),
            };
            let flags = [0, 0, 0, libc::MSG_TRUNC, libc::MSG_CTRUNC][input.below(5)];
            let len = input.below(256);
            let bytes = input.take(len);
            let mut came = Came::default();
            self.receiver.fill_with_any(&RawAddr::from(address(peer)), bytes, segment, flags);
            self.deliver(1 + input.below(5), &mut came);
            let size = segment.filter(|size| *size > 0).map_or(usize::MAX, |size| size as usize);
            let is_heard = flags == 0 && peer < LIMITS.len();
            let expected = bytes.chunks(size).filter(|_| is_heard);
            let expected = expected.filter_map(bundle::frames).flatten();
            assert!(came.0.iter().map(|(_, frame)| &frame[..]).eq(expected));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn plan__corpus() {
        check_corpus("plan", 40, super::check);
    }

    /// Checks every input of a target's corpus, of which there are at least `count_min`.
    pub(super) fn check_corpus(target: &str, count_min: usize, check: fn(&[u8])) {
        let folder = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let entries = std::fs::read_dir(&folder).unwrap();
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        assert!(paths.len() >= count_min, "{} inputs in {folder}", paths.len());
        paths.sort();
        for path in paths {
            println!("{}", path.display());
            check(&std::fs::read(&path).unwrap());
        }
    }
}
