//! The workload and the fault actions of a nexus world.

use std::rc::Rc;

use petrel::endpoint::{AllowedTransports, EndpointId};

use petrel::nexus::stepped::WAKER;

use super::actor::{DelayedAction, Request};
use super::foreign_peer::{Behaviour, FOREIGN_HEARTBEAT_NS_MAX};
use super::world::{ActorId, Event, World};
use crate::net::ProcessId;

impl World {
    /// Schedules the requests and the faults.
    pub(super) fn schedule_events(&mut self) {
        let active_ns = self.scenario.active_ns;
        for _ in 0..self.scenario.requests {
            let at_ns = self.rng.below(active_ns);
            self.at(at_ns, Event::Ask);
        }
        let features = self.scenario.features;
        let faults =
            [features.cuts, features.crashes, features.stalls, features.hangs, features.changes];
        let kinds = faults.into_iter().filter(|is_on| *is_on).count() as u64;
        for _ in 0..self.rng.below(3 * kinds + 1) {
            let at_ns = self.rng.below(active_ns);
            self.at(at_ns, Event::Fault);
        }
        if features.foreign_peers || features.stats_clients {
            self.schedule_foreign_peers();
        }
        self.after(0, Event::Tick);
    }

    /// Adds foreign peers, and schedules their connections, in some worlds many at once.
    fn schedule_foreign_peers(&mut self) {
        let (hosts, active_ns) = (self.scenario.hosts, self.scenario.active_ns);
        let heartbeat_ms = self.rng.between(1, FOREIGN_HEARTBEAT_NS_MAX / 1_000_000) as u32;
        // Two foreign peers have their own hosts, and one shares a host with honest processes.
        for host in [hosts, hosts + 1, 0] {
            // If connection slots are scarce, a foreign peer would use up the share of honest processes at its address.
            if host == 0 && self.scenario.has_few_connections && self.scenario.is_fair {
                continue;
            }
            let foreign_peer = self.add_foreign_peer(host, heartbeat_ms);
            let is_flood = self.scenario.features.foreign_peers && self.rng.below(4) == 0;
            let connects = if is_flood { self.rng.between(20, 80) } else { self.rng.below(8) };
            let from_ns = self.rng.below(active_ns);
            // All connections of a flood come within a millisecond, to one process.
            let flood = (from_ns, self.draw_behaviour(), self.some_process());
            for _ in 0..connects {
                self.schedule_connection(foreign_peer, host == 0, is_flood.then_some(flood));
            }
        }
    }

    /// Schedules a connection of a foreign peer to a process, and sometimes to a rendezvous of the peer's host.
    fn schedule_connection(
        &mut self,
        foreign_peer: ProcessId,
        shares_host: bool,
        flood: Option<(u64, Behaviour, Option<ProcessId>)>,
    ) {
        let active_ns = self.scenario.active_ns;
        let met = self.some_process();
        if shares_host && self.rng.below(2) == 0 {
            let at_ns = self.rng.below(active_ns);
            met.into_iter()
                .for_each(|id| self.at(at_ns, Event::ConnectRendezvous(foreign_peer, id)));
        }
        let (at_ns, behaviour, target) = match flood {
            Some((from_ns, behaviour, target)) => {
                (from_ns + self.rng.below(1_000_000), behaviour, target)
            }
            None => (self.rng.below(active_ns), self.draw_behaviour(), self.some_process()),
        };
        if let Some(target) = target {
            self.at(at_ns, Event::Connect(foreign_peer, target, behaviour));
        }
    }

    fn draw_behaviour(&mut self) -> Behaviour {
        let keeps_sessions = !(self.scenario.has_few_connections && self.scenario.is_fair);
        match self.draw_any_behaviour() {
            // A connection with a session is never evicted: greedy peers may fill a server.
            behaviour if behaviour.is_greedy() && !keeps_sessions => Behaviour::Keeper,
            behaviour => behaviour,
        }
    }

    fn draw_any_behaviour(&mut self) -> Behaviour {
        let features = self.scenario.features;
        match (features.foreign_peers, features.stats_clients) {
            (false, _) => Behaviour::StatsClient,
            (true, true) => Behaviour::draw(&mut self.rng),
            (true, false) => loop {
                let behaviour = Behaviour::draw(&mut self.rng);
                if behaviour != Behaviour::StatsClient {
                    return behaviour;
                }
            },
        }
    }

    pub(super) fn some_process(&mut self) -> Option<ProcessId> {
        let running: Vec<_> = self.current.iter().copied().flatten().collect();
        running.get(self.rng.below(running.len() as u64) as usize).copied()
    }

