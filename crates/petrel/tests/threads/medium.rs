//! A transport and a control plane within one process. They are lossless and not under test: each operation is a single
//! step. Only the waking of an endpoint follows the model's order.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use petrel::endpoint::{EndpointId, Reason};
use petrel::model;
use petrel::unstable::control::{ControlPlane, FromNexus, LinkId, PeerName, ToNexus};
use petrel_proto::Status;
use petrel_proto::control::{LinkFeatures, SessionAccept, SessionOpen};
use petrel_transport::clock::Clock;
use petrel_transport::wake::Waker;
use petrel_transport::{
    FrameHandler, LinkError, NoReturn, PeerId, Transport, TransportStats, TxFrame,
};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread::{self, Thread};

use crate::rng::Rng;

const FRAME_BYTES_MAX: usize = 1_472;

/// The location of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointIndex(pub(crate) usize);

impl EndpointIndex {
    pub(crate) fn address(self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.0 as u16).into()
    }
}

/// The state shared by all endpoints of a world.
#[derive(Clone)]
pub(crate) struct Medium(Arc<Shared>);

struct Shared {
    endpoints: Vec<EndpointState>,
    links: Mutex<Vec<Link>>,
}

#[derive(Default)]
struct EndpointState {
    frames: Mutex<VecDeque<(PeerId, Vec<u8>)>>,
    said: Mutex<VecDeque<FromNexus<EndpointIndex>>>,
    bell: Arc<Bell>,
    is_gone: Mutex<bool>,
}

struct Link {
    ends: [EndpointIndex; 2],
    is_up: bool,
}

/// Wakes one endpoint; remembers the wake-up if the endpoint does not sleep.
#[derive(Default)]
struct Bell {
    rang: AtomicBool,
    sleeper: Mutex<Option<Thread>>,
}

impl Bell {
    fn ring(&self) {
        self.rang.store(true, Ordering::SeqCst);
        let sleeper = self.sleeper.lock().unwrap().clone();
        sleeper.inspect(Thread::unpark);
    }

    fn wait(&self, end_ns: Option<u64>) {
        while !self.rang.swap(false, Ordering::SeqCst) {
            if end_ns.is_some_and(|end_ns| model::now_ns() >= end_ns) {
                return;
            }
            model::park_until(end_ns);
        }
    }
}

impl Medium {
    pub(crate) fn new(endpoints: usize) -> Self {
        let endpoints = (0..endpoints).map(|_| EndpointState::default()).collect();
        Self(Arc::new(Shared { endpoints, links: Mutex::default() }))
    }

    /// Returns the parts of the endpoint at an index; call it on the endpoint's thread.
    pub(crate) fn attach(&self, at: EndpointIndex, seed: u64) -> (Port, Control) {
        *self.endpoint(at).bell.sleeper.lock().unwrap() = Some(thread::current());
        let port = Port { medium: self.clone(), at, burst: Vec::new(), stats: Default::default() };
        (port, Control { medium: self.clone(), at, rng: Rng::new(seed) })
    }

    fn endpoint(&self, at: EndpointIndex) -> &EndpointState {
        &self.0.endpoints[at.0]
    }

    fn say(&self, to: EndpointIndex, message: FromNexus<EndpointIndex>) {
        if *self.endpoint(to).is_gone.lock().unwrap() {
            return;
        }
        self.endpoint(to).said.lock().unwrap().push_back(message);
        self.endpoint(to).bell.ring();
    }

    /// Returns the other end of an active link.
    fn other_end(&self, link: LinkId, of: EndpointIndex) -> Option<EndpointIndex> {
        let links = self.0.links.lock().unwrap();
        let link = links.get(link.0 as usize).filter(|link| link.is_up)?;
        link.ends.into_iter().find(|end| *end != of)
    }

    fn open_link(&self, from: EndpointIndex, request: u64, remote: SocketAddr) {
        let to = EndpointIndex(remote.port().into());
        if *self.endpoint(to).is_gone.lock().unwrap() {
            let reason = Reason::new(Status::Unavailable, "the endpoint is gone");
            return self.say(from, FromNexus::LinkFailed { request, reason });
        }
        let mut links = self.0.links.lock().unwrap();
        let link = LinkId(links.len() as u64);
        links.push(Link { ends: [from, to], is_up: true });
        drop(links);
        let up = |request, transport: EndpointIndex| FromNexus::LinkUp {
            request,
            link,
            transport,
            peer: PeerName {
                address: std::net::SocketAddr::from(([127, 0, 0, 1], 1)),
                endpoint: EndpointId(0),
            },
            incarnation: 1,
            identity: None,
            features: LinkFeatures { order: true, ..LinkFeatures::NONE },
        };
        self.say(from, up(Some(request), to));
        self.say(to, up(None, from));
    }

    fn close_links(&self, of: EndpointIndex, only: Option<LinkId>, reason: &Reason) {
        let mut down = Vec::new();
        for (index, link) in self.0.links.lock().unwrap().iter_mut().enumerate() {
            let id = LinkId(index as u64);
            if link.is_up && link.ends.contains(&of) && only.is_none_or(|only| only == id) {
                link.is_up = false;
                down.extend(link.ends.into_iter().filter(|end| *end != of).map(|end| (end, id)));
            }
        }
        for (end, link) in down {
            self.say(end, FromNexus::LinkDown { link, reason: reason.clone() });
        }
    }
}

