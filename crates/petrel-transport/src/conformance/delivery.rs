//! Frames arrive unchanged, with the right sender.

use super::frames::{check_arrival, frame, mixed};
use super::{
    EMPTY_POLLS_UNTIL_LOST, End, Harness, Star, carry, collect, collect_any, drain, send_all,
};
use crate::transport::{MIN_FRAME_BYTES, TX_BURST_MAX, Transport, TxFrame};

/// An idle transport delivers nothing, sends nothing and counts nothing.
///
/// # Panics
/// When the transport breaks the promise, as do all checks.
pub fn receives_nothing_when_nothing_was_sent<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    for _ in 0..10 {
        assert_eq!(a.transport.rx_burst(64, |_, _| panic!("a frame out of nowhere")), 0);
        assert_eq!(b.transport.rx_burst(64, |_, _| panic!("a frame out of nowhere")), 0);
        harness.advance();
    }
    assert_eq!(a.transport.tx_burst(&[]), 0);
    assert_eq!(a.transport.stats().rx_frames, 0);
    assert_eq!(a.transport.stats().tx_frames, 0);
}

/// Single frames of all interesting sizes arrive, in both directions.
pub fn delivers_every_size<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    let largest = a.transport.max_frame_bytes(a.peer);
    assert!(largest >= MIN_FRAME_BYTES, "frames of {largest} bytes are too small");
    assert_eq!(largest, b.transport.max_frame_bytes(b.peer), "the ends agree on the largest");
    let sizes = [1, 2, 15, 16, 17, 63, 64, 65, MIN_FRAME_BYTES, largest - 1, largest];
    for (sequence, len) in (0..).zip(sizes) {
        let sent = [frame(1, sequence, len)];
        let arrived = carry(harness, &mut a, &mut b, &sent);
        check_arrival(&sent, &arrived, harness.medium());
        let arrived = carry(harness, &mut b, &mut a, &sent);
        check_arrival(&sent, &arrived, harness.medium());
    }
}

/// Full bursts of frames of all sizes arrive whole and, on lossless media, in order.
pub fn delivers_bursts_of_mixed_sizes<H: Harness>(harness: &mut H) {
    let medium = harness.medium();
    let [mut a, mut b] = harness.pair();
    let largest = a.transport.max_frame_bytes(a.peer);
    for round in 0..50 {
        let len_max = if round % 2 == 0 { largest } else { 300 };
        let sent = mixed(2, round, len_max, medium.capacity_bytes);
        assert_eq!(sent.len(), TX_BURST_MAX);
        let arrived = carry(harness, &mut a, &mut b, &sent);
        check_arrival(&sent, &arrived, medium);
    }
    for round in 50..60 {
        let sent: Vec<_> = (0..64).map(|index| frame(2, round * 64 + index, largest)).collect();
        let arrived = carry(harness, &mut a, &mut b, &sent);
        check_arrival(&sent, &arrived, medium);
    }
}

/// The caller may change its buffers as soon as `tx_burst` returns.
pub fn takes_the_bytes_before_it_returns<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    let sent: Vec<_> = [40, 1000, 40, 40].map(|len| frame(3, len as u32, len)).into();
    let mut buffers = sent.clone();
    send_all(harness, &mut a, &buffers);
    buffers.iter_mut().for_each(|buffer| buffer.fill(0xEE));
    let arrived = collect(harness, &mut b, sent.len());
    check_arrival(&sent, &arrived, harness.medium());
}

/// A burst of [`Transport::push`] may be longer than a burst of `tx_burst`. Its frames are sent in
/// order, and the caller may change its buffers as soon as `flush` returns, or when the transport has
/// released them.
pub fn delivers_pushed_bursts_of_any_length<H: Harness>(harness: &mut H) {
    let medium = harness.medium();
    let [mut a, mut b] = harness.pair();
    let largest = a.transport.max_frame_bytes(a.peer);
    let lens = [9, 48, 100, 2049.min(largest), 17];
    for (round, count) in (0..).zip([0, 1, 2, 65, 400]) {
        let bytes_max = medium.capacity_bytes / 2;
        let mut left = bytes_max;
        let sent: Vec<_> = (0..count)
            .map(|index| frame(4, round * 1000 + index, lens[index as usize % lens.len()]))
            .take_while(|frame| {
                left = left.saturating_sub(frame.len() + 40);
                left > 0
            })
            .collect();
        push_all(harness, &mut a, &sent);
        let arrived = collect(harness, &mut b, sent.len());
        check_arrival(&sent, &arrived, medium);
    }
}

/// Pushes frames in as few bursts as the transport accepts, and overwrites the buffers after each
/// burst.
fn push_all<H: Harness>(harness: &mut H, from: &mut End<H::T>, frames: &[Vec<u8>]) {
    let mut left = frames;
    let mut refusals_left = EMPTY_POLLS_UNTIL_LOST;
    loop {
        let mut buffers = left.to_vec();
        let taken = push_until_refused(from, &buffers);
        from.transport.flush();
        if let Some(watch) = from.transport.region_watch() {
            watch.await_reads();
        }
        buffers.iter_mut().for_each(|buffer| buffer.fill(0xEE));
        left = &left[taken..];
        if left.is_empty() {
            return;
        }
        refusals_left -= 1;
        assert!(refusals_left > 0, "{} frames stay refused", left.len());
        harness.advance();
    }
}

