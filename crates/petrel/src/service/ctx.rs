//! The context of an async handler.

use std::cell::OnceCell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::client::Client;
use crate::error::Error;
use crate::task::{Handle, OwnRequest};
use crate::values::{Envelope, Metadata};

/// The request of an async handler, and the endpoint's handle. It dereferences to the request: the caller, the deadline, the session.
pub struct Ctx {
    request: OwnRequest,
    handle: Handle,
    /// A stream's is made when it is needed.
    envelope: OnceCell<Arc<Envelope>>,
}

impl Ctx {
    pub(super) fn new(handle: Handle, request: OwnRequest) -> Self {
        Self { request, handle, envelope: OnceCell::new() }
    }

    /// Returns the context of a stream, which has an envelope from its begin or gets one with the first entry for the end.
    pub(super) fn of_stream(
        handle: Handle,
        request: OwnRequest,
        envelope: Option<Arc<Envelope>>,
    ) -> Self {
        Self { request, handle, envelope: envelope.map(OnceCell::from).unwrap_or_default() }
    }

    /// Returns the context of a request whose message ends after `len` bytes, and whose metadata, if there are any, stood behind.
    pub(super) fn around(
        handle: Handle,
        mut request: OwnRequest,
        (envelope, len): (Option<Arc<Envelope>>, usize),
    ) -> Self {
        request.cut(len);
        Self::of_stream(handle, request, envelope)
    }

    pub(super) fn envelope(&self) -> Option<&Envelope> {
        self.envelope.get().map(|envelope| &**envelope)
    }

    /// Returns the metadata of the call: empty for a call without.
    pub fn metadata(&self) -> &Metadata {
        Envelope::request_of(self.envelope())
    }

    /// Adds an entry to the metadata of the reply. A call without an envelope has a caller that reads none: the entry is dropped.
    ///
    /// # Errors
    /// As [`Metadata::insert`].
    pub fn reply_metadata(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let envelope = self.envelope.get_or_init(|| Envelope::new(Metadata::new()));
        Envelope::insert_reply(Some(envelope), key, value.as_ref())
    }

    /// Returns the client that makes the request, to be called back: see [`Request::caller`](crate::Request::caller). The client of a typed
    /// service is made of it: `ProgressClient::new(cx.caller()?)`. The caller of a stream answers by the same callbacks.
    ///
    /// # Errors
    /// As [`Request::caller`](crate::Request::caller).
    pub fn caller(&self) -> Result<Client, Error> {
        self.handle.caller(&self.request)
    }

    /// Returns the handle of the endpoint's tasks, to wait for a time, or to begin tasks.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }
}

impl Deref for Ctx {
    type Target = OwnRequest;

    fn deref(&self) -> &OwnRequest {
        &self.request
    }
}

impl fmt::Debug for Ctx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}