/// The transport of an endpoint.
pub(crate) struct Port {
    medium: Medium,
    at: EndpointIndex,
    burst: Vec<(EndpointIndex, Vec<u8>)>,
    stats: TransportStats,
}

impl Transport for Port {
    type Link = EndpointIndex;
    type Return = NoReturn;

    fn now(&self) -> u64 {
        model::now_ns()
    }

    fn clock(&self) -> Clock {
        Clock::of(model::now_ns)
    }

    fn add_peer(&mut self, link: EndpointIndex) -> Result<PeerId, LinkError> {
        Ok(PeerId(link.0 as u32))
    }

    fn remove_peer(&mut self, _peer: PeerId) {}

    fn max_frame_bytes(&self, _peer: PeerId) -> usize {
        FRAME_BYTES_MAX
    }

    #[expect(unsafe_code, reason = "the trait's contract, which copying at once needs nothing of")]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        let frame = TxFrame { peer, head, body };
        assert!(!frame.is_empty() && frame.len() <= FRAME_BYTES_MAX, "{} bytes", frame.len());
        self.stats.tx_frames += 1;
        self.burst.push((EndpointIndex(peer.0 as usize), [head, body].concat()));
        true
    }

    fn flush(&mut self) {
        let from = PeerId(self.at.0 as u32);
        let mut to_wake = Vec::new();
        for (to, frame) in self.burst.drain(..) {
            self.medium.endpoint(to).frames.lock().unwrap().push_back((from, frame));
            if !to_wake.contains(&to) {
                to_wake.push(to);
            }
        }
        to_wake.into_iter().for_each(|to| self.medium.endpoint(to).bell.ring());
    }

    fn may_receive(&self) -> bool {
        !self.medium.endpoint(self.at).frames.lock().unwrap().is_empty()
    }

    fn rx_burst_to<H: FrameHandler<NoReturn>>(&mut self, budget: usize, mut handler: H) -> usize {
        for taken in 0..budget {
            let next = self.medium.endpoint(self.at).frames.lock().unwrap().pop_front();
            let Some((from, frame)) = next else { return taken };
            self.stats.rx_frames += 1;
            handler.handle(from, &frame, None);
        }
        budget
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        let end_ns = timeout_ns.map(|span_ns| model::now_ns().saturating_add(span_ns));
        self.medium.endpoint(self.at).bell.wait(end_ns);
    }

    fn waker(&self) -> Waker {
        let bell = Arc::clone(&self.medium.endpoint(self.at).bell);
        Waker::with_bell(move || bell.ring()).expect("a descriptor for an eventfd")
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}

/// The control plane of an endpoint.
pub(crate) struct Control {
    medium: Medium,
    at: EndpointIndex,
    rng: Rng,
}

impl ControlPlane<EndpointIndex> for Control {
    fn post(&self, message: ToNexus) {
        let (medium, from) = (&self.medium, self.at);
        let notify = |link, message| {
            if let Some(to) = medium.other_end(link, from) {
                medium.say(to, message);
            }
        };
        match message {
            ToNexus::OpenLink { request, remote, .. } => medium.open_link(from, request, remote),
            ToNexus::OpenSession { link, open } => {
                let open = SessionOpen { link: link.0 as u32, ..open };
                notify(link, FromNexus::SessionProposed { link, open });
            }
            ToNexus::AnswerSession { link, request, answer: Ok(accept) } => {
                let accept = SessionAccept { link: link.0 as u32, request, ..accept };
                notify(link, FromNexus::SessionOpened { link, accept });
            }
            ToNexus::AnswerSession { link, request, answer: Err(reason) } => {
                notify(link, FromNexus::SessionRefused { link, request, reason });
            }
            ToNexus::CloseSession { link, peer_session, peer_token, from_client, reason } => {
                let (session, token) = (peer_session, peer_token);
                let closed = FromNexus::SessionClosed { link, session, token, from_client, reason };
                notify(link, closed);
            }
            ToNexus::CloseLink { link, reason } => medium.close_links(from, Some(link), &reason),
            ToNexus::Gone => {
                *medium.endpoint(from).is_gone.lock().unwrap() = true;
                let reason = Reason::new(Status::Unavailable, "the peer's endpoint is gone");
                medium.close_links(from, None, &reason);
            }
            // A process that has ended says so itself.
            ToNexus::SessionEnded { .. } | ToNexus::CheckPeer { .. } | ToNexus::LinkUsed { .. } => {
            }
            other => panic!("no world needs {other:?}"),
        }
    }

    fn poll(&mut self) -> Option<FromNexus<EndpointIndex>> {
        self.medium.endpoint(self.at).said.lock().unwrap().pop_front()
    }

    fn endpoint_id(&self) -> EndpointId {
        EndpointId(0)
    }

    fn random(&mut self) -> u64 {
        self.rng.next()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.post(ToNexus::Gone);
    }
}
