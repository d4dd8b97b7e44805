//! The requests of a batched method, from their arrival to the end of the receive burst.
//!
//! A request is put aside as a *lane*: its name, a copy of its message, its deadline, and the buffer of its slot's former
//! response. At the end of the burst the handler runs once for all lanes, and the endpoint sends the responses together. No
//! request waits for a later burst. Messages are copied, because a medium lends a frame during the call of its handler only.
//!
//! A message that is too long to be copied is a batch of its own, at once.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use petrel_planted::planted;
use petrel_proto::{RequestHandle, Status};

use super::batch::{Batch, Messages};
use super::lane::{Copies, Lane};
use crate::endpoint::context::Context;
use crate::endpoint::handle::Handle;
use crate::endpoint::late_answers::LateAnswers;
use crate::endpoint::request::{Handled, Request};
use crate::msgbuf::MsgBuf;
use crate::panics::{Closure, catch};
use crate::sync::thread;
use crate::values::State;

/// The most requests of a batch: somewhat more than a receive burst, which a bundle of datagrams can exceed. A fuller batch runs
/// at once. Groups of 64 were at most 6 % faster than groups of 32 (PERFORMANCE.md, "Lookups in batches").
const LANES_MAX: usize = 32;

/// A longer message is a batch of its own. Copying it would cost more than a batch gains.
const COPIED_BYTES_MAX: usize = 1024;

/// A batched handler, without the type of the state.
type BatchHandler = dyn FnMut(State<'_>, &mut Context<'_>, &Batch<'_>);

/// The requests of a method that came in the current burst, and the method's handler.
pub(super) struct Gather {
    method: u16,
    handler: Box<BatchHandler>,
    lanes: Vec<Lane>,
    copies: Copies,
    /// CANCELs that the endpoint had received before the first request.
    cancels: u64,
    has_deadline: bool,
    late: Rc<LateAnswers>,
}

/// The lanes of a batch. When the handler panics, dropping the lanes sends the responses so far, and fails the other
/// requests.
struct Lanes<'a> {
    list: &'a mut Vec<Lane>,
    late: &'a LateAnswers,
}

impl Drop for Lanes<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for lane in self.list.drain(..) {
            let handle = *lane.handle();
            match (lane.is_answered(), lane.into_reply()) {
                (_, Some((handle, message))) => self.late.push(handle, Ok(message)),
                (true, None) => {}
                (false, None) => self.late.push_dropped(handle),
            }
        }
    }
}

impl Gather {
    fn new(method: u16, late: Rc<LateAnswers>, handler: Box<BatchHandler>) -> Self {
        Self {
            method,
            handler,
            lanes: Vec::with_capacity(LANES_MAX),
            copies: Copies::default(),
            cancels: 0,
            has_deadline: false,
            late,
        }
    }

    /// Puts a request aside.
    #[inline(always)]
    fn add(&mut self, cx: &Context<'_>, mut request: Request<'_>) {
        let index = self.lanes.len();
        assert!(index < LANES_MAX, "a full batch has run");
        if index == 0 {
            self.cancels = cancels_received(cx);
            self.has_deadline = false;
            self.copies.clear();
        }
        let deadline_ns = cx.local.core.inherited_ns();
        self.has_deadline |= deadline_ns.is_some();
        let place = self.copies.add(index, request.data());
        self.lanes.push(Lane::of(&mut request, deadline_ns, place));
    }

    /// Runs the handler with all requests whose callers still wait. The lanes then have the responses.
    fn run(&mut self, state: State<'_>, cx: &mut Context<'_>) {
        self.remove_cancelled(cx);
        if self.has_deadline {
            self.refuse_expired(cx);
        }
        let Self { method, handler, lanes, copies, late, .. } = self;
        let lanes = Lanes { list: lanes, late };
        if !lanes.list.is_empty() {
            handler(state, cx, &Batch::new(*method, lanes.list, Messages::Copied(copies)));
            settle(cx, lanes.list);
        }
    }

    /// Runs the handler like [`run`](Self::run); its panic ends only the batch.
    #[inline]
    pub(super) fn run_caught(&mut self, state: State<'_>, cx: &mut Context<'_>) {
        if let Err(payload) = catch(|| self.run(state, cx)) {
            cx.local.settle_panic(Closure::Handler, payload);
        }
    }

    /// Removes requests that were cancelled since the first one was put aside. Their handler would run for nothing.
    fn remove_cancelled(&mut self, cx: &Context<'_>) {
        if self.cancels != cancels_received(cx) && !planted("batch_runs_cancelled") {
            self.lanes.retain(|lane| cx.local.core.is_awaited(*lane.handle()));
        }
    }

