//! Threads that call.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use petrel::{CallOptions, NotStarted, RemoteCall, SessionClient, model};
use shuttle::future::block_on;
use shuttle::thread;

use crate::ledger::{ANSWER_BYTES_MAX, CallId, Ledger, Method, count};
use crate::rng::Rng;
use crate::spec::Spec;

pub(crate) struct Caller {
    spec: Spec,
    rng: Rng,
    client: SessionClient,
    ledger: Arc<Ledger>,
}

/// A call that is to be made.
struct Wanted {
    id: CallId,
    method: u16,
    request: Vec<u8>,
    options: CallOptions,
}

impl Caller {
    pub(crate) fn new(
        spec: &Spec,
        number: usize,
        client: SessionClient,
        ledger: &Arc<Ledger>,
    ) -> Self {
        let rng = Rng::new(spec.seed.rotate_left(20) ^ (number as u64 + 1));
        Self { spec: *spec, rng, client, ledger: Arc::clone(ledger) }
    }

    pub(crate) fn run(mut self) {
        for _ in 0..self.spec.acts {
            self.act();
        }
    }

    fn act(&mut self) {
        match self.rng.below(9) {
            0 | 1 => self.call_and_wait(),
            2 => self.start_one(),
            3 => self.start_many(),
            4 => self.keep_a_window(),
            5 => self.reserve(),
            6 => self.await_calls(),
            7 => self.look_again(),
            _ => self.leave_the_queue(),
        }
    }

    fn draw(&mut self) -> Wanted {
        let mut method = self.rng.pick(&Method::TIMELESS);
        if !self.spec.is_calm && self.rng.once_in(4) {
            method = Method::Sleep;
        }
        if self.spec.may_drop_own_pool && self.rng.once_in(6) {
            method = Method::DropPool;
        }
        let mut options = CallOptions::new();
        let mut deadline_ns = None;
        if !self.spec.is_calm && self.rng.once_in(2) {
            let span_ns = self.rng.pick(&[0, 1_000, 20_000, 100_000, 10_000_000]);
            deadline_ns = Some(model::now_ns() + span_ns);
            options = match self.rng.once_in(2) {
                true => options.timeout(Duration::from_nanos(span_ns)),
                false => options.deadline_ns(model::now_ns() + span_ns),
            };
        }
        let filling = self.rng.pick(&[0, 10, 60, 120, 4_000]);
        let id = self.ledger.begin(method, deadline_ns);
        let request = id.request(deadline_ns.is_some(), filling);
        Wanted { id, method: method as u16, request, options }
    }

    fn call_and_wait(&mut self) {
        let Wanted { id, method, request, options } = self.draw();
        let outcome = match options == CallOptions::new() {
            true => self.client.call_wait(method, request, ANSWER_BYTES_MAX),
            false => self.client.call_wait_with(method, request, ANSWER_BYTES_MAX, options),
        };
        self.ledger.end(id, outcome, model::now_ns());
    }

    /// A call, unless it was not started, which is noted.
    fn started(
        &self,
        id: CallId,
        request: &[u8],
        call: Result<RemoteCall, NotStarted>,
    ) -> Option<(CallId, RemoteCall)> {
        match call {
            Ok(call) => Some((id, call)),
            Err(error) => {
                self.ledger.not_started(id, &error, request);
                None
            }
        }
    }

    fn start(&mut self) -> Option<(CallId, RemoteCall)> {
        let Wanted { id, method, request, options } = self.draw();
        let call = match options == CallOptions::new() {
            true => self.client.start(method, request.clone(), ANSWER_BYTES_MAX),
            false => self.client.start_with(method, request.clone(), ANSWER_BYTES_MAX, options),
        };
        self.started(id, &request, call)
    }

    fn start_one(&mut self) {
        if let Some((id, call)) = self.start() {
            self.finish(id, call);
        }
    }

    /// All at once, and the client goes before its calls.
    fn start_many(&mut self) {
        let calls: Vec<_> = (0..1 + self.rng.below(4)).filter_map(|_| self.start()).collect();
        for (id, call) in calls {
            self.finish(id, call);
        }
    }

