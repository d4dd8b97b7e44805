//! The loop of virtual time for all worlds: endpoints and control planes of many hosts, and the rules that a checker
//! asserts.

use petrel::Endpoint;
use petrel::endpoint::{EndpointConfig, EndpointId, PanicPolicy};
use petrel_transport::Transport as _;

use crate::control::{ControlNetwork, SimControl};
use crate::fabric::{ActorId, FabricHandle, HostId, SimAddr};
use crate::rng::Rng;
use crate::simulation::{Actor, Simulation, Stop};
use crate::transport::{SimTransport, SimTransportConfig};

/// A real endpoint, whose application has no state, on the simulated network.
pub type SimEndpoint = Endpoint<(), SimTransport, SimControl>;

/// Starts an endpoint of a process, which must run. The endpoint's number is the port's, from 0. Everything random in the
/// endpoint follows from `rng`.
///
/// # Errors
/// The port is taken, or the settings contradict each other, which is a defect of the world.
pub fn start_endpoint(
    fabric: &FabricHandle,
    control: &ControlNetwork,
    at: SimAddr,
    settings: SimTransportConfig,
    rng: Rng,
    config: &EndpointConfig,
) -> Result<SimEndpoint, String> {
    let transport = SimTransport::bind(fabric, at, settings).map_err(|error| error.to_string())?;
    let frame_bytes = settings.max_frame_bytes as u32;
    let control = control.attach(at, EndpointId(at.port - 1), frame_bytes, rng);
    // A rule that a handler finds broken ends the run.
    let mut config = config.clone();
    config.panics = PanicPolicy::Unwind;
    Endpoint::new(transport, control, &config).map_err(str::to_owned)
}

/// Runs a turn of the event loop. Returns true if more work remains now; an endpoint with a full transmit queue is woken
/// when the queue has room.
pub fn run_turn(endpoint: &mut SimEndpoint) -> bool {
    let blocked_before = endpoint.transport().stats().tx_blocked;
    let is_busy = endpoint.run_once();
    is_busy && endpoint.transport().stats().tx_blocked == blocked_before
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultLevel {
    /// No faults, and long queues.
    None,
    /// Packets are lost, copied, reordered and delayed, but no call may fail because of this.
    Recoverable,
    /// Hosts, processes and the network fail, too.
    Full,
}

/// A world: the actors of a simulation, the control planes of their processes, and rules.
///
/// An implementation says what a crash and a restart mean, and which rules hold. [`World::run_to`] is the loop that
/// all checkers and experiments share. A world without crashes, or without rules for any time, keeps the defaults.
pub trait World {
    /// The actors: endpoints with their applications.
    type Actor: Actor;

    /// Returns the simulation with all actors.
    fn simulation(&mut self) -> &mut Simulation<Self::Actor>;

    /// Returns the control planes of all processes.
    fn control(&self) -> ControlNetwork;

    /// Returns a function to call after each turn of an actor. It returns false to run the checks at once.
    fn after_turn(&self) -> impl FnMut() -> bool + use<Self> {
        || true
    }

    /// Ends the process of a crashed host. `dead` are its actors in their last state.
    fn on_crash(&mut self, host: HostId, dead: Vec<(ActorId, Self::Actor)>) {
        unreachable!("{host} with {} actors crashes in a world without crashes", dead.len());
    }

    /// Starts a process on a host that is back after a crash.
    ///
    /// # Errors
    /// The process cannot be started, which is a defect.
    fn on_restart(&mut self, host: HostId) -> Result<(), String> {
        unreachable!("{host} restarts in a world without crashes");
    }

    /// Checks the rules that must hold at any time.
    ///
    /// # Errors
    /// The first broken rule.
    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }

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

    /// Runs until a condition holds, and checks the condition before every interval. Returns false if the condition does
    /// not hold after `limit_ns`.
    ///
    /// # Errors
    /// As [`World::run_to`], and those of the condition.
    fn run_until(
        &mut self,
        limit_ns: u64,
        intervals_ns: impl IntoIterator<Item = u64>,
        mut is_over: impl FnMut(&mut Self) -> Result<bool, String>,
    ) -> Result<bool, String> {
        let end_ns = self.simulation().fabric().now_ns() + limit_ns;
        for interval_ns in intervals_ns {
            if is_over(self)? {
                return Ok(true);
            }
            if self.simulation().fabric().now_ns() > end_ns {
                break;
            }
            self.run_for(interval_ns)?;
        }
        Ok(false)
    }
}
