//! Continuations: what runs when a call ends.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};

use petrel_proto::{CallFailure, Completion, PlainCompletion, SessionId};

use super::context::{Context, Local};
use super::state::State;
use crate::error::Error;
use crate::events;
use crate::local::Key;
use crate::msgbuf::MsgBuf;

/// The end of a call, as its continuation gets it.
#[derive(Debug)]
pub struct Reply {
    /// The session on which the call was made: for the call of a [`Client`](crate::Client) that of its last attempt, and a name
    /// of no session if no server could be asked.
    pub session: SessionId,
    /// Whether it succeeded.
    pub outcome: Result<(), Error>,
    /// The request, as it was given.
    pub request: MsgBuf,
    /// The response; empty if the call failed.
    pub response: MsgBuf,
}

impl Reply {
    /// The response, or why there is none.
    ///
    /// # Errors
    /// The call's failure.
    pub fn message(&self) -> Result<&[u8], &Error> {
        match &self.outcome {
            Ok(()) => Ok(&self.response),
            Err(failure) => Err(failure),
        }
    }

    /// Empties the request's buffer, which only refers to a message that others send too.
    pub(super) fn release_request(&mut self) {
        self.request.release();
    }

    /// The response's buffer, or why there is none.
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

/// What runs when a call ends. It travels with the call, so that it needs no table of its own: a closure of up to
/// two words as it is, a larger one in a box.
pub struct Continuation {
    kind: &'static Kind,
    /// The closure, or the box that holds it: the kind reads or drops it, once.
    words: Words,
    /// A closure stays on its thread.
    not_send: PhantomData<*mut ()>,
}

/// How continuations of one type run, and how they are dropped.
struct Kind {
    run: unsafe fn(Words, State<'_>, &mut Context<'_>, Reply),
    drop: unsafe fn(Words),
}

impl Kind {
    const fn of_closure<S: 'static, F>() -> &'static Self
    where
        F: FnOnce(&mut S, &mut Context<'_, S>, Reply) + 'static,
    {
        &const { Self { run: run_closure::<S, F>, drop: drop_words::<F> } }
    }
}

/// Room for a closure.
type Words = [MaybeUninit<usize>; 2];

/// A continuation of the library's own, and a number for it. It leaves the state alone, or knows the type.
pub(super) type Function = fn(State<'_>, &mut Context<'_>, Reply, u64);

type Boxed = Box<dyn FnOnce(State<'_>, &mut Context<'_>, Reply)>;

/// Whether a closure fits into [`Words`].
const fn fits<F>() -> bool {
    size_of::<F>() <= size_of::<Words>() && align_of::<F>() <= align_of::<Words>()
}

/// Puts a value that fits into words.
#[inline(always)]
fn to_words<F>(value: F) -> Words {
    assert!(fits::<F>(), "the value is larger than two words");
    let mut words = [MaybeUninit::uninit(); 2];
    // SAFETY: the words are as large and as aligned as the value needs.
    unsafe { words.as_mut_ptr().cast::<F>().write(value) };
    words
}

/// # Safety
/// The words are from [`to_words`] of this type, and are used once.
#[inline(always)]
unsafe fn from_words<F>(words: &Words) -> F {
    // SAFETY: by the caller's promise.
    unsafe { words.as_ptr().cast::<F>().read() }
}

/// Names a call, to cancel it by.
#[derive(Clone, Copy, Debug)]
pub struct CallKey(pub(super) Named);

/// A call, by its name.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named {
    OnSession(OnSession),
    OfClient(Key),
}

/// A call on a session, by its continuation.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnSession {
    pub(super) session: SessionId,
    pub(super) function: Function,
    pub(super) tag: u64,
}

impl CallKey {
    pub(super) fn on_session(session: SessionId, function: Function, tag: u64) -> Self {
        Self(Named::OnSession(OnSession { session, function, tag }))
    }

    pub(super) fn of_client(call: Key) -> Self {
        Self(Named::OfClient(call))
    }
}

