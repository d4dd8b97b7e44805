//! A client's call: its options, and the call as a future.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use petrel_proto::Status;

use super::service_client::Client;
use super::{end_ns, park};
use crate::endpoint::{HEALTH_METHOD, Health, Local, runs_loop};
use crate::error::Error;
use crate::inbox_message::{InboxMessage, StartCall};
use crate::local::Hub;
use crate::local::client_call::places::{Place, TakePlace};
use crate::local::client_call::response::{bytes_by, bytes_of};
use crate::local::client_call::state::CallState;
use crate::local::client_call::{Response, places};
use crate::look;
use crate::sync::Arc;
use crate::time::Time;
use crate::values::expected::Expected;
use crate::values::{CallOptions, Marks, Metadata};

/// Reads a response, given a number such as the expected length.
pub(crate) type ReadResponse<T> = fn(Response, u64) -> Result<T, Error>;

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
///
/// ```
/// use std::time::Duration;
///
/// # let server = petrel::Server::bind("127.0.0.1:0").serve(|_| (), |endpoint| {
/// #     endpoint.on(1, |_, cx, request| request.reply(cx, b"value"));
/// # });
/// # let server = server.start()?;
/// let client = petrel::Client::connect_wait(server.local_addr())?;
/// // Begun at once, and repeated at another server if need be.
/// let read = client.call(1, "key").timeout(Duration::from_secs(1)).idempotent().started();
/// assert_eq!(read.wait()?, b"value");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a call begins when it is awaited, waited for or started"]
pub struct Call<T = Response> {
    client: Client,
    method: u16,
    options: CallOptions,
    /// Empty once the call is outstanding.
    request: Vec<u8>,
    step: Step,
    read: ReadResponse<T>,
    /// The number for `read`.
    expected: u64,
}

enum Step {
    New,
    /// Outstanding.
    Outstanding(Arc<CallState>),
    /// A rare state, in a box: most calls then have little to drop at their end.
    Delayed(Box<Delayed>),
    Ended,
}

/// Whether the task of an outstanding call may run the endpoint's event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drive {
    /// The task may run it if its last attempts gained time: the call has just begun.
    IfWorthIt,
    /// The task may run it if no thread or other task does.
    IfFree,
    /// The task may not run it: it has just left the event loop.
    No,
}

/// A call that is not outstanding, or whose task drives.
enum Delayed {
    /// Waits until fewer calls are outstanding. The timeout counts meanwhile.
    Waiting { end_ns: u64, take: TakePlace },
    /// Ended before it was posted.
    Failed(Error),
    /// Outstanding, and its task runs the endpoint's event loop.
    Driving(Arc<CallState>),
}

impl Step {
    #[cold]
    fn failed(error: Error) -> Self {
        Self::Delayed(Box::new(Delayed::Failed(error)))
    }

    /// Returns the state of a call whose task drives.
    #[inline]
    fn driving(&self) -> Option<&Arc<CallState>> {
        let Self::Delayed(delayed) = self else { return None };
        match &**delayed {
            Delayed::Driving(state) => Some(state),
            Delayed::Waiting { .. } | Delayed::Failed(_) => None,
        }
    }
}

impl Client {
    /// Returns a call, to be [awaited](Call), [waited for](Call::wait) or [started](Call::started).
    ///
    /// Bytes that are borrowed, or in an array, are copied; a vector or a string is taken as it is.
    pub fn call(&self, method: u16, request: impl Into<Vec<u8>> + AsRef<[u8]>) -> Call {
        Call::reading(self.clone(), method, bytes_of(request), 0, |answer, _| Ok(answer))
    }

    /// Returns a call whose request a codec appends to memory, and whose response `read` reads. The error of the codec is that of the call.
    #[inline(always)]
    pub(crate) fn call_encoded<T>(
        &self,
        method: u16,
        expected: &Arc<Expected>,
        append: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
        read: fn(Response, u64) -> Result<T, Error>,
    ) -> Call<T> {
        let marks = match expected.is_known() || self.expect_in_task(expected) {
            true => Marks::TYPED,
            false => Marks::TYPED.with(Marks::BEHIND_TABLE),
        };
        let (client, options) = (self.clone(), CallOptions::marked(marks));
        let (request, appended) = bytes_by(append);
        let step = appended.map_or_else(Step::failed, |()| Step::New);
        // One literal: the compiler moves a call once more if a field changes afterwards.
        Call { client, method, options, request, step, read, expected: 0 }
    }

