//! The rules that hold during a run.

use petrel::nexus::NexusStats;
use petrel::nexus::stepped::TableSizes;

use super::actor::{Actor, LinkView};
use super::world::{Event, Process, World};
use crate::net::ProcessId;

const MS: u64 = 1_000_000;

/// Heartbeats of silence, after a question, after which a peer may be declared dead (§8.6).
const SILENT_HEARTBEATS: u64 = 3;
/// Heartbeats between two questions if nothing raises a doubt of the peer (§8.6).
pub(super) const KEEP_ALIVE_HEARTBEATS: u64 = 48;
/// In one check of time bounds in this number, endpoints ask whether their servers live.
const CHECKS_PER_QUESTION: u64 = 3;
/// Time for HELLO, and for the peer to read sent bytes (§9).
const HELLO_NS: u64 = 5_000 * MS;
const WRITE_NS: u64 = 5_000 * MS;
/// How long a link may wait for its endpoint (§8.4).
const EARLY_NS: u64 = 1_000 * MS;
/// Number of steps between a request for a link and its answer: the connection, its HELLO (with a separate
/// bound), the answer, the ticket, the answer without shared memory. All except the first count twice,
/// because a connection that broke in time is retried.
const LINK_STEPS: u64 = 9;
/// A proposal has the time of two steps (§8.5).
const SESSION_STEPS: u64 = 2;
/// Limits of unsent bytes on a connection, and of a partial message (§9).
const UNSENT_BYTES_MAX: usize = (8 << 20) + (128 << 10);
const PARTIAL_BYTES_MAX: usize = 2 * (64 << 10) + 64;
/// Limits of connections without HELLO, and of links that wait for their endpoint (§9).
const AWAITING_HELLO_MAX: usize = 256;
const ACCEPTED_MAX: usize = 4_096;
const EARLY_LINKS_MAX: usize = 1_024;
/// Time limit of an endpoint for its counters (§8.8).
const STATS_NS: u64 = 500 * MS;

impl Process {
    /// Returns how late the thread may check its connections if nothing delays the thread.
    pub(super) fn tick_ns(&self) -> u64 {
        (self.plan.heartbeat_ns / 4).clamp(5 * MS, 250 * MS)
    }
}

impl World {
    /// Returns the number of connections of a process that have been silent for as long as their peers may
    /// be. The peers' bytes count from their arrival, read or unread.
    pub(super) fn silent_peers(&self, id: ProcessId, now_ns: u64) -> u64 {
        let net = self.net.borrow();
        let is_silent = |socket: &usize| {
            let Some(peer) = net.peer_process(*socket) else { return true };
            let heartbeat_ns = match self.processes.get(&peer) {
                Some(process) => process.plan.heartbeat_ns,
                None => self.foreign_heartbeat_ns(peer),
            };
            // An acceptor asks if it calls its client.
            let has_asked = net.sent(*socket).ping_ns > net.heard_ns(*socket);
            let intervals = match net.is_opener(*socket) || has_asked {
                true => SILENT_HEARTBEATS,
                false => SILENT_HEARTBEATS * KEEP_ALIVE_HEARTBEATS,
            };
            now_ns - net.heard_ns(*socket) >= intervals * heartbeat_ns
        };
        net.sockets_of(id).filter(is_silent).count() as u64
    }

    fn foreign_heartbeat_ns(&self, id: ProcessId) -> u64 {
        let foreign_peer =
            self.foreign_peers.iter().find(|foreign_peer| foreign_peer.process == id);
        // A mutated HELLO may carry any interval.
        foreign_peer.map_or(0, |foreign_peer| foreign_peer.heartbeat_ns().min(MS))
    }

    /// Checks that no peer is declared dead that sent bytes in time.
    pub(super) fn check_silences(
        &self,
        id: ProcessId,
        before: &NexusStats,
        after: &NexusStats,
        silent: u64,
    ) -> Result<(), String> {
        let dropped = after.dropped_silent - before.dropped_silent;
        if dropped > silent {
            return Err(format!(
                "p{id} calls {dropped} peers dead, and {silent} have been silent for too long"
            ));
        }
        Ok(())
    }

    pub(super) fn check_tables(&self, id: ProcessId) -> Result<(), String> {
        let Some(nexus) = self.processes.get(&id).and_then(|process| process.nexus.as_ref()) else {
            return Ok(());
        };
        nexus.check_tables().map_err(|what| format!("tables of p{id}: {what}"))?;
        self.check_limits(id, &nexus.table_sizes())
    }

