//! What handlers, continuations and the application can do with an endpoint.

use std::marker::PhantomData;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::{
    CallLimits, Core, FrameSink, PeerKey, PendingCall, RequestHandle, RespondError,
    RespondRejected, SessionId, Status,
};
use petrel_transport::ReturnPath;
use petrel_transport::buf::BufPool;
use petrel_transport::clock::Clock;

use super::call::{Continuation, Keyed};
use super::call_builder::{CallBuilder, Callee, IntoMessage};
use super::cancel::Watchers;
use super::handler::Dropped;
use super::multicast::Groups;
use super::options::limits;
use super::remote::Remote;
use super::service::Services;
use super::sessions::Sessions;
use crate::client::Client;
use crate::error::Error;
use crate::events;
use crate::local::{Hub, Key};
use crate::msgbuf::MsgBuf;

/// The part of an endpoint that does not depend on its transport: what handlers and continuations
/// work on while the transport is busy delivering.
pub(crate) struct Local {
    pub(super) core: Core<MsgBuf, Continuation>,
    pub(super) pool: BufPool,
    /// What the futures of this thread share with the event loop.
    pub(super) hub: Rc<Hub>,
    /// Groups that are sent to by multicast.
    pub(super) groups: Groups,
    /// Requests whose [`Responder`](super::Responder) was dropped.
    pub(super) dropped: Rc<Dropped>,
    /// What there is for other threads.
    pub(super) remote: Box<Remote>,
    /// Time of the current turn of the event loop, in nanoseconds.
    pub(super) now_ns: u64,
    /// The clock itself, for deadlines: a turn takes time.
    pub(super) clock: Clock,
    /// Bytes of the frames of this burst, but for those of small calls.
    pub(super) part_bytes: usize,
    pub(super) watchers: Watchers,
    pub(super) keyed: Keyed,
    pub(super) sessions: Sessions,
    /// Those of clients.
    pub(super) services: Box<Services>,
}

impl Local {
    /// The service of a client, if the client makes its calls by this endpoint.
    pub(super) fn service_of(&self, client: &Client) -> Option<Key> {
        let is_own = self.remote.is_of(client.endpoint());
        if is_own { self.services.find(client.key()) } else { None }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.hub.close();
    }
}

/// An endpoint, as its handlers and continuations see it: they make calls, take buffers, and
/// answer requests with it. `S` is the type of the [state](super::Endpoint::state) that the endpoint lends them.
// In C's order, so that it is the same memory whatever the state's type: see `Context::typed`.
#[repr(C)]
pub struct Context<'a, S = ()> {
    pub(super) local: &'a mut Local,
    pub(super) back: Back<'a>,
    state: PhantomData<fn(&mut S)>,
}

/// Where a frame came from, and the way back while it is in hand: what goes to that peer need not
/// wait in a queue.
pub(super) struct Back<'a> {
    peer: PeerKey,
    path: ReturnPath<'a>,
}

impl<'a> Back<'a> {
    /// No frame is in hand.
    pub(super) const NONE: Back<'static> = Back { peer: PeerKey(0), path: ReturnPath::NONE };

    #[inline(always)]
    pub(super) fn new(peer: PeerKey, path: ReturnPath<'a>) -> Self {
        Self { peer, path }
    }
}

impl FrameSink for Back<'_> {
    #[inline(always)]
    fn send(&mut self, _peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        // Only messages of one packet go this way, and those are in one piece.
        body.is_empty() && self.path.push(head)
    }

    #[inline(always)]
    fn reaches(&self, peer: PeerKey) -> bool {
        self.path.is_there() && self.peer == peer
    }
}

/// The way back for a call with a deadline, and when the call was made.
struct Timed<'a, 'b> {
    back: &'a mut Back<'b>,
    clock_ns: u64,
}

impl FrameSink for Timed<'_, '_> {
    #[inline(always)]
    fn send(&mut self, peer: PeerKey, head: &[u8], body: &[u8]) -> bool {
        self.back.send(peer, head, body)
    }

    #[inline(always)]
    fn now_ns(&mut self, _burst_ns: u64) -> u64 {
        self.clock_ns
    }

    #[inline(always)]
    fn reaches(&self, peer: PeerKey) -> bool {
        self.back.reaches(peer)
    }
}

impl<'a, S> Context<'a, S> {
    /// Outside of handlers and continuations of received frames.
    #[inline(always)]
    pub(super) fn new(local: &'a mut Local) -> Self {
        Self::with_back(local, Back::NONE)
    }

    /// While a frame is in hand.
    #[inline(always)]
    pub(super) fn with_back(local: &'a mut Local, back: Back<'a>) -> Self {
        Self { local, back, state: PhantomData }
    }

