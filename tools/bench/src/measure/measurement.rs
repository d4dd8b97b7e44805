//! Latency, rate and bandwidth: the library beside the baseline.

use std::net::{SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::mpsc;

use petrel::Endpoint;
#[cfg(feature = "full")]
use petrel::endpoint::Device;
use petrel_command::device;
use petrel_command::failure::Failure;
use petrel_command::methods;
use petrel_proto::limits::{
    CREDITS_DEFAULT, SLOTS_DEFAULT, SLOTS_MAX, SLOTS_WITH_RESERVE_MIN, WINDOW_PACKETS,
};
use petrel_transport::udp::Mtu;

#[cfg(feature = "full")]
use super::baseline::device::DevicePort;
use super::baseline::echo::Grouping;
use super::baseline::socket::Medium;
use super::baseline::{bulk, echo, mailbox, ring, socket, stream, tcp};
use super::ends::{ClientOnly, Side};
use super::figure::{Baseline, Figure, Quantity, Setting};
use super::library::{Adjust, Answerer, Caller, EndConfig};
use super::load::{Choice, Exchange, Load, Selection, Workload};
use super::pairs::{Pace, Schedule, alternate};
use super::test_bed::{Cores, TestBed};
use petrel_command::args::{BenchTransport, ServerAddress};

/// Bytes of a packet, by default of Ethernet.
pub const MTU: u16 = 1_500;

/// IPv4 and UDP header.
pub(super) const UDP_HEADER_BYTES: usize = 28;

/// Sessions over which raised settings spread many calls.
const SESSIONS_RAISED_MAX: u16 = 8;

/// Calls in flight on a session, as in eRPC's measurements (§6.2), and its slots.
const CALLS_PER_SESSION: u16 = 8;

/// The sessions of the calling end, and their settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPlan {
    /// All settings as the library has them, one session unless the command asks for more.
    Default { sessions: u16 },
    /// Eight calls in flight on each of up to eight sessions, as in eRPC's measurements (§6.2), and a slot
    /// and a credit for each call.
    Raised,
}

/// The other side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Beside {
    /// The bare medium.
    Bare,
    /// A polled TCP stream.
    Tcp,
}

/// The configuration of the library's ends.
#[derive(Clone, Debug)]
pub struct Shape {
    pub exchange: Exchange,
    pub sessions: usize,
    /// Calls in flight per session.
    pub slots: u16,
    /// Packets in flight per session.
    pub credits: u16,
    pub choice: Choice,
    /// The sessions to use; may change between windows.
    pub selection: Rc<Selection>,
    /// Whether both ends use the process's credentials.
    pub is_sealed: bool,
    /// Further changes of either end's configuration.
    pub adjust: Adjust,
    /// The methods of the server.
    pub register: fn(&mut Endpoint),
}

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Measurement {
    pub quantity: Quantity,
    pub transport: BenchTransport,
    pub cores: Cores,
    pub size: usize,
    pub in_flight: u16,
    /// Calls started together.
    pub batch: u16,
    pub pace: Pace,
    /// The sessions of the calling end.
    pub plan: SessionPlan,
    /// The other side of the comparison.
    pub beside: Beside,
    /// A running server and the number of its endpoint; `None` for a server in this process.
    pub connect: Option<(ServerAddress, u16)>,
}

impl Measurement {
    /// Returns the title of the progress bar.
    pub fn title(&self) -> String {
        format!("{} over {}", self.quantity.name(), self.transport.name())
    }

    /// Runs the measurement. `watch` gets the numbers of finished and of all pairs of windows.
    pub fn run(&self, watch: impl FnMut(u32, u32)) -> Result<Figure, Failure> {
        match &self.connect {
            Some((server, endpoint)) => self.with_server(server, *endpoint, watch),
            None => {
                let baseline = match self.beside {
                    Beside::Tcp => Baseline::Tcp,
                    Beside::Bare => Baseline::BareMedium,
                };
                let test_bed = TestBed::new(self.cores, self.pace.is_realtime)?;
                self.on(&test_bed, baseline, |setting| setting, watch)
            }
        }
    }

    /// Measures with the two ends in this process, beside a baseline on the bare medium.
    pub fn on(
        &self,
        test_bed: &TestBed,
        baseline: Baseline,
        describe: impl FnOnce(Setting) -> Setting,
        watch: impl FnMut(u32, u32),
    ) -> Result<Figure, Failure> {
        let mut library = self.library(test_bed, &self.shape())?;
        let mut beside = self.baseline(test_bed, baseline)?;
        let side: &mut dyn Side = beside.as_mut();
        self.compare(test_bed, (library.as_mut(), Some((side, baseline))), describe, watch)
    }

