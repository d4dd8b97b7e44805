//! The endpoint: one thread's event loop, with its handlers, sessions and calls; and the types used with handlers,
//! continuations and calls.

mod ahead;
mod call;
mod call_builder;
mod cancel;
pub(crate) mod census;
#[cfg(all(debug_assertions, not(test)))]
mod compiled;
mod config;
mod context;
mod drain;
mod ends;
mod event_loop;
pub(crate) mod factors;
mod handler;
mod health;
mod idle;
mod ids;
mod in_place;
mod local_turn;
mod multicast;
mod open;
mod options;
mod peer;
mod remote;
mod service;
mod sessions;
mod shared;
mod spare;
mod state;
mod stats;

use std::marker::PhantomData;
use std::mem;

use petrel_proto::Core;
use petrel_transport::buf::{BufPool, InUse};
use petrel_transport::host::Host;
use petrel_transport::{RX_BURST_MAX, Transport};

pub use call::{CallKey, Continuation, Reply};
pub use call_builder::{CallBuilder, CallRejected, Callee, Caller, IntoMessage};
pub use config::{EndpointConfig, IdlePolicy, SessionConfig};
pub use context::Context;
pub use ends::{CallFailures, SessionEnd, SessionEnds};
pub use event_loop::Stop;
pub use handler::{Handled, Request, Responder};
pub use health::{HEALTH_METHOD, Health};
use idle::Idle;
pub use in_place::InPlaceRequest;
pub(crate) use multicast::Broadcast;
pub use multicast::{Hearing, MulticastConfig};
pub use options::CallOptions;
pub use peer::Peer;
pub use sessions::SessionState;
pub use shared::SharedMsg;
pub use stats::{ClientCalls, EndpointStats};

pub use crate::control::{AllowedTransports, EndpointId, Reason};
pub use crate::prefetch::prefetch;
pub use petrel_proto::SessionId;
pub use petrel_transport::{PeerProcess, SharedBytes};

use ahead::Ahead;
use call::{Keyed, run_continuation, run_under_deadline};
use cancel::Watchers;
pub(crate) use context::Local;
use drain::Drain;
use factors::Factors;
use handler::{Dropped, Handlers};
use multicast::{Groups, Joined};
use remote::Remote;
use sessions::Sessions;
pub(crate) use state::State;

use crate::control::ControlPlane;
use crate::error::Error;
use crate::inbox::WorkFlag;
use crate::local::Hub;
use crate::msgbuf::MsgBuf;
use crate::nexus::ControlPort;
use crate::sync::thread;

/// The RPC endpoint of a thread: makes and serves calls, over sessions to other endpoints, in an event loop run by the
/// thread.
///
/// Nothing happens unless the loop runs, by [`Endpoint::run_once`], [`Endpoint::run`] or one of the methods that wait.
/// An endpoint stays on the thread of its creation: it is neither `Send` nor `Sync`. The compiler thus rejects
/// violations that eRPC detects by an assertion:
///
/// ```compile_fail
/// # fn move_away(mut endpoint: petrel::Endpoint) {
/// std::thread::spawn(move || endpoint.run_once()); // error: cannot be sent between threads
/// # }
/// ```
///
/// `S` is the state of the application, which the endpoint owns and lends to each handler and continuation. They share
/// the state without locks and cells, and a method of the state can be a handler. `T` is the transport, UDP and shared
/// memory by default, and `C` the control plane, the [`Nexus`](crate::Nexus) by default. A simulator replaces both.
///
/// ```
/// # use petrel::endpoint::{EndpointConfig, Handled};
/// # use petrel::{Context, Nexus, Request};
/// # const COUNT: u16 = 1;
/// #[derive(Default)]
/// struct Counter {
///     calls: u64,
/// }
///
/// impl Counter {
///     fn count(&mut self, cx: &mut Context<'_, Counter>, request: Request<'_>) -> Handled {
///         self.calls += 1;
///         request.reply(cx, &self.calls.to_le_bytes())
///     }
/// }
///
/// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
/// let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), Counter::default())?;
/// endpoint.on(COUNT, Counter::count);
/// # let session = endpoint.connect(nexus.local_addr().expect("it listens"))?;
/// # endpoint.call(session, COUNT, "").wait()?;
/// # assert_eq!(endpoint.state().calls, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Endpoint<S: 'static = (), T: Transport = Host, C: ControlPlane<T::Link> = ControlPort> {
    transport: T,
    control: C,
    local: Local,
    handlers: Handlers,
    drain: Drain,
    /// Groups with the endpoint as a member.
    joined: Vec<Joined>,
    ahead: Ahead,
    idle: Idle,
    /// The optimisations, and whether the core uses fast paths; `None` if all are on.
    factors: Option<(Factors, bool)>,
    /// Most frames received in the next turn.
    rx_budget: usize,
    /// Consecutive turns that received nothing and polled nothing else.
    idle_turns: u8,
    /// Consecutive turns that received frames.
    full_turns: u8,
    /// Raised for other work of [`Endpoint::run_once`]: dropped responders, and messages of other threads.
    work_flag: WorkFlag,
    /// An endpoint stays on its thread. The state is among the handlers.
    not_send: PhantomData<*mut S>,
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Drop for Endpoint<S, T, C> {
    /// Notifies the servers of cancelled calls, if the medium accepts the frames now: without waiting or repetition.
    fn drop(&mut self) {
        // A panic may have left any state behind, and the end of the sessions notifies the servers, too.
        if !thread::panicking() {
            self.send_last();
        }
    }
}

