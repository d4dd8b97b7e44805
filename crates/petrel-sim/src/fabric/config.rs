//! The settings of a fabric, with defaults that resemble one rack of 25 Gbit/s hosts.

use crate::rng::Probability;

/// Settings of the whole fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Bytes of a packet on a link and in a buffer in addition to its payload.
    pub overhead_bytes: u32,
    /// Delay between two endpoints of one host, in nanoseconds.
    pub loopback_ns: u64,
    /// Whether a receiving NIC drops corrupted packets, because of the checksums of real networks. If
    /// false, corrupted packets are delivered, and parsers process them.
    pub verify_checksums: bool,
    /// The cost of computing.
    pub cpu: CpuConfig,
}

impl FabricConfig {
    /// Bytes of a UDP packet over IPv4 on a real Ethernet in addition to its payload: the default's headers
    /// (42), checksum (4), preamble (8) and the gap between frames (12).
    pub const ETHERNET_OVERHEAD_BYTES: u32 = 66;
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

/// The core time of an actor's turn, in virtual nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuConfig {
    /// The time of each turn. At least 1 is charged: an actor that never sleeps must not stop time.
    pub poll_ns: u64,
    /// The maximum random addition to a turn.
    pub poll_jitter_ns: u64,
    /// The cost of a frame sent or received during the turn.
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
    /// The time from the last bit sent to the last bit received, in nanoseconds.
    pub delay_ns: u64,
}

impl LinkConfig {
    /// Makes a link of this number of gigabits per second.
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

/// The queues of a host's NIC. The receive limits hold per bound port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Packets that wait for the link, including the packet in transmission.
    pub tx_packets: usize,
    /// Bytes of those packets, overhead included.
    pub tx_bytes: u64,
    /// Received packets not taken by the endpoint yet.
    pub rx_packets: usize,
    /// Bytes of those packets, overhead included.
    pub rx_bytes: u64,
}

impl Default for NicConfig {
    fn default() -> Self {
        // Usual ring sizes; at an MTU of 1500 bytes the packets reach their limit before the bytes.
        Self { tx_packets: 1024, tx_bytes: 4 << 20, rx_packets: 1024, rx_bytes: 4 << 20 }
    }
}

/// A switch. The default stores and forwards without delay, and marks nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchConfig {
    /// The division of the packet memory among output ports.
    pub buffer: BufferPolicy,
    /// When output ports mark packets; `None` for never. [`Topology::set_ecn`] gives a single port another rule.
    ///
    /// [`Topology::set_ecn`]: super::Topology::set_ecn
    pub ecn: Option<EcnConfig>,
    /// How much of a packet the switch must have before it forwards the packet.
    pub forwarding: Forwarding,
    /// The time of the switch to put a packet that it can forward into the queue of the output port, in nanoseconds.
    pub latency_ns: u64,
}

/// How the packet memory of a switch is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BufferPolicy {
    /// Every output port has a separate memory.
    PerPort {
        /// Bytes, overhead included.
        bytes: u64,
    },
    /// All ports share one memory by a dynamic threshold (Choudhury and Hahne, 1998): a port may hold at
    /// most `alpha_num / alpha_den` times the free bytes. So `n` ports that all want more get alpha / (1 +
    /// n alpha) of the memory each, and the rest stays free for a port that becomes busy.
    Shared {
        /// Bytes of the memory, overhead of the packets included.
        bytes: u64,
        /// The numerator of alpha.
        alpha_num: u32,
        /// The denominator of alpha, not zero.
        alpha_den: u32,
    },
}

impl Default for BufferPolicy {
    fn default() -> Self {
        // A 12 MB shared buffer divided by 32 ports.
        Self::PerPort { bytes: 384 << 10 }
    }
}

/// When a switch forwards a packet that it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// The whole packet must be there.
    #[default]
    StoreAndForward,
    /// The header is enough ([`CUT_THROUGH_BYTES`]), if the output is not faster than the input. A faster
    /// output would run out of bits, and waits for the whole packet as real switches do.
    CutThrough,
}

/// Bytes that a cut-through switch reads before it decides: the headers, in the smallest Ethernet frame.
pub const CUT_THROUGH_BYTES: u64 = 64;

/// When an output port marks packets that allow marks: by RED on the instantaneous queue (Zhu et al.,
/// DCQCN, SIGCOMM 2015, §3.1). The queue is the content of the port when a packet arrives, including the
/// packet in transmission and excluding the arriving packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EcnConfig {
    /// The queue length in bytes up to which no packet is marked.
    pub k_min_bytes: u64,
    /// The queue length in bytes from which on every packet is marked.
    pub k_max_bytes: u64,
    /// The probability just below `k_max_bytes`. The probability grows linearly from zero at `k_min_bytes`.
    pub p_max: Probability,
}

impl EcnConfig {
    /// The values that the DCQCN paper deploys at 40 Gbit/s: 5 KB, 200 KB, 1 %.
    pub const DCQCN: Self =
        Self { k_min_bytes: 5_000, k_max_bytes: 200_000, p_max: Probability::percent(1) };
}
