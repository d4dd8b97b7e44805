use std::ptr::NonNull;
use std::rc::Rc;

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const MIB: usize = 1 << 20;

fn pool(max_bytes: usize) -> BufPool {
    BufPool::new(PoolConfig { max_bytes, ..PoolConfig::default() })
}

fn poisoning_pool(max_bytes: usize) -> BufPool {
    BufPool::new(PoolConfig { max_bytes, poison: true, ..PoolConfig::default() })
}

#[test]
fn alloc__lays_packets_out_as_drawn() {
    let pool = pool(MIB);
    let mut buf = pool.alloc(10, 3).unwrap();
    assert_eq!((buf.len(), buf.capacity(), buf.packet_count()), (10, 10, 3));
    let drawn = HEAD_ROOM_BYTES + 16 + 2 * TAIL_HEADER_BYTES;
    assert!((drawn..2 * drawn).contains(&buf.block_bytes()), "{}", buf.block_bytes());
    assert_eq!(buf.data().as_ptr() as usize % 64, 0);
    buf.data_mut().copy_from_slice(b"0123456789");
    buf.write_header(0, b"zero");
    buf.write_header(1, b"one");
    buf.write_header(2, &[7; TAIL_HEADER_BYTES]);
    assert_eq!(buf.packet(0, 4, 0, 4), (&b"zero0123"[..], &b""[..]));
    assert_eq!(buf.packet(1, 3, 4, 4), (&b"one"[..], &b"4567"[..]));
    assert_eq!(buf.packet(2, 32, 8, 2), (&[7; 32][..], &b"89"[..]));
    assert_eq!(buf.packet(1, 3, 10, 0).1, b"");
}

#[test]
fn part_24__is_the_packet_behind_three_words() {
    let pool = pool(MIB);
    let mut buf = pool.alloc(10, 4).unwrap();
    buf.data_mut().copy_from_slice(b"0123456789");
    let words = [*b"abcdefgh", *b"ijklmnop", *b"qrstuvwx"].map(u64::from_le_bytes);
    let head = b"abcdefghijklmnopqrstuvwx";
    // The payload of packet 0 lies behind its header, in the head.
    assert_eq!(buf.part_24(0, words, 0, 4), (&b"abcdefghijklmnopqrstuvwx0123"[..], &b""[..]));
    for (index, offset, body) in [(1, 4, &b"4567"[..]), (2, 8, b"89"), (3, 10, b"")] {
        assert_eq!(buf.part_24(index, words, offset, body.len()), (&head[..], body));
        assert_eq!(buf.packet(index, 24, offset, body.len()), (&head[..], body));
    }
}

/// `growth` is the noted size rounded up to a power of two; the packet count is unchanged.
#[test]
fn growth__is_what_was_noted_rounded_up() {
    let pool = pool(MIB);
    let mut buf = pool.alloc(10, 3).unwrap();
    assert_eq!(buf.growth(), 0);
    let most = 1 << 31;
    for (noted, growth) in [
        (1, 2),
        (2, 2),
        (3, 4),
        (0, 0),
        (4096, 4096),
        (4097, 8192),
        (most - 1, most),
        (most, most),
        (most + 1, most),
        (usize::MAX, most),
        (0, 0),
    ] {
        buf.set_growth(noted);
        assert_eq!((buf.growth(), buf.packet_count()), (growth, 3), "{noted}");
    }
    buf.set_growth(5_000);
    drop(buf);
    assert_eq!(pool.alloc(10, 3).unwrap().growth(), 0, "of a new buffer in the same block");
}

#[test]
fn append_message__of_any_length_into_any_room() {
    let bytes: Vec<u8> = (0..200).collect();
    for len in [0_usize, 1, 15, 16, 31, 32, 33, 64, 65, 200] {
        for room in [0, len.saturating_sub(1), len, 300] {
            let mut to = Vec::with_capacity(3 + room);
            to.extend_from_slice(b"to ");
            append_message(&bytes[..len], [], &mut to);
            assert_eq!(to, [b"to ", &bytes[..len]].concat(), "{len} bytes, room for {room}");
            append_message(&bytes[..len], *b" end", &mut to);
            assert!(
                to.ends_with(&[&bytes[..len], b" end"].concat()),
                "{len} bytes, room for {room}"
            );
            assert_eq!(to.len(), 3 + len + len + 4);
        }
    }
}

