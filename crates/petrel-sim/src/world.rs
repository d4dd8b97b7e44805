//! Worlds of checkers: actors and control planes that run together, in virtual time, under rules.

use petrel::Endpoint;

use crate::control::{ControlNetwork, SimControl};
use crate::fabric::{ActorId, HostId};
use crate::simulation::{Actor, Simulation, Stop};
use crate::transport::SimTransport;

/// A real endpoint, whose application has no state, on the simulated network.
pub type SimEndpoint = Endpoint<(), SimTransport, SimControl>;

/// A world: the actors of a simulation, the control planes of their processes, and rules.
///
/// An implementation says what a crash and a restart mean, and which rules hold. [`World::run_to`] is the loop that
/// all checkers share.
pub trait World {
    /// The actors: endpoints with their applications.
    type Actor: Actor;

    /// Returns the simulation with all actors.
    fn simulation(&mut self) -> &mut Simulation<Self::Actor>;

    /// Returns the control planes of all processes.
    fn control(&self) -> ControlNetwork;

    /// Returns a function to call after each turn of an actor. It returns false to run the checks at once.
    fn after_turn(&self) -> impl FnMut() -> bool + use<Self>;

    /// Ends the process of a crashed host. `dead` are its actors in their last state.
    fn on_crash(&mut self, host: HostId, dead: Vec<(ActorId, Self::Actor)>);

    /// Starts a process on a host that is back after a crash.
    ///
    /// # Errors
    /// The process cannot be started, which is a defect.
    fn on_restart(&mut self, host: HostId) -> Result<(), String>;

    /// Checks the rules that must hold at any time.
    ///
    /// # Errors
    /// The first broken rule.
    fn check(&mut self) -> Result<(), String>;

    /// Runs actors and control planes until a virtual time, and past all their events of that time.
    ///
    /// # Errors
    /// As [`World::check`] and [`World::on_restart`].
    fn run_to(&mut self, limit_ns: u64) -> Result<(), String> {
        let control = self.control();
        loop {
            let mut is_over = false;
            let next_ns = control.next_ns().min(limit_ns);
            let mut after_turn = self.after_turn();
            let goes_on = |_: &Self::Actor| after_turn() && control.next_ns() >= next_ns;
            match self.simulation().run_while(next_ns, goes_on) {
                Stop::Satisfied => {}
                Stop::Limit => is_over = next_ns == limit_ns,
                // The control planes may still have messages to deliver.
                Stop::Idle | Stop::Deadlock { .. } => {
                    let fabric = self.simulation().fabric();
                    fabric.advance(next_ns.saturating_sub(fabric.now_ns()));
                    is_over = next_ns == limit_ns;
                }
                Stop::Crashed { host, dead } => self.on_crash(host, dead),
                Stop::Restarted { host } => self.on_restart(host)?,
            }
            control.run();
            self.check()?;
            if is_over && control.next_ns() > limit_ns {
                return Ok(());
            }
        }
    }

    /// Runs actors and control planes for a virtual time.
    ///
    /// # Errors
    /// As [`World::run_to`].
    fn run_for(&mut self, duration_ns: u64) -> Result<(), String> {
        let now_ns = self.simulation().fabric().now_ns();
        self.run_to(now_ns + duration_ns)
    }
}
