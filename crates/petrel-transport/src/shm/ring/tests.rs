//! The ring with damaged records, at its bounds, and between two threads. `fuzz/src/ring.rs` compares it with a queue.

use super::heap::Heap;
use super::record::{Header, LAST, NOTHING, RECORD_ALIGN, record_bytes};
use super::*;

const CAPACITY: usize = 1024;
const MAX_FRAME: usize = CAPACITY / 4 - RECORD_HEADER_BYTES;

/// A frame with every byte different from the neighbours' bytes.
fn frame(number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (number.wrapping_mul(31) + i * 7) as u8).collect()
}

/// Receives from a ring with one publication of frames of 16, 100, 150 and 150 bytes, after
/// `spoil`.
fn spoilt(spoil: impl FnOnce(&Heap)) -> (Vec<usize>, Received) {
    let ring = Heap::new(CAPACITY);
    let (mut producer, mut consumer) = ring.ends(200);
    producer.push(&[1; 16], &[]).unwrap();
    producer.push(&[2; 60], &[3; 40]).unwrap();
    producer.push(&[4; 150], &[]).unwrap();
    producer.push(&[5; 150], &[]).unwrap();
    producer.publish();
    spoil(&ring);
    let mut lengths = Vec::new();
    let received = consumer.receive(10, |frame| lengths.push(frame.len()));
    let again = consumer.receive(10, |_| panic!("a frame after the end"));
    assert_eq!(again.is_broken, received.is_broken, "a broken ring stays so");
    (lengths, received)
}

const SECOND: usize = RECORD_ALIGN;

fn with_header(word: u64) -> impl FnOnce(&Heap) {
    // SAFETY: one thread, and no frame is lent.
    move |ring| unsafe { ring.store_word(SECOND, word) }
}

#[test]
fn receive__delivers_what_is_whole() {
    let (lengths, received) = spoilt(|_| {});
    assert_eq!(lengths, [16, 100, 150, 150]);
    assert_eq!(received, Received { frames: 4, bytes: 416, publications: 1, is_broken: false });
}

#[test]
fn receive__stops_at_an_impossible_header() {
    let at = SECOND as u64;
    let words = [
        u64::MAX,
        LAST,
        Header::Frame { length: 0 }.encode(at),
        // Published, but longer than agreed.
        Header::Frame { length: 201 }.encode(at),
        // Right except for the position.
        Header::Frame { length: 100 }.encode(at + RECORD_ALIGN as u64),
        // From the lap before.
        Header::Frame { length: 100 }.encode(at.wrapping_sub(CAPACITY as u64)),
        Header::Skip.encode(at),
    ];
    for word in words {
        let (lengths, received) = spoilt(with_header(word));
        assert_eq!(lengths, [16], "{word:x}");
        assert!(received.is_broken && received.frames == 1, "{word:x}");
    }
}

#[test]
fn receive__stops_where_nothing_is() {
    let (lengths, received) = spoilt(with_header(NOTHING));
    assert_eq!(
        (lengths, received),
        (vec![16], Received { frames: 1, bytes: 16, publications: 0, is_broken: false })
    );
}

/// A ring read up to `left` bytes before the end, with the `next` frames published afterwards.
fn near_the_end(left: usize, next: &[usize]) -> (Heap, Consumer<Heap>) {
    let ring = Heap::new(CAPACITY);
    let (mut producer, mut consumer) = ring.ends(MAX_FRAME);
    for _ in 0..(CAPACITY - left) / RECORD_ALIGN {
        producer.push(&[1; 8], &[]).unwrap();
        producer.publish();
        assert_eq!(consumer.receive(10, |_| {}).frames, 1);
    }
    for &length in next {
        producer.push(&vec![2; length], &[]).unwrap();
    }
    producer.publish();
    (ring, consumer)
}

#[test]
fn receive__stops_at_a_record_that_crosses_the_end() {
    let (ring, mut consumer) = near_the_end(64, &[56, 56]);
    let position = CAPACITY as u64 - 64;
    let header = Header::Frame { length: 57 }.encode(position);
    // SAFETY: one thread, and no frame is lent.
    unsafe { ring.store_word(position as usize, header) };
    assert!(consumer.receive(10, |_| panic!("a frame beyond the end")).is_broken);
}

#[test]
fn receive__finds_nothing_behind_a_skip_without_a_record() {
    let (ring, mut consumer) = near_the_end(128, &[]);
    let position = CAPACITY as u64 - 128;
    // SAFETY: one thread, and no frame is lent.
    unsafe {
        ring.store_word(position as usize, Header::Skip.encode(position));
        ring.store_word(0, NOTHING);
    }
    for _ in 0..2 {
        assert_eq!(consumer.receive(10, |_| panic!("no frame")), Received::default());
    }
    // A word from the first lap is no record of this lap.
    // SAFETY: as above.
    unsafe { ring.store_word(0, Header::Frame { length: 8 }.encode(0)) };
    assert!(consumer.receive(10, |_| panic!("an old frame")).is_broken);
}

