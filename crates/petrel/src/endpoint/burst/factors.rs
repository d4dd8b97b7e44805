//! The optimisations of the fast path, each with a switch, to measure their effect (eRPC §6.2, table 3) with
//! `petrel-experiment factors`; dispatch and output with some optimisation off. Only with the feature `factors`.

use petrel_proto::PeerKey;
use petrel_transport::clock::now_ns;
use petrel_transport::shm::Outgoing;
use petrel_transport::{FrameHandler, PeerId, ReturnPath, Transport};

use super::general::GeneralDispatch;
use crate::endpoint::context::{Context, Local};
use crate::endpoint::dispatch::{Dispatch, Sink};
use crate::endpoint::handlers::Handlers;
use crate::endpoint::request::Payload;
use crate::endpoint::route::ReturnRoute;

/// Switches for optimisations of the fast path. All are on by default; only measurements have a reason to switch one
/// off. `protocol`, `host` and `sessions` of the configuration have further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Optimisations {
    /// Reads the clock once per turn of the event loop; else once per frame, both ways (eRPC §5.2.2).
    pub clock_once_per_turn: bool,
    /// Reuses the buffer of a slot's former response for the next; else each response gets one from the pool (eRPC
    /// §4.3).
    pub preallocated_responses: bool,
    /// Handlers read requests of one packet in the receive buffer, which over shared memory is a private copy of the
    /// frame. Else each request is copied to a message buffer first (eRPC §4.2.3).
    pub zero_copy_requests: bool,
    /// Sends responses and calls to the sender of the current frame straight into the sender's ring, while the session
    /// is in the cache. Else, and over UDP always, they wait in a queue for the end of the burst.
    pub immediate_sends: bool,
    /// Passes frames to the medium in bursts; else singly (eRPC §4.2).
    pub bursts: bool,
    /// A polling endpoint tells its peers over shared memory that it never sleeps; else they issue a memory fence per
    /// burst, to check whether to wake it.
    pub fence_free: bool,
}

impl Default for Optimisations {
    fn default() -> Self {
        Self {
            clock_once_per_turn: true,
            preallocated_responses: true,
            zero_copy_requests: true,
            immediate_sends: true,
            bursts: true,
            fence_free: true,
        }
    }
}

impl Optimisations {
    /// Returns the switches if one is off.
    pub(super) fn if_one_is_off(self) -> Option<Self> {
        (self != Self::default()).then_some(self)
    }

    /// Returns true if responses leave before the end of their burst.
    pub(super) fn sends_at_once(&self) -> bool {
        self.immediate_sends && self.bursts
    }
}

/// Handles received frames with some optimisation off: with detours.
pub(super) struct SlowDispatch<'a> {
    optimisations: Optimisations,
    local: &'a mut Local,
    handlers: &'a mut Handlers,
    now_ns: u64,
}

impl<'a> SlowDispatch<'a> {
    pub(super) fn new(
        optimisations: Optimisations,
        local: &'a mut Local,
        handlers: &'a mut Handlers,
        now_ns: u64,
    ) -> Self {
        Self { optimisations, local, handlers, now_ns }
    }

    fn general(&mut self) -> GeneralDispatch<'_> {
        GeneralDispatch::new(self.local, self.handlers, self.now_ns)
    }
}

impl<R: ReturnPath> FrameHandler<R> for SlowDispatch<'_> {
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        FrameHandler::<R>::handle_marked(&mut self.general(), peer, frame);
    }

    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        FrameHandler::<R>::handle_from(&mut self.general(), peer, source, frame, is_marked);
    }

    fn handle(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut R>) {
        let Self { optimisations, local, handlers, now_ns: turn_ns } = self;
        let path = Outgoing::of(path.filter(|_| optimisations.sends_at_once()));
        if !optimisations.clock_once_per_turn {
            *turn_ns = now_ns();
        }
        let key = PeerKey(peer.0);
        let Some(request) = local.core.handle_plain_request(key, frame) else {
            return Dispatch::new(local, handlers, *turn_ns).take(peer, frame, path);
        };
        let spare = request.spare.filter(|_| optimisations.preallocated_responses);
        let payload = match optimisations.zero_copy_requests {
            true => Payload::Borrowed(request.payload),
            // Without memory the handler reads the request in place.
            false => match Context::<()>::new(local).alloc_message(request.payload) {
                Ok(copy) => Payload::Owned(copy),
                Err(_) => Payload::Borrowed(request.payload),
            },
        };
        let cx = &mut Context::with_route(local, ReturnRoute::new(key, path));
        handlers.run(cx, request.handle, request.method, payload, spare);
    }
}

/// Sends frames with some optimisation off.
pub(super) struct SlowSink<'a, T> {
    optimisations: Optimisations,
    to: Sink<'a, T>,
}

impl<'a, T> SlowSink<'a, T> {
    pub(super) fn new(optimisations: Optimisations, to: Sink<'a, T>) -> Self {
        Self { optimisations, to }
    }
}

impl<T: Transport> petrel_proto::FrameSink for SlowSink<'_, T> {
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        if !self.optimisations.clock_once_per_turn {
            std::hint::black_box(now_ns());
        }
        let taken = self.to.send(peer, head, body);
        if !self.optimisations.bursts {
            self.to.transport().flush();
        }
        taken
    }

    fn send_from(&mut self, source: u8, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        let taken = self.to.send_from(source, peer, head, body);
        if !self.optimisations.bursts {
            self.to.transport().flush();
        }
        taken
    }

    fn note_repeat(&mut self) {
        self.to.note_repeat();
    }

    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        self.to.now_ns(burst_ns)
    }
}
