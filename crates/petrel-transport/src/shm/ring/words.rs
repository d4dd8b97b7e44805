//! Headers of records: every length, every bit of a position, and every kind of word a peer may
//! leave at the consumer's place, against a literal reading of the layout (`record.rs`).

use super::heap::Heap;
use super::record::{Header, record_bytes};
use super::*;

const CAPACITY: usize = 512;
const LINES: usize = CAPACITY / RECORD_ALIGN;
const FRAME_BYTES_MAX: usize = max_frame_limit(CAPACITY);

/// The length of a skip, and the bit behind the length.
const SKIP: u32 = (1 << 31) - 1;
const LAST: u32 = 1 << 31;

/// A header by the layout: the length and the mark below, the position in lines above.
fn header(low: u32, position: u64) -> u64 {
    u64::from(low) | (position / RECORD_ALIGN as u64) << 32
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Nothing,
    Frame(usize),
    ToStart,
    Broken,
}

/// The meaning for a consumer of a header word at a position.
fn meaning(word: u64, position: u64) -> Meaning {
    let (low, check) = (word as u32, (word >> 32) as u32);
    let to_end = CAPACITY - position as usize % CAPACITY;
    let length = (low & !LAST) as usize;
    if word == 0 {
        Meaning::Nothing
    } else if check != (position / RECORD_ALIGN as u64) as u32 {
        Meaning::Broken
    } else if low == SKIP && to_end <= CAPACITY / 2 {
        Meaning::ToStart
    } else if (1..=FRAME_BYTES_MAX).contains(&length)
        && (RECORD_HEADER_BYTES + length).next_multiple_of(RECORD_ALIGN) <= to_end
    {
        Meaning::Frame(length)
    } else {
        Meaning::Broken
    }
}

/// A ring with the consumer at `line`, counted through all laps, without a record there.
fn ring_at(line: usize) -> (Heap, Consumer<Heap>) {
    let ring = Heap::new(CAPACITY);
    let (mut producer, mut consumer) = ring.ends(FRAME_BYTES_MAX);
    for _ in 0..line {
        producer.push(&[7], &[]).unwrap();
        producer.publish();
        assert_eq!(consumer.receive(1, |_| {}).frames, 1);
    }
    // Bytes of earlier laps must not pass for records either.
    (0..LINES).for_each(|line| store(&ring, line * RECORD_ALIGN, 0));
    (ring, consumer)
}

fn store(ring: &Heap, offset: usize, word: u64) {
    // SAFETY: the offset is that of a line, and no frame is lent.
    unsafe { ring.store_word(offset, word) };
}

/// Lower halves: every length a ring of this size could hold and some more, the ends of the 31-bit
/// range, and single bits; each with and without the mark.
fn lower_halves() -> impl Iterator<Item = u32> {
    let ends = [SKIP, SKIP - 1, SKIP - CAPACITY as u32, SKIP / 2];
    let lengths = (0..=CAPACITY as u32 + 70).chain(ends).chain((10..31).map(|bit| 1 << bit));
    lengths.flat_map(|length| [length, length | LAST])
}

/// Positions a peer may claim: the right position, the neighbours, positions in further laps, and
/// the right position with any single bit wrong.
fn positions(right: u64) -> impl Iterator<Item = u64> {
    let line = RECORD_ALIGN as u64;
    let others =
        [line, CAPACITY as u64, line << 32].map(|step| [right + step, right.wrapping_sub(step)]);
    let bits = (0..32).map(move |bit| right ^ line << bit);
    std::iter::once(right).chain(others.into_iter().flatten()).chain(bits)
}

