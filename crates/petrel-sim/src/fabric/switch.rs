//! Switches: packet memory divided among output ports.

use super::config::{BufferPolicy, SwitchConfig};

/// The packet memory of a switch.
///
/// Ports are the links that lead out of it; `queued_bytes` of a port is kept by its link. A policy
/// sees both that and the total, so that it may divide the memory statically or by demand.
#[derive(Debug)]
pub(super) struct Switch {
    policy: BufferPolicy,
    used_bytes: u64,
}

impl Switch {
    pub(super) fn new(config: SwitchConfig) -> Self {
        Self { policy: config.buffer, used_bytes: 0 }
    }

    /// Takes memory for a packet, or says that there is none for its port.
    pub(super) fn admit(&mut self, packet_bytes: u64, port_queued_bytes: u64) -> bool {
        let BufferPolicy::PerPort { bytes } = self.policy;
        let fits = port_queued_bytes + packet_bytes <= bytes;
        if fits {
            self.used_bytes += packet_bytes;
        }
        fits
    }

    /// Gives the memory of a packet back.
    pub(super) fn release(&mut self, packet_bytes: u64) {
        debug_assert!(self.used_bytes >= packet_bytes);
        self.used_bytes -= packet_bytes;
    }

    /// Bytes in use for all ports.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admit__each_port_has_its_own_memory() {
        let buffer = BufferPolicy::PerPort { bytes: 100 };
        let mut switch = Switch::new(SwitchConfig { buffer });
        assert!(switch.admit(60, 0));
        assert!(!switch.admit(60, 60));
        assert!(switch.admit(40, 60));
        assert!(switch.admit(100, 0), "another port");
        assert_eq!(switch.used_bytes(), 200);
        switch.release(60);
        assert_eq!(switch.used_bytes(), 140);
    }
}
