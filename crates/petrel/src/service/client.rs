//! The client of a typed service.

use std::fmt;

use petrel_proto::Execution;

use super::codec::Encode;
use super::interceptor::{CallOf, ClientInterceptor, ClientInterceptors};
use super::method::{Method, decode_reply};
use crate::client::{Client, Response, Targets};
use crate::error::Error;
use crate::panics::in_call;
use crate::stream::{Kind, Pairs, Place, StreamCall};
use crate::sync::Arc;
use crate::values::expected::Expected;
use crate::values::method_table::ServiceTable;

/// A [`Client`], the numbers of a service's methods, and interceptors. The attribute [`service`](macro@crate::service) makes a type of it for
/// each service. Clones are the same client.
#[derive(Clone)]
pub struct Stub<I: ClientInterceptors = ()> {
    client: Client,
    expected: Arc<Expected>,
    /// The streams.
    pairs: Arc<Pairs>,
    interceptors: I,
}

impl Stub {
    /// Returns a stub of a client. A client can have several.
    pub fn new(client: Client, table: &'static ServiceTable) -> Self {
        let expected = client.expect_methods(table);
        Self { client, expected, pairs: Arc::default(), interceptors: () }
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
}

impl<I: ClientInterceptors> Stub<I> {
    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a stub whose calls pass a further interceptor.
    pub fn with<F: ClientInterceptor>(self, interceptor: F) -> Stub<(F, I)> {
        let Self { client, expected, pairs, interceptors } = self;
        Stub { client, expected, pairs, interceptors: (interceptor, interceptors) }
    }

    /// Returns a call of the method at this place of the table.
    #[inline(always)]
    pub fn call<M: Method>(
        &self,
        index: usize,
        request: &M::Request,
        is_idempotent: bool,
    ) -> CallOf<M::Reply, I> {
        let append =
            |out: &mut Vec<u8>| append_request::<M::Codec, M::Request>(M::NAME, request, out);
        let number = self.expected.numbers()[index];
        let read = |reply: Response, _| decode_reply::<M>(&reply);
        let call = self.client.call_encoded(number, &self.expected, append, read);
        let call = if is_idempotent { call.idempotent() } else { call };
        self.interceptors.wrap(call, M::NAME)
    }

    /// Returns a stream of the method at this place of the table.
    pub(super) fn stream<T>(
        &self,
        (index, method): (usize, &'static str),
        request: Result<Option<Vec<u8>>, Error>,
        kind: Kind<T>,
    ) -> StreamCall<T> {
        let number = self.expected.numbers()[index];
        let read = |answer: Response, _| Place::of(&answer);
        let place = self.client.call_encoded(number, &self.expected, |_| Ok(()), read).idempotent();
        let of = (self.client.clone(), Arc::clone(&self.pairs));
        StreamCall::new(of, place, request, self.interceptors.watch(method), kind)
    }
}

/// Appends a request.
///
/// # Errors
/// The codec has panicked.
#[inline(always)]
pub(super) fn append_request<C: Encode<T>, T: ?Sized>(
    method: &str,
    request: &T,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    if C::NEVER_PANICS {
        C::append(request, out);
        return Ok(());
    }
    let encode = || C::append(request, out);
    let encoded = in_call("the encoder of the request", Execution::NotSent, encode);
    encoded.map_err(|error| {
        let text = format!("{method}: {}", error.message);
        error.with_message(text)
    })
}

impl<I: ClientInterceptors> fmt::Debug for Stub<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.client, self.expected.table().name)
    }
}
