//! The shared-memory transport within one process: sending, refusing, waiting, many peers, and
//! rings with garbage.
#![cfg(not(loom))]
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use petrel_transport::buf::{BufPool, PoolConfig};
use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
use petrel_transport::wake::Waker;
use petrel_transport::{
    LinkError, MIN_FRAME_BYTES, PeerId, RX_BURST_MAX, TX_BURST_MAX, Transport, TxFrame,
};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Long enough for any machine; only a hang gets there.
const HANG: Duration = Duration::from_secs(120);

const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

fn small() -> ShmConfig {
    ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 2048, ..ShmConfig::default() }
}

fn endpoint(config: &ShmConfig) -> Shm {
    Shm::new(config, Waker::new().unwrap())
}

fn owned(fd: impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().unwrap()
}

/// Links two endpoints. Returns the peer ids, of `b` at `a` and of `a` at `b`, and the segment's
/// descriptor.
fn link(config: &ShmConfig, a: &mut Shm, b: &mut Shm) -> (PeerId, PeerId, OwnedFd) {
    let segment = Segment::create(config).unwrap();
    let file = owned(&segment);
    let opened = Segment::from_fd(owned(&segment)).unwrap();
    let (bell_a, bell_b) = UnixStream::pair().unwrap();
    let to_b = a.add_peer(ShmLink::new(segment, Side::Creator, bell_a)).unwrap();
    let to_a = b.add_peer(ShmLink::new(opened, Side::Opener, bell_b)).unwrap();
    (to_b, to_a, file)
}

struct Pair {
    a: Shm,
    b: Shm,
    to_b: PeerId,
    to_a: PeerId,
    file: OwnedFd,
}

fn pair_with(config: &ShmConfig) -> Pair {
    let (mut a, mut b) = (endpoint(config), endpoint(config));
    let (to_b, to_a, file) = link(config, &mut a, &mut b);
    Pair { a, b, to_b, to_a, file }
}

fn pair() -> Pair {
    pair_with(&small())
}

fn send(shm: &mut Shm, peer: PeerId, bytes: &[u8]) -> u64 {
    let (head, body) = bytes.split_at(bytes.len().div_ceil(2));
    shm.tx_burst(&[TxFrame { peer, head, body }])
}

fn receive(shm: &mut Shm) -> Vec<(PeerId, Vec<u8>)> {
    let mut frames = Vec::new();
    shm.rx_burst(1_024, |peer, frame| frames.push((peer, frame.to_vec())));
    frames
}

/// Receives burst after burst, until an empty one.
fn receive_all(shm: &mut Shm) -> Vec<(PeerId, Vec<u8>)> {
    let mut frames = Vec::new();
    loop {
        let burst = receive(shm);
        if burst.is_empty() {
            return frames;
        }
        frames.extend(burst);
    }
}

#[test]
fn tx_burst__frames_arrive_in_both_directions() {
    let Pair { mut a, mut b, to_b, to_a, .. } = pair();
    assert_eq!(send(&mut a, to_b, b"question"), 0);
    assert_eq!(receive(&mut b), [(to_a, b"question".to_vec())]);
    assert_eq!(send(&mut b, to_a, b"answer"), 0);
    assert_eq!(receive(&mut a), [(to_b, b"answer".to_vec())]);
    assert!(receive(&mut a).is_empty() && receive(&mut b).is_empty());
    let stats = a.stats();
    assert_eq!((stats.tx_frames, stats.tx_bytes, stats.tx_datagrams), (1, 8, 1));
    assert_eq!((stats.rx_frames, stats.rx_bytes, stats.rx_datagrams), (1, 6, 1));
    assert_eq!((stats.tx_syscalls, stats.rx_syscalls), (0, 0));
}

#[test]
fn tx_burst__a_burst_is_one_publication_per_peer() {
    let config = small();
    let (mut hub, mut x, mut y) = (endpoint(&config), endpoint(&config), endpoint(&config));
    let (to_x, ..) = link(&config, &mut hub, &mut x);
    let (to_y, ..) = link(&config, &mut hub, &mut y);
    let frames: Vec<_> = (0..TX_BURST_MAX)
        .map(|n| TxFrame { peer: if n % 2 == 0 { to_x } else { to_y }, head: b"f", body: b"" })
        .collect();
    assert_eq!(hub.tx_burst(&frames), 0);
    assert_eq!(hub.stats().tx_datagrams, 2);
    assert_eq!((receive_all(&mut x).len(), receive_all(&mut y).len()), (32, 32));
    assert_eq!(x.stats().rx_datagrams, 1);
}