/// Exhaustive over the consumer's line, the length, the mark, and the bits of the position.
#[test]
fn receive__takes_what_the_layout_allows_at_every_line() {
    for line in 0..2 * LINES + 1 {
        let at = (line * RECORD_ALIGN) as u64;
        let (mut ring, mut consumer) = ring_at(line);
        for (low, claimed) in
            lower_halves().flat_map(|low| positions(at).map(move |claimed| (low, claimed)))
        {
            let word = header(low, claimed);
            store(&ring, at as usize % CAPACITY, word);
            let expected = meaning(word, at);
            let length = match expected {
                Meaning::Frame(length) => Some(length),
                _ => None,
            };
            assert_eq!(consumer.has_data(), expected != Meaning::Nothing);
            let mut seen = None;
            consumer.look_ahead(1, |frame| seen = Some(frame.len()));
            assert_eq!(seen, length, "{word:#x} at {at}");
            let mut taken = None;
            let received = consumer.receive(1, |frame| taken = Some(frame.len()));
            assert_eq!(taken, length, "{word:#x} at {at}");
            assert_eq!(received.frames, usize::from(length.is_some()));
            assert_eq!(received.is_broken, expected == Meaning::Broken, "{word:#x} at {at}");
            // From here on the consumer is at another place.
            if matches!(expected, Meaning::Frame(_) | Meaning::ToStart) {
                (ring, consumer) = ring_at(line);
            }
        }
    }
}

/// The producer encodes headers by the layout, for every length and every bit of a position.
#[test]
fn encode__is_the_layout_for_every_length_and_position() {
    let bits = (6..64).map(|bit| 1u64 << bit);
    for position in bits.clone().chain(bits.map(|bit| bit.wrapping_neg())).chain([0]) {
        let skip = Header::Skip.encode(position);
        assert_eq!(skip, header(SKIP, position));
        for length in (1..=CAPACITY).chain((10..31).map(|bit| 1 << bit)) {
            let word = Header::Frame { length }.encode(position);
            assert_eq!(word, header(length as u32, position));
            assert!(word != 0 && word != skip);
            // `position` recovers enough bits to find the record.
            assert_eq!(super::record::position(word) as u32, position as u32);
        }
    }
}

#[test]
fn record_bytes__are_the_fewest_lines_that_hold_it() {
    for length in (0..=4 * CAPACITY).chain([SKIP as usize - 1]) {
        let bytes = record_bytes(length);
        assert!(bytes.is_multiple_of(RECORD_ALIGN) && bytes >= RECORD_HEADER_BYTES + length);
        assert!(bytes < RECORD_HEADER_BYTES + length + RECORD_ALIGN);
    }
}

/// The producer accepts exactly the heads, in lines, from the last known head to the published
/// tail.
#[test]
fn push__takes_every_head_that_a_consumer_can_have_and_no_other() {
    let line = RECORD_ALIGN as u64;
    for (before, published) in (0..=LINES as u64).flat_map(|lap| [4, 5, 6, 7].map(|n| (7 * lap, n)))
    {
        let near = (0..=before + 3 * LINES as u64)
            .flat_map(|head| [0, 8, 63].map(|off| line * head + off));
        let ends = (0..64).map(|bit| 1 << bit).chain([u64::MAX, line.wrapping_neg()]);
        for head in near.chain(ends) {
            let (ring, mut producer) = ring_with(before, published);
            ring.control().head.0.store(head, Ordering::Relaxed);
            let is_possible =
                head.is_multiple_of(line) && (before..=before + published).contains(&(head / line));
            let pushed = producer.push(&[0; FRAME_BYTES_MAX], &[]);
            assert_eq!(
                pushed == Err(PushError::Broken),
                !is_possible,
                "{head} of {before} and {published}: {pushed:?}"
            );
        }
    }
}

/// A ring whose producer knows of a consumer at the line `before`, a multiple of seven, and has
/// published at least four more lines. The longest frame makes the producer read the head again.
fn ring_with(before: u64, published: u64) -> (Heap, Producer<Heap>) {
    let ring = Heap::new(CAPACITY);
    let (mut producer, mut consumer) = ring.ends(FRAME_BYTES_MAX);
    // A ring of eight lines accepts seven, so the producer reads the head after every seven.
    for _ in 0..before {
        producer.push(&[7], &[]).unwrap();
        producer.publish();
        consumer.receive(1, |_| {});
    }
    (0..published).for_each(|_| producer.push(&[7], &[]).unwrap());
    producer.publish();
    (ring, producer)
}
