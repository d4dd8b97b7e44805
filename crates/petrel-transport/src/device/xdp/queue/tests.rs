//! Queues against a kernel in the same process, which is honest, late, or a liar.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use rustix::net::xdp::XdpRingOffset;

use super::super::rings::{Plain, Ring};
use super::super::umem::Memory;
use super::*;

const RECEIVE: u32 = 16;
const SEND: u32 = 8;
const CHUNK: usize = 2048;
const HEADROOM: usize = 256;
const FRAME_MAX: usize = 1514;

/// Where this kernel has the parts of each ring.
const OFFSETS: XdpRingOffset =
    XdpRingOffset { producer: 0, consumer: 64, flags: Some(128), desc: 192 };

/// The other side of a queue's rings.
struct Kernel {
    fill: Consumer<u64>,
    completion: Producer<u64>,
    receive: Producer<libc::xdp_desc>,
    send: Consumer<libc::xdp_desc>,
    /// The memory of each ring, in the order above.
    rings: [Arc<Memory>; 4],
    umem: *mut u8,
    /// Chunks offered for receiving.
    offered: Vec<u64>,
    /// Frames taken for sending, with their bytes at that time.
    taken: Vec<(u64, Vec<u8>)>,
}

fn ring<T: Plain>(entries: u32) -> (Arc<Memory>, Ring<T>, Ring<T>) {
    let bytes = OFFSETS.desc as usize + entries as usize * size_of::<T>();
    let memory = Arc::new(Memory::anonymous(bytes).unwrap());
    let make = || Ring::new(&memory, &OFFSETS, entries);
    let (near, far) = (make(), make());
    (memory, near, far)
}

fn pair() -> (Queue, Kernel) {
    let umem = Umem::new(RECEIVE, SEND, CHUNK).unwrap();
    let (fill, near_fill, far_fill) = ring(2 * RECEIVE);
    let (completion, near_completion, far_completion) = ring(SEND);
    let (receive, near_receive, far_receive) = ring(RECEIVE);
    let (send, near_send, far_send) = ring(SEND);
    let kernel = Kernel {
        fill: Consumer::new(far_fill),
        completion: Producer::new(far_completion),
        receive: Producer::new(far_receive),
        send: Consumer::new(far_send),
        rings: [fill, completion, receive, send],
        umem: umem.extent().0,
        offered: Vec::new(),
        taken: Vec::new(),
    };
    let rings = Rings {
        fill: Producer::new(near_fill),
        completion: Consumer::new(near_completion),
        receive: Consumer::new(near_receive),
        send: Producer::new(near_send),
    };
    (Queue::new(umem, rings, RECEIVE, FRAME_MAX), kernel)
}

impl Kernel {
    fn bytes(&mut self, address: u64, bytes: usize) -> &mut [u8] {
        assert!(address as usize + bytes <= (RECEIVE + SEND) as usize * CHUNK);
        // SAFETY: the bytes lie in the memory, which the queue keeps; the test has one thread, and the queue no reference now.
        unsafe { std::slice::from_raw_parts_mut(self.umem.add(address as usize), bytes) }
    }

    /// Takes all offered chunks and frames to send.
    fn look(&mut self) {
        self.offered.extend(std::iter::from_fn(|| self.fill.pop()));
        self.fill.release();
        while let Some(libc::xdp_desc { addr, len, .. }) = self.send.pop() {
            let bytes = self.bytes(addr, len as usize).to_vec();
            self.taken.push((addr, bytes));
        }
        self.send.release();
    }

    /// Receives a frame from the network; returns false without a chunk or room.
    fn arrive(&mut self, frame: &[u8]) -> bool {
        self.look();
        if self.offered.is_empty() || !self.receive.has_room() {
            return false;
        }
        let address = self.offered.remove(0) + HEADROOM as u64;
        self.bytes(address, frame.len()).copy_from_slice(frame);
        self.descriptor(address, frame.len() as u32, 0)
    }

    fn descriptor(&mut self, addr: u64, len: u32, options: u32) -> bool {
        let has_room = self.receive.has_room();
        if has_room {
            self.receive.push(libc::xdp_desc { addr, len, options });
            self.receive.publish();
        }
        has_room
    }

    /// Completes a taken frame, and poisons its chunk no sooner.
    fn complete(&mut self, place: usize) -> Option<u64> {
        self.look();
        if self.taken.is_empty() || !self.completion.has_room() {
            return None;
        }
        let (address, bytes) = self.taken.remove(place % self.taken.len());
        assert_eq!(self.bytes(address, bytes.len()), bytes, "a chunk changed while it was sent");
        self.completed(address);
        Some(address)
    }

