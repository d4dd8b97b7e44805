//! Calling threads.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use petrel::client::Call;
use petrel::endpoint::CallOptions;
use petrel::{Client, model};
use shuttle::future::block_on;
use shuttle::thread;

use crate::ledger::{CallId, Ledger, Method};
use crate::rng::Rng;
use crate::spec::Spec;

pub(crate) struct Caller {
    spec: Spec,
    rng: Rng,
    client: Client,
    ledger: Arc<Ledger>,
}

/// A call to be made.
struct Wanted {
    id: CallId,
    method: u16,
    request: Vec<u8>,
    options: CallOptions,
}

impl Caller {
    pub(crate) fn new(spec: &Spec, number: usize, client: Client, ledger: &Arc<Ledger>) -> Self {
        let rng = Rng::new(spec.seed.rotate_left(20) ^ (number as u64 + 1));
        Self { spec: *spec, rng, client, ledger: Arc::clone(ledger) }
    }

    pub(crate) fn run(mut self) {
        for _ in 0..self.spec.acts {
            self.act();
        }
    }

    fn act(&mut self) {
        match self.rng.below(7) {
            0 | 1 => self.call_and_wait(),
            2 => self.start_one(),
            3 => self.start_many(),
            4 => self.await_calls(),
            5 => self.look_again(),
            _ => self.leave_the_queue(),
        }
    }

    fn draw(&mut self) -> Wanted {
        let mut method = self.rng.pick(&Method::TIMELESS);
        if !self.spec.is_untimed && self.rng.once_in(4) {
            method = Method::Sleep;
        }
        if self.spec.may_drop_own_pool && self.rng.once_in(6) {
            method = Method::DropPool;
        }
        let mut options = CallOptions::new();
        let mut deadline_ns = None;
        if !self.spec.is_untimed && self.rng.once_in(2) {
            let span_ns = self.rng.pick(&[0, 1_000, 20_000, 100_000, 10_000_000]);
            deadline_ns = Some(model::now_ns() + span_ns);
            options = match self.rng.once_in(2) {
                true => options.timeout(Duration::from_nanos(span_ns)),
                false => options.deadline(petrel::Time::from_ns(model::now_ns() + span_ns)),
            };
        }
        let filling = self.rng.pick(&[0, 10, 60, 120, 4_000]);
        let id = self.ledger.begin(method, deadline_ns);
        let request = id.request(filling);
        Wanted { id, method: method as u16, request, options }
    }

    fn call_and_wait(&mut self) {
        let Wanted { id, method, request, options } = self.draw();
        let outcome = self.client.call(method, request).options(options).wait();
        self.ledger.end(id, outcome, model::now_ns());
    }

    fn start(&mut self) -> (CallId, Call) {
        let Wanted { id, method, request, options } = self.draw();
        (id, self.client.call(method, request).options(options).started())
    }

    fn start_one(&mut self) {
        let (id, call) = self.start();
        self.finish(id, call);
    }

    /// Starts all calls at once, and drops the client before them.
    fn start_many(&mut self) {
        let calls: Vec<_> = (0..1 + self.rng.below(4)).map(|_| self.start()).collect();
        for (id, call) in calls {
            self.finish(id, call);
        }
    }

    /// Waits for the call, or cancels it.
    fn finish(&mut self, id: CallId, call: Call) {
        if self.rng.once_in(4) {
            (0..self.rng.below(40)).for_each(|_| thread::yield_now());
            let _ = format!("{call:?} {:?}", self.client);
            drop(call);
            return self.ledger.give_up(id);
        }
        let outcome = call.wait();
        self.ledger.end(id, outcome, model::now_ns());
    }

    fn await_calls(&mut self) {
        let Wanted { id, method, request, options } = self.draw();
        let call = self.client.call(method, request).options(options);
        let call = if self.rng.once_in(2) { call } else { call.started() };
        self.ledger.end(id, block_on(call), model::now_ns());
    }

    /// Polls without waiting.
    fn look_again(&mut self) {
        let (id, mut call) = self.start();
        for _ in 0..self.rng.below(60) {
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(outcome) = pin!(&mut call).poll(&mut cx) {
                return self.ledger.end(id, outcome, model::now_ns());
            }
            thread::yield_now();
        }
        self.finish(id, call);
    }

    /// Cancels a call that may wait for a place, or be outstanding.
    fn leave_the_queue(&mut self) {
        let (held, call) = self.start();
        let (left, mut leaves) = self.start();
        let mut cx = Context::from_waker(Waker::noop());
        let end = match pin!(&mut leaves).poll(&mut cx) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        };
        (0..self.rng.below(10)).for_each(|_| thread::yield_now());
        drop(leaves);
        match end {
            Some(outcome) => self.ledger.end(left, outcome, model::now_ns()),
            None => self.ledger.give_up(left),
        }
        self.finish(held, call);
    }
}
