//! The cost of a call to a group, with and without multicast, for three members:
//! `cargo run --release --manifest-path experiments/Cargo.toml --example group_cost -- 3`.
//!
//! All ends take turns in one thread, over loopback with packets of Ethernet's size. The result is the processor time
//! of all members together; the time saved on a network's links comes on top.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::time::Instant;

use petrel::endpoint::AllowedTransports;
use petrel::endpoint::{
    EndpointConfig, IdlePolicy, MembershipState, MulticastConfig, SessionState, SharedMsg,
};
use petrel::group::{Group, GroupCall, Need};
use petrel::{Endpoint, Nexus};
use petrel_transport::udp::Mtu;

const TAKE: u16 = 1;
const PACKETS: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];
const CALLS: u32 = 300;
const ROUNDS: u32 = 9;

struct Ends {
    client: Endpoint,
    servers: Vec<Endpoint>,
}

impl Ends {
    fn turn_until(&mut self, mut done: impl FnMut(&Endpoint) -> bool) {
        while !done(&self.client) {
            self.client.run_once();
            for server in &mut self.servers {
                server.run_once();
            }
        }
    }

    /// Returns the microseconds from a call to the last member's answer: the best of some rounds.
    fn call_us(&mut self, group: &Group, bytes: usize) -> Result<f64, Box<dyn Error>> {
        let message = SharedMsg::from(self.client.alloc_message(&vec![7; bytes])?);
        let mut best_us = f64::MAX;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..CALLS {
                let done = Rc::new(Cell::new(false));
                let end = Rc::clone(&done);
                let call = GroupCall::new(TAKE, Need::All);
                group.call(&mut self.client.context(), &message, call, move |_, _, reply| {
                    end.set(reply.is_ok());
                })?;
                self.turn_until(|_| done.get());
            }
            best_us = best_us.min(start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
        }
        Ok(best_us)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let members: usize = std::env::args().nth(1).map_or(Ok(3), |text| text.parse())?;
    let mut config = EndpointConfig::default();
    config.transports = AllowedTransports::UDP;
    config.idle = IdlePolicy::Poll;
    config.sessions.credits = 512;
    config.host.udp.mtu = Mtu::Auto { cap_bytes: 1500 };
    let client = Nexus::builder().start()?.endpoint(config.clone())?;
    let mut ends = Ends { client, servers: Vec::new() };
    let mut sessions = Vec::new();
    for _ in 0..members {
        let nexus = Nexus::builder().listen("127.0.0.1:0".parse()?).start()?;
        let mut server = nexus.endpoint(config.clone())?;
        server.on(TAKE, |_, cx, request| request.reply(cx, b"ok"));
        ends.servers.push(server);
        let session = ends.client.connect(nexus.local_addr().ok_or("it listens")?)?;
        ends.turn_until(|client| matches!(client.session_state(session), SessionState::Open));
        sessions.push(session);
    }
    let group = Group::new(sessions)?;
    println!("{members} members, us for a call of {PACKETS:?} packets");
    for multicast in [false, true] {
        if multicast {
            let to = MulticastConfig {
                packets_min: 2,
                ..MulticastConfig::new("239.77.0.3:7711".parse()?)
            };
            ends.client.start_multicast(&group, to)?;
            ends.turn_until(|client| {
                client
                    .multicast_members(&group)
                    .iter()
                    .all(|(_, hears)| *hears != MembershipState::Pending)
            });
        }
        let row: Result<Vec<String>, _> = PACKETS
            .iter()
            .map(|packets| {
                Ok::<_, Box<dyn Error>>(format!("{:7.1}", ends.call_us(&group, packets * 1400)?))
            })
            .collect();
        println!("{} {}", if multicast { "multicast" } else { "each     " }, row?.join(" "));
    }
    Ok(())
}