    /// Expects the methods of a table before the endpoint has taken its messages: calls of its tasks pass those by. Returns whether the
    /// endpoint has the table.
    #[cold]
    fn expect_in_task(&self, expected: &Arc<Expected>) -> bool {
        let (clients, key) = (self.endpoint(), self.key());
        let expect = |local: &mut Local| {
            if local.is_of(clients) {
                local.expect_table(key, Arc::clone(expected));
            }
        };
        Hub::with_current(|hub| Local::try_of_task(hub, expect));
        expected.is_known()
    }

    /// Asks whether a server can serve: in general, or a method. Ends with INTERNAL if the response is no health
    /// status.
    pub fn health(&self, method: Option<u16>) -> Call<Health> {
        let request = method.map_or(Vec::new(), |method| method.to_le_bytes().to_vec());
        Call::reading(self.clone(), HEALTH_METHOD, request, 0, |answer, _| {
            Health::from_answer(&answer)
        })
    }
}

impl<T> Call<T> {
    /// Creates a call with a function that reads the response, given `expected`. It is not run for a [`Response`].
    pub(crate) fn reading(
        client: Client,
        method: u16,
        request: Vec<u8>,
        expected: u64,
        read: fn(Response, u64) -> Result<T, Error>,
    ) -> Self {
        let (options, step) = (CallOptions::new(), Step::New);
        Self { client, method, options, request, step, read, expected }
    }

    /// Returns the call of the response as it comes, and the function that reads it. The call has not begun.
    pub(crate) fn into_unread(mut self) -> (Call, ReadResponse<T>) {
        let step = mem::replace(&mut self.step, Step::Ended);
        let has_begun = matches!(step, Step::Outstanding(_) | Step::Ended);
        assert!(!has_begun, "a call gets its metadata before it begins");
        let (client, request) = (self.client.clone(), mem::take(&mut self.request));
        let mut call = Call::reading(client, self.method, request, 0, |answer, _| Ok(answer));
        (call.options, call.step) = (self.options, step);
        (call, self.read)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn call_options(&self) -> &CallOptions {
        &self.options
    }

    /// Adds metadata behind the request, and gives the call the method's number with an envelope.
    ///
    /// # Errors
    /// The call is not of a typed service.
    pub(crate) fn add_envelope(&mut self, metadata: &Metadata) -> Result<(), Error> {
        let is_typed = self.options.marks.has(Marks::TYPED);
        let number = self.client.envelope_of(self.method).filter(|_| is_typed);
        let Some(number) = number else {
            let text = "calls by number have no metadata: call a method of a typed service";
            return Err(Error::not_sent(Status::InvalidArgument, text));
        };
        self.method = number;
        metadata.append_to(&mut self.request);
        Ok(())
    }

    /// Sends the last `bytes` of the request first.
    pub(crate) fn head_last(mut self, bytes: u8) -> Self {
        self.options.head_last = bytes;
        self
    }

    /// Ends the call with DEADLINE_EXCEEDED after `timeout`, including all attempts.
    /// [`ClientConfig::timeout`](super::ClientConfig) is the default. In a handler on a worker, the call ends no later
    /// than the request's deadline.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.timeout(timeout);
        self
    }

    /// Sets the end as a time on the endpoint's clock ([`Client::now`]). With both, the earlier end holds.
    pub fn deadline(mut self, at: Time) -> Self {
        self.options = self.options.deadline(at);
        self
    }

    /// Declares that the call may be executed twice: it is retried even after a possible execution.
    pub fn idempotent(mut self) -> Self {
        self.options = self.options.idempotent();
        self
    }