    /// Checks that the tables of a nexus stay within the limits of §9.
    fn check_limits(&self, id: ProcessId, sizes: &TableSizes) -> Result<(), String> {
        let plan = &self.processes[&id].plan;
        // A quarter of the descriptors is for other uses (§8.3: both limits shrink with few descriptors).
        let accepted_max = (plan.descriptors_max as usize / 4 * 3).clamp(8, ACCEPTED_MAX);
        let limits = [
            ("unsent bytes", sizes.unsent_bytes_max, UNSENT_BYTES_MAX),
            ("bytes of a partial message", sizes.partial_bytes_max, PARTIAL_BYTES_MAX),
            ("connections without HELLO", sizes.awaiting_hello, AWAITING_HELLO_MAX),
            ("early links", sizes.early_links, EARLY_LINKS_MAX),
            ("connections", sizes.connections, plan.descriptors_real as usize),
            ("connections of others", sizes.accepted, accepted_max),
            ("connections that close", sizes.closing, AWAITING_HELLO_MAX),
        ];
        match limits.into_iter().find(|(_, count, limit)| count > limit) {
            Some((what, count, limit)) => {
                Err(format!("p{id} has {count} {what}, and {limit} are allowed"))
            }
            None => Ok(()),
        }
    }

    /// Checks all time bounds.
    pub(super) fn tick(&mut self) -> Result<(), String> {
        self.tick_foreign_peers();
        self.check_questions()?;
        self.check_the_dead()?;
        self.check_signs()?;
        self.check_stats_clients()?;
        self.doubt_servers();
        if !self.is_fault_free {
            let heartbeat_ns = self.scenario.heartbeat_ns_max();
            self.after(heartbeat_ns / 2 + 1, Event::Tick);
        }
        Ok(())
    }

    /// Has some endpoints ask whether their servers live.
    fn doubt_servers(&mut self) {
        let ids: Vec<_> = self.actors.keys().copied().collect();
        for id in ids {
            if self.rng.below(CHECKS_PER_QUESTION) == 0 {
                self.with_actor(id, |actor, cx, _| actor.check_peer(cx.now_ns, cx.rng));
            }
        }
    }

    /// Returns true if messages to its endpoints cannot be late because of this process.
    fn is_prompt(&self, id: ProcessId) -> bool {
        self.processes[&id].is_prompt(self.now_ns())
    }