    /// Waits, or gives up.
    fn finish(&mut self, id: CallId, call: RemoteCall) {
        match self.rng.below(4) {
            0 => {
                (0..self.rng.below(40)).for_each(|_| thread::yield_now());
                let _ = format!("{call:?}");
                drop(call);
                self.ledger.give_up(id);
            }
            1 if !self.spec.is_calm => self.wait_with_a_limit(id, call),
            _ => {
                let outcome = call.wait();
                self.ledger.end(id, outcome, model::now_ns());
            }
        }
    }

    fn wait_with_a_limit(&mut self, id: CallId, mut call: RemoteCall) {
        let limit_ns = self.rng.pick(&[0, 1_000, 50_000, 1_000_000]);
        let begin_ns = model::now_ns();
        match call.wait_for(Duration::from_nanos(limit_ns)) {
            Some(outcome) => self.ledger.end(id, outcome, model::now_ns()),
            None => {
                assert!(model::now_ns() >= begin_ns + limit_ns, "the wait ended early");
                count(|totals| &totals.waits_over, 1);
                self.finish(id, call);
            }
        }
    }

    fn keep_a_window(&mut self) {
        let parallel = self.client.parallel(1 + self.rng.below(3));
        let _ = format!("{parallel:?}");
        let mut calls = Vec::new();
        for _ in 0..2 + self.rng.below(3) {
            let Wanted { id, method, request, .. } = self.draw_without_options();
            let call = match self.rng.below(3) {
                0 => block_on(parallel.start(method, request.clone(), ANSWER_BYTES_MAX)),
                _ => parallel.start_wait(method, request.clone(), ANSWER_BYTES_MAX),
            };
            calls.extend(self.started(id, &request, call));
        }
        for (id, call) in calls {
            self.finish(id, call);
        }
    }

    fn draw_without_options(&mut self) -> Wanted {
        let method = self.rng.pick(&Method::TIMELESS);
        let id = self.ledger.begin(method, None);
        let request = id.request(false, self.rng.below(100));
        Wanted { id, method: method as u16, request, options: CallOptions::new() }
    }

    fn reserve(&mut self) {
        let permit = match self.client.clone().reserve_wait() {
            Ok(permit) => permit,
            Err(reason) => {
                assert!(self.spec.client_end.is_some(), "{reason:?}");
                return;
            }
        };
        let _ = format!("{permit:?} {:?}", self.client);
        if self.rng.once_in(3) {
            return drop(permit);
        }
        let Wanted { id, method, request, options } = self.draw();
        let call = permit.start_with(method, request.clone(), ANSWER_BYTES_MAX, options);
        if let Some((id, call)) = self.started(id, &request, call) {
            self.finish(id, call);
        }
    }

    fn await_calls(&mut self) {
        let Wanted { id, method, request, options } = self.draw();
        let outcome = match self.rng.once_in(2) {
            true => block_on(self.client.call_with(method, request, ANSWER_BYTES_MAX, options)),
            false => {
                match self.client.start_with(method, request.clone(), ANSWER_BYTES_MAX, options) {
                    Ok(call) => block_on(call),
                    Err(error) => return self.ledger.not_started(id, &error, &request),
                }
            }
        };
        self.ledger.end(id, outcome, model::now_ns());
    }

    /// Polls without waiting.
    fn look_again(&mut self) {
        let Some((id, mut call)) = self.start() else { return };
        for _ in 0..self.rng.below(60) {
            let had_ended = call.has_ended();
            match call.try_take() {
                Some(outcome) => return self.ledger.end(id, outcome, model::now_ns()),
                None => assert!(!had_ended, "the outcome is there and cannot be taken"),
            }
            thread::yield_now();
        }
        self.finish(id, call);
    }

    /// A wait for a place that is given up.
    fn leave_the_queue(&mut self) {
        let held = self.start();
        {
            let mut cx = Context::from_waker(Waker::noop());
            let mut reservation = pin!(self.client.reserve());
            let _ = reservation.as_mut().poll(&mut cx).is_ready();
            (0..self.rng.below(10)).for_each(|_| thread::yield_now());
        }
        if let Some((id, call)) = held {
            self.finish(id, call);
        }
    }
}
