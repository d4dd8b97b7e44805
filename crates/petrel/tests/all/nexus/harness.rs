//! Endpoints and peers driven step by step by a test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use petrel::Nexus;
use petrel::endpoint::{AllowedTransports, EndpointId, Reason};
use petrel::nexus::{Attach, ControlPort, NexusStats, ShmAttach, UdpAttach};
use petrel::unstable::control::{FromNexus, LinkId, PeerName, ToNexus};
use petrel_proto::control::{
    Decoder, Hello, LinkAccept, LinkOpen, Message, Offer, PREFACE, SessionAccept, SessionOpen,
    VersionRange,
};
use petrel_proto::control::{LinkFeatures, PathPorts};
use petrel_transport::host::HostLink;
use petrel_transport::shm::ShmConfig;
use petrel_transport::udp::Mtu;
use petrel_transport::wake::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Far longer than any step on a loaded machine: only a hang exceeds it.
pub(crate) const HANG: Duration = Duration::from_secs(120);

pub(crate) const V4: &str = "127.0.0.1:0";
pub(crate) const V6: &str = "[::1]:0";

pub(crate) const BOTH: AllowedTransports = AllowedTransports::ALL;
pub(crate) const UDP: AllowedTransports = AllowedTransports::UDP;
pub(crate) const SHM: AllowedTransports = AllowedTransports::SHM;

pub(crate) fn server(listen: &str) -> (Nexus, SocketAddr) {
    let nexus = Nexus::builder().listen(listen.parse().unwrap()).start().unwrap();
    let address = nexus.local_addr().unwrap();
    (nexus, address)
}

pub(crate) fn client() -> Nexus {
    Nexus::builder().start().unwrap()
}

/// Small rings: tests make many.
pub(crate) fn shm_config() -> ShmConfig {
    ShmConfig { ring_bytes: 64 << 10, max_frame_bytes: 8_192, ..ShmConfig::default() }
}

pub(crate) fn attach_with(nexus: &Nexus, attach: Attach) -> Endpoint {
    let waker = attach.waker.clone();
    Endpoint { port: nexus.attach(attach).unwrap(), waker, next_request: 100, paths: Vec::new() }
}

/// An endpoint with both transports. Its UDP port is only a number here.
pub(crate) fn attach(nexus: &Nexus, local: &str) -> Endpoint {
    let mut local: SocketAddr = local.parse().unwrap();
    local.set_port(40_000);
    attach_with(nexus, attachment(Some(local), true))
}

pub(crate) fn attachment(udp: Option<SocketAddr>, shm: bool) -> Attach {
    Attach {
        id: None,
        udp: udp.map(udp_attachment),
        shm: shm.then(|| ShmAttach { config: shm_config() }),
        stream: false,
        waker: Waker::new().unwrap(),
    }
}

/// A data port with default settings.
pub(crate) fn udp_attachment(local: SocketAddr) -> UdpAttach {
    UdpAttach {
        local,
        mtu: Mtu::default(),
        reads_marks: true,
        heeds_marks: false,
        further_ports: PathPorts::NONE,
        uses_paths: false,
    }
}

/// An endpoint with the test as its event loop.
pub(crate) struct Endpoint {
    pub(crate) port: ControlPort,
    pub(crate) waker: Waker,
    next_request: u64,
    /// The reported round trips of paths.
    pub(crate) paths: Vec<(LinkId, u32)>,
}

/// A link that came up.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) request: Option<u64>,
    pub(crate) link: LinkId,
    pub(crate) transport: HostLink,
    pub(crate) peer: PeerName,
    pub(crate) incarnation: u64,
    pub(crate) features: LinkFeatures,
}

