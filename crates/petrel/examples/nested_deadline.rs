//! One deadline over three processes: `cargo run --example nested_deadline`.
//!
//! The front gives its call a second, the middle asks the back for the answer, and the back would need ten. No code
//! passes the deadline on: requests carry it, and calls made on a worker inherit it. At the deadline all three stop,
//! the back because of its caller's cancellation.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader, Lines, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use petrel::client::ClientConfig;
use petrel::endpoint::{EndpointConfig, Stop};
use petrel::workers::{WorkerRequest, Workers};
use petrel::{Endpoint, Nexus, Status};

type Failure = Box<dyn Error>;

const WORK: u16 = 1;

const GIVEN: Duration = Duration::from_secs(1);

const NEEDED: Duration = Duration::from_secs(10);

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().collect();
    let arguments: Vec<&str> = arguments.iter().skip(1).map(String::as_str).collect();
    match arguments[..] {
        ["be-the-back"] => back(),
        ["be-the-middle", back] => middle(back.parse()?),
        _ => front(),
    }
}

/// The client, with the servers as its children.
fn front() -> Result<(), Failure> {
    let (back, back_address) = Process::start(&["be-the-back"])?;
    let (middle, middle_address) = Process::start(&["be-the-middle", &back_address])?;

    let mut endpoint = Nexus::builder().start()?.endpoint(EndpointConfig::default())?;
    let session = endpoint.connect_wait(middle_address.parse()?)?;
    let end = endpoint.call(session, WORK, "").timeout(GIVEN).wait();
    let Err(failure) = end else {
        return Err(format!("the call did not end as it should: {end:?}").into());
    };
    println!("front:  gave 1000 ms; {failure}");
    // By the front's own clock; the middle, whose clock is no later, may just have had time to answer.
    ensure(failure.status == Status::DeadlineExceeded, "the front's call")?;

    let middle = middle.finish("middle")?;
    let back = back.finish("back")?;
    ensure(middle.had <= GIVEN && back.had <= middle.had, "what was left only gets less")?;
    ensure(middle.saw.starts_with("DEADLINE_EXCEEDED"), "the middle's call")?;
    ensure(back.saw.starts_with("cancelled"), "the back heard that nobody waits")
}

/// A server that asks another one. Its worker just waits.
fn middle(back: SocketAddr) -> Result<(), Failure> {
    serve(|endpoint| {
        let behind = endpoint.client([back], ClientConfig::default());
        Ok(move |request: WorkerRequest| {
            let had = left(&request);
            match behind.call(WORK, "").wait() {
                Ok(answer) => {
                    println!("{had} an answer");
                    request.reply_vec(answer.into_vec());
                }
                Err(failure) => {
                    println!("{had} {failure}");
                    request.fail(failure.status, &failure.message);
                }
            }
        })
    })
}

/// A slow server that checks for cancellation at intervals.
fn back() -> Result<(), Failure> {
    const STEP: Duration = Duration::from_millis(1);
    serve(|_| {
        Ok(|request: WorkerRequest| {
            let had = left(&request);
            let steps = NEEDED.as_micros() / STEP.as_micros();
            for step in 0..steps {
                if request.is_cancelled() {
                    return println!("{had} cancelled after {step} of {steps} steps");
                }
                thread::sleep(STEP);
            }
            println!("{had} all steps done");
            request.reply(b"done");
        })
    })
}

/// Returns the time left for a request, in microseconds.
fn left(request: &WorkerRequest) -> u64 {
    request.time_left().map_or(u64::MAX, |left| left.as_micros() as u64)
}

/// Serves [`WORK`] on a worker until the standard input ends; prints its address first.
fn serve<H: Fn(WorkerRequest) + Send + Sync + 'static>(
    handler: impl FnOnce(&mut Endpoint) -> Result<H, Failure>,
) -> Result<(), Failure> {
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    let mut endpoint = nexus.endpoint(EndpointConfig::default())?;
    let workers = Workers::builder().threads(1).start()?;
    let handler = handler(&mut endpoint)?;
    endpoint.on_worker(WORK, &workers, handler);
    println!("{}", nexus.local_addr().ok_or("it listens")?);
    let stop = endpoint.stop_handle();
    let end = stop.clone();
    thread::spawn(move || stop_with_input(&end));
    endpoint.run(&stop);
    // A waiting worker needs the event loop.
    workers.stop();
    while !workers.is_idle() {
        endpoint.run_for(Duration::from_millis(1), |_, _| false);
    }
    Ok(())
}

fn stop_with_input(stop: &Stop) {
    // An error is an end, too.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    stop.stop();
}

/// This program, in another role.
struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

/// A server's report on its request.
struct Said {
    had: Duration,
    saw: String,
}

impl Process {
    /// Starts a process, and returns its address, too.
    fn start(arguments: &[&str]) -> Result<(Self, String), Failure> {
        let mut child = Command::new(env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("it is piped")?;
        let mut lines = BufReader::new(stdout).lines();
        let address = lines.next().ok_or("the process has ended")??;
        Ok((Self { child, lines }, address))
    }

    /// Ends the process, and returns its report.
    fn finish(mut self, name: &str) -> Result<Said, Failure> {
        drop(self.child.stdin.take());
        let line = self.lines.next().ok_or_else(|| format!("no request reached the {name}"))??;
        let (had, saw) = line.split_once(' ').ok_or("two things are said")?;
        let had = Duration::from_micros(had.parse()?);
        println!("{:7} had {} ms left; {saw}", format!("{name}:"), had.as_millis());
        ensure(self.child.wait()?.success(), name)?;
        Ok(Said { had, saw: saw.to_owned() })
    }
}

fn ensure(holds: bool, what: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(format!("not as it should be: {what}").into()) }
}
