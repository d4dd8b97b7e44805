//! Continuations: the code that runs when a call ends.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};

use petrel_planted::planted;
use petrel_proto::{CallFailure, Completion, PlainCompletion, SessionId};

use super::{Context, Local};
use crate::error::Error;
use crate::events;
use crate::local::Key;
use crate::msgbuf::MsgBuf;
use crate::panics::{Closure, catch};
use crate::values::State;

/// The outcome of a call, passed to its continuation.
#[derive(Debug)]
pub struct Reply {
    /// The session of the call: for the call of a [`Client`](crate::Client) the session of its last attempt, and an
    /// invalid id if no server was available.
    pub session: SessionId,
    /// Whether the call succeeded.
    pub outcome: Result<(), Error>,
    /// The request, unchanged.
    pub request: MsgBuf,
    /// The response; empty if the call failed.
    pub response: MsgBuf,
}

impl Reply {
    /// Returns the response, or the failure.
    ///
    /// # Errors
    /// The call's failure.
    pub fn message(&self) -> Result<&[u8], &Error> {
        match &self.outcome {
            Ok(()) => Ok(&self.response),
            Err(failure) => Err(failure),
        }
    }

    /// Empties the request's buffer, which only refers to a shared message.
    pub(crate) fn release_request(&mut self) {
        self.request.release();
    }

    /// Returns the response's buffer, or the failure.
    ///
    /// # Errors
    /// The call's failure.
    #[inline]
    pub fn into_response(self) -> Result<MsgBuf, Error> {
        self.outcome.map(|()| self.response)
    }
}

impl From<Completion<MsgBuf, Continuation>> for Reply {
    fn from(ended: Completion<MsgBuf, Continuation>) -> Self {
        let Completion { session, outcome, request, response, .. } = ended;
        Self { session, outcome: outcome.map_err(Error::from), request, response }
    }
}

/// The code to run when a call ends. The call stores it, without a separate table: a closure of up to two words inline,
/// a larger one in a box.
pub struct Continuation {
    kind: &'static Kind,
    /// The closure or its box, read or dropped once by the kind.
    words: Words,
    /// A closure stays on its thread.
    not_send: PhantomData<*mut ()>,
}

/// Runs a continuation. The reply comes in parts, of which the first two are in registers: request, response, outcome and
/// session.
type Run = unsafe fn(
    Word,
    Word,
    State<'_>,
    &mut Context<'_>,
    MsgBuf,
    MsgBuf,
    Result<(), Error>,
    SessionId,
);

/// How to run and how to drop continuations of one type.
struct Kind {
    run: Run,
    drop: unsafe fn(Words),
    /// Finds the calls of the library's own continuations.
    numbered: Option<Numbered>,
}

impl Kind {
    const fn of<K: Stored>() -> &'static Self {
        &const { Self { run: run_words::<K>, drop: drop_words::<K>, numbered: K::NUMBERED } }
    }
}

/// A continuation as it is stored.
trait Stored: 'static {
    const NUMBERED: Option<Numbered>;

    /// # Safety
    /// The state is of the type that the continuation expects.
    unsafe fn run(self, state: State<'_>, cx: &mut Context<'_>, reply: Reply);
}

/// A closure, or its box.
struct Plain<S, F>(F, PhantomData<fn(&mut S)>);

impl<S: 'static, F> Stored for Plain<S, F>
where
    F: FnOnce(&mut S, &mut Context<'_, S>, Reply) + 'static,
{
    const NUMBERED: Option<Numbered> = None;

    #[inline(always)]
    unsafe fn run(self, state: State<'_>, cx: &mut Context<'_>, reply: Reply) {
        // SAFETY: by the caller's promise.
        let state = unsafe { state.get::<S>() };
        if let Err(payload) = catch(|| (self.0)(state, cx.typed(), reply)) {
            cx.local.settle_panic(Closure::Continuation, payload);
        }
    }
}

/// The number of a [`NumberedEnd`].
struct Number<E>(u64, PhantomData<E>);

impl<E: NumberedEnd> Stored for Number<E> {
    const NUMBERED: Option<Numbered> = Some(E::KIND);

    #[inline(always)]
    unsafe fn run(self, state: State<'_>, cx: &mut Context<'_>, reply: Reply) {
        E::end(state, cx, reply, self.0);
    }
}

/// A continuation of the library itself, with a number as its argument. It does not use the state, or knows the type.
pub(crate) trait NumberedEnd: 'static {
    /// No other type has the same kind.
    const KIND: Numbered;

    /// Handles the end of the call with this number.
    fn end(state: State<'_>, cx: &mut Context<'_>, reply: Reply, number: u64);
}

