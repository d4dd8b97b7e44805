//! Binding and closing ports.

use crate::time::Time;

use super::cpu::ActorId;
use super::nic::Port;
use super::packet::SimAddr;
use super::stats::DropReason;
use super::topology::HostId;
use super::{Fabric, Place};

/// The lowest port that a host binds for sending alone: the ephemeral ports of Linux begin here.
pub(crate) const SOURCE_PORT_FIRST: u16 = 32_768;

/// The error of binding a port.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The topology has no such host.
    #[error("there is no host {0} in this fabric")]
    UnknownHost(HostId),
    /// The host has crashed and is not back.
    #[error("{0} is down; bind again after its restart")]
    HostDown(HostId),
    /// The port is already bound.
    #[error("{0} is bound already; take another port or close the transport that has it")]
    InUse(SimAddr),
    /// The largest frame is below the size that every transport must carry, or above the size of a datagram.
    #[error("frames of {bytes} bytes are outside of {min} to {max} bytes", min = crate::transport::FRAME_BYTES.start(), max = crate::transport::FRAME_BYTES.end())]
    FrameBytes {
        /// The requested size.
        bytes: usize,
    },
    /// A transport needs a source port, and its medium allows only some.
    #[error("{count} source ports; this medium allows 1 to {count_max}")]
    SourcePorts {
        /// The requested number.
        count: u8,
        /// The largest number.
        count_max: u8,
    },
    /// All ports for sending are bound.
    #[error(
        "{0} has no free port left to send from; close transports or give them fewer source ports"
    )]
    NoFreePort(HostId),
    /// The operating system provided no descriptor for the transport's waker.
    #[error("cannot make a waker: {0}; close files or raise the limit of open files")]
    Waker(std::io::Error),
}

/// A bound port, in one incarnation of its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binding {
    pub(crate) at: SimAddr,
    pub(super) incarnation: u32,
    pub(super) waker: u64,
}

impl Fabric {
    /// Binds a port. Returns the host's incarnation, which names the binding from then on.
    pub(super) fn bind(&mut self, at: SimAddr) -> Result<u32, BindError> {
        let Some(host) = self.hosts.get_mut(usize::from(at.host.0)) else {
            return Err(BindError::UnknownHost(at.host));
        };
        if !host.is_up {
            return Err(BindError::HostDown(at.host));
        }
        if host.has_port(at.port) {
            return Err(BindError::InUse(at));
        }
        host.ports.insert(at.port, Port::default());
        Ok(host.incarnation)
    }

    /// Binds ports that only send, in addition to a binding: the lowest free ones.
    pub(crate) fn open_source_ports(
        &mut self,
        binding: Binding,
        count: usize,
    ) -> Result<Vec<u16>, BindError> {
        let host = &mut self.hosts[usize::from(binding.at.host.0)];
        let free = (SOURCE_PORT_FIRST..=u16::MAX).filter(|&port| !host.has_port(port));
        let ports: Vec<u16> = free.take(count).collect();
        if ports.len() < count {
            return Err(BindError::NoFreePort(binding.at.host));
        }
        host.source_ports.extend(&ports);
        Ok(ports)
    }

    /// Closes ports that only send.
    pub(super) fn close_source_ports(&mut self, binding: Binding, ports: &[u16]) {
        if self.is_bound(binding) {
            let open = &mut self.hosts[usize::from(binding.at.host.0)].source_ports;
            ports.iter().for_each(|port| assert!(open.remove(port), "an open port is closed once"));
        }
    }

    /// Closes a port; packets in its receive queue are dropped.
    pub(super) fn close(&mut self, at: SimAddr, incarnation: u32) {
        if !self.hosts[usize::from(at.host.0)].is_current(incarnation) {
            return;
        }
        let ports = &mut self.hosts[usize::from(at.host.0)].ports;
        let Some(mut port) = ports.remove(&at.port) else { return };
        self.multicast.close(at);
        while let Some(packet) = port.pop() {
            self.drop_packet(packet, DropReason::Closed, Place::Host(at.host));
        }
    }

    /// Returns true if the host of a binding has not crashed since.
    pub(crate) fn is_bound(&self, binding: Binding) -> bool {
        self.hosts[usize::from(binding.at.host.0)].is_current(binding.incarnation)
    }

    /// Returns true if packets wait in the receive queue of a port.
    pub(crate) fn has_waiting(&self, at: SimAddr) -> bool {
        let ports = &self.hosts[usize::from(at.host.0)].ports;
        ports.get(&at.port).is_some_and(|port| !port.is_empty())
    }

    /// Makes the owner of a port run soon.
    pub(crate) fn wake_owner(&mut self, at: SimAddr) {
        if let Some(owner) = self.port_mut(at).and_then(|port| port.owner) {
            self.wake(owner);
        }
    }

    /// Makes `actor` run when a packet arrives at a port, and at once if one has arrived.
    pub(crate) fn set_owner(&mut self, at: SimAddr, actor: ActorId) {
        let Some(port) = self.port_mut(at) else { return };
        port.owner = Some(actor);
        if !port.is_empty() {
            self.wake(actor);
        }
    }

    /// Records that a transmission from this port was refused.
    pub(crate) fn note_tx_blocked(&mut self, at: SimAddr) {
        self.stats.tx_blocked += 1;
        if let Some(port) = self.port_mut(at) {
            port.is_tx_waiting = true;
        }
    }

    /// Records that the owner of this port sleeps for `timeout_ns` at most.
    pub(crate) fn note_port_wait(&mut self, at: SimAddr, timeout_ns: Option<u64>) {
        let deadline = timeout_ns.map_or(Time::NEVER, |ns| self.now.plus_ns(ns));
        if let Some(owner) = self.port_mut(at).and_then(|port| port.owner) {
            self.note_wait(owner, deadline);
        }
    }

    fn port_mut(&mut self, at: SimAddr) -> Option<&mut Port> {
        self.hosts.get_mut(usize::from(at.host.0))?.ports.get_mut(&at.port)
    }
}