    fn some_actor(&mut self) -> Option<ActorId> {
        self.actors.keys().nth(self.rng.below(self.actors.len() as u64) as usize).copied()
    }

    pub(super) fn handle_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Connect(foreign_peer, target, behaviour) if !self.is_fault_free => {
                self.connect(foreign_peer, target, behaviour);
            }
            Event::ConnectRendezvous(foreign_peer, target) if !self.is_fault_free => {
                let net = Rc::clone(&self.net);
                self.foreign_peers[foreign_peer].connect_rendezvous(
                    &mut net.borrow_mut(),
                    target,
                    &mut self.rng,
                );
            }
            Event::Heal(a, b) => self.heal(a, b),
            Event::Power(host) => {
                self.net.borrow_mut().set_power(host, true);
                self.healed_ns = self.now_ns();
                let plans = 0..self.scenario.plans.len();
                let here = plans.filter(|&index| self.scenario.plans[index].host == host);
                return here
                    .collect::<Vec<_>>()
                    .into_iter()
                    .try_for_each(|index| self.start(index));
            }
            Event::Start(index) => return self.start(index),
            Event::Revive(id) => self.fetch_news(id),
            Event::Ask if !self.is_fault_free => self.ask(),
            Event::Fault if !self.is_fault_free => return self.inject_fault(),
            _ => {}
        }
        Ok(())
    }

    /// Makes an endpoint send a request.
    fn ask(&mut self) {
        let Some(actor) = self.some_actor() else { return };
        let features = self.scenario.features;
        match self.rng.below(12) {
            0..=3 => self.ask_for_link(actor),
            4..=7 if features.sessions => self.ask_for_sessions(actor),
            8 if features.sessions => {
                let session = self.actors[&actor].some_session(&mut self.rng);
                if let Some(session) = session {
                    self.after(0, Event::DelayedAction(actor, DelayedAction::Close { session }));
                }
            }
            9 if features.drains => self.with_actor(actor, |actor, _, _| actor.drain()),
            10 if features.groups => {
                let session = self.actors[&actor].some_session(&mut self.rng);
                self.with_actor(actor, |actor, cx, _| {
                    if let Some(session) = session {
                        actor.offer_group(session, cx.rng);
                    }
                });
            }
            11 if self.rng.below(2) == 0 => {
                let link = self.actors[&actor].some_link(&mut self.rng);
                self.with_actor(actor, |actor, _, _| {
                    link.into_iter().for_each(|l| actor.close_link(l))
                });
            }
            _ => self.ask_for_link(actor),
        }
    }

    /// Has an endpoint ask for a link: to a process, to a foreign peer, or to an address without a listener.
    fn ask_for_link(&mut self, id: ActorId) {
        let own = self.actors[&id].process;
        let plan = self.rng.below(self.scenario.plans.len() as u64) as usize;
        let at_foreign_peer = !self.foreign_peers.is_empty() && self.rng.below(8) == 0;
        let (mut address, endpoints) =
            (self.scenario.plans[plan].address, self.scenario.plans[plan].endpoints);
        let is_there = self.rng.below(6) != 0;
        let extra = if is_there { 0 } else { 2 };
        let endpoint = EndpointId(self.rng.below(u64::from(endpoints + extra)) as u16);
        if at_foreign_peer {
            let host = self.scenario.hosts + self.rng.below(2) as usize;
            address = (self.scenario.conditions.family.address(host), 666).into();
        }
        if !at_foreign_peer && self.rng.below(24) == 0 {
            // An address without a listener; a nexus on loopback may not dial it.
            address = ([10, 99, 99, 99], 1).into();
        }
        let transports = match self.rng.below(6) {
            0 => AllowedTransports::SHM,
            1 => AllowedTransports::UDP,
            _ => AllowedTransports::ALL,
        };
        let plans = &self.scenario.plans;
        let (from, to) = (&self.processes[&own].plan, &plans[plan]);
        let can_udp = transports.udp && from.can_udp && to.can_udp;
        let must_succeed = self.scenario.is_fair
            && address == plans[plan].address
            && endpoint.0 < endpoints
            && can_udp;
        let asked_ns = self.now_ns();
        self.note(format_args!("e{id} of p{own} ASKS for {address} endpoint {}", endpoint.0));
        self.with_actor(id, |actor, _, lateness_ns| {
            let request = Request { asked_ns, lateness_ns, remote: address, must_succeed };
            actor.open_link((address, endpoint), transports, request);
        });
    }

    fn ask_for_sessions(&mut self, id: ActorId) {
        let count = self.rng.between(1, 4);
        self.with_actor(id, |actor, cx, lateness_ns| {
            let Some(link) = actor.some_own_link(cx.rng) else { return };
            (0..count).for_each(|_| actor.propose(link, lateness_ns, cx));
        });
    }

    fn inject_fault(&mut self) -> Result<(), String> {
        let features = self.scenario.features;
        let heartbeat_ns = self.scenario.heartbeat_ns_max();
        match self.rng.below(6) {
            5 if features.crashes && self.rng.below(2) == 0 => {
                let Some(id) = self.some_process() else { return Ok(()) };
                self.net.borrow_mut().processes[id].poll_fails = true;
                // The thread finds out at its next poll.
                self.net.borrow_mut().notify(id, WAKER);
            }
            0 if features.cuts => self.cut(heartbeat_ns),
            1 if features.crashes => self.kill_process(heartbeat_ns),
            2 if features.stalls => {
                let Some(id) = self.some_process() else { return Ok(()) };
                let until_ns = self.now_ns() + self.rng.below(6 * heartbeat_ns);
                if let Some(process) = self.processes.get_mut(&id) {
                    process.paused_until_ns = until_ns;
                }
                self.note(format_args!("p{id} PAUSED until {until_ns}"));
            }
            3 if features.hangs => {
                let Some(id) = self.some_actor() else { return Ok(()) };
                let until_ns = self.now_ns() + self.rng.below(4 * self.scenario.step_ns_max());
                self.hang(id, until_ns);
            }
            4 if features.changes => return self.change_endpoints(heartbeat_ns),
            _ => {}
        }
        Ok(())
    }

    fn hang(&mut self, id: ActorId, until_ns: u64) {
        if let Some(actor) = self.actors.get_mut(&id) {
            actor.hangs_until_ns = until_ns;
            let process = actor.process;
            self.note(format_args!("e{id} of p{process} HANGS until {until_ns}"));
            self.at(until_ns, Event::Revive(process));
        }
    }

    fn cut(&mut self, heartbeat_ns: u64) {
        let hosts = self.scenario.hosts as u64;
        let (a, b) = (self.rng.below(hosts) as usize, self.rng.below(hosts) as usize);
        if a == b {
            return;
        }
        let pair = (a.min(b), a.max(b));
        if self.cut_since.contains_key(&pair) {
            return;
        }
        self.report.cuts += 1;
        // Half of the cuts end when the first peers are about to be declared dead.
        let for_ns = match self.rng.below(2) {
            0 => self.rng.below(24 * heartbeat_ns),
            _ => self.rng.between(heartbeat_ns, 13 * heartbeat_ns / 4),
        };
        let now_ns = self.now_ns();
        self.note(format_args!("CUT {a} and {b} for {for_ns}"));
        self.cut_since.insert(pair, now_ns);
        self.net.borrow_mut().cut(a, b);
        self.after(for_ns, Event::Heal(a, b));
    }

    pub(super) fn heal(&mut self, a: usize, b: usize) {
        self.cut_since.remove(&(a.min(b), a.max(b)));
        self.net.borrow_mut().heal(a, b);
        self.healed_ns = self.now_ns();
    }

    /// Kills a process, or cuts the power of its host.
    fn kill_process(&mut self, heartbeat_ns: u64) {
        let Some(id) = self.some_process() else { return };
        let back_ns = self.rng.below(10 * heartbeat_ns);
        let (host, index) = (self.processes[&id].plan.host, self.processes[&id].index);
        if self.rng.below(2) == 0 {
            self.kill(id, true);
            if self.rng.below(3) != 0 {
                self.after(back_ns, Event::Start(index));
            }
            return;
        }
        self.note(format_args!("POWER of host {host} is off for {back_ns}"));
        let here =
            self.processes.iter().filter(|(_, p)| p.plan.host == host && p.ended_ns.is_none());
        let here: Vec<_> = here.map(|(id, _)| *id).collect();
        here.into_iter().for_each(|id| self.kill(id, false));
        self.net.borrow_mut().set_power(host, false);
        self.after(back_ns, Event::Power(host));
    }

    fn change_endpoints(&mut self, heartbeat_ns: u64) -> Result<(), String> {
        if self.rng.below(2) == 0
            && let Some(actor) = self.some_actor()
        {
            self.detach(actor);
            let again_ns = self.rng.below(heartbeat_ns);
            self.after(again_ns, Event::Fault);
            return Ok(());
        }
        let Some(id) = self.some_process() else { return Ok(()) };
        let endpoints = self.processes[&id].plan.endpoints + 2;
        let taken = |number| self.actors.values().any(|a| a.process == id && a.id.0 == number);
        match (0..endpoints).find(|number| !taken(*number)) {
            Some(number) => self.attach(id, EndpointId(number)),
            None => Ok(()),
        }
    }
}
