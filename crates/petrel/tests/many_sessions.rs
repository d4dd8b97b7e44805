//! Thousands of sessions between two endpoints, over the real control plane: they open, carry calls on every slot, and
//! close. An idle session costs at most 4 KiB on either side.
//!
//! An allocator in front of the system's records the owner of each block. Owners are the client's endpoint, the
//! server's, and, on all other threads, the control plane. Message memory is allocated elsewhere and counted by the
//! endpoints themselves.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicIsize, Ordering};

use petrel::endpoint::{EndpointConfig, SessionId, SessionState};
use petrel::{Endpoint, Nexus};

const SESSIONS: usize = 4_000;
const ECHO: u16 = 1;

/// Simultaneous calls on a session: its initial slots, except the one reserved for health queries.
const CALLS: u16 = petrel_proto::limits::SLOTS_AT_FIRST - 1;

/// The limit of an idle session's memory on each side.
const SESSION_BYTES_MAX: isize = 4 << 10;

/// The owner of allocated memory.
#[derive(Clone, Copy)]
enum Owner {
    Control,
    Client,
    Server,
}

static HELD: [AtomicIsize; 3] = [const { AtomicIsize::new(0) }; 3];

thread_local! {
    static OWNER: Cell<Owner> = const { Cell::new(Owner::Control) };
}

fn held(owner: Owner) -> isize {
    HELD[owner as usize].load(Ordering::Relaxed)
}

struct NotingAllocator;

#[global_allocator]
static ALLOCATOR: NotingAllocator = NotingAllocator;

/// Returns the block with room for its owner in front, and the offset of the caller's part.
fn with_owner(layout: Layout) -> (Layout, usize) {
    let offset = layout.align().max(align_of::<usize>());
    let size = layout.size() + offset;
    let whole = Layout::from_size_align(size, offset).expect("as large as a layout can be");
    (whole, offset)
}

// SAFETY: each block is the system's, with the owner's number in the word before the caller's part, which keeps the
// requested alignment.
unsafe impl GlobalAlloc for NotingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (whole, offset) = with_owner(layout);
        // SAFETY: the layout has at least the room for the owner.
        let block = unsafe { System.alloc(whole) };
        if block.is_null() {
            return block;
        }
        let owner = OWNER.try_with(Cell::get).unwrap_or(Owner::Control) as usize;
        HELD[owner].fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the block has `offset` bytes and the caller's, and a word fits before the latter.
        unsafe {
            let caller = block.add(offset);
            caller.cast::<usize>().sub(1).write(owner);
            caller
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let (whole, offset) = with_owner(layout);
        // SAFETY: `alloc` wrote the owner before the returned part, and the block begins `offset` before it.
        unsafe {
            let owner = memory.cast::<usize>().sub(1).read();
            HELD[owner].fetch_sub(layout.size() as isize, Ordering::Relaxed);
            System.dealloc(memory.sub(offset), whole);
        }
    }
}

fn as_owner<R>(owner: Owner, run: impl FnOnce() -> R) -> R {
    let before = OWNER.replace(owner);
    let result = run();
    OWNER.set(before);
    result
}

struct Pair {
    client: Endpoint,
    server: Endpoint,
    /// Keeps the server's control plane.
    _nexus: Nexus,
    address: SocketAddr,
}

impl Pair {
    fn start() -> Self {
        let nexus = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
        let address = nexus.local_addr().unwrap();
        let mut server = nexus.endpoint(EndpointConfig::default()).unwrap();
        server.on(ECHO, |_, cx, request| {
            let len = request.data().len();
            request.reply_with(cx, len, |data, out| {
                out.copy_from_slice(data);
                len
            })
        });
        let client = Nexus::builder().start().unwrap().endpoint(EndpointConfig::default()).unwrap();
        Self { client, server, _nexus: nexus, address }
    }

    fn turn(&mut self) {
        let any = as_owner(Owner::Client, || self.client.run_once())
            | as_owner(Owner::Server, || self.server.run_once());
        if !any {
            // The control planes need the processor.
            std::thread::yield_now();
        }
    }

    fn open(&mut self, count: usize) -> Vec<SessionId> {
        let sessions: Vec<_> = as_owner(Owner::Client, || {
            (0..count).map(|_| self.client.connect(self.address).unwrap()).collect()
        });
        for &session in &sessions {
            while self.client.session_state(session) == SessionState::Opening {
                self.turn();
            }
            assert_eq!(self.client.session_state(session), SessionState::Open);
        }
        sessions
    }

    /// Makes uniquely numbered calls on every session, at once as many as it has initial memory for.
    fn call_all(&mut self, sessions: &[SessionId]) {
        let mut number = 0_u64;
        for &session in sessions {
            let left = Rc::new(Cell::new(CALLS));
            for _ in 0..CALLS {
                number += 1;
                self.call(session, number, Rc::clone(&left));
            }
            while left.get() > 0 {
                self.turn();
            }
        }
    }

    fn call(&mut self, session: SessionId, number: u64, left: Rc<Cell<u16>>) {
        let mut message = [0; 32];
        message[..8].copy_from_slice(&number.to_le_bytes());
        let request = self.client.alloc_message(&message).unwrap();
        let response = self.client.alloc(message.len()).unwrap();
        as_owner(Owner::Client, || {
            self.client.call(session, ECHO, request).into_buffer(response).then(
                move |_, _, reply| {
                    assert_eq!(reply.message().unwrap(), message);
                    left.set(left.get() - 1);
                },
            )
        })
        .unwrap();
    }

    /// Returns the bytes held by either side, with the sum of both control planes.
    fn held(&self) -> [isize; 2] {
        let control = held(Owner::Control);
        let client = held(Owner::Client) + self.client.buffers_in_use().bytes as isize;
        let server = held(Owner::Server) + self.server.buffers_in_use().bytes as isize;
        [client + control, server + control]
    }
}

/// A single test, because it measures the whole process.
#[test]
fn sessions__thousands_open_carry_calls_stay_small_and_close() {
    let mut pair = Pair::start();
    let first = pair.open(1);
    pair.call_all(&first);
    let before = pair.held();

    let sessions = pair.open(SESSIONS);
    assert_eq!(pair.client.core().session_count() as usize, SESSIONS + 1);
    assert_eq!(pair.server.core().session_count() as usize, SESSIONS + 1);
    pair.call_all(&sessions);
    let after = pair.held();
    for (side, (after, before)) in ["client", "server"].iter().zip(after.into_iter().zip(before)) {
        let bytes = (after - before) / SESSIONS as isize;
        println!("{side}: {bytes} B for each session");
        // The slots alone need more: a lower result would be an error of this test.
        assert!((512..=SESSION_BYTES_MAX).contains(&bytes), "{side}: {bytes} B for each session");
    }

    as_owner(Owner::Client, || sessions.iter().for_each(|&session| pair.client.close(session)));
    while pair.server.core().session_count() > 1 {
        pair.turn();
    }
    assert_eq!(pair.client.core().session_count(), 1);
    pair.call_all(&first);
    // Closed sessions have returned all their kept responses; the remaining session keeps one response per call.
    let kept = usize::from(CALLS);
    assert_eq!(pair.client.buffers_in_use().count, 0);
    assert_eq!(pair.server.buffers_in_use().count, kept);
}
