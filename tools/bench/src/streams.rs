//! Streams: messages of a stream, beside calls of the same size; idle streams; and a stream whose reader stands still.
//!
//! Two threads: the server's, and the client's, whose tasks send and receive. The CPU time is that of both.

mod args;
mod service;

use std::time::{Duration, Instant};

use petrel::endpoint::AllowedTransports;
use petrel::server::RunningServer;
use petrel::{Client, Error, Server};
use petrel_command::Outcome;
use petrel_command::args::BenchTransport;
use petrel_command::failure::Failure;
use petrel_command::output::{Column, Output};
use petrel_command::text::again;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

pub(crate) use self::args::StreamsArgs;
use self::service::{Counted, NumbersClient, NumbersServer, count_all, send_for};
use crate::sessions::private_bytes;

/// Bytes up to which a message is small.
const SMALL_BYTES: usize = 256;

/// Calls in flight beside which messages are measured.
const IN_FLIGHT: usize = 4;

/// A figure, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Row {
    bench: &'static str,
    transport: &'static str,
    what: String,
    value: f64,
    unit: &'static str,
    /// CPU time of both ends for each message.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ns: Option<f64>,
    target: String,
    reached: bool,
    command: String,
}

/// A server and a client over a transport.
struct Ends {
    server: RunningServer,
    client: NumbersClient,
    transport: BenchTransport,
}

/// Runs the benchmark and prints its figures.
pub(super) fn run(args: &StreamsArgs, output: Output) -> Result<Outcome, Failure> {
    let mut rows = Vec::new();
    for transport in &args.transport {
        let ends = Ends::start(*transport)?;
        for size in &args.size {
            rows.append(&mut ends.messages(args, *size)?);
        }
        rows.append(&mut ends.beside_a_stuck_stream(args)?);
        rows.append(&mut ends.idle(args)?);
    }
    for row in &rows {
        output.record(row)?;
    }
    output.line(output.rows(&COLUMNS, COLUMNS.len(), &rows))?;
    output.line("Each message was compared. The CPU time is that of both ends.\nAgain:")?;
    output.line(format!("  {}", again()))?;
    Ok(Outcome::Success)
}

impl Ends {
    fn start(transport: BenchTransport) -> Result<Self, Failure> {
        let none = AllowedTransports { udp: false, shm: false, stream: false, verbs: false };
        let allowed = match transport {
            BenchTransport::Udp => AllowedTransports { udp: true, ..none },
            _ => AllowedTransports { shm: true, ..none },
        };
        let set_up = |endpoint: &mut petrel::Endpoint| endpoint.serve(NumbersServer::new(Counted));
        let server = Server::bind("127.0.0.1:0").transports(allowed).serve(|_| (), set_up);
        let server = server.start()?;
        let client = Client::builder().transports(allowed).connect_wait(server.local_addr())?;
        Ok(Self { server, client: NumbersClient::new(client), transport })
    }

    /// Runs a task on the client's thread.
    fn on_thread<T: Send + 'static, F: Future<Output = Result<T, Error>> + 'static>(
        &self,
        task: impl FnOnce(NumbersClient) -> F + Send + 'static,
    ) -> Result<T, Failure> {
        let client = self.client.clone();
        let task = self.client.client().spawn(move |_| task(client));
        Ok(petrel::client::wait(task)??)
    }

    fn row(&self, what: String, value: f64, unit: &'static str) -> Row {
        let (transport, command) = (self.transport.name(), again());
        let (cpu_ns, target, reached) = (None, String::new(), true);
        Row { bench: "streams", transport, what, value, unit, cpu_ns, target, reached, command }
    }

    /// Measures the messages of one stream in each direction, and large ones beside calls.
    fn messages(&self, args: &StreamsArgs, size: usize) -> Result<Vec<Row>, Failure> {
        let time = args.duration;
        let request = [size as u64, time.as_nanos() as u64].map(u64::to_le_bytes).concat();
        let down = self.rate(move |client| async move {
            let mut messages = client.send(request).start().await?;
            count_all(&mut messages).await
        })?;
        let up = self.rate(move |client| async move {
            let (mut out, count) = client.count().start().await?;
            let sent = send_for(&mut out, size, time).await?;
            drop(out);
            assert_eq!(count.await?, sent.to_le_bytes(), "all messages come");
            Ok(sent)
        })?;
        let mut rows = Vec::new();
        for ((rate, cpu_ns), direction) in [(down, "from the server"), (up, "from the client")] {
            let what = format!("messages of {size} B {direction}");
            let row = Row { cpu_ns: Some(cpu_ns), ..self.row(what, rate / 1e6, "M/s") };
            rows.push(match self.transport {
                _ if size > SMALL_BYTES => row,
                BenchTransport::Udp => row.at_least(8.0),
                _ => row.at_least(20.0),
            });
        }
        if size > SMALL_BYTES {
            let calls = self.calls(size, time)?;
            let what = format!("messages of {size} B from the client, in calls of the size");
            rows.push(self.row(what, up.0 / calls, "").at_least(0.8));
        }
        Ok(rows)
    }