impl Continuation {
    #[inline(always)]
    pub(super) fn new<S: 'static, F>(continuation: F) -> Self
    where
        F: FnOnce(&mut S, &mut Context<'_, S>, Reply) + 'static,
    {
        if fits::<F>() {
            Self::of(Kind::of_closure::<S, F>(), to_words(continuation))
        } else {
            // A box of a closure is a closure, too, and of one word.
            Self::of(Kind::of_closure::<S, Box<F>>(), to_words(Box::new(continuation)))
        }
    }

    #[inline]
    pub(super) fn function(function: Function, tag: u64) -> Self {
        Self::of(&FUNCTION, to_words((function, tag)))
    }

    #[inline(always)]
    fn of(kind: &'static Kind, words: Words) -> Self {
        Self { kind, words, not_send: PhantomData }
    }

    /// Whether it is that of the call which the key names. A function is compared by the address that was
    /// given with the call.
    pub(super) fn is(&self, key: &OnSession) -> bool {
        self.as_function().is_some_and(|(function, tag)| {
            std::ptr::fn_addr_eq(function, key.function) && tag == key.tag
        })
    }

    fn as_function(&self) -> Option<(Function, u64)> {
        let is_function = std::ptr::eq(self.kind, &raw const FUNCTION);
        // SAFETY: the words are a function and its number, which may be copied.
        is_function.then(|| unsafe { from_words(&self.words) })
    }

    #[inline(always)]
    pub(super) fn run(self, state: State<'_>, cx: &mut Context<'_>, reply: Reply) {
        let this = ManuallyDrop::new(self);
        // SAFETY: the words are those that came with the kind, and nothing else reads them: `this` is not dropped.
        unsafe { (this.kind.run)(this.words, state, cx, reply) }
    }
}

impl Drop for Continuation {
    fn drop(&mut self) {
        // SAFETY: the words are those that came with the kind. They have not been read: `run` drops nothing.
        unsafe { (self.kind.drop)(self.words) }
    }
}

/// That of all functions: one place, by which they are known.
static FUNCTION: Kind = Kind { run: run_function, drop: drop_words::<(Function, u64)> };

/// # Safety
/// The words are of this type, and nothing reads them again. The state is an `S`.
unsafe fn run_closure<S: 'static, F>(
    words: Words,
    state: State<'_>,
    cx: &mut Context<'_>,
    reply: Reply,
) where
    F: FnOnce(&mut S, &mut Context<'_, S>, Reply) + 'static,
{
    // SAFETY: by the caller's promise.
    let (continuation, state) = unsafe { (from_words::<F>(&words), state.get::<S>()) };
    continuation(state, cx.typed(), reply);
}

/// # Safety
/// The words are a function and its number.
unsafe fn run_function(words: Words, state: State<'_>, cx: &mut Context<'_>, reply: Reply) {
    // SAFETY: by the caller's promise.
    let (function, tag) = unsafe { from_words::<(Function, u64)>(&words) };
    function(state, cx, reply, tag);
}

/// # Safety
/// The words are of this type, and nothing reads them again.
unsafe fn drop_words<F>(words: Words) {
    // SAFETY: by the caller's promise.
    drop(unsafe { from_words::<F>(&words) });
}

/// Runs the continuation of a call that has ended as most do. It inherited nothing.
#[inline]
pub(super) fn run_continuation(
    state: State<'_>,
    cx: &mut Context<'_>,
    ended: PlainCompletion<MsgBuf, Continuation>,
) {
    let PlainCompletion { session, tag, request, response } = ended;
    tag.run(state, cx, Reply { session, outcome: Ok(()), request, response });
}

/// Runs the continuation of a call that has ended, under the deadline that the call inherited.
#[inline(never)]
pub(super) fn run_under_deadline(
    state: State<'_>,
    cx: &mut Context<'_>,
    ended: Completion<MsgBuf, Continuation>,
) {
    let Completion { session, tag, outcome, request, response, inherited_ns } = ended;
    if let Err(failure) = &outcome {
        note_failure(cx.local, session, failure);
    }
    let outcome = outcome.map_err(Error::from);
    let reply = Reply { session, outcome, request, response };
    cx.under_deadline(inherited_ns, |cx| tag.run(state, cx, reply));
}

#[cold]
fn note_failure(local: &mut Local, session: SessionId, failure: &CallFailure) {
    local.remote.failures.count(failure);
    events::call_failed(session, failure);
}

/// Continuations of calls that can be cancelled, by the number that their calls carry: one that is asked
/// after a call has ended must not find another.
#[derive(Default)]
pub(super) struct Keyed {
    waiting: HashMap<u64, Boxed>,
    next: u64,
}

impl Keyed {
    pub(super) fn add(
        &mut self,
        continuation: impl FnOnce(State<'_>, &mut Context<'_>, Reply) + 'static,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, Box::new(continuation));
        number
    }

    /// The call with this continuation was not taken.
    pub(super) fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
    }
}

/// The function of calls whose continuation is in [`Keyed`].
pub(super) fn run_keyed(state: State<'_>, cx: &mut Context<'_>, reply: Reply, number: u64) {
    if let Some(continuation) = cx.local.keyed.waiting.remove(&number) {
        continuation(state, cx, reply);
    }
}