    /// Measures the library beside another side.
    pub fn compare(
        &self,
        test_bed: &TestBed,
        (library, beside): (&mut dyn Side, Option<(&mut dyn Side, Baseline)>),
        describe: impl FnOnce(Setting) -> Setting,
        mut watch: impl FnMut(u32, u32),
    ) -> Result<Figure, Failure> {
        let (beside, baseline) = beside.unzip();
        let probe = test_bed.probe()?;
        let schedule = self.schedule();
        let pairs = alternate(schedule, library, beside, probe.as_ref(), |done| {
            watch(done, schedule.pairs);
        })?;
        let setting = Setting {
            cores: Some(test_bed.cores().count()),
            cpus: test_bed.cpus(),
            baseline,
            ..self.setting()
        };
        Ok(Figure::new(self.quantity, describe(setting), pairs))
    }

    /// Measures the library alone, because the server is another process.
    fn with_server(
        &self,
        server: &ServerAddress,
        endpoint: u16,
        mut watch: impl FnMut(u32, u32),
    ) -> Result<Figure, Failure> {
        let connect = |address| self.caller((address, endpoint), &self.shape(), &mut || ());
        let mut caller = ClientOnly(server.first_that(connect)?);
        let schedule = self.schedule();
        let pairs = alternate(schedule, &mut caller, None, None, |done| {
            watch(done, schedule.pairs);
        })?;
        Ok(Figure::new(self.quantity, self.setting(), pairs))
    }

    fn schedule(&self) -> Schedule {
        Schedule::new(self.pace)
    }

    /// Creates the two ends of the library.
    pub fn library(&self, test_bed: &TestBed, shape: &Shape) -> Result<Box<dyn Side>, Failure> {
        let [_, server_address] = test_bed.addresses;
        let Shape { adjust, register, is_sealed, .. } = *shape;
        let config = EndConfig::new(self.transport, server_address);
        let config = EndConfig { adjust, is_sealed, ..config };
        let (sender, receiver) = mpsc::channel();
        let make_server = move || {
            let answerer = Answerer::start((server_address, 0).into(), &config, register)?;
            // The result is received in any case.
            let _ = sender.send(answerer.address());
            Ok(answerer)
        };
        test_bed.create_ends(make_server, |meanwhile| {
            let address = receiver.recv().map_err(Failure::because)?;
            self.caller((address, 0), shape, meanwhile)
        })
    }