#[test]
fn frame_24__is_the_message_behind_its_header() {
    let pool = pool(MIB);
    let mut buf = pool.alloc(10, 1).unwrap();
    for message in [&b"0123456789"[..], b"012", b""] {
        buf.set_message(message);
        let words = [*b"abcdefgh", *b"ijklmnop", *b"qrstuvwx"].map(u64::from_le_bytes);
        let frame = buf.frame_24(words).to_vec();
        assert_eq!(frame, [b"abcdefghijklmnopqrstuvwx", message].concat());
        assert_eq!(buf.packet(0, 24, 0, message.len()), (&frame[..], &b""[..]));
    }
}

#[test]
fn frame_16__is_the_message_behind_its_header() {
    let pool = pool(MIB);
    let mut buf = pool.alloc(10, 1).unwrap();
    buf.data_mut().copy_from_slice(b"0123456789");
    buf.write_header_16([u64::from_le_bytes(*b"abcdefgh"), u64::from_le_bytes(*b"ijklmnop")]);
    assert_eq!(buf.frame_16(), b"abcdefghijklmnop0123456789");
    buf.set_len(3);
    assert_eq!(buf.frame_16(), b"abcdefghijklmnop012");
    assert_eq!(buf.packet(0, 16, 0, 3), (buf.frame_16(), &b""[..]));
}

#[test]
fn set_len__keeps_bytes_and_shows_storage() {
    let pool = pool(MIB);
    let mut buf = pool.alloc(100, 1).unwrap();
    buf.storage_mut().fill(9);
    buf.set_len(3);
    assert_eq!(buf.data(), [9; 3]);
    buf.set_len(100);
    assert_eq!(buf.data(), [9; 100]);
    let empty = pool.alloc(0, 0).unwrap();
    assert_eq!((empty.data(), empty.packet_count()), (&[][..], 1));
}

#[test]
fn fresh_memory__is_zero() {
    let pool = pool(8 * MIB);
    assert!(pool.alloc(100_000, 10).unwrap().storage_mut().iter().all(|&byte| byte == 0));
}

#[test]
fn reused_memory__begins_with_no_trace_of_the_free_list() {
    let pool = pool(MIB);
    drop([pool.alloc(32, 1).unwrap(), pool.alloc(32, 1).unwrap()]);
    let reused = [pool.alloc(32, 1).unwrap(), pool.alloc(32, 1).unwrap()];
    for buf in &reused {
        assert_eq!(buf.packet(0, FIRST_HEADER_BYTES, 0, 0).0, [0; FIRST_HEADER_BYTES]);
        assert_eq!(buf.data(), [0; 32]);
    }
}

fn panics(act: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err()
}

#[test]
fn misuse__panics() {
    let pool = pool(MIB);
    let mut buf = pool.alloc(100, 2).unwrap();
    assert!(panics(|| buf.set_len(101)));
    buf.set_len(50);
    assert!(panics(|| _ = buf.packet(0, 16, 0, 51)));
    assert!(panics(|| _ = buf.packet(0, 16, 1, 1)));
    assert!(panics(|| _ = buf.packet(1, 16, usize::MAX, 2)));
    assert!(panics(|| _ = buf.packet(1, TAIL_HEADER_BYTES + 1, 0, 1)));
    assert!(panics(|| _ = buf.packet(2, 16, 0, 1)));
    assert!(panics(|| buf.write_header(0, &[0; FIRST_HEADER_BYTES + 1])));
    assert!(panics(|| buf.write_header(1, &[0; TAIL_HEADER_BYTES + 1])));
    assert!(panics(|| buf.write_header(2, &[0])));
}

#[test]
fn pool__grows_only_when_asked() {
    let pool = pool(MIB);
    assert_eq!((pool.reserved_bytes(), pool.in_use()), (0, InUse::default()));
    let buf = pool.alloc(32, 1).unwrap();
    assert_eq!(pool.in_use(), InUse { count: 1, bytes: 128 });
    assert_eq!(pool.reserved_bytes(), 64 << 10);
    drop(buf);
    assert_eq!(pool.in_use(), InUse::default());
}