    fn completed(&mut self, address: u64) -> bool {
        let has_room = self.completion.has_room();
        if has_room {
            self.completion.push(address);
            self.completion.publish();
        }
        has_room
    }

    /// Adds to the producer's or the consumer's index of a ring.
    fn lie(&self, ring: usize, offset: usize, by: u32) {
        let word = self.rings[ring].at(offset, 4).cast::<AtomicU32>();
        // SAFETY: the memory lives, and the word is aligned.
        unsafe { word.as_ref() }.fetch_add(by, Ordering::Relaxed);
    }
}

fn send(queue: &mut Queue, frame: &[u8]) -> bool {
    let Some(memory) = queue.begin() else { return false };
    memory[..frame.len()].copy_from_slice(frame);
    queue.commit(frame.len());
    true
}

fn frame(number: u8) -> Vec<u8> {
    vec![number; 60 + number as usize * 5]
}

#[test]
fn begin__is_none_until_a_frame_is_completed() {
    let (mut queue, mut kernel) = pair();
    assert!((0..SEND as u8).all(|number| send(&mut queue, &frame(number))));
    assert!(queue.begin().is_none());
    kernel.look();
    assert!(kernel.taken.is_empty(), "nothing is shown before the flush");
    queue.publish();
    assert_eq!(queue.unsent(), SEND);
    kernel.look();
    assert_eq!((kernel.taken.len(), queue.unsent()), (SEND as usize, 0));
    assert!(queue.begin().is_none());
    // The last first.
    kernel.complete(SEND as usize - 1).unwrap();
    assert!(send(&mut queue, &frame(99)) && queue.begin().is_none());
    assert_eq!(queue.faults(), 0);
}

#[test]
fn begin__again_gives_the_same_memory() {
    let (mut queue, _kernel) = pair();
    let first = queue.begin().unwrap().as_ptr();
    assert_eq!(queue.begin().unwrap().as_ptr(), first);
    assert_eq!(queue.begin().unwrap().len(), FRAME_MAX);
    queue.commit(60);
    assert_ne!(queue.begin().unwrap().as_ptr(), first);
}

panics! {
    commit__without_a_frame_panics: "a frame was begun" => pair().0.commit(0);
    release__without_a_frame_panics: "a frame was received" => pair().0.release();
}

#[test]
fn completion__twice_or_wrong_is_a_fault() {
    let (mut queue, mut kernel) = pair();
    (0..SEND as u8).for_each(|number| assert!(send(&mut queue, &frame(number))));
    queue.publish();
    let address = kernel.complete(0).unwrap();
    let wrong = [
        address,
        // Within a chunk, of a chunk for receiving, behind the last chunk.
        address + CHUNK as u64 + 1,
        0,
        u64::from(RECEIVE + SEND) * CHUNK as u64,
        u64::MAX,
    ];
    assert!(wrong.into_iter().all(|address| kernel.completed(address)));
    assert!(send(&mut queue, &frame(1)) && queue.begin().is_none());
    assert_eq!(queue.faults(), wrong.len() as u64);
}

#[test]
fn received__passes_over_wrong_descriptors() {
    let (mut queue, mut kernel) = pair();
    kernel.look();
    let end = u64::from(RECEIVE + SEND) * CHUNK as u64;
    let first = kernel.offered[0];
    for (address, bytes, options) in [
        // No chunk, and one for sending.
        (end, 60, 0),
        (u64::MAX, 60, 0),
        (u64::from(RECEIVE) * CHUNK as u64, 60, 0),
        // Beyond the chunk's end.
        (first + HEADROOM as u64, CHUNK as u32, 0),
    ] {
        assert!(kernel.descriptor(address, bytes, options));
    }
    let second = kernel.offered[1];
    assert!(kernel.descriptor(second, u32::MAX, 0));
    let third = kernel.offered[2];
    assert!(kernel.descriptor(third, 60, libc::XDP_PKT_CONTD));
    kernel.offered.drain(..3);
    assert!(kernel.arrive(&frame(7)));
    assert_eq!(queue.received().unwrap(), frame(7));
    assert_eq!(queue.faults(), 6);
    queue.release();
    assert!(queue.received().is_none());
    // The chunks of wrong descriptors come back, too.
    kernel.look();
    assert_eq!(kernel.offered.len() as u32, RECEIVE);
}

