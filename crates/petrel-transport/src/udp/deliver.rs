//! Delivers the frames of received datagrams to their handler.

mod sealed;

use std::os::fd::AsFd;

use petrel_planted::planted;

use super::Udp;
use super::addr::AddrKey;
use super::peers::{FurtherSource, PeerTable};
use super::receive::{Train, Trains};
use crate::bundle::{self, BUNDLE_MARK};
use crate::clock;
use crate::transport::{FrameHandler, NoReturn, PeerId, TransportStats};
use sealed::deliver_some_sealed;

impl Udp {
    /// Receives datagrams from the socket, and returns true if the socket is known to hold more.
    #[inline]
    pub(super) fn refill(&mut self) -> bool {
        let (syscalls, more) = self.receiver.refill(self.socket.as_fd());
        self.stats.rx_syscalls += syscalls;
        more
    }

    /// Receives by the socket, up to about `budget` frames. Returns their number.
    #[inline(always)]
    pub(super) fn receive_by_socket<H: FrameHandler<NoReturn>>(
        &mut self,
        budget: usize,
        handler: &mut H,
    ) -> usize {
        let (mut delivered, mut work, mut may_hold_more) = (0, 0, true);
        while work < budget {
            if !self.receiver.has_ready() {
                if !may_hold_more {
                    break;
                }
                may_hold_more = self.refill();
                continue;
            }
            let (frames, effort) = self.deliver(budget - work, handler);
            (delivered, work) = (delivered + frames, work + effort);
        }
        if !self.listeners.is_empty() {
            delivered += self.deliver_multicast(budget, handler);
        }
        delivered
    }

    /// Receives by the device, and now and then by the socket, up to about `budget` frames each. Returns their number.
    #[inline(never)]
    pub(super) fn receive_by_device<H: FrameHandler<NoReturn>>(
        &mut self,
        budget: usize,
        handler: &mut H,
    ) -> usize {
        let Self { device: Some(device), peers, stats, socket, .. } = self else {
            unreachable!("the caller has looked for a device")
        };
        let (mut delivered, mut work) = (0, 0);
        if let Some(port) = device.port() {
            if port.has_unsent() {
                stats.tx_syscalls += port.flush();
            }
            while work < budget && port.poll(stats) {
                let (frames, effort) = deliver_ready(port, peers, stats, budget - work, handler);
                (delivered, work) = (delivered + frames, work + effort);
            }
        }
        if device.note_poll(work) {
            device.look(clock::now_ns(), socket, stats);
            let (is_on, before) = (device.is_on(), stats.rx_datagrams);
            delivered += self.receive_by_socket(budget, handler);
            if is_on {
                let missed = self.stats.rx_datagrams - before;
                self.stats.rx_device_missed += missed;
                if let Some(device) = self.device.as_mut().filter(|_| missed > 0) {
                    device.expect_missed();
                }
            }
        }
        delivered
    }

    /// Delivers the frames of received datagrams, up to about `budget`. Returns the number of
    /// frames and the work in frames: dropped datagrams count as work too, so a flood of them
    /// cannot hold us.
    #[inline]
    pub(super) fn deliver<H: FrameHandler<NoReturn>>(
        &mut self,
        budget: usize,
        handler: &mut H,
    ) -> (usize, usize) {
        let Self { receiver, peers, stats, .. } = self;
        deliver_ready(receiver, peers, stats, budget, handler)
    }

    /// Delivers frames received by multicast, up to about `budget`. Returns their number.
    #[cold]
    #[inline(never)]
    pub(super) fn deliver_multicast<H: FrameHandler<NoReturn>>(
        &mut self,
        budget: usize,
        handler: &mut H,
    ) -> usize {
        let Self { listeners, peers, stats, .. } = self;
        stats.rx_syscalls += listeners.refill();
        let (mut delivered, mut work) = (0, 0);
        while work < budget
            && let Some(receiver) = listeners.next_ready()
        {
            let (frames, effort) = deliver_train(receiver, peers, stats, budget - work, handler);
            (delivered, work) = (delivered + frames, work + effort);
        }
        delivered
    }
}