#[test]
fn tx_burst__a_full_ring_blocks_its_peer_alone_and_keeps_the_order() {
    let config = small();
    let (mut hub, mut x, mut y) = (endpoint(&config), endpoint(&config), endpoint(&config));
    let (to_x, ..) = link(&config, &mut hub, &mut x);
    let (to_y, ..) = link(&config, &mut hub, &mut y);
    let large = [7; 2048];
    let mut sent = 0;
    while send(&mut hub, to_x, &large) == 0 {
        sent += 1;
    }
    let to = |peer, head| TxFrame { peer, head, body: &[] };
    // The small frame for x would fit, but must not overtake the large one.
    let frames = [to(to_y, &b"y"[..]), to(to_x, &large), to(to_x, b"x"), to(to_y, b"z")];
    assert_eq!(hub.tx_burst(&frames), 0b0110);
    assert_eq!(hub.stats().tx_blocked, 3);
    assert_eq!(receive(&mut y).len(), 2);
    assert_eq!(receive_all(&mut x).len(), sent);
    assert_eq!(hub.tx_burst(&frames[1..3]), 0);
    let last: Vec<_> = receive(&mut x).into_iter().map(|(_, frame)| frame.len()).collect();
    assert_eq!(last, [2048, 1]);
}

#[test]
fn tx_burst__drops_and_counts_what_cannot_be_sent() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    let empty = TxFrame { peer: to_b, head: b"", body: b"" };
    assert_eq!(a.tx_burst(&[empty]), 0);
    assert_eq!(send(&mut a, to_b, &[1; 2049]), 0);
    assert_eq!(send(&mut a, PeerId(99), b"x"), 0);
    a.remove_peer(to_b);
    assert_eq!(send(&mut a, to_b, b"x"), 0);
    let stats = a.stats();
    assert_eq!((stats.tx_dropped_error, stats.tx_dropped_oversize), (1, 1));
    assert_eq!((stats.tx_dropped_no_peer, stats.tx_frames), (2, 0));
    assert!(receive(&mut b).is_empty());
}

panics! {
    tx_burst__refuses_longer_bursts: "TX_BURST_MAX" => {
        let Pair { mut a, to_b, .. } = pair();
        a.tx_burst(&[TxFrame { peer: to_b, head: b"x", body: b"" }; TX_BURST_MAX + 1]);
    };
}

#[test]
fn max_frame_bytes__is_the_segments_on_both_sides() {
    let config = small();
    let (mut a, mut b) = (endpoint(&ShmConfig::default()), endpoint(&ShmConfig::default()));
    let (to_b, to_a, _) = link(&config, &mut a, &mut b);
    assert_eq!((a.max_frame_bytes(to_b), b.max_frame_bytes(to_a)), (2048, 2048));
    for length in [1, 7, 8, 9, MIN_FRAME_BYTES, 2048] {
        assert_eq!(send(&mut a, to_b, &vec![3; length]), 0);
        assert_eq!(receive(&mut b), [(to_a, vec![3; length])]);
    }
    a.remove_peer(to_b);
    a.remove_peer(to_b);
    assert_eq!(a.max_frame_bytes(to_b), 0);
}

