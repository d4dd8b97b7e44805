//! Switches: packet memory divided among output ports.

use super::config::{BufferPolicy, SwitchConfig};
use super::stats::{DropReason, SwitchStats};

/// A switch. Its ports are the outgoing links; a link keeps the packets waiting in the port. A buffer
/// policy sees the port's bytes and the total, to divide the memory by demand.
#[derive(Debug)]
pub(super) struct Switch {
    pub(super) config: SwitchConfig,
    /// Makes the switch's choice among equal paths differ from other switches.
    pub(super) salt: u64,
    pub(super) stats: SwitchStats,
}

impl Switch {
    pub(super) fn new(config: SwitchConfig, salt: u64) -> Self {
        Self { config, salt, stats: SwitchStats::default() }
    }

    /// Reserves memory for a packet, or returns the reason of the refusal.
    #[inline]
    pub(super) fn admit(
        &mut self,
        packet_bytes: u64,
        port_queued_bytes: u64,
    ) -> Result<(), DropReason> {
        let refusal = self.refusal(packet_bytes, port_queued_bytes);
        match refusal {
            None => {
                self.stats.used_bytes += packet_bytes;
                self.stats.used_bytes_max = self.stats.used_bytes_max.max(self.stats.used_bytes);
                return Ok(());
            }
            Some(DropReason::SwitchThreshold) => self.stats.dropped_threshold += 1,
            Some(_) => self.stats.dropped_full += 1,
        }
        refusal.map_or(Ok(()), Err)
    }

    #[inline]
    pub(super) fn release(&mut self, packet_bytes: u64) {
        debug_assert!(self.stats.used_bytes >= packet_bytes);
        self.stats.used_bytes -= packet_bytes;
    }

    /// Returns the bytes in use by all ports.
    pub(super) fn used_bytes(&self) -> u64 {
        self.stats.used_bytes
    }

    /// Resets all counters except the bytes in use.
    pub(super) fn begin_measuring(&mut self) {
        let used_bytes = self.used_bytes();
        self.stats =
            SwitchStats { used_bytes, used_bytes_max: used_bytes, ..SwitchStats::default() };
    }

    /// Returns why a packet may not enter a port, by the buffer policy.
    fn refusal(&self, packet_bytes: u64, port_queued_bytes: u64) -> Option<DropReason> {
        let wanted = port_queued_bytes + packet_bytes;
        match self.config.buffer {
            BufferPolicy::PerPort { bytes } => (wanted > bytes).then_some(DropReason::SwitchBuffer),
            BufferPolicy::Shared { bytes, alpha_num, alpha_den } => {
                let free = bytes.saturating_sub(self.used_bytes());
                if packet_bytes > free {
                    return Some(DropReason::SwitchBuffer);
                }
                let is_over = u128::from(wanted) * u128::from(alpha_den)
                    > u128::from(free) * u128::from(alpha_num);
                is_over.then_some(DropReason::SwitchThreshold)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switch(buffer: BufferPolicy) -> Switch {
        Switch::new(SwitchConfig { buffer, ..SwitchConfig::default() }, 0)
    }

    #[test]
    fn admit__each_port_has_its_own_memory() {
        let mut switch = switch(BufferPolicy::PerPort { bytes: 100 });
        assert_eq!(switch.admit(60, 0), Ok(()));
        assert_eq!(switch.admit(60, 60), Err(DropReason::SwitchBuffer));
        assert_eq!(switch.admit(40, 60), Ok(()));
        assert_eq!(switch.admit(100, 0), Ok(()), "another port");
        assert_eq!(switch.used_bytes(), 200);
        switch.release(60);
        let stats = switch.stats;
        assert_eq!((stats.used_bytes, stats.used_bytes_max, stats.dropped_full), (140, 200, 1));
    }

    #[test]
    fn admit__a_share_of_what_is_free() {
        // Half of the free memory.
        let mut switch = switch(BufferPolicy::Shared { bytes: 100, alpha_num: 1, alpha_den: 2 });
        assert_eq!(switch.admit(51, 0), Err(DropReason::SwitchThreshold));
        assert_eq!(switch.admit(30, 0), Ok(()));
        // 70 are free: the port with 30 may hold 35.
        assert_eq!(switch.admit(6, 30), Err(DropReason::SwitchThreshold));
        assert_eq!(switch.admit(5, 30), Ok(()));
        assert_eq!(switch.admit(32, 0), Ok(()), "another port");
        assert_eq!(switch.admit(34, 0), Err(DropReason::SwitchBuffer), "33 are free");
        switch.begin_measuring();
        assert_eq!(switch.stats.dropped_threshold, 0);
        assert_eq!((switch.stats.used_bytes, switch.stats.used_bytes_max), (67, 67));
    }

    #[test]
    fn admit__a_large_alpha_lets_one_port_take_almost_all() {
        let mut switch = switch(BufferPolicy::Shared { bytes: 900, alpha_num: 8, alpha_den: 1 });
        let taken = (0..).take_while(|&queued| switch.admit(1, queued).is_ok()).count();
        // The arriving packet is not counted as used: 8 * (900 - 800) = 800.
        assert_eq!((taken, switch.used_bytes()), (800, 800));
        assert_eq!(switch.stats.dropped_threshold, 1);
    }
}