/// Delivers frames of received datagrams, of one buffer; see [`Udp::deliver`].
#[inline(always)]
pub(super) fn deliver_ready<H: FrameHandler<NoReturn>>(
    receiver: &mut impl Trains,
    peers: &mut PeerTable,
    stats: &mut TransportStats,
    budget: usize,
    handler: &mut H,
) -> (usize, usize) {
    if receiver.is_marked() {
        return deliver_marked(receiver, peers, stats, budget, handler);
    }
    deliver_train(receiver, peers, stats, budget, handler)
}

/// [`Udp::deliver`] of datagrams that met congestion: every frame of them did
/// (`docs/wire-protocol.md` §8.4).
#[cold]
#[inline(never)]
fn deliver_marked<H: FrameHandler<NoReturn>>(
    receiver: &mut impl Trains,
    peers: &mut PeerTable,
    stats: &mut TransportStats,
    budget: usize,
    handler: &mut H,
) -> (usize, usize) {
    let (delivered, work) = deliver_train(receiver, peers, stats, budget, &mut AsMarked(handler));
    stats.rx_marked += delivered as u64;
    (delivered, work)
}

/// Delivers the datagrams of one buffer. Inlined at two call sites: a further call takes 25
/// instructions at either end of an RPC alone.
#[inline(always)]
pub(super) fn deliver_train<H: FrameHandler<NoReturn>>(
    receiver: &mut impl Trains,
    peers: &mut PeerTable,
    stats: &mut TransportStats,
    budget: usize,
    handler: &mut H,
) -> (usize, usize) {
    let Some(train) = receiver.train() else {
        stats.rx_dropped_truncated += 1;
        receiver.skip();
        return (0, 1);
    };
    let from = train.from;
    let Some(peer) = peers.find(from) else {
        return deliver_further(receiver, from, peers, stats, budget, handler);
    };
    let (delivered, work, handed_out) = deliver_datagrams(&train, peer, stats, budget, handler);
    receiver.advance(handed_out);
    (delivered, work)
}

/// Delivers the datagrams of a buffer that are not for the plain peer of an address alone: sealed ones, and those from a further source port
/// of a peer. A stranger's are dropped.
#[cold]
#[inline(never)]
fn deliver_further<H: FrameHandler<NoReturn>>(
    receiver: &mut impl Trains,
    from: AddrKey,
    peers: &mut PeerTable,
    stats: &mut TransportStats,
    budget: usize,
    handler: &mut H,
) -> (usize, usize) {
    if peers.has_sealed() {
        return deliver_some_sealed(receiver, from, peers, stats, budget, handler);
    }
    let Some(train) = receiver.train() else { unreachable!("the caller has looked at the train") };
    let (delivered, work, handed_out) = deliver_plain(&train, peers, stats, budget, handler);
    receiver.advance(handed_out);
    (delivered, work)
}

/// Delivers datagrams that are not sealed. The result is as of [`deliver_datagrams`].
#[inline(always)]
fn deliver_plain<H: FrameHandler<NoReturn>>(
    train: &Train<'_>,
    peers: &PeerTable,
    stats: &mut TransportStats,
    budget: usize,
    handler: &mut H,
) -> (usize, usize, usize) {
    let delivered = match peers.find_further(train.from) {
        [FurtherSource { peer, source, .. }] if !peers.has_shared_ports() => {
            let mut handler = FromPort { handler, source: *source };
            Some(deliver_datagrams(train, *peer, stats, budget, &mut handler))
        }
        _ => deliver_to_several(train, peers, stats, budget, handler),
    };
    delivered.unwrap_or_else(|| {
        let count = train.datagram_count();
        match peers.is_sealed_address(train.from) {
            true => stats.rx_dropped_plain += count as u64,
            false => stats.rx_dropped_unknown_peer += count as u64,
        }
        (0, count, train.bytes.len())
    })
}

