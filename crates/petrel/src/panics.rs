//! Panics of the application's closures: each ends its call, and the event loop goes on.
//!
//! A closure is caught where the library calls it, so no panic unwinds through a transport or through the core. A panic changes nothing
//! there: neither is in the middle of a step while a closure runs. The application's state stays as the closure left it.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;

use petrel_proto::{Execution, Status};

use crate::error::Error;
use crate::events;

/// The panics of the application's closures that end the event loop, by unwinding to the caller of the loop. Further panics end a call or task.
///
/// An async handler is a handler, too. A panic that is caught has been printed by the panic hook. It is counted
/// ([`EndpointStats::panics`](crate::endpoint::EndpointStats::panics)), and reported as an event. The state keeps the changes made before the panic.
/// Handlers may check an inconsistent state; or choose [`PanicPolicy::Unwind`], and start anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PanicPolicy {
    /// Each panic ends the event loop. With a [`Server`](crate::Server), it ends all threads of the server.
    Unwind,
    /// A panic in a handler ends its call with INTERNAL. Panics in continuations and tasks end the event loop: the caller of the loop has
    /// started them. The default of an endpoint.
    #[default]
    Handlers,
    /// A panic in a handler ends the call with INTERNAL, and a panic in a continuation or task ends only the closure. A responder inside is
    /// dropped, and the drop ends the call with INTERNAL. The default of a [`Server`](crate::Server).
    All,
}

/// A caught panic.
pub(crate) type PanicPayload = Box<dyn Any + Send>;

/// The kinds of closures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closure {
    Handler,
    Continuation,
    Task,
}

/// The panics of an endpoint.
#[derive(Debug)]
pub(crate) struct Panics {
    policy: PanicPolicy,
    caught: Cell<u64>,
}

impl Panics {
    pub(crate) fn new(policy: PanicPolicy) -> Rc<Self> {
        Rc::new(Self { policy, caught: Cell::new(0) })
    }

    pub(crate) fn caught(&self) -> u64 {
        self.caught.get()
    }

    /// Runs a closure. Returns `None` after a panic that ends only the closure.
    #[inline(always)]
    pub(crate) fn contain<R>(&self, of: Closure, run: impl FnOnce() -> R) -> Option<R> {
        catch(run).map_err(|payload| self.settle(of, payload)).ok()
    }

    /// Counts and reports a panic, or lets it unwind further.
    #[cold]
    pub(crate) fn settle(&self, of: Closure, payload: PanicPayload) {
        let is_caught = match self.policy {
            PanicPolicy::Unwind => false,
            PanicPolicy::Handlers => of == Closure::Handler,
            PanicPolicy::All => true,
        };
        if !is_caught {
            panic::resume_unwind(payload);
        }
        self.caught.set(self.caught.get() + 1);
        events::panic_caught(of.name(), text_of(&*payload));
        discard(payload);
    }
}

/// Drops a payload, a value of the application whose drop could panic again.
#[cold]
pub(crate) fn discard(payload: PanicPayload) {
    if let Err(again) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(again);
    }
}

/// Runs a codec or an interceptor of the application for a call. A panic is the call's INTERNAL.
#[inline(always)]
pub(crate) fn in_call<R>(
    name: &str,
    execution: Execution,
    run: impl FnOnce() -> R,
) -> Result<R, Error> {
    catch(run).map_err(|payload| panicked(name, execution, payload))
}

#[cold]
pub(crate) fn panicked(name: &str, execution: Execution, payload: PanicPayload) -> Error {
    let text = format!("{name} panicked: {}", text_of(&*payload));
    discard(payload);
    Error::of(Status::Internal, text, execution)
}

impl Closure {
    fn name(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::Continuation => "continuation",
            Self::Task => "task",
        }
    }
}

/// Runs a closure of the application.
#[inline(always)]
pub(crate) fn catch<R>(run: impl FnOnce() -> R) -> Result<R, PanicPayload> {
    // A model checker reports by panics, and unwinds the threads of a failed schedule.
    if cfg!(shuttle) {
        return Ok(run());
    }
    // The state is the application's, by the rules of `PanicPolicy`.
    panic::catch_unwind(AssertUnwindSafe(run))
}

fn text_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
