//! The response of a client's call.

use std::fmt;
use std::ops::Deref;

/// The message of a response.
#[derive(Clone, Default)]
pub struct Response(Vec<u8>);

impl Response {
    pub(super) fn new(message: Vec<u8>) -> Self {
        Self(message)
    }

    /// Returns the message in its own memory.
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }
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