/// Delivers a train's datagrams for every address with the sender's port, announced or own. A frame's session accepts the frame for
/// a single address. Of several links of an address the first counts. The result is as of [`deliver_datagrams`], or `None` without an address.
#[cold]
#[inline(never)]
fn deliver_to_several<H: FrameHandler<NoReturn>>(
    train: &Train<'_>,
    peers: &PeerTable,
    stats: &mut TransportStats,
    budget: usize,
    handler: &mut H,
) -> Option<(usize, usize, usize)> {
    let announced = peers.find_further(train.from);
    let mut done = None;
    for (at, FurtherSource { peer, source, .. }) in announced.iter().enumerate() {
        if announced[..at].iter().all(|before| before.peer != *peer) {
            let mut handler = FromPort { handler, source: *source };
            done = Some(deliver_datagrams(train, *peer, stats, budget, &mut handler));
        }
    }
    match peers.find_own(train.from) {
        Some(own) => Some(deliver_datagrams(train, own, stats, budget, handler)),
        None => done,
    }
}

/// Delivers the frames of a train's datagrams, up to about `budget`. Returns their number, the work in
/// frames, and the bytes of the datagrams.
#[inline(always)]
fn deliver_datagrams<H: FrameHandler<NoReturn>>(
    train: &Train<'_>,
    peer: PeerId,
    stats: &mut TransportStats,
    budget: usize,
    handler: &mut H,
) -> (usize, usize, usize) {
    let (mut delivered, mut work, mut rest) = (0, 0, train.bytes);
    loop {
        let (datagram, behind) = rest.split_at(train.segment_bytes.min(rest.len()));
        let count = if datagram.first().is_some_and(|&first| first != BUNDLE_MARK) {
            deliver_lone(stats, peer, datagram, handler);
            1
        } else {
            deliver_bundle(stats, peer, datagram, handler)
        };
        (delivered, work, rest) = (delivered + count, work + count.max(1), behind);
        if planted("udp_short_last_segment_lost") && rest.len() < train.segment_bytes {
            rest = &[];
        }
        if rest.is_empty() || work >= budget {
            break;
        }
    }
    (delivered, work, train.bytes.len() - rest.len())
}

/// Passes frames to a handler as coming from a further source port.
struct FromPort<'a, H> {
    handler: &'a mut H,
    source: u8,
}

impl<H: FrameHandler<NoReturn>> FrameHandler<NoReturn> for FromPort<'_, H> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: Option<&mut NoReturn>) {
        self.handler.handle_from(peer, self.source, frame, false);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.handler.handle_from(peer, self.source, frame, true);
    }

    fn looks_ahead(&self) -> bool {
        self.handler.looks_ahead()
    }

    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.handler.prepare(frame, is_whole);
    }
}

/// Passes frames to a handler as marked.
struct AsMarked<'a, H>(&'a mut H);

impl<H: FrameHandler<NoReturn>> FrameHandler<NoReturn> for AsMarked<'_, H> {
    fn handle(&mut self, peer: PeerId, frame: &[u8], _back: Option<&mut NoReturn>) {
        self.0.handle_marked(peer, frame);
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        self.0.handle_marked(peer, frame);
    }

    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], _is_marked: bool) {
        self.0.handle_from(peer, source, frame, true);
    }

    fn looks_ahead(&self) -> bool {
        self.0.looks_ahead()
    }

    fn prepare(&mut self, frame: &[u8], is_whole: bool) {
        self.0.prepare(frame, is_whole);
    }
}

/// Delivers a datagram of one frame.
#[inline(always)]
fn deliver_lone<H: FrameHandler<NoReturn>>(
    stats: &mut TransportStats,
    peer: PeerId,
    frame: &[u8],
    handler: &mut H,
) {
    if handler.looks_ahead() {
        handler.prepare(frame, true);
    }
    stats.rx_datagrams += 1;
    stats.rx_frames += 1;
    stats.rx_bytes += frame.len() as u64;
    handler.handle(peer, frame, None);
}