    /// Refuses requests whose deadline has passed while others of the burst were handled.
    fn refuse_expired(&mut self, cx: &mut Context<'_>) {
        if planted("batch_runs_expired") {
            return;
        }
        let now_ns = cx.local.clock.now_ns();
        let is_expired = |lane: &mut Lane| lane.deadline_ns().is_some_and(|at_ns| at_ns <= now_ns);
        for lane in self.lanes.extract_if(.., is_expired) {
            let text = "the deadline passed before the handler ran";
            cx.refuse(*lane.handle(), Status::DeadlineExceeded, text);
        }
    }

    /// Takes the responses out, and ends the batch.
    #[inline]
    pub(super) fn take_replies(&mut self) -> impl Iterator<Item = (RequestHandle, MsgBuf)> + '_ {
        self.lanes.drain(..).filter_map(Lane::into_reply)
    }

    /// Runs the batch before the end of the burst, because it is full.
    #[cold]
    #[inline(never)]
    fn run_full(&mut self, state: State<'_>, cx: &mut Context<'_>) {
        // Calls of the batched handler do not belong to the current request.
        cx.under_deadline(None, |cx| self.run_caught(state, cx));
        self.take_replies().for_each(|(handle, message)| cx.respond_at_once(handle, message));
    }

    /// Runs the handler with one request whose message is not copied.
    #[cold]
    #[inline(never)]
    fn run_alone(
        &mut self,
        state: State<'_>,
        cx: &mut Context<'_>,
        mut request: Request<'_>,
    ) -> Handled {
        let mut lane = vec![Lane::of(&mut request, cx.local.core.inherited_ns(), 0)];
        let lanes = Lanes { list: &mut lane, late: &self.late };
        let batch = Batch::new(self.method, lanes.list, Messages::Lent(request.data()));
        (self.handler)(state, cx, &batch);
        settle(cx, lanes.list);
        match lanes.list.pop().and_then(Lane::into_reply) {
            Some((_, message)) => Handled::now(message),
            None => Handled::later(),
        }
    }
}

fn cancels_received(cx: &Context<'_>) -> u64 {
    cx.local.core.counters().cancels_received
}

/// Answers requests that the handler has left.
#[inline]
fn settle(cx: &mut Context<'_>, lanes: &[Lane]) {
    for lane in lanes.iter().filter(|lane| !lane.is_answered()) {
        drop(lane.begin());
        cx.respond_error(
            *lane.handle(),
            Status::Internal,
            "the handler did not answer the request",
        );
    }
}

impl fmt::Debug for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gather(method {}, {} requests)", self.method, self.lanes.len())
    }
}

/// The batches of an endpoint that have requests.
#[derive(Clone, Debug, Default)]
pub(in crate::endpoint) struct Gathered(Rc<RefCell<Vec<Rc<RefCell<Gather>>>>>);

impl Gathered {
    #[inline]
    pub(in crate::endpoint) fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Removes a batch, to run it.
    pub(super) fn pop(&self) -> Option<Rc<RefCell<Gather>>> {
        self.0.borrow_mut().pop()
    }

    /// Returns the handler of single requests for a method with this batched handler.
    pub(in crate::endpoint) fn handler(
        &self,
        method: u16,
        late: Rc<LateAnswers>,
        handler: impl FnMut(State<'_>, &mut Context<'_>, &Batch<'_>) + 'static,
    ) -> Box<dyn Handle> {
        let gather = Gather::new(method, late, Box::new(handler));
        Box::new(PutAside { gathered: self.clone(), gather: Rc::new(RefCell::new(gather)) })
    }
}

/// The handler of single requests for a batched method: puts them aside.
struct PutAside {
    gathered: Gathered,
    gather: Rc<RefCell<Gather>>,
}

impl Handle for PutAside {
    #[inline]
    fn handle(&mut self, state: State<'_>, cx: &mut Context<'_>, request: Request<'_>) -> Handled {
        let gather = &mut *self.gather.borrow_mut();
        if request.data().len() > COPIED_BYTES_MAX {
            return gather.run_alone(state, cx, request);
        }
        if gather.lanes.len() == LANES_MAX {
            gather.run_full(state, cx);
        } else if gather.lanes.is_empty() {
            self.gathered.0.borrow_mut().push(Rc::clone(&self.gather));
        }
        gather.add(cx, request);
        Handled::later()
    }
}