/// A message in one frame, read in place. Several laps make frames begin at many places and skip to
/// the start.
#[test]
fn tx_burst__frames_of_megabytes_arrive_whole_in_large_rings() {
    const MIB: usize = 1 << 20;
    let config =
        ShmConfig { ring_bytes: 32 * MIB, max_frame_bytes: 16 * MIB - 8, ..ShmConfig::default() };
    let Pair { mut a, mut b, to_b, to_a, .. } = pair_with(&config);
    assert_eq!(a.max_frame_bytes(to_b), 16 * MIB - 8);
    let message: Vec<u8> =
        (0..2 * MIB as u64).flat_map(|n| n.wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
    for length in [8 * MIB, 16 * MIB - 8, 100, 8 * MIB + 16, 16 * MIB - 8, 16 * MIB - 8, 5 * MIB] {
        let sent = &message[..length];
        let (head, body) = sent.split_at(24);
        assert_eq!(a.tx_burst(&[TxFrame { peer: to_b, head, body }]), 0);
        let received = b.rx_burst(1, |peer, frame| assert!(peer == to_a && frame == sent));
        assert_eq!(received, 1);
    }
    assert_eq!(send(&mut a, to_b, &vec![1; 16 * MIB - 7]), 0);
    assert_eq!(a.stats().tx_dropped_oversize, 1);
    assert_eq!((b.stats().rx_broken_rings, a.stats().tx_blocked), (0, 0));
}

/// Several large frames are in flight at once, and a ring full of them refuses the next.
#[test]
fn tx_burst__large_frames_fill_a_large_ring() {
    const MIB: usize = 1 << 20;
    let config =
        ShmConfig { ring_bytes: 64 * MIB, max_frame_bytes: 8 * MIB + 64, ..ShmConfig::default() };
    let Pair { mut a, mut b, to_b, .. } = pair_with(&config);
    let message = vec![0x5A; 8 * MIB + 16];
    for _ in 0..3 {
        let mut sent = 0;
        while send(&mut a, to_b, &message) == 0 {
            sent += 1;
        }
        assert!((6..8).contains(&sent), "{sent} frames of 8 MiB in a ring of 64 MiB");
        assert_eq!(receive_all(&mut b).len(), sent);
    }
}

#[test]
fn add_peer__reuses_indices_and_limits_the_table() {
    let config = ShmConfig { max_peers: 2, ..small() };
    let mut hub = endpoint(&config);
    let mut peers: Vec<_> = (0..2).map(|_| endpoint(&config)).collect();
    let (first, ..) = link(&config, &mut hub, &mut peers[0]);
    let (second, ..) = link(&config, &mut hub, &mut peers[1]);
    assert_ne!(first, second);
    let mut bells = Vec::new();
    let mut another = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        bells.push(theirs);
        ShmLink::new(Segment::create(&config).unwrap(), Side::Creator, ours)
    };
    let refused = hub.add_peer(another());
    assert!(matches!(refused, Err(LinkError::TooManyPeers { limit: 2 })), "{refused:?}");
    hub.remove_peer(first);
    assert_eq!(hub.add_peer(another()).unwrap(), first);
}

#[test]
fn add_peer__refuses_a_side_that_is_in_use() {
    let config = small();
    let Pair { mut a, mut b, to_b, to_a, file } = pair();
    for side in [Side::Creator, Side::Opener] {
        let segment = Segment::from_fd(owned(&file)).unwrap();
        let (bell, _other) = UnixStream::pair().unwrap();
        let again = endpoint(&config).add_peer(ShmLink::new(segment, side, bell));
        assert!(matches!(again, Err(LinkError::Unsupported(_))), "{again:?}");
    }
    assert_eq!(send(&mut a, to_b, b"still works"), 0);
    assert_eq!(receive(&mut b), [(to_a, b"still works".to_vec())]);
}

#[test]
fn add_peer__refuses_a_wake_up_descriptor_of_another_kind() {
    let (_reader, writer) = std::io::pipe().unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for fd in [OwnedFd::from(writer), OwnedFd::from(tcp)] {
        let segment = Segment::create(&small()).unwrap();
        let link = ShmLink::new(segment, Side::Creator, UnixStream::from(fd));
        let refused = endpoint(&small()).add_peer(link);
        assert!(matches!(refused, Err(LinkError::Unsupported(_))), "{refused:?}");
    }
}

#[test]
fn remove_peer__leaves_the_other_side_unharmed() {
    let Pair { mut a, mut b, to_b, to_a, file } = pair();
    send(&mut a, to_b, b"last words");
    a.remove_peer(to_b);
    drop((a, file));
    assert_eq!(receive(&mut b), [(to_a, b"last words".to_vec())]);
    let mut refused = 0;
    for _ in 0..100 {
        refused += send(&mut b, to_a, &[1; 2048]);
    }
    assert!(refused > 0, "the ring fills up when nobody reads it");
    assert!(receive(&mut b).is_empty());
}

