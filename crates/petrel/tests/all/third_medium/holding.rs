//! Calls over a transport that reads frames some time after the flush.

use petrel_proto::control::PathPorts;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::Endpoint;
use petrel::endpoint::{EndpointConfig, SessionState};
use petrel::nexus::{Attach, ControlPort, Nexus, UdpAttach};
use petrel_transport::Transport;
use petrel_transport::conformance::Holding;
use petrel_transport::host::Host;
use petrel_transport::udp::Mtu;

use super::ECHO;

type LateEndpoint = Endpoint<(), Holding<Host>, ControlPort>;

/// Buffers that went back are overwritten with a pattern.
fn endpoint(nexus: &Nexus) -> LateEndpoint {
    let mut config = EndpointConfig::default();
    config.memory.poison = true;
    config.sessions.credits = 8;
    let mut host = config.host.clone();
    host.udp.bind = ([127, 0, 0, 1], 0).into();
    let host = Host::new(host).unwrap();
    let local = host.udp().local_addr();
    let udp = UdpAttach {
        local,
        mtu: Mtu::default(),
        reads_marks: false,
        heeds_marks: false,
        further_ports: PathPorts::NONE,
        uses_paths: false,
    };
    let attach = Attach { id: None, udp: Some(udp), shm: None, stream: false, waker: host.waker() };
    Endpoint::new(Holding::new(host), nexus.attach(attach).unwrap(), &config).unwrap()
}

#[test]
fn call__over_a_transport_that_reads_frames_late_sends_whole_messages() {
    let nexus = Nexus::builder().listen(([127, 0, 0, 1], 0).into()).start().unwrap();
    let mut server = endpoint(&nexus);
    server.on(ECHO, |_, cx, request| {
        let message = request.data().to_vec();
        request.reply(cx, &message)
    });
    let mut client = endpoint(&nexus);
    let session = client.connect(nexus.local_addr().unwrap()).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let mut turn = |client: &mut LateEndpoint| {
        assert!(Instant::now() < end, "it never ends");
        client.run_once();
        server.run_once();
    };
    while client.session_state(session) != SessionState::Open {
        turn(&mut client);
    }
    let echoed = Rc::new(RefCell::new(Vec::new()));
    for round in 0..200_usize {
        let len = [32, 1_000, 9_000, 60_000][round % 4];
        let message = vec![round as u8; len];
        let (list, expected) = (Rc::clone(&echoed), message.clone());
        client
            .call(session, ECHO, &message[..])
            .response_bytes(len)
            .then(move |_, _, reply| {
                list.borrow_mut().push(reply.into_response().unwrap().to_vec() == expected);
            })
            .unwrap();
        while round % 8 == 7 && echoed.borrow().len() <= round {
            turn(&mut client);
        }
    }
    assert_eq!(*echoed.borrow(), vec![true; 200]);
}