    /// Returns the rate of calls with requests of a size.
    fn calls(&self, size: usize, time: Duration) -> Result<f64, Failure> {
        let (rate, _) = self.rate(move |client| async move {
            let request = vec![7; size];
            let (begun, mut made) = (Instant::now(), 0);
            let mut calls = std::collections::VecDeque::new();
            while begun.elapsed() < time {
                while calls.len() < IN_FLIGHT {
                    calls.push_back(client.len(&request[..]).started());
                }
                let answer = calls.pop_front().expect("a call is in flight").await?;
                assert_eq!(answer, (size as u64).to_le_bytes(), "the request comes whole");
                made += 1;
            }
            Ok(made)
        })?;
        Ok(rate)
    }

    /// Returns the rate of a task, and the CPU time for each of its messages.
    fn rate<F: Future<Output = Result<u64, Error>> + 'static>(
        &self,
        task: impl FnOnce(NumbersClient) -> F + Send + 'static,
    ) -> Result<(f64, f64), Failure> {
        let (begun, cpu) = (Instant::now(), cpu_time()?);
        let count = self.on_thread(task)? as f64;
        let cpu_ns = (cpu_time()? - cpu).as_nanos() as f64 / count;
        Ok((count / begun.elapsed().as_secs_f64(), cpu_ns))
    }

    /// Measures messages and calls beside a stream whose reader stands still, and without it.
    fn beside_a_stuck_stream(&self, args: &StreamsArgs) -> Result<Vec<Row>, Failure> {
        let time = args.duration;
        let both = || {
            let (messages, _) = self.rate(move |client| async move {
                let (mut out, count) = client.count().start().await?;
                let sent = send_for(&mut out, 32, time).await?;
                drop(out);
                count.await.map(|_| sent)
            })?;
            Ok::<_, Failure>((messages, self.calls(32, time)?))
        };
        let alone = both()?;
        let (mut out, stuck) = petrel::client::wait(self.client.idle().start())?;
        while out.try_send(vec![7; 1_000]).is_ok() {}
        let beside = both()?;
        drop((out, stuck));
        let what = |what: &str| format!("{what} beside a stream that is not read, in those alone");
        let messages = self.row(what("messages"), beside.0 / alone.0, "");
        let calls = self.row(what("calls"), beside.1 / alone.1, "");
        Ok(vec![messages.at_least(0.95), calls.at_least(0.95)])
    }

    /// Measures the memory of idle streams at both ends together, and their packets.
    fn idle(&self, args: &StreamsArgs) -> Result<Vec<Row>, Failure> {
        let before = private_bytes("self")?;
        let streams: Vec<_> = petrel::client::wait(async {
            let mut streams = Vec::new();
            for _ in 0..args.idle {
                streams.push(self.client.idle().start().await?);
            }
            Ok::<_, Error>(streams)
        })?;
        std::thread::sleep(Duration::from_millis(200));
        let bytes = private_bytes("self")?.saturating_sub(before) as f64 / f64::from(args.idle);
        let cpu = cpu_time()?;
        std::thread::sleep(args.duration);
        let busy = (cpu_time()? - cpu).as_secs_f64() / args.duration.as_secs_f64();
        drop(streams);
        let what = format!("{} idle streams: bytes of each, both ends", args.idle);
        let memory = self.row(what, bytes, "B").at_most(1_024.0);
        let what = format!("{} idle streams: CPU time", args.idle);
        Ok(vec![memory, self.row(what, busy * 100.0, "%")])
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.server.stop();
    }
}

impl Row {
    fn at_least(self, bound: f64) -> Self {
        Self { target: format!(">= {bound}"), reached: self.value >= bound, ..self }
    }

    fn at_most(self, bound: f64) -> Self {
        Self { target: format!("<= {bound}"), reached: self.value <= bound, ..self }
    }
}

fn cpu_time() -> Result<Duration, Failure> {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).map_err(Failure::because)
}

const COLUMNS: [Column<Row>; 6] = [
    ("transport", |row| row.transport.to_owned()),
    ("figure", |row| row.what.clone()),
    ("value", |row| format!("{:.2} {}", row.value, row.unit)),
    ("CPU ns", |row| row.cpu_ns.map_or(String::new(), |ns| format!("{ns:.1}"))),
    ("target", |row| row.target.clone()),
    ("reached", |row| match (row.target.is_empty(), row.reached) {
        (true, _) => String::new(),
        (_, true) => "yes".to_owned(),
        (_, false) => "no".to_owned(),
    }),
];
