//! The loop that lets actors run and time pass.

use crate::fabric::{ActorId, FabricHandle, HostId, SimAddr, Step};
use crate::time::Time;

/// Something that runs on a host: an endpoint with its application.
pub trait Actor {
    /// Runs once, as one pass of an event loop, at the virtual time `now_ns`. Returns when it
    /// wants to run again if nothing arrives before; a time that has passed means at once.
    ///
    /// It also runs when a packet arrives at its ports, when its transmit queue has room again,
    /// at the end of a `Transport::wait`, and sometimes for no reason.
    fn poll(&mut self, now_ns: u64) -> Option<u64>;

    /// Work that this actor has begun and not finished, such as pending calls. If nothing is
    /// scheduled any more while somebody waits, the simulation reports a deadlock.
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

/// Why a simulation stopped. Run it again to go on.
#[derive(Debug)]
pub enum Stop<A> {
    /// The time is up.
    Limit,
    /// The condition holds.
    Satisfied,
    /// Nothing is scheduled any more, and nobody waits for anything.
    Idle,
    /// Nothing is scheduled any more, but these actors wait for something.
    Deadlock {
        /// Who, and how much each has outstanding.
        waiting: Vec<(ActorId, usize)>,
    },
    /// A host has crashed. Its actors are no longer part of the simulation; they are handed out
    /// so that their last state can be looked at.
    Crashed {
        /// Which host.
        host: HostId,
        /// Who was on it.
        dead: Vec<(ActorId, A)>,
    },
    /// A host is back after a crash, with nothing on it. Bind its ports and spawn its actors anew.
    Restarted {
        /// Which host.
        host: HostId,
    },
}

/// Actors on a fabric, of one type: an enum, or a box, where they differ.
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
    /// By [`ActorId`]; `None` for those that are gone.
    actors: Vec<Option<A>>,
}

impl<A: Actor> Simulation<A> {
    /// A simulation without actors. A fabric carries the actors of one simulation.
    pub fn new(fabric: FabricHandle) -> Self {
        Self { fabric, actors: Vec::new() }
    }

    /// The fabric.
    pub fn fabric(&self) -> &FabricHandle {
        &self.fabric
    }

    /// Adds an actor to the host of `at`. It runs soon for the first time, and from then on when
    /// something arrives at `at`. Bind that port before; an actor may also do without one.
    ///
    /// # Panics
    /// When the host does not exist or is down.
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

    /// Lets an actor run soon.
    pub fn wake(&mut self, actor: ActorId) {
        self.fabric.borrow_mut().wake(actor);
    }

    /// Takes an actor out of the simulation.
    pub fn remove(&mut self, actor: ActorId) -> Option<A> {
        self.fabric.borrow_mut().kill_core(actor);
        self.actors.get_mut(actor.0 as usize)?.take()
    }

    /// An actor, if it is still there.
    pub fn actor(&self, actor: ActorId) -> Option<&A> {
        self.actors.get(actor.0 as usize)?.as_ref()
    }

    /// An actor, to give it work; [`Simulation::wake`] makes it look.
    pub fn actor_mut(&mut self, actor: ActorId) -> Option<&mut A> {
        self.actors.get_mut(actor.0 as usize)?.as_mut()
    }

    /// All actors that are there.
    pub fn actors(&self) -> impl Iterator<Item = (ActorId, &A)> {
        let numbered = (0u32..).map(ActorId).zip(&self.actors);
        numbered.filter_map(|(id, actor)| Some((id, actor.as_ref()?)))
    }

    /// Runs until the virtual time is `limit_ns`, or something happens that the caller has to
    /// deal with.
    pub fn run_until(&mut self, limit_ns: u64) -> Stop<A> {
        self.run_while(limit_ns, |_| true)
    }

    /// The same, and stops when `goes_on` is false. It is asked after each pass of an actor, with
    /// that actor.
    pub fn run_while(&mut self, limit_ns: u64, mut goes_on: impl FnMut(&A) -> bool) -> Stop<A> {
        let limit = Time::from_ns(limit_ns);
        // Somebody may have used a waker since the last run.
        self.fabric.heed_wakers();
        loop {
            let step = self.fabric.borrow_mut().advance(limit);
            match step {
                Step::Poll(actor) => {
                    if !self.poll(actor, &mut goes_on) {
                        return Stop::Satisfied;
                    }
                }
                Step::Crashed(host) => return Stop::Crashed { host, dead: self.bury(host) },
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
        self.fabric.heed_wakers();
        goes_on
    }

    fn bury(&mut self, host: HostId) -> Vec<(ActorId, A)> {
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
