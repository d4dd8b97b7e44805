//! The endpoint: one thread's event loop, with its handlers, sessions and calls; and the types used with handlers,
//! continuations and calls.
//!
//! [`Endpoint`] is the front of its parts. A part imports only parts further down in this list, with two exceptions:
//! `client_shared` imports `driver/`, and `context/` imports the announced calls of `burst/`:
//!
//! | parts | files |
//! | --- | --- |
//! | the front | `mod`, `methods`, `connect`, `open`, `event_loop`, `driver/` |
//! | sessions and groups, with the control plane | `sessions/`, `multicast`, `groups`, `drain` |
//! | frames to handlers and continuations | `burst/`, `dispatch`, `handlers`, `callbacks`, `in_place`, `handle`, `request`, `serve` |
//! | calls | `call_builder`, `session_call`, `client_calls`, `future_calls`, `broadcast`, `cancel`, `service/` |
//! | other threads | `client_shared`, `inbox_turn`, `worker_requests`, `remote`, `in_loop` |
//! | the view of handlers and continuations | `context/` |
//! | values | `config`, `message`, `stats`, `object_counts`, `health`, `peer`, … |

mod authorize;
mod broadcast;
mod burst;
mod call_builder;
mod callbacks;
mod client_calls;
mod client_shared;
#[cfg(all(debug_assertions, not(test)))]
mod compiled;
mod config;
mod connect;
mod context;
pub(crate) mod description;
mod dispatch;
mod drain;
mod driver;
mod ends;
mod event_loop;
mod free_bytes;
mod future_calls;
mod groups;
pub(crate) mod handle;
mod handlers;
mod health;
mod idle;
mod ids;
mod in_loop;
mod in_place;
mod inbox_turn;
mod late_answers;
mod message;
mod methods;
mod object_counts;
mod open;
mod peer;
mod remote;
mod request;
mod route;
pub(crate) mod serve;
mod service;
mod session_call;
mod sessions;
mod stats;
mod stop;
mod worker_requests;

use std::marker::PhantomData;
use std::rc::Rc;

use petrel_proto::Core;
use petrel_transport::Transport;
use petrel_transport::buf::{BufPool, InUse};
use petrel_transport::host::Host;

pub use burst::Batch;
#[cfg(feature = "factors")]
pub use burst::Optimisations;
pub use call_builder::{CallBuilder, CallRejected, Callee, Caller};
pub use callbacks::Callbacks;
pub use config::{EndpointConfig, IdlePolicy, SessionConfig};
pub use context::Context;
pub use context::continuation::{CallKey, Continuation, Reply};
pub use description::ServiceDescription;
pub use ends::{CallFailures, SessionEnds};
pub use groups::{MembershipState, MulticastConfig};
pub use health::{ECHO_REQUEST, HEALTH_METHOD, Health};
pub use in_place::InPlaceRequest;
pub use message::IntoMessage;
pub use object_counts::ObjectCounts;
pub use peer::Peer;
pub use remote::ClientCalls;
pub use request::{Handled, Request, Responder};
pub use stats::EndpointStats;
pub use stop::Stop;

pub use crate::control::{AllowedTransports, EndpointId, Reason};
pub use crate::panics::PanicPolicy;
pub use crate::values::{CallOptions, SessionEnd, SessionState, SharedMsg, StreamConfig};
/// The settings of all sessions of an endpoint.
pub use petrel_proto::Config as ProtocolConfig;
pub use petrel_proto::SessionId;
pub use petrel_proto::buffer::Destination;
pub use petrel_proto::congestion::{
    CongestionConfig, CongestionConfigError, CongestionControl, DcqcnConfig, SwiftConfig,
    TimelyConfig,
};
pub use petrel_proto::path::{Disorder, PathCounts, PathPolicy};
pub use petrel_proto::recovery::rtt::RtoBounds;
pub use petrel_proto::{Recovery, counters::Counters};
pub use petrel_transport::buf::PoolConfig;
pub use petrel_transport::host::HostConfig;
/// ```
/// let table = vec![1_u64; 1 << 20];
/// let wanted = [3, 70_000, 900_000];
/// for place in wanted {
///     petrel::endpoint::prefetch(std::ptr::from_ref(&table[place]).cast());
/// }
/// assert_eq!(wanted.iter().map(|place| table[*place]).sum::<u64>(), 3);
/// ```
#[doc(inline)]
pub use petrel_transport::prefetch::prefetch;
pub use petrel_transport::shm::ShmConfig;
pub use petrel_transport::udp::{Device, DeviceState, Mtu, UdpConfig};
pub use petrel_transport::{PeerProcess, SharedBytes};

pub(crate) use broadcast::Broadcast;
pub(crate) use call_builder::{callee, place};
pub(crate) use client_calls::call_by_client;
pub(crate) use client_shared::ClientShared;
pub(crate) use context::Local;
pub(crate) use context::watchers::Watcher;
pub(crate) use driver::Driver;
pub(crate) use in_loop::runs_loop;
pub(crate) use session_call::start_call;
pub(crate) use worker_requests::Detached;

