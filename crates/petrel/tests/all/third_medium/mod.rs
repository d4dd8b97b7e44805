//! A medium from outside: passes the suite of transports, and serves calls between two nexuses.

mod medium;

use petrel_proto::control::PathPorts;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::{AllowedTransports, EndpointConfig, SessionId, SessionState};
use petrel::nexus::media::Medium;
use petrel::nexus::{Attach, ControlPort, Nexus, UdpAttach};
use petrel::{Endpoint, Status};
use petrel_transport::conformance::{self, End, Harness, Medium as Properties, Star};
use petrel_transport::host::{Host, HostLink};
use petrel_transport::mux::{Mux, MuxLink};
use petrel_transport::udp::Mtu;
use petrel_transport::wake::Waker;
use petrel_transport::{PeerId, Transport};

use medium::{UnixDatagrams, UnixLink, UnixMedium};

const ECHO: u16 = 7;

/// The built-in media and the third one. `Host` uses bit 31 of the peers' ids.
type Three = Mux<Host, UnixDatagrams, 29>;
type ThreeLink = MuxLink<HostLink, UnixLink>;
type ThreeEndpoint = Endpoint<(), Three, ControlPort<ThreeLink>>;

/// One of three media of an endpoint.
struct AsThird;

impl Harness for AsThird {
    type T = Three;

    fn medium(&self) -> Properties {
        Properties::lossy_when_full().with_capacity(40_000)
    }

    fn star(&mut self) -> Star<Three> {
        let link_to = |three: &Three| MuxLink::Far(three.far().link());
        let mut hub = three();
        let leaves = [(); 2].map(|()| {
            let mut transport = three();
            let peer = transport.add_peer(link_to(&hub)).unwrap();
            End { transport, peer }
        });
        let peers = leaves.each_ref().map(|leaf| hub.add_peer(link_to(&leaf.transport)).unwrap());
        Star { hub, peers, leaves }
    }
}

#[test]
fn conformance__of_a_medium_from_outside() {
    conformance::run_all(&mut AsThird);
    conformance::run_threaded(&mut AsThird);
}

fn three() -> Three {
    let mut config = EndpointConfig::default().host;
    config.udp.bind = "127.0.0.1:0".parse().unwrap();
    let host = Host::new(config).unwrap();
    let waker = host.waker();
    Three::of(host, UnixDatagrams::new(waker.clone()), waker)
}

/// Attaches an endpoint with UDP, and with the third medium if `with_third`.
fn endpoint(nexus: &Nexus<ThreeLink>, with_third: bool) -> ThreeEndpoint {
    let transport = three();
    let local = transport.near().udp().local_addr();
    let udp = UdpAttach {
        local,
        mtu: Mtu::default(),
        reads_marks: false,
        heeds_marks: false,
        further_ports: PathPorts::NONE,
        uses_paths: false,
    };
    let attach =
        Attach { id: None, udp: Some(udp), shm: None, stream: false, waker: transport.waker() };
    let own = UnixMedium(transport.far().link());
    let third: Box<dyn Medium<ThreeLink>> = Box::new(own);
    let others = if with_third { vec![third] } else { Vec::new() };
    let port = nexus.attach_with(attach, others).unwrap();
    Endpoint::new(transport, port, &EndpointConfig::default()).unwrap()
}

fn nexus(listens: bool) -> Nexus<ThreeLink> {
    let builder = Nexus::builder();
    let builder = if listens { builder.listen(([127, 0, 0, 1], 0).into()) } else { builder };
    builder.start_for().unwrap()
}

struct Pair {
    server_nexus: Nexus<ThreeLink>,
    client_nexus: Nexus<ThreeLink>,
    server: ThreeEndpoint,
    client: ThreeEndpoint,
}

impl Pair {
    fn new(server_has: bool, client_has: bool) -> Self {
        let (server_nexus, client_nexus) = (nexus(true), nexus(false));
        let mut server = endpoint(&server_nexus, server_has);
        crate::common::echo(&mut server, ECHO);
        let client = endpoint(&client_nexus, client_has);
        Self { server_nexus, client_nexus, server, client }
    }

    fn address(&self) -> SocketAddr {
        self.server_nexus.local_addr().unwrap()
    }

    fn run_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so(self) {
            assert!(Instant::now() < end, "it never comes true");
            self.client.run_once();
            self.server.run_once();
        }
    }

    fn connect(&mut self) -> SessionId {
        let session = self.client.connect(self.address()).unwrap();
        self.run_until(|pair| pair.client.session_state(session) == SessionState::Open);
        session
    }

    /// Echoes messages of many lengths: of one packet, of several, of more than the credits.
    fn echo_all(&mut self, session: SessionId) {
        for len in [0, 1, 32, 1_000, 16_000, 100_000, 1_000_000] {
            let message: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let echoed = Rc::new(Cell::new(None));
            let ended = Rc::clone(&echoed);
            let (request, room) = (message.clone(), len.max(1));
            self.client
                .call(session, ECHO, &request[..])
                .response_bytes(room)
                .then(move |_, _, reply| {
                    ended.set(Some(reply.into_response().map(|response| response.to_vec())));
                })
                .unwrap();
            self.run_until(|_| {
                let result = echoed.take();
                let is_there = result.is_some();
                echoed.set(result);
                is_there
            });
            assert_eq!(echoed.take().unwrap().unwrap(), message, "{len} bytes");
        }
    }
}