    /// Creates the calling end of a server, with its sessions open.
    pub fn caller(
        &self,
        server: (SocketAddr, u16),
        shape: &Shape,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Caller<Load>, Failure> {
        let config = EndConfig {
            slots: shape.slots,
            credits: shape.credits,
            is_sealed: shape.is_sealed,
            adjust: shape.adjust,
            ..EndConfig::towards(self.transport, server.0.ip())
        };
        let load = Load::new(self.workload(shape), Rc::clone(&shape.selection));
        let mut caller = Caller::start(server.0, &config, load)?;
        caller.open(server, shape.sessions, meanwhile)?;
        caller.endpoint.with(|load, cx| load.set_sessions(cx, &caller.sessions))?;
        Ok(caller)
    }

    /// Returns the configuration of the library's ends.
    pub fn shape(&self) -> Shape {
        Shape {
            exchange: match self.quantity {
                Quantity::Latency | Quantity::Rate => Exchange::Echo,
                Quantity::Bandwidth => Exchange::Sample,
            },
            sessions: self.sessions().into(),
            slots: self.plan_slots(),
            credits: self.plan_credits(),
            choice: Choice::InTurn,
            selection: Selection::all(),
            is_sealed: false,
            adjust: |_| (),
            register: methods::register,
        }
    }

    fn workload(&self, shape: &Shape) -> Workload {
        Workload {
            exchange: shape.exchange,
            size: self.size,
            in_flight: self.in_flight,
            batch: self.batch,
            choice: shape.choice,
            is_timed: self.quantity == Quantity::Latency,
        }
    }

    fn sessions(&self) -> u16 {
        match self.plan {
            SessionPlan::Default { sessions } => sessions,
            SessionPlan::Raised => {
                self.in_flight.div_ceil(CALLS_PER_SESSION).clamp(1, SESSIONS_RAISED_MAX)
            }
        }
    }

    fn plan_slots(&self) -> u16 {
        match self.plan {
            SessionPlan::Default { .. } => SLOTS_DEFAULT,
            SessionPlan::Raised => self.slots(self.sessions()),
        }
    }

    fn plan_credits(&self) -> u16 {
        match self.plan {
            SessionPlan::Default { .. } => CREDITS_DEFAULT,
            SessionPlan::Raised => self.in_flight.clamp(CREDITS_DEFAULT, WINDOW_PACKETS as u16),
        }
    }

    /// Returns the slots per session with which no call waits, if the calls are spread over `sessions`.
    fn slots(&self, sessions: u16) -> u16 {
        let needed = self.in_flight.div_ceil(sessions);
        // With 64 slots and more, the endpoint reserves one for health checks.
        let reserved = u16::from(needed >= SLOTS_WITH_RESERVE_MIN);
        (needed + reserved).clamp(CALLS_PER_SESSION, SLOTS_MAX).next_power_of_two()
    }

    /// Creates the two ends of the baseline.
    pub fn baseline(
        &self,
        test_bed: &TestBed,
        baseline: Baseline,
    ) -> Result<Box<dyn Side>, Failure> {
        let Self { size, in_flight, .. } = *self;
        match (self.transport, self.quantity) {
            _ if baseline == Baseline::Tcp => self.baseline_tcp(test_bed),
            (BenchTransport::Shm, Quantity::Latency) => {
                let (client, server) = mailbox::ends(size);
                test_bed.create_ends(move || Ok(server), move |_| Ok(client))
            }
            (BenchTransport::Shm, Quantity::Rate) => {
                let (client, server) = ring::ends(size, in_flight);
                test_bed.create_ends(move || Ok(server), move |_| Ok(client))
            }
            (BenchTransport::Shm, Quantity::Bandwidth) => {
                let (client, server) = bulk::ends(size, in_flight);
                test_bed.create_ends(move || Ok(server), move |_| Ok(client))
            }
            #[cfg(feature = "full")]
            (BenchTransport::Udp, _) if self.has_device(test_bed) => {
                self.baseline_udp::<DevicePort>(test_bed, baseline)
            }
            // Streams replace datagrams, and so have datagrams as their baseline.
            (BenchTransport::Udp | BenchTransport::Stream, _) => {
                self.baseline_udp::<UdpSocket>(test_bed, baseline)
            }
        }
    }

    fn baseline_tcp(&self, test_bed: &TestBed) -> Result<Box<dyn Side>, Failure> {
        let [_, server_address] = test_bed.addresses;
        let (calls, is_timed) = ((self.size, self.in_flight), self.quantity == Quantity::Latency);
        let (sender, receiver) = mpsc::channel();
        let make_server = move || {
            let echo = tcp::Echo::bind(server_address, calls)?;
            // The result is received in any case.
            let _ = sender.send(echo.address()?);
            Ok(echo)
        };
        test_bed.create_ends(make_server, |_| {
            tcp::Caller::connect(receiver.recv().map_err(Failure::because)?, calls, is_timed)
        })
    }

    /// Returns true if the ends have a network device between them and the command names a device past the kernel.
    #[cfg(feature = "full")]
    fn has_device(&self, test_bed: &TestBed) -> bool {
        let is_local = test_bed.addresses.iter().all(|address| address.is_loopback());
        !is_local && device::get() != Device::Kernel
    }

    /// Returns the baseline over UDP. The server thread creates the server socket, possibly in another network
    /// namespace.
    fn baseline_udp<M: Medium + 'static>(
        &self,
        test_bed: &TestBed,
        baseline: Baseline,
    ) -> Result<Box<dyn Side>, Failure> {
        let [client_address, server_address] = M::addresses(test_bed.addresses);
        let Self { quantity, size, in_flight, .. } = *self;
        // The bare medium's datagrams are as long as Petrel's.
        let path = if server_address.is_loopback() { usize::MAX } else { MTU.into() };
        let datagram_bytes = Mtu::default().on_path(path) - UDP_HEADER_BYTES;
        let grouping = match baseline {
            Baseline::SingleDatagrams => Grouping::Singles,
            _ => Grouping::Runs,
        };
        let client_socket = socket::bind(client_address)?;
        let client = client_socket.local_addr()?;
        let (sender, receiver) = mpsc::channel();
        let bind_server = move || {
            let socket = socket::bind(server_address)?;
            // The result is received in any case.
            let _ = sender.send(socket.local_addr()?);
            Ok::<_, Failure>(socket)
        };
        let server = || receiver.recv().map_err(Failure::because);
        match quantity {
            Quantity::Latency => test_bed.create_ends(
                move || echo::Echo::<M>::new(bind_server()?, client, size, Grouping::Singles),
                |_| echo::Caller::<M>::timed(client_socket, server()?, size),
            ),
            Quantity::Rate => test_bed.create_ends(
                move || echo::Echo::<M>::new(bind_server()?, client, size, grouping),
                |_| echo::Caller::<M>::new(client_socket, server()?, size, in_flight, grouping),
            ),
            Quantity::Bandwidth => test_bed.create_ends(
                move || stream::Receiver::<M>::new(bind_server()?, client, size, datagram_bytes),
                |_| stream::Sender::<M>::new(client_socket, server()?, size, datagram_bytes),
            ),
        }
    }