#[test]
fn buffers__outlive_their_pool() {
    let pool = pool(8 * MIB);
    let mut small = pool.alloc(32, 1).unwrap();
    let mut large = pool.alloc(MIB, 1000).unwrap();
    let clone = pool.clone();
    drop(pool);
    assert_eq!(clone.in_use().count, 2);
    drop(clone);
    small.data_mut().fill(1);
    large.data_mut().fill(2);
    assert_eq!((small.len(), large.packet_count()), (32, 1000));
    assert!(small.data().iter().all(|&byte| byte == 1));
    assert!(large.data().iter().all(|&byte| byte == 2));
}

#[test]
fn poison__is_all_that_is_left_of_a_buffer_that_came_back() {
    let pool = poisoning_pool(8 * MIB);
    for (capacity, packets) in [(0, 1), (32, 1), (1000, 4), (MIB, 1000)] {
        let mut buf = pool.alloc(capacity, packets).unwrap();
        buf.storage_mut().fill(1);
        (0..packets).for_each(|packet| buf.write_header(packet, &[2; FIRST_HEADER_BYTES]));
        let address = buf.address();
        drop(buf);
        let again = pool.alloc(capacity, packets).unwrap();
        assert_eq!(again.address(), address, "the same block");
        assert!(again.data().iter().all(|&byte| byte == POISON_BYTE));
        for packet in 0..packets {
            let (header, _) = again.packet(packet, FIRST_HEADER_BYTES, 0, 0);
            assert_eq!(header, [POISON_BYTE; FIRST_HEADER_BYTES], "header {packet}");
        }
    }
}

#[test]
fn poison__of_buffers_that_outlive_their_pool() {
    let pool = poisoning_pool(MIB);
    let mut held = [pool.alloc(32, 1).unwrap(), pool.alloc(2000, 3).unwrap()];
    drop(pool);
    held.iter_mut().for_each(|buf| buf.data_mut().fill(1));
    let [one, other] = held;
    drop(one);
    assert!(other.data().iter().all(|&byte| byte == 1));
}

#[test]
fn limit__is_an_error_and_memory_comes_back() {
    let pool = pool(64 << 10);
    let mut held = Vec::new();
    let refused = loop {
        match pool.alloc(4000, 1) {
            Ok(buf) => held.push(buf),
            Err(error) => break error,
        }
    };
    assert_eq!(held.len(), (64 << 10) / 4096);
    assert!(matches!(
        refused,
        PoolExhausted::Limit { max_bytes: 65536, reserved_bytes: 65536, .. }
    ));
    held.pop();
    assert!(pool.alloc(4000, 1).is_ok());
    assert_eq!(pool.alloc(10, 1).unwrap_err(), refused_small());
}

/// 4 MiB are enough for some hundred small buffers.
#[test]
fn has_room_for_small__until_four_mib_are_left() {
    let pool = pool(12 * MIB);
    let mut held = Vec::new();
    while pool.reserved_bytes() <= 8 * MIB {
        assert!(pool.has_room_for_small(), "{} bytes are mapped", pool.reserved_bytes());
        held.push(pool.alloc(MIB / 2 - 64, 1).unwrap());
    }
    assert!(!pool.has_room_for_small(), "{} bytes are mapped", pool.reserved_bytes());
}

#[test]
fn limit__an_eighth_is_left_to_small_buffers() {
    let pool = pool(8 * MIB);
    let mut held = Vec::new();
    while let Ok(large) = pool.alloc(MIB / 2 - 64, 1) {
        held.push(large);
    }
    assert_eq!(pool.in_use().bytes, 7 * MIB);
    let small: Vec<_> = (0..8).map(|_| pool.alloc(64 << 10, 1).unwrap()).collect();
    assert_eq!(small.len(), 8);
    assert!(pool.alloc(128 << 10, 1).is_err());
}

