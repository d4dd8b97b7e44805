//! Large reads, copied piece by piece over several turns of the event loop: a turn copies a bounded number of bytes, and serves the
//! other requests of the endpoint in between.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};

use petrel_planted::planted;
use petrel_proto::Status;
use petrel_transport::words::WORD_BYTES;

use crate::endpoint::{Context, Handled, Request, Responder, Watcher};
use crate::error::Error;
use crate::local::Hub;
use crate::msgbuf::MsgBuf;
use crate::region_memory::registry::{View, ViewState, find_to_read};
use crate::region_memory::wire::{Header, Refusal};
use crate::sync::Arc;
use crate::values::State;

/// Bytes that all larger reads of a turn copy: about 50 µs.
pub(super) const TURN_BYTES: usize = 256 << 10;

/// Reads up to this part of the bytes of a turn are not counted: a burst of them copies less than a turn may.
const SMALL_PART: usize = 64;

/// The most copies of a versioned value that writers change meanwhile.
const TRIES: u32 = 8;

/// Reads in progress that have memory for their answers; further reads wait without memory.
const ACTIVE_MAX: usize = 4;

/// The reads of an endpoint that go on in later turns.
pub(super) struct Copier {
    view: Arc<View>,
    hub: Rc<Hub>,
    jobs: RefCell<VecDeque<Job>>,
    next_id: Cell<u64>,
    is_running: Cell<bool>,
    /// The bytes of a turn, and the largest read that is not counted.
    turn_bytes: usize,
    small_bytes: usize,
    /// The turn, by its time, and the bytes that it may still copy.
    turn_ns: Cell<u64>,
    left: Cell<usize>,
}

/// The ranges that a read copies.
pub(super) struct Plan {
    pieces: Vec<Header>,
    bytes: usize,
    /// The place of the version in front of the value, and how often the value may be copied.
    version: Option<(Header, u32)>,
}

impl Plan {
    /// Copies pieces one after the other.
    pub(super) fn of_pieces(pieces: impl Iterator<Item = Header>) -> Self {
        let pieces: Vec<_> = pieces.collect();
        let bytes = pieces.iter().map(|piece| piece.len() as usize).sum();
        Self { pieces, bytes, version: None }
    }

    /// Copies a value behind its version.
    pub(super) fn of_versioned(value: Header) -> Self {
        let bytes = WORD_BYTES as usize + value.len() as usize;
        let version = Some((value.part(0, WORD_BYTES as u32), TRIES));
        Self { pieces: vec![value.part(WORD_BYTES, value.len())], bytes, version }
    }
}

/// A read in progress.
struct Job {
    id: u64,
    responder: Responder,
    plan: Plan,
    /// The answer, once the read has begun, and its bytes so far.
    message: Option<MsgBuf>,
    done: usize,
    /// The version at the beginning of the present copy.
    began_at: u64,
}

/// The outcome of a step.
enum Step {
    Copied(usize),
    /// The value is being written: the next turn copies it again.
    Again,
    Ended(Result<MsgBuf, Error>),
}

impl Copier {
    pub(super) fn new(view: Arc<View>, hub: Rc<Hub>, turn_bytes: usize) -> Self {
        assert!(turn_bytes > 0, "a read goes on in each turn");
        Self {
            view,
            hub,
            turn_bytes,
            small_bytes: turn_bytes / SMALL_PART,
            jobs: RefCell::default(),
            next_id: Cell::new(0),
            is_running: Cell::new(false),
            turn_ns: Cell::new(0),
            left: Cell::new(0),
        }
    }

    /// Returns true if a read of this size is copied at once, and counts its bytes.
    #[inline]
    pub(super) fn allows(&self, now_ns: u64, bytes: usize) -> bool {
        bytes <= self.small_bytes || self.allows_large(now_ns, bytes)
    }

    #[inline(never)]
    fn allows_large(&self, now_ns: u64, bytes: usize) -> bool {
        self.begin_turn(now_ns);
        let is_next = self.jobs.borrow().is_empty() && bytes <= self.left.get();
        if is_next {
            self.left.set(self.left.get() - bytes);
        }
        is_next
    }

    fn begin_turn(&self, now_ns: u64) {
        if self.turn_ns.replace(now_ns) != now_ns {
            self.left.set(self.turn_bytes);
        }
    }

    /// Lets later turns execute a read whose ranges were checked.
    pub(super) fn defer(
        self: &Rc<Self>,
        cx: &mut Context<'_>,
        request: Request<'_>,
        plan: Plan,
    ) -> Handled {
        let (responder, handled) = request.defer(cx);
        let id = self.next_id.replace(self.next_id.get() + 1);
        let copier = Rc::clone(self);
        let forget = move |_: State<'_>, _: &mut Context<'_>| copier.forget(id);
        cx.watch(responder.handle(), Watcher::Run(Box::new(forget)));
        let job = Job { id, responder, plan, message: None, done: 0, began_at: 0 };
        self.jobs.borrow_mut().push_back(job);
        if !self.is_running.replace(true) {
            self.hub.spawn_unwatched(Running(Rc::clone(self)));
        }
        handled
    }

