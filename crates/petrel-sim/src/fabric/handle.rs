//! The public interface of the fabric.

use std::cell::{BorrowMutError, RefCell, RefMut};
use std::rc::Rc;

use petrel_transport::wake::Waker;

use crate::ring::WakeFaults;
use crate::rng::Rng;
use crate::time::Time;
use crate::trace::Trace;

use super::act::{Action, LinkSet};
use super::config::FabricConfig;
use super::cpu::{Stopped, TurnClock};
use super::fault::FaultPlan;
use super::packet::SimAddr;
use super::ports::{BindError, Binding};
use super::source::{SourceConfig, SourceError, SourceId, SourceStats};
use super::stats::{FabricStats, LinkStats, SwitchStats};
use super::topology::{HostId, LinkId, NodeId, SwitchId, Topology, TopologyError};
use super::wakers::Wakers;
use super::wiretap::{Attack, Observation, Recorded};
use super::{Fabric, STREAM_USER, Step};

/// The error of making a fabric.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The topology cannot work.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The operating system provided no descriptor.
    #[error("cannot watch for wake-ups: {0}; close files or raise the limit of open files")]
    Wakers(#[from] std::io::Error),
}

/// A fabric, shared by everything on it. Clones name the same fabric.
///
/// A fabric belongs to one thread. A trace's decoder or sink must not call these methods.
#[derive(Clone, Debug)]
pub struct FabricHandle {
    fabric: Rc<RefCell<Fabric>>,
    wakers: Rc<Wakers>,
}

impl FabricHandle {
    /// Makes a fabric. Everything random in it follows from `seed`.
    ///
    /// # Errors
    /// See [`FabricError`].
    pub fn new(topology: &Topology, config: FabricConfig, seed: u64) -> Result<Self, FabricError> {
        let fabric = Rc::new(RefCell::new(Fabric::new(topology, config, seed)?));
        Ok(Self { fabric, wakers: Rc::new(Wakers::new()?) })
    }

    /// Returns the virtual time, in nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.fabric.borrow().now.ns()
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Time {
        self.fabric.borrow().now
    }

    /// Returns the time as the current actor sees it; see [`Action::Stall`].
    pub(crate) fn clock_ns(&self) -> u64 {
        self.borrow_mut().read_clock().ns()
    }

    /// Returns the clock as the current actor has seen it. Unlike a reading, this is not a step of its turn.
    pub(crate) fn turn_clock(&self) -> TurnClock {
        self.fabric.borrow().turn_clock()
    }

    /// Returns the time that the current actor would read from the clock now; not a step of its turn either.
    pub(crate) fn next_reading_ns(&self) -> u64 {
        self.fabric.borrow().next_reading().ns()
    }

    /// Returns the stops of actors that have begun since the last call.
    pub(crate) fn take_stopped(&self) -> Vec<Stopped> {
        std::mem::take(&mut self.borrow_mut().stopped)
    }

    /// Returns the number of hosts.
    pub fn host_count(&self) -> usize {
        self.fabric.borrow().hosts.len()
    }

    /// Returns true if a host exists and has not crashed.
    pub fn is_up(&self, host: HostId) -> bool {
        self.fabric.borrow().hosts.get(usize::from(host.0)).is_some_and(|host| host.is_up)
    }

    /// Returns until when a host is paused, in nanoseconds; a past time if the host is not paused.
    pub fn paused_until_ns(&self, host: HostId) -> u64 {
        let fabric = self.fabric.borrow();
        fabric.hosts.get(usize::from(host.0)).map_or(0, |host| host.paused_until.ns())
    }

    /// Returns true if a partition drops the packets from `from` to `to`.
    pub fn is_cut(&self, from: HostId, to: HostId) -> bool {
        self.fabric.borrow().is_cut(from, to)
    }

    /// Makes a frame arrive at a port after `delay_ns`, as if `from` had sent it. The frame crosses no link
    /// and meets no link fault, but partitions apply.
    pub fn inject(&self, from: SimAddr, to: SimAddr, frame: &[u8], delay_ns: u64) {
        self.borrow_mut().inject(from, to, frame, delay_ns, None);
    }

    /// Like [`FabricHandle::inject`], of an attacker: sealed links accept the datagram at most as an early copy.
    pub fn attack(&self, attack: Attack, recorded: &Recorded, delay_ns: u64) {
        let Recorded { from, to, frames } = recorded;
        self.borrow_mut().inject(*from, *to, &frames.concat(), delay_ns, Some(attack));
    }

