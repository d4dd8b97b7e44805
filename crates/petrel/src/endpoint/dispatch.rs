//! The steps from a received frame to the handler or continuation.

use petrel_proto::buffer::Placed;
use petrel_proto::limits::{HEADER_BYTES, PART_HEADER_BYTES};
use petrel_proto::{
    Core, FrameSink, PeerKey, PlainFrame, PlainRequest, Received, RequestHandle, method_of,
};
use petrel_transport::shm::Outgoing;
use petrel_transport::{FrameHandler, PeerId, ReturnPath, SharedBytes, SharedFrame, Transport};

use super::context::continuation::{Continuation, run_continuation, run_under_deadline};
use super::context::{Context, Local};
use super::handlers::Handlers;
use super::request::Payload;
use super::route::ReturnRoute;
use crate::msgbuf::{MsgBuf, Pool};
use crate::region_memory::Writing;

/// A longer frame is probably a packet of a large message, whose packets have at least this size.
const SMALL_FRAME_BYTES: usize = 1024;

/// The transport as the core's output. `flush` must come before the core's next method that changes a buffer.
pub(super) struct Sink<'a, T> {
    transport: &'a mut T,
    /// A single reading for all frames of the burst with a deadline, taken at the first of them.
    clock_ns: Option<u64>,
}

impl<'a, T> Sink<'a, T> {
    pub(super) fn new(transport: &'a mut T) -> Self {
        Self { transport, clock_ns: None }
    }

    #[cfg(feature = "factors")]
    pub(super) fn transport(&mut self) -> &mut T {
        self.transport
    }
}

impl<T: Transport> FrameSink for Sink<'_, T> {
    #[inline(always)]
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: the core keeps the bytes in place until the next call of a method that frees or fills a buffer, or
        // transmits. `Bursts::send` and `send_cancels` flush before. A device reads bodies of messages later, and their memory
        // stays unchanged until then (`petrel_transport::buf::RegionWatch`).
        unsafe { self.transport.push(PeerId(peer.0), head, body) }
    }

    #[inline(never)]
    fn send_from(&mut self, source: u8, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        // SAFETY: as in `send`.
        unsafe { self.transport.push_from(source, PeerId(peer.0), head, body) }
    }

    #[inline(always)]
    fn note_repeat(&mut self) {
        self.transport.wait_at_flush();
    }

    #[inline]
    fn now_ns(&mut self, _burst_ns: u64) -> u64 {
        let Self { transport, clock_ns } = self;
        *clock_ns.get_or_insert_with(|| transport.now())
    }
}

/// Handles received frames.
pub(super) struct Dispatch<'a> {
    local: &'a mut Local,
    handlers: &'a mut Handlers,
    now_ns: u64,
}

impl<'a> Dispatch<'a> {
    #[inline(always)]
    pub(super) fn new(local: &'a mut Local, handlers: &'a mut Handlers, now_ns: u64) -> Self {
        Self { local, handlers, now_ns }
    }

    #[inline(always)]
    pub(super) fn core(&self) -> &Core<MsgBuf, Continuation> {
        &self.local.core
    }

    #[inline(always)]
    pub(super) fn handlers(&mut self) -> &mut Handlers {
        self.handlers
    }
}

impl Dispatch<'_> {
    /// Handles a frame without a mark in private memory.
    #[inline(always)]
    pub(super) fn take(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut Outgoing>) {
        let Self { local, handlers, now_ns } = self;
        let peer = PeerKey(peer.0);
        if frame.len() > SMALL_FRAME_BYTES && local.core.handle_next_part(peer, frame) {
            local.count_part(frame.len());
            return;
        }
        let route = ReturnRoute::new(peer, path);
        match PlainFrame::of(frame) {
            Some(PlainFrame::Request(parsed)) => {
                if let Some(request) = local.core.take_plain_frame(peer, parsed) {
                    let PlainRequest { handle, method, payload, spare } = request;
                    let cx = &mut Context::with_route(local, route);
                    handlers.run(cx, handle, method, Payload::Borrowed(payload), spare);
                    return;
                }
                if dispatch_plain_from(local, handlers, *now_ns, (peer, 0), frame) {
                    return;
                }
            }
            Some(PlainFrame::Response) => {
                let Local { core, clock, .. } = &mut **local;
                let clock = || clock.now_ns();
                if let Some(ended) = core.handle_plain_response(*now_ns, peer, frame, clock) {
                    let cx = &mut Context::with_route(local, route);
                    return run_continuation(handlers.state(), cx, ended);
                }
                if dispatch_response(local, handlers, *now_ns, peer, frame) {
                    return;
                }
            }
            None => {}
        }
        dispatch_timed(local, handlers, *now_ns, peer, frame, route);
    }
}

