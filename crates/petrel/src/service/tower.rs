//! Calls as services of tower, for its layers.

use std::fmt;
use std::future::Future;
use std::task::{Context, Poll};

use tower_service::Service;

use crate::client::{Call, Client};
use crate::error::Error;

/// A call by a method's number and the request's bytes. A call that waits for a place
/// ([`client_calls_max`](crate::endpoint::EndpointConfig)) waits in its future.
impl Service<(u16, Vec<u8>)> for Client {
    type Response = crate::client::Response;
    type Error = Error;
    type Future = Call;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (method, request): (u16, Vec<u8>)) -> Call {
        Client::call(self, method, request)
    }
}

/// Calls of a method of a typed service, as a service of tower. Errors of layers are boxed; an [`Error`] comes out of the box by
/// `downcast`.
///
/// ```no_run
/// use petrel::service::{Ctx, Raw, TowerMethod};
/// # use petrel::Error;
///
/// #[petrel::service(codec = Raw)]
/// trait Greeter {
///     async fn hello(&self, cx: &Ctx, name: String) -> Result<String, Error>;
/// }
///
/// # fn main() -> Result<(), Error> {
/// let client = GreeterClient::connect_wait("127.0.0.1:31850")?;
/// let hello = TowerMethod::new(move |name: String| client.hello(name).idempotent());
/// // For `tower::ServiceBuilder::new().concurrency_limit(8).service(hello)`.
/// # let _ = hello;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TowerMethod<F> {
    make: F,
}

impl<F> TowerMethod<F> {
    /// Returns a service whose calls this function makes of requests.
    pub fn new(make: F) -> Self {
        Self { make }
    }
}

impl<R, T, C, F> Service<R> for TowerMethod<F>
where
    F: FnMut(R) -> C,
    C: Future<Output = Result<T, Error>>,
{
    type Response = T;
    type Error = Error;
    type Future = C;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: R) -> C {
        (self.make)(request)
    }
}

impl<F> fmt::Debug for TowerMethod<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerMethod").finish_non_exhaustive()
    }
}