/// The kinds of continuations with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbered {
    /// Of a call in [`Keyed`].
    Keyed,
    /// Of a call that is a future.
    Future,
    /// Ends the first attempt of a client's call.
    FirstAttempt,
    /// Of a hedge.
    Hedge,
}

/// Room for a closure.
type Words = [Word; 2];

/// A half of the words of a closure, passed in a register.
type Word = MaybeUninit<usize>;

type Boxed = Box<dyn FnOnce(State<'_>, &mut Context<'_>, Reply)>;

/// Returns true if a closure fits into [`Words`].
const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Words>() && align_of::<F>() <= align_of::<Words>()
}

/// Stores a fitting value in words.
#[inline(always)]
fn to_words<F>(value: F) -> Words {
    assert!(fits::<F>(), "the value is larger than two words");
    let mut words = [MaybeUninit::uninit(); 2];
    // SAFETY: the words are as large and as aligned as the value needs.
    unsafe { words.as_mut_ptr().cast::<F>().write(value) };
    words
}

/// # Safety
/// `words` come from [`to_words`] of this type, and are used once.
#[inline(always)]
unsafe fn from_words<F>(words: &Words) -> F {
    // SAFETY: by the caller's promise.
    unsafe { words.as_ptr().cast::<F>().read() }
}

/// The key of a call, for cancelling it.
#[derive(Clone, Copy, Debug)]
pub struct CallKey(pub(crate) Named);

/// The name of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    OnSession(OnSession),
    OfClient(Key),
}

/// A call on a session, by its continuation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnSession {
    pub(crate) session: SessionId,
    pub(crate) kind: Numbered,
    pub(crate) number: u64,
}

impl CallKey {
    /// Returns the key of a call on a session with its continuation in [`Keyed`].
    pub(crate) fn on_session(session: SessionId, number: u64) -> Self {
        Self(Named::OnSession(OnSession { session, kind: Numbered::Keyed, number }))
    }

    pub(crate) fn of_client(call: Key) -> Self {
        Self(Named::OfClient(call))
    }
}