#[test]
fn limit__takes_idle_chunks_of_other_classes() {
    let pool = pool(16 * MIB);
    let fill = || {
        let buffers = std::iter::from_fn(|| pool.alloc(40_000, 30).ok());
        buffers.collect::<Vec<_>>()
    };
    let mut held = fill();
    assert!(pool.reserved_bytes() > 15 * MIB);
    let mut kept = held.swap_remove(held.len() / 2);
    kept.data_mut().fill(7);
    drop(held);
    // All chunks are freed, except that of the held block, of 2 MiB at most.
    let large: Vec<_> = (0..12).map(|_| pool.alloc(MIB - 64, 1).unwrap()).collect();
    assert!(kept.data().iter().all(|byte| *byte == 7));
    drop(large);
    drop(kept);
    // And in the other direction, any number of times.
    for _ in 0..3 {
        assert!(fill().len() > 300);
        assert!(pool.alloc(12 * MIB - 64, 1).is_ok());
    }
}

/// A chunk is idle when all blocks cut so far are idle.
#[test]
fn limit__takes_a_chunk_that_is_not_cut_to_its_end_if_nobody_has_a_block_of_it() {
    for keeps in [false, true] {
        let pool = pool(8 * MIB);
        let mut held = Vec::new();
        while pool.reserved_bytes() <= 4 * MIB {
            held.push(pool.alloc(4_000, 1).unwrap());
        }
        // The first block of a chunk of 2 MiB.
        let mut newest = held.pop().filter(|_| keeps);
        if let Some(newest) = &mut newest {
            newest.data_mut().fill(7);
        }
        drop(held);
        let large = pool.alloc(4 * MIB - 64, 1).unwrap();
        let left = if keeps { 2 * MIB } else { 0 };
        assert_eq!(pool.reserved_bytes(), 4 * MIB + left);
        drop(large);
        let again = std::iter::from_fn(|| pool.alloc(4_000, 1).ok()).collect::<Vec<_>>();
        assert_eq!(again.len() + usize::from(keeps), 8 * MIB / 4_096);
        assert!(newest.is_none_or(|buffer| buffer.data().iter().all(|&byte| byte == 7)));
    }
}

/// A vain search is costly, and is not repeated at every failure.
#[test]
fn limit__idle_chunks_are_looked_for_again_after_sixteen_failures() {
    let pool = pool(8 * MIB);
    let mut held: Vec<_> = std::iter::from_fn(|| pool.alloc(40_000, 30).ok()).collect();
    let mut count = 0;
    // Half of the memory is idle, but no whole chunk.
    held.retain(|_| {
        count += 1;
        count % 2 == 1
    });
    assert!(pool.alloc(4 * MIB - 64, 1).is_err());
    drop(held);
    for failure in 1..=16 {
        assert!(pool.alloc(4 * MIB - 64, 1).is_err(), "failure {failure}");
    }
    assert!(pool.alloc(4 * MIB - 64, 1).is_ok());
}

#[test]
fn limit__takes_idle_chunks_of_references_and_messages_together() {
    let pool = pool(4 * MIB);
    let message = shared(&pool, b"message");
    let fill = || std::iter::from_fn(|| pool.reference(&message, 20).ok()).collect::<Vec<_>>();
    drop(fill());
    assert!(pool.alloc(2 * MIB, 1).is_ok());
    assert!(fill().len() > 1_000);
}

fn refused_small() -> PoolExhausted {
    PoolExhausted::Limit { requested_bytes: 4096, reserved_bytes: 65536, max_bytes: 65536 }
}

#[test]
fn limit__takes_idle_large_blocks_of_other_classes() {
    let pool = pool(6 * MIB);
    drop(pool.alloc(3 * MIB, 1).unwrap());
    drop(pool.alloc(MIB / 2, 1).unwrap());
    assert_eq!(pool.reserved_bytes(), 4 * MIB + MIB * 3 / 4);
    let large = pool.alloc(4 * MIB, 100);
    assert!(matches!(large, Err(PoolExhausted::Limit { .. })));
    let large = pool.alloc(4 * MIB - 64, 1).unwrap();
    assert_eq!(large.len(), 4 * MIB - 64);
    assert_eq!(pool.reserved_bytes(), 4 * MIB);
}

