//! What must hold when a world has come to rest.

use petrel_proto::counters::Counters;

use super::report::Report;
use super::scenario::Weather;
use super::world::World;

impl World {
    /// A session without pending calls has all its credits.
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

    /// Tables and queues hold no more than they are allowed to, whatever happens.
    pub(super) fn check_tables(&self) -> Result<(), String> {
        for (_, node) in self.simulation.actors() {
            let core = node.endpoint.core();
            let (census, sessions, limits) = (core.census(), core.session_count(), &node.limits);
            let waiting_max = u64::from(sessions) * limits.backlog_max as u64;
            let all = [
                ("sessions", u64::from(sessions), u64::from(limits.sessions_max)),
                ("calls that wait", census.waiting as u64, waiting_max),
                ("bytes of large messages", census.held_bytes, limits.memory_bytes),
            ];
            for (name, count, most) in all {
                if count > most {
                    return Err(format!("{} has {count} {name}, and not {most}", node.shared.at));
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_end(mut self, seed: u64) -> Result<Report, String> {
        self.common.ledger.borrow_mut().close();
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
            self.buffers_reused += node.shared.spare.borrow().reused;
        }
        let stats = self.common.fabric.stats();
        if !stats.is_balanced() {
            return Err(format!("packets are not accounted for: {stats:?}"));
        }
        self.check_counters()?;
        self.check_economy()?;
        let ledger = self.common.ledger.borrow();
        Ok(Report {
            seed,
            digest: self.common.fabric.digest() ^ ledger.digest,
            nexus: Default::default(),
            virtual_ns: self.common.fabric.now_ns(),
            calls: ledger.call_count() as u64,
            counts: ledger.counts,
            errands: ledger.errand_counts,
            troubles: ledger.troubles.count() as u64,
            protocol: self.counters,
            frames_witnessed: self.common.witness.borrow().frames,
            contents: self.common.witness.borrow().content_counts(),
            buffers_reused: self.buffers_reused,
            fabric: stats,
            control: self.common.control.stats(),
        })
    }

    /// Honest endpoints send each other nothing that breaks the rules.
    fn check_counters(&self) -> Result<(), String> {
        let counters = &self.counters;
        let wrong = [
            ("dropped_malformed", counters.dropped_malformed),
            ("dropped_wrong_direction", counters.dropped_wrong_direction),
            ("dropped_wrong_peer", counters.dropped_wrong_peer),
            ("dropped_future", counters.dropped_future),
            ("dropped_beyond_window", counters.dropped_beyond_window),
        ];
        let found = wrong.into_iter().find(|&(_, count)| count > 0);
        match found {
            Some((name, count)) if !self.common.scenario.is_attacked => {
                Err(format!("{name} is {count}, and nobody forged anything"))
            }
            _ if self.common.scenario.weather == Weather::Still => self.check_stillness(),
            _ => Ok(()),
        }
    }

    /// What is sent again is in proportion to what happened to packets and to timeouts: one loss
    /// must not lead to thousands of repetitions. The factors are several times what was seen. Who
    /// goes back N is not economical.
    fn check_economy(&self) -> Result<(), String> {
        if self.common.scenario.goes_back_n() {
            return Ok(());
        }
        let (fabric, counters) = (self.common.fabric.stats(), &self.counters);
        let harm = fabric.dropped_total() + fabric.duplicated + fabric.reordered + fabric.injected;
        let looks = counters.timeouts + counters.probes;
        let bound = 4 * harm + 16 * looks + 500 * fabric.spikes + 1_000;
        let is_calm = self.common.ledger.borrow().troubles.count() == 0;
        if is_calm && counters.packets_retransmitted > bound {
            let sent = counters.packets_retransmitted;
            return Err(format!("{sent} packets were sent again, and {harm} were harmed"));
        }
        Ok(())
    }

    /// Where nothing is lost and nothing is late, nothing is found lost or sent again.
    fn check_stillness(&self) -> Result<(), String> {
        let Counters { timeouts, probes, losses_detected, packets_retransmitted, .. } =
            self.counters;
        // A handler that takes its time is asked.
        let is_quiet = timeouts + probes == 0 && self.common.fabric.stats().dropped_total() == 0;
        // A request without memory or time, over a share, or dropped for others, is refused once for each of its packets.
        let refused = self.counters.refused_no_memory
            + self.counters.refused_over_share
            + self.counters.requests_expired
            + self.counters.requests_dropped_idle
            + self.counters.requests_dropped_short;
        let is_quiet = is_quiet && refused == 0;
        if is_quiet && losses_detected + packets_retransmitted > 0 {
            let sent = packets_retransmitted;
            return Err(format!("{losses_detected} packets seemed lost, {sent} were sent again"));
        }
        Ok(())
    }
}
