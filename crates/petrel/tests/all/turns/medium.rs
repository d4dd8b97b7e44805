//! A transport and a control plane driven by the test: it carries the frames, plays both nexuses, and sets the time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use petrel::Endpoint;
use petrel::endpoint::EndpointId;
use petrel::endpoint::{EndpointConfig, SessionId, SessionState};
use petrel::unstable::control::{ControlPlane, FromNexus, LinkId, PeerName, ToNexus};
use petrel_proto::control::{LinkFeatures, SessionAccept, SessionOpen};
use petrel_transport::clock::Clock;
use petrel_transport::wake::Waker;
use petrel_transport::{
    FrameHandler, LinkError, NoReturn, PeerId, Transport, TransportStats, TxFrame,
};

/// The default largest frame: a datagram on Ethernet.
const FRAME_BYTES_MAX: usize = 1_472;

/// The messages of an endpoint in both directions, and the number of flushes.
#[derive(Default)]
pub(crate) struct Site {
    pub(crate) now_ns: Cell<u64>,
    /// The name under which the peer's frames arrive.
    pub(crate) source: Cell<u32>,
    /// Frames pushed and not flushed.
    pushed: RefCell<Vec<Vec<u8>>>,
    /// Frames flushed and not taken yet.
    pub(crate) sent: RefCell<Vec<Vec<u8>>>,
    pub(crate) flushes: Cell<u32>,
    /// The largest frame in either direction.
    frame_bytes_max: Cell<usize>,
    /// Whether frames arrive with ECN marks, and how long the system delays the endpoint before each.
    pub(crate) marks: Cell<bool>,
    pub(crate) held_up_ns: Cell<u64>,
    /// The number of frames the endpoint was ready to receive, per poll.
    pub(crate) budgets: RefCell<Vec<usize>>,
    /// How many frames more than its budget the endpoint gets at most.
    pub(crate) beyond_budget: Cell<usize>,
    /// Frames queued for the endpoint.
    pub(crate) to_take: RefCell<VecDeque<Vec<u8>>>,
    /// Multicast groups joined, and groups left.
    pub(crate) joined: RefCell<Vec<(SocketAddr, PeerId)>>,
    pub(crate) left: RefCell<Vec<(SocketAddr, PeerId)>>,
    pub(crate) posted: RefCell<VecDeque<ToNexus>>,
    pub(crate) said: RefCell<VecDeque<FromNexus<u32>>>,
}

impl Site {
    pub(crate) fn say(&self, message: FromNexus<u32>) {
        self.said.borrow_mut().push_back(message);
    }

    pub(crate) fn posts(&self) -> Vec<ToNexus> {
        self.posted.borrow_mut().drain(..).collect()
    }
}

pub(crate) struct Port(Rc<Site>);

impl Transport for Port {
    type Link = u32;
    type Return = NoReturn;

    fn now(&self) -> u64 {
        self.0.now_ns.get()
    }

    fn clock(&self) -> Clock {
        let site = Rc::clone(&self.0);
        Clock::of(move || site.now_ns.get())
    }

    fn add_peer(&mut self, link: u32) -> Result<PeerId, LinkError> {
        Ok(PeerId(link))
    }

    fn remove_peer(&mut self, _peer: PeerId) {}

    fn source_of(&self, _peer: PeerId) -> PeerId {
        PeerId(self.0.source.get())
    }

    fn max_frame_bytes(&self, _peer: PeerId) -> usize {
        self.0.frame_bytes_max.get()
    }

    fn join_group(&mut self, address: SocketAddr, from: PeerId) -> Result<(), LinkError> {
        self.0.joined.borrow_mut().push((address, from));
        Ok(())
    }

    fn leave_group(&mut self, address: SocketAddr, from: PeerId) {
        self.0.left.borrow_mut().push((address, from));
    }

    #[expect(unsafe_code, reason = "the trait's contract")]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let frame = TxFrame { peer, head, body };
        let max = self.0.frame_bytes_max.get();
        assert!(!frame.is_empty() && frame.len() <= max, "{} bytes", frame.len());
        self.0.pushed.borrow_mut().push([head, body].concat());
        true
    }

    fn flush(&mut self) {
        self.0.flushes.set(self.0.flushes.get() + 1);
        self.0.sent.borrow_mut().append(&mut self.0.pushed.borrow_mut());
    }

    fn may_receive(&self) -> bool {
        !self.0.to_take.borrow().is_empty()
    }

    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut handler: H) -> usize {
        self.0.budgets.borrow_mut().push(budget);
        let budget = budget + self.0.beyond_budget.get();
        for taken in 0..budget {
            let Some(frame) = self.0.to_take.borrow_mut().pop_front() else { return taken };
            self.0.now_ns.set(self.0.now_ns.get() + self.0.held_up_ns.get());
            match (PeerId(self.0.source.get()), self.0.marks.get()) {
                (peer, false) => handler.handle(peer, &frame, None),
                (peer, true) => handler.handle_marked(peer, &frame),
            }
        }
        budget
    }

    fn wait(&mut self, _timeout_ns: Option<u64>) {}

    fn waker(&self) -> Waker {
        Waker::new().expect("a descriptor for an eventfd")
    }

    fn stats(&self) -> TransportStats {
        TransportStats::default()
    }
}

pub(crate) struct Control {
    site: Rc<Site>,
    random: Cell<u64>,
}