#[test]
fn alloc__holds_1_gib_at_the_smallest_mtu_and_refuses_what_is_too_large() {
    // The test writes nothing, so the pages are never backed.
    let pool = pool(1792 * MIB);
    assert!(pool.alloc(1024 * MIB, 1024 * MIB / 1200 + 1).is_ok());
    for (capacity, packets) in
        [(1536 * MIB, 1), (usize::MAX, 1), (1, usize::MAX), (1024 * MIB, 16 * MIB)]
    {
        assert!(matches!(pool.alloc(capacity, packets), Err(PoolExhausted::TooLarge { .. })));
    }
    assert_eq!(pool.in_use(), InUse::default());
}

/// One step of the property test.
#[derive(Clone, Debug)]
enum Step {
    Alloc { capacity: usize, packets: usize },
    Free(usize),
    Fill(usize, u8),
    Header(usize, usize, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let large = if cfg!(miri) { 6_000usize } else { 400_000 };
    let capacity = prop_oneof![0..200usize, 0..5000usize, 0..large];
    let step = prop_oneof![
        3 => (capacity, 1..9usize).prop_map(|(capacity, packets)| Step::Alloc { capacity, packets }),
        2 => any::<usize>().prop_map(Step::Free),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(which, byte)| Step::Fill(which, byte)),
        2 => (any::<usize>(), any::<usize>(), any::<u8>())
            .prop_map(|(which, packet, byte)| Step::Header(which, packet, byte)),
    ];
    vec(step, 1..if cfg!(miri) { 20 } else { 120 })
}

fn header_bytes(packet: usize) -> usize {
    if packet == 0 { FIRST_HEADER_BYTES } else { TAIL_HEADER_BYTES }
}

/// Expected contents of a buffer: one value per part, since parts are filled as a whole.
struct Model {
    buf: PacketBuf,
    data: u8,
    headers: Vec<u8>,
}

impl Model {
    fn new(mut buf: PacketBuf) -> Self {
        let headers = vec![0; buf.packet_count()];
        buf.storage_mut().fill(0);
        (0..headers.len()).for_each(|index| {
            buf.write_header(index, &[0; TAIL_HEADER_BYTES][..header_bytes(index)])
        });
        Self { buf, data: 0, headers }
    }

    fn fill(&mut self, byte: u8) {
        self.data = byte;
        self.buf.data_mut().fill(byte);
    }

    fn write_header(&mut self, packet: usize, byte: u8) {
        let index = packet % self.headers.len();
        self.headers[index] = byte;
        self.buf.write_header(index, &[byte; TAIL_HEADER_BYTES][..header_bytes(index)]);
    }

    fn check(&self) {
        assert!(self.buf.data().iter().all(|&byte| byte == self.data));
        for (index, &byte) in self.headers.iter().enumerate() {
            let header = self.buf.packet(index, header_bytes(index), 0, 0).0;
            assert!(header.iter().all(|&found| found == byte));
        }
    }
}

/// The naive model of the accounting: the sum over the held buffers.
fn held_bytes(held: &[Model]) -> usize {
    let block = |m: &Model| packet::block_bytes(m.buf.capacity(), m.buf.packet_count()).unwrap();
    held.iter().map(|model| class::class_of(block(model)).block_bytes()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 64 }))]

    #[test]
    fn random_use__never_mixes_buffers(
        steps in steps(),
        max_mib in 1..16usize,
        poisons in any::<bool>(),
    ) {
        let max_bytes = max_mib * MIB;
        let pool = if poisons { poisoning_pool(max_bytes) } else { pool(max_bytes) };
        let mut held: Vec<Model> = Vec::new();
        for step in steps {
            let count = held.len().max(1);
            match step {
                Step::Alloc { capacity, packets } => match pool.alloc(capacity, packets) {
                    Ok(buf) => held.push(Model::new(buf)),
                    Err(error) => assert!(matches!(error, PoolExhausted::Limit { .. })),
                },
                Step::Free(which) if !held.is_empty() => drop(held.swap_remove(which % count)),
                Step::Fill(which, byte) if !held.is_empty() => held[which % count].fill(byte),
                Step::Header(which, packet, byte) if !held.is_empty() => {
                    held[which % count].write_header(packet, byte);
                }
                _ => {}
            }
            held.iter().for_each(Model::check);
            let expected = InUse { count: held.len(), bytes: held_bytes(&held) };
            prop_assert_eq!(pool.in_use(), expected);
            prop_assert!(pool.reserved_bytes() <= max_mib * MIB);
        }
        drop(held);
        prop_assert_eq!(pool.in_use(), InUse::default());
    }
}

