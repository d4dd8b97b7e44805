//! Every frame is delivered, dropped and counted, or refused and offered again.

use super::frames::{check_arrival, frame};
use super::{
    EMPTY_POLLS_UNTIL_LOST, End, Harness, burst_len, carry, collect, drain, retain_set, send_all,
    send_once,
};
use crate::transport::{
    FrameHandler, PeerId, ReturnPath, SharedFrame, TX_BURST_MAX, Transport, TransportStats, TxFrame,
};

/// Bytes offered to a medium without a receiver: more than any medium holds.
const FLOOD_BYTES: usize = 48 << 20;

/// Frames that left the caller's hands: sent or dropped.
fn taken(stats: &TransportStats) -> u64 {
    stats.tx_frames + stats.tx_dropped_error + stats.tx_dropped_oversize + stats.tx_dropped_no_peer
}

/// Frames to removed or unknown peers are dropped and counted. The rest of the burst is not
/// delayed.
///
/// # Panics
/// When the transport breaks the promise, as do all checks.
pub fn counts_frames_of_no_peer<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    let sent = [frame(9, 0, 30), frame(9, 1, 30)];
    let to = |peer, index: usize| TxFrame { peer, head: &sent[index], body: &[] };
    let nobody = PeerId(u32::MAX >> 1);
    let burst = [to(nobody, 0), to(a.peer, 0), to(nobody, 1), to(a.peer, 1)];
    assert_eq!(a.transport.tx_burst(&burst), 0);
    assert_eq!(a.transport.stats().tx_dropped_no_peer, 2);
    let arrived = collect(harness, &mut b, 2);
    check_arrival(&sent, &arrived, harness.medium());

    a.transport.remove_peer(a.peer);
    assert_eq!(a.transport.tx_burst(&[to(a.peer, 0)]), 0);
    assert_eq!(a.transport.stats().tx_dropped_no_peer, 3);
    a.transport.remove_peer(nobody);
}

/// Frames above the limit are dropped and counted. The rest of the burst is not delayed.
pub fn counts_oversize_frames<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    let limit = a.transport.max_frame_bytes(a.peer);
    let sent = [frame(10, 0, 30), frame(10, 1, limit)];
    for (too_large, drops) in [(limit + 1, 1), (limit + 70_000, 2)] {
        let oversize = frame(10, 2, too_large);
        let burst = [&sent[0], &oversize, &sent[1]];
        assert_eq!(send_once(&mut a, &burst), 0);
        assert_eq!(a.transport.stats().tx_dropped_oversize, drops);
        let arrived = collect(harness, &mut b, 2);
        check_arrival(&sent, &arrived, harness.medium());
    }
}

/// Answers every frame through the return path, and logs the accepted answers.
struct Answering {
    /// Bytes of the next answer.
    len: usize,
    taken: Vec<Vec<u8>>,
}

impl<R: ReturnPath> FrameHandler<R> for &mut Answering {
    fn handle(&mut self, _: PeerId, _: &[u8], back: Option<&mut R>) {
        let answer = frame(13, self.len as u32, self.len);
        if back.is_some_and(|back| back.push(&answer)) {
            self.taken.push(answer);
        }
    }

    fn handle_marked(&mut self, _: PeerId, _: &[u8]) {
        panic!("no frame here met congestion");
    }

    fn handle_shared(&mut self, peer: PeerId, _: SharedFrame<'_>, back: Option<&mut R>) {
        self.handle(peer, &[], back);
    }
}

/// Answers accepted during delivery are counted and arrive like all frames.
pub fn counts_answers_on_the_way_back<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    let mut answering = Answering { len: 16, taken: Vec::new() };
    let (before, mut rounds) = (b.transport.stats(), 0);
    while answering.len < 400 && rounds < EMPTY_POLLS_UNTIL_LOST {
        rounds += 1;
        let request = frame(13, rounds, 20 + answering.len);
        send_all(harness, &mut a, &[request]);
        while b.transport.rx_burst_to(1, &mut answering) == 0 && rounds < EMPTY_POLLS_UNTIL_LOST {
            rounds += 1;
            harness.advance();
        }
        b.transport.flush();
        answering.len += 7;
    }
    let taken = &answering.taken;
    let arrived = collect(harness, &mut a, taken.len());
    check_arrival(taken, &arrived, harness.medium());
    let after = b.transport.stats();
    let bytes: usize = taken.iter().map(Vec::len).sum();
    assert_eq!(after.tx_frames - before.tx_frames, taken.len() as u64);
    assert_eq!(after.tx_bytes - before.tx_bytes, bytes as u64);
}