#[test]
fn rx_burst__stops_at_the_budget() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    assert_eq!(a.tx_burst(&[TxFrame { peer: to_b, head: b"x", body: b"" }; 64]), 0);
    assert_eq!(b.rx_burst(0, |_, _| panic!("no budget")), 0);
    assert_eq!(b.rx_burst(30, |_, _| {}), 30);
    assert_eq!(b.rx_burst(1, |_, _| {}), 1);
    assert_eq!(b.rx_burst(1000, |_, _| {}), 33);
}

#[test]
fn rx_burst__finds_every_peer_among_many_idle_ones() {
    const PEERS: usize = 300;
    let config = small();
    let mut hub = endpoint(&config);
    let mut peers: Vec<_> = (0..PEERS)
        .map(|_| {
            let mut peer = endpoint(&config);
            let (.., to_hub, _) = link(&config, &mut hub, &mut peer);
            (peer, to_hub)
        })
        .collect();
    // Long enough for all rings to go cold.
    (0..3000).for_each(|_| assert!(receive(&mut hub).is_empty()));
    for (number, (peer, to_hub)) in peers.iter_mut().enumerate() {
        assert_eq!(send(peer, *to_hub, &(number as u32).to_le_bytes()), 0);
    }
    let mut seen = BTreeSet::new();
    for _ in 0..PEERS {
        seen.extend(receive(&mut hub).into_iter().map(|(_, frame)| frame));
    }
    assert_eq!(seen.len(), PEERS);
}

#[test]
fn rx_burst__a_flood_does_not_starve_other_peers() {
    let config = small();
    let mut hub = endpoint(&config);
    let mut flooders: Vec<_> = (0..4).map(|_| endpoint(&config)).collect();
    let mut quiet = endpoint(&config);
    let to_hub: Vec<_> = flooders.iter_mut().map(|f| link(&config, &mut hub, f).1).collect();
    let (from_quiet, quiet_to_hub, _) = link(&config, &mut hub, &mut quiet);
    for round in 0..50 {
        for (flooder, &to_hub) in flooders.iter_mut().zip(&to_hub) {
            while send(flooder, to_hub, &[0; 40]) == 0 {}
        }
        send(&mut quiet, quiet_to_hub, &[round]);
        let mut found = false;
        // Two bursts visit every ring.
        for _ in 0..2 {
            hub.rx_burst(RX_BURST_MAX, |peer, _| found |= peer == from_quiet);
        }
        assert!(found, "round {round}");
    }
}

#[test]
fn may_receive__is_known_of_the_only_ring_that_is_left() {
    let config = small();
    let mut hub = endpoint(&config);
    let mut leaves = [(); 3].map(|()| endpoint(&config));
    let [one, two, three] = leaves.each_mut().map(|leaf| {
        let (to_leaf, to_hub, _) = link(&config, &mut hub, leaf);
        (to_leaf, to_hub)
    });
    assert!(hub.may_receive(), "nobody looks at each of several");
    hub.remove_peer(one.0);
    hub.remove_peer(three.0);
    for _ in 0..2 {
        assert!(!hub.may_receive());
        assert_eq!(send(&mut leaves[1], two.1, b"x"), 0);
        assert!(hub.may_receive());
        assert_eq!(receive(&mut hub), [(two.0, b"x".to_vec())]);
    }
    // A new peer in the place of a removed one.
    let mut next = endpoint(&config);
    let (to_next, ..) = link(&config, &mut hub, &mut next);
    assert!(hub.may_receive());
    hub.remove_peer(to_next);
    assert!(!hub.may_receive());
}

