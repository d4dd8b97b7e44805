//! The scheduling of actors.
//!
//! Each actor has its own core. A core sleeps until a packet, room in the transmit queue, a deadline or an
//! explicit wake-up. A turn then happens `poll_ns` plus jitter later, sees all packets that have arrived by
//! then, and may keep the core busy longer ([`CpuConfig::frame_ns`](super::CpuConfig::frame_ns)). Wake-ups
//! in the meantime lead to one more turn afterwards.
//!
//! An event cannot be removed from the queue. Therefore a core has at most one valid event per kind, named
//! by a token; events with a wrong token do nothing.

use crate::rng::Rng;
use crate::time::Time;

use super::topology::HostId;
use super::{Event, Fabric, Step};

/// An actor of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActorId(pub u32);

#[derive(Debug)]
pub(super) struct Core {
    pub(super) host: HostId,
    is_alive: bool,
    rng: Rng,
    /// No turn begins earlier.
    busy_until: Time,
    /// When the actor wants to run even if nothing happens.
    deadline: Time,
    /// The earliest timeout among this turn's calls of `Transport::wait`.
    noted_deadline: Time,
    poll: Armed,
    timer: Armed,
    /// Set if the next turn stops in the middle.
    stall: Option<Stall>,
}

/// A turn that stops in the middle, or is stopped.
#[derive(Clone, Copy, Debug)]
struct Stall {
    after: u64,
    for_ns: u64,
    /// When the stop began, if it has.
    began: Option<Time>,
}

/// The part of the current turn before its stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct BeforeStop {
    began: Time,
    steps_left: u64,
}

/// The clock as an actor has seen it in the current turn. Both times are equal unless the turn has been
/// stopped and resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnClock {
    /// When the turn began.
    pub first_ns: u64,
    /// The time at its last step. The stop lies between two steps: the actor's code up to the next step
    /// counts as run before the stop.
    pub last_ns: u64,
    /// The actor's latest reading, if it has neither taken nor flushed a frame since.
    pub read_ns: Option<u64>,
}

impl TurnClock {
    /// Returns how long the turn has been stopped up to its last step.
    pub fn stopped_ns(self) -> u64 {
        self.last_ns - self.first_ns
    }
}

/// A stop of an actor, from its beginning on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) host: HostId,
    pub(crate) from_ns: u64,
    pub(crate) for_ns: u64,
}

/// The one valid event of a kind.
#[derive(Debug)]
struct Armed {
    at: Time,
    token: u32,
}

impl Armed {
    const fn new() -> Self {
        Self { at: Time::NEVER, token: 0 }
    }

    /// Makes a new event valid instead of the last, and returns the new event's token.
    fn arm(&mut self, at: Time) -> u32 {
        self.at = at;
        self.token = self.token.wrapping_add(1);
        self.token
    }

    /// Consumes the valid event; returns true if `token` names it.
    fn fire(&mut self, token: u32) -> bool {
        let is_valid = self.at != Time::NEVER && self.token == token;
        if is_valid {
            self.at = Time::NEVER;
        }
        is_valid
    }
}

impl Core {
    pub(super) fn new(host: HostId, rng: Rng) -> Self {
        Self {
            host,
            is_alive: true,
            rng,
            busy_until: Time::ZERO,
            deadline: Time::NEVER,
            noted_deadline: Time::NEVER,
            poll: Armed::new(),
            timer: Armed::new(),
            stall: None,
        }
    }
}

impl Fabric {
    /// Makes a core on `host`, which runs soon for the first time.
    ///
    /// # Panics
    /// If the host does not exist or is down.
    pub(crate) fn add_core(&mut self, host: HostId) -> ActorId {
        let is_up = self.hosts.get(usize::from(host.0)).is_some_and(|host| host.is_up);
        assert!(is_up, "an actor needs a host that exists and runs; {host} does not");
        let actor = ActorId(self.cores.len() as u32);
        let rng = Rng::stream(self.seed, super::STREAM_CORE, actor.0);
        self.cores.push(Core::new(host, rng));
        self.wake(actor);
        actor
    }

    /// Makes an actor run soon.
    pub(crate) fn wake(&mut self, actor: ActorId) {
        let now = self.now;
        let Some(core) = self.cores.get_mut(actor.0 as usize) else { return };
        if !core.is_alive || core.poll.at != Time::NEVER {
            return;
        }
        let cpu = self.config.cpu;
        let cost_ns = cpu.poll_ns.saturating_add(core.rng.between(0, cpu.poll_jitter_ns)).max(1);
        let at = now.max(core.busy_until).plus_ns(cost_ns);
        let token = core.poll.arm(at);
        self.queue.push(at, Event::Poll { actor, token });
    }

    /// Records that an actor sleeps until `deadline` at most.
    pub(super) fn note_wait(&mut self, actor: ActorId, deadline: Time) {
        if let Some(core) = self.cores.get_mut(actor.0 as usize) {
            core.noted_deadline = core.noted_deadline.min(deadline);
        }
    }