    /// Makes a second attempt, at a second server if possible, when the first attempt has not ended after this time;
    /// the first response counts. A good choice is the time within which 95 of 100 calls are answered. Implies
    /// [idempotent](Call::idempotent).
    pub fn hedge_after(mut self, time: Duration) -> Self {
        self.options = self.options.hedge_after(time);
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

    /// Makes the server run the call only when all earlier calls of the session have run, as
    /// [`CallBuilder::ordered`](crate::endpoint::CallBuilder::ordered) does. The client must be one of a single server, and
    /// its endpoint's sessions keep an order if [`SessionConfig::ordered`](crate::endpoint::SessionConfig::ordered) is set.
    ///
    /// Calls are in the order in which they [begin](Call::started). An ordered call has one attempt: if the session ends,
    /// so does the call, and later calls go to the next session. A call that cannot have an order ends with
    /// FAILED_PRECONDITION.
    pub fn ordered(mut self) -> Self {
        self.options = self.options.in_order();
        self
    }

    /// Replaces all options of the call.
    pub fn options(mut self, options: CallOptions) -> Self {
        let before = mem::replace(&mut self.options, options);
        self.options.keep_of(&before);
        self
    }

    /// Begins the call now, for calls that are awaited later.
    ///
    /// When the endpoint's limit of outstanding calls is reached, the call begins when it is awaited.
    pub fn started(mut self) -> Self {
        self.begin(Waker::noop());
        self.begin_elsewhere(&mut Context::from_waker(Waker::noop()));
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
    pub fn wait(self) -> Result<T, Error>
    where
        T: 'static,
    {
        self.client.endpoint().check_thread();
        let mut call = self;
        call.begin_and_drive(&mut Context::from_waker(Waker::noop()), None);
        park::park(call)
    }
}

impl<T> Call<T> {
    /// Begins the call in a task of the client's endpoint, if a place is free. Returns true if the task awaits the call,
    /// and is woken without its waker. All other cases are left to [`begin_elsewhere`](Self::begin_elsewhere).
    #[inline(always)]
    fn begin(&mut self, waker: &Waker) -> bool {
        self.in_task(|call, hub, local| {
            let Some(place) = call.client.endpoint().places().try_take() else { return false };
            let clock_ns = hub.clock_now_ns();
            let end_ns = hub.end_ns(&call.options, call.client.call_timeout(), clock_ns);
            let state = call.make_here(hub, local, place, (Some(clock_ns), end_ns));
            // A call that has ended wakes no task.
            match hub.task_of(waker) {
                Some(task) if state.key().is_some() => {
                    state.set_task(task);
                    true
                }
                _ => false,
            }
        })
    }

    /// Advances the call until it is outstanding, or has failed.
    #[inline(never)]
    fn begin_elsewhere(&mut self, cx: &mut Context<'_>) {
        if let Step::New = self.step {
            let end_ns = end_ns(&self.options, self.client.call_timeout());
            let places = self.client.endpoint().places();
            match places.try_take() {
                Some(place) => self.make(place, end_ns),
                None => {
                    let waiting = Delayed::Waiting { end_ns, take: places.take() };
                    self.step = Step::Delayed(Box::new(waiting));
                }
            }
        }
        if let Step::Delayed(delayed) = &mut self.step
            && let Delayed::Waiting { end_ns, take } = &mut **delayed
            && let Poll::Ready(place) = Pin::new(take).poll(cx)
        {
            let end_ns = *end_ns;
            match place {
                Ok(place) => self.make(place, end_ns),
                Err(places::Gone) => self.step = Step::failed(endpoint_gone()),
            }
        }
    }

    /// Begins the call. If no other call is outstanding, the caller runs the endpoint's event loop until the end of the call, at most for
    /// `limit_ns`.
    #[inline(never)]
    fn begin_and_drive(&mut self, cx: &mut Context<'_>, limit_ns: Option<u64>) {
        let endpoint = Arc::clone(self.client.endpoint());
        let driver = endpoint.driver().filter(|_| !runs_loop());
        match driver.and_then(|driver| driver.try_drive(endpoint.places(), limit_ns)) {
            None => {
                self.begin_elsewhere(cx);
                if let Some(driver) = driver
                    && endpoint.places().has_one_taken()
                {
                    driver.note_alone();
                }
            }
            Some(driving) => {
                self.begin_elsewhere(cx);
                if let Step::Outstanding(state) = &self.step {
                    driving.run(|| state.has_ended());
                }
            }
        }
    }

    /// Begins the call, or runs the event loop for a turn. Is ready once the task does not drive, with whether it may.
    #[inline(never)]
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Drive> {
        let Some(state) = self.step.driving() else {
            if let Step::New = self.step {
                self.begin_and_drive(cx, Some(look::LOOK_NS));
                self.look();
            } else {
                self.begin_elsewhere(cx);
            }
            return Poll::Ready(Drive::IfWorthIt);
        };
        let (state, number) = (Arc::clone(state), number_of(state));
        let endpoint = Arc::clone(self.client.endpoint());
        let driver = endpoint.driver().expect("only an endpoint with a driver is driven");
        let goes = match runs_loop() {
            // In a task of another endpoint.
            true => {
                driver.leave_by_task(number);
                false
            }
            false => driver.turn_by_task(number),
        };
        if state.has_ended() {
            driver.pass_on(number);
        } else if goes {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.step = Step::Outstanding(state);
        Poll::Ready(Drive::No)
    }

    /// Has the task of an outstanding call run the event loop from its next poll on, if no other task and no thread does.
    #[inline(never)]
    fn drive_later(&mut self, cx: &mut Context<'_>, drive: Drive) {
        let (Step::Outstanding(state), Some(driver)) =
            (&self.step, self.client.endpoint().driver())
        else {
            return;
        };
        if runs_loop() || park::waits() {
            return;
        }
        let number = number_of(state);
        let drives = match drive {
            Drive::IfWorthIt => driver.try_drive_by_task(number),
            Drive::IfFree => driver.try_inherit(number),
            Drive::No => false,
        };
        if drives {
            self.step = Step::Delayed(Box::new(Delayed::Driving(Arc::clone(state))));
            cx.waker().wake_by_ref();
        } else {
            driver.offer_heir(cx.waker());
        }
    }

    /// Looks for the response of a call that has just begun, if no other call of the endpoint is outstanding: the response may come before
    /// an executor has suspended the task.
    fn look(&self) {
        if let Step::Outstanding(state) = &self.step
            && self.client.endpoint().places().has_one_taken()
            && !runs_loop()
        {
            look::until(|| state.has_ended());
        }
    }

    /// Makes the call, which has a place: at once in a task of the client's endpoint, else through the endpoint's inbox.
    fn make(&mut self, place: Place, end_ns: u64) {
        let mut place = Some(place);
        let made = self.in_task(|call, hub, local| {
            let place = place.take().expect("a call is made once");
            call.make_here(hub, local, place, (None, end_ns));
            true
        });
        if !made {
            let &mut Self { ref client, method, options, .. } = self;
            let (state, pending) = CallState::new(place);
            let (service, request) = (client.key(), mem::take(&mut self.request));
            let start = StartCall { pending, service, method, request, options, end_ns };
            self.step = match client.endpoint().post(InboxMessage::Start(start)) {
                true => Step::Outstanding(state),
                false => Step::failed(endpoint_gone()),
            };
        }
    }

    /// Runs a closure if this is a task of the client's endpoint. Returns false elsewhere, and if the call must follow its table through
    /// the inbox.
    #[inline(always)]
    fn in_task(&mut self, run: impl FnOnce(&mut Self, &Hub, &mut Local) -> bool) -> bool {
        if self.options.marks.has(Marks::BEHIND_TABLE) {
            return false;
        }
        let done = Hub::with_current(|hub| {
            Local::try_of_task(hub, |local| {
                local.is_of(self.client.endpoint()) && run(self, hub, local)
            })
        });
        done.flatten().unwrap_or(false)
    }

    #[inline(always)]
    fn make_here(
        &mut self,
        hub: &Hub,
        local: &mut Local,
        place: Place,
        times: (Option<u64>, u64),
    ) -> &CallState {
        let idle = hub.take_call_state().unwrap_or_else(CallState::idle);
        let (state, pending) = idle.begin(Some(place));
        let (of, request) = ((self.client.key(), self.method), mem::take(&mut self.request));
        local.begin_client_call(of, request, &self.options, times, pending);
        // A call that begins has nothing to drop: no instruction is spent on it.
        debug_assert!(matches!(self.step, Step::New | Step::Delayed(_)));
        match mem::replace(&mut self.step, Step::Outstanding(state)) {
            Step::Delayed(waiting) => drop(waiting),
            other => mem::forget(other),
        }
        let Step::Outstanding(state) = &self.step else { unreachable!("it was just set") };
        state
    }
}

impl<T> Drop for Call<T> {
    /// Cancels an outstanding call.
    #[inline]
    fn drop(&mut self) {
        if let Step::Outstanding(state) = &self.step {
            cancel_dropped(&self.client, state);
        } else if let Some(state) = self.step.driving() {
            cancel_dropped(&self.client, state);
            let driver = self.client.endpoint().driver();
            driver.expect("only an endpoint with a driver is driven").pass_on(number_of(state));
        }
    }
}

/// Returns a number that names a call while it is outstanding.
fn number_of(state: &Arc<CallState>) -> usize {
    Arc::as_ptr(state).addr()
}

/// A separate function: the drop of a call that has ended then needs no stack.
#[inline(never)]
fn cancel_dropped(client: &Client, state: &Arc<CallState>) {
    if state.abandon() {
        let cancel = InboxMessage::Cancel(Arc::clone(state));
        // If the endpoint is gone, no call is left to cancel.
        client.endpoint().post(cancel);
    }
}

#[cold]
fn endpoint_gone() -> Error {
    Error::not_sent(Status::Unavailable, "the client's endpoint is gone")
}

impl<T: 'static> Future for Call<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Step::New = self.step
            && self.begin(cx.waker())
        {
            return Poll::Pending;
        }
        let drive = match self.step {
            Step::Outstanding(_) => Drive::IfFree,
            _ => ready!(self.advance(cx)),
        };
        if let Step::Outstanding(state) = &self.step {
            // SAFETY: the state is this future's, which is borrowed exclusively.
            let Poll::Ready(outcome) = (unsafe { state.poll(cx.waker()) }) else {
                self.drive_later(cx, drive);
                return Poll::Pending;
            };
            self.end_outstanding();
            return Poll::Ready(match outcome {
                Ok(response) => self.read(response),
                Err(error) => Err(error),
            });
        }
        self.poll_other()
    }
}

impl<T: 'static> Call<T> {
    /// Reads the response, or returns it if `T` is [`Response`]: the compiler removes the comparison of types.
    #[inline(always)]
    fn read(&self, response: Response) -> Result<T, Error> {
        let mut response = Some(response);
        match (&mut response as &mut dyn Any).downcast_mut::<Option<T>>() {
            Some(same) => Ok(same.take().expect("it was just put there")),
            None => (self.read)(response.take().expect("the same"), self.expected),
        }
    }
}

