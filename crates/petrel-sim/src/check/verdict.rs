//! The rules for an idle world.

use petrel_proto::counters::Counters;

use super::call::Call;
use super::ledger::Gap;
use super::measure::HEADERS_BYTES;
use super::report::Report;
use super::scenario::{FaultLevel, Scenario};
use super::world::World;

/// Maximum time of a call for queues and lost packets, excluding the links: consecutive losses are probed
/// for at intervals of up to 0.1 s, and a nested call waits for two calls.
const STALL_NS_MAX: u64 = 2_000_000_000;

impl World {
    /// Checks that sessions without pending calls have all credits.
    pub(super) fn check_credits(&self) -> Result<(), String> {
        for (_, node) in self.simulation.actors() {
            for open in &node.open {
                let core = node.endpoint.core();
                let Some((free, all)) = core.credits(open.session) else { continue };
                let pending = core.pending_calls(open.session);
                if pending != 0 || free != all {
                    return Err(format!(
                        "{} has {free} of {all} credits and {pending} pending calls on {open:?}",
                        node.shared.at
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks the client's counters of paths against the frames that left.
    pub(super) fn check_paths(&self) -> Result<(), String> {
        let wire_checker = self.common.wire_checker.borrow();
        for (_, node) in self.simulation.actors() {
            let core = node.endpoint.core();
            for open in &node.open {
                let Some(token) = core.token(open.session) else { continue };
                let (at, counts) = (node.shared.at, core.path_counts(open.session));
                let name = (at, open.session.index, token);
                wire_checker
                    .check_path_counts(name, counts)
                    .map_err(|wrong| format!("{at}: {wrong} on {open:?}"))?;
            }
        }
        Ok(())
    }

    /// Checks that tables and queues stay within their limits.
    pub(super) fn check_tables(&self) -> Result<(), String> {
        for (_, node) in self.simulation.actors() {
            let core = node.endpoint.core();
            let (object_counts, sessions, limits) =
                (core.object_counts(), core.session_count(), &node.limits);
            let waiting_max = u64::from(sessions) * limits.backlog_max as u64;
            let all = [
                ("sessions", u64::from(sessions), u64::from(limits.sessions_max)),
                ("calls that wait", object_counts.waiting as u64, waiting_max),
                ("bytes of large messages", object_counts.held_bytes, limits.memory_bytes),
            ];
            for (name, count, most) in all {
                if count > most {
                    return Err(format!("{} has {count} {name}, and not {most}", node.shared.at));
                }
            }
        }
        Ok(())
    }

    /// Checks that nothing is left of an ended run, and reports the run's counters.
    pub(super) fn check_end(mut self, seed: u64) -> Result<Report, String> {
        self.common.ledger.borrow_mut().close();
        self.common.ledger.borrow_mut().close_regions();
        self.check_now()?;
        for (_, node) in self.simulation.actors() {
            let in_use = node.endpoint.buffers_in_use();
            if in_use.count != 0 {
                return Err(format!("{} has leaked buffers: {in_use:?}", node.shared.at));
            }
            if let Some((what, count)) = node.left_at_end() {
                return Err(format!("{} has {count} {what} at the end", node.shared.at));
            }
            self.counters += *node.endpoint.core().counters();
            self.buffers_reused += node.shared.free_list.borrow().reused;
            self.count_workers(node);
        }
        let stats = self.common.fabric.stats();
        if !stats.is_balanced() {
            return Err(format!("packets are not accounted for: {stats:?}"));
        }
        self.check_counters()?;
        self.check_economy()?;
        self.check_longest()?;
        let ledger = self.common.ledger.borrow();
        Ok(Report {
            seed,
            digest: self.common.fabric.digest() ^ ledger.digest,
            nexus: Default::default(),
            multicast_world: Default::default(),
            virtual_ns: self.common.fabric.now_ns(),
            calls: ledger.call_count() as u64,
            largest_batch: self.common.largest_batch.get() as u64,
            counts: ledger.counts,
            client_calls: ledger.client_call_counts,
            regions: ledger.regions.counts,
            fault_windows: ledger.fault_windows.count() as u64,
            protocol: self.counters,
            frames_checked: self.common.wire_checker.borrow().frames,
            contents: self.common.wire_checker.borrow().content_counts(),
            path_use: self.common.wire_checker.borrow().path_use(),
            buffers_reused: self.buffers_reused,
            fabric: stats,
            control: self.common.control.stats(),
        })
    }

    /// Checks that honest endpoints send no frame against the rules.
    ///
    /// Over several paths, after a crash, another endpoint of the host may get a source port of the crashed one. If
    /// frames from this port still wait at a peer that was paused meanwhile, the peer takes them for frames of the new
    /// endpoint (seed 31095).
    fn check_counters(&self) -> Result<(), String> {
        let counters = &self.counters;
        let has_ways = self.common.scenario.ways.is_some();
        let may_reuse_ports = has_ways && self.common.fabric.stats().crashes > 0;
        let dropped_wrong_peer = if may_reuse_ports { 0 } else { counters.dropped_wrong_peer };
        // A plain link passes on all packets from the address of the peer, and the endpoint drops the strange packets.
        let [dropped_malformed, dropped_wrong_peer] =
            match self.common.fabric.stats().strange_on_plain_links {
                0 => [counters.dropped_malformed, dropped_wrong_peer],
                _ => [0; 2],
            };
        let wrong = [
            ("dropped_malformed", dropped_malformed),
            ("dropped_wrong_direction", counters.dropped_wrong_direction),
            ("dropped_wrong_peer", dropped_wrong_peer),
            ("dropped_future", counters.dropped_future),
            ("dropped_beyond_window", counters.dropped_beyond_window),
        ];
        let found = wrong.into_iter().find(|&(_, count)| count > 0);
        match found {
            Some((name, count)) if !self.common.scenario.is_attacked => {
                Err(format!("{name} is {count}, and nobody forged anything"))
            }
            _ if self.common.scenario.fault_level == FaultLevel::None => {
                self.check_without_faults()
            }
            _ => Ok(()),
        }
    }

    /// Checks that retransmissions and probes are in proportion to faults of packets. One loss must not lead to
    /// thousands of retransmissions, and timeouts do not justify further timeouts. A long call is probed at growing
    /// intervals: the number of probes is logarithmic in the duration. The factors are several times the values seen in
    /// 3 000 worlds. Endpoints that go back N are not economical, and fault windows lose whole windows of packets.
    fn check_economy(&self) -> Result<(), String> {
        let ledger = self.common.ledger.borrow();
        if self.common.scenario.goes_back_n() || ledger.fault_windows.count() > 0 {
            return Ok(());
        }
        let (fabric, counters) = (self.common.fabric.stats(), &self.counters);
        let fault_count =
            fabric.dropped_total() + fabric.duplicated + fabric.reordered + fabric.injected;
        let fault_count =
            fault_count + 20 * (fabric.spikes + fabric.wakes_late + fabric.wakes_refused);
        let probes = counters.timeouts + counters.probes;
        let probes_max = 4 * (ledger.probe_bound() + fault_count) + 200;
        if probes > probes_max {
            return Err(format!(
                "{probes} probes for packets that seemed lost, and not {probes_max}"
            ));
        }
        // Over paths whose queues differ by milliseconds, packets are sent again that are only late (seed 786629).
        let late = if self.common.scenario.ways.is_some() { counters.packets_sent / 2 } else { 0 };
        let (repeated, repeated_max) =
            (counters.packets_retransmitted, 4 * (probes + fault_count) + 200 + late);
        if repeated > repeated_max {
            return Err(format!("{repeated} packets were sent again, and not {repeated_max}"));
        }
        Ok(())
    }

    /// Checks that without fault windows, no call waits longer than the links need for all data, plus the
    /// timeouts for lost packets. This is the lower bound of goodput, too, and no session starves.
    ///
    /// A controller with a wrong estimate may take every round trip for a queue, and then it stays at its
    /// minimum rate. For example, a slow link may need longer for a packet of 50 KB than the controller's
    /// allowed queueing delay. The controller guarantees its minimum rate at any time. A session of few credits waits for
    /// a round trip after each window of packets (seed 50038).
    fn check_longest(&self) -> Result<(), String> {
        let (ledger, scenario) = (self.common.ledger.borrow(), &self.common.scenario);
        if ledger.fault_windows.count() > 0 {
            return Ok(());
        }
        let bytes = scenario.bytes * u64::from(scenario.endpoints());
        let bound_ns = STALL_NS_MAX + 10 * scenario.path.sending_ns(bytes);
        let wire_checker = self.common.wire_checker.borrow();
        let gap = |call: &Call| {
            let packet_bytes = wire_checker.packet_bytes(call.client_at, call.session.index);
            let is_controlled = ledger.controlled.contains(&call.client);
            let paced_ns = if is_controlled { Scenario::gap_ns_max(packet_bytes) } else { 0 };
            // A message has half of the credits if they suffice for sharing, and a round trip for each window of these. A
            // direction may be slower than the path that the scenario knows.
            let round_ns = 4 * scenario.path.trip_ns(u64::from(packet_bytes) + HEADERS_BYTES);
            let credits = wire_checker.credits(call.client_at, call.session.index);
            let credits_ns = credits.map_or(0, |credits| {
                let window = if credits < 4 { credits } else { credits / 2 };
                (round_ns + self.cpu_ns(4, 4)) / u64::from(window.max(1))
            });
            Gap { packet_bytes, gap_ns: paced_ns.max(credits_ns) }
        };
        for (id, wait_ns) in ledger.waits().filter(|&(_, wait_ns)| wait_ns > bound_ns) {
            let held_back_ns = ledger.held_back_ns(id, &gap);
            if wait_ns > bound_ns + held_back_ns {
                let call = ledger.call(id);
                return Err(format!(
                    "call {id} waited {wait_ns} ns, and not {bound_ns} and {held_back_ns}: {call:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that without losses and delays, nothing is detected as lost or retransmitted.
    fn check_without_faults(&self) -> Result<(), String> {
        let Counters {
            timeouts, probes, losses_detected, packets_retransmitted, cancels_sent, ..
        } = self.counters;
        // A slow handler is probed.
        let is_quiet = timeouts + probes == 0 && self.common.fabric.stats().dropped_total() == 0;
        // A request without memory or time, over a share, or dropped in favour of others, is refused once per packet.
        let refused = self.counters.refused_no_memory
            + self.counters.refused_over_share
            + self.counters.requests_expired
            + self.counters.requests_dropped_idle
            + self.counters.requests_dropped_short;
        let is_quiet = is_quiet && refused == 0;
        // After an abandoned call, the oldest ordered call is sent again, since the server may wait for the
        // abandoned one (specification 14.6); an answered request is then answered again.
        let sent = packets_retransmitted;
        if is_quiet && (losses_detected > 0 || sent > 2 * cancels_sent) {
            return Err(format!(
                "{losses_detected} packets seemed lost, {sent} were sent again after {cancels_sent} abandoned calls"
            ));
        }
        Ok(())
    }
}
