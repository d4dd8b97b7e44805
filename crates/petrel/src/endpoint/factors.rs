//! The optimisations of the fast path, each with a switch, to measure their effect (eRPC §6.2, table 3) with `petrel
//! bench factors`.

use petrel_proto::PeerKey;
use petrel_transport::clock::now_ns;
use petrel_transport::shm::Outgoing;
use petrel_transport::{FrameHandler, PeerId, ReturnPath, Transport};

use super::context::{Back, Context, Local};
use super::event_loop::{Dispatch, Sink, dispatch_other};
use super::handler::{Handlers, Payload};

/// Switches for optimisations of the fast path. All are on by default; only measurements have a reason to switch one
/// off. `protocol`, `host` and `sessions` of the configuration have further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Factors {
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

impl Default for Factors {
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

/// Handles received frames with some optimisation off: on the general path, with detours.
pub(super) struct SlowDispatch<'a> {
    pub(super) factors: Factors,
    pub(super) fast_path: bool,
    pub(super) local: &'a mut Local,
    pub(super) handlers: &'a mut Handlers,
    pub(super) now_ns: u64,
}

impl<R: ReturnPath> FrameHandler<R> for SlowDispatch<'_> {
    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        let Self { local, handlers, now_ns, .. } = self;
        local.core.set_time(local.clock.now_ns());
        dispatch_other(local, handlers, *now_ns, PeerKey(peer.0), frame, true);
    }

    fn handle(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut R>) {
        let Self { factors, fast_path, local, handlers, .. } = self;
        let path = path.filter(|_| factors.immediate_sends && factors.bursts);
        let path = Outgoing::of(path);
        if !factors.clock_once_per_turn {
            self.now_ns = now_ns();
        }
        let (key, now_ns) = (PeerKey(peer.0), self.now_ns);
        if !*fast_path {
            local.core.set_time(local.clock.now_ns());
            dispatch_other(local, handlers, now_ns, key, frame, false);
        } else if let Some(request) = local.core.handle_plain_request(key, frame) {
            let spare = request.spare.filter(|_| factors.preallocated_responses);
            let payload = match factors.zero_copy_requests {
                true => Payload::Borrowed(request.payload),
                // Without memory the handler reads the request in place.
                false => match Context::<()>::new(local).alloc_message(request.payload) {
                    Ok(copy) => Payload::Owned(copy),
                    Err(_) => Payload::Borrowed(request.payload),
                },
            };
            let cx = &mut Context::with_back(local, Back::new(key, path));
            handlers.run(cx, request.handle, request.method, payload, spare);
        } else {
            Dispatch { local, handlers, now_ns }.take(peer, frame, path);
        }
    }
}

/// Sends frames with some optimisation off.
pub(super) struct SlowSink<'a, T> {
    pub(super) factors: Factors,
    pub(super) to: Sink<'a, T>,
}

impl<T: Transport> petrel_proto::FrameSink for SlowSink<'_, T> {
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        if !self.factors.clock_once_per_turn {
            std::hint::black_box(now_ns());
        }
        let taken = self.to.send(peer, head, body);
        if !self.factors.bursts {
            self.to.transport.flush();
        }
        taken
    }

    fn now_ns(&mut self, burst_ns: u64) -> u64 {
        self.to.now_ns(burst_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default__is_all_of_them() {
        let all = Factors {
            clock_once_per_turn: true,
            preallocated_responses: true,
            zero_copy_requests: true,
            immediate_sends: true,
            bursts: true,
            fence_free: true,
        };
        assert_eq!(Factors::default(), all);
    }
}
