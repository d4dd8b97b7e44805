//! Requests that are put together in memory of the application.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::paths::{Ports, takes_part};
use super::*;
use crate::buffer::{BufferPool, Destination, Placed};
use crate::path::{Disorder, PathPolicy};

/// Memory whose owner sees arrived bytes and the drop.
#[derive(Clone)]
struct Window {
    bytes: Rc<RefCell<Vec<Option<u8>>>>,
    charged: usize,
    has_effect: bool,
    drops: Rc<Cell<u32>>,
}

impl Window {
    fn new(len: usize, charged: usize) -> Self {
        let bytes = Rc::new(RefCell::new(vec![None; len]));
        Self { bytes, charged, has_effect: false, drops: Rc::default() }
    }

    /// Returns the whole request.
    fn message(&self) -> Vec<u8> {
        self.bytes.borrow().iter().map(|byte| byte.expect("every byte has come")).collect()
    }

    fn arrived(&self) -> usize {
        self.bytes.borrow().iter().flatten().count()
    }
}

/// The core's part of a window.
struct Inside(Window);

impl Destination for Inside {
    fn store(&mut self, offset: usize, bytes: &[u8]) {
        let mut to = self.0.bytes.borrow_mut();
        for (place, byte) in to[offset..offset + bytes.len()].iter_mut().zip(bytes) {
            assert_eq!(place.replace(*byte), None, "each byte comes once");
        }
    }

    fn held_bytes(&self) -> usize {
        self.0.charged
    }

    fn has_effect(&self) -> bool {
        self.0.has_effect
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.drops.set(self.0.drops.get() + 1);
    }
}

/// A pool with a window for each large request, and what it was asked.
struct Windows {
    window: Window,
    asked: Vec<(u16, usize, Option<usize>)>,
}

impl Windows {
    fn new(len: usize, charged: usize) -> Self {
        Self { window: Window::new(len, charged), asked: Vec::new() }
    }
}

impl BufferPool for Windows {
    type Buffer = HeapBuffer;

    fn take(&mut self, len: usize, packets: u32) -> Option<HeapBuffer> {
        POOL.clone().take(len, packets)
    }

    fn destination(&mut self, method: u16, len: usize, first: Option<&[u8]>) -> Option<Placed> {
        self.asked.push((method, len, first.map(<[u8]>::len)));
        Some(Placed::new(Inside(self.window.clone())))
    }
}

/// Passes a frame to the server by the fast path of destinations. Returns false if that does not take it.
fn takes_placed(pair: &mut Pair, frame: &[u8]) -> bool {
    let (head, payload) = frame.split_first_chunk().expect("a packet of a large request");
    let other = pair.server.next_part_destination::<Vec<u8>>(PEER, head, payload.len());
    assert!(other.is_none(), "the destination has another type");
    let placed = pair.server.next_part_destination::<Inside>(PEER, head, payload.len());
    placed.map(|(inside, offset)| inside.store(offset, payload)).is_some()
}