impl<R: ReturnPath> FrameHandler<R> for Dispatch<'_> {
    #[inline(always)]
    fn handle(&mut self, peer: PeerId, frame: &[u8], path: Option<&mut R>) {
        self.take(peer, frame, Outgoing::of(path));
    }

    fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
        let Self { local, handlers, now_ns } = self;
        local.core.set_time(local.clock.now_ns());
        dispatch_other(local, handlers, *now_ns, PeerKey(peer.0), frame, true);
    }

    #[inline(always)]
    fn handle_from(&mut self, peer: PeerId, source: u8, frame: &[u8], is_marked: bool) {
        let Self { local, handlers, now_ns } = self;
        let from = (PeerKey(peer.0), source);
        let may_be_part = frame.len() > SMALL_FRAME_BYTES && !is_marked;
        if may_be_part && local.core.handle_part_from(from, frame) {
            local.count_part(frame.len());
            return;
        }
        let is_plain = !is_marked && PlainFrame::of(frame).is_some();
        if is_plain && dispatch_plain_from(local, handlers, *now_ns, from, frame) {
            return;
        }
        dispatch_from(local, handlers, *now_ns, from, frame, is_marked);
    }

    /// Copies a long frame once, to its place in a message, if it belongs to one of the two usual messages.
    #[inline(always)]
    fn handle_shared(&mut self, peer: PeerId, frame: SharedFrame<'_>, path: Option<&mut R>) {
        let Self { local, .. } = self;
        let (key, bytes) = (PeerKey(peer.0), frame.bytes());
        if let Some(head) = bytes.read::<PART_HEADER_BYTES>(0)
            && let payload = bytes.slice(PART_HEADER_BYTES..bytes.len())
            && let Some(place) = local.core.next_part_place(key, &head, payload.len())
        {
            payload.copy_to_slice(place);
            local.count_part(bytes.len());
            return;
        }
        dispatch_shared(self, peer, frame, Outgoing::of(path));
    }
}

/// Handles a long frame in shared memory that is not the next packet of a request in a buffer.
#[inline(never)]
fn dispatch_shared(
    dispatch: &mut Dispatch<'_>,
    peer: PeerId,
    frame: SharedFrame<'_>,
    path: Option<&mut Outgoing>,
) {
    let (key, bytes) = (PeerKey(peer.0), frame.bytes());
    if let Some(head) = bytes.read::<PART_HEADER_BYTES>(0)
        && let payload = bytes.slice(PART_HEADER_BYTES..bytes.len())
        && let core = &mut dispatch.local.core
        && let Some((writing, offset)) =
            core.next_part_destination::<Writing>(key, &head, payload.len())
    {
        writing.store_shared(offset, payload);
        dispatch.local.count_part(bytes.len());
        return;
    }
    let Dispatch { local, handlers, now_ns } = dispatch;
    if let Some(head) = bytes.read::<HEADER_BYTES>(0) {
        let payload = bytes.slice(HEADER_BYTES..bytes.len());
        let (now_ns, len) = (*now_ns, payload.len());
        let Local { core, clock, .. } = &mut **local;
        let clock = || clock.now_ns();
        if let Some(ended) = core.take_plain_response(now_ns, key, &head, Shared(payload), clock) {
            let route = ReturnRoute::new(key, path);
            let cx = &mut Context::with_route(local, route);
            return run_continuation(handlers.state(), cx, ended);
        }
        if handlers.reads_in_place(method_of(&head))
            && let Some(request) = local.core.take_plain_request(key, &head, len)
        {
            let PlainRequest { handle, method, spare, .. } = request;
            let cx = &mut Context::with_route(local, ReturnRoute::new(key, path));
            return handlers.run_in_place(cx, handle, method, payload, spare);
        }
    }
    dispatch.take(peer, frame.into_private(), path);
}

/// The payload of a frame under the control of its peer.
struct Shared<'a>(SharedBytes<'a>);

impl petrel_proto::buffer::Payload<MsgBuf> for Shared<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn fill(self, response: &mut MsgBuf) {
        response.set_len(self.0.len());
        self.0.copy_to_slice(response);
    }
}

