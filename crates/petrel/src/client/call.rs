//! A client's call: its options, and the call as a future.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use petrel_proto::Status;

use super::places::{self, Place, TakePlace};
use super::response::Response;
use super::service_client::Client;
use super::state::CallState;
use super::{begun, park};
use crate::endpoint::CallOptions;
use crate::error::Error;
use crate::inbox_message::{InboxMessage, StartCall};
use crate::local::Hub;
use crate::sync::Arc;

/// A call, made by [`Client::call`]. It begins when first polled, and the timeout counts from then. Await the call, in
/// any executor; [wait](Call::wait) for it on a thread; or [start](Call::started) it, and await it later.
///
/// Dropping it after it has begun **cancels** the call, also at the server.
///
/// # Outcome
///
/// The response, or a `T` read from it, or the [`Error`] of the last attempt. When the endpoint's limit of outstanding
/// calls is reached (`EndpointConfig::client_calls_max`), the call waits for another to end.
///
/// # Panics
/// When polled after its end.
#[must_use = "a call begins when it is awaited, waited for or started"]
pub struct Call<T = Response> {
    client: Client,
    method: u16,
    options: CallOptions,
    step: Step,
    read: fn(Response, u64) -> Result<T, Error>,
    /// A number for `read`, such as the expected length.
    expected: u64,
}

enum Step {
    New {
        request: Vec<u8>,
    },
    /// Waits until fewer calls are outstanding.
    Waiting {
        request: Vec<u8>,
        take: TakePlace,
    },
    /// Outstanding.
    Going(Arc<CallState>),
    /// Ended before it was posted.
    Failed(Error),
    Ended,
}

impl<T> Call<T> {
    /// Creates a call with a function that reads the response, given `expected`.
    pub(crate) fn reading(
        client: Client,
        method: u16,
        request: Vec<u8>,
        expected: u64,
        read: fn(Response, u64) -> Result<T, Error>,
    ) -> Self {
        let (options, step) = (CallOptions::new(), Step::New { request });
        Self { client, method, options, step, read, expected }
    }

    /// Ends the call with DEADLINE_EXCEEDED after `timeout`, including all attempts.
    /// [`ClientConfig::timeout`](super::ClientConfig) is the default. In a handler on a worker, the call ends no later
    /// than the request's deadline.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.timeout(timeout);
        self
    }

    /// Declares that the call may be executed twice: it is retried even after a possible execution.
    pub fn idempotent(mut self) -> Self {
        self.options = self.options.idempotent();
        self
    }

    /// Makes a second attempt, at another server if there is one, when the first has not ended after this time; the
    /// first response counts. A good choice is the time within which 95 of 100 calls are answered. Implies
    /// [idempotent](Call::idempotent).
    pub fn hedge_after(mut self, time: Duration) -> Self {
        self.options = self.options.idempotent().hedge_after(time);
        self
    }

    /// Waits for a server until the call's timeout when none can be reached, instead of failing the call.
    pub fn wait_for_ready(mut self) -> Self {
        self.options = self.options.wait_for_ready();
        self
    }

    /// Sends the call to the server that the key maps to, if available; otherwise, and for retries, to the next server
    /// for the key. All clients of the same servers agree on the mapping, and few keys move when servers come or go.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.options = self.options.key(key.as_ref());
        self
    }

    /// Replaces all options of the call. A hedged call that is not idempotent fails.
    pub fn options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Begins the call now, for calls that are awaited later.
    ///
    /// When the endpoint's limit of outstanding calls is reached, the call begins when it is awaited.
    pub fn started(mut self) -> Self {
        self.begin(&mut Context::from_waker(Waker::noop()));
        self
    }

    /// Lets the call continue without its outcome, instead of cancelling it by a drop. The call begins now, or is
    /// dropped if the endpoint's limit of outstanding calls is reached.
    pub fn detach(self) {
        self.started().step = Step::Ended;
    }

    /// Waits for the response, with the thread parked.
    ///
    /// # Errors
    /// Why the call failed, and whether it may have been executed.
    ///
    /// # Panics
    /// On the thread of the client's endpoint, which would wait for itself.
    pub fn wait(self) -> Result<T, Error> {
        self.client.endpoint().check_thread();
        park::park(self)
    }
}

impl<T> Call<T> {
    /// Advances the call until it is outstanding, or has failed before.
    #[inline(never)]
    fn begin(&mut self, cx: &mut Context<'_>) {
        if let Step::New { request } = &mut self.step {
            let request = mem::take(request);
            self.options = begun(self.client.timed(self.options));
            let places = &self.client.endpoint().places;
            self.step = match places.try_take() {
                Some(place) => self.post(request, place),
                None => Step::Waiting { request, take: places.take() },
            };
        }
        if let Step::Waiting { request, take } = &mut self.step
            && let Poll::Ready(place) = Pin::new(take).poll(cx)
        {
            let request = mem::take(request);
            self.step = match place {
                Ok(place) => self.post(request, place),
                Err(places::Gone) => Step::Failed(endpoint_gone()),
            };
        }
    }

