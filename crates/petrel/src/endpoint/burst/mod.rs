//! Receiving and sending in bursts, and what a burst makes possible: memory fetched ahead, and requests handled together.
//!
//! [`Bursts`] runs the handlers and continuations of the received frames, and sends the frames of the core. The other parts
//! of the endpoint use only the items of this file, and the values that they keep for bursts: [`Gathered`] and [`Locators`]
//! with the handlers, and [`Announced`] with the sessions.
//!
//! | subject | files |
//! | --- | --- |
//! | memory of sessions and slots, fetched ahead | `ahead`: for received frames; `announced`: for calls that the application announces |
//! | memory of handlers, fetched ahead | `locators` |
//! | dispatch of frames that are shown ahead | `dispatch_ahead` |
//! | requests of a method, handled together | `gather`, `lane`, `batch` |
//! | dispatch without the fast path | `general` |
//! | dispatch and output with some optimisation off, for experiments | `factors` |

mod ahead;
mod announced;
mod batch;
mod dispatch_ahead;
#[cfg(feature = "factors")]
mod factors;
mod gather;
mod general;
mod lane;
mod locators;

use petrel_proto::limits::TRANSMIT_FRAMES_MAX;
use petrel_transport::{RX_BURST_MAX, Transport};

pub(super) use announced::Announced;
pub use batch::Batch;
#[cfg(feature = "factors")]
pub use factors::Optimisations;
pub(super) use gather::Gathered;
pub(super) use locators::Locators;

use super::config::EndpointConfig;
use super::context::{Context, Local};
use super::dispatch::{Dispatch, Sink};
use super::handlers::Handlers;
use ahead::Ahead;
use dispatch_ahead::DispatchAhead;
#[cfg(feature = "factors")]
use factors::{SlowDispatch, SlowSink};
use general::GeneralDispatch;

/// The most bursts sent in one turn, to let the receive path run.
const TX_BURSTS_PER_TURN: usize = 8;

/// Bytes of large messages after which a turn sends: credits return, and the sender continues, while the next packets
/// are copied. Half of the default credits over shared memory; 64 and 128 KiB were as good.
const RX_BURST_BYTES: usize = 256 << 10;

// A turn sends, and takes a frame of a large message at least.
const _: () = assert!(TX_BURSTS_PER_TURN > 0 && RX_BURST_BYTES > RX_BURST_MAX);

/// The bursts of an endpoint.
pub(super) struct Bursts {
    ahead: Ahead,
    /// Whether frames may take the fast path.
    fast_path: bool,
    /// `None` if all are on.
    #[cfg(feature = "factors")]
    optimisations: Option<Optimisations>,
    /// The most frames received in the next turn.
    rx_budget: usize,
}

impl Bursts {
    pub(super) fn new(config: &EndpointConfig) -> Self {
        Self {
            ahead: Ahead::new(),
            fast_path: config.protocol.fast_path,
            #[cfg(feature = "factors")]
            optimisations: config.optimisations.if_one_is_off(),
            rx_budget: RX_BURST_MAX,
        }
    }

    /// Returns true if responses and requests leave before the end of a burst.
    #[inline]
    pub(super) fn sends_at_once(&self) -> bool {
        #[cfg(feature = "factors")]
        if let Some(optimisations) = self.optimisations {
            return optimisations.sends_at_once();
        }
        true
    }

    /// Receives a burst, and runs its handlers and continuations. Returns the number of frames.
    ///
    /// A separate function: inlined into the rest of a turn, it would keep half of its variables on the stack.
    #[inline(never)]
    pub(super) fn receive<T: Transport>(
        &mut self,
        transport: &mut T,
        local: &mut Local,
        handlers: &mut Handlers,
        now_ns: u64,
    ) -> usize {
        local.begin_burst();
        let received = self.receive_up_to_budget(transport, local, handlers, now_ns);
        if handlers.has_gathered() {
            self.run_batches(transport, local, handlers);
        }
        // Packets of a large message come in trains: the next packets are as large.
        self.rx_budget = match local.part_bytes() {
            0 => RX_BURST_MAX,
            bytes => (RX_BURST_BYTES * received / bytes).clamp(1, RX_BURST_MAX),
        };
        received
    }

