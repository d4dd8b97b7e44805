//! A server is killed, stopped, replaced or cut off from its clients under load. The report says how many calls fail,
//! how much longer than the outage calls take, and how often each was executed.
//!
//! ```sh
//! cargo run --release --example restarts -- --way kill|stop|drain|replace [--transport udp|shm] [--rate CALLS]
//! [--rounds N] [--once] cargo run --release --example restarts -- --way partition|unplug [--heartbeats N] [--rate
//! CALLS] [--rounds N] [--once]
//! ```
//!
//! `partition` and `unplug` cut a network: client and server are in two network namespaces joined by a veth pair.
//! Either nftables drops all packets, or the clients' device is taken down. Both need root or user namespaces. Shared
//! memory has no network to cut. The counterpart is `stop`, which suspends the server's process (SIGSTOP) until the
//! clients have given it up, and then resumes it. `partition`, `unplug` and `stop` last for `--heartbeats` heartbeats,
//! four by default; a peer is given up after three.
//!
//! With `--timeout-ms N` calls have another time limit than 20 seconds; a server that is stopped for longer must not begin them
//! afterwards.
//!
//! `--soak SECONDS` has a killed, a stopped, a drained and a replaced server in turn, all met by one client, whose process must not
//! need more memory, descriptors and threads with time.
//!
//! Without arguments the program runs all ways at once, at a low rate and quickly. The calls come from tokio tasks, at
//! a rate independent of answers. With `--once` they are not marked idempotent: no call may be executed twice, and some
//! fail. The server logs each execution; at the end the log is compared with the outcomes at the callers. The exit code
//! is 1 if a call fails that must not, was executed more often than allowed, or was answered through a cut network.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use petrel::client::Background;
use petrel::endpoint::{EndpointConfig, Handled};
use petrel::nexus::NexusBuilder;
use petrel::server::start_successor;
use petrel::{Client, Context, Execution, Nexus, Request, Server};
use petrel_skip::{Need, skip};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::{ClockId, clock_gettime};

#[path = "restarts/network.rs"]
mod network;
#[path = "restarts/report.rs"]
mod report;
#[path = "restarts/soak.rs"]
mod soak;

use network::{Cut, Network};
use report::Report;

type Failure = Box<dyn Error + Send + Sync>;

/// A request is a call's number. The server logs the number and sends it back.
const LOG: u16 = 1;

/// Timeout of a call with all its attempts.
const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [part, address, transport, heartbeat_ms, log] = &arguments[..]
        && part == "be-the-server"
    {
        serve(address, transport, heartbeat_ms.parse()?, log.into())?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.is_empty() {
        return run_all();
    }
    let plan = Plan::parse(&arguments)?;
    if let Some(log) = network::log_inside() {
        return run_and_report(&plan, Path::new(&log)).await;
    }
    let log = std::env::temp_dir().join(format!("petrel-restarts-{}", std::process::id()));
    let code = match plan.way {
        Way::Cut(_) => run_inside(&log),
        _ => run_and_report(&plan, &log).await,
    };
    // Missing if no call was executed.
    let _ = std::fs::remove_file(&log);
    code
}

async fn run_and_report(plan: &Plan, log: &Path) -> Result<ExitCode, Failure> {
    if let Some(time) = plan.soak {
        return Ok(exit_code(soak::run(plan, time, log).await?));
    }
    let report = run(plan, log).await?;
    println!("{report}");
    Ok(exit_code(report.is_right()))
}

