//! The response of a client's call.

use std::fmt;
use std::mem;
use std::ops::Deref;

use petrel_transport::buf::append_message;

use crate::local::Hub;

/// The message of a response.
#[derive(Clone, Default)]
pub struct Response(Vec<u8>);

impl Response {
    pub(super) fn new(message: Vec<u8>) -> Self {
        Self(message)
    }

    /// Returns the message in its own memory.
    pub fn into_vec(mut self) -> Vec<u8> {
        mem::take(&mut self.0)
    }
}

impl Drop for Response {
    /// In a task of an endpoint, leaves the memory to the endpoint's next request.
    #[inline]
    fn drop(&mut self) {
        let memory = mem::take(&mut self.0);
        Hub::with_current(|hub| hub.keep_memory(memory));
    }
}

/// Returns the bytes of a request. Borrowed bytes and arrays are copied, in a task of an endpoint to the memory of a
/// former response.
#[inline]
pub(super) fn bytes_of<R: Into<Vec<u8>> + AsRef<[u8]>>(request: R) -> Vec<u8> {
    if mem::needs_drop::<R>() {
        return request.into();
    }
    let mut bytes = Hub::with_current(Hub::take_memory).unwrap_or_default();
    append_message(request.as_ref(), &mut bytes);
    bytes
}

impl Deref for Response {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Response {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Response> for Vec<u8> {
    fn from(response: Response) -> Self {
        response.into_vec()
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Response {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Response").field(&self.0.escape_ascii().to_string()).finish()
    }
}