impl Continuation {
    #[inline(always)]
    pub(crate) fn new<S: 'static, F>(continuation: F) -> Self
    where
        F: FnOnce(&mut S, &mut Context<'_, S>, Reply) + 'static,
    {
        if fits::<F>() {
            Self::of(Plain(continuation, PhantomData::<fn(&mut S)>))
        } else {
            // A box of a closure is a closure, too, and of one word.
            Self::of(Plain(Box::new(continuation), PhantomData::<fn(&mut S)>))
        }
    }

    #[inline]
    pub(crate) fn numbered<E: NumberedEnd>(number: u64) -> Self {
        Self::of(Number::<E>(number, PhantomData))
    }

    #[inline(always)]
    fn of<K: Stored>(stored: K) -> Self {
        Self { kind: Kind::of::<K>(), words: to_words(stored), not_send: PhantomData }
    }

    /// Returns true if this is the continuation of the call named by the key.
    pub(crate) fn is(&self, key: &OnSession) -> bool {
        // SAFETY: the words of a continuation with a number hold the number, which is `Copy`.
        let number = || unsafe { from_words::<u64>(&self.words) };
        self.kind.numbered == Some(key.kind) && number() == key.number
    }

    #[inline(always)]
    pub(crate) fn run(self, state: State<'_>, cx: &mut Context<'_>, reply: Reply) {
        let this = ManuallyDrop::new(self);
        let [first, second] = this.words;
        let Reply { session, outcome, request, response } = reply;
        // SAFETY: the words belong to the kind, and nothing else reads them: `this` is not dropped.
        unsafe { (this.kind.run)(first, second, state, cx, request, response, outcome, session) }
    }
}

impl Drop for Continuation {
    fn drop(&mut self) {
        // SAFETY: the words belong to the kind. They were not read: `run` drops nothing.
        unsafe { (self.kind.drop)(self.words) }
    }
}

/// # Safety
/// The words are of this type, and nothing reads them again. The state is of the type that the continuation expects.
#[expect(clippy::too_many_arguments, reason = "a reply as one value would be passed in memory")]
unsafe fn run_words<K: Stored>(
    first: Word,
    second: Word,
    state: State<'_>,
    cx: &mut Context<'_>,
    request: MsgBuf,
    response: MsgBuf,
    outcome: Result<(), Error>,
    session: SessionId,
) {
    let reply = Reply { session, outcome, request, response };
    // SAFETY: by the caller's promise.
    unsafe { from_words::<K>(&[first, second]).run(state, cx, reply) };
}

/// # Safety
/// The words are of this type, and nothing reads them again.
unsafe fn drop_words<F>(words: Words) {
    // SAFETY: by the caller's promise.
    drop(unsafe { from_words::<F>(&words) });
}

/// Runs the continuation of a call that ended on the fast path, without an inherited deadline.
#[inline]
pub(crate) fn run_continuation(
    state: State<'_>,
    cx: &mut Context<'_>,
    ended: PlainCompletion<MsgBuf, Continuation>,
) {
    let PlainCompletion { session, tag, request, response } = ended;
    tag.run(state, cx, Reply { session, outcome: Ok(()), request, response });
}

/// Runs the continuation of a call that has ended, under the call's inherited deadline.
#[inline(never)]
pub(crate) fn run_under_deadline(
    state: State<'_>,
    cx: &mut Context<'_>,
    ended: Completion<MsgBuf, Continuation>,
) {
    let Completion { session, tag, outcome, request, response, inherited_ns } = ended;
    if let Err(failure) = &outcome {
        record_failure(cx.local, session, failure, &request);
    }
    let outcome = outcome.map_err(Error::from);
    let reply = Reply { session, outcome, request, response };
    cx.under_deadline(inherited_ns, |cx| tag.run(state, cx, reply));
}

#[cold]
#[inline(never)]
fn record_failure(local: &mut Local, session: SessionId, failure: &CallFailure, request: &MsgBuf) {
    if !planted("endpoint_failure_is_not_awaited") {
        request.await_reads(&local.pool);
    }
    local.remote.count_failure(failure);
    events::call_failed(session, failure);
}

/// Continuations of cancellable calls, by the number carried in the call: a late cancellation must not find another
/// call.
#[derive(Default)]
pub(crate) struct Keyed {
    waiting: HashMap<u64, Boxed>,
    next: u64,
}

impl Keyed {
    pub(crate) fn add(
        &mut self,
        continuation: impl FnOnce(State<'_>, &mut Context<'_>, Reply) + 'static,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let before = self.waiting.insert(number, Box::new(continuation));
        assert!(before.is_none(), "a continuation has a number of its own");
        number
    }

    /// Removes the continuation of a rejected call.
    pub(crate) fn forget(&mut self, number: u64) {
        let rejected = self.waiting.remove(&number);
        assert!(rejected.is_some(), "a rejected call has not ended");
    }
}

/// The end of calls with their continuation in [`Keyed`].
pub(crate) struct KeyedEnd;

impl NumberedEnd for KeyedEnd {
    const KIND: Numbered = Numbered::Keyed;

    fn end(state: State<'_>, cx: &mut Context<'_>, reply: Reply, number: u64) {
        let Some(continuation) = cx.local.keyed.waiting.remove(&number) else { return };
        if let Err(payload) = catch(|| continuation(state, cx, reply)) {
            cx.local.settle_panic(Closure::Continuation, payload);
        }
    }
}