    /// The same for a shorter time.
    #[inline(always)]
    pub(super) fn reborrow(&mut self) -> Context<'_, S> {
        let Back { peer, path } = &mut self.back;
        Context::with_back(self.local, Back { peer: *peer, path: path.reborrow() })
    }

    /// The same without the type of the state.
    #[inline(always)]
    pub(crate) fn untyped(&mut self) -> &mut Context<'a> {
        // SAFETY: in C's order the fields of both types lie at the same places, as a `PhantomData` takes none.
        unsafe { &mut *ptr::from_mut(self).cast() }
    }
}

impl<'a> Context<'a> {
    /// The same with the type of the state: that of the endpoint, for what was registered or called with that type.
    #[inline(always)]
    pub(crate) fn typed<S>(&mut self) -> &mut Context<'a, S> {
        // SAFETY: as in `untyped`.
        unsafe { &mut *ptr::from_mut(self).cast() }
    }
}

impl<'a, S: 'static> Context<'a, S> {
    /// A buffer for up to `capacity` bytes. Its message is as long as that at first, and its bytes are left from an
    /// earlier use: write them, or set the length.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    #[inline]
    pub fn alloc(&self, capacity: usize) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::from_pool(&self.local.pool, capacity)?)
    }

    /// A buffer that holds `message`.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when the endpoint's memory limit is reached.
    #[inline]
    pub fn alloc_message(&self, message: &[u8]) -> Result<MsgBuf, Error> {
        Ok(MsgBuf::holding(&self.local.pool, message)?)
    }

    /// Begins a call of `method`, on a session or by a client of this endpoint, which [`CallBuilder::then`] sends.
    ///
    /// The message may be a buffer, which goes out as it is, or bytes, which are copied into one.
    #[inline(always)]
    pub fn call<C: Callee, M: IntoMessage>(
        &mut self,
        callee: C,
        method: u16,
        request: M,
    ) -> CallBuilder<&mut Self, M, C> {
        CallBuilder::new(self, callee, method, request)
    }

    /// The deadline that calls made here inherit: that of the request that is being handled, or for which
    /// was called what has ended now.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.local.core.inherited_ns()
    }

    /// Time of this turn of the event loop, in nanoseconds of the transport's clock.
    ///
    /// It was read before the turn received anything, so it may be older than the frame in hand by as long as
    /// the thread did not run in between: [`Context::clock_now_ns`] reads the clock at the call.
    pub fn now_ns(&self) -> u64 {
        self.local.now_ns
    }

    /// The time at this moment, on the clock of [`Context::now_ns`]. Reading it takes some 10 to 20 ns.
    ///
    /// For decisions that hold only *now*, such as whether a lease still stands: the time of the turn is that
    /// of an earlier moment, and a thread that was stopped in between would decide as of then.
    pub fn clock_now_ns(&self) -> u64 {
        self.local.clock.now_ns()
    }

    /// Calls on a client session that have not ended.
    pub fn pending_calls(&self, session: SessionId) -> usize {
        self.local.core.pending_calls(session)
    }

    #[inline(always)]
    pub(super) fn start(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
    ) -> Result<(), NotTaken> {
        let Local { core, now_ns, .. } = &mut *self.local;
        core.call_at_once(*now_ns, session, call, &mut self.back)
    }

    #[inline(never)]
    pub(super) fn start_with(
        &mut self,
        session: SessionId,
        call: PendingCall<MsgBuf, Continuation>,
        timeout: Option<Duration>,
        deadline_ns: Option<u64>,
    ) -> Result<(), NotTaken> {
        let Local { core, now_ns, clock, .. } = &mut *self.local;
        let has_limits = timeout.is_some() || deadline_ns.is_some();
        let clock_ns = if has_limits { clock.now_ns() } else { *now_ns };
        let limits = limits(timeout, deadline_ns, clock_ns);
        // What lies elsewhere cannot go the short way.
        if limits == CallLimits::default() && !call.request.is_reference() {
            return core.call_at_once(*now_ns, session, call, &mut self.back);
        }
        core.set_time(clock_ns);
        let mut back = Timed { back: &mut self.back, clock_ns };
        core.call_with_at_once(*now_ns, session, call, limits, &mut back)
    }

    /// Runs something whose calls inherit this deadline.
    pub(super) fn under_deadline<R>(
        &mut self,
        deadline_ns: Option<u64>,
        run: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let before = self.local.core.inherit(deadline_ns);
        let result = run(self);
        self.local.core.inherit(before);
        result
    }

    /// Answers a request with OK, at once if there is a way back.
    #[inline(always)]
    pub(super) fn respond_at_once(&mut self, handle: RequestHandle, message: MsgBuf) {
        let responded = self.local.core.respond_at_once(handle, message, &mut self.back);
        if let Err(rejected) = responded {
            self.refuse_answer(handle, rejected);
        }
    }

    pub(super) fn respond(&mut self, handle: RequestHandle, status: Status, message: MsgBuf) {
        self.local.watchers.forget(handle);
        if let Err(rejected) = self.local.core.respond(handle, status, message) {
            self.refuse_answer(handle, rejected);
        }
    }

    pub(super) fn refuse(&mut self, handle: RequestHandle, status: Status, text: &'static str) {
        self.local.watchers.forget(handle);
        events::request_refused(handle.session, status, text);
        self.local.core.refuse(handle, status, text);
    }

    #[cold]
    fn refuse_answer(&mut self, handle: RequestHandle, rejected: RespondRejected<MsgBuf>) {
        let text = match rejected.error {
            RespondError::TooLarge { .. } => "the response exceeds what the caller accepts",
            RespondError::NoRoom => "executed; no memory to keep the answer",
            _ => return,
        };
        self.local.core.respond_error(handle, Status::ResourceExhausted, text);
    }

    /// Gives up messages of others that do not move, for an answer. False if there were none.
    #[cold]
    pub(super) fn make_room_for_answer(&mut self, bytes: usize) -> bool {
        self.local.core.make_room_for_answer(bytes)
    }

    pub(super) fn respond_error(&mut self, handle: RequestHandle, status: Status, text: &str) {
        match self.alloc_message(text.as_bytes()) {
            Ok(message) => self.respond(handle, status, message),
            Err(_) => {
                self.local.watchers.forget(handle);
                self.local.core.respond_error(handle, status, "no memory for the message");
            }
        }
    }
}

