//! Calls of a session as futures.

use std::future::IntoFuture;
use std::rc::Rc;
use std::time::Duration;

use petrel_proto::SessionId;

use super::call::Call;
use super::calls::Start;
use super::hub::{Hub, endpoint_gone};
use super::session::Session;
use crate::endpoint::{CallOptions, HEALTH_METHOD, Health, IntoMessage, Local};
use crate::error::Error;
use crate::msgbuf::MsgBuf;
use crate::time::Time;

impl Session {
    /// Begins a call of `method`: awaited, or [started](SessionCall::started), its request leaves in the event loop's
    /// next turn. An impossible call ends with the reason, like any other call.
    #[inline(always)]
    pub fn call<M: IntoMessage>(&self, method: u16, request: M) -> SessionCall<'_, M> {
        SessionCall { session: self, method, request, options: CallOptions::default() }
    }

    /// Asks the server whether it can serve: in general, or one of its methods.
    ///
    /// # Errors
    /// The call's error; INTERNAL if the response is not a health status.
    pub async fn health(&self, method: Option<u16>) -> Result<Health, Error> {
        let request = method.map(u16::to_le_bytes);
        let request = request.as_ref().map_or(&[][..], |bytes| bytes);
        let reply = self.call(HEALTH_METHOD, request).await?;
        Health::from_answer(&reply)
    }
}

/// A call of a [`Session`] to be made, by awaiting it or by [`started`](Self::started).
#[must_use = "a call is made when it is awaited or started"]
#[derive(Debug)]
pub struct SessionCall<'a, M> {
    session: &'a Session,
    method: u16,
    request: M,
    options: CallOptions,
}

impl<M: IntoMessage> SessionCall<'_, M> {
    /// Ends the call with DEADLINE_EXCEEDED after `timeout`; the server learns the deadline too.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options = self.options.timeout(timeout);
        self
    }

    /// Sets the end as a time on the endpoint's clock ([`Handle::now`](crate::task::Handle::now)). With both, the
    /// earlier one holds.
    pub fn deadline(mut self, at: Time) -> Self {
        self.options = self.options.deadline(at);
        self
    }

    /// Sets the size of the buffer for the response; 1 200 bytes by default. A longer response gets a larger buffer
    /// when it arrives; the right size from the start costs less.
    pub fn response_bytes(mut self, bytes: usize) -> Self {
        self.options = self.options.response_bytes(bytes);
        self
    }

    /// Replaces all options of the call. Hedging, or waiting for a server, makes the call fail: a session has one
    /// server.
    pub fn options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Makes the call now, and returns the future of its response.
    #[inline(always)]
    pub fn started(self) -> Call {
        let Self { session, method, request, options } = self;
        let hub = session.hub();
        start_call(hub, session.id(), method, request, hub.begun(options))
    }
}

impl<M: IntoMessage> IntoFuture for SessionCall<'_, M> {
    type Output = Result<MsgBuf, Error>;
    type IntoFuture = Call;

    #[inline(always)]
    fn into_future(self) -> Call {
        self.started()
    }
}

/// Starts a call, whose options have [begun](CallOptions::begun). An impossible call ends at once.
// Inline, like its callers from an awaited call: the compiler removes unset options.
#[inline(always)]
pub(crate) fn start_call(
    hub: &Rc<Hub>,
    session: SessionId,
    method: u16,
    request: impl IntoMessage,
    options: CallOptions,
) -> Call {
    let request = match options.needs_servers() {
        true => Err(Error::needs_servers()),
        false => request.into_message(hub.pool()).map_err(Error::from),
    };
    let CallOptions { deadline_ns, response_bytes, .. } = options;
    start_message(hub, session, method, request, response_bytes, deadline_ns)
}

fn start_message(
    hub: &Rc<Hub>,
    session: SessionId,
    method: u16,
    request: Result<MsgBuf, Error>,
    response_bytes: Option<usize>,
    deadline_ns: Option<u64>,
) -> Call {
    let key = hub.begin_call(session);
    let response = hub.alloc_response(response_bytes).map_err(Error::from);
    let failure = match (request, response) {
        _ if hub.is_closed() => Some(endpoint_gone()),
        (Err(failure), _) | (_, Err(failure)) => Some(failure),
        (Ok(request), Ok(response)) => {
            let key = key.to_bits();
            let start = Start { key, session, method, request, response, deadline_ns };
            match hub.has_endpoint() {
                true => Local::of_task(hub, |local| local.make_call(start)),
                false => hub.queue_call(start),
            }
            None
        }
    };
    if let Some(failure) = failure {
        hub.finish(key.to_bits(), Err(failure));
    }
    Call::new(Rc::clone(hub), key)
}

#[cfg(test)]
mod tests {
    use petrel_transport::buf::{BufPool, PoolConfig};
    use petrel_transport::clock::Clock;
    use petrel_transport::wake::Waker;

    use super::*;
    use crate::inbox::WorkFlag;

    #[test]
    fn drop__withdraws_a_queued_call_and_cancels_a_call_that_was_made() {
        let work_flag = WorkFlag::new();
        let pool = BufPool::new(PoolConfig::default());
        let (clock, waker) = (Clock::of(|| 5), Waker::new().unwrap());
        let panics = crate::panics::Panics::new(crate::panics::PanicPolicy::Unwind);
        let hub = Hub::new((pool, panics), 1 << 20, clock, 1, work_flag.clone(), waker);
        let session = SessionId { index: 3, generation: 1 };
        let start = || start_call(&hub, session, 7, b"message", CallOptions::new());
        let counts = || (hub.object_counts().calls, hub.object_counts().orders);
        let [first, second, third] = [(); 3].map(|()| start());
        assert_eq!(counts(), (3, 3));
        drop(second);
        assert_eq!((counts(), hub.next_cancel()), ((2, 2), None), "it was not made");
        let made = hub.next_start().unwrap();
        work_flag.clear();
        drop(first);
        assert!(work_flag.is_raised());
        assert_eq!(counts(), (1, 2));
        assert_eq!(hub.next_cancel(), Some((session, made.key)));
        // An ended call notifies nothing.
        let ended = hub.next_start().unwrap();
        hub.finish(ended.key, Ok(ended.response));
        work_flag.clear();
        drop(third);
        assert_eq!((counts(), work_flag.is_raised()), ((0, 0), false));
        let last = start();
        let _made = hub.next_start();
        hub.close();
        drop(last);
        assert_eq!(counts(), (0, 0));
        assert!(hub.next_start().is_none());
    }
}