impl Endpoint {
    /// Returns the next message; blocks as an endpoint would.
    pub(crate) fn next(&mut self) -> FromNexus<HostLink> {
        let deadline = Instant::now() + HANG;
        loop {
            match self.port.poll() {
                Some(FromNexus::PathMeasured { link, rtt_ns }) => {
                    self.paths.push((link, rtt_ns));
                    continue;
                }
                Some(message) => return message,
                None => {}
            }
            assert!(Instant::now() < deadline, "no message");
            let second = Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut [PollFd::new(&self.waker, PollFlags::IN)], Some(&second)).unwrap();
            self.waker.drain();
        }
    }

    /// Returns true if no message waits except measurements of paths.
    pub(crate) fn is_quiet(&mut self) -> bool {
        loop {
            match self.port.poll() {
                Some(FromNexus::PathMeasured { link, rtt_ns }) => self.paths.push((link, rtt_ns)),
                other => return other.is_none(),
            }
        }
    }

    pub(crate) fn ask(
        &mut self,
        remote: SocketAddr,
        id: u16,
        transports: AllowedTransports,
    ) -> u64 {
        self.next_request += 1;
        let request = self.next_request;
        let remote_endpoint = EndpointId(id);
        let reverse = false;
        self.port.post(ToNexus::OpenLink { request, remote, remote_endpoint, transports, reverse });
        request
    }

    pub(crate) fn up(&mut self) -> Up {
        match self.next() {
            FromNexus::LinkUp { request, link, transport, peer, incarnation, features, .. } => {
                Up { request, link, transport, peer, incarnation, features }
            }
            other => panic!("not LinkUp: {other:?}"),
        }
    }

    pub(crate) fn link(
        &mut self,
        remote: SocketAddr,
        id: u16,
        transports: AllowedTransports,
    ) -> Up {
        let request = self.ask(remote, id, transports);
        let up = self.up();
        assert_eq!(up.request, Some(request));
        up
    }

    pub(crate) fn failure(&mut self) -> Reason {
        match self.next() {
            FromNexus::LinkFailed { reason, .. } => reason,
            other => panic!("not LinkFailed: {other:?}"),
        }
    }

    pub(crate) fn no_link(
        &mut self,
        remote: SocketAddr,
        id: u16,
        transports: AllowedTransports,
    ) -> Reason {
        self.ask(remote, id, transports);
        self.failure()
    }

    pub(crate) fn down(&mut self) -> (LinkId, Reason) {
        match self.next() {
            FromNexus::LinkDown { link, reason } => (link, reason),
            other => panic!("not LinkDown: {other:?}"),
        }
    }

    pub(crate) fn proposed(&mut self) -> (LinkId, SessionOpen) {
        match self.next() {
            FromNexus::SessionProposed { link, open } => (link, open),
            other => panic!("not SessionProposed: {other:?}"),
        }
    }

    pub(crate) fn opened(&mut self) -> (LinkId, SessionAccept) {
        match self.next() {
            FromNexus::SessionOpened { link, accept } => (link, accept),
            other => panic!("not SessionOpened: {other:?}"),
        }
    }

    pub(crate) fn refused(&mut self) -> (u32, Reason) {
        match self.next() {
            FromNexus::SessionRefused { request, reason, .. } => (request, reason),
            other => panic!("not SessionRefused: {other:?}"),
        }
    }
}

pub(crate) fn proposal(request: u32) -> SessionOpen {
    SessionOpen {
        link: 0,
        request,
        session: request,
        token: 0xC11E_0000 + request,
        first_request: 64 * 7,
        slots: 8,
        credits: 32,
        max_message: 8 << 20,
        packet_bytes: 1_400,
    }
}

pub(crate) fn acceptance(open: &SessionOpen) -> SessionAccept {
    SessionAccept {
        link: open.link,
        request: open.request,
        session: open.session + 1,
        token: 0x5E4E_0000 + open.request,
        slots: open.slots,
        credits: open.credits,
        max_message: 1 << 20,
        packet_bytes: open.packet_bytes,
    }
}