    /// Drops a read whose caller has stopped waiting.
    fn forget(&self, id: u64) {
        let mut jobs = self.jobs.borrow_mut();
        let forgotten = jobs.iter().position(|job| job.id == id).and_then(|at| jobs.remove(at));
        drop(jobs);
        drop(forgotten);
    }

    /// Copies the bytes of this turn. Returns false when no read is left.
    fn run(&self) -> bool {
        self.begin_turn(self.hub.now_ns());
        let mut jobs = self.jobs.borrow_mut();
        while let Some(job) = jobs.front_mut() {
            let left = self.left.get();
            if left == 0 {
                return true;
            }
            match job.step(&self.view, &self.hub, left) {
                Step::Copied(bytes) => self.left.set(left - bytes),
                Step::Again => self.left.set(0),
                Step::Ended(outcome) => {
                    let ended = jobs.pop_front().expect("a read that ends was the next");
                    ended.responder.answer_later(outcome);
                    continue;
                }
            }
            // The reads take turns: none waits for a longer one.
            let active = jobs.len().min(ACTIVE_MAX);
            jobs.make_contiguous()[..active].rotate_left(1);
        }
        self.is_running.set(planted("region_copier_runs_once"));
        false
    }
}

impl Job {
    /// Copies up to `most` bytes. Between steps the region may be revoked, and the read is then refused.
    fn step(&mut self, view: &View, hub: &Hub, most: usize) -> Step {
        if self.message.is_none() {
            match MsgBuf::from_pool(hub.pool(), self.plan.bytes) {
                Ok(mut message) => {
                    message.set_len(self.plan.bytes);
                    self.message = Some(message);
                }
                Err(error) => return Step::Ended(Err(error.into())),
            }
        }
        let state = &mut *view.lock();
        let copied = match self.check_version(state) {
            Ok(true) => self.copy_more(state, most),
            Ok(false) => return Step::Again,
            Err(refusal) => Err(refusal),
        };
        match copied {
            Ok(0) => {
                let bytes: u64 = self.plan.pieces.iter().map(|piece| u64::from(piece.len())).sum();
                state.stats.count_reads(self.plan.pieces.len() as u64, bytes);
                Step::Ended(Ok(self.message.take().expect("a read that ends has its answer")))
            }
            Ok(bytes) => {
                self.done += bytes;
                Step::Copied(bytes)
            }
            Err(refusal) => {
                state.stats.refused += 1;
                Step::Ended(Err(Error::new(refusal.status(), refusal.why())))
            }
        }
    }

    /// Returns false if a writer has changed a versioned value since the copy began: the copy then begins again.
    fn check_version(&mut self, state: &ViewState) -> Result<bool, Refusal> {
        let Some((version, tries)) = &mut self.plan.version else { return Ok(true) };
        if versioned(state, version, &mut self.began_at, self.done == 0)? {
            return Ok(true);
        }
        if !planted("region_second_copy_goes_on") {
            self.done = 0;
        }
        *tries -= 1;
        if *tries > 0 {
            return Ok(false);
        }
        Err(Refusal::new(Status::Aborted, "the value was being written all the time"))
    }

    /// Copies up to `most` bytes, behind the version of a versioned value. At the end writes the version, and returns
    /// 0.
    fn copy_more(&mut self, state: &ViewState, most: usize) -> Result<usize, Refusal> {
        let to = self.message.as_mut().expect("a copy has memory").storage_mut();
        let head = if self.plan.version.is_some() { WORD_BYTES as usize } else { 0 };
        let bytes = copy(state, &self.plan.pieces, self.done, &mut to[head + self.done..], most)?;
        if bytes == 0 {
            to[..head].copy_from_slice(&self.began_at.to_le_bytes()[..head]);
        }
        Ok(bytes)
    }
}

/// Copies the next bytes of pieces, of which `done` were copied, within one piece; 0 behind the last.
fn copy(
    state: &ViewState,
    pieces: &[Header],
    done: usize,
    to: &mut [u8],
    most: usize,
) -> Result<usize, Refusal> {
    let mut before = 0;
    for piece in pieces {
        let len = piece.len() as usize;
        if done < before + len {
            let at = done - before;
            let bytes = (len - at).min(most);
            find_to_read(&state.entries, &piece.part(at as u64, bytes as u32))?
                .read(&mut to[..bytes]);
            return Ok(bytes);
        }
        before += len;
    }
    Ok(0)
}

/// Reads the version of a value: notes it at the beginning of a copy, and compares it afterwards. Returns false if a writer has interfered.
fn versioned(
    state: &ViewState,
    place: &Header,
    began_at: &mut u64,
    begins: bool,
) -> Result<bool, Refusal> {
    let mut word = [0; WORD_BYTES as usize];
    find_to_read(&state.entries, place)?.read(&mut word);
    let version = u64::from_le_bytes(word);
    if begins {
        *began_at = version;
        return Ok(version.is_multiple_of(2));
    }
    Ok(version == *began_at)
}

/// The task that copies, a step each turn.
struct Running(Rc<Copier>);

impl Future for Running {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.0.run() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}