/// Delivers the frames of a bundle, and returns their number. Out of line, to give the loop all
/// registers: five instructions less for each frame.
#[inline(never)]
fn deliver_bundle<H: FrameHandler<NoReturn>>(
    stats: &mut TransportStats,
    peer: PeerId,
    datagram: &[u8],
    handler: &mut H,
) -> usize {
    let Some(frames) = bundle::frames(datagram) else {
        stats.rx_dropped_malformed += 1;
        return 0;
    };
    if handler.looks_ahead() {
        frames.clone().for_each(|frame| handler.prepare(frame, true));
    }
    let mut count = 0;
    for frame in frames {
        count += 1;
        handler.handle(peer, frame, None);
    }
    stats.rx_datagrams += 1;
    stats.rx_frames += count as u64;
    stats.rx_bytes += (datagram.len() - bundle::framing_bytes(count)) as u64;
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs its calls.
    #[derive(Default)]
    struct Heard {
        looks_ahead: bool,
        prepared: Vec<Vec<u8>>,
        frames: Vec<(Vec<u8>, bool)>,
    }

    impl FrameHandler<NoReturn> for Heard {
        fn handle(&mut self, peer: PeerId, frame: &[u8], back: Option<&mut NoReturn>) {
            assert!(peer == PeerId(3) && back.is_none());
            self.frames.push((frame.to_vec(), false));
        }

        fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
            assert_eq!(peer, PeerId(3));
            self.frames.push((frame.to_vec(), true));
        }

        fn looks_ahead(&self) -> bool {
            self.looks_ahead
        }

        fn prepare(&mut self, frame: &[u8], is_whole: bool) {
            assert!(is_whole && self.frames.is_empty());
            self.prepared.push(frame.to_vec());
        }
    }

    /// A datagram with the frames: a lone frame, or several in a bundle.
    fn datagram(frames: &[&[u8]]) -> Vec<u8> {
        let [frame] = frames else {
            let mut bytes = vec![0; 1_000];
            let begin = bundle::begin(&mut bytes);
            let append = |used, frame: &&[u8]| bundle::append(&mut bytes, used, frame, &[]);
            let end = frames.iter().fold(begin, append);
            bytes.truncate(end);
            return bytes;
        };
        frame.to_vec()
    }

    #[test]
    fn deliver__shows_frames_ahead_to_who_looks_ahead_and_tells_whether_they_are_marked() {
        for (frames, looks_ahead, marked) in
            [&[&b"alone"[..]][..], &[b"one", b"two", b"three"]].into_iter().flat_map(|frames| {
                let kinds = [(false, false), (false, true), (true, false), (true, true)];
                kinds.map(|(looks_ahead, marked)| (frames, looks_ahead, marked))
            })
        {
            let mut heard = Heard { looks_ahead, ..Heard::default() };
            let (datagram, mut stats) = (datagram(frames), TransportStats::default());
            let (stats_mut, is_lone) = (&mut stats, frames.len() == 1);
            match (is_lone, marked) {
                (true, false) => deliver_lone(stats_mut, PeerId(3), &datagram, &mut heard),
                (true, true) => {
                    deliver_lone(stats_mut, PeerId(3), &datagram, &mut AsMarked(&mut heard));
                }
                (false, false) => {
                    assert_eq!(deliver_bundle(stats_mut, PeerId(3), &datagram, &mut heard), 3);
                }
                (false, true) => {
                    let mut as_marked = AsMarked(&mut heard);
                    assert_eq!(deliver_bundle(stats_mut, PeerId(3), &datagram, &mut as_marked), 3);
                }
            }
            let all: Vec<_> = frames.iter().map(|frame| (frame.to_vec(), marked)).collect();
            assert_eq!(heard.frames, all);
            let ahead = if looks_ahead { frames } else { &[] };
            assert_eq!(heard.prepared, ahead);
            let expected = TransportStats {
                rx_datagrams: 1,
                rx_frames: frames.len() as u64,
                rx_bytes: frames.iter().map(|frame| frame.len() as u64).sum(),
                ..TransportStats::default()
            };
            assert_eq!(stats, expected);
        }
    }
}
