//! What a fabric is made of, in numbers, with defaults that resemble one rack of 25 Gbit/s hosts.

/// Settings of the whole fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Bytes that every packet occupies on a link and in a buffer beyond its payload.
    pub overhead_bytes: u32,
    /// Delay between two endpoints of one host, in nanoseconds.
    pub loopback_ns: u64,
    /// Whether a receiving NIC drops corrupted packets, as the checksums of real networks make it
    /// do. Off, they are delivered, and parsers meet them.
    pub verify_checksums: bool,
    /// What computing costs.
    pub cpu: CpuConfig,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            // Ethernet 14, IPv4 20, UDP 8.
            overhead_bytes: 42,
            // Between two processes through memory, one wake-up excluded.
            loopback_ns: 300,
            verify_checksums: false,
            cpu: CpuConfig::default(),
        }
    }
}

/// What one pass of an actor costs its core, in virtual nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// Each pass. At least 1 is charged, so that an actor which never rests cannot stop time.
    pub poll_ns: u64,
    /// Up to this much more for each pass, at random.
    pub poll_jitter_ns: u64,
    /// Each frame sent or received during the pass.
    pub frame_ns: u64,
}

impl Default for CpuConfig {
    fn default() -> Self {
        // A busy-polled loop on a current server core.
        Self { poll_ns: 200, poll_jitter_ns: 50, frame_ns: 50 }
    }
}

/// A link; the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second. At least 1.
    pub rate_bps: u64,
    /// From the last bit sent to the last bit received, in nanoseconds.
    pub delay_ns: u64,
}

impl LinkConfig {
    /// A link of so many gigabits per second.
    pub const fn gbit(gbit_per_second: u64, delay_ns: u64) -> Self {
        Self { rate_bps: gbit_per_second * 1_000_000_000, delay_ns }
    }
}

impl Default for LinkConfig {
    fn default() -> Self {
        // Cable, PHYs and one cut-through hop.
        Self::gbit(25, 500)
    }
}

/// The queues of a host's NIC. The receive limits hold for each bound port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Packets that wait for the link, the one being sent included.
    pub tx_packets: usize,
    /// Bytes of those packets, overhead included.
    pub tx_bytes: u64,
    /// Packets received that the endpoint has not taken.
    pub rx_packets: usize,
    /// Bytes of those packets, overhead included.
    pub rx_bytes: u64,
}

impl Default for NicConfig {
    fn default() -> Self {
        // Usual ring sizes; the bytes never bind before the packets at a 1500-byte MTU.
        Self { tx_packets: 1024, tx_bytes: 4 << 20, rx_packets: 1024, rx_bytes: 4 << 20 }
    }
}

/// A switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchConfig {
    /// How its packet memory is divided among its output ports.
    pub buffer: BufferPolicy,
}

/// How the packet memory of a switch is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferPolicy {
    /// Each output port has this many bytes of its own.
    PerPort {
        /// Bytes, overhead included.
        bytes: u64,
    },
}

impl Default for BufferPolicy {
    fn default() -> Self {
        // A 12 MB shared buffer divided by 32 ports.
        Self::PerPort { bytes: 384 << 10 }
    }
}