    /// Begins the call in a task of the client's endpoint, without the inbox and its options. Returns false if this is
    /// another task, or no place is free.
    #[inline(always)]
    fn begin_own(&mut self, waker: &Waker) -> bool {
        let Step::New { request } = &mut self.step else { return false };
        let endpoint = self.client.endpoint();
        let begun = Hub::with_current(|hub| {
            hub.try_with_local(|local| {
                if !local.is_of(endpoint) {
                    return None;
                }
                let place = Some(endpoint.places.try_take()?);
                let clock_ns = hub.clock_now_ns();
                let end_ns = hub.end_ns(&self.options, self.client.call_timeout(), clock_ns);
                let (state, pending) = match hub.take_call_state() {
                    Some(state) => CallState::again(state, place),
                    None => CallState::new(place),
                };
                let (of, request) = ((self.client.key(), self.method), mem::take(request));
                local.start_awaited(of, request, &self.options, (clock_ns, end_ns), pending);
                Some((state, hub.task_of(waker)))
            })
        });
        let Some((state, task)) = begun.flatten().flatten() else { return false };
        // A call that has ended is not woken for.
        let is_awaited = match task {
            Some(task) if state.key().is_some() => {
                state.set_task(task);
                true
            }
            _ => false,
        };
        // The request was taken: no instruction is spent on dropping nothing.
        mem::forget(mem::replace(&mut self.step, Step::Going(state)));
        is_awaited
    }

    /// Posts the call to the endpoint.
    fn post(&self, request: Vec<u8>, place: Place) -> Step {
        let endpoint = self.client.endpoint();
        let (state, pending) = CallState::new(Some(place));
        let (service, method, options) = (self.client.key(), self.method, self.options);
        let mut start = Some(StartCall { pending, service, method, request, options });
        // A task of the client's endpoint can bypass its inbox.
        Hub::with_current(|hub| hub.try_with_local(|local| local.start_own(endpoint, &mut start)));
        if let Some(start) = start
            && endpoint.sender.post(InboxMessage::Start(start)).is_err()
        {
            return Step::Failed(endpoint_gone());
        }
        Step::Going(state)
    }
}

impl<T> Drop for Call<T> {
    /// Cancels an outstanding call.
    fn drop(&mut self) {
        if let Step::Going(state) = &self.step
            && state.abandon()
        {
            let cancel = InboxMessage::Cancel(Arc::clone(state));
            // Without the endpoint there is nothing to cancel.
            let _ = self.client.endpoint().sender.post(cancel);
        }
    }
}

#[cold]
fn endpoint_gone() -> Error {
    Error::not_sent(Status::Unavailable, "the client's endpoint is gone")
}

impl<T> Future for Call<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Step::New { .. } = self.step
            && self.begin_own(cx.waker())
        {
            return Poll::Pending;
        }
        if !matches!(self.step, Step::Going(_)) {
            self.begin(cx);
        }
        if let Step::Going(state) = &self.step {
            let outcome = ready!(state.poll(cx.waker()));
            self.end_going();
            return Poll::Ready(
                outcome.map(Response::new).and_then(|answer| (self.read)(answer, self.expected)),
            );
        }
        self.poll_other()
    }
}

impl<T> Call<T> {
    /// Ends the step of an outstanding call whose outcome was fetched.
    #[inline(always)]
    fn end_going(&mut self) {
        if let Step::Going(state) = mem::replace(&mut self.step, Step::Ended)
            && let Some(state) = CallState::recycled(state)
        {
            Hub::with_current(|hub| hub.keep_call_state(state));
        }
    }

    /// Polls a call that is not outstanding.
    #[cold]
    fn poll_other(&mut self) -> Poll<Result<T, Error>> {
        match mem::replace(&mut self.step, Step::Ended) {
            Step::Failed(error) => Poll::Ready(Err(error)),
            Step::Ended => panic!("a call was polled after it had ended"),
            waiting => {
                self.step = waiting;
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match &self.step {
            Step::New { .. } => "not begun",
            Step::Waiting { .. } => "waits until fewer are on their way",
            Step::Going(_) => "on its way",
            Step::Failed(_) | Step::Ended => "ended",
        };
        write!(f, "Call({:?}, method {}: {step})", self.client, self.method)
    }
}

#[cfg(test)]
mod tests {
    use super::super::background::Family;
    use super::super::{Background, ClientConfig, Target};
    use super::*;

    #[test]
    fn debug__tells_how_far_a_call_is() {
        let background = Background::builder().start().unwrap();
        let endpoint = background.next_endpoint(Family::V4).unwrap();
        // No process listens there.
        let targets = vec![Target::from("127.0.0.1:1".parse::<std::net::SocketAddr>().unwrap())];
        let (client, open) = Client::of_endpoint(endpoint, targets, ClientConfig::default());
        assert!(client.endpoint().sender.post(InboxMessage::OpenService(Box::new(open))).is_ok());
        let is = |call: &Call, step: &str| {
            let text = format!("{call:?}");
            assert!(text.contains("method 7") && text.ends_with(&format!(": {step})")), "{text}");
        };
        let mut call = client.call(7, *b"x");
        is(&call, "not begun");
        let outcome = park::park(&mut call);
        assert_eq!(outcome.unwrap_err().status, Status::Unavailable);
        is(&call, "ended");
        drop(background);
    }
}