    /// [`Bursts::receive`] of at most `budget` frames.
    pub(super) fn receive_few<T: Transport>(
        &mut self,
        transport: &mut T,
        local: &mut Local,
        handlers: &mut Handlers,
        (now_ns, budget): (u64, usize),
    ) -> usize {
        self.rx_budget = self.rx_budget.min(budget);
        self.receive(transport, local, handlers, now_ns)
    }

    #[inline(always)]
    fn receive_up_to_budget<T: Transport>(
        &mut self,
        transport: &mut T,
        local: &mut Local,
        handlers: &mut Handlers,
        now_ns: u64,
    ) -> usize {
        let Self { ahead, rx_budget, .. } = self;
        if !self.fast_path {
            let dispatch = GeneralDispatch::new(local, handlers, now_ns);
            return transport.rx_burst_to(*rx_budget, dispatch);
        }
        #[cfg(feature = "factors")]
        if let Some(optimisations) = self.optimisations {
            let dispatch = SlowDispatch::new(optimisations, local, handlers, now_ns);
            return transport.rx_burst_to(*rx_budget, dispatch);
        }
        let looks_ahead = local.core.looks_ahead();
        let locators = handlers.locators();
        let locates = !locators.is_empty();
        locators.restart();
        let dispatch = Dispatch::new(local, handlers, now_ns);
        if looks_ahead || locates {
            ahead.restart();
            let ahead = looks_ahead.then_some(ahead);
            let dispatch = DispatchAhead::new(dispatch, ahead, locates);
            return transport.rx_burst_to(*rx_budget, dispatch);
        }
        transport.rx_burst_to(*rx_budget, dispatch)
    }

    /// Runs the batched handlers that have requests, and sends their responses.
    #[inline(never)]
    fn run_batches<T: Transport>(
        &self,
        transport: &mut T,
        local: &mut Local,
        handlers: &mut Handlers,
    ) {
        let sends_at_once = self.sends_at_once();
        while let Some(gather) = handlers.gathered().pop() {
            let gather = &mut *gather.borrow_mut();
            gather.run_caught(handlers.state(), &mut Context::new(local));
            if sends_at_once {
                let mut refused = Vec::new();
                let refuse = |handle, rejected| refused.push((handle, rejected));
                local.core.respond_all(gather.take_replies(), &mut Sink::new(transport), refuse);
                // Before any other method of the core.
                transport.flush();
                let cx = &mut Context::<()>::new(local);
                refused
                    .into_iter()
                    .for_each(|(handle, rejected)| cx.refuse_answer(handle, rejected));
            } else {
                let cx = &mut Context::<()>::new(local);
                gather.take_replies().for_each(|(handle, reply)| cx.respond_at_once(handle, reply));
            }
        }
    }

    /// Sends the frames that the core has. Returns true if there were any.
    #[inline(always)]
    pub(super) fn send<T: Transport>(
        &self,
        transport: &mut T,
        local: &mut Local,
        now_ns: u64,
    ) -> bool {
        let mut any = false;
        for _ in 0..TX_BURSTS_PER_TURN {
            let sent = self.transmit(transport, local, now_ns);
            transport.flush();
            any |= sent > 0;
            if sent < TRANSMIT_FRAMES_MAX {
                break;
            }
        }
        any
    }

    #[inline(always)]
    fn transmit<T: Transport>(&self, transport: &mut T, local: &mut Local, now_ns: u64) -> usize {
        #[cfg(feature = "factors")]
        if let Some(optimisations) = self.optimisations {
            let mut sink = SlowSink::new(optimisations, Sink::new(transport));
            return local.core.transmit(now_ns, &mut sink);
        }
        local.core.transmit(now_ns, &mut Sink::new(transport))
    }
}

/// Sends only the pending CANCELs, at the endpoint's end.
pub(super) fn send_cancels<T: Transport>(transport: &mut T, local: &mut Local) {
    loop {
        let sent = local.core.transmit_cancels(&mut Sink::new(transport));
        transport.flush();
        if sent < TRANSMIT_FRAMES_MAX {
            break;
        }
    }
}