    /// Ends a turn that [`Step::Poll`] began. `deadline` is the time that the actor returned.
    pub(crate) fn finish_poll(&mut self, actor: ActorId, deadline: Time) {
        (self.before_stop, self.stopped_ns, self.read) = (None, 0, None);
        let frame_ns = self.config.cpu.frame_ns.saturating_mul(self.frames_in_turn);
        let core = &mut self.cores[actor.0 as usize];
        core.busy_until = self.now.plus_ns(frame_ns);
        core.deadline = deadline.min(core.noted_deadline);
        if core.deadline <= self.now {
            self.wake(actor);
        } else if core.deadline < core.timer.at {
            self.arm_timer(actor);
        }
    }

    pub(super) fn handle_timer(&mut self, actor: ActorId, token: u32) {
        let now = self.now;
        let core = &mut self.cores[actor.0 as usize];
        if !core.timer.fire(token) || !core.is_alive {
            return;
        }
        if core.deadline <= now {
            self.wake(actor);
        } else {
            // The deadline has moved on, as most do. A new event costs less than the cancellation of the old one.
            self.arm_timer(actor);
        }
    }

    /// Handles a poll event: lets the actor run, unless its host is paused.
    pub(super) fn handle_poll(&mut self, actor: ActorId, token: u32) -> Option<Step> {
        let core = &mut self.cores[actor.0 as usize];
        if !core.poll.fire(token) || !core.is_alive {
            return None;
        }
        let paused_until = self.hosts[usize::from(core.host.0)].paused_until;
        if paused_until > self.now {
            let token = core.poll.arm(paused_until);
            self.queue.push(paused_until, Event::Poll { actor, token });
            return None;
        }
        match core.stall {
            None => {}
            Some(Stall { began: None, .. }) => {
                self.begin_stall(actor);
                return None;
            }
            Some(Stall { began: Some(began), after, .. }) => {
                self.before_stop = (after > 0).then_some(BeforeStop { began, steps_left: after });
                core.stall = None;
            }
        }
        (core.deadline, core.noted_deadline) = (Time::NEVER, Time::NEVER);
        self.frames_in_turn = 0;
        Some(Step::Poll(actor))
    }

    /// Stops a core at the begin of a turn. The turn runs at the end of the stop, as if a part of it had run before.
    fn begin_stall(&mut self, actor: ActorId) {
        let core = &mut self.cores[actor.0 as usize];
        let Some(stall) = &mut core.stall else { return };
        stall.began = Some(self.now);
        let until = self.now.plus_ns(stall.for_ns);
        let (host, from_ns, for_ns) = (core.host, self.now.ns(), stall.for_ns);
        self.stopped.push(Stopped { host, from_ns, for_ns });
        let token = core.poll.arm(until);
        self.queue.push(until, Event::Poll { actor, token });
    }

    /// Makes the next turn of each core of a host stop in the middle. Returns true if there is a core.
    pub(super) fn stall_cores_of(&mut self, host: HostId, after: u64, for_ns: u64) -> bool {
        let mut any = false;
        for core in self.cores.iter_mut().filter(|core| core.host == host && core.is_alive) {
            core.stall.get_or_insert(Stall { after, for_ns, began: None });
            any = true;
        }
        any
    }

    /// Returns the time as the current actor sees it: the beginning of its turn until the turn has been
    /// stopped and resumed. A reading is a step of the turn.
    pub(crate) fn read_clock(&mut self) -> Time {
        let now = self.note_step();
        self.read = Some(now);
        now
    }

    /// Counts a step of the current turn and resumes the clock at the first step after the stop. Returns
    /// the actor's time.
    pub(crate) fn note_step(&mut self) -> Time {
        let Some(before_stop) = &mut self.before_stop else { return self.now };
        if let Some(left) = before_stop.steps_left.checked_sub(1) {
            before_stop.steps_left = left;
            return before_stop.began;
        }
        self.stopped_ns = self.now.ns() - before_stop.began.ns();
        self.before_stop = None;
        self.now
    }

    /// Discards the current actor's latest clock reading: further actions happen later.
    pub(crate) fn forget_reading(&mut self) {
        self.read = None;
    }

    /// Returns the clock as the current actor has seen it. Not a step of its turn.
    pub(crate) fn turn_clock(&self) -> TurnClock {
        let last_ns = self.before_stop.map_or(self.now, |before_stop| before_stop.began).ns();
        let read_ns = self.read.map(Time::ns);
        TurnClock { first_ns: last_ns - self.stopped_ns, last_ns, read_ns }
    }

    /// Returns the time that the current actor would read from the clock. Not a step of its turn.
    pub(crate) fn next_reading(&self) -> Time {
        match self.before_stop {
            Some(BeforeStop { began, steps_left: 1.. }) => began,
            _ => self.now,
        }
    }

