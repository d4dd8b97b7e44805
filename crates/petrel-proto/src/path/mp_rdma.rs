//! *MP-RDMA* (§3): acknowledgements clock packets out on their own paths, without any state of a path.
//!
//! US patent 11,934,340 describes this scheme. So the policy is used by name only, never by a default.

use super::recycled::Recycled;
use super::set::PathSet;
use super::window::SharedWindow;
use super::{Feedback, PathId, Random};

/// The first window, in packets: the bandwidth-delay product of 40 Gbit/s and 9 µs (§5.1 uses one such
/// product).
const FIRST_PACKETS: u32 = 32;

/// Per round trip, one packet in this many looks for another path (§3.5: 1 %).
const PROBE_ONE_IN: u32 = 100;

/// Packets clocked out by an answer at most (§3.5).
const CLOCKED_MAX: u32 = 2;

/// Round trips without a packet after which the window begins anew (§3.5).
const IDLE_ROUND_TRIPS: u64 = 3;

/// The clock and the window.
#[derive(Debug)]
pub(super) struct MpRdma {
    window: SharedWindow,
    /// Paths whose answers clock a packet out.
    clocked: Recycled,
    answered_ns: u64,
    probed_ns: u64,
}

impl MpRdma {
    pub(super) fn new(packets_most: u32) -> Self {
        Self {
            window: SharedWindow::new(FIRST_PACKETS, packets_most),
            clocked: Recycled::default(),
            answered_ns: 0,
            probed_ns: 0,
        }
    }

    /// Returns the packets that may be in flight.
    pub(super) fn packets(&self) -> u32 {
        self.window.packets()
    }

    /// Returns the time of the burst timer: packets that no answer clocks out leave after half a round trip.
    pub(super) fn burst_ns(&self, set: &PathSet) -> u64 {
        self.answered_ns + set.srtt_least_ns() / 2
    }

    pub(super) fn choose(
        &mut self,
        now_ns: u64,
        set: &PathSet,
        random: &mut Random,
    ) -> Option<PathId> {
        let srtt_ns = set.srtt_least_ns();
        if set.in_flight() == 0 && now_ns >= self.answered_ns + IDLE_ROUND_TRIPS * srtt_ns {
            self.window.restart(FIRST_PACKETS);
            self.clocked.clear();
        }
        if set.in_flight() >= self.window.packets() {
            return None;
        }
        if let Some(path) = self.clocked.pop() {
            let may_probe = now_ns >= self.probed_ns + srtt_ns && random.below(PROBE_ONE_IN) == 0;
            if !may_probe {
                return Some(path);
            }
            self.probed_ns = now_ns;
            return Some(set.random(random, None));
        }
        (now_ns >= self.burst_ns(set)).then(|| set.random(random, None))
    }

    /// An answer clocks out as many packets as the window has room for, but two at most, and none if it was late.
    pub(super) fn note(&mut self, now_ns: u64, path: PathId, what: Feedback, set: &PathSet) {
        self.window.note(what);
        self.answered_ns = now_ns;
        if matches!(what, Feedback::Good | Feedback::Marked) {
            let promised = set.in_flight() + self.clocked.count();
            let room = self.window.packets().saturating_sub(promised);
            (0..room.min(CLOCKED_MAX)).for_each(|_| self.clocked.push(path));
        }
    }
}