#[test]
fn receive__refuses_a_skip_over_more_than_half_of_the_ring() {
    for left in [CAPACITY, CAPACITY / 2 + RECORD_ALIGN] {
        let (ring, mut consumer) = near_the_end(left, &[]);
        let position = (CAPACITY - left) as u64;
        // SAFETY: one thread, and no frame is lent.
        unsafe { ring.store_word(position as usize, Header::Skip.encode(position)) };
        assert!(consumer.receive(10, |_| panic!("no frame")).is_broken, "{left}");
    }
}

/// Runs `action` at the first frame.
fn once(action: impl FnOnce()) -> impl FnMut(RingFrame<'_>) {
    let mut action = Some(action);
    move |_| {
        if let Some(action) = action.take() {
            action();
        }
    }
}

#[test]
fn receive__looks_no_further_than_a_burst_that_was_waited_for() {
    let (mut producer, mut consumer) = Heap::new(CAPACITY).ends(MAX_FRAME);
    let mut send = |frames| {
        (0..frames).for_each(|_| producer.push(&[1; 8], &[]).unwrap());
        producer.publish();
    };
    for frames in [1, 3] {
        assert!(!consumer.has_data());
        // The second burst arrives during the reading of the first.
        send(frames);
        assert_eq!(consumer.receive(10, once(|| send(2))).frames, frames);
        // The consumer did not wait for the second burst, and so sees the third.
        assert_eq!(consumer.receive(10, once(|| send(1))).frames, 3);
    }
    assert!(!consumer.has_data());
    send(3);
    send(1);
    assert_eq!(consumer.receive(2, |_| {}).frames, 2);
    assert_eq!(consumer.receive(10, |_| {}).frames, 2);
}

#[test]
fn receive__takes_more_publications_at_once_if_the_consumer_never_waits() {
    let (mut producer, mut consumer) = Heap::new(CAPACITY).ends(MAX_FRAME);
    let mut publish_pairs = |pairs: usize| {
        for _ in 0..pairs {
            (0..2).for_each(|_| producer.push(&[1; 8], &[]).unwrap());
            producer.publish();
        }
    };
    assert!(!consumer.has_data());
    // Sixteen turns of four frames without a wait, of a line each.
    publish_pairs(1);
    assert_eq!(consumer.receive(100, |_| ()).frames, 2, "awaited");
    for turn in 0..16 {
        publish_pairs(2);
        assert_eq!(consumer.receive(100, |_| ()).frames, 4, "turn {turn}");
    }
    publish_pairs(5);
    assert_eq!(consumer.receive(100, |_| ()).frames, 8);
    assert_eq!(consumer.receive(100, |_| ()).frames, 2);
    // A wait.
    assert!(!consumer.has_data());
    publish_pairs(1);
    assert_eq!(consumer.receive(100, |_| ()).frames, 2);
    publish_pairs(4);
    assert_eq!(consumer.receive(100, |_| ()).frames, 4);
}

/// A publication of eight frames after a number of empty looks, behind one of four frames.
#[test]
fn begin_burst__allows_a_part_after_a_wait_that_was_longer_than_the_work_before() {
    for (looks, first) in [(0, 8), (1, 8), (24, 8), (25, 4), (1_000, 4)] {
        let (mut producer, mut consumer) = Heap::new(CAPACITY).ends(MAX_FRAME);
        let publish = |producer: &mut Producer<Heap>, frames: usize| {
            (0..frames).for_each(|_| producer.push(&[1], &[]).unwrap());
            producer.publish();
        };
        publish(&mut producer, 4);
        assert_eq!(consumer.receive(100, |_| ()).frames, 4);
        (0..looks).for_each(|_| assert!(!consumer.has_data()));
        publish(&mut producer, 8);
        assert!(consumer.has_data());
        let budget = consumer.begin_burst(100);
        assert_eq!(budget, if first == 8 { 100 } else { 4 }, "after {looks} looks");
        assert_eq!(consumer.receive(budget, |_| ()).frames, first);
        assert_eq!(consumer.begin_burst(100), 100, "the rest was not waited for");
        assert_eq!(consumer.receive(100, |_| ()).frames, 8 - first);
    }
}

#[test]
fn publish__shows_a_burst_by_its_first_record_with_nothing_behind_the_last() {
    let ring = Heap::new(CAPACITY);
    let (mut producer, consumer) = ring.ends(MAX_FRAME);
    // Bytes from an earlier lap.
    for line in 1..CAPACITY / RECORD_ALIGN {
        // SAFETY: one thread, and no frame is lent.
        unsafe { ring.store_word(line * RECORD_ALIGN, u64::MAX) };
    }
    producer.push(&[1; 8], &[]).unwrap();
    producer.push(&[2; 100], &[]).unwrap();
    assert!(!consumer.has_data());
    producer.publish();
    assert!(consumer.has_data());
    // SAFETY: one thread, and no frame is lent.
    assert_eq!(unsafe { ring.load_word(record_bytes(8) + record_bytes(100)) }, NOTHING);
}

