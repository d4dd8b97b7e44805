//! Clients on their endpoint's own thread.

use std::time::Duration;

use petrel_transport::Transport;

use super::Client;
use crate::control::ControlPlane;
use crate::endpoint::callee::{Sealed, ToSend};
use crate::endpoint::{
    CallBuilder, CallKey, CallRejected, Caller, Context, Endpoint, IntoMessage, Local,
    call_by_client,
};
use crate::local::Handle;
use crate::values::client::{ClientConfig, Target};

impl Client {
    pub(crate) fn on_endpoint(
        local: &mut Local,
        targets: Vec<Target>,
        config: ClientConfig,
    ) -> Self {
        assert!(!targets.is_empty(), "a client has a target");
        let (client, open) = Self::of_endpoint(local.clients(), targets, config);
        local.open_service(open);
        client
    }
}

impl<S: 'static, T: Transport, C: ControlPlane<T::Link>> Endpoint<S, T, C> {
    /// Returns a client of a service on one or several servers, for any thread, with sessions of this endpoint. The
    /// client begins to connect when the event loop runs. On the endpoint's thread its calls may have continuations,
    /// too:
    ///
    /// ```
    /// # use petrel::client::ClientConfig;
    /// # use petrel::endpoint::EndpointConfig;
    /// # use petrel::Nexus;
    /// # use std::time::Duration;
    /// # const DOUBLE: u16 = 1;
    /// # let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    /// # let mut server = nexus.endpoint(EndpointConfig::default())?;
    /// # server.on(DOUBLE, |_, cx, request| { let n = request.data()[0]; request.reply(cx, &[2 * n]) });
    /// # let address = nexus.local_addr().expect("it listens");
    /// let mut endpoint = nexus.endpoint_with(EndpointConfig::default(), Vec::new())?;
    /// let client = endpoint.client([address], ClientConfig::default());
    /// endpoint
    ///     .call(&client, DOUBLE, &[21])
    ///     .timeout(Duration::from_secs(60))
    ///     .idempotent()
    ///     .then(|answers: &mut Vec<u8>, _, reply| answers.push(reply.message().expect("an answer")[0]))?;
    /// while endpoint.state().is_empty() {
    ///     endpoint.run_once();
    /// #   server.run_once();
    /// }
    /// assert_eq!(endpoint.state(), &[42]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Without a target.
    pub fn client<A: Into<Target>>(
        &mut self,
        targets: impl IntoIterator<Item = A>,
        config: ClientConfig,
    ) -> Client {
        let targets = targets.into_iter().map(Into::into).collect();
        Client::on_endpoint(self.local_now(), targets, config)
    }
}

impl<S> Handle<S> {
    /// Returns a client of a service with sessions of this endpoint, like
    /// [`Endpoint::client`](crate::Endpoint::client).
    ///
    /// # Panics
    /// Without a target, and outside of the endpoint's tasks.
    pub fn client<T: Into<Target>>(
        &self,
        targets: impl IntoIterator<Item = T>,
        config: ClientConfig,
    ) -> Client {
        let targets = targets.into_iter().map(Into::into).collect();
        Local::of_task(self.hub(), |local| Client::on_endpoint(local, targets, config))
    }
}

impl Sealed for &Client {
    type Sent = CallKey;

    fn send<M: IntoMessage>(
        self,
        cx: &mut Context<'_>,
        to_send: ToSend<M>,
    ) -> Result<CallKey, Box<CallRejected>> {
        call_by_client(cx, (self.endpoint(), self.key()), self.call_timeout(), to_send)
    }

    fn key(call: CallKey, _number: u64) -> CallKey {
        call
    }
}

impl<P: Caller, M: IntoMessage> CallBuilder<P, M, &Client> {
    /// Declares that the call may be executed twice: it is retried even if an attempt may have been executed.
    pub fn idempotent(self) -> Self {
        self.map_options(|options| options.idempotent())
    }

    /// Makes a second attempt, at a second server if possible, when the first attempt has not ended after `time`; the
    /// first response counts. Implies [`idempotent`](Self::idempotent), and copies the request for each attempt.
    pub fn hedge_after(self, time: Duration) -> Self {
        self.map_options(|options| options.hedge_after(time))
    }

    /// Waits for a server until the call's timeout when none can be reached, instead of failing the call.
    pub fn wait_for_ready(self) -> Self {
        self.map_options(|options| options.wait_for_ready())
    }

    /// Sends the call to the server that the key maps to: see [`client::Call::key`](crate::client::Call::key).
    pub fn key(self, key: impl AsRef<[u8]>) -> Self {
        self.map_options(|options| options.key(key.as_ref()))
    }
}
