//! Dispatch and output with some optimisation off, for measurements.

use petrel_proto::PeerKey;
use petrel_transport::clock::now_ns;
use petrel_transport::shm::Outgoing;
use petrel_transport::{FrameHandler, PeerId, ReturnPath, Transport};

use crate::endpoint::context::{Context, Local};
use crate::endpoint::dispatch::{Dispatch, Sink, dispatch_from, dispatch_other};
use crate::endpoint::handlers::Handlers;
use crate::endpoint::optimisations::Optimisations;
use crate::endpoint::request::Payload;
use crate::endpoint::route::ReturnRoute;

/// Handles received frames with some optimisation off: on the general path, with detours.
pub(super) struct SlowDispatch<'a> {
    optimisations: Optimisations,
    fast_path: bool,
    local: &'a mut Local,
    handlers: &'a mut Handlers,
    now_ns: u64,
}

impl<'a> SlowDispatch<'a> {
    pub(super) fn new(
        (optimisations, fast_path): (Optimisations, bool),
        local: &'a mut Local,
        handlers: &'a mut Handlers,
        now_ns: u64,
    ) -> Self {
        Self { optimisations, fast_path, local, handlers, now_ns }
    }
}

impl<R: ReturnPath> FrameHandler<R> for SlowDispatch<'_> {
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        let Self { local, handlers, now_ns, .. } = self;
        local.core.set_time(local.clock.now_ns());
        dispatch_other(local, handlers, *now_ns, PeerKey(peer.0), frame, true);
    }

    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        let Self { local, handlers, now_ns, .. } = self;
        dispatch_from(local, handlers, *now_ns, (PeerKey(peer.0), source), frame, is_marked);
    }

    fn handle(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut R>) {
        let Self { optimisations, fast_path, local, handlers, .. } = self;
        let path = path.filter(|_| optimisations.sends_at_once());
        let path = Outgoing::of(path);
        if !optimisations.clock_once_per_turn {
            self.now_ns = now_ns();
        }
        let (key, now_ns) = (PeerKey(peer.0), self.now_ns);
        if !*fast_path {
            local.core.set_time(local.clock.now_ns());
            dispatch_other(local, handlers, now_ns, key, frame, false);
        } else if let Some(request) = local.core.handle_plain_request(key, frame) {
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
        } else {
            Dispatch::new(local, handlers, now_ns).take(peer, frame, path);
        }
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

    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        self.to.now_ns(burst_ns)
    }
}