impl<T: Transport, C: ControlPlane<T::Link>> Endpoint<(), T, C> {
    /// Creates an endpoint without a state; see [`Endpoint::with_state`].
    ///
    /// # Errors
    /// The rule that the configuration breaks.
    pub fn new(transport: T, control: C, config: &EndpointConfig) -> Result<Self, &'static str> {
        Self::with_state(transport, control, config, ())
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Creates an endpoint over a transport and a control plane, with a state. Most applications use
    /// [`Nexus::endpoint_with`](crate::Nexus::endpoint_with), which supplies transport and control plane.
    ///
    /// # Errors
    /// The rule that the configuration breaks.
    pub fn with_state(
        transport: T,
        mut control: C,
        config: &EndpointConfig,
        state: S,
    ) -> Result<Self, &'static str> {
        config.check()?;
        let now_ns = transport.now();
        let pool = BufPool::new(config.memory);
        let message_bytes_max = config.sessions.message_bytes_max;
        let seed = control.random();
        let memory_bytes = config.memory.max_bytes as u64;
        let protocol = petrel_proto::Config { memory_bytes, ..config.protocol.clone() };
        let work_flag = WorkFlag::new();
        let waker = transport.waker();
        let clock = transport.clock();
        let hub = Hub::new(
            pool.clone(),
            message_bytes_max,
            clock.clone(),
            seed,
            work_flag.clone(),
            waker.clone(),
        );