/// Runs the program again where it may create and cut networks.
fn run_inside(log: &Path) -> Result<ExitCode, Failure> {
    match network::find() {
        Ok(namespaces) => Ok(exit_code(network::run_inside(namespaces, log)?)),
        Err(why) => {
            skip(Need::Namespaces, format!("no network namespaces: {why}"));
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn exit_code(is_right: bool) -> ExitCode {
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// All ways, over both transports, with calls that may be executed twice and calls that may not. Some cuts are longer
/// than the heartbeat timeout, and some shorter.
fn run_all() -> Result<ExitCode, Failure> {
    let both =
        ["kill", "stop", "drain", "replace"].map(|way| [(way, "udp", "4"), (way, "shm", "4")]);
    let cuts = ["partition", "unplug"].map(|way| [(way, "udp", "4"), (way, "udp", "1")]);
    let mut running = Vec::new();
    for (way, transport, heartbeats) in both.into_iter().chain(cuts).flatten() {
        for once in [&[][..], &["--once"]] {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["--way", way, "--transport", transport, "--rate", "1000"]);
            command.args(["--rounds", "2", "--up-ms", "300", "--heartbeat-ms", "100"]);
            command.args(["--heartbeats", heartbeats]);
            running.push(command.args(once).stdout(Stdio::piped()).spawn()?);
        }
    }
    let mut all_are_right = true;
    for child in running {
        let output = child.wait_with_output()?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        all_are_right &= output.status.success();
    }
    Ok(exit_code(all_are_right))
}

/// The server's fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Killed, and started again.
    Kill,
    /// Suspended until the clients have given it up, then resumed.
    Stop,
    /// Asked to end, and started again.
    Drain,
    /// Another server starts on the same listening socket; then the first is asked to end.
    Replace,
    /// Cut off from its clients; both stay.
    Cut(Cut),
}

#[derive(Clone, Debug)]
struct Plan {
    way: Way,
    transport: String,
    /// Calls per second.
    rate: u64,
    rounds: usize,
    /// The server's uptime between two outages.
    up: Duration,
    /// The interval of heartbeats on both sides.
    heartbeat: Duration,
    /// The duration of a stop or cut, in heartbeats.
    heartbeats: u32,
    is_idempotent: bool,
    /// The time limit of a call with all its attempts.
    timeout: Duration,
    /// How long all ways follow each other, met by one client.
    soak: Option<Duration>,
}

impl Plan {
    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut plan = Self {
            way: Way::Kill,
            transport: "udp".to_owned(),
            rate: 50_000,
            rounds: 10,
            up: Duration::from_millis(1_500),
            heartbeat: Duration::from_secs(1),
            heartbeats: 4,
            is_idempotent: true,
            timeout: TIMEOUT,
            soak: None,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            if name == "--once" {
                plan.is_idempotent = false;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match (name.as_str(), value.as_str()) {
                ("--way", "kill") => plan.way = Way::Kill,
                ("--way", "stop") => plan.way = Way::Stop,
                ("--way", "drain") => plan.way = Way::Drain,
                ("--way", "replace") => plan.way = Way::Replace,
                ("--way", "partition") => plan.way = Way::Cut(Cut::Partition),
                ("--way", "unplug") => plan.way = Way::Cut(Cut::Unplug),
                ("--soak", _) => plan.soak = Some(Duration::from_secs(value.parse()?)),
                ("--transport", "udp" | "shm") => plan.transport.clone_from(value),
                ("--rate", _) => plan.rate = value.parse()?,
                ("--rounds", _) => plan.rounds = value.parse()?,
                ("--up-ms", _) => plan.up = Duration::from_millis(value.parse()?),
                ("--heartbeat-ms", _) => plan.heartbeat = Duration::from_millis(value.parse()?),
                ("--timeout-ms", _) => plan.timeout = Duration::from_millis(value.parse()?),
                ("--heartbeats", _) => plan.heartbeats = value.parse()?,
                _ => return Err(format!("what is {name} {value}?").into()),
            }
        }
        if matches!(plan.way, Way::Cut(_)) && plan.transport != "udp" {
            return Err("shared memory has no network to cut: see --way stop".into());
        }
        Ok(plan)
    }
}

fn endpoint(transport: &str) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = transport.parse().unwrap();
    config
}

/// The control plane at both ends. A network made to be cut has no other hosts.
fn nexus(server: SocketAddr, heartbeat: Duration) -> NexusBuilder {
    let nexus = Nexus::builder().heartbeat(heartbeat);
    if server.ip().is_loopback() { nexus } else { nexus.insecure() }
}

/// The server's state: the log of executions.
struct Executions(File);

impl Executions {
    fn log(&mut self, cx: &mut Context<'_, Self>, request: Request<'_>) -> Handled {
        let number: [u8; 8] = request.data().try_into().expect("a call's number");
        let entry = [number, now_ns().to_le_bytes()].concat();
        self.0.write_all(&entry).expect("the log takes it");
        request.reply(cx, &number)
    }
}

fn serve(address: &str, transport: &str, heartbeat_ms: u64, log: PathBuf) -> Result<(), Failure> {
    let nexus = nexus(address.parse()?, Duration::from_millis(heartbeat_ms));
    let open = move || File::options().append(true).create(true).open(&log).map(Executions);
    let server = Server::inherit_or_bind(address).nexus(nexus).endpoint(endpoint(transport)).serve(
        move |_| open().expect("a log"),
        |endpoint| {
            endpoint.on(LOG, Executions::log);
            // The nexus listens by now.
            println!("ready");
        },
    );
    server.run()?;
    Ok(())
}

/// The server's process.
struct Process {
    child: Child,
    plan: Plan,
    listen: Listen,
    log: PathBuf,
}

/// Where the server listens.
enum Listen {
    At(SocketAddr),
    /// On a socket passed from one process to the next.
    On(SocketAddr, TcpListener),
    /// On a separate host.
    Beyond(Network),
}

impl Listen {
    fn new(way: Way) -> Result<Self, Failure> {
        if let Way::Cut(_) = way {
            return Ok(Self::Beyond(Network::make()?));
        }
        let socket = TcpListener::bind("127.0.0.1:0")?;
        let address = socket.local_addr()?;
        Ok(if way == Way::Replace { Self::On(address, socket) } else { Self::At(address) })
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::At(address) | Self::On(address, _) => *address,
            Self::Beyond(network) => network.server(),
        }
    }

    /// The server's command.
    fn program(&self) -> Result<Command, Failure> {
        let program = std::env::current_exe()?;
        Ok(match self {
            Self::At(_) | Self::On(..) => Command::new(program),
            Self::Beyond(network) => network.on_server(&program),
        })
    }

    /// Starts the server, with the socket if there is one.
    fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        match self {
            Self::On(_, socket) => start_successor(command, [socket], b""),
            Self::At(_) | Self::Beyond(_) => command.spawn(),
        }
    }
}