/// Pushes frames and returns the number accepted. After the first refusal, all later frames must be
/// refused as well.
fn push_until_refused<T: Transport>(from: &mut End<T>, frames: &[Vec<u8>]) -> usize {
    let mut taken = 0;
    for (index, frame) in frames.iter().enumerate() {
        let (head, body) = frame.split_at(frame.len().min(16));
        // SAFETY: the caller changes the frames when they are flushed and released.
        let is_taken = unsafe { from.transport.push(from.peer, head, body) };
        assert!(!is_taken || taken == index, "frame {index} overtook frame {taken}");
        taken += usize::from(is_taken);
    }
    taken
}

/// Frames to two peers, alternating in one burst, reach the right peer, and received frames carry
/// the right sender.
pub fn keeps_peers_apart<H: Harness>(harness: &mut H) {
    let medium = harness.medium();
    let Star { mut hub, peers, mut leaves } = harness.star();
    for round in 0..20 {
        let bytes_max = medium.capacity_bytes / 2;
        let sent = [5u8, 6].map(|tag| {
            let mut burst = mixed(tag, round, 1000, bytes_max);
            burst.truncate(TX_BURST_MAX / 2);
            burst
        });
        let by_turns = |index: usize| {
            let frame = &sent[index % 2][index / 2];
            TxFrame { peer: peers[index % 2], head: &frame[..1], body: &frame[1..] }
        };
        let burst: Vec<_> = (0..TX_BURST_MAX).map(by_turns).collect();
        assert_eq!(hub.tx_burst(&burst), 0, "the medium holds this burst");
        for (leaf, sent) in leaves.iter_mut().zip(&sent) {
            let arrived = collect(harness, leaf, sent.len());
            check_arrival(sent, &arrived, medium);
            send_all(harness, leaf, sent);
        }
        let arrived = collect_any(harness, &mut hub, TX_BURST_MAX);
        for (peer, sent) in peers.iter().zip(&sent) {
            let from_peer: Vec<_> =
                arrived.iter().filter(|(from, _)| from == peer).map(|(_, f)| f.clone()).collect();
            check_arrival(sent, &from_peer, medium);
        }
    }
}

/// A call of `rx_burst` delivers about `budget` frames, and later calls deliver the rest.
pub fn respects_the_budget<H: Harness>(harness: &mut H) {
    let [mut a, mut b] = harness.pair();
    let count_max = harness.medium().capacity_bytes / 200;
    let sent: Vec<_> = (0..count_max.min(320) as u32).map(|i| frame(7, i, 20)).collect();
    sent.chunks(TX_BURST_MAX).for_each(|burst| send_all(harness, &mut a, burst));
    let mut arrived = Vec::new();
    let mut empty_polls = 0;
    while arrived.len() < sent.len() && empty_polls < super::EMPTY_POLLS_UNTIL_QUIET {
        assert_eq!(b.transport.rx_burst(0, |_, _| panic!("a frame beyond a budget of 0")), 0);
        let before = arrived.len();
        let count = b.transport.rx_burst(8, |_, frame| arrived.push(frame.to_vec()));
        assert_eq!(arrived.len() - before, count, "the result counts the frames");
        assert!(count <= 8 + TX_BURST_MAX, "{count} frames at a budget of 8");
        empty_polls = if count == 0 { empty_polls + 1 } else { 0 };
        harness.advance();
    }
    check_arrival(&sent, &arrived, harness.medium());
}

/// A peer is removed at either end while frames are in flight. No frame of the peer arrives
/// afterwards, the second peer is unharmed, and the remaining end may continue to send.
pub fn survives_removal_in_flight<H: Harness>(harness: &mut H) {
    let Star { mut hub, peers, leaves: [mut gone, mut other] } = harness.star();
    let sent: Vec<_> = (0..10).map(|index| frame(8, index, 50)).collect();
    send_all(harness, &mut gone, &sent);
    send_all(harness, &mut other, &sent);
    hub.remove_peer(peers[0]);
    hub.remove_peer(peers[0]);
    assert_eq!(hub.max_frame_bytes(peers[0]), 0);
    assert!(hub.max_frame_bytes(peers[1]) >= MIN_FRAME_BYTES);
    let arrived = collect_any(harness, &mut hub, sent.len());
    assert!(arrived.iter().all(|(from, _)| *from == peers[1]), "a removed peer was heard");
    let arrived: Vec<_> = arrived.into_iter().map(|(_, frame)| frame).collect();
    check_arrival(&sent, &arrived, harness.medium());

    for _ in 0..10 {
        // The peer is gone: the frames may be accepted, blocked or lost.
        let burst: Vec<_> =
            sent.iter().map(|frame| TxFrame { peer: gone.peer, head: frame, body: &[] }).collect();
        gone.transport.tx_burst(&burst);
        assert_eq!(hub.rx_burst(64, |_, _| panic!("a removed peer was heard")), 0);
    }
    let mut hub = End { transport: hub, peer: peers[1] };
    assert!(drain(harness, &mut hub).is_empty());
    let arrived = carry(harness, &mut hub, &mut other, &sent);
    check_arrival(&sent, &arrived, harness.medium());
}
