//! The nemesis: faults drawn from the phase's seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use petrel::task::Handle;
use petrel_kv::KvClient;
use petrel_kv::api::{Certainty, Status};
use petrel_sim::Rng;
use rustix::process::Signal;

use super::cluster::Cluster;
use super::network::{CLIENTS, Rule, address_of};
use super::recorder::Recorder;
use super::recovery;

/// Interval of checks for due actions.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Interval of checks whether nodes that lost their state vote again.
const MEMBER_POLL: Duration = Duration::from_millis(500);

const ADMIN_TIMEOUT: Duration = Duration::from_secs(3);

const FAULTS_MAX: usize = 3;

pub(super) struct Nemesis<'a, 'n> {
    cluster: &'a mut Cluster<'n>,
    client: &'a KvClient,
    handle: &'a Handle,
    recorder: &'a Recorder,
    rng: Rng,
    active: Vec<(Instant, Fault)>,
    /// Nodes with a replica that has lost its state, and has not been seen to vote again. Never half of the nodes,
    /// because acknowledged writes would be lost.
    state_lost: BTreeSet<u16>,
    last_check: Instant,
    pub(super) counts: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug)]
enum Fault {
    Killed(u16),
    Paused(u16),
    LinkDown(u16),
    Rule(Rule),
    Replaced(u16),
}

impl Fault {
    fn node(&self) -> Option<u16> {
        match self {
            Fault::Killed(node) | Fault::Paused(node) => Some(*node),
            Fault::LinkDown(node) | Fault::Replaced(node) => Some(*node),
            Fault::Rule(_) => None,
        }
    }
}

impl<'a, 'n> Nemesis<'a, 'n> {
    pub(super) fn new(
        cluster: &'a mut Cluster<'n>,
        client: &'a KvClient,
        handle: &'a Handle,
        recorder: &'a Recorder,
        rng: Rng,
    ) -> Self {
        let (active, state_lost, counts) = (Vec::new(), BTreeSet::new(), BTreeMap::new());
        let last_check = Instant::now();
        Self { cluster, client, handle, recorder, rng, active, state_lost, last_check, counts }
    }

    pub(super) async fn inject_faults(&mut self, until: Instant) -> Result<(), String> {
        let mut next = Instant::now();
        while Instant::now() < until {
            self.handle.sleep(POLL_INTERVAL).await;
            if let Some(what) = self.cluster.ended() {
                return Err(what);
            }
            self.end_expired(Instant::now()).await?;
            self.check_rejoined().await;
            if Instant::now() >= next && self.active.len() < FAULTS_MAX {
                self.begin_fault().await?;
                next = Instant::now() + Duration::from_millis(self.rng.between(100, 2_500));
            }
        }
        Ok(())
    }

    pub(super) async fn heal(&mut self) -> Result<(), String> {
        let last = self.active.iter().map(|(end, _)| *end).max();
        self.end_expired(last.unwrap_or_else(Instant::now)).await
    }

    /// Ends all faults, and retries to add nodes until each is added.
    pub(super) async fn heal_within(&mut self, time: Duration) -> Result<(), String> {
        let begin = Instant::now();
        while !self.active.is_empty() {
            if begin.elapsed() > time {
                return Err(format!("nodes cannot be added {time:?} after: {:?}", self.active));
            }
            self.heal().await?;
            self.handle.sleep(POLL_INTERVAL).await;
        }
        self.add_all(begin + time).await
    }