/// Passes a frame to the server by the general path. Returns the destination of a whole request.
fn at_server(pair: &mut Pair, pool: &mut Windows, frame: &[u8]) -> Option<(RequestHandle, Inside)> {
    assert!(!pair.server.handle_next_part(PEER, frame), "this fast path knows buffers alone");
    match pair.server.handle_frame(pair.now, PEER, frame, pool) {
        Received::Nothing => None,
        Received::Message { handle, message, placed: Some(placed), .. } => {
            assert!(message.is_empty(), "the bytes are elsewhere");
            Some((handle, placed.into_inner()))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_placed_request__has_each_byte_once_whatever_the_order() {
    const LEN: usize = 7 * P as usize + 5;
    let mut taken = 0;
    for (seed, is_fast) in (0..40_usize).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut pair = Pair::new();
        let request = pattern(LEN, seed as u64);
        pair.call(&request, 16, 1);
        let mut pool = Windows::new(LEN, LEN);
        let frames = pair.client_sends();
        assert_eq!(frames.len(), 8, "all packets leave at once");
        let mut order: Vec<usize> = (0..8).collect();
        order.rotate_left(seed % 8);
        order.swap(seed % 3, seed % 7);
        // Each packet comes twice.
        let twice = order.iter().flat_map(|&packet| [&frames[packet], &frames[packet]]);
        let whole: Vec<_> = twice
            .filter_map(|frame| {
                if is_fast && takes_placed(&mut pair, frame) {
                    taken += 1;
                    return None;
                }
                at_server(&mut pair, &mut pool, frame)
            })
            .collect();
        assert_eq!(whole.len(), 1, "the handler runs once");
        assert_eq!(pool.window.message(), request, "seed {seed}");
        let [(method, len, first)] = pool.asked[..] else { panic!("asked {:?}", pool.asked) };
        assert_eq!((method, len), (1, LEN));
        assert_eq!(first, (order[0] == 0).then_some(P as usize));
        assert_eq!(pool.window.drops.get(), 0, "the handler has it");
        drop(whole);
        assert_eq!((pool.window.drops.get(), pair.server.held_bytes()), (1, 0));
    }
    assert!(taken > 10, "{taken} packets went by the fast path");
}

/// The fast path does what the general one does.
#[test]
fn next_part_destination__is_as_the_general_path() {
    let len = 9 * P as usize + 3;
    let outcome = |is_fast: bool| {
        let mut pair = Pair::new();
        pair.call(&pattern(len, 5), 16, 1);
        let mut pool = Windows::new(len, len);
        let (mut taken, mut whole) = (0, 0);
        for frame in pair.client_sends() {
            if is_fast && takes_placed(&mut pair, &frame) {
                taken += 1;
                continue;
            }
            whole += u32::from(at_server(&mut pair, &mut pool, &frame).is_some());
        }
        let counters = *pair.server.counters();
        (taken, (whole, pool.window.message(), pair.server_sends(), counters))
    };
    let ((none, general), (taken, fast)) = (outcome(false), outcome(true));
    assert_eq!((none, taken), (0, 8), "all packets but the first and the last");
    assert_eq!(fast, general);
}

/// The fast path of parts over several paths leaves the packets of a placed request to the general path.
#[test]
fn a_placed_request__over_several_paths() {
    const LEN: usize = 9 * P as usize + 5;
    for policy in [PathPolicy::Plb, PathPolicy::Coupled, PathPolicy::MpRdma(Disorder::WINDOW)] {
        let mut pair = Pair::with(Shape { slots: 64, credits: 256, ..Shape::default() });
        let choice = PathChoice { policy, ports: 4, seed: 7 };
        assert!(pair.client.use_paths(pair.session, choice));
        pair.server.trust_peer(PEER);
        assert!(pair.server.use_paths(pair.server_session, choice));
        let request = pattern(LEN, 5);
        pair.call(&request, 16, 1);
        let mut pool = Windows::new(LEN, LEN);
        let mut ports = Ports::default();
        pair.client.release_paced(pair.now);
        while pair.client.transmit(pair.now, &mut ports) > 0 {}
        let mut whole = 0;
        for (source, frame) in ports.into_frames() {
            assert!(
                !takes_part(&mut pair.server, source, &frame),
                "{policy:?}: into which buffer?"
            );
            let from = (PEER, source);
            let received = pair.server.handle_frame_from(pair.now, from, &frame, false, &mut pool);
            whole += u32::from(matches!(received, Received::Message { placed: Some(_), .. }));
        }
        assert_eq!((whole, pool.window.message()), (1, request), "{policy:?}");
    }
}

#[test]
fn a_placed_request__of_which_packet_0_comes_first_shows_it() {
    let len = 3 * P as usize;
    let mut pair = Pair::new();
    let request = pattern(len, 5);
    pair.call(&request, 16, 1);
    let mut pool = Windows::new(len, len);
    let frames = pair.client_sends();
    assert!(at_server(&mut pair, &mut pool, &frames[0]).is_none());
    assert_eq!(pool.asked, [(1, len, Some(P as usize))]);
    assert_eq!(pool.window.arrived(), P as usize);
}

#[test]
fn a_placed_request__that_is_given_up_drops_its_destination() {
    let len = 3 * P as usize;
    let mut pair = Pair::new();
    pair.call(&pattern(len, 5), 16, 1);
    let mut pool = Windows::new(len, 100);
    let first = pair.client_sends().remove(0);
    assert!(at_server(&mut pair, &mut pool, &first).is_none());
    assert_eq!(pool.window.drops.get(), 0);
    let held = pair.server.held_bytes();
    assert!((100..len as u64).contains(&held), "{held} is what the destination says");
    pair.server.close(pair.server_session, Status::Unavailable, "");
    assert_eq!((pool.window.drops.get(), pair.server.held_bytes()), (1, 0));
}

/// A destination counts as memory of its client.
#[test]
fn a_placed_request__beyond_the_memory_is_refused() {
    let len = 3 * P as usize;
    for (charged, is_refused) in [(1 << 10, false), (8 << 20, true)] {
        let config = Config { memory_bytes: 1 << 20, ..Config::default() };
        let mut pair = Pair::with_config(Shape::default(), config);
        pair.call(&pattern(len, 5), 16, 1);
        let mut pool = Windows::new(len, charged);
        let first = pair.client_sends().remove(0);
        assert!(at_server(&mut pair, &mut pool, &first).is_none());
        assert_eq!(pool.window.drops.get() > 0, is_refused, "{charged} bytes charged");
        assert_eq!(pair.server.held_bytes() == 0, is_refused);
    }
}

/// Bytes that others may have seen are no refusal.
#[test]
fn a_placed_request__that_expires_after_it_has_had_an_effect() {
    let len = 3 * P as usize;
    for (has_effect, execution) in [(false, Execution::Refused), (true, Execution::MayHaveExecuted)]
    {
        let mut pair = Pair::new();
        pair.call_until(&pattern(len, 5), 16, 1, pair.now + 3_000_000);
        let mut pool = Windows::new(len, len);
        pool.window.has_effect = has_effect;
        let frames = pair.client_sends();
        assert!(at_server(&mut pair, &mut pool, &frames[0]).is_none());
        pair.now += 3_000_000;
        assert!(at_server(&mut pair, &mut pool, &frames[2]).is_none());
        assert_eq!(pair.server.counters().requests_expired, 1);
        let answers = pair.server_sends();
        let failure = pair.at_client(answers.last().unwrap()).completed().outcome.unwrap_err();
        assert_eq!((failure.status, failure.execution), (Status::DeadlineExceeded, execution));
    }
}
