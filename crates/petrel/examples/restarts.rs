//! A server is killed, stopped or replaced under load. Its clients report how many calls fail, how much longer than the outage
//! calls take, and how often each was executed.
//!
//! `cargo run --release --example restarts -- --way kill|stop|drain|replace [--transport udp|shm] [--rate CALLS] [--rounds N] [--once]`
//!
//! Without arguments it goes through all ways at once, at a low rate and quickly. The calls come from tasks of tokio, at a rate that does not wait for answers. With `--once` they are not marked idempotent,
//! so that none may be executed twice and some fail. The server logs each execution; at the end the log is held against what
//! the callers heard. The exit code is 1 if a call fails that must not, or was executed as it must not.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use petrel::client::Background;
use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{EndpointConfig, Handled};
use petrel::{Client, Context, Execution, Nexus, Request, Server};
use rustix::process::{Pid, Signal, kill_process};

type Failure = Box<dyn Error + Send + Sync>;

/// A request is a call's number. It is logged and comes back.
const LOG: u16 = 1;

/// How long a call may take, with all its attempts.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Heartbeats for which a stopped server stands still: its clients have given it up after three.
const STOPPED_HEARTBEATS: u32 = 4;

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
    let log = std::env::temp_dir().join(format!("petrel-restarts-{}", std::process::id()));
    let report = run(&plan, &log).await;
    // It is not there if no call was executed.
    let _ = std::fs::remove_file(&log);
    let report = report?;
    println!("{report}");
    Ok(if report.is_right() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All ways, over both transports, with calls that may be executed twice and calls that may not.
fn run_all() -> Result<ExitCode, Failure> {
    let mut running = Vec::new();
    for way in ["kill", "stop", "drain", "replace"] {
        for transport in ["udp", "shm"] {
            for once in [&[][..], &["--once"]] {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(["--way", way, "--transport", transport, "--rate", "1000"]);
                command.args(["--rounds", "2", "--up-ms", "300", "--heartbeat-ms", "100"]);
                running.push(command.args(once).stdout(Stdio::piped()).spawn()?);
            }
        }
    }
    let mut all_are_right = true;
    for child in running {
        let output = child.wait_with_output()?;
        print!("{}", String::from_utf8_lossy(&output.stdout));
        all_are_right &= output.status.success();
    }
    Ok(if all_are_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How the server process is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It is killed, and started again.
    Kill,
    /// It is stopped, until its clients have given it up, and goes on.
    Stop,
    /// It is asked to end, and started again.
    Drain,
    /// Another one is started, which has the listening socket, too; then it is asked to end.
    Replace,
}

#[derive(Clone, Debug)]
struct Plan {
    way: Way,
    transport: String,
    /// Calls a second.
    rate: u64,
    rounds: usize,
    /// The server is up for this long before the next thing happens to it.
    up: Duration,
    /// How often both sides give a sign of life.
    heartbeat: Duration,
    is_idempotent: bool,
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
            is_idempotent: true,
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
                ("--transport", "udp" | "shm") => plan.transport.clone_from(value),
                ("--rate", _) => plan.rate = value.parse()?,
                ("--rounds", _) => plan.rounds = value.parse()?,
                ("--up-ms", _) => plan.up = Duration::from_millis(value.parse()?),
                ("--heartbeat-ms", _) => plan.heartbeat = Duration::from_millis(value.parse()?),
                _ => return Err(format!("what is {name} {value}?").into()),
            }
        }
        Ok(plan)
    }
}

fn endpoint(transport: &str) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = AllowedTransports { udp: transport == "udp", shm: transport == "shm" };
    config
}

/// The server's state: where executions are logged.
struct Executions(File);

impl Executions {
    fn log(&mut self, cx: &mut Context<'_, Self>, request: Request<'_>) -> Handled {
        let number: [u8; 8] = request.data().try_into().expect("a call's number");
        self.0.write_all(&number).expect("the log takes it");
        request.reply(cx, &number)
    }
}

