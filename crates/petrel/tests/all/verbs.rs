//! Endpoints with RDMA cards in memory, between two nexuses (`docs/wire-protocol.md` §8.4).

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::endpoint::{AllowedTransports, EndpointConfig, SessionId, SessionState};
use petrel::nexus::NexusBuilder;
use petrel::{Endpoint, Nexus, Status};
use petrel_transport::Transport;
use petrel_transport::host::Host;
use petrel_transport::verbs::{VerbsConfig, detached};
use petrel_transport::wake::Waker;

const ECHO: u16 = 7;

/// Media beside shared memory, which the two ends of a test would use.
const OVER_NETWORKS: AllowedTransports = AllowedTransports { shm: false, ..AllowedTransports::ALL };

/// The settings of an endpoint's card, by the card's name.
fn card(name: &str) -> Option<VerbsConfig> {
    Some(VerbsConfig { card: name.to_owned(), ..VerbsConfig::default() })
}

fn endpoint(nexus: &Nexus, card: Option<&VerbsConfig>, transports: AllowedTransports) -> Endpoint {
    let mut config = EndpointConfig::default();
    config.transports = transports;
    config.host.udp.bind = "127.0.0.1:0".parse().unwrap();
    let waker = Waker::new().unwrap();
    let opened = card.map(|card| Ok(detached::open(card, waker.clone()).unwrap()));
    let host = Host::beside(opened, config.host.clone(), waker).unwrap();
    nexus.endpoint_over(host, config, ()).unwrap()
}

struct Pair {
    server_nexus: Nexus,
    client_nexus: Nexus,
    server: Endpoint,
    client: Endpoint,
}

impl Pair {
    fn new(server: Option<VerbsConfig>, client: Option<VerbsConfig>) -> Self {
        Self::with(server, client, OVER_NETWORKS)
    }

    /// The transports are those of the server.
    fn with(
        server: Option<VerbsConfig>,
        client: Option<VerbsConfig>,
        transports: AllowedTransports,
    ) -> Self {
        let nexuses = [Nexus::builder().insecure(), Nexus::builder().insecure()];
        Self::of(nexuses, [server, client], transports)
    }

    fn of(
        [server_nexus, client_nexus]: [NexusBuilder; 2],
        [server, client]: [Option<VerbsConfig>; 2],
        transports: AllowedTransports,
    ) -> Self {
        let server_nexus = server_nexus.listen(([127, 0, 0, 1], 0).into()).start().unwrap();
        let client_nexus = client_nexus.start().unwrap();
        let mut server = endpoint(&server_nexus, server.as_ref(), transports);
        crate::common::echo(&mut server, ECHO);
        let client = endpoint(&client_nexus, client.as_ref(), OVER_NETWORKS);
        Self { server_nexus, client_nexus, server, client }
    }

    fn run_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_so(self) {
            assert!(Instant::now() < end, "it never comes true");
            self.client.run_once();
            self.server.run_once();
        }
    }

    /// Opens a session, and returns it if the server has accepted.
    fn try_connect(&mut self) -> Option<SessionId> {
        let session = self.client.connect(self.server_nexus.local_addr().unwrap()).unwrap();
        self.run_until(|pair| pair.client.session_state(session) != SessionState::Opening);
        (self.client.session_state(session) == SessionState::Open).then_some(session)
    }

    /// Opens a session, and returns it with its medium.
    fn connect(&mut self) -> (SessionId, &'static str) {
        let session = self.try_connect().expect("a session that is accepted");
        let peer = self.client.session_peer_id(session).unwrap();
        (session, self.client.transport().medium_of(peer))
    }

    /// Calls with a message of this length, and returns the status.
    fn echo(&mut self, session: SessionId, len: usize) -> Result<(), Status> {
        let message: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        let ended = Rc::new(RefCell::new(None));
        let end = Rc::clone(&ended);
        self.client
            .call(session, ECHO, &message[..])
            .response_bytes(len.max(1))
            .then(move |_, _, reply| {
                let response = reply.into_response().map(|response| response.to_vec());
                *end.borrow_mut() = Some(response);
            })
            .map_err(|_| Status::Unavailable)?;
        self.run_until(|_| ended.borrow().is_some());
        let response = ended.borrow_mut().take().unwrap().map_err(|error| error.status)?;
        assert!(response == message, "an answer of {len} bytes differs");
        Ok(())
    }

    /// The frames that left by the client's card and reached the server's, and the frames of the way back.
    fn by_cards(&self) -> [(u64, u64); 2] {
        let [client, server] = [&self.client, &self.server]
            .map(|end| end.transport().far().card().unwrap().unwrap().stats());
        [(client.tx_frames, server.rx_frames), (server.tx_frames, client.rx_frames)]
    }
}

#[test]
fn call__of_each_length_goes_by_the_cards() {
    let mut pair = Pair::new(card("fake0"), card("fake0"));
    let (session, medium) = pair.connect();
    assert_eq!(medium, "verbs");
    for len in [0, 1, 32, 1_000, 4_064, 4_065, 100_000, 1 << 20, 8 << 20] {
        assert_eq!(pair.echo(session, len), Ok(()), "{len} bytes");
    }
    for (left, arrived) in pair.by_cards() {
        assert!(left == arrived && left > 2_000, "{left} left, and {arrived} arrived");
    }
    assert_eq!(pair.client.transport().udp().stats().rx_frames, 0, "a frame went by UDP");
    for nexus in [&pair.client_nexus, &pair.server_nexus] {
        let stats = nexus.stats();
        assert_eq!((stats.links_opened, stats.links_opened_verbs), (1, 1));
    }
}