#[test]
fn indices__that_lie_are_not_believed() {
    for by in [RECEIVE + 1, 1 << 31, u32::MAX] {
        let (mut queue, mut kernel) = pair();
        kernel.lie(2, 0, by);
        assert!(queue.received().is_none());
        assert_eq!(queue.faults(), 1);
        // The completion ring, and the consumer of the send ring.
        (0..SEND as u8).for_each(|number| assert!(send(&mut queue, &frame(number))));
        queue.publish();
        kernel.lie(1, 0, by);
        kernel.lie(3, 64, by);
        assert!(queue.begin().is_none());
        assert!(queue.unsent() <= SEND && queue.faults() >= 2);
        kernel.look();
        assert_eq!(kernel.offered.len() as u32, RECEIVE);
    }
}

#[test]
fn released_chunks__reach_the_kernel_at_the_latest_when_no_frame_is_left() {
    let (mut queue, mut kernel) = pair();
    for number in 0..3 {
        assert!(kernel.arrive(&frame(number)));
    }
    for number in 0..3 {
        assert_eq!(queue.received().unwrap(), frame(number));
        assert_eq!(queue.received().unwrap(), frame(number), "the same until it is released");
        queue.release();
    }
    kernel.look();
    assert_eq!(kernel.offered.len() as u32, RECEIVE - 3);
    assert!(queue.received().is_none());
    kernel.look();
    assert_eq!(kernel.offered.len() as u32, RECEIVE);
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Send(u8),
    Flush,
    Receive,
    Arrive(u8),
    Complete(usize),
    CompleteTwice(usize),
    WrongCompletion(u64),
    WrongFrame(u64, u32),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => any::<u8>().prop_map(Move::Send),
        3 => Just(Move::Flush),
        6 => Just(Move::Receive),
        6 => any::<u8>().prop_map(Move::Arrive),
        6 => any::<usize>().prop_map(Move::Complete),
        1 => any::<usize>().prop_map(Move::CompleteTwice),
        1 => (0..u64::from(RECEIVE + SEND) * CHUNK as u64 + 9).prop_map(Move::WrongCompletion),
        1 => (0..u64::from(RECEIVE + SEND) * CHUNK as u64 + 9, any::<u32>())
            .prop_map(|(address, bytes)| Move::WrongFrame(address, bytes)),
    ];
    prop::collection::vec(one, 1..400)
}

proptest! {
    /// Whatever the kernel does, no frame changes while it is sent, frames that really came are received in order and whole, and no chunk is lost.
    #[test]
    fn queue__keeps_its_frames_and_chunks(moves in moves()) {
        let (mut queue, mut kernel) = pair();
        let mut arrived = std::collections::VecDeque::new();
        for step in moves {
            match step {
                Move::Send(number) => {
                    let _ = send(&mut queue, &frame(number));
                }
                Move::Flush => queue.publish(),
                Move::Receive => match queue.received() {
                    Some(bytes) => {
                        prop_assert_eq!(Some(bytes.to_vec()), arrived.pop_front());
                        queue.release();
                    }
                    None => prop_assert!(arrived.is_empty()),
                },
                Move::Arrive(number) => {
                    if kernel.arrive(&frame(number)) {
                        arrived.push_back(frame(number));
                    }
                }
                Move::Complete(place) => {
                    kernel.complete(place);
                }
                Move::CompleteTwice(place) => {
                    if let Some(address) = kernel.complete(place) {
                        kernel.completed(address);
                    }
                }
                Move::WrongCompletion(address) => {
                    // A wrong completion of a frame that waits cannot be told from a right one.
                    let is_frame = address % CHUNK as u64 == 0 && address >= u64::from(RECEIVE) * CHUNK as u64;
                    kernel.completed(address + u64::from(is_frame));
                }
                Move::WrongFrame(address, bytes) => {
                    kernel.look();
                    // A wrong descriptor of a chunk that is the kernel's cannot be told from a right one.
                    kernel.descriptor(u64::from(RECEIVE) * CHUNK as u64 + address, bytes, 0);
                }
            }
        }
        // The end: everything is received and completed, and each chunk is somewhere.
        while let Some(bytes) = queue.received() {
            prop_assert_eq!(Some(bytes.to_vec()), arrived.pop_front());
            queue.release();
        }
        prop_assert!(arrived.is_empty());
        kernel.look();
        prop_assert_eq!(kernel.offered.len() as u32, RECEIVE);
        let mut offered = kernel.offered.clone();
        offered.sort_unstable();
        offered.dedup();
        prop_assert_eq!(offered.len() as u32, RECEIVE, "a chunk was given back twice");
        queue.publish();
        kernel.look();
        // Wrong completions may fill the ring until the queue has read them.
        while !kernel.taken.is_empty() {
            kernel.complete(0);
            queue.complete();
        }
        queue.complete();
        prop_assert!((0..SEND as u8).all(|number| send(&mut queue, &frame(number))));
        prop_assert!(queue.begin().is_none());
    }
}
