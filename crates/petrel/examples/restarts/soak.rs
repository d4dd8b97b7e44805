//! Hours of outages in turn, met by one client: its process must need no more memory, descriptors and threads for it.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use petrel::Client;
use petrel::client::Background;

use super::report::Report;
use super::{Calls, Failure, Heard, Listen, Plan, Process, Way, endpoint, nexus};

/// The outages of a round, in order.
const WAYS: [Way; 4] = [Way::Kill, Way::Stop, Way::Drain, Way::Replace];

/// Rounds until memory and descriptors that are kept for use again have come to their number.
const WARM_UP: usize = 3;

/// A process grows if it holds so much more than the largest amount of its warm-up.
const MORE_BYTES: u64 = 8 << 20;
const MORE_DESCRIPTORS: u64 = 4;

/// The resources of this process.
#[derive(Clone, Copy, Debug)]
struct Usage {
    bytes: u64,
    descriptors: u64,
    threads: u64,
}

impl Usage {
    fn now() -> Result<Self, Failure> {
        let entries = |path| Ok::<_, Failure>(fs::read_dir(path)?.count() as u64);
        let status = fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|text| text.split_whitespace().next());
        let bytes = kib.ok_or("no resident memory in /proc/self/status")?.parse::<u64>()? << 10;
        let (descriptors, threads) = (entries("/proc/self/fd")?, entries("/proc/self/task")?);
        Ok(Self { bytes, descriptors, threads })
    }

    fn max(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.max(other.bytes),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }

    fn exceeds(self, most: Self) -> bool {
        self.bytes > most.bytes + MORE_BYTES
            || self.descriptors > most.descriptors + MORE_DESCRIPTORS
            || self.threads > most.threads
    }
}

/// Runs rounds of outages for a time, and at least twice as many as the warm-up. Returns true if all calls kept the rules, and the
/// process has not grown.
pub(crate) async fn run(plan: &Plan, time: Duration, log: &Path) -> Result<bool, Failure> {
    let listen = Listen::new(Way::Replace)?;
    let address = listen.address();
    let mut server = Process::start(plan, listen, log)?;
    let nexus = nexus(address, plan.heartbeat);
    let background =
        Background::builder().nexus(nexus).endpoint(endpoint(&plan.transport)).start()?;
    let client = Client::builder().background(&background).connect(address).await?;
    let (began, mut usages) = (Instant::now(), Vec::new());
    while began.elapsed() < time || usages.len() < 2 * WARM_UP {
        let report = round(plan, &client, &mut server, log)?;
        if !report.is_right() {
            println!("round {}: {report}", usages.len());
            return Ok(false);
        }
        usages.push(Usage::now()?);
    }
    let (warm, rest) = usages.split_at(WARM_UP);
    let most = warm.iter().copied().reduce(Usage::max).ok_or("a warm-up has rounds")?;
    let last = rest.last().ok_or("rounds follow the warm-up")?;
    let grown = rest.iter().find(|usage| usage.exceeds(most));
    println!("{} rounds of {} outages over {}", usages.len(), WAYS.len(), plan.transport);
    println!("  at most in the warm-up: {most:?}\n  at the end: {last:?}");
    if let Some(usage) = grown {
        println!("  GROWN: {usage:?}");
    }
    Ok(grown.is_none())
}

/// Makes calls through one outage of each kind, and compares their outcomes with the log, which is then emptied.
fn round(
    plan: &Plan,
    client: &Client,
    server: &mut Process,
    log: &Path,
) -> Result<Report, Failure> {
    let (heard, stop) = (Heard::default(), Arc::new(AtomicBool::new(false)));
    let calls = Calls { client: client.clone(), plan: plan.clone(), heard: Arc::clone(&heard) };
    let (runtime, rate, stopped) =
        (tokio::runtime::Handle::current(), plan.rate, Arc::clone(&stop));
    let generator = std::thread::spawn(move || calls.make(&runtime, rate, &stopped));
    let mut outages = Vec::new();
    for way in WAYS {
        std::thread::sleep(plan.up);
        server.plan.way = way;
        outages.push(server.happen()?);
    }
    std::thread::sleep(plan.up);
    stop.store(true, Ordering::Relaxed);
    let begun = generator.join().map_err(|_| "the thread that makes calls panicked")?;
    let patience = Instant::now() + plan.timeout + Duration::from_secs(5);
    while (heard.lock().expect("no panic").len() as u64) < begun {
        if Instant::now() > patience {
            return Err("some calls have not ended".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let executions = super::executions(log)?;
    fs::File::options().write(true).open(log)?.set_len(0)?;
    let heard = std::mem::take(&mut *heard.lock().expect("no panic"));
    Ok(Report::new(plan, &heard, &executions, &outages))
}