/// A call that the core has not taken.
pub(super) type NotTaken = petrel_proto::CallRejected<MsgBuf, Continuation>;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use petrel_transport::shm::{Segment, Shm, ShmConfig, ShmLink, Side};
    use petrel_transport::wake::Waker;
    use petrel_transport::{FrameHandler, PeerId, Transport, TxFrame};

    use super::*;

    /// Sends these frames back at once, every other one as a call with a deadline goes, and notes which were taken.
    struct Echo<'a> {
        frames: &'a [[u8; 40]],
        taken: Vec<bool>,
    }

    impl FrameHandler for &mut Echo<'_> {
        fn handle(&mut self, peer: PeerId, _frame: &[u8], path: ReturnPath<'_>) {
            let peer = PeerKey(peer.0);
            let mut back = Back::new(peer, path);
            assert!(back.reaches(peer) && !back.reaches(PeerKey(peer.0 + 1)));
            assert!(!back.send(peer, &self.frames[0], b"and more"), "in two pieces");
            let mut timed = Timed { back: &mut back, clock_ns: 7 };
            assert!(timed.reaches(peer) && !timed.reaches(PeerKey(peer.0 + 1)));
            assert_eq!(timed.now_ns(3), 7);
            assert!(!timed.send(peer, &self.frames[0], b"and more"), "in two pieces");
            for pair in self.frames.chunks(2) {
                let mut timed = Timed { back: &mut back, clock_ns: 7 };
                self.taken.push(timed.send(peer, &pair[0], b""));
                self.taken.push(back.send(peer, &pair[1], b""));
            }
        }

        fn handle_marked(&mut self, peer: PeerId, frame: &[u8]) {
            unreachable!("{peer:?}: no switch has marked {frame:?}");
        }
    }

    fn shm(config: &ShmConfig) -> Shm {
        Shm::new(config, Waker::new().unwrap())
    }

    #[test]
    fn back__says_true_of_the_frames_that_arrive_and_of_no_other() {
        // A ring that is full before all have gone.
        let config =
            ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 2_048, ..Default::default() };
        let frames: Vec<[u8; 40]> = (0..2_000u16)
            .map(|number| std::array::from_fn(|at| number.to_le_bytes()[at % 2]))
            .collect();
        let (mut near, mut far) = (shm(&config), shm(&config));
        let segment = Segment::create(&config).unwrap();
        let other = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let (bell, other_bell) = UnixStream::pair().unwrap();
        let to_far = near.add_peer(ShmLink::new(segment, Side::Creator, bell)).unwrap();
        let to_near = far.add_peer(ShmLink::new(other, Side::Opener, other_bell)).unwrap();
        let say = |by: &mut Shm, peer| {
            assert_eq!(by.tx_burst(&[TxFrame { peer, head: b"word", body: b"" }]), 0);
        };
        // The first frame that goes to a ring finds out how much room there is.
        say(&mut far, to_near);
        assert_eq!(near.rx_burst(64, |_, _: &[u8]| {}), 1);
        say(&mut near, to_far);
        let mut echo = Echo { frames: &frames, taken: Vec::new() };
        assert_eq!(far.rx_burst_to(64, &mut echo), 1);
        far.flush();
        let taken = echo.taken;
        assert!(taken.contains(&true) && taken.contains(&false));
        let mut arrived = Vec::new();
        while near.rx_burst(64, |_, frame: &[u8]| arrived.push(frame.to_vec())) > 0 {}
        let sent = frames.iter().zip(&taken).filter_map(|(frame, taken)| taken.then_some(frame));
        assert!(arrived.iter().eq(sent));
        let mut nowhere = Back::NONE;
        assert!(!nowhere.reaches(PeerKey(0)) && !nowhere.send(PeerKey(0), &frames[0], b""));
    }
}
