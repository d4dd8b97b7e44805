//! Two endpoints over UDP with a relay in between that loses, copies, delays and reads all datagrams.

use petrel::endpoint::{EndpointConfig, IdlePolicy, SessionId, SessionState};
use petrel::nexus::{Attach, UdpAttach};
use petrel::unstable::control::ControlPlane;
use petrel::{Endpoint, Nexus, Status};
use petrel_proto::control::PathPorts;
use petrel_proto::recovery::rtt::RtoBounds;
use petrel_transport::Transport;
use petrel_transport::host::Host;
use petrel_transport::udp::Mtu;

use super::relay::{Faults, Relay, RelayControl};
use super::*;

type RelayedEndpoint = Endpoint<(), Host, RelayControl>;

const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Frames sent without copying, small windows, and premature timeouts.
fn config(retries_max: u8) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.idle = IdlePolicy::Poll;
    config.host.udp.mtu = Mtu::Auto { cap_bytes: 9_000 };
    config.sessions.credits = 8;
    config.protocol.retries_max = retries_max;
    config.protocol.rto =
        RtoBounds { min_ns: 40_000, max_ns: 2_000_000, initial_ns: 200_000, probe_min_ns: 20_000 };
    config.memory.poison = true;
    config
}

struct Net {
    nexus: Nexus,
    relay: Relay,
    client: RelayedEndpoint,
    server: Option<RelayedEndpoint>,
    app: Shared,
}

impl Net {
    fn new(config: &EndpointConfig, faults: Faults) -> Self {
        let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start().unwrap();
        let mut relay = Relay::new(faults);
        // Clients connect to the first endpoint.
        let mut server = endpoint(&nexus, config, &mut relay, SERVER);
        server.on(ECHO, |_, cx, request| echo(cx, request));
        let client = endpoint(&nexus, config, &mut relay, CLIENT);
        Self { nexus, relay, client, server: Some(server), app: Shared::default() }
    }

    fn turn(&mut self) {
        self.client.run_once();
        self.relay.run_once();
        if let Some(server) = &mut self.server {
            server.run_once();
        }
    }

    fn run_until(&mut self, done: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !done(self) {
            self.turn();
            assert!(start.elapsed() < HANG, "it hangs");
        }
    }

    fn connect(&mut self) -> SessionId {
        let address = self.nexus.local_addr().expect("it listens");
        let session = self.client.connect(address).unwrap();
        self.run_until(|net| net.client.session_state(session) == SessionState::Open);
        let agreed = self.client.core().agreed(session).expect("it is open");
        self.relay.packet_bytes = agreed.packet_bytes as usize;
        assert!(self.relay.packet_bytes > 8_000, "frames are sent from where they lie");
        session
    }

    fn call(&mut self, session: SessionId, len: usize) {
        call(&self.app, &mut self.client.context(), session, len);
    }

    fn ended(&self) -> u32 {
        let app = self.app.borrow();
        app.succeeded + app.failed.len() as u32
    }

    fn run_until_all_ended(&mut self) {
        self.run_until(|net| net.ended() == net.app.borrow().calls);
    }
}

fn endpoint(
    nexus: &Nexus,
    config: &EndpointConfig,
    relay: &mut Relay,
    end: usize,
) -> RelayedEndpoint {
    let mut host = config.host.clone();
    host.udp.bind = "127.0.0.1:0".parse().unwrap();
    let mtu = host.udp.mtu;
    let transport = Host::new(host).unwrap();
    let local = transport.udp().local_addr();
    relay.set_end(end, local);
    let udp = Some(UdpAttach {
        local,
        mtu,
        reads_marks: false,
        heeds_marks: false,
        further_ports: PathPorts::NONE,
        uses_paths: false,
    });
    let attach = Attach { id: None, udp, shm: None, stream: false, waker: transport.waker() };
    let port = nexus.attach(attach).unwrap();
    let control = RelayControl { port, via: relay.address_for(end) };
    assert_eq!(usize::from(control.endpoint_id().0), 1 - end, "the server is the first");
    Endpoint::new(transport, control, config).unwrap()
}

#[test]
fn udp__packets_are_sent_again_while_buffers_come_back_and_are_used_again() {
    let faults = Faults { lost: 30, copied: 30, late: 100 };
    let mut net = Net::new(&config(100), faults);
    let session = net.connect();
    for round in 0..60 {
        for place in 0..6 {
            net.call(session, 100 + (round * 7 + place) * 4_001 % 90_000);
        }
        net.run_until(|net| net.ended() + 6 >= net.app.borrow().calls);
    }
    net.run_until_all_ended();
    assert_eq!(net.app.borrow().failed, []);
    assert!(net.relay.repeated > 0 && net.client.stats().protocol.packets_retransmitted > 0);
    assert!(net.relay.payloads > 360 * 5, "only {} payloads", net.relay.payloads);
    give_back(&net.app, &net.client);
}

#[test]
fn udp__calls_fail_with_packets_unsent_and_their_buffers_are_used_again() {
    let flaky = Faults { lost: 30, copied: 30, late: 200 };
    let silent = Faults { lost: 1_000, ..Faults::default() };
    let mut net = Net::new(&config(3), flaky);
    let mut session = net.connect();
    for round in 0..30 {
        // Far more packets than credits; some of them get through.
        (0..4).for_each(|place| net.call(session, 100_000 + 9_001 * (round + place)));
        let payloads = net.relay.payloads + 20;
        net.run_until(|net| net.relay.payloads >= payloads);
        net.relay.set_faults(silent);
        match round % 2 {
            0 => net.run_until_all_ended(),
            _ => {
                net.client.close(session);
                session = net.connect();
            }
        }
        net.run_until_all_ended();
        net.relay.set_faults(flaky);
    }
    let app = net.app.borrow();
    let failed = |status| app.failed.iter().filter(|&&failed| failed == status).count();
    assert!(
        failed(Status::Unavailable) >= 15 && failed(Status::Cancelled) >= 15,
        "{:?}",
        app.failed
    );
    assert!(net.client.stats().protocol.calls_timed_out > 0);
    drop(app);
    give_back(&net.app, &net.client);
}

#[test]
fn udp__the_server_is_gone_with_packets_unsent() {
    let mut net = Net::new(&config(100), Faults { late: 200, ..Faults::default() });
    let session = net.connect();
    (0..6).for_each(|place| net.call(session, 300_000 + place));
    net.run_until(|net| net.relay.payloads >= 30);
    net.server = None;
    net.run_until_all_ended();
    assert_eq!(net.app.borrow().failed, [Status::Unavailable; 6]);
    let mut server = endpoint_again(&mut net);
    server.on(ECHO, |_, cx, request| echo(cx, request));
    net.server = Some(server);
    // In the same memory, while late datagrams of the first calls still arrive.
    let session = net.connect();
    (0..6).for_each(|place| net.call(session, 290_000 + place));
    net.run_until_all_ended();
    assert_eq!((net.app.borrow().failed.len(), net.app.borrow().succeeded), (6, 6));
    give_back(&net.app, &net.client);
}

fn endpoint_again(net: &mut Net) -> RelayedEndpoint {
    endpoint(&net.nexus, &config(100), &mut net.relay, SERVER)
}
