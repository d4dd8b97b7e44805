//! Calls of a session as futures.

use std::future::IntoFuture;
use std::rc::Rc;

use petrel_proto::SessionId;

use super::{CallBuilder, HEALTH_METHOD, Health, IntoMessage, Local};
use crate::error::Error;
use crate::local::{Call, Hub, Session, Start, endpoint_gone};
use crate::msgbuf::MsgBuf;
use crate::values::CallOptions;

impl Session {
    /// Begins a call of `method`: awaited, or [started](CallBuilder::started), its request leaves in the event loop's
    /// next turn. An impossible call ends with the reason, like any other call.
    #[inline(always)]
    pub fn call<M: IntoMessage>(&self, method: u16, request: M) -> CallBuilder<&Self, M> {
        CallBuilder::new(self, self.id(), method, request)
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

impl<M: IntoMessage> CallBuilder<&Session, M> {
    /// Makes the call now, and returns the future of its response: for calls that are awaited later.
    #[inline(always)]
    pub fn started(self) -> Call {
        let Self { place, callee, method, request, response, options } = self;
        let hub = place.hub();
        start_call(hub, (callee, method), request, response, hub.begun(options))
    }
}

/// Awaited, the call is made, and its response is the output.
impl<M: IntoMessage> IntoFuture for CallBuilder<&Session, M> {
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
    (session, method): (SessionId, u16),
    request: impl IntoMessage,
    response: Option<MsgBuf>,
    options: CallOptions,
) -> Call {
    let request = match options.needs_servers() {
        true => Err(Error::needs_servers()),
        false => request.into_message(hub.pool()).map_err(Error::from),
    };
    start_message(hub, (session, method), request, response, &options)
}

/// Makes a call now if the endpoint is lent, else queues the call for the event loop. An impossible call ends at once.
fn start_message(
    hub: &Rc<Hub>,
    (session, method): (SessionId, u16),
    request: Result<MsgBuf, Error>,
    response: Option<MsgBuf>,
    options: &CallOptions,
) -> Call {
    let (deadline_ns, ordered) = (options.deadline_ns(), options.is_ordered());
    let key = hub.begin_call(session);
    let response = response.map_or_else(|| hub.alloc_response(options.buffer_bytes()), Ok);
    let response = response.map_err(Error::from);
    let failure = match (request, response) {
        _ if hub.is_closed() => Some(endpoint_gone()),
        (Err(failure), _) | (_, Err(failure)) => Some(failure),
        (Ok(request), Ok(response)) => {
            let key = key.to_bits();
            let start = Start { key, session, method, request, response, deadline_ns, ordered };
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
        let start = || start_call(&hub, (session, 7), b"message", None, CallOptions::new());
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