fn shared(pool: &BufPool, message: &[u8]) -> SharedBuf {
    let mut buf = pool.alloc(message.len() + 3, 1).unwrap();
    buf.set_message(message);
    SharedBuf::new(buf)
}

#[test]
fn reference__sends_the_message_with_headers_of_its_own() {
    let pool = poisoning_pool(MIB);
    let message = shared(&pool, b"0123456789");
    assert_eq!(pool.reference(&message, 0).unwrap().packet_count(), 1);
    let mut one = pool.reference(&message, 3).unwrap();
    let mut other = pool.reference(&message, 3).unwrap();
    assert_eq!((one.wire_len(), one.len(), one.capacity(), one.data()), (10, 0, 0, &[][..]));
    for (buf, header) in [(&mut one, b'a'), (&mut other, b'b')] {
        (0..3).for_each(|packet| buf.write_header(packet, &[header; 24]));
    }
    for (buf, header) in [(&one, b'a'), (&other, b'b')] {
        for (packet, span) in [(0, 0..4), (1, 4..8), (2, 8..10)] {
            let (head, body) = buf.packet(packet, 24, span.start, span.len());
            assert_eq!((head, body), (&[header; 24][..], &message[span]), "packet {packet}");
            assert!(message.as_ptr_range().contains(&body.as_ptr()), "nothing is copied");
        }
    }
    let words = [1, 2, 3].map(|word: u64| u64::from_le_bytes([word as u8; 8]));
    let head = [[1; 8], [2; 8], [3; 8]].concat();
    for (packet, span) in [(0, 0..4), (1, 4..8), (2, 8..10), (2, 10..10)] {
        let expected = (&head[..], &message[span.clone()]);
        assert_eq!(one.part_24(packet, words, span.start, span.len()), expected);
        assert_eq!(one.packet(packet, 24, span.start, span.len()), expected);
    }
}

#[test]
fn reference__looks_empty_to_all_others() {
    let pool = pool(MIB);
    let message = shared(&pool, b"0123456789");
    let mut buf = pool.reference(&message, 2).unwrap();
    assert!(buf.data_mut().is_empty() && buf.storage_mut().is_empty());
    assert_eq!(buf.frame_16().len(), 16);
    assert!(panics(|| buf.set_len(1)));
    assert!(panics(|| buf.set_message(b"x")));
    assert!(panics(|| _ = buf.packet(0, 24, 0, 11)));
    assert!(panics(|| _ = buf.packet(1, 24, 4, usize::MAX)));
    assert!(panics(|| _ = buf.packet(2, 24, 4, 1)), "no room for this header");
    assert!(panics(|| _ = pool.reference(&shared(&pool, b""), 1)));
}

#[test]
fn shared__memory_comes_back_with_the_last_who_has_it() {
    let pool = poisoning_pool(MIB);
    let message = shared(&pool, &[7; 100]);
    let before = pool.in_use();
    let mut one = pool.reference(&message, 1).unwrap();
    let other = pool.reference(&message, 40).unwrap();
    assert_eq!(pool.in_use().count, before.count + 2);
    let message = message.try_unwrap().expect_err("it is referred to");
    drop(other);
    let clone = message.clone();
    drop(message);
    let message = clone.try_unwrap().expect_err("it is referred to");
    drop(message);
    assert_eq!(one.packet(0, 16, 0, 100).1, [7; 100]);
    one.release();
    assert_eq!((pool.in_use().count, one.wire_len()), (1, 0));
    assert!(panics(|| _ = one.packet(0, 16, 0, 1)));
    one.release();
    drop(one);
    assert_eq!(pool.in_use(), InUse::default());

    let message = shared(&pool, b"mine");
    drop(pool.reference(&message, 1).unwrap());
    assert_eq!(message.try_unwrap().expect("nobody else has it").data(), b"mine");
}

