//! The event loop of a [`Background`](super::Background)'s endpoint: run by its thread, or by the caller of the only outstanding call.
//!
//! | situation | the event loop is run by |
//! | --- | --- |
//! | a thread makes one call after another, and no other call is outstanding | the caller, until its response has come |
//! | a task of an executor does so | the same, for 20 µs at most: other tasks wait for its thread |
//! | several calls are outstanding | the endpoint's thread, or a caller that drives already, until its own call has ended |
//! | no call for a millisecond | the endpoint's thread, which then sleeps |
//! | after the first [`Client::spawn`](super::Client::spawn) | the endpoint's thread |
//!
//! While callers drive, the endpoint's thread looks once a millisecond whether they still do; messages of other threads and of the
//! control plane wake it at once.

use std::cell::Cell;
use std::time::Duration;

use petrel_transport::wake::Waker;

use super::baton::{Baton, Held};
use super::look;
use super::park::InLoop;
use super::places::Places;
use crate::Endpoint;
use crate::endpoint::Stop;
use crate::sync::now_ns;

/// The endpoint's thread takes the endpoint back when no caller has taken it for this long.
const ABSENT: Duration = Duration::from_millis(1);

/// A caller asks for the endpoint after so many calls in a row that were alone: calls of two threads in turn stay with the endpoint's
/// thread.
const ALONE_CALLS: u32 = 8;

std::thread_local! {
    /// The calls of this thread in a row that were alone, and when the last one began.
    static ALONE: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// An endpoint, and those who run its event loop.
pub(super) struct Driver {
    baton: Baton<Endpoint>,
    stop: Stop,
    waker: Waker,
}

/// A caller that runs the event loop.
pub(super) struct Driving<'a> {
    driver: &'a Driver,
    held: Held<'a, Endpoint>,
    /// The longest time, if other tasks need the thread.
    limit_ns: Option<u64>,
}

impl Driver {
    /// Creates the driver of an endpoint on its thread.
    pub(super) fn new(endpoint: Endpoint) -> Self {
        let (stop, waker) = (endpoint.stop_handle(), endpoint.waker());
        Self { baton: Baton::new(endpoint), stop, waker }
    }

    /// Returns the handle that ends the event loop.
    pub(super) fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Runs the event loop on the endpoint's thread, until it is stopped.
    pub(super) fn run(&self) {
        let _running = InLoop::enter();
        let _end = Ending(self);
        while !self.stop.is_requested() {
            // SAFETY: on the endpoint's thread, which holds the endpoint; the reference ends before the thread gives it.
            let endpoint = unsafe { self.baton.held() };
            endpoint.turn();
            if !self.baton.is_asked() || !self.prepares(endpoint) {
                continue;
            }
            self.baton.give();
            if !self.stand_by() {
                break;
            }
            // SAFETY: the thread has taken the endpoint back, and has no other reference.
            unsafe { self.baton.held() }.resume();
        }
    }

    /// Answers callers that have asked for the endpoint. Returns true if it is ready for them: no call is outstanding, and no message
    /// waits.
    #[cold]
    fn prepares(&self, endpoint: &mut Endpoint) -> bool {
        if endpoint.is_bound() {
            self.baton.clear_request();
            return false;
        }
        if endpoint.is_needed() {
            return false;
        }
        let is_ready = endpoint.may_rest_now() && !endpoint.is_needed();
        match is_ready {
            true => self.baton.clear_request(),
            false => endpoint.resume(),
        }
        is_ready
    }

    /// Waits while callers take the endpoint, and takes it back. Returns false if a caller has panicked in the event loop.
    fn stand_by(&self) -> bool {
        let mut seen = self.baton.taken();
        loop {
            let is_called = self.waker.wait(ABSENT);
            let taken = self.baton.taken();
            let are_absent = std::mem::replace(&mut seen, taken) == taken;
            if is_called || are_absent {
                if let Some(is_sound) = self.baton.try_take_back() {
                    return is_sound;
                }
                if is_called {
                    self.baton.park_while_taken();
                }
            }
        }
    }

    /// Makes this thread run the event loop for a call that is about to begin, if no call is outstanding, and no other thread runs
    /// the event loop.
    pub(super) fn try_drive(&self, places: &Places, limit_ns: Option<u64>) -> Option<Driving<'_>> {
        if !places.are_all_free() || limit_ns.is_some() && !look::is_worth_it() {
            return None;
        }
        let held = self.baton.try_take()?;
        held.resume();
        Some(Driving { driver: self, held, limit_ns })
    }

    /// Notes the begin of a call that is alone and was posted. After several, asks for the endpoint.
    pub(super) fn note_alone(&self) {
        let (calls, last_ns) = ALONE.get();
        let begin_ns = now_ns();
        let is_soon = begin_ns.saturating_sub(last_ns) < ABSENT.as_nanos() as u64;
        let calls = if is_soon { calls + 1 } else { 0 };
        let asks = calls >= ALONE_CALLS && self.baton.ask();
        ALONE.set((if asks { 0 } else { calls }, begin_ns));
    }
}

/// Ends the endpoint when its thread leaves the event loop, also by a panic.
struct Ending<'a>(&'a Driver);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        drop(self.0.baton.end());
    }
}

impl Driving<'_> {
    /// Runs the event loop until the wait is over, or others need the endpoint's thread or this one.
    pub(super) fn run(mut self, is_over: impl Fn() -> bool) {
        let _running = InLoop::enter();
        let end_ns = self.limit_ns.map(|limit_ns| now_ns().saturating_add(limit_ns));
        loop {
            self.held.turn_until(end_ns);
            let has_ended = is_over();
            let is_late = end_ns.is_some_and(|end_ns| now_ns() >= end_ns);
            if has_ended || is_late {
                if end_ns.is_some() {
                    look::record(has_ended);
                }
                return;
            }
            if self.driver.stop.is_requested() || self.held.wants_thread() {
                return;
            }
        }
    }
}

impl Drop for Driving<'_> {
    /// Leaves the event loop, and wakes the endpoint's thread if others wait for a turn.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.driver.waker.wake();
        }
        // Messages that came meanwhile.
        while !self.held.may_rest() {
            self.held.run_once();
        }
        if self.held.is_needed() || self.driver.stop.is_requested() {
            // The thread finds the endpoint taken, and waits until this caller has left.
            self.driver.waker.wake();
        }
    }
}