    pub(crate) fn kill_core(&mut self, actor: ActorId) {
        if let Some(core) = self.cores.get_mut(actor.0 as usize) {
            core.is_alive = false;
        }
    }

    pub(super) fn kill_cores_of(&mut self, host: HostId) {
        for core in self.cores.iter_mut().filter(|core| core.host == host) {
            core.is_alive = false;
        }
    }

    pub(crate) fn host_of(&self, actor: ActorId) -> HostId {
        self.cores[actor.0 as usize].host
    }

    fn arm_timer(&mut self, actor: ActorId) {
        let core = &mut self.cores[actor.0 as usize];
        let (at, token) = (core.deadline, core.timer.arm(core.deadline));
        self.queue.push(at, Event::Timer { actor, token });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{FabricConfig, Topology};

    fn fabric() -> Fabric {
        let topology = Topology::pair(Default::default(), Default::default());
        Fabric::new(&topology, FabricConfig::default(), 1).unwrap()
    }

    fn next_turn(fabric: &mut Fabric, actor: ActorId) {
        assert_eq!(fabric.advance(Time::NEVER), Step::Poll(actor));
    }

    #[test]
    fn deadline__moving_on_leaves_no_events_behind() {
        let mut fabric = fabric();
        let actor = fabric.add_core(HostId(0));
        for _ in 0..10_000 {
            next_turn(&mut fabric, actor);
            fabric.finish_poll(actor, fabric.now.plus_ns(1_000_000));
            fabric.wake(actor);
            // One turn and one timer.
            assert!(fabric.queue.len() <= 2);
        }
    }

    #[test]
    fn deadline__at_once_and_never() {
        let mut fabric = fabric();
        let actor = fabric.add_core(HostId(0));
        next_turn(&mut fabric, actor);
        fabric.finish_poll(actor, Time::ZERO);
        next_turn(&mut fabric, actor);
        fabric.finish_poll(actor, Time::NEVER);
        assert_eq!(fabric.advance(Time::NEVER), Step::Idle);
    }

    #[test]
    fn wake__several_make_one_turn() {
        let mut fabric = fabric();
        let actor = fabric.add_core(HostId(0));
        fabric.wake(actor);
        fabric.wake(actor);
        next_turn(&mut fabric, actor);
        // Wake-ups during a turn make one more.
        fabric.wake(actor);
        fabric.wake(actor);
        fabric.finish_poll(actor, Time::NEVER);
        next_turn(&mut fabric, actor);
        fabric.finish_poll(actor, Time::NEVER);
        assert_eq!(fabric.advance(Time::NEVER), Step::Idle);
    }

    #[test]
    fn stall__shows_the_turn_its_beginning_until_it_stops() {
        let mut fabric = fabric();
        let actor = fabric.add_core(HostId(0));
        next_turn(&mut fabric, actor);
        fabric.finish_poll(actor, Time::NEVER);
        fabric.wake(actor);
        assert!(fabric.stall_cores_of(HostId(0), 2, 1_000_000));
        assert!(!fabric.stall_cores_of(HostId(1), 2, 1_000_000), "nobody is there");
        next_turn(&mut fabric, actor);
        let began = fabric.read_clock();
        assert_eq!(began.plus_ns(1_000_000), fabric.now);
        assert_eq!(fabric.next_reading(), began);
        assert_eq!(fabric.read_clock(), began);
        assert_eq!((fabric.next_reading(), fabric.turn_clock().stopped_ns()), (fabric.now, 0));
        assert_eq!(fabric.read_clock(), fabric.now, "the third step is after the stop");
        let clock = fabric.turn_clock();
        assert_eq!((clock.first_ns, clock.stopped_ns()), (began.ns(), 1_000_000));
        assert_eq!(clock.read_ns, Some(clock.last_ns));
        fabric.finish_poll(actor, Time::ZERO);
        assert_eq!(fabric.turn_clock().stopped_ns(), 0);
        let stopped = Stopped { host: HostId(0), from_ns: began.ns(), for_ns: 1_000_000 };
        assert_eq!(fabric.stopped, [stopped]);
        next_turn(&mut fabric, actor);
        assert_eq!(fabric.read_clock(), fabric.now, "the next pass does not stop");
    }

    #[test]
    fn stall__ends_with_its_turn() {
        let mut fabric = fabric();
        let actor = fabric.add_core(HostId(0));
        fabric.stall_cores_of(HostId(0), 100, 1_000_000);
        next_turn(&mut fabric, actor);
        assert!(fabric.read_clock() < fabric.now);
        fabric.finish_poll(actor, Time::NEVER);
        assert_eq!(fabric.read_clock(), fabric.now);
    }

    #[test]
    fn kill__takes_effect_at_once() {
        let mut fabric = fabric();
        let actor = fabric.add_core(HostId(0));
        fabric.kill_core(actor);
        assert_eq!(fabric.advance(Time::NEVER), Step::Idle);
        fabric.wake(actor);
        assert_eq!(fabric.queue.len(), 0);
    }
}
