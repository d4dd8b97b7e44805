//! Calls of clients, as the endpoint begins them.

use std::time::Duration;

use petrel_proto::Status;

use super::ClientShared;
use super::call_builder::callee::ToSend;
use super::call_builder::{CallRejected, buffers, refused};
use super::context::continuation::CallKey;
use super::context::{Context, Local};
use super::message::IntoMessage;
use super::service::{CallSpec, RequestBytes, begin_call_at, expect_table, open_service};
use crate::error::Error;
use crate::inbox_message::{OpenService, StartCall};
use crate::local::client_call::state::Pending;
use crate::sync::Arc;
use crate::values::CallOptions;
use crate::values::client::ServiceKey;
use crate::values::expected::Expected;

/// Begins the call of a client of this endpoint, with a continuation.
pub(crate) fn call_by_client<M: IntoMessage>(
    cx: &mut Context<'_>,
    (clients, service): (&Arc<ClientShared>, ServiceKey),
    timeout: Duration,
    to_send: ToSend<M>,
) -> Result<CallKey, Box<CallRejected>> {
    let ToSend { method, request, response, options, tag, .. } = to_send;
    let Some(service) = cx.local.service_of(clients, service) else {
        return Err(refused(cx.local, request, response, other_endpoint()));
    };
    // The message must be copied: several attempts may use it, even after the end of the call.
    let request = request.into_own_message(&cx.local.pool);
    let (request, response) = buffers::<M>(cx.local, request, response, &options)?;
    let clock_ns = cx.local.clock.now_ns();
    let end_ns = options.end_ns(clock_ns, timeout);
    let (response, end) = (Some(response), tag);
    let spec = CallSpec { method, request, response, options: &options, end_ns, end };
    Ok(CallKey::of_client(begin_call_at(cx, service, spec, None)))
}

impl Local {
    /// Returns the state for clients of this endpoint.
    pub(crate) fn clients(&mut self) -> Arc<ClientShared> {
        Arc::clone(self.remote.clients())
    }

    /// Opens the service of a new client.
    pub(crate) fn open_service(&mut self, open: OpenService) {
        open_service(&mut Context::new(self), open);
    }

    /// Expects the methods of a table at the servers of a client.
    pub(crate) fn expect_table(&mut self, service: ServiceKey, expected: Arc<Expected>) {
        expect_table(&mut Context::new(self), service, expected);
    }

    /// Begins the call of a client that ends at `end_ns`; `clock_ns` is the time, if just read.
    #[inline(always)]
    pub(crate) fn begin_client_call(
        &mut self,
        (service, method): (ServiceKey, u16),
        request: Vec<u8>,
        options: &CallOptions,
        (clock_ns, end_ns): (Option<u64>, u64),
        pending: Pending,
    ) {
        let Some(service) = self.services.find(service) else { return client_gone(pending) };
        let (request, end) = (RequestBytes(request, options.head_last), pending);
        let spec = CallSpec { method, request, response: None, options, end_ns, end };
        begin_call_at(&mut Context::new(self), service, spec, clock_ns);
    }

    /// Begins the call of a client on another thread, unless its outcome is not wanted any more.
    pub(super) fn begin_posted_call(&mut self, start: StartCall) {
        let StartCall { pending, service, method, request, options, end_ns } = start;
        if pending.is_wanted() {
            let times = (None, end_ns);
            self.begin_client_call((service, method), request, &options, times, pending);
        }
    }
}

#[cold]
fn other_endpoint() -> Error {
    let text = "the client makes its calls by another endpoint: await the call, or make it there";
    Error::not_sent(Status::InvalidArgument, text)
}

#[cold]
fn client_gone(pending: Pending) {
    pending.end_unsent(Status::Unavailable, "the client is gone");
}