    /// Shows all frames that endpoints send and receive to `watcher` from now on. `watcher` must not use the fabric.
    pub fn watch(&self, watcher: impl FnMut(Observation<'_>) + 'static) {
        self.borrow_mut().watch(watcher);
    }

    /// Records a sample of `keep` packets from now on: new packets replace random old ones.
    pub fn start_recording(&self, keep: usize) {
        self.borrow_mut().start_recording(keep);
    }

    /// Returns one of the recorded packets. `pick` gets their number and returns an index.
    pub fn recorded(&self, pick: impl FnOnce(usize) -> usize) -> Option<Recorded> {
        let fabric = self.fabric.borrow();
        let recorded = fabric.recorded();
        recorded.get(pick(recorded.len())).cloned()
    }

    /// Returns the contents of a recent sealed datagram, as a single frame. `pick` is as for [`FabricHandle::recorded`].
    pub fn recorded_contents(&self, pick: impl FnOnce(usize) -> usize) -> Option<Recorded> {
        let fabric = self.fabric.borrow();
        let contents = fabric.recorded_contents()?;
        contents.get(pick(contents.len().max(1))).cloned()
    }

    /// Schedules an action for a time in nanoseconds; a past time means now.
    pub fn schedule(&self, at_ns: u64, action: Action) {
        self.borrow_mut().schedule(Time::from_ns(at_ns), action);
    }

    /// Schedules an action for now, before all events scheduled later.
    pub fn apply(&self, action: Action) {
        let mut fabric = self.borrow_mut();
        let now = fabric.now;
        fabric.schedule(now, action);
    }

    /// Replaces the faults of all links.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.apply(Action::Faults { links: LinkSet::All, plan });
    }

    /// Advances time without running actors, while packets travel. For tests of transports alone; a
    /// [`Simulation`](crate::Simulation) advances time itself.
    pub fn advance(&self, duration_ns: u64) {
        let mut fabric = self.borrow_mut();
        let limit = fabric.now.plus_ns(duration_ns);
        while !matches!(fabric.advance(limit), Step::Idle | Step::Limit) {}
        fabric.now = limit;
    }

    /// Returns the counters of the fabric so far.
    pub fn stats(&self) -> FabricStats {
        let fabric = self.fabric.borrow();
        let mut stats = fabric.stats;
        stats.in_flight = fabric.packets.live();
        stats
    }

    /// Returns the counters of one direction of a link; zeros for an unknown link.
    pub fn link_stats(&self, link: LinkId) -> LinkStats {
        let fabric = self.fabric.borrow();
        let link = fabric.links.get(link.0 as usize);
        link.map_or_else(LinkStats::default, |link| link.stats_at(fabric.now))
    }

    /// Returns the links from a node directly to a second node, oldest first.
    pub fn links_between(&self, from: impl Into<NodeId>, to: impl Into<NodeId>) -> Vec<LinkId> {
        self.fabric.borrow().topology.links_between(from, to)
    }

    /// Returns the links that packets between two addresses take at present, from the sender's on; `None`
    /// without a path.
    pub fn route(&self, from: SimAddr, to: SimAddr) -> Option<Vec<LinkId>> {
        self.fabric.borrow().route(from, to)
    }

    /// Returns the time of a bit from one address to another over empty queues, in nanoseconds: the delays of
    /// links and switches. `None` without a path.
    pub fn latency_ns(&self, from: SimAddr, to: SimAddr) -> Option<u64> {
        let fabric = self.fabric.borrow();
        let delay_ns = |link: LinkId| {
            let link = &fabric.links[link.0 as usize];
            link.config.delay_ns + link.node_latency_ns
        };
        Some(fabric.route(from, to)?.into_iter().map(delay_ns).sum())
    }

    /// Returns the counters of a switch; zeros for an unknown switch.
    pub fn switch_stats(&self, switch: SwitchId) -> SwitchStats {
        let fabric = self.fabric.borrow();
        let switch = fabric.switches.get(usize::from(switch.0));
        switch.map_or_else(SwitchStats::default, |switch| switch.stats)
    }

