//! The end of a nexus world: agreement of both sides, and leftover state.

use std::collections::BTreeMap;

use petrel::nexus::stepped::TableSizes;

use super::foreign_peer::FOREIGN_HEARTBEAT_NS_MAX;
use super::rules::KEEP_ALIVE_HEARTBEATS;
use super::world::{Event, World};
use crate::net::ProcessId;

const MS: u64 = 1_000_000;

/// The first interval between checks for the end of a phase.
const CHECK_INTERVAL_NS: u64 = 2 * MS;
/// How long connections without links may stay (§9), including the time to close them.
const IDLE_NS: u64 = 65_000 * MS;
/// Longest of the time limits that do not depend on settings: HELLO, message, write, linger, early link, counters.
const REST_NS: u64 = 12_000 * MS;

impl World {
    /// Runs from the last fault to the last check.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.end_faults();
        let time_limit_ns = self.time_limit_ns();
        self.run_until_done(time_limit_ns, "everything is answered and agreed", World::is_settled)?;
        self.check_counters()?;
        self.leave();
        self.run_until_done(time_limit_ns, "nothing is left of links", World::has_no_links)?;
        self.check_descriptors()?;
        if self.scenario.waits_for_idle {
            self.run_until_done(IDLE_NS, "idle connections are closed", World::is_bare)?;
        }
        self.stop_all()
    }

    fn end_faults(&mut self) {
        self.is_fault_free = true;
        self.note(format_args!("FAULTS END"));
        self.net.borrow_mut().heal_all();
        self.net.borrow_mut().end_faults();
        self.cut_since.clear();
        let now_ns = self.now_ns();
        self.healed_ns = now_ns;
        for process in self.processes.values_mut() {
            process.paused_until_ns = process.paused_until_ns.min(now_ns);
            process.plan.late = crate::rng::Probability::NEVER;
        }
        self.actors
            .values_mut()
            .for_each(|actor| actor.hangs_until_ns = actor.hangs_until_ns.min(now_ns));
        let running: Vec<_> = self.current.iter().copied().flatten().collect();
        running.into_iter().for_each(|id| {
            self.fetch_news(id);
            self.after(0, Event::Turn(id));
        });
        self.report.stats_clients_answered =
            self.foreign_peers.iter().map(|foreign_peer| foreign_peer.answers).sum();
        // Foreign peers end.
        let foreign_peers: Vec<_> =
            self.foreign_peers.iter().map(|foreign_peer| foreign_peer.process).collect();
        let mut net = self.net.borrow_mut();
        foreign_peers.into_iter().for_each(|id| net.forget_process(id, true));
        drop(net);
        self.foreign_peers.clear();
    }

    fn time_limit_ns(&self) -> u64 {
        let heartbeat_ns = self.scenario.heartbeat_ns_max();
        // A process learns of the end of a silent client after three times the interval of its PINGs.
        let silence_ns = 3 * KEEP_ALIVE_HEARTBEATS * heartbeat_ns.max(FOREIGN_HEARTBEAT_NS_MAX);
        12 * self.scenario.step_ns_max() + silence_ns + 10 * heartbeat_ns + 2 * REST_NS
    }

    /// Runs until `is_done` finds nothing missing, at most for this time.
    fn run_until_done(
        &mut self,
        time_limit_ns: u64,
        what: &str,
        is_done: fn(&World) -> Result<(), String>,
    ) -> Result<(), String> {
        let end_ns = self.now_ns() + time_limit_ns;
        let mut pause_ns = CHECK_INTERVAL_NS;
        loop {
            self.run_until(self.now_ns() + pause_ns)?;
            self.check_questions()?;
            let Err(missing) = is_done(self) else { return Ok(()) };
            if self.now_ns() > end_ns {
                return Err(format!("not in time: {what}: {missing}"));
            }
            pause_ns = (pause_ns * 5 / 4).min(1_000 * MS);
        }
    }

    fn all_table_sizes(&self) -> impl Iterator<Item = (ProcessId, TableSizes)> + '_ {
        self.processes.iter().filter_map(|(id, process)| {
            process.nexus.as_ref().map(|nexus| (*id, nexus.table_sizes()))
        })
    }

    /// Checks that all questions are answered, and the ends of all links and sessions agree.
    fn is_settled(&self) -> Result<(), String> {
        let now_ns = self.now_ns();
        let late = self.current.iter().flatten().find(|id| !self.processes[*id].is_prompt(now_ns));
        if let Some(id) = late {
            return Err(format!("p{id} does not run"));
        }
        for actor in self.actors.values() {
            if !actor.is_at_rest() {
                return Err(format!("{} waits for an answer", actor.name()));
            }
        }
        for (id, sizes) in self.all_table_sizes() {
            let waiting = self.net.borrow().can_accept(id, self.processes[&id].plan.address);
            nothing(
                id,
                &[
                    ("connections to be accepted", usize::from(waiting)),
                    ("requests", sizes.waiting),
                    ("early links", sizes.early_links),
                    ("proposals", sizes.proposals),
                    ("tickets", sizes.tickets),
                    ("exchanges", sizes.exchanges),
                    ("queued exchanges", sizes.queued_exchanges),
                    ("links that are not up", sizes.links - sizes.links_up),
                    ("requesters", sizes.requesters),
                    ("unfinished connections", sizes.unfinished),
                ],
            )?;
            self.check_tables(id)?;
        }
        self.agree_on_sessions()?;
        self.agree_on_links()
    }

    /// Checks that no session exists on one side only.
    fn agree_on_sessions(&self) -> Result<(), String> {
        let held = |as_client: bool| {
            let actors = self.actors.values();
            let mut held: Vec<_> = actors.flat_map(|actor| actor.agreements(as_client)).collect();
            held.sort_unstable();
            held
        };
        let (clients, servers) = (held(true), held(false));
        if clients == servers {
            return Ok(());
        }
        let alone = |of: &[(u32, u32)], others: &[(u32, u32)]| {
            of.iter().filter(|one| !others.contains(one)).copied().collect::<Vec<_>>()
        };
        Err(format!(
            "sessions that clients alone hold: {:?}; servers alone: {:?}",
            alone(&clients, &servers),
            alone(&servers, &clients)
        ))
    }

    /// Checks that two processes count equal numbers of common links.
    fn agree_on_links(&self) -> Result<(), String> {
        let mut counts: BTreeMap<(u64, u64), (u64, u64)> = BTreeMap::new();
        for actor in self.actors.values() {
            let own = self.processes[&actor.process].incarnation;
            for view in actor.links.values() {
                match view.is_opener {
                    true => counts.entry((own, view.incarnation)).or_default().0 += 1,
                    false => counts.entry((view.incarnation, own)).or_default().1 += 1,
                }
            }
        }
        let odd = counts.iter().find(|(_, (opened, accepted))| opened != accepted);
        match odd {
            Some(((from, to), (opened, accepted))) => {
                Err(format!("{from:x} has {opened} links to {to:x}, which has {accepted}"))
            }
            None => Ok(()),
        }
    }

    /// Checks that counters agree with the messages to endpoints and with the sockets.
    fn check_counters(&self) -> Result<(), String> {
        for (id, process) in &self.processes {
            let Some(nexus) = &process.nexus else { continue };
            let (stats, sizes, net) = (nexus.stats(), nexus.table_sizes(), self.net.borrow());
            let actors = || self.actors.values().filter(|actor| actor.process == *id);
            let up: usize = actors().map(|actor| actor.links.len()).sum();
            let sum = |count: fn(&super::actor::MessageCounts) -> u64| {
                actors().map(|actor| count(&actor.counts)).sum::<u64>() + count(&process.counts)
            };
            let sockets = net.sockets_of(*id).count() as u64;
            let entry = &net.processes[*id];
            let always = [
                ("links_up", stats.links_up, up as u64),
                ("connections_open", stats.connections_open, sizes.connections as u64),
                ("connections_open", stats.connections_open, sockets),
                ("connections_accepted", stats.connections_accepted, entry.accepts),
                ("unsendable_messages", stats.unsendable_messages, 0),
            ];
            // If all peers are honest, a lost, repeated or misplaced byte shows as a broken message.
            let broken = [
                ("refused_strangers", stats.refused_strangers, 0),
                ("refused_malformed", stats.refused_malformed, 0),
                ("refused_version", stats.refused_version, 0),
            ];
            let features = &self.scenario.features;
            // A statistics client that accepts a connection sends arbitrary messages.
            let is_honest = !features.foreign_peers && !features.stats_clients;
            let broken = broken.into_iter().filter(|_| is_honest);
            // Removed endpoints have received only some of the messages.
            let counts = [
                ("links_opened", stats.links_opened, sum(|counts| counts.links_up)),
                ("links_opened_shm", stats.links_opened_shm, sum(|counts| counts.links_shm)),
                ("links_failed", stats.links_failed, sum(|counts| counts.links_failed)),
                (
                    "links down",
                    stats.links_opened - stats.links_up,
                    sum(|counts| counts.links_down),
                ),
            ];
            let counts = counts.into_iter().filter(|_| !process.has_lost_endpoints);
            let wrong = always
                .into_iter()
                .chain(broken)
                .chain(counts)
                .find(|(_, counted, is)| counted != is);
            if let Some((name, counted, is)) = wrong {
                return Err(format!("p{id} counts {counted} {name}, and there were {is}"));
            }
        }
        Ok(())
    }

    /// Removes all endpoints.
    fn leave(&mut self) {
        self.note(format_args!("LEAVE"));
        let all: Vec<_> = self.actors.keys().copied().collect();
        all.into_iter().for_each(|actor| self.detach(actor));
    }

    /// Checks that no state of endpoints and foreign peers is left.
    fn has_no_links(&self) -> Result<(), String> {
        for (id, sizes) in self.all_table_sizes() {
            nothing(
                id,
                &[
                    ("links", sizes.links),
                    ("bytes of sessions", sizes.session_bytes),
                    ("sources with usage", sizes.sources),
                    ("requests", sizes.waiting),
                    ("early links", sizes.early_links),
                    ("proposals", sizes.proposals),
                    ("tickets", sizes.tickets),
                    ("exchanges", sizes.exchanges),
                    ("queued exchanges", sizes.queued_exchanges),
                    ("requesters", sizes.requesters),
                    ("connections without HELLO", sizes.awaiting_hello),
                    ("connections that close", sizes.closing),
                    ("unfinished connections", sizes.unfinished),
                ],
            )?;
            self.check_tables(id)?;
        }
        Ok(())
    }

    /// Checks that processes have exactly the descriptors of their connections and of the rendezvous.
    fn check_descriptors(&self) -> Result<(), String> {
        let net = self.net.borrow();
        for (id, sizes) in self.all_table_sizes() {
            let rendezvous = usize::from(net.rendezvous_of(id).is_some());
            let open = net.processes[id].descriptors as usize;
            if open != sizes.connections + rendezvous {
                return Err(format!(
                    "p{id} has {open} descriptors, {} connections and {rendezvous} rendezvous",
                    sizes.connections
                ));
            }
        }
        Ok(())
    }

    /// Checks that no state is left at all.
    fn is_bare(&self) -> Result<(), String> {
        self.has_no_links()?;
        self.all_table_sizes().try_for_each(|(id, sizes)| {
            nothing(
                id,
                &[
                    ("connections", sizes.connections),
                    ("routes to peers", sizes.outgoing),
                    ("connections without use", sizes.idle_connections),
                    ("deadlines", sizes.deadlines),
                ],
            )
        })
    }

    /// Ends the nexuses in turn; a nexus notifies the peers.
    fn stop_all(&mut self) -> Result<(), String> {
        let running: Vec<_> = self.current.iter().copied().flatten().collect();
        for id in running {
            if let Some(nexus) = self.processes.get_mut(&id).and_then(|p| p.nexus.as_mut()) {
                nexus.let_go();
            }
            self.run_until_done(REST_NS, "a nexus without users ends", World::none_is_ending)?;
            // A process that ended without a word may have left a connection, too.
            let limit_ns = self.time_limit_ns();
            self.run_until_done(limit_ns, "its peers have heard of it", World::has_no_strays)?;
        }
        Ok(())
    }

    fn none_is_ending(&self) -> Result<(), String> {
        let ending =
            self.processes.iter().find(|(_, p)| p.nexus.as_ref().is_some_and(|n| n.is_let_go()));
        match ending {
            Some((id, _)) => Err(format!("p{id} goes on")),
            None => Ok(()),
        }
    }

    /// Checks that connections lead to running processes, and that all tables are empty without connections.
    fn has_no_strays(&self) -> Result<(), String> {
        let net = self.net.borrow();
        for (id, sizes) in self.all_table_sizes() {
            let peer = |socket: usize| net.peer_process(socket);
            let is_stray =
                |socket: &usize| peer(*socket).is_none_or(|p| !net.processes[p].is_alive);
            let strays = net.sockets_of(id).filter(is_stray).count();
            // A process may be its own peer.
            let own = net.sockets_of(id).filter(|socket| peer(*socket) == Some(id)).count();
            nothing(id, &[("connections to nobody", strays)])?;
            if self.current.iter().flatten().count() == 1 {
                let unmatched = sizes.connections - own.min(sizes.connections);
                nothing(id, &[("connections", unmatched), ("deadlines", sizes.deadlines)])?;
                if own == 0 {
                    let idle_connections = ("connections without use", sizes.idle_connections);
                    nothing(id, &[("routes to peers", sizes.outgoing), idle_connections])?;
                }
            }
        }
        Ok(())
    }
}

fn nothing(id: ProcessId, counts: &[(&str, usize)]) -> Result<(), String> {
    match counts.iter().find(|(_, count)| *count > 0) {
        Some((what, count)) => Err(format!("p{id} has {count} {what}")),
        None => Ok(()),
    }
}
