//! The cost of several paths without a network: `cargo run --release --manifest-path experiments/Cargo.toml --example paths_cost`.
//!
//! A client with four source ports is measured beside a client with one, over loopback and in one thread, in turn. Every
//! reply is checked. Ratios are medians of the rounds.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::{
    AllowedTransports, Disorder, EndpointConfig, IdlePolicy, PathPolicy, Reply, SessionId,
    SessionState,
};
use petrel::{Endpoint, Nexus};

/// Answers with the first eight bytes of the request.
const FIRST: u16 = 1;
const FURTHER_PORTS: u8 = 3;
const ROUNDS: usize = 21;
const WINDOW: Duration = Duration::from_millis(100);

/// Messages of a workload, and how many are outstanding.
struct Workload {
    name: &'static str,
    bytes: usize,
    outstanding: u64,
}

const WORKLOADS: [Workload; 3] = [
    Workload { name: "32 B", bytes: 32, outstanding: 60 },
    Workload { name: "64 KiB", bytes: 64 << 10, outstanding: 8 },
    Workload { name: "8 MiB", bytes: 8 << 20, outstanding: 1 },
];

const POLICIES: [PathPolicy; 3] =
    [PathPolicy::Plb, PathPolicy::Coupled, PathPolicy::MpRdma(Disorder::WINDOW)];

struct Side {
    client: Endpoint,
    session: SessionId,
}

impl Side {
    fn connect(
        server: &mut Endpoint,
        nexus: &Nexus,
        config: EndpointConfig,
    ) -> Result<Self, Box<dyn Error>> {
        let mut client = Nexus::builder().start()?.endpoint(config)?;
        let session = client.connect(nexus.local_addr().ok_or("it listens")?)?;
        while !matches!(client.session_state(session), SessionState::Open) {
            client.run_once();
            server.run_once();
        }
        Ok(Self { client, session })
    }

    /// Returns the calls that ended in a window, per second.
    fn rate(&mut self, server: &mut Endpoint, workload: &Workload) -> Result<f64, Box<dyn Error>> {
        let (ended, mut sent) = (Rc::new(Cell::new(0)), 0u64);
        let mut message = vec![7; workload.bytes];
        let start = Instant::now();
        while start.elapsed() < WINDOW || ended.get() < sent {
            while start.elapsed() < WINDOW && sent - ended.get() < workload.outstanding {
                message[..8].copy_from_slice(&sent.to_le_bytes());
                let (number, end) = (sent, Rc::clone(&ended));
                self.client.call(self.session, FIRST, &message).then(
                    move |_, _, reply: Reply| {
                        assert_eq!(reply.message(), Ok(&number.to_le_bytes()[..]));
                        end.set(end.get() + 1);
                    },
                )?;
                sent += 1;
            }
            self.client.run_once();
            server.run_once();
        }
        Ok(sent as f64 / start.elapsed().as_secs_f64())
    }
}

fn config(further_ports: u8, policy: PathPolicy) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = AllowedTransports::UDP;
    config.idle = IdlePolicy::Poll;
    config.host.udp.further_ports = further_ports;
    config.sessions.path_policy = policy;
    config
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
    let mut server = nexus.endpoint(config(FURTHER_PORTS, PathPolicy::Single))?;
    server.on(FIRST, |_, cx, request| {
        let first: [u8; 8] = request.data()[..8].try_into().expect("every request is longer");
        request.reply(cx, &first)
    });
    let mut single = Side::connect(&mut server, &nexus, config(0, PathPolicy::Single))?;
    for policy in POLICIES {
        let mut several = Side::connect(&mut server, &nexus, config(FURTHER_PORTS, policy))?;
        assert_eq!(
            several.client.path_counts(several.session).len(),
            usize::from(FURTHER_PORTS) + 1
        );
        for workload in &WORKLOADS {
            let (mut rates, mut ratios) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let alone = single.rate(&mut server, workload)?;
                let rate = several.rate(&mut server, workload)?;
                rates.push(rate);
                ratios.push(rate / alone);
            }
            let (rate, ratio) = (median(rates), median(ratios));
            let (name, policy) = (workload.name, policy.name());
            println!("{policy:8} {name:>6}: {rate:9.0} a second, {ratio:.2} of one path");
        }
    }
    Ok(())
}