/// Sending far more than the medium holds neither blocks nor panics. The counters add up, only sent
/// frames arrive, and afterwards the link works as before.
pub fn accounts_for_every_frame_when_full<H: Harness>(harness: &mut H) {
    let medium = harness.medium();
    let [mut a, mut b] = harness.pair();
    let largest = a.transport.max_frame_bytes(a.peer);
    let burst: Vec<_> =
        (0..64).map(|i| frame(11, i, if i % 2 == 0 { largest } else { 90 })).collect();
    let references: Vec<_> = burst.iter().collect();
    let (mut offered, mut blocked) = (0, 0);
    for _ in 0..FLOOD_BYTES / (32 * largest) {
        offered += burst.len() as u64;
        blocked += u64::from(send_once(&mut a, &references).count_ones());
    }
    let mut arrived = drain(harness, &mut b);
    arrived.extend(send_backlog(harness, &mut a, &mut b, offered - blocked));
    let stats = a.transport.stats();
    assert_eq!(stats.tx_blocked, blocked, "refused frames are counted");
    assert_eq!(taken(&stats), offered - blocked, "all others were sent or dropped");
    assert!(arrived.iter().all(|frame| burst.contains(frame)), "a frame that was not sent");
    let TransportStats { rx_frames: received, rx_bytes, .. } = b.transport.stats();
    assert_eq!(received, arrived.len() as u64, "delivered frames are counted");
    let arrived_bytes: usize = arrived.iter().map(Vec::len).sum();
    assert_eq!(rx_bytes, arrived_bytes as u64, "and their bytes");
    if medium.is_lossless && medium.refuses_when_full {
        let sent = (stats.tx_frames, stats.tx_bytes);
        assert_eq!(sent, (received, rx_bytes), "what was taken arrives");
    }
    let sent = [frame(11, 100, 40), frame(11, 101, largest)];
    let arrived = carry(harness, &mut a, &mut b, &sent);
    check_arrival(&sent, &arrived, medium);
}

/// Flushes until `expected` frames, kept frames included, have left the transport. Returns the
/// frames received meanwhile.
fn send_backlog<H: Harness>(
    harness: &mut H,
    from: &mut End<H::T>,
    to: &mut End<H::T>,
    expected: u64,
) -> Vec<Vec<u8>> {
    let mut arrived = Vec::new();
    for _ in 0..EMPTY_POLLS_UNTIL_LOST {
        if taken(&from.transport.stats()) >= expected {
            break;
        }
        from.transport.flush();
        arrived.extend(drain(harness, to));
    }
    arrived
}

/// A sender that offers blocked frames again while the receiver keeps up loses no frame.
pub fn takes_blocked_frames_later<H: Harness>(harness: &mut H) {
    let medium = harness.medium();
    let [mut a, mut b] = harness.pair();
    let largest = a.transport.max_frame_bytes(a.peer);
    let sent: Vec<_> = (0..1000).map(|i| frame(12, i, largest - i as usize % 200)).collect();
    let (mut rest, mut arrived) = (&sent[..], Vec::new());
    let mut rounds_left = EMPTY_POLLS_UNTIL_LOST;
    while !rest.is_empty() && rounds_left > 0 {
        // A medium with refusals gets full bursts; a lossy medium gets no more than its capacity.
        let held = if medium.refuses_when_full { usize::MAX } else { medium.capacity_bytes };
        let burst: Vec<_> = rest[..burst_len(rest, held).min(TX_BURST_MAX)].iter().collect();
        let blocked = send_once(&mut a, &burst);
        let refused = retain_set(&burst, blocked);
        // The transport keeps the order of frames to a peer: the refused frames are a tail.
        assert_eq!(refused, burst[burst.len() - refused.len()..], "a later frame overtook");
        let taken = burst.len() - refused.len();
        rest = &rest[taken..];
        if medium.is_lossless && medium.refuses_when_full {
            // The sender may keep frames, and goes on with the kept frames in its own turns.
            let until = arrived.len() + taken;
            let mut polls = 0;
            while arrived.len() < until && polls < EMPTY_POLLS_UNTIL_LOST {
                b.transport.rx_burst(64, |_, frame| arrived.push(frame.to_vec()));
                a.transport.flush();
                harness.advance();
                polls += 1;
            }
        } else {
            arrived.extend(collect(harness, &mut b, taken));
        }
        rounds_left -= 1;
    }
    check_arrival(&sent, &arrived, medium);
}