impl ControlPlane<u32> for Control {
    fn post(&self, message: ToNexus) {
        self.site.posted.borrow_mut().push_back(message);
    }

    fn poll(&mut self) -> Option<FromNexus<u32>> {
        self.site.said.borrow_mut().pop_front()
    }

    fn endpoint_id(&self) -> EndpointId {
        EndpointId(3)
    }

    fn random(&mut self) -> u64 {
        self.random.set(self.random.get().wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(99));
        self.random.get() >> 3
    }
}

pub(crate) struct Side {
    pub(crate) endpoint: Endpoint<(), Port, Control>,
    pub(crate) site: Rc<Site>,
}

impl Side {
    fn new(config: &EndpointConfig, seed: u64, source: u32, frame_bytes_max: usize) -> Self {
        let site = Rc::new(Site::default());
        site.now_ns.set(1_000_000);
        site.frame_bytes_max.set(frame_bytes_max);
        site.source.set(source);
        let control = Control { site: Rc::clone(&site), random: Cell::new(seed) };
        let endpoint = Endpoint::new(Port(Rc::clone(&site)), control, config).unwrap();
        Self { endpoint, site }
    }

    /// Returns the frames sent since the last call.
    pub(crate) fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.site.sent.borrow_mut())
    }

    /// Takes a turn. Returns its result and the number of flushes.
    pub(crate) fn turn(&mut self) -> (bool, u32) {
        self.site.flushes.set(0);
        (self.endpoint.run_once(), self.site.flushes.get())
    }
}

/// A client and a server that move only step by step, by the test.
pub(crate) struct World {
    pub(crate) client: Side,
    pub(crate) server: Side,
    pub(crate) session: SessionId,
}

impl World {
    /// A world with an open session.
    pub(crate) fn new(config: &EndpointConfig) -> Self {
        Self::heard_under(config, 1)
    }

    /// The same, with frames of peer 1 arriving under the name `source`.
    pub(crate) fn heard_under(config: &EndpointConfig, source: u32) -> Self {
        Self::of(config, source, FRAME_BYTES_MAX)
    }

    /// The same as [`World::new`] with frames of at most `frame_bytes_max` bytes.
    pub(crate) fn with_frames_of(config: &EndpointConfig, frame_bytes_max: usize) -> Self {
        Self::of(config, 1, frame_bytes_max)
    }

    fn of(config: &EndpointConfig, source: u32, frame_bytes_max: usize) -> Self {
        let mut client = Side::new(config, 5, source, frame_bytes_max);
        let server = Side::new(config, 6, source, frame_bytes_max);
        let remote = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let session = client.endpoint.connect(remote).unwrap();
        let mut world = Self { client, server, session };
        for _ in 0..200 {
            world.client.endpoint.run_once();
            world.server.endpoint.run_once();
            world.carry_messages();
            if matches!(world.client.endpoint.session_state(session), SessionState::Open) {
                world.rest();
                return world;
            }
        }
        panic!("the session does not open");
    }

    /// Runs both ends until no work is left.
    pub(crate) fn rest(&mut self) {
        for side in [&mut self.client, &mut self.server] {
            while side.endpoint.run_once() {}
            side.sent();
        }
    }

    /// Passes all frames of the client to the server.
    pub(crate) fn carry_requests(&mut self) -> usize {
        let frames = self.client.sent();
        let count = frames.len();
        self.server.site.to_take.borrow_mut().extend(frames);
        count
    }

    /// Passes all frames of the server to the client.
    pub(crate) fn carry_answers(&mut self) -> usize {
        let frames = self.server.sent();
        let count = frames.len();
        self.client.site.to_take.borrow_mut().extend(frames);
        count
    }

    pub(crate) fn pass(&mut self, ns: u64) {
        for side in [&self.client, &self.server] {
            side.site.now_ns.set(side.site.now_ns.get() + ns);
        }
    }

    /// Runs both ends as far as possible without advancing the time.
    pub(crate) fn settle(&mut self) {
        for _ in 0..200 {
            self.client.endpoint.run_once();
            self.carry_requests();
            self.server.endpoint.run_once();
            self.carry_answers();
        }
    }

    fn carry_messages(&mut self) {
        let link = LinkId(1);
        for message in self.client.site.posts() {
            match message {
                ToNexus::OpenLink { request, .. } => {
                    let up = |request| FromNexus::LinkUp {
                        request,
                        link,
                        transport: 1,
                        peer: PeerName {
                            address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)),
                            endpoint: EndpointId(0),
                        },
                        incarnation: 1,
                        identity: None,
                        features: LinkFeatures { order: true, ..LinkFeatures::NONE },
                    };
                    self.client.site.say(up(Some(request)));
                    self.server.site.say(up(None));
                }
                ToNexus::OpenSession { link, open } => {
                    let open = SessionOpen { link: 1, ..open };
                    self.server.site.say(FromNexus::SessionProposed { link, open });
                }
                // The machine may have stood still.
                ToNexus::CheckPeer { .. } | ToNexus::LinkUsed { .. } => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
        for message in self.server.site.posts() {
            let ToNexus::AnswerSession { link, request, answer } = message else {
                panic!("unexpected: {message:?}")
            };
            let accept = SessionAccept { link: 1, request, ..answer.unwrap() };
            self.client.site.say(FromNexus::SessionOpened { link, accept });
        }
    }
}