    /// Checks that requests of endpoints are answered in time.
    pub(super) fn check_questions(&self) -> Result<(), String> {
        let now_ns = self.now_ns();
        for actor in self.actors.values() {
            if !self.is_prompt(actor.process) || now_ns < actor.hangs_until_ns {
                continue;
            }
            let process = &self.processes[&actor.process];
            let slack_ns = process.tick_ns() + 20 * self.scenario.conditions.delay_ns.1 + 10 * MS;
            let is_late = |asked_ns: u64, lateness_ns: u64, bound_ns: u64| {
                let excused_ns = process.lateness_ns - lateness_ns + slack_ns;
                now_ns - asked_ns > bound_ns + excused_ns
            };
            let step_ns = process.plan.step_ns;
            let link_ns = LINK_STEPS * step_ns + 2 * HELLO_NS + EARLY_NS;
            for request in actor.requests.values() {
                if is_late(request.asked_ns, request.lateness_ns, link_ns)
                    && !actor.was_hung(request.asked_ns)
                {
                    return Err(format!(
                        "{} waits for a link to {} for {} ms",
                        actor.name(),
                        request.remote,
                        (now_ns - request.asked_ns) / MS
                    ));
                }
            }
            for ((link, request), proposal) in &actor.proposals {
                if is_late(proposal.asked_ns, proposal.lateness_ns, SESSION_STEPS * step_ns)
                    && !actor.was_hung(proposal.asked_ns)
                {
                    return Err(format!(
                        "{} waits for session {request} on {link:?}",
                        actor.name()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns the delays, except its stops, with which a process may declare a peer dead.
    fn silence_slack_ns(&self, id: ProcessId) -> u64 {
        let process = &self.processes[&id];
        let has_unsent =
            process.nexus.as_ref().is_some_and(|nexus| nexus.table_sizes().unsent_bytes_max > 0);
        let unsent_ns = if has_unsent { WRITE_NS } else { 0 };
        let delays_ns = 4 * self.scenario.conditions.delay_ns.1 + 10 * MS;
        2 * process.tick_ns() + delays_ns + unsent_ns
    }

    /// Checks that links to dead or unreachable processes go down in time.
    fn check_the_dead(&self) -> Result<(), String> {
        let now_ns = self.now_ns();
        for actor in self.actors.values() {
            if !self.is_prompt(actor.process) || now_ns < actor.hangs_until_ns {
                continue;
            }
            let slack_ns = self.silence_slack_ns(actor.process);
            for (link, view) in &actor.links {
                if let Some((since_ns, due_ns)) = self.silence_of_peer(actor, view)
                    && now_ns > due_ns + slack_ns
                {
                    return Err(format!(
                        "{} holds {link:?} to {:x}, which is gone for {} ms",
                        actor.name(),
                        view.incarnation,
                        (now_ns - since_ns) / MS
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns since when the peer of a link is dead or unreachable, and when the link has to go down; `None` if the peer is
    /// neither.
    fn silence_of_peer(&self, actor: &Actor, view: &LinkView) -> Option<(u64, u64)> {
        let own = &self.processes[&actor.process];
        let peer = self.processes.values().find(|peer| peer.incarnation == view.incarnation)?;
        let hosts = (own.plan.host, peer.plan.host);
        let pair = (hosts.0.min(hosts.1), hosts.0.max(hosts.1));
        let since_ns = match peer.ended_ns {
            Some(ended_ns) => ended_ns.max(self.healed_ns),
            None => *self.cut_since.get(&pair)?,
        };
        // Stops of the own thread are no silence of the peer.
        let since_ns = since_ns.max(own.excused_ns).max(actor.hangs_until_ns);
        // Bytes on their way may end a doubt.
        let quiet_ns = since_ns + self.scenario.conditions.delay_ns.1 + own.tick_ns();
        let asked_ns = view.checks_ns.iter().copied().find(|asked_ns| *asked_ns > quiet_ns);
        let answer_ns = SILENT_HEARTBEATS * peer.plan.heartbeat_ns;
        let due_ns = match (view.is_opener, asked_ns) {
            (_, Some(asked_ns)) => asked_ns + own.plan.heartbeat_ns + answer_ns,
            (true, None) => quiet_ns + KEEP_ALIVE_HEARTBEATS * own.plan.heartbeat_ns + answer_ns,
            (false, None) => quiet_ns + KEEP_ALIVE_HEARTBEATS * answer_ns,
        };
        Some((since_ns, due_ns))
    }

    /// Checks that PINGs go out in time (§8.6).
    fn check_signs(&self) -> Result<(), String> {
        let (now_ns, net) = (self.now_ns(), self.net.borrow());
        for (id, process) in &self.processes {
            if !self.is_prompt(*id) || now_ns < process.excused_ns {
                continue;
            }
            let slack_ns = 2 * process.tick_ns() + 10 * MS;
            for socket in net.sockets_of(*id) {
                let sent = net.sent(socket);
                let (Some(greeted_ns), Some(room_ns)) =
                    (net.greeted_ns(socket), net.room_ns(socket))
                else {
                    continue;
                };
                let peer = net.peer_process(socket);
                if !peer.is_some_and(|peer| self.processes.contains_key(&peer))
                    || net.is_broken(socket)
                    || sent.goodbyes > 0
                    || !net.is_writable(socket)
                    || !net.is_opener(socket)
                {
                    continue;
                }
                // A connection that had to wait for a descriptor sends HELLO when accepted.
                let greeted_ns = greeted_ns.max(sent.hello_ns);
                let since_ns = sent.ping_ns.max(greeted_ns).max(process.excused_ns).max(room_ns);
                if now_ns > since_ns + KEEP_ALIVE_HEARTBEATS * process.plan.heartbeat_ns + slack_ns
                {
                    return Err(format!(
                        "p{id} asks for no sign of life on connection {socket} to {peer:?} for {} ms: it sent \
                         {sent:?}, was greeted at {greeted_ns} and excused until {}",
                        (now_ns - since_ns) / MS,
                        process.excused_ns
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that statistics clients get an answer.
    fn check_stats_clients(&self) -> Result<(), String> {
        let net = self.net.borrow();
        let bound_ns = STATS_NS + 10 * self.scenario.conditions.delay_ns.1 + 100 * MS;
        let waits = self
            .foreign_peers
            .iter()
            .find(|foreign_peer| foreign_peer.is_kept_waiting(&net, bound_ns));
        match waits {
            Some(foreign_peer)
                if self.scenario.is_fair && !self.scenario.features.foreign_peers =>
            {
                Err(format!("p{} waits for counters", foreign_peer.process))
            }
            _ => Ok(()),
        }
    }
}