    /// Adds all nodes again. A removal with unknown outcome may have been executed after its node was added again.
    async fn add_all(&self, end: Instant) -> Result<(), String> {
        for node in 1..=self.cluster.settings.nodes {
            let client = self.client.within(ADMIN_TIMEOUT);
            while let Err(error) = client.add_member(node, address_of(node)).await {
                if Instant::now() > end {
                    return Err(format!("node {node} cannot be added: {error}"));
                }
                self.handle.sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    async fn end_expired(&mut self, now: Instant) -> Result<(), String> {
        let is_over = |(end, _): &mut (Instant, Fault)| *end <= now;
        let over: Vec<_> = self.active.extract_if(.., is_over).collect();
        if over.iter().any(|(_, fault)| matches!(fault, Fault::Rule(_))) {
            self.set_rules()?;
        }
        for (_, fault) in over {
            self.recorder.note(&format!("over: {fault:?}"));
            match fault {
                Fault::Killed(node) => self.cluster.start(node)?,
                Fault::Paused(node) => self.cluster.signal(node, Signal::CONT),
                Fault::LinkDown(node) => self.cluster.network.set_link(node, true)?,
                Fault::Rule(_) => {}
                Fault::Replaced(node) => self.bring_back(node).await?,
            }
        }
        Ok(())
    }

    fn set_rules(&self) -> Result<(), String> {
        let rules = self.active.iter().filter_map(|(_, fault)| match fault {
            Fault::Rule(rule) => Some(rule.clone()),
            _ => None,
        });
        Ok(self.cluster.network.set_rules(&rules.collect::<Vec<_>>())?)
    }

    fn push(&mut self, name: &'static str, fault: Fault) {
        *self.counts.entry(name).or_default() += 1;
        // From a fraction of an election timeout to several of them.
        let longest = 500 << self.rng.below(5);
        let duration = Duration::from_millis(self.rng.between(100, longest));
        self.recorder.note(&format!("for {duration:?}: {fault:?}"));
        self.active.push((Instant::now() + duration, fault));
    }

    async fn begin_fault(&mut self) -> Result<(), String> {
        let node = self.draw_node().await;
        let is_free = !self.active.iter().any(|(_, fault)| fault.node() == Some(node));
        match self.rng.below(19) {
            0..3 if is_free && self.may_kill() => {
                self.kill(node);
                self.push("kills", Fault::Killed(node));
            }
            3..5 if is_free => {
                self.cluster.signal(node, Signal::STOP);
                self.push("pauses", Fault::Paused(node));
            }
            5..7 if is_free => {
                self.cluster.network.set_link(node, false)?;
                self.push("links_down", Fault::LinkDown(node));
            }
            7..11 => {
                let (name, rule) = self.draw_partition(node);
                self.push(name, Fault::Rule(rule));
                self.set_rules()?;
            }
            11 => {
                let percent = self.rng.between(5, 60) as u8;
                self.push("losses", Fault::Rule(Rule::Loss { node, percent }));
                self.set_rules()?;
            }
            12..14 => self.transfer(node).await,
            14 if is_free && self.may_lose() => self.replace(node).await,
            16..19 => self.isolate_and_stop().await?,
            15 if self.cluster.is_on_disk && self.rng.below(2) == 0 => self.crash_all(),
            _ => {}
        }
        Ok(())
    }

    /// Cuts the leader off from the other nodes, but not from clients. Then stops the leader while the lease may hold,
    /// until another replica leads.
    async fn isolate_and_stop(&mut self) -> Result<(), String> {
        let Some(node) = recovery::leader(&self.statuses().await).map(|status| status.node) else {
            return Ok(());
        };
        let is_free = !self.active.iter().any(|(_, fault)| fault.node() == Some(node));
        if !is_free || !self.cluster.is_running(node) {
            return Ok(());
        }
        let election_ms = self.cluster.settings.election_ms;
        let stop_in = Duration::from_millis(self.rng.below(election_ms));
        let pause = Duration::from_millis(self.rng.between(election_ms, 3 * election_ms));
        let rest = Duration::from_millis(self.rng.below(election_ms));
        let others = (1..=self.cluster.settings.nodes).filter(|other| *other != node);
        let cut = Fault::Rule(Rule::Cut { from: vec![node], to: others.collect(), one_way: false });
        *self.counts.entry("isolations_with_stop").or_default() += 1;
        self.recorder
            .note(&format!("isolation of {node}, and a stop in {stop_in:?} for {pause:?}"));
        self.active.push((Instant::now() + stop_in + pause + rest, cut));
        self.set_rules()?;
        self.handle.sleep(stop_in).await;
        self.cluster.signal(node, Signal::STOP);
        self.active.push((Instant::now() + pause, Fault::Paused(node)));
        Ok(())
    }

    /// Draws a node: the leader, or any.
    async fn draw_node(&mut self) -> u16 {
        let drawn = self.rng.between(1, u64::from(self.cluster.settings.nodes)) as u16;
        if self.rng.below(2) == 0 {
            return drawn;
        }
        let statuses = self.statuses().await;
        recovery::leader(&statuses).map_or(drawn, |status| status.node)
    }

    /// The statuses of the nodes that answer.
    async fn statuses(&self) -> Vec<Status> {
        recovery::statuses(self.client, self.cluster).await
    }

    fn may_kill(&self) -> bool {
        self.cluster.is_on_disk || self.may_lose()
    }

    fn may_lose(&self) -> bool {
        (self.state_lost.len() + 1) * 2 < usize::from(self.cluster.settings.nodes)
    }

    fn kill(&mut self, node: u16) {
        self.cluster.kill(node);
        if !self.cluster.is_on_disk {
            self.state_lost.insert(node);
        }
    }

    fn crash_all(&mut self) {
        *self.counts.entry("crashes_of_all").or_default() += 1;
        self.recorder.note("crash of all");
        let duration = Duration::from_millis(self.rng.between(10, 2_000));
        for node in 1..=self.cluster.settings.nodes {
            let has_fault = self.active.iter().any(|(_, fault)| fault.node() == Some(node));
            if !has_fault && self.cluster.is_running(node) {
                self.cluster.kill(node);
                self.active.push((Instant::now() + duration, Fault::Killed(node)));
            }
        }
    }

    fn draw_partition(&mut self, alone: u16) -> (&'static str, Rule) {
        let nodes = self.cluster.settings.nodes;
        // Two of five partitions cut off a single node. Clients are on a side, or reach the two sides.
        let others_in_twenty = if self.rng.below(5) < 2 { 0 } else { 7 };
        let clients = (self.rng.below(2) == 0).then_some(CLIENTS);
        let (mut from, mut to) = (vec![alone], Vec::new());
        for other in (1..=nodes).chain(clients).filter(|other| *other != alone) {
            if self.rng.below(20) < others_in_twenty { from.push(other) } else { to.push(other) }
        }
        if to.is_empty() {
            to = from.split_off(1);
        }
        let one_way = self.rng.below(5) < 2;
        if one_way && self.rng.below(2) == 0 {
            std::mem::swap(&mut from, &mut to);
        }
        let name = if one_way { "one_way_partitions" } else { "partitions" };
        (name, Rule::Cut { from, to, one_way })
    }

    async fn transfer(&mut self, node: u16) {
        let result = self.client.within(ADMIN_TIMEOUT).transfer(node).await;
        self.recorder.note(&format!("transfer to {node}: {result:?}"));
        let name = if result.is_ok() { "transfers" } else { "transfers_failed" };
        *self.counts.entry(name).or_default() += 1;
    }

    /// Removes a node; the node later returns without state.
    async fn replace(&mut self, node: u16) {
        // From now on its vote may be lost, whatever the answer.
        let was_lost = !self.state_lost.insert(node);
        let removed = self.client.within(ADMIN_TIMEOUT).remove_member(node).await;
        self.recorder.note(&format!("removal of {node}: {removed:?}"));
        if removed.as_ref().is_err_and(|error| error.certainty() == Certainty::NotApplied) {
            if !was_lost {
                self.state_lost.remove(&node);
            }
            return;
        }
        self.cluster.kill(node);
        self.cluster.wipe(node);
        self.push("replacements", Fault::Replaced(node));
    }

    async fn bring_back(&mut self, node: u16) -> Result<(), String> {
        let client = self.client.within(ADMIN_TIMEOUT);
        let added = client.add_member(node, address_of(node)).await;
        self.recorder.note(&format!("addition of {node}: {added:?}"));
        if added.is_err() {
            // Tries again later.
            let soon = Instant::now() + Duration::from_millis(500);
            self.active.push((soon, Fault::Replaced(node)));
            return Ok(());
        }
        self.cluster.start(node)
    }

    async fn check_rejoined(&mut self) {
        if self.state_lost.is_empty() || self.last_check.elapsed() < MEMBER_POLL {
            return;
        }
        self.last_check = Instant::now();
        let statuses = self.statuses().await;
        let cluster = &*self.cluster;
        self.state_lost
            .retain(|node| !(cluster.is_running(*node) && recovery::votes(&statuses, *node)));
    }
}