/// The frames lent to the reader lie in the ring. The sender continues to fill the ring from
/// buffers, and overwrites the buffers at once.
#[test]
fn rx_burst__frames_stay_while_their_reader_looks_and_their_sender_goes_on() {
    let Pair { mut a, mut b, to_b, to_a, .. } = pair();
    let pool = BufPool::new(PoolConfig { poison: true, ..PoolConfig::default() });
    let message = |number: usize| vec![number as u8; 1 + number * 379 % 2000];
    let mut sent = 0;
    let mut send_next = |a: &mut Shm| {
        let bytes = message(sent);
        let mut buffer = pool.alloc(bytes.len(), 1).unwrap();
        buffer.set_message(&bytes);
        // Dropped, and so poisoned, at the closure's end.
        let is_taken = send(a, to_b, buffer.data()) == 0;
        sent += usize::from(is_taken);
        is_taken
    };
    let mut seen = 0;
    while send_next(&mut a) {}
    while seen < 1_000 {
        b.rx_burst(7, |peer, frame| {
            while send_next(&mut a) {}
            assert_eq!((peer, frame), (to_a, &message(seen)[..]));
            seen += 1;
        });
    }
    assert!(a.stats().tx_blocked > 100, "the ring was full all the time");
}

#[test]
fn prepare_wait__refuses_when_a_frame_is_there() {
    let Pair { mut a, mut b, to_b, .. } = pair();
    send(&mut a, to_b, b"x");
    assert!(!b.prepare_wait());
    assert_eq!(receive(&mut b).len(), 1);
    assert!(b.prepare_wait());
    send(&mut a, to_b, b"x");
    send(&mut a, to_b, b"x");
    assert_eq!(a.stats().tx_syscalls, 1, "one wake-up per sleep");
    let bells = b.bells().unwrap();
    assert_eq!(poll(&mut [PollFd::new(&bells, PollFlags::IN)], Some(&AT_ONCE)), Ok(1));
    b.finish_wait(true);
    assert_eq!(receive(&mut b).len(), 2);
    send(&mut a, to_b, b"x");
    assert_eq!(a.stats().tx_syscalls, 1, "no wake-up for who is awake");
}

#[test]
fn prepare_wait__never_sleeping_endpoints_cost_no_wake_up() {
    let config = ShmConfig { never_sleeps: true, ..small() };
    let Pair { mut a, mut b, to_b, .. } = pair_with(&config);
    assert!(!b.prepare_wait());
    b.wait(None);
    (0..10).for_each(|_| assert_eq!(send(&mut a, to_b, b"x"), 0));
    assert_eq!(a.stats().tx_syscalls, 0);
    assert_eq!(receive_all(&mut b).len(), 10);
}

#[test]
fn wait__ends_at_its_timeout_and_by_its_waker() {
    let mut a = endpoint(&small());
    a.wait(Some(0));
    a.wait(Some(1_000_000));
    let waker = a.waker();
    let thread = std::thread::spawn(move || waker.wake());
    a.wait(None);
    thread.join().unwrap();
    assert!(!a.waker().drain(), "the wait took the signal");
}

/// Receives one frame, with as many sleeps as needed.
fn receive_by_sleeping(shm: &mut Shm, mut on_frame: impl FnMut(&[u8])) {
    let start = Instant::now();
    while shm.rx_burst(1, |_, frame| on_frame(frame)) == 0 {
        shm.wait(Some(HANG.as_nanos() as u64));
        assert!(start.elapsed() < HANG, "a wake-up was lost");
    }
}

#[test]
fn wait__two_sleepers_wake_each_other() {
    const ROUNDS: u64 = 5000;
    let Pair { mut a, mut b, to_b, to_a, .. } = pair();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..ROUNDS {
                receive_by_sleeping(&mut b, |frame| assert_eq!(frame, round.to_le_bytes()));
                assert_eq!(send(&mut b, to_a, &round.to_le_bytes()), 0);
            }
        });
        for round in 0..ROUNDS {
            assert_eq!(send(&mut a, to_b, &round.to_le_bytes()), 0);
            receive_by_sleeping(&mut a, |frame| assert_eq!(frame, round.to_le_bytes()));
        }
    });
}

#[test]
fn huge_pages__are_used_or_done_without() {
    let config = ShmConfig { huge_pages: true, ..ShmConfig::default() };
    let Pair { mut a, mut b, to_b, to_a, .. } = pair_with(&config);
    assert_eq!(send(&mut a, to_b, &[5; 16 << 10]), 0);
    assert_eq!(receive(&mut b), [(to_a, vec![5; 16 << 10])]);
}

