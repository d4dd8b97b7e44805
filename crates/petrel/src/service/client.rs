//! The client of a typed service.

use std::fmt;

use super::codec::Encode;
use super::method::{Method, decode_reply};
use crate::client::{Call, Client, Response, Targets};
use crate::error::Error;
use crate::stream::{Kind, Pairs, Place, StreamCall};
use crate::sync::Arc;
use crate::values::expected::Expected;
use crate::values::method_table::ServiceTable;

/// A [`Client`], and the numbers of a service's methods. The attribute [`service`](macro@crate::service) makes a type of it for each
/// service. Clones are the same client.
#[derive(Clone)]
pub struct Stub {
    client: Client,
    expected: Arc<Expected>,
    /// The streams.
    pairs: Arc<Pairs>,
}

impl Stub {
    /// Returns a stub of a client. A client can have several.
    pub fn new(client: Client, table: &'static ServiceTable) -> Self {
        let expected = client.expect_methods(table);
        Self { client, expected, pairs: Arc::default() }
    }

    /// Connects a client, and returns its stub.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect(
        targets: impl Into<Targets>,
        table: &'static ServiceTable,
    ) -> Result<Self, Error> {
        Ok(Self::new(Client::connect(targets).await?, table))
    }

    /// Connects a client like [`Stub::connect`], with the thread parked.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_wait(
        targets: impl Into<Targets>,
        table: &'static ServiceTable,
    ) -> Result<Self, Error> {
        Ok(Self::new(Client::connect_wait(targets)?, table))
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a call of the method at this place of the table.
    #[inline(always)]
    pub fn call<M: Method>(&self, index: usize, request: &M::Request) -> Call<M::Reply> {
        let append = |out: &mut Vec<u8>| <M::Codec as Encode<M::Request>>::append(request, out);
        let number = self.expected.numbers()[index];
        let read = |reply: Response, _| decode_reply::<M>(&reply);
        self.client.call_encoded(number, &self.expected, append, read)
    }

    /// Returns a stream of the method at this place of the table.
    pub(super) fn stream<T>(
        &self,
        index: usize,
        request: Option<Vec<u8>>,
        kind: Kind<T>,
    ) -> StreamCall<T> {
        let number = self.expected.numbers()[index];
        let read = |answer: Response, _| Place::of(&answer);
        let place = self.client.call_encoded(number, &self.expected, |_| {}, read).idempotent();
        let of = (self.client.clone(), Arc::clone(&self.pairs));
        StreamCall::new(of, place, request, kind)
    }
}

impl fmt::Debug for Stub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.client, self.expected.table().name)
    }
}