fn serve(address: &str, transport: &str, heartbeat_ms: u64, log: PathBuf) -> Result<(), Failure> {
    let nexus = Nexus::builder().heartbeat(Duration::from_millis(heartbeat_ms));
    let open = move || File::options().append(true).create(true).open(&log).map(Executions);
    let server = Server::inherit_or_bind(address)
        .nexus(nexus)
        .endpoint(endpoint(transport))
        .serve(move || open().expect("a log"), |endpoint| endpoint.on(LOG, Executions::log));
    println!("ready");
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

/// Where the server listens: at its address, or on a socket that the processes get one after the other.
struct Listen(SocketAddr, Option<TcpListener>);

impl Listen {
    fn new(way: Way) -> Result<Self, Failure> {
        let socket = TcpListener::bind("127.0.0.1:0")?;
        Ok(Self(socket.local_addr()?, (way == Way::Replace).then_some(socket)))
    }

    /// The server's program, with the socket as the descriptor where it looks for one.
    fn program(&self) -> Result<Command, Failure> {
        let program = std::env::current_exe()?;
        let Some(socket) = &self.1 else { return Ok(Command::new(program)) };
        let mut command = Command::new("sh");
        command.args(["-c", r#"exec "$0" "$@" 3<&0"#]).arg(program);
        command.stdin(OwnedFd::from(socket.try_clone()?)).env("LISTEN_FDS", "1");
        Ok(command)
    }
}

impl Process {
    /// Starts it, and waits until it listens.
    fn start(plan: &Plan, listen: Listen, log: &Path) -> Result<Self, Failure> {
        let child = Self::start_child(plan, &listen, log)?;
        Ok(Self { child, plan: plan.clone(), listen, log: log.to_owned() })
    }

    fn start_child(plan: &Plan, listen: &Listen, log: &Path) -> Result<Child, Failure> {
        let mut child = listen
            .program()?
            .args(["be-the-server", &listen.0.to_string(), &plan.transport])
            .arg(plan.heartbeat.as_millis().to_string())
            .arg(log)
            .stdout(Stdio::piped())
            .spawn()?;
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

    /// Kills, stops or replaces the process, as the plan says; gives the time without a server.
    fn happen(&mut self) -> Result<[Instant; 2], Failure> {
        let begin = Instant::now();
        match self.plan.way {
            Way::Stop => {
                self.signal(Signal::STOP)?;
                std::thread::sleep(self.plan.heartbeat * STOPPED_HEARTBEATS);
                self.signal(Signal::CONT)?;
                return Ok([begin, Instant::now()]);
            }
            Way::Kill => self.child.kill()?,
            Way::Drain => self.signal(Signal::TERM)?,
            Way::Replace => {
                let next = Self::start_child(&self.plan, &self.listen, &self.log)?;
                self.signal(Signal::TERM)?;
                self.child.wait()?;
                self.child = next;
                return Ok([begin, begin]);
            }
        }
        self.child.wait()?;
        self.child = Self::start_child(&self.plan, &self.listen, &self.log)?;
        Ok([begin, Instant::now()])
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A call that has ended.
struct Ended {
    begin: Instant,
    end: Instant,
    /// Whether it may have been executed, if it failed.
    failure: Option<(Execution, String)>,
}

/// The outcomes of calls, by the calls' numbers.
type Heard = Arc<Mutex<HashMap<u64, Ended>>>;

async fn run(plan: &Plan, log: &Path) -> Result<Report, Failure> {
    let listen = Listen::new(plan.way)?;
    let address = listen.0;
    let mut server = Process::start(plan, listen, log)?;
    let nexus = Nexus::builder().heartbeat(plan.heartbeat);
    let background =
        Background::builder().nexus(nexus).endpoint(endpoint(&plan.transport)).start()?;
    let client = Client::builder().background(&background).connect(address).await?;
    // A table that grows while it is timed stands still for as long as tens of milliseconds.
    let expected = plan.rate as f64 * plan.up.as_secs_f64() * (plan.rounds + 2) as f64;
    let heard = Heard::new(Mutex::new(HashMap::with_capacity(expected as usize)));
    let calls = Calls { client, is_idempotent: plan.is_idempotent, heard: Arc::clone(&heard) };
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
    let patience = Instant::now() + TIMEOUT + Duration::from_secs(5);
    while (heard.lock().expect("no panic").len() as u64) < begun {
        if Instant::now() > patience {
            return Err("some calls have not ended".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(server);
    let mut executions = HashMap::new();
    for number in std::fs::read(log)?.as_chunks().0 {
        *executions.entry(u64::from_le_bytes(*number)).or_insert(0) += 1;
    }
    let heard = std::mem::take(&mut *heard.lock().expect("no panic"));
    Ok(Report::new(plan, &heard, &executions, &outages))
}

struct Calls {
    client: Client,
    is_idempotent: bool,
    heard: Heard,
}

impl Calls {
    /// Makes calls at a rate until it is told to stop; gives how many.
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
        let call = self.client.call(LOG, number.to_le_bytes()).timeout(TIMEOUT).wait_for_ready();
        let call = if self.is_idempotent { call.idempotent() } else { call };
        runtime.spawn(async move {
            let failure = match call.await {
                Ok(reply) if reply == number.to_le_bytes() => None,
                Ok(_) => Some((Execution::Answered, "the answer is another call's".to_owned())),
                Err(error) => Some((error.execution, error.to_string())),
            };
            let ended = Ended { begin, end: Instant::now(), failure };
            heard.lock().expect("no panic").insert(number, ended);
        });
    }
}

/// The result of a plan.
struct Report {
    plan: Plan,
    calls: usize,
    /// The reasons, with how many calls failed so.
    failures: HashMap<String, usize>,
    /// Calls that were executed more than once.
    twice: usize,
    /// Calls that were executed more or less often than their callers were told.
    untrue: usize,
    outages: Vec<Duration>,
    /// In order: how long calls took beyond the outage that they met.
    beyond: Vec<Duration>,
}

impl Report {
    fn new(
        plan: &Plan,
        heard: &HashMap<u64, Ended>,
        executions: &HashMap<u64, u32>,
        outages: &[[Instant; 2]],
    ) -> Self {
        let (mut failures, mut beyond) = (HashMap::new(), Vec::new());
        let (mut twice, mut untrue) = (0, 0);
        for (number, ended) in heard {
            let count = executions.get(number).copied().unwrap_or(0);
            twice += usize::from(count > 1);
            let is_true = match &ended.failure {
                None | Some((Execution::Answered, _)) => count >= 1,
                Some((Execution::NotSent | Execution::Refused, _)) => count == 0,
                Some(_) => true,
            };
            untrue += usize::from(!is_true);
            match &ended.failure {
                None => beyond.push(beyond_outages(ended, outages)),
                Some((_, why)) => *failures.entry(why.clone()).or_insert(0) += 1,
            }
        }
        beyond.sort_unstable();
        let outages = outages.iter().map(|[begin, end]| *end - *begin).collect();
        let (plan, calls) = (plan.clone(), heard.len());
        Self { plan, calls, failures, twice, untrue, outages, beyond }
    }

    /// Whether all calls kept the rules of the plan.
    fn is_right(&self) -> bool {
        let is_idempotent = self.plan.is_idempotent;
        let is_drained = matches!(self.plan.way, Way::Drain | Way::Replace);
        let no_call_may_fail = is_idempotent || is_drained;
        let once = is_idempotent || self.twice == 0;
        once && self.untrue == 0 && (self.failures.is_empty() || !no_call_may_fail)
    }

    fn quantile(&self, share: f64) -> Duration {
        let last = self.beyond.len().saturating_sub(1);
        self.beyond.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }
}

/// How long a call took beyond the time without a server.
fn beyond_outages(ended: &Ended, outages: &[[Instant; 2]]) -> Duration {
    let without = |[begin, end]: &[Instant; 2]| {
        let begin = ended.begin.max(*begin);
        ended.end.min(*end).saturating_duration_since(begin)
    };
    (ended.end - ended.begin).saturating_sub(outages.iter().map(without).sum())
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Plan { way, transport, rate, rounds, is_idempotent, .. } = &self.plan;
        let kind = if *is_idempotent { "idempotent" } else { "not idempotent" };
        writeln!(f, "{way:?}, {rounds} times, over {transport}: {rate} calls a second, {kind}")?;
        let longest = self.outages.iter().max().copied().unwrap_or_default();
        writeln!(f, "  longest time without a server: {longest:.1?}")?;
        writeln!(f, "  calls: {}, failed: {}", self.calls, self.failures.values().sum::<usize>())?;
        for (why, count) in &self.failures {
            writeln!(f, "    {count}: {why}")?;
        }
        writeln!(f, "  executed more than once: {}", self.twice)?;
        writeln!(f, "  executed otherwise than the caller was told: {}", self.untrue)?;
        let [half, most, nearly_all] = [0.5, 0.99, 0.999].map(|share| self.quantile(share));
        write!(f, "  beyond that time: p50 {half:.1?}, p99 {most:.1?}, p99.9 {nearly_all:.1?}")
    }
}
