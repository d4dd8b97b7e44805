//! The loop that runs actors and advances time.

use crate::fabric::{ActorId, FabricHandle, HostId, SimAddr, Step};
use crate::time::Time;

/// A program that runs on a host: an endpoint with its application.
pub trait Actor {
    /// Runs one turn of an event loop at the virtual time `now_ns`. Returns the time of the next turn if
    /// nothing arrives before; a past time means at once.
    ///
    /// The simulation also runs an actor when a packet arrives at its ports, when its transmit queue has
    /// room again, at the end of a `Transport::wait`, and sometimes for no reason.
    fn poll(&mut self, now_ns: u64) -> Option<u64>;

    /// Returns the amount of work that this actor has begun and not finished, for example pending calls. If
    /// no event is scheduled while an actor has work, the simulation reports a deadlock.
    fn outstanding(&self) -> usize {
        0
    }
}

impl<A: Actor + ?Sized> Actor for Box<A> {
    fn poll(&mut self, now_ns: u64) -> Option<u64> {
        (**self).poll(now_ns)
    }

    fn outstanding(&self) -> usize {
        (**self).outstanding()
    }
}

/// Why a simulation stopped. The next run continues.
#[derive(Debug)]
pub enum Stop<A> {
    /// The time is up.
    Limit,
    /// The condition holds.
    Satisfied,
    /// No event is scheduled, and no actor waits.
    Idle,
    /// No event is scheduled, but these actors have outstanding work.
    Deadlock {
        /// The waiting actors, and how much work each has outstanding.
        waiting: Vec<(ActorId, usize)>,
    },
    /// A host has crashed. The simulation returns the host's actors, for inspection of their last state.
    Crashed {
        /// The host.
        host: HostId,
        /// The actors that were on the host.
        dead: Vec<(ActorId, A)>,
    },
    /// A host is back after a crash, with nothing on it. Bind the ports and spawn the actors anew.
    Restarted {
        /// The host.
        host: HostId,
    },
}

/// Actors of one type on a fabric: an enum, or a box, for different actors.
///
/// ```
/// use petrel_sim::{Actor, Simulation, Stop};
/// use petrel_sim::fabric::{FabricConfig, FabricHandle, HostId, SimAddr, Topology};
///
/// /// Runs every microsecond, ten times.
/// struct Clock(u32);
///
/// impl Actor for Clock {
///     fn poll(&mut self, now_ns: u64) -> Option<u64> {
///         self.0 += 1;
///         (self.0 < 10).then_some(now_ns + 1_000)
///     }
/// }
///
/// let topology = Topology::pair(Default::default(), Default::default());
/// let fabric = FabricHandle::new(&topology, FabricConfig::default(), 42)?;
/// let mut simulation = Simulation::new(fabric);
/// let clock = simulation.spawn(SimAddr::new(HostId(0), 1), Clock(0));
/// assert!(matches!(simulation.run_until(1_000_000), Stop::Idle));
/// assert_eq!(simulation.actor(clock).unwrap().0, 10);
/// # Ok::<(), petrel_sim::fabric::FabricError>(())
/// ```
#[derive(Debug)]
pub struct Simulation<A> {
    fabric: FabricHandle,
    /// By [`ActorId`]; `None` for former actors.
    actors: Vec<Option<A>>,
}

impl<A: Actor> Simulation<A> {
    /// Makes a simulation without actors. A fabric carries the actors of one simulation.
    pub fn new(fabric: FabricHandle) -> Self {
        Self { fabric, actors: Vec::new() }
    }

    /// Returns the fabric.
    pub fn fabric(&self) -> &FabricHandle {
        &self.fabric
    }

    /// Adds an actor to the host of `at`. The actor runs soon, and then whenever something arrives at `at`.
    /// Bind that port first; an actor may also have no port.
    ///
    /// # Panics
    /// If the host does not exist or is down.
    pub fn spawn(&mut self, at: SimAddr, actor: A) -> ActorId {
        let mut fabric = self.fabric.borrow_mut();
        let id = fabric.add_core(at.host);
        fabric.set_owner(at, id);
        assert_eq!(id.0 as usize, self.actors.len(), "a fabric carries one simulation");
        self.actors.push(Some(actor));
        id
    }