#[test]
fn call__between_two_nexuses_goes_by_the_medium_from_outside() {
    let mut pair = Pair::new(true, true);
    let session = pair.connect();
    let peer = pair.client.session_peer_id(session).unwrap();
    assert!(!Three::is_near(peer), "{peer:?} is not of the third medium");
    pair.echo_all(session);
    for end in [&pair.client, &pair.server] {
        let transport = end.transport();
        assert!(transport.far().stats().rx_frames > 0);
        assert_eq!(transport.near().stats().rx_frames, 0, "a frame went by UDP");
    }
    assert_eq!(pair.client_nexus.stats().links_opened, 1);
    assert_eq!(pair.server_nexus.stats().links_opened, 1);
    assert_eq!(pair.server_nexus.stats().links_opened_shm, 0);
}

/// The last use of a peer ends with its session: the endpoint is told by the nexus.
#[test]
fn call__over_the_medium_ends_with_the_server() {
    let mut pair = Pair::new(true, true);
    let session = pair.connect();
    let Pair { server_nexus, client_nexus: _kept, server, mut client } = pair;
    drop((server, server_nexus));
    let end = Instant::now() + Duration::from_secs(60);
    while client.session_state(session) == SessionState::Open {
        assert!(Instant::now() < end, "the session never ends");
        client.run_once();
    }
    let rejected = client.call(session, ECHO, b"late").then(|_, _, _| ());
    assert!(rejected.is_err());
}

#[test]
fn connect__to_a_peer_without_the_medium_goes_by_udp() {
    for (server_has, client_has) in [(true, false), (false, true), (false, false)] {
        let mut pair = Pair::new(server_has, client_has);
        let session = pair.connect();
        let peer = pair.client.session_peer_id(session).unwrap();
        assert!(Three::is_near(peer), "{server_has} {client_has}");
        pair.echo_all(session);
        assert_eq!(pair.client.transport().far().stats().rx_frames, 0);
    }
}

/// Settings of a session restrict the built-in media only.
#[test]
fn connect__without_a_common_medium_has_a_reason() {
    let nexus = nexus(true);
    let mut config = EndpointConfig::default();
    config.transports = AllowedTransports::SHM;
    let transport = three();
    let attach = Attach { id: None, udp: None, shm: None, stream: false, waker: transport.waker() };
    let third: Box<dyn Medium<ThreeLink>> = Box::new(UnixMedium(transport.far().link()));
    let port = nexus.attach_with(attach, vec![third]).unwrap();
    let mut only_third: ThreeEndpoint = Endpoint::new(transport, port, &config).unwrap();
    let _by_udp = endpoint(&nexus, false);
    let error =
        only_third.connect_wait_to(nexus.local_addr().unwrap(), petrel::endpoint::EndpointId(1));
    let error = error.unwrap_err();
    assert_eq!(error.status, Status::FailedPrecondition, "{error}");
    let text = error.to_string();
    assert!(text.contains("none of the offered transports is known"), "{text}");
}

#[test]
#[should_panic = "kind 1 is that of another medium"]
fn attach_with__a_medium_of_a_built_in_kind() {
    #[derive(Debug)]
    struct Usurper;

    impl Medium<ThreeLink> for Usurper {
        fn name(&self) -> &'static str {
            "usurper"
        }

        fn kind(&self) -> u8 {
            1
        }

        fn offer(
            &self,
            _: &petrel::nexus::media::Ends<'_>,
        ) -> Result<petrel_proto::control::Offer, petrel::nexus::media::Obstacle> {
            unreachable!("it is not attached")
        }

        fn open(
            &self,
            _: petrel::nexus::media::Agreed,
        ) -> petrel::nexus::media::Opening<ThreeLink> {
            unreachable!("it is not attached")
        }
    }

    let waker = Waker::new().unwrap();
    let attach = Attach { id: None, udp: None, shm: None, stream: false, waker };
    // The error would be another panic.
    drop(nexus(false).attach_with(attach, vec![Box::new(Usurper)]));
}

#[test]
fn mux__keeps_the_ids_of_three_media_apart() {
    let (mut a, b) = (three(), three());
    let udp = petrel_transport::udp::UdpLink::to(b.near().udp().local_addr());
    let by_udp = a.add_peer(udp.into()).unwrap();
    let by_unix = a.add_peer(MuxLink::Far(b.far().link())).unwrap();
    assert!(Three::is_near(by_udp) && !Three::is_near(by_unix));
    assert!(a.is_networked(by_udp) && a.max_frame_bytes(by_unix) == 16 << 10);
    a.remove_peer(by_udp);
    assert_eq!((a.max_frame_bytes(by_udp), a.max_frame_bytes(by_unix)), (0, 16 << 10));
    a.remove_peer(by_unix);
    a.remove_peer(by_unix);
    assert_eq!(a.max_frame_bytes(by_unix), 0);
    assert_eq!(a.max_frame_bytes(PeerId(77)), 0);
}
