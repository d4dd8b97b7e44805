//! The fast path allocates nothing: for small calls, for large ones, at either end.
//!
//! A counting allocator in front of the system's counts only on demand, and only on the thread that runs both
//! endpoints: the nexus's thread is not part of a call.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Barrier;

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId, SessionState};
use petrel::{Context, Endpoint, MsgBuf, Nexus, Reply};

/// The state of this thread's counter.
#[derive(Clone, Copy)]
enum Counting {
    Off,
    On { count: u64 },
}

thread_local! {
    static COUNTING: Cell<Counting> = const { Cell::new(Counting::Off) };
    static FIRST: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

struct CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

// SAFETY: all memory comes from and goes to the system's allocator, unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note_allocation();
        // SAFETY: the caller's promises are the ones that the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note_allocation();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note_allocation();
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn note_allocation() {
    let Counting::On { count } = COUNTING.get() else { return };
    if count == 0 {
        // The backtrace itself allocates.
        COUNTING.set(Counting::Off);
        FIRST.set(Some(Backtrace::force_capture()));
    }
    COUNTING.set(Counting::On { count: count + 1 });
}

/// Runs `work`, and fails if it allocated.
fn assert_allocates_nothing(what: &str, work: impl FnOnce()) {
    COUNTING.set(Counting::On { count: 0 });
    work();
    let Counting::On { count } = COUNTING.replace(Counting::Off) else { unreachable!() };
    let first = FIRST.take().map(|backtrace| backtrace.to_string()).unwrap_or_default();
    assert_eq!(count, 0, "{what} allocated {count} times, first at:\n{first}");
}

const ECHO: u16 = 1;
const SESSIONS: usize = 8;

/// Client and server in one thread, with sessions between them.
struct Pair {
    client: Endpoint,
    server: Endpoint,
}

/// The state of the continuations.
#[derive(Default)]
struct Caller {
    sessions: Vec<SessionId>,
    calls: u64,
    started: u64,
    ended: u64,
    idle: Vec<(MsgBuf, MsgBuf)>,
}

thread_local! {
    static CALLER: RefCell<Caller> = RefCell::default();
}

impl Pair {
    fn over(transports: AllowedTransports) -> Self {
        let mut config = EndpointConfig::default();
        config.transports = transports;
        config.idle = IdlePolicy::Poll;
        // The first retransmission of a small call allocates a box, which is kept for later ones. On a busy machine a
        // thread loses its CPU for longer than the usual timeout.
        config.protocol.rto.min_ns = 10_000_000_000;
        config.protocol.rto.max_ns = 10_000_000_000;
        config.protocol.rto.initial_ns = 10_000_000_000;
        config.protocol.rto.probe_min_ns = 10_000_000_000;
        let nexus = Nexus::builder().listen("127.0.0.1:0".parse().unwrap()).start().unwrap();
        let server = echo_server(nexus.endpoint(config.clone()).unwrap());
        let mut pair = Self { client: nexus.endpoint(config).unwrap(), server };
        pair.connect(nexus.local_addr().unwrap());
        pair
    }

    fn connect(&mut self, address: SocketAddr) {
        let sessions: Vec<_> =
            (0..SESSIONS).map(|_| self.client.connect(address).unwrap()).collect();
        while sessions.iter().any(|&id| self.client.session_state(id) != SessionState::Open) {
            self.turn();
            std::thread::yield_now();
        }
        CALLER.with_borrow_mut(|caller| caller.sessions = sessions);
    }

    fn turn(&mut self) {
        self.client.run_once();
        self.server.run_once();
    }

    /// Replaces the caller's buffers: for `in_flight` calls at a time, of `bytes` bytes each.
    fn set_buffers(&self, in_flight: usize, bytes: usize) {
        let message: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
        let buffers = |_| {
            let request = self.client.alloc_message(&message).unwrap();
            (request, self.client.alloc(bytes).unwrap())
        };
        let idle = (0..in_flight).map(buffers).collect();
        CALLER.with_borrow_mut(|caller| caller.idle = idle);
    }

    /// Makes calls and waits for all of their replies.
    fn call(&mut self, calls: u64) {
        CALLER.with_borrow_mut(|caller| {
            caller.calls = calls;
            caller.started = 0;
            caller.ended = 0;
            caller.start_idle(&mut self.client.context());
        });
        while CALLER.with_borrow(|caller| caller.ended < caller.calls) {
            self.turn();
        }
    }
}

fn echo_server(mut server: Endpoint) -> Endpoint {
    server.on(ECHO, |_, cx, request| {
        let len = request.data().len();
        request.reply_with(cx, len, |data, out| {
            out.copy_from_slice(data);
            len
        })
    });
    server
}

impl Caller {
    fn start_idle(&mut self, cx: &mut Context<'_>) {
        while self.started < self.calls
            && let Some((mut request, response)) = self.idle.pop()
        {
            let number = self.started;
            self.started += 1;
            request[..8].copy_from_slice(&number.to_le_bytes());
            let session = self.sessions[number as usize % self.sessions.len()];
            cx.call(session, ECHO, request)
                .into_buffer(response)
                .then(move |_, cx, reply| take_reply(cx, reply, number))
                .unwrap();
        }
    }
}

fn take_reply(cx: &mut Context<'_>, reply: Reply, number: u64) {
    assert!(reply.outcome.is_ok(), "call {number}: {:?}", reply.outcome);
    assert!(*reply.response == *reply.request, "the reply to call {number} is wrong");
    assert_eq!(reply.response[..8], number.to_le_bytes());
    CALLER.with_borrow_mut(|caller| {
        caller.ended += 1;
        caller.idle.push((reply.request, reply.response));
        caller.start_idle(cx);
    });
}

/// Small calls, then large ones: each kind once to warm up, then counted.
fn assert_calls_allocate_nothing(transports: AllowedTransports) {
    let mut pair = Pair::over(transports);
    for (what, in_flight, bytes, warm_up, calls) in [
        ("10 000 calls of 32 B", 60, 32, 2_000, 10_000),
        ("40 calls of 1 MiB", 4, 1 << 20, 40, 40),
        ("10 000 calls of 32 B after large ones", 60, 32, 2_000, 10_000),
    ] {
        pair.set_buffers(in_flight, bytes);
        pair.call(warm_up);
        assert_allocates_nothing(what, || pair.call(calls));
    }
}

#[test]
fn calls_over_shared_memory_allocate_nothing() {
    assert_calls_allocate_nothing(AllowedTransports::SHM);
}

#[test]
fn calls_over_udp_allocate_nothing() {
    assert_calls_allocate_nothing(AllowedTransports::UDP);
}

#[test]
fn allocations_of_this_thread_are_counted() {
    COUNTING.set(Counting::On { count: 0 });
    std::hint::black_box(Box::new(1));
    let Counting::On { count } = COUNTING.replace(Counting::Off) else { unreachable!() };
    assert_eq!(count, 1);
    let first = FIRST.take().unwrap().to_string();
    assert!(first.contains("allocations_of_this_thread_are_counted"), "{first}");
}

#[test]
fn allocations_of_other_threads_are_not_counted() {
    let (start, end) = (&Barrier::new(2), &Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            std::hint::black_box(Box::new(1));
            end.wait();
        });
        assert_allocates_nothing("this thread", || {
            start.wait();
            end.wait();
        });
    });
}
