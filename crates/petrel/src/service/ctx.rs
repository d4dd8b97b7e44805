//! The context of an async handler.

use std::fmt;
use std::ops::Deref;

use crate::client::Client;
use crate::error::Error;
use crate::task::{Handle, OwnRequest};

/// The request of an async handler, and the endpoint's handle. It dereferences to the request: the caller, the deadline, the session.
pub struct Ctx {
    request: OwnRequest,
    handle: Handle,
}

impl Ctx {
    pub(super) fn new(handle: Handle, request: OwnRequest) -> Self {
        Self { request, handle }
    }

    /// Returns the client that makes the request, to be called back: see [`Request::caller`](crate::Request::caller). The client of a typed
    /// service is made of it: `ProgressClient::new(cx.caller()?)`.
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
