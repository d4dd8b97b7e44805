//! An endpoint over the real transports and the real control plane.

use petrel_proto::control::PathPorts;
use petrel_transport::Transport;
use petrel_transport::host::Host;
use petrel_transport::udp::{Device, DeviceState};

use super::{AllowedTransports, Endpoint, EndpointConfig, IdlePolicy};
use crate::error::SetupError;
use crate::events;
use crate::nexus::media::Medium;
use crate::nexus::media::verbs::Card;
use crate::nexus::{Attach, Nexus, ShmAttach, UdpAttach};

impl Nexus {
    /// Creates an endpoint of the process, for the calling thread. Clones of the nexus can be moved to other threads,
    /// to create endpoints there.
    ///
    /// # Errors
    /// A setting breaks a rule, the transports could not start, or the nexus refused the endpoint.
    pub fn endpoint(&self, config: EndpointConfig) -> Result<Endpoint, SetupError> {
        self.endpoint_with(config, ())
    }

    /// Creates an endpoint with a state of the application, which the endpoint lends to handlers and continuations.
    ///
    /// # Errors
    /// As [`Nexus::endpoint`].
    pub fn endpoint_with<S: 'static>(
        &self,
        config: EndpointConfig,
        state: S,
    ) -> Result<Endpoint<S>, SetupError> {
        config.check().map_err(SetupError::refused)?;
        let AllowedTransports { udp, shm, stream, verbs } = config.transports;
        if !(udp || shm || stream || verbs) {
            return Err(SetupError::refused(
                "an endpoint needs a transport: UDP, shared memory, streams or an RDMA card",
            ));
        }
        let mut host = config.host.clone();
        host.udp.bind.set_ip(config.data_address.unwrap_or_else(|| self.data_address()));
        let device = host.udp.device.get_or_insert_with(|| self.device().clone());
        if let (Device::Verbs(card), false) = (&*device, verbs) {
            if card.is_required {
                let why = "the device is an RDMA card, which the transports leave out: allow verbs";
                return Err(SetupError::refused(why));
            }
            *device = Device::Kernel;
        }
        // Saves peers the fence for the check whether to wake the endpoint.
        host.shm.never_sleeps |= matches!(config.idle, IdlePolicy::Poll | IdlePolicy::Yield);
        #[cfg(feature = "factors")]
        if !config.optimisations.fence_free {
            host.shm.never_sleeps = config.host.shm.never_sleeps;
        }
        host.is_without_udp = !udp;
        let transport = Host::new(host.clone()).map_err(SetupError::of_transport)?;
        if let Some(DeviceState::Off(why)) = transport.device() {
            events::device_off(transport.udp().local_addr(), &why);
        }
        self.endpoint_over(transport, EndpointConfig { host, ..config }, state)
    }

    /// Creates an endpoint over open transports.
    #[doc(hidden)]
    pub fn endpoint_over<S: 'static>(
        &self,
        transport: Host,
        config: EndpointConfig,
        state: S,
    ) -> Result<Endpoint<S>, SetupError> {
        let AllowedTransports { udp, shm, stream, verbs } = config.transports;
        let heeds_marks = config.protocol.congestion.heeds_marks();
        let data_port = UdpAttach {
            local: transport.udp().local_addr(),
            mtu: transport.udp().mtu(),
            reads_marks: transport.udp().capabilities().ecn,
            heeds_marks,
            further_ports: PathPorts::new(transport.further_ports())
                .expect("a transport has at most 31 further source ports, each once"),
            uses_paths: config.uses_paths(),
        };
        let attach = Attach {
            id: config.id,
            udp: udp.then_some(data_port),
            shm: shm.then_some(ShmAttach { config: config.host.shm }),
            stream,
            waker: transport.waker(),
        };
        let none = || "no RDMA card is chosen: --device verbs, or NexusBuilder::device".to_owned();
        let mut others: Vec<Box<dyn Medium<_>>> = Vec::new();
        match transport.far().card() {
            Some(Ok(card)) if verbs => others.push(Box::new(Card::new(card, heeds_marks))),
            off if !(udp || shm || stream) => {
                let why = off.and_then(Result::err).cloned();
                return Err(SetupError::refused(why.unwrap_or_else(none)));
            }
            _ => {}
        }
        let port = self.attach_with(attach, others)?;
        Endpoint::with_state(transport, port, &config, state).map_err(SetupError::refused)
    }
}