/// Handles a small request with a deadline, or another unusual frame.
#[inline(never)]
fn dispatch_timed(
    local: &mut Local,
    handlers: &mut Handlers,
    now_ns: u64,
    peer: PeerKey,
    frame: &[u8],
    route: ReturnRoute<'_>,
) {
    // Handling the earlier frames of the turn has taken time.
    local.core.set_time(local.clock.now_ns());
    let Some((request, deadline_ns)) = local.core.handle_timed_request(now_ns, peer, frame) else {
        return dispatch_other(local, handlers, now_ns, peer, frame, false);
    };
    let PlainRequest { handle, method, payload, spare } = request;
    Context::with_route(local, route).under_deadline(Some(deadline_ns), |cx| {
        handlers.run(cx, handle, method, Payload::Borrowed(payload), spare);
    });
}

/// Handles a small answer that did not follow at once on its request, or of a session of several paths. Returns false
/// for other frames.
#[inline(never)]
fn dispatch_response(
    local: &mut Local,
    handlers: &mut Handlers,
    now_ns: u64,
    peer: PeerKey,
    frame: &[u8],
) -> bool {
    let Local { core, clock, .. } = local;
    let Some(ended) = core.handle_later_response(now_ns, peer, frame, || clock.now_ns()) else {
        return dispatch_plain_from(local, handlers, now_ns, (peer, 0), frame);
    };
    run_continuation(handlers.state(), &mut Context::new(local), ended);
    true
}

/// Handles a small frame of a session of several paths, from this source port of the peer. Returns false for other frames.
#[inline(never)]
fn dispatch_plain_from(
    local: &mut Local,
    handlers: &mut Handlers,
    now_ns: u64,
    from: (PeerKey, u8),
    frame: &[u8],
) -> bool {
    if let Some(request) = local.core.handle_plain_request_from(from, frame) {
        let PlainRequest { handle, method, payload, spare } = request;
        handlers.run(&mut Context::new(local), handle, method, Payload::Borrowed(payload), spare);
    } else if let Some(ended) = local.core.handle_plain_response_from(now_ns, from.0, frame) {
        run_continuation(handlers.state(), &mut Context::new(local), ended);
    } else {
        return false;
    }
    true
}

/// Handles all frames outside the fast path; `is_marked` if the frame has an ECN mark.
#[inline(never)]
pub(super) fn dispatch_other(
    local: &mut Local,
    handlers: &mut Handlers,
    now_ns: u64,
    peer: PeerKey,
    frame: &[u8],
    is_marked: bool,
) {
    local.count_part(frame.len());
    let Local { core, pool, .. } = local;
    let destination = |method, len, first: Option<&[u8]>| handlers.destination(method, len, first);
    let pool = &mut Pool::new(pool, destination);
    let received = match is_marked {
        true => core.handle_marked_frame(now_ns, peer, frame, pool),
        false => core.handle_frame(now_ns, peer, frame, pool),
    };
    run_received(local, handlers, received);
}

/// Handles a frame from a further source port of a peer.
#[inline(never)]
pub(super) fn dispatch_from(
    local: &mut Local,
    handlers: &mut Handlers,
    now_ns: u64,
    from: (PeerKey, u8),
    frame: &[u8],
    is_marked: bool,
) {
    // Handling the earlier frames of the turn has taken time.
    local.core.set_time(local.clock.now_ns());
    local.count_part(frame.len());
    let Local { core, pool, .. } = local;
    let destination = |method, len, first: Option<&[u8]>| handlers.destination(method, len, first);
    let pool = &mut Pool::new(pool, destination);
    let received = core.handle_frame_from(now_ns, from, frame, is_marked, pool);
    run_received(local, handlers, received);
}

/// Runs the handler or continuation for which a frame came.
#[inline(always)]
fn run_received(
    local: &mut Local,
    handlers: &mut Handlers,
    received: Received<'_, MsgBuf, Continuation>,
) {
    match received {
        Received::Nothing => {}
        Received::Request { handle, method, payload, spare, deadline_ns } => {
            let payload = Payload::Borrowed(payload);
            Context::new(local).under_deadline(deadline_ns, |cx| {
                handlers.run(cx, handle, method, payload, spare);
            });
        }
        Received::Message { handle, method, message, placed, deadline_ns } => {
            run_message(local, handlers, (handle, method), (message, placed), deadline_ns);
        }
        Received::Completed(ended) => {
            run_under_deadline(handlers.state(), &mut Context::new(local), ended);
        }
    }
}

/// Runs the handler of a request in a buffer of its own, or in memory of the application.
pub(super) fn run_message(
    local: &mut Local,
    handlers: &mut Handlers,
    (handle, method): (RequestHandle, u16),
    (message, placed): (MsgBuf, Option<Placed>),
    deadline_ns: Option<u64>,
) {
    let payload = Payload::Owned(message);
    local.with_placed(placed, |local| {
        Context::new(local).under_deadline(deadline_ns, |cx| {
            handlers.run(cx, handle, method, payload, None);
        });
    });
}