impl<T> Call<T> {
    /// Ends the step of an outstanding call whose outcome was fetched.
    #[inline(always)]
    fn end_outstanding(&mut self) {
        if let Step::Outstanding(state) = mem::replace(&mut self.step, Step::Ended)
            && let Some(state) = CallState::recycled(state)
        {
            Hub::with_current(|hub| hub.keep_call_state(state));
        }
    }

    /// Polls a call that is not outstanding.
    #[cold]
    fn poll_other(&mut self) -> Poll<Result<T, Error>> {
        let Step::Delayed(delayed) = mem::replace(&mut self.step, Step::Ended) else {
            panic!("a call was polled after it had ended");
        };
        match *delayed {
            Delayed::Failed(error) => Poll::Ready(Err(error)),
            waiting => {
                self.step = Step::Delayed(Box::new(waiting));
                Poll::Pending
            }
        }
    }
}

impl<T> fmt::Debug for Call<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match &self.step {
            Step::New => "not begun",
            Step::Outstanding(_) => "outstanding",
            Step::Delayed(delayed) if matches!(**delayed, Delayed::Driving(_)) => "outstanding",
            Step::Delayed(delayed) if matches!(**delayed, Delayed::Waiting { .. }) => {
                "waits until fewer calls are outstanding"
            }
            Step::Delayed(_) | Step::Ended => "ended",
        };
        write!(f, "Call({:?}, method {}: {step})", self.client, self.method)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Background;
    use super::super::background::Family;
    use super::*;
    use crate::values::client::{ClientConfig, Target};

    #[test]
    fn debug__has_the_step_of_the_call() {
        let background = Background::builder().start().unwrap();
        let endpoint = background.next_endpoint(Family::V4).unwrap();
        // No process listens there.
        let targets = vec![Target::from("127.0.0.1:1".parse::<std::net::SocketAddr>().unwrap())];
        let (client, open) = Client::of_endpoint(endpoint, targets, ClientConfig::default());
        assert!(client.endpoint().post(InboxMessage::OpenService(Box::new(open))));
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