/// Waits until the counters satisfy the condition.
pub(crate) fn wait_until(nexus: &Nexus, condition: impl Fn(&NexusStats) -> bool) {
    let deadline = Instant::now() + HANG;
    while !condition(&nexus.stats()) {
        assert!(Instant::now() < deadline, "{:?}", nexus.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A peer that sends any messages a test wants.
pub(crate) struct RawPeer {
    pub(crate) stream: TcpStream,
    decoder: Decoder,
    unread: Vec<u8>,
}

impl RawPeer {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(HANG)).unwrap();
        stream.set_write_timeout(Some(HANG)).unwrap();
        Self { stream, decoder: Decoder::new(), unread: Vec::new() }
    }

    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).unwrap())
    }

    pub(crate) fn accept(listener: &TcpListener) -> Self {
        Self::new(listener.accept().unwrap().0)
    }

    /// Connects and exchanges HELLOs.
    pub(crate) fn after_hello(address: SocketAddr) -> Self {
        let mut peer = Self::connect(address);
        peer.send_hello(hello());
        peer
    }

    /// Accepts and exchanges HELLOs.
    pub(crate) fn after_hello_by(listener: &TcpListener) -> Self {
        let mut peer = Self::accept(listener);
        peer.send_hello(hello());
        peer
    }

    pub(crate) fn send_hello(&mut self, hello: Hello) -> Hello {
        self.stream.write_all(&PREFACE).unwrap();
        self.send(hello);
        match self.receive() {
            Some(Message::Hello(hello)) => hello,
            other => panic!("not HELLO: {other:?}"),
        }
    }

    pub(crate) fn send(&mut self, message: impl Into<Message>) {
        let mut bytes = Vec::new();
        message.into().encode(&mut bytes).unwrap();
        self.stream.write_all(&bytes).unwrap();
    }

    /// Returns the next message, or `None` at the end of the stream.
    pub(crate) fn receive_any(&mut self) -> Option<Message> {
        let mut buffer = [0; 4_096];
        loop {
            let mut bytes = &self.unread[..];
            let message = self.decoder.decode(&mut bytes).unwrap();
            self.unread = bytes.to_vec();
            if message.is_some() {
                return message;
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.unread.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Returns the next message that is not a heartbeat.
    pub(crate) fn receive(&mut self) -> Option<Message> {
        loop {
            match self.receive_any() {
                Some(Message::Ping(_) | Message::Pong(_)) => {}
                other => return other,
            }
        }
    }

    /// Expects GOODBYE and then the end.
    pub(crate) fn goodbye(&mut self) -> petrel_proto::control::Goodbye {
        let Some(Message::Goodbye(goodbye)) = self.receive() else { panic!("not GOODBYE") };
        assert_eq!(self.receive_any(), None);
        goodbye
    }

    pub(crate) fn link_open(&mut self) -> LinkOpen {
        match self.receive() {
            Some(Message::LinkOpen(open)) => open,
            other => panic!("not LINK_OPEN: {other:?}"),
        }
    }

    /// Grants the requested link over UDP.
    pub(crate) fn grant_udp(&mut self) -> LinkOpen {
        let open = self.link_open();
        self.send(accept_udp(open.link));
        open
    }

    /// Requests a link to endpoint 0 over UDP.
    pub(crate) fn open_udp(&mut self, link: u32) -> LinkAccept {
        self.send(open_of(link, Offer::Udp { port: 9, max_frame: 1_472 }));
        match self.receive() {
            Some(Message::LinkAccept(accept)) => accept,
            other => panic!("not LINK_ACCEPT: {other:?}"),
        }
    }
}

/// A link over UDP.
pub(crate) fn accept_udp(link: u32) -> LinkAccept {
    let offer = Offer::Udp { port: 9, max_frame: 1_472 };
    let features = LinkFeatures::default();
    LinkAccept { link, offer, ticket: None, ecn: false, features, data_ip: None }
}

/// A request of endpoint 5 for a link to endpoint 0.
pub(crate) fn open_of(link: u32, offer: Offer) -> LinkOpen {
    LinkOpen {
        link,
        from_endpoint: 5,
        to_endpoint: 0,
        offers: vec![offer],
        ecn: false,
        features: LinkFeatures::default(),
    }
}

pub(crate) fn hello() -> Hello {
    Hello {
        versions: VersionRange::OWN,
        incarnation: 77,
        // The protocol's maximum: these peers send no PINGs.
        heartbeat_ms: 10_000,
        agent: "by hand".to_owned(),
        host_identity: None,
        rendezvous: None,
    }
}

pub(crate) fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(V4).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}