use burst::Bursts;
use drain::Drain;
use event_loop::Turns;
use groups::JoinedGroups;
use handlers::Handlers;
use idle::Idle;
use late_answers::LateAnswers;
use remote::Remote;
use sessions::Sessions;

use crate::control::ControlPlane;
use crate::error::Error;
use crate::inbox::WorkFlag;
use crate::local::{Handle, Hub, Session};
use crate::msgbuf::MsgBuf;
use crate::nexus::ControlPort;
use crate::panics::Panics;
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
    joined: JoinedGroups,
    bursts: Bursts,
    idle: Idle,
    turns: Turns,
    /// Raised for other work of [`Endpoint::run_once`]: dropped responders, and messages of other threads.
    work_flag: WorkFlag,
    /// An endpoint stays on its thread. The state is among the handlers.
    not_send: PhantomData<*mut S>,
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Drop for Endpoint<S, T, C> {
    /// Notifies the servers of cancelled calls, if the medium accepts the frames now: without waiting or repetition.
    fn drop(&mut self) {
        // After a panic the state is unknown; the end of the sessions then notifies the servers.
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
        let receive_queue = transport.receive_queue();
        let pool = BufPool::watched(config.memory, transport.region_watch());
        let message_bytes_max = config.sessions.message_bytes_max;
        let seed = control.random();
        let memory_bytes = config.memory.max_bytes as u64;
        let protocol = petrel_proto::Config { memory_bytes, ..config.protocol.clone() };
        let work_flag = WorkFlag::new();
        let waker = transport.waker();
        let clock = transport.clock();
        let panics = Panics::new(config.panics);
        let hub = Hub::new(
            (pool.clone(), Rc::clone(&panics)),
            message_bytes_max,
            clock.clone(),
            seed,
            work_flag.clone(),
            waker.clone(),
        );

        hub.set_stream_config(config.streams);

        let rules = control.authorization();
        let mut endpoint = Self {
            transport,
            control,
            local: Local::new(
                (now_ns, clock),
                Core::new(now_ns, protocol),
                (pool, hub),
                (
                    LateAnswers::new(work_flag.clone()),
                    Remote::new(
                        work_flag.clone(),
                        waker,
                        config.client_calls_max,
                        (config.streams, message_bytes_max as usize),
                    ),
                ),
                (Sessions::new(config.sessions, config.transports, receive_queue), panics),
            ),
            handlers: Handlers::new(Box::new(state), &config.service),
            joined: JoinedGroups::default(),
            drain: Drain::default(),
            bursts: Bursts::new(config),
            work_flag,
            idle: Idle::new(config.idle, now_ns),
            turns: Turns::default(),
            not_send: PhantomData,
        };
        endpoint.authorize_by(rules);
        Ok(endpoint)
    }

    /// Returns the state.
    pub fn state(&self) -> &S {
        self.handlers.state_ref()
    }

    /// Returns the state, to change it.
    pub fn state_mut(&mut self) -> &mut S {
        self.handlers.state_mut()
    }

    /// Ends the endpoint, and returns its state.
    pub fn into_state(mut self) -> S {
        self.handlers.take_state()
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

    /// Runs a closure like [`with`](Self::with), directly after a turn.
    fn with_in_turn<R>(&mut self, run: impl FnOnce(&mut S, &mut Context<'_, S>) -> R) -> R {
        run(self.handlers.state_mut(), &mut Context::new(&mut self.local))
    }

    /// Sets the time to now, from which deadlines count: the last turn may be long ago.
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

    /// Announces a call: see [`Context::prefetch_session`].
    #[inline]
    pub fn prefetch_session(&mut self, session: SessionId) {
        self.local.announce(session);
    }

    /// Returns a handle of the endpoint for futures: to connect, spawn and sleep. It may be used at any time on the
    /// endpoint's thread; operations take place while the event loop runs.
    pub fn handle(&self) -> Handle<S> {
        Handle::new(Rc::clone(&self.local.hub))
    }

    /// Returns a handle of a session for futures.
    pub fn session(&self, id: SessionId) -> Session {
        let watched = self.local.hub.watch(id, || self.session_state(id));
        Session::new(Rc::clone(&self.local.hub), watched)
    }

    /// Returns the part that is independent of the transport, at the time of now.
    pub(crate) fn local_now(&mut self) -> &mut Local {
        self.refresh_clock();
        &mut self.local
    }

    /// Returns the state for clients of this endpoint.
    pub(crate) fn client_shared(&mut self) -> crate::sync::Arc<ClientShared> {
        self.local.clients()
    }

    /// Returns the current counters.
    pub fn stats(&self) -> EndpointStats {
        EndpointStats::of(&self.transport, &self.control, &self.local)
    }

    /// Returns the counters of each path of a session to a server, the endpoint's own source port first. Empty for a session
    /// of one path.
    pub fn path_counts(&self, session: SessionId) -> &[PathCounts] {
        self.local.core.path_counts(session)
    }

    /// Counts the objects of the endpoint: takes as many steps as there are slots.
    #[doc(hidden)]
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts::of(&self.local, &self.drain, &self.joined)
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

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> place::Sealed for &mut Endpoint<S, T, C> {
    type State = S;

    #[inline(always)]
    fn context(&mut self) -> Context<'_, S> {
        Endpoint::context(self)
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