    /// Adds a source of packets that needs no endpoint.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn add_source(&self, config: SourceConfig) -> Result<SourceId, SourceError> {
        self.borrow_mut().add_source(config)
    }

    /// Returns the measurements of a source; empty for an unknown source.
    pub fn source_stats(&self, source: SourceId) -> SourceStats {
        let fabric = self.fabric.borrow();
        let source = fabric.sources.get(source.0 as usize);
        source.map_or_else(SourceStats::default, |source| source.stats.clone())
    }

    /// Resets the counters of links, switches and sources, for the end of a warm-up. Delays then count for
    /// packets sent from now on. [`FabricHandle::stats`] is not reset.
    pub fn begin_measuring(&self) {
        self.borrow_mut().begin_measuring();
    }

    /// Returns the number of events so far: a measure of the work of a simulation.
    pub fn events(&self) -> u64 {
        self.fabric.borrow().queue.popped_count()
    }

    /// Returns the bytes in the packet memory of all switches at this moment.
    pub fn switch_bytes(&self) -> u64 {
        self.fabric.borrow().switches.iter().map(super::switch::Switch::used_bytes).sum()
    }

    /// Returns a number that is equal for runs of equal events at equal times, and almost certainly differs for
    /// different runs. The digest is cheap and needs no trace.
    pub fn digest(&self) -> u64 {
        self.fabric.borrow().digest
    }

    /// Returns a random stream for a user of the fabric, for example a workload. An `index` selects an
    /// equal stream in every run of the seed.
    pub fn rng(&self, index: u32) -> Rng {
        Rng::stream(self.fabric.borrow().seed, STREAM_USER, index)
    }

    /// Replaces the trace, and returns the trace so far.
    pub fn set_trace(&self, trace: Trace) -> Trace {
        std::mem::replace(&mut self.borrow_mut().trace, trace)
    }

    /// Returns the lines that the trace has kept, oldest first.
    pub fn trace_lines(&self) -> Vec<String> {
        self.fabric.borrow().trace.lines().map(str::to_owned).collect()
    }

    /// Adds a line to the trace.
    pub fn note(&self, text: std::fmt::Arguments<'_>) {
        self.borrow_mut().note(text);
    }

    /// Sets the faults of ring wake-ups from now on.
    pub fn set_wake_faults(&self, faults: WakeFaults) {
        self.borrow_mut().rings.faults = faults;
    }

    /// Sets whether the switch withholds multicast from a host. By default it does not.
    pub fn set_multicast_blocked(&self, host: HostId, is_blocked: bool) {
        self.borrow_mut().multicast.set_multicast_blocked(host, is_blocked);
    }

    /// Returns the number of ports that listen to groups; a port counts once per joined group.
    pub fn group_listeners(&self) -> usize {
        self.fabric.borrow().multicast.listener_count()
    }

    /// Binds a port. Returns the name of the binding.
    pub(crate) fn bind(&self, at: SimAddr) -> Result<Binding, BindError> {
        let incarnation = self.borrow_mut().bind(at)?;
        match self.wakers.add(at) {
            Ok(waker) => Ok(Binding { at, incarnation, waker }),
            Err(error) => {
                self.borrow_mut().close(at, incarnation);
                Err(BindError::Waker(error))
            }
        }
    }

    /// Closes a port and its further source ports, if the binding still holds.
    pub(crate) fn unbind(&self, binding: Binding, source_ports: &[u16]) {
        self.wakers.remove(binding.waker);
        // A panic inside the fabric may be unwinding through the transport's owner.
        if let Ok(mut fabric) = self.fabric.try_borrow_mut() {
            fabric.close_source_ports(binding, source_ports);
            fabric.close(binding.at, binding.incarnation);
        }
    }

    /// Returns the waker of a port's owner.
    pub(crate) fn waker(&self, binding: Binding) -> Waker {
        self.wakers.give(binding.waker)
    }

    /// Makes actors run whose wakers were used.
    pub(crate) fn process_wakers(&self) {
        for at in self.wakers.take_woken() {
            self.borrow_mut().wake_owner(at);
        }
    }

    /// Returns the fabric, unless it is borrowed: for drops during a panic.
    pub(crate) fn try_borrow_mut(&self) -> Result<RefMut<'_, Fabric>, BorrowMutError> {
        self.fabric.try_borrow_mut()
    }

    pub(crate) fn borrow_mut(&self) -> RefMut<'_, Fabric> {
        self.fabric.borrow_mut()
    }
}
