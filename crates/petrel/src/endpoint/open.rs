//! An endpoint over the real transports and the real control plane.

use petrel_transport::Transport;
use petrel_transport::host::{Host, HostError};

use super::{Endpoint, EndpointConfig, IdlePolicy};
use crate::nexus::{Attach, Nexus, NexusError, ShmAttach, UdpAttach};

/// Why an endpoint could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The configuration breaks a rule.
    #[error("{0}")]
    Config(&'static str),
    /// The transports could not start.
    #[error(transparent)]
    Transport(#[from] HostError),
    /// The nexus did not take the endpoint.
    #[error(transparent)]
    Nexus(#[from] NexusError),
}

impl Nexus {
    /// An endpoint of this process, for the thread that asks. Clones of the nexus may be taken to
    /// other threads, to make endpoints there.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn endpoint(&self, config: EndpointConfig) -> Result<Endpoint, EndpointError> {
        self.endpoint_with(config, ())
    }

    /// The same with a state of the application, which the endpoint lends to handlers and continuations.
    ///
    /// # Errors
    /// See [`EndpointError`].
    pub fn endpoint_with<S: 'static>(
        &self,
        config: EndpointConfig,
        state: S,
    ) -> Result<Endpoint<S>, EndpointError> {
        config.check().map_err(EndpointError::Config)?;
        if !config.transports.udp && !config.transports.shm {
            return Err(EndpointError::Config("an endpoint needs UDP or shared memory, or both"));
        }
        let mut host = config.host.clone();
        host.udp.bind.set_ip(config.data_address.unwrap_or_else(|| self.data_address()));
        // Peers then save the fence with which they look whether they have to wake somebody.
        host.shm.never_sleeps |= matches!(config.idle, IdlePolicy::Poll | IdlePolicy::Yield)
            && config.factors.fence_free;
        let transport = Host::new(host.clone())?;
        let udp = UdpAttach {
            local: transport.udp().local_addr(),
            mtu: host.udp.mtu,
            reads_marks: transport.udp().capabilities().ecn,
            heeds_marks: config.protocol.congestion.heeds_marks(),
        };
        let port = self.attach(Attach {
            id: config.id,
            udp: config.transports.udp.then_some(udp),
            shm: config.transports.shm.then_some(ShmAttach { config: host.shm }),
            waker: transport.waker(),
        })?;
        Endpoint::with_state(transport, port, &config, state).map_err(EndpointError::Config)
    }
}