/// Offsets in a segment of the head of the ring from creator to opener, and of the ring.
const HEAD_OFFSET: u64 = 128;
const RING_OFFSET: u64 = 4096;

fn scribble(file: &OwnedFd, offset: u64, bytes: &[u8]) {
    assert_eq!(rustix::io::pwrite(file, bytes, offset).unwrap(), bytes.len());
}

#[test]
fn rx_burst__gives_up_a_ring_with_an_impossible_record() {
    let Pair { mut a, mut b, to_b, to_a, file } = pair();
    scribble(&file, RING_OFFSET, &u64::MAX.to_le_bytes());
    assert!(!b.prepare_wait(), "there is something to look at");
    assert!(receive(&mut b).is_empty() && receive(&mut b).is_empty());
    assert_eq!(b.stats().rx_broken_rings, 1);
    assert_eq!(send(&mut b, to_a, b"x"), 0);
    assert_eq!(b.stats().tx_dropped_error, 1);
    assert!(b.prepare_wait(), "a broken ring keeps nobody awake");
    b.finish_wait(false);
    assert_eq!(send(&mut a, to_b, b"x"), 0);
    assert!(receive(&mut b).is_empty());
    b.remove_peer(to_a);
    assert_eq!(b.stats().rx_broken_rings, 1);
}

#[test]
fn tx_burst__gives_up_a_ring_with_impossible_positions() {
    let Pair { mut a, mut b, to_b, to_a, file } = pair();
    send(&mut b, to_a, b"was in time");
    assert_eq!(receive(&mut a).len(), 1);
    scribble(&file, HEAD_OFFSET, &3u64.to_le_bytes());
    // The producer reads the head when the ring seems full.
    for _ in 0..100 {
        assert_eq!(send(&mut a, to_b, &[1; 2048]), 0);
    }
    let stats = a.stats();
    assert_eq!(stats.rx_broken_rings, 1);
    assert_eq!(stats.tx_frames + stats.tx_dropped_error, 100);
    send(&mut b, to_a, b"too late");
    assert!(receive(&mut a).is_empty());
}

/// Writes anywhere in the control words and the start of the rings, most often to meaningful words.
fn write() -> impl Strategy<Value = (u64, Vec<u8>)> {
    let word = prop_oneof![0..20_000u64, (0..2500u64).prop_map(|n| n * 8), any::<u64>()];
    let control = (0..4u64, word.clone()).prop_map(|(line, word)| (HEAD_OFFSET + 128 * line, word));
    let record = (0..100u64, word).prop_map(|(record, word)| (RING_OFFSET + 128 * record, word));
    // A header with the right check for its place.
    let header = (0..100u64, 0..4000u64)
        .prop_map(|(line, length)| (RING_OFFSET + 64 * line, line << 32 | length));
    let words =
        prop_oneof![control, record, header].prop_map(|(at, word)| (at, word.to_le_bytes().into()));
    prop_oneof![3 => words, 1 => (0..8192u64, prop::collection::vec(any::<u8>(), 1..64))]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever a peer writes anywhere: no panic, no endless burst, no frame longer than agreed,
    /// and other peers are unaffected.
    #[test]
    fn garbage__harms_nobody(writes in prop::collection::vec(write(), 1..40)) {
        let Pair { mut a, mut b, to_b, to_a, file } = pair();
        let mut honest = endpoint(&small());
        let (honest_at_a, honest_to_a, _) = link(&small(), &mut a, &mut honest);
        for (offset, bytes) in writes {
            scribble(&file, offset, &bytes);
            let mut from_honest = 0;
            send(&mut a, to_b, &[9; 100]);
            send(&mut b, to_a, &[9; 100]);
            send(&mut honest, honest_to_a, b"honest");
            let received = a.rx_burst(RX_BURST_MAX, |peer, frame| {
                assert!(!frame.is_empty() && frame.len() <= 2048);
                from_honest += usize::from(peer == honest_at_a);
            });
            prop_assert!(received <= RX_BURST_MAX && from_honest == 1);
            b.rx_burst(RX_BURST_MAX, |_, frame| assert!(frame.len() <= 2048));
        }
        prop_assert!(a.stats().rx_broken_rings <= 1 && b.stats().rx_broken_rings <= 1);
    }
}
