//! The context of an async handler.

use std::fmt;
use std::ops::Deref;

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