/// Nothing arrives by the card `deaf0`.
#[test]
fn connect__over_a_dead_path_goes_by_udp_or_else_by_a_stream() {
    let stream = AllowedTransports { udp: false, ..OVER_NETWORKS };
    for (transports, expected) in [(OVER_NETWORKS, "udp"), (stream, "stream")] {
        for (server, client) in [(detached::DEAF, "fake0"), ("fake0", detached::DEAF)] {
            let mut pair = Pair::with(card(server), card(client), transports);
            let (session, medium) = pair.connect();
            assert_eq!(medium, expected);
            assert_eq!(pair.echo(session, 100_000), Ok(()));
            assert_eq!(pair.client_nexus.stats().links_unreached, 1);
            assert_eq!(pair.connect().1, expected, "the card is not tried again at once");
            assert_eq!(pair.client_nexus.stats().links_unreached, 1);
        }
    }
}

#[test]
fn connect__to_a_peer_without_a_card_goes_by_udp() {
    for (server, client) in [(card("fake0"), None), (None, card("fake0"))] {
        let mut pair = Pair::new(server, client);
        let (session, medium) = pair.connect();
        assert_eq!((medium, pair.echo(session, 100_000)), ("udp", Ok(())));
        assert_eq!(pair.client_nexus.stats().links_unreached, 0);
    }
}

/// The other card may be on another host, whatever the addresses of the processes are.
#[test]
fn connect__of_a_process_that_keeps_to_its_host_uses_no_card() {
    for is_server in [true, false] {
        let keep = |keeps: bool| match keeps {
            true => Nexus::builder(),
            false => Nexus::builder().insecure(),
        };
        let mut pair = Pair::of(
            [keep(is_server), keep(!is_server)],
            [card("fake0"), card("fake0")],
            OVER_NETWORKS,
        );
        let (session, medium) = pair.connect();
        assert_eq!((medium, pair.echo(session, 1_000)), ("udp", Ok(())));
        assert_eq!(pair.by_cards(), [(0, 0); 2]);
    }
    let only = AllowedTransports { udp: false, stream: false, ..OVER_NETWORKS };
    let mut pair =
        Pair::of([Nexus::builder(), Nexus::builder()], [card("fake0"), card("fake0")], only);
    assert_eq!(pair.try_connect(), None, "no other medium is allowed");
}

/// A card drops a packet that finds no request: the credits of all sessions have room, and further sessions are refused.
#[test]
fn connect__is_refused_if_the_ring_has_no_room() {
    let small = VerbsConfig { receives: 64, ..VerbsConfig::default() };
    let mut pair = Pair::new(Some(small), card("fake0"));
    let mut sessions = Vec::new();
    while let Some(session) = pair.try_connect() {
        sessions.push(session);
    }
    assert!((8..=32).contains(&sessions.len()), "{} sessions", sessions.len());
    let count = Rc::new(RefCell::new(0));
    for session in &sessions {
        for _ in 0..8 {
            let count = Rc::clone(&count);
            pair.client
                .call(*session, ECHO, &[7; 20_000][..])
                .response_bytes(20_000)
                .then(move |_, _, reply| {
                    assert!(reply.into_response().is_ok());
                    *count.borrow_mut() += 1;
                })
                .unwrap();
        }
    }
    let all = 8 * sessions.len();
    pair.run_until(|_| *count.borrow() == all);
    let repeated = pair.client.stats().protocol.packets_retransmitted
        + pair.server.stats().protocol.packets_retransmitted;
    for (left, arrived) in pair.by_cards() {
        // A thread that did not run for long repeats packets, which may find no request.
        assert!(left - arrived <= repeated, "{} packets found no request", left - arrived);
    }
}

#[test]
fn call__ends_with_the_peer() {
    let mut pair = Pair::new(card("fake0"), card("fake0"));
    let (session, _) = pair.connect();
    let Pair { server_nexus, client_nexus: _kept, server, mut client } = pair;
    let ended = Rc::new(RefCell::new(None));
    let end = Rc::clone(&ended);
    client
        .call(session, ECHO, b"last")
        .then(move |_, _, reply| *end.borrow_mut() = Some(reply.into_response().map(drop)))
        .unwrap();
    client.run_once();
    drop((server, server_nexus));
    let until = Instant::now() + Duration::from_secs(60);
    while ended.borrow().is_none() {
        assert!(Instant::now() < until, "the call never ends");
        client.run_once();
    }
    let error = ended.borrow_mut().take().unwrap().unwrap_err();
    assert_eq!(error.status, Status::Unavailable, "{error}");
}

/// The sessions of a card end with it, and later ones go by UDP at once.
#[test]
fn call__after_the_end_of_a_card_goes_by_udp() {
    for is_server in [true, false] {
        let mut pair = Pair::new(card("fake0"), card("fake0"));
        let (session, medium) = pair.connect();
        assert_eq!((medium, pair.echo(session, 1_000)), ("verbs", Ok(())));
        let end = if is_server { &pair.server } else { &pair.client };
        detached::end(end.transport().far().card().unwrap().unwrap());
        pair.run_until(|pair| pair.client.session_state(session) != SessionState::Open);
        let (session, medium) = pair.connect();
        assert_eq!((medium, pair.echo(session, 100_000)), ("udp", Ok(())));
        assert_eq!(pair.client_nexus.stats().links_unreached, 0);
    }
}