#[test]
fn push__an_empty_ring_takes_the_largest_frame_wherever_it_is() {
    let largest = max_frame_limit(CAPACITY);
    for before in (1..=largest).step_by(RECORD_ALIGN) {
        let (mut producer, mut consumer) = Heap::new(CAPACITY).ends(largest);
        for length in [before, largest, largest] {
            producer.push(&vec![length as u8; length], &[]).unwrap();
            assert!(producer.publish());
            let received =
                consumer.receive(1, |frame| assert_eq!(frame, vec![length as u8; length]));
            assert_eq!(received.frames, 1);
        }
    }
}

#[test]
fn push__refuses_an_impossible_head() {
    for head in [8, CAPACITY as u64 + 64, u64::MAX - 63, 1 << 63] {
        let ring = Heap::new(CAPACITY);
        let (mut producer, _consumer) = ring.ends(MAX_FRAME);
        while producer.push(&[0; 100], &[]) != Err(PushError::Full) {}
        producer.publish();
        ring.control().head.0.store(head, Ordering::Release);
        assert_eq!(producer.push(&[0; 100], &[]), Err(PushError::Broken), "{head}");
    }
}

#[test]
fn push__a_frame_that_is_not_published_cannot_be_released() {
    let ring = Heap::new(CAPACITY);
    let (mut producer, _consumer) = ring.ends(MAX_FRAME);
    while producer.push(&[0; 100], &[]) != Err(PushError::Full) {}
    ring.control().head.0.store(record_bytes(100) as u64, Ordering::Release);
    assert_eq!(producer.push(&[0; 100], &[]), Err(PushError::Broken));
}

#[test]
fn receive__releases_during_a_long_burst() {
    let (mut producer, mut consumer) = Heap::new(CAPACITY).ends(MAX_FRAME);
    while producer.push(&[7; 100], &[]).is_ok() {}
    producer.publish();
    let mut pushed = 0;
    consumer.receive(100, |_| pushed += usize::from(producer.push(&[8; 100], &[]).is_ok()));
    assert!(pushed > 0);
}

/// The producer's known head during the delivery of every one-line frame.
fn heads_during(before: usize, frames: usize) -> Vec<u64> {
    let (ring, mut consumer) = near_the_end(CAPACITY - before * RECORD_ALIGN, &vec![8; frames]);
    let mut heads = Vec::new();
    let received = consumer.receive(frames + 1, |_| {
        heads.push(ring.control().head.0.load(Ordering::Relaxed) / RECORD_ALIGN as u64);
    });
    assert_eq!(received.frames, frames);
    heads
}

#[test]
fn receive__gives_each_eighth_of_the_ring_back_at_its_end() {
    assert_eq!(CAPACITY / RECORD_ALIGN, 16, "two lines are an eighth");
    assert_eq!(heads_during(0, 6), [0, 0, 2, 2, 4, 4]);
    assert_eq!(heads_during(13, 6), [13, 14, 14, 16, 16, 18]);
}

#[test]
fn sleeper__is_woken_once_and_a_polling_consumer_never() {
    let (mut producer, mut consumer) = Heap::new(CAPACITY).ends(MAX_FRAME);
    assert!(producer.consumer_may_sleep() && !producer.take_sleeper());
    consumer.declare_sleep();
    assert!(producer.take_sleeper() && !producer.take_sleeper());
    consumer.declare_sleep();
    consumer.declare_awake();
    assert!(!producer.take_sleeper());
    consumer.declare_polling();
    consumer.declare_sleep();
    assert!(!producer.take_sleeper() && !producer.consumer_may_sleep());
}

#[test]
fn two_threads__every_frame_arrives_once_in_order_and_whole() {
    const FRAMES: u64 = 30_000;
    let ring = Heap::new(4096);
    let (mut producer, mut consumer) = ring.ends(600);
    let length = |number: u64| 1 + (number * 7919 % 600) as usize;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..FRAMES {
                let bytes = frame(number, length(number));
                let (head, body) = bytes.split_at(bytes.len().min(24));
                while producer.push(head, body) == Err(PushError::Full) {
                    producer.publish();
                    std::thread::yield_now();
                }
                if number % 5 == 0 {
                    producer.publish();
                }
            }
            producer.publish();
        });
        let mut next = 0;
        while next < FRAMES {
            let received = consumer.receive(32, |bytes| {
                assert_eq!(bytes, frame(next, length(next)));
                next += 1;
            });
            assert!(!received.is_broken);
            if received.frames == 0 {
                std::thread::yield_now();
            }
        }
        assert!(!consumer.has_data());
    });
}