    fn setting(&self) -> Setting {
        Setting {
            size_bytes: self.size,
            in_flight: self.in_flight,
            batch: self.batch,
            sessions: self.sessions().into(),
            settings: Some(self.plan.name()),
            ..Setting::new(self.quantity.name(), self.transport.name(), self.command())
        }
    }

    /// Returns the command that repeats the measurement.
    pub fn command(&self) -> String {
        let cores = match (&self.connect, self.cores) {
            (None, Cores::One) => " --cores 1",
            _ => "",
        };
        let batch = match self.quantity {
            Quantity::Rate => format!(" --batch {}", self.batch),
            _ => String::new(),
        };
        let connect = match &self.connect {
            Some((server, 0)) => format!(" --connect {server}"),
            Some((server, endpoint)) => format!(" --connect {server} --endpoint {endpoint}"),
            None => String::new(),
        };
        let beside = match self.beside {
            Beside::Bare => "",
            Beside::Tcp => " --beside tcp",
        };
        format!(
            "petrel bench {} --transport {} --size {} --in-flight {}{batch}{cores}{}{beside}{}{connect}{}",
            self.quantity.name(),
            self.transport.name(),
            self.size,
            self.in_flight,
            self.plan.flags(),
            self.pace.flags(),
            device::flag(),
        )
    }
}

impl SessionPlan {
    /// One session, all settings as the library has them.
    pub const DEFAULT: Self = Self::Default { sessions: 1 };

    /// Returns the plan in one word.
    fn name(self) -> &'static str {
        match self {
            Self::Default { .. } => "default",
            Self::Raised => "raised",
        }
    }

    /// Returns the flags that choose this plan.
    fn flags(self) -> String {
        match self {
            Self::Default { sessions } if sessions > 1 => format!(" --sessions {sessions}"),
            Self::Default { .. } | Self::Raised => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rate(plan: SessionPlan, in_flight: u16) -> Measurement {
        let pace = Pace { duration: Duration::ZERO, window: Duration::ZERO, is_realtime: false };
        Measurement {
            quantity: Quantity::Rate,
            transport: BenchTransport::Shm,
            cores: Cores::Two,
            size: 32,
            in_flight,
            batch: 3,
            pace,
            plan,
            beside: Beside::Bare,
            connect: None,
        }
    }

    #[test]
    fn shape__by_default_it_is_one_session_with_the_settings_of_the_library() {
        let library = petrel::endpoint::EndpointConfig::default().sessions;
        for in_flight in [1, 60, 4096] {
            let Shape { sessions, slots, credits, .. } =
                rate(SessionPlan::DEFAULT, in_flight).shape();
            assert_eq!((sessions, slots, credits), (1, library.slots, library.credits));
        }
    }

    #[test]
    fn shape__raised_settings_have_a_slot_and_a_credit_for_each_call() {
        for (in_flight, expected) in [(1, (1, 8, 64)), (60, (8, 8, 64)), (200, (8, 32, 200))] {
            let Shape { sessions, slots, credits, .. } =
                rate(SessionPlan::Raised, in_flight).shape();
            assert_eq!((sessions, slots, credits), expected, "{in_flight}");
        }
    }

    #[test]
    fn command__names_the_settings_that_are_not_defaults() {
        for (plan, flags) in [
            (SessionPlan::DEFAULT, "--batch 3 --duration"),
            (SessionPlan::Default { sessions: 2 }, "--batch 3 --sessions 2 --duration"),
        ] {
            let command = rate(plan, 60).command();
            assert!(command.contains(flags), "{command}");
        }
    }
}