#[test]
fn references__outlive_their_pool_and_that_of_the_message() {
    for poisons in [false, true] {
        let config = PoolConfig { poison: poisons, ..PoolConfig::default() };
        let (home, away) = (BufPool::new(config), BufPool::new(config));
        let message = shared(&home, &[1; 2000]);
        let here = home.reference(&message, 2).unwrap();
        let there = away.reference(&message, 2).unwrap();
        drop((home, away, message));
        assert_eq!(there.packet(1, 24, 1000, 1000).1, [1; 1000]);
        drop(there);
        assert_eq!(here.packet(1, 24, 1000, 1000).1, [1; 1000]);
        drop(here);
    }
}

#[test]
fn references__are_lent_again_and_counted_apart() {
    let pool = pool(MIB);
    let (first, second) = (shared(&pool, b"first"), shared(&pool, b"second"));
    drop(pool.reference(&first, 1).unwrap());
    let again = pool.reference(&second, 1).unwrap();
    assert_eq!(again.packet(0, 16, 0, 6).1, b"second");
    // A buffer with data, of the reference's size class.
    let plain = pool.alloc(8, 1).unwrap();
    assert_eq!((plain.wire_len(), plain.packet(0, 16, 0, 8).1), (8, &[][..]));
    assert_eq!(first.try_unwrap().expect("the reference is gone").data(), b"first");
}

#[test]
fn block_bytes__of_one_packet_has_no_tail_and_no_alignment() {
    for capacity in [0, 1, 7, 8, 100, 1_000, 65_521] {
        assert_eq!(packet::block_bytes(capacity, 1), Some(HEAD_ROOM_BYTES + capacity));
        assert_eq!(packet::block_bytes(capacity, 0), packet::block_bytes(capacity, 1));
        let with_tail = packet::block_bytes(capacity, 2).unwrap();
        assert!(with_tail > HEAD_ROOM_BYTES + capacity && with_tail.is_multiple_of(8));
    }
    let largest = LARGEST_BLOCK_BYTES - HEAD_ROOM_BYTES;
    assert_eq!(packet::block_bytes(largest, 1), Some(LARGEST_BLOCK_BYTES));
    assert_eq!(packet::block_bytes(largest + 1, 1), None);
    assert_eq!(packet::block_bytes(largest, 2), None);
    assert_eq!(packet::block_bytes(usize::MAX, usize::MAX), None);
}

/// The head room, a header for each packet after the first, and a pointer.
#[test]
fn reference_bytes__are_those_of_its_headers_and_a_pointer() {
    let bytes_of = |headers: usize| HEAD_ROOM_BYTES + headers * TAIL_HEADER_BYTES + 8;
    for packets in [1, 2, 3, 100, 5_000] {
        assert_eq!(super::shared::reference_bytes(packets), Some(bytes_of(packets - 1)));
    }
    assert_eq!(super::shared::reference_bytes(0), Some(bytes_of(0)));
    let most = (LARGEST_BLOCK_BYTES - bytes_of(0)) / TAIL_HEADER_BYTES + 1;
    assert_eq!(super::shared::reference_bytes(most), Some(bytes_of(most - 1)));
    assert_eq!(super::shared::reference_bytes(most + 1), None);
    assert_eq!(super::shared::reference_bytes(usize::MAX), None);
}

#[test]
fn fresh_memory__of_a_pool_that_poisons_nothing_is_none_that_another_poisoned() {
    let poisoning = poisoning_pool(8 * MIB);
    let mut buffer = poisoning.alloc(100_000, 10).unwrap();
    buffer.storage_mut().fill(1);
    let (address, reserved_bytes) = (buffer.address(), poisoning.reserved_bytes());
    drop((buffer, poisoning));
    let plain = pool(8 * MIB).alloc(100_000, 10).unwrap();
    assert!(plain.data().iter().all(|&byte| byte == 0));
    let poisoning = poisoning_pool(8 * MIB);
    let again = poisoning.alloc(100_000, 10).unwrap();
    assert_eq!((again.address(), poisoning.reserved_bytes()), (address, reserved_bytes));
}