        Ok(Self {
            transport,
            control,
            local: Local {
                core: Core::new(now_ns, protocol),
                pool,
                hub,
                groups: Groups::default(),
                dropped: Dropped::new(work_flag.clone()),
                remote: Box::new(Remote::new(work_flag.clone(), waker, config.client_calls_max)),
                now_ns,
                clock,
                part_bytes: 0,
                watchers: Watchers::default(),
                keyed: Keyed::default(),
                sessions: Sessions::new(config.sessions, config.transports),
                services: Box::default(),
            },
            handlers: Handlers::new(Box::new(state)),
            joined: Vec::new(),
            drain: Drain::default(),
            ahead: Ahead::new(),
            work_flag,
            idle: Idle::new(config.idle, now_ns),
            factors: (config.factors != Factors::default() || !config.protocol.fast_path)
                .then_some((config.factors, config.protocol.fast_path)),
            rx_budget: RX_BURST_MAX,
            idle_turns: 0,
            full_turns: 0,
            not_send: PhantomData,
        })
    }

    /// Sets the handler of a method, replacing a former one. The handler runs in the event loop, and should take
    /// microseconds at most. A handler that needs longer, or the results of other calls, takes a [`Responder`] and
    /// answers later.
    ///
    /// # Panics
    /// When the method is [`HEALTH_METHOD`], which the endpoint answers itself.
    pub fn on(
        &mut self,
        method: u16,
        mut handler: impl FnMut(&mut S, &mut Context<'_, S>, Request<'_>) -> Handled + 'static,
    ) {
        let handler = move |state: State<'_>, cx: &mut Context<'_>, request: Request<'_>| {
            // SAFETY: a handler of an endpoint with this type of state.
            handler(unsafe { state.get::<S>() }, cx.typed(), request)
        };
        self.set_handler(method, handler);
    }

    /// Serves regions: executes the operations of clients on this endpoint's sessions (see
    /// [`region`](crate::region)). Several endpoints may serve the same regions. The methods from 65 520 to 65 527 are
    /// then taken.
    pub fn serve_regions(&mut self, regions: &crate::region::Regions) {
        crate::region::serve(self, regions);
    }

    /// Sets a handler of the library itself, which does not use the state.
    pub(crate) fn set_handler(
        &mut self,
        method: u16,
        handler: impl FnMut(State<'_>, &mut Context<'_>, Request<'_>) -> Handled + 'static,
    ) {
        assert_ne!(method, HEALTH_METHOD, "the endpoint answers requests for its health itself");
        self.handlers.set(method, Box::new(handler));
    }

    /// Sets the handler of a method that reads requests in place. It pays for large requests over shared memory with
    /// large frames (`host.shm.max_frame_bytes`), which [`Endpoint::on`] copies for the handler. The client can write
    /// to the handler's memory, as the type says.
    ///
    /// # Panics
    /// When the method is [`HEALTH_METHOD`], which the endpoint answers itself.
    pub fn on_in_place(
        &mut self,
        method: u16,
        mut handler: impl FnMut(&mut S, &mut Context<'_, S>, InPlaceRequest<'_>) -> Handled + 'static,
    ) {
        assert_ne!(method, HEALTH_METHOD, "the endpoint answers requests for its health itself");
        let handler = move |state: State<'_>, cx: &mut Context<'_>, request: InPlaceRequest<'_>| {
            // SAFETY: a handler of an endpoint with this type of state.
            handler(unsafe { state.get::<S>() }, cx.typed(), request)
        };
        self.handlers.set_in_place(method, handler);
    }

    /// Prefetches the memory that the handler of a method will read first, while other requests are served. For
    /// handlers that look up an entry in a table larger than the caches. Otherwise every request waits for a cache
    /// line; here the lines of a burst arrive together.
    ///
    /// `locate` gets a small request's message before the handler runs, mostly for a whole burst, and returns the
    /// address that the handler will access. A cache line there is fetched. The function has to be quick, and to accept
    /// any bytes: the message comes from the network unchecked, and the handler may never run. The address is not read
    /// from, and may be any, null for none.
    ///
    /// Gain and cost: PERFORMANCE.md, section "The ordered index".
    pub fn fetch_ahead(&mut self, method: u16, locate: impl Fn(&[u8]) -> *const u8 + 'static) {
        self.handlers.set_locator(method, Box::new(locate));
    }

    /// Returns the state.
    pub fn state(&self) -> &S {
        self.handlers.state.downcast_ref().expect("the endpoint has its state when no task runs")
    }

    /// Returns the state, to change it.
    pub fn state_mut(&mut self) -> &mut S {
        self.handlers.state.downcast_mut().expect("the endpoint has its state when no task runs")
    }

    /// Ends the endpoint, and returns its state.
    pub fn into_state(mut self) -> S {
        let state = mem::replace(&mut self.handlers.state, Box::new(()));
        *state.downcast().expect("the endpoint has its state when no task runs")
    }

    /// Returns the endpoint as handlers see it.
    pub fn context(&mut self) -> Context<'_, S> {
        self.refresh_clock();
        Context::new(&mut self.local)
    }

    /// Runs a closure with the state, and the endpoint as handlers see it.
    pub fn with<R>(&mut self, run: impl FnOnce(&mut S, &mut Context<'_, S>) -> R) -> R {
        self.refresh_clock();
        self.with_in_turn(run)
    }

    /// The same directly after a turn.
    fn with_in_turn<R>(&mut self, run: impl FnOnce(&mut S, &mut Context<'_, S>) -> R) -> R {
        let state = self.handlers.state.downcast_mut();
        let state = state.expect("the endpoint has its state when no task runs");
        run(state, &mut Context::new(&mut self.local))
    }

    /// Any time may have passed since the last turn, and deadlines count from now.
    pub(super) fn refresh_clock(&mut self) {
        self.local.now_ns = self.transport.now();
    }

    /// Returns a buffer for up to `capacity` bytes. The message initially has this length, with bytes left from an
    /// earlier use: write them, or set the length.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    #[inline]
    pub fn alloc(&self, capacity: usize) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::from_pool(&self.local.pool, capacity)?)
    }

    /// Returns a buffer that holds `message`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    pub fn alloc_message(&self, message: &[u8]) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::holding(&self.local.pool, message)?)
    }

    /// Begins a call of `method`, on a session or by a client of this endpoint, to be sent by [`CallBuilder::then`], or
    /// sent and waited for by [`CallBuilder::wait`].
    #[inline(always)]
    pub fn call<A: Callee, M: IntoMessage>(
        &mut self,
        callee: A,
        method: u16,
        request: M,
    ) -> CallBuilder<&mut Self, M, A> {
        CallBuilder::new(self, callee, method, request)
    }

    /// Returns the transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Returns the control plane.
    pub fn control(&self) -> &C {
        &self.control
    }

    /// Returns the buffers in use: by the application, by outstanding calls, and as responses kept for retransmission.
    pub fn buffers_in_use(&self) -> InUse {
        self.local.pool.in_use()
    }

    /// Returns the protocol core, for tests and checkers: credits, round trips, agreed values.
    pub fn core(&self) -> &Core<MsgBuf, Continuation> {
        &self.local.core
    }
}

/// An endpoint stays on its thread: the function does not compile for a `Send` or `Sync` endpoint, because the trait is
/// then implemented twice and `_` is ambiguous.
const _: fn() = || {
    trait NotSend<A> {
        fn check() {}
    }
    struct IsSend;
    impl<T: ?Sized> NotSend<()> for T {}
    impl<T: ?Sized + Send> NotSend<IsSend> for T {}
    let _ = <Endpoint as NotSend<_>>::check;

    trait NotSync<A> {
        fn check() {}
    }
    struct IsSync;
    impl<T: ?Sized> NotSync<()> for T {}
    impl<T: ?Sized + Sync> NotSync<IsSync> for T {}
    let _ = <Endpoint as NotSync<_>>::check;
};