impl Process {
    /// Starts the process, and waits until it listens.
    fn start(plan: &Plan, listen: Listen, log: &Path) -> Result<Self, Failure> {
        let child = Self::start_child(plan, &listen, log)?;
        Ok(Self { child, plan: plan.clone(), listen, log: log.to_owned() })
    }

    fn start_child(plan: &Plan, listen: &Listen, log: &Path) -> Result<Child, Failure> {
        let mut command = listen.program()?;
        command
            .args(["be-the-server", &listen.address().to_string(), &plan.transport])
            .arg(plan.heartbeat.as_millis().to_string())
            .arg(log)
            .stdout(Stdio::piped());
        let mut child = listen.spawn(&mut command)?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("it is piped")?).read_line(&mut line)?;
        if line != "ready\n" {
            return Err(format!("the server said {line:?} in place of `ready`").into());
        }
        Ok(child)
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Kills, stops, replaces or cuts off the process, as planned.
    fn happen(&mut self) -> Result<Outage, Failure> {
        let (begin, away) = (Instant::now(), self.plan.heartbeat * self.plan.heartbeats);
        match self.plan.way {
            Way::Stop => {
                self.signal(Signal::STOP)?;
                std::thread::sleep(away);
                self.signal(Signal::CONT)?;
                return Ok(Outage::from(begin));
            }
            Way::Cut(cut) => {
                let Listen::Beyond(network) = &self.listen else { unreachable!() };
                network.cut(cut)?;
                let cut_off = Instant::now();
                std::thread::sleep(away);
                let cut_off = Some([cut_off, Instant::now()]);
                network.heal(cut)?;
                return Ok(Outage { cut_off, ..Outage::from(begin) });
            }
            Way::Kill => self.child.kill()?,
            Way::Drain => self.signal(Signal::TERM)?,
            Way::Replace => {
                let next = Self::start_child(&self.plan, &self.listen, &self.log)?;
                self.signal(Signal::TERM)?;
                self.child.wait()?;
                self.child = next;
                return Ok(Outage { end: begin, ..Outage::from(begin) });
            }
        }
        self.child.wait()?;
        self.child = Self::start_child(&self.plan, &self.listen, &self.log)?;
        Ok(Outage::from(begin))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A time without a server.
struct Outage {
    begin: Instant,
    end: Instant,
    /// The part without any packets through the network.
    cut_off: Option<[Instant; 2]>,
}

impl Outage {
    /// Returns an outage that ends now.
    fn from(begin: Instant) -> Self {
        Self { begin, end: Instant::now(), cut_off: None }
    }
}

/// A call that has ended.
struct Ended {
    /// When the caller stopped waiting at the latest, by [`now_ns`].
    deadline_ns: u64,
    begin: Instant,
    end: Instant,
    /// Whether a failed call may have been executed.
    failure: Option<(Execution, String)>,
}

/// The outcomes of calls, by the calls' numbers.
type Heard = Arc<Mutex<HashMap<u64, Ended>>>;

async fn run(plan: &Plan, log: &Path) -> Result<Report, Failure> {
    let listen = Listen::new(plan.way)?;
    let address = listen.address();
    let mut server = Process::start(plan, listen, log)?;
    let nexus = nexus(address, plan.heartbeat);
    let background =
        Background::builder().nexus(nexus).endpoint(endpoint(&plan.transport)).start()?;
    let client = Client::builder().background(&background).connect(address).await?;
    // Growing the table during the measurement would cause a pause of tens of milliseconds.
    let expected = plan.rate as f64 * plan.up.as_secs_f64() * (plan.rounds + 2) as f64;
    let heard = Heard::new(Mutex::new(HashMap::with_capacity(expected as usize)));
    let calls = Calls { client, plan: plan.clone(), heard: Arc::clone(&heard) };
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (runtime, rate, stopped) =
        (tokio::runtime::Handle::current(), plan.rate, Arc::clone(&stop));
    let generator = std::thread::spawn(move || calls.make(&runtime, rate, &stopped));
    let outages = (0..plan.rounds).map(|_| {
        std::thread::sleep(plan.up);
        server.happen()
    });
    let outages = outages.collect::<Result<Vec<_>, _>>()?;
    std::thread::sleep(plan.up);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let begun = generator.join().map_err(|_| "the thread that makes calls panicked")?;
    let patience = Instant::now() + plan.timeout + Duration::from_secs(5);
    while (heard.lock().expect("no panic").len() as u64) < begun {
        if Instant::now() > patience {
            return Err("some calls have not ended".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(server);
    let executions = executions(log)?;
    let heard = std::mem::take(&mut *heard.lock().expect("no panic"));
    Ok(Report::new(plan, &heard, &executions, &outages))
}

/// Returns when each call was executed, by the log and [`now_ns`].
fn executions(log: &Path) -> Result<Executed, Failure> {
    let mut executions = Executed::new();
    for entry in std::fs::read(log)?.as_chunks::<16>().0 {
        let [number, at_ns] =
            [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|index| entry[at + index])));
        executions.entry(number).or_default().push(at_ns);
    }
    Ok(executions)
}

/// Times of execution, by the calls' numbers.
type Executed = HashMap<u64, Vec<u64>>;

/// Nanoseconds of the clock that all processes of the host share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

struct Calls {
    client: Client,
    plan: Plan,
    heard: Heard,
}

impl Calls {
    /// Makes calls at a rate until `stop`. Returns their number.
    fn make(
        &self,
        runtime: &tokio::runtime::Handle,
        rate: u64,
        stop: &std::sync::atomic::AtomicBool,
    ) -> u64 {
        let (begin, mut begun) = (Instant::now(), 0);
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let due = begin.elapsed().as_micros() as u64 * rate / 1_000_000;
            for number in begun..due {
                self.start(runtime, number);
            }
            begun = due;
            std::thread::sleep(Duration::from_micros(200));
        }
        begun
    }

    fn start(&self, runtime: &tokio::runtime::Handle, number: u64) {
        let (begin, heard) = (Instant::now(), Arc::clone(&self.heard));
        let Plan { timeout, is_idempotent, .. } = self.plan;
        let call = self.client.call(LOG, number.to_le_bytes()).timeout(timeout).wait_for_ready();
        let call = if is_idempotent { call.idempotent() } else { call };
        runtime.spawn(async move {
            // The time limit counts from the first poll, which comes before.
            let call = call.started();
            let deadline_ns = now_ns() + timeout.as_nanos() as u64;
            let failure = match call.await {
                Ok(reply) if reply == number.to_le_bytes() => None,
                Ok(_) => Some((Execution::Answered, "the answer is another call's".to_owned())),
                Err(error) => Some((error.execution, error.to_string())),
            };
            let ended = Ended { deadline_ns, begin, end: Instant::now(), failure };
            heard.lock().expect("no panic").insert(number, ended);
        });
    }
}