/// The regions of a pool by their start, and a limit of regions.
#[derive(Debug, Default)]
struct Device {
    regions: std::cell::RefCell<std::collections::BTreeMap<usize, usize>>,
    regions_max: usize,
    /// Bursts: the current one, and the latest that is read.
    bursts: std::cell::Cell<(u64, u64)>,
}

impl RegionWatch for Device {
    fn unread(&self) -> Option<u64> {
        let (current, read) = self.bursts.get();
        (current > read).then_some(current)
    }

    fn has_read(&self, burst: u64) -> bool {
        burst <= self.bursts.get().1
    }

    fn register(&self, start: NonNull<u8>, bytes: usize) -> bool {
        let mut regions = self.regions.borrow_mut();
        if regions.len() == self.regions_max {
            return false;
        }
        assert_eq!(regions.insert(start.addr().get(), bytes), None, "registered twice");
        true
    }

    fn unregister(&self, start: NonNull<u8>, bytes: usize) {
        assert_eq!(self.regions.borrow_mut().remove(&start.addr().get()), Some(bytes));
    }
}

#[test]
fn watched__every_lent_byte_is_in_a_registered_region() {
    let device = Rc::new(Device { regions_max: 40, ..Device::default() });
    let pool = BufPool::watched(PoolConfig::default(), Some(device.clone()));
    let mut lent = Vec::new();
    for len in [1, 100, 4_000, 60_000, 1_000_000].repeat(20) {
        let Ok(buf) = pool.alloc(len, 1) else { break };
        let start = buf.data().as_ptr().addr();
        let regions = device.regions.borrow();
        let (region, bytes) = regions.range(..=start).next_back().expect("a region before it");
        assert!(start + len <= region + bytes, "{len} bytes are outside");
        lent.push(buf);
    }
    assert_eq!(device.regions.borrow().values().sum::<usize>(), pool.reserved_bytes());
    drop(lent);
    drop(pool);
    assert!(device.regions.borrow().is_empty(), "the memory has gone, and is registered");
}

#[test]
fn watched__a_region_that_the_device_refuses_is_not_used() {
    let device = Rc::new(Device { regions_max: 1, ..Device::default() });
    let pool = BufPool::watched(PoolConfig::default(), Some(device.clone()));
    let small = pool.alloc(10, 1).unwrap();
    let refused = pool.alloc(1_000_000, 1).unwrap_err();
    assert!(matches!(refused, PoolExhausted::OutOfMemory { .. }), "{refused}");
    assert_eq!(pool.reserved_bytes(), device.regions.borrow().values().sum::<usize>());
    drop((small, pool));
    assert!(device.regions.borrow().is_empty());
}

#[test]
fn watched__a_buffer_that_the_device_reads_is_set_aside() {
    let device = Rc::new(Device { regions_max: 40, ..Device::default() });
    device.bursts.set((7, 6));
    let config = PoolConfig { poison: true, ..PoolConfig::default() };
    let pool = BufPool::watched(config, Some(device.clone()));
    let places = |len, count| {
        let lent: Vec<_> = (0..count).map(|_| pool.alloc(len, 2).unwrap()).collect();
        lent.iter().map(|buf| buf.address().addr()).collect::<Vec<_>>()
    };
    let (small, large) = (READ_IN_PLACE_BYTES_MIN - 1, READ_IN_PLACE_BYTES_MIN);
    places(small, 2);
    assert_eq!(pool.in_use().count, 0, "small bodies are copied");
    let mut buf = pool.alloc(large, 2).unwrap();
    buf.set_message(&[7; READ_IN_PLACE_BYTES_MIN]);
    let (place, body) = (buf.address().addr(), buf.data().as_ptr());
    drop(buf);
    assert_eq!(pool.in_use().count, 1, "the device reads it");
    assert!(!places(large, 2).contains(&place));
    // SAFETY: the pool keeps the memory mapped, and does not write there.
    assert_eq!(unsafe { *body }, 7, "no byte has changed");
    device.bursts.set((9, 7));
    assert!(places(large, 3).contains(&place));
    assert_eq!(pool.in_use().count, 3, "their burst is not read");
    device.bursts.set((9, 9));
    assert_eq!(pool.in_use().count, 0);
}