    /// Lets an actor also run when something arrives at `at`, which must be bound.
    pub fn listen(&mut self, actor: ActorId, at: SimAddr) {
        self.fabric.borrow_mut().set_owner(at, actor);
    }

    /// Makes an actor run soon.
    pub fn wake(&mut self, actor: ActorId) {
        self.fabric.borrow_mut().wake(actor);
    }

    /// Takes an actor out of the simulation.
    pub fn remove(&mut self, actor: ActorId) -> Option<A> {
        self.fabric.borrow_mut().kill_core(actor);
        self.actors.get_mut(actor.0 as usize)?.take()
    }

    /// Returns an actor, if it is still in the simulation.
    pub fn actor(&self, actor: ActorId) -> Option<&A> {
        self.actors.get(actor.0 as usize)?.as_ref()
    }

    /// Returns an actor, to give it work; [`Simulation::wake`] makes the actor run.
    pub fn actor_mut(&mut self, actor: ActorId) -> Option<&mut A> {
        self.actors.get_mut(actor.0 as usize)?.as_mut()
    }

    /// Returns all actors of the simulation.
    pub fn actors(&self) -> impl Iterator<Item = (ActorId, &A)> {
        let numbered = (0u32..).map(ActorId).zip(&self.actors);
        numbered.filter_map(|(id, actor)| Some((id, actor.as_ref()?)))
    }

    /// Runs until the virtual time is `limit_ns`, or until an event that the caller has to handle.
    pub fn run_until(&mut self, limit_ns: u64) -> Stop<A> {
        self.run_while(limit_ns, |_| true)
    }

    /// Like [`Simulation::run_until`], and stops when `goes_on` returns false. `goes_on` is called with the
    /// actor after each turn.
    pub fn run_while(&mut self, limit_ns: u64, mut goes_on: impl FnMut(&A) -> bool) -> Stop<A> {
        let limit = Time::from_ns(limit_ns);
        // A waker may have been used since the last run.
        self.fabric.process_wakers();
        loop {
            let step = self.fabric.borrow_mut().advance(limit);
            match step {
                Step::Poll(actor) => {
                    if !self.poll(actor, &mut goes_on) {
                        return Stop::Satisfied;
                    }
                }
                Step::Crashed(host) => {
                    return Stop::Crashed { host, dead: self.remove_crashed(host) };
                }
                Step::Restarted(host) => return Stop::Restarted { host },
                Step::Limit => return Stop::Limit,
                Step::Idle => return self.idle(),
            }
        }
    }

    fn poll(&mut self, id: ActorId, goes_on: &mut impl FnMut(&A) -> bool) -> bool {
        let now_ns = self.fabric.now_ns();
        let Some(actor) = &mut self.actors[id.0 as usize] else { return true };
        let deadline = actor.poll(now_ns).map_or(Time::NEVER, Time::from_ns);
        let goes_on = goes_on(actor);
        self.fabric.borrow_mut().finish_poll(id, deadline);
        self.fabric.process_wakers();
        goes_on
    }

    fn remove_crashed(&mut self, host: HostId) -> Vec<(ActorId, A)> {
        let fabric = self.fabric.borrow_mut();
        let all = (0u32..).map(ActorId).zip(&mut self.actors);
        let on_host = all.filter(|&(id, _)| fabric.host_of(id) == host);
        on_host.filter_map(|(id, actor)| Some((id, actor.take()?))).collect()
    }

    fn idle(&self) -> Stop<A> {
        let counts = self.actors().map(|(id, actor)| (id, actor.outstanding()));
        let waiting: Vec<_> = counts.filter(|&(_, count)| count > 0).collect();
        if waiting.is_empty() { Stop::Idle } else { Stop::Deadlock { waiting } }
    }
}
