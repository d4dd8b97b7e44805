//! Scripts for the control planes of a fabric: an event at one process, and its effect on the peer.

use std::cell::RefCell;
use std::rc::Rc;

use petrel::Status;
use petrel::endpoint::{AllowedTransports, EndpointId, Reason};
use petrel::unstable::control::{ControlPlane, FromNexus, LinkId, ToNexus};
use petrel_proto::control::{SessionAccept, SessionOpen};
use petrel_sim::control::{ControlConfig, ControlNetwork, CrashKind, SimControl};
use petrel_sim::fabric::{Action, FabricConfig, FabricHandle, HostId, SimAddr, Topology};
use petrel_sim::{DataLink, Rng};

const H0: HostId = HostId(0);
const H1: HostId = HostId(1);
const HEARTBEAT_NS: u64 = 5_000_000;

/// Two processes with an endpoint each.
struct Pair {
    fabric: FabricHandle,
    network: ControlNetwork,
    ends: [SimControl; 2],
}

impl Pair {
    fn new() -> Self {
        let topology = Topology::pair(Default::default(), Default::default());
        let fabric = FabricHandle::new(&topology, FabricConfig::default(), 1).unwrap();
        let network = ControlNetwork::new(&fabric, ControlConfig::default(), Rng::new(1));
        network.start_process(H0);
        network.start_process(H1);
        let ends = [attach(&network, H0), attach(&network, H1)];
        Self { fabric, network, ends }
    }

    fn open_link(&self) {
        self.ends[0].post(ToNexus::OpenLink {
            request: 7,
            remote: ControlNetwork::address_of(H1),
            remote_endpoint: EndpointId(0),
            transports: AllowedTransports::UDP,
            reverse: false,
        });
    }

    /// Makes a pair with a link; returns the link's names on both sides.
    fn linked() -> (Self, [LinkId; 2]) {
        let mut pair = Self::new();
        pair.open_link();
        pair.run(2_000_000);
        let links = [0, 1].map(|side| match pair.next(side) {
            Some(FromNexus::LinkUp { request, link, transport, .. }) => {
                assert_eq!(request, (side == 0).then_some(7));
                let (peer, max_frame_bytes) = (data([H1, H0][side]), 1_472);
                assert_eq!(transport, DataLink::Packets { peer, max_frame_bytes });
                link
            }
            other => panic!("expected a link, got {other:?}"),
        });
        (pair, links)
    }

    /// Runs the control plane for a while.
    fn run(&self, duration_ns: u64) {
        let end_ns = self.fabric.now_ns() + duration_ns;
        loop {
            let next_ns = self.network.next_ns().min(end_ns);
            self.fabric.advance(next_ns.saturating_sub(self.fabric.now_ns()));
            self.network.run();
            if next_ns == end_ns {
                return;
            }
        }
    }

    fn next(&mut self, side: usize) -> Option<FromNexus<DataLink>> {
        match self.ends[side].poll() {
            Some(FromNexus::PathMeasured { .. }) => self.next(side),
            message => message,
        }
    }

    #[track_caller]
    fn assert_link_down(&mut self, side: usize, expected: LinkId) {
        match self.next(side) {
            Some(FromNexus::LinkDown { link, reason }) => {
                assert_eq!((link, reason.status), (expected, Status::Unavailable));
            }
            other => panic!("expected the link to end, got {other:?}"),
        }
    }

    #[track_caller]
    fn assert_link_failed(&mut self) {
        match self.next(0) {
            Some(FromNexus::LinkFailed { request: 7, reason }) => {
                assert_eq!(reason.status, Status::Unavailable);
            }
            other => panic!("expected a failure, got {other:?}"),
        }
    }

    fn cut(&self, for_ns: u64) {
        let (from, to) = (vec![H0], vec![H1]);
        self.fabric.apply(Action::Partition { from, to, one_way: false, for_ns });
        self.fabric.advance(1);
    }
}

fn data(host: HostId) -> SimAddr {
    SimAddr::new(host, 1)
}

fn attach(network: &ControlNetwork, host: HostId) -> SimControl {
    network.attach(data(host), EndpointId(0), 1_472, Rng::new(u64::from(host.0)))
}

fn open(request: u32) -> SessionOpen {
    SessionOpen {
        link: 0,
        request,
        session: 4,
        token: 44,
        first_request: 64,
        slots: 8,
        credits: 32,
        max_message: 1 << 20,
        packet_bytes: 1_440,
    }
}

fn accept() -> SessionAccept {
    SessionAccept {
        link: 0,
        request: 0,
        session: 5,
        token: 55,
        slots: 4,
        credits: 16,
        max_message: 1 << 10,
        packet_bytes: 1_208,
    }
}

#[test]
fn session__is_proposed_accepted_and_closed() {
    let (mut pair, [here, there]) = Pair::linked();
    let agreements = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&agreements);
    pair.network.watch(move |agreement| seen.borrow_mut().push(agreement));
    pair.ends[0].post(ToNexus::OpenSession { link: here, open: open(3) });
    pair.run(1_000_000);
    let Some(FromNexus::SessionProposed { link, open }) = pair.next(1) else { panic!() };
    assert_eq!((link, open.request, open.token), (there, 3, 44));
    pair.ends[1].post(ToNexus::AnswerSession { link, request: 3, answer: Ok(accept()) });
    pair.run(1_000_000);
    let Some(FromNexus::SessionOpened { link, accept }) = pair.next(0) else { panic!() };
    assert_eq!((link, accept.request, accept.token, accept.credits), (here, 3, 55, 16));
    let agreement = agreements.borrow()[0];
    assert_eq!((agreement.client, agreement.server), (data(H0), data(H1)));
    pair.ends[1].post(ToNexus::CloseSession {
        link: there,
        peer_session: 4,
        peer_token: 44,
        from_client: false,
        reason: Reason::new(Status::Unavailable, "closed"),
    });
    pair.run(1_000_000);
    let Some(FromNexus::SessionClosed { session, token, from_client, .. }) = pair.next(0) else {
        panic!()
    };
    assert_eq!((session, token, from_client), (4, 44, false));
}

#[test]
fn link__process_killed_is_noticed_at_once() {
    let (mut pair, [here, _]) = Pair::linked();
    pair.network.stop_process(H1, CrashKind::Killed);
    pair.run(1_000_000);
    pair.assert_link_down(0, here);
    pair.open_link();
    pair.run(1_000_000);
    pair.assert_link_failed();
}

#[test]
fn link__power_loss_is_noticed_by_silence() {
    let (mut pair, [here, _]) = Pair::linked();
    pair.fabric.apply(Action::Crash { host: H1, down_ns: u64::MAX });
    pair.network.stop_process(H1, CrashKind::PowerLoss);
    // The last heartbeat may have arrived just before, or almost a heartbeat ago.
    pair.run(HEARTBEAT_NS);
    assert!(pair.next(0).is_none());
    pair.run(3 * HEARTBEAT_NS);
    pair.assert_link_down(0, here);
    assert_eq!(pair.network.stats().silences, 1);
    pair.open_link();
    pair.run(1_000_000);
    assert!(pair.next(0).is_none(), "nobody refuses");
    pair.run(2 * ControlConfig::default().step_timeout_ns);
    pair.assert_link_failed();
}

#[test]
fn link__restarted_process_resets_and_takes_new_links() {
    let (mut pair, [here, _]) = Pair::linked();
    pair.network.stop_process(H1, CrashKind::PowerLoss);
    pair.network.start_process(H1);
    pair.ends[1] = attach(&pair.network, H1);
    pair.run(2 * HEARTBEAT_NS);
    pair.assert_link_down(0, here);
    assert_eq!(pair.network.stats().resets, 1);
    pair.open_link();
    pair.run(2_000_000);
    assert!(matches!(pair.next(0), Some(FromNexus::LinkUp { .. })));
    assert!(matches!(pair.next(1), Some(FromNexus::LinkUp { request: None, .. })));
}

#[test]
fn link__short_partition_delays_long_one_ends() {
    let (mut pair, [here, there]) = Pair::linked();
    pair.cut(HEARTBEAT_NS);
    pair.ends[0].post(ToNexus::OpenSession { link: here, open: open(3) });
    pair.run(HEARTBEAT_NS - 1_000_000);
    assert!(pair.next(1).is_none());
    pair.run(3_000_000);
    assert!(matches!(pair.next(1), Some(FromNexus::SessionProposed { .. })));
    pair.cut(10 * HEARTBEAT_NS);
    pair.ends[0].post(ToNexus::CheckPeer { link: here });
    pair.run(5 * HEARTBEAT_NS);
    pair.assert_link_down(0, here);
    assert!(pair.next(1).is_none(), "its end has not arrived");
    pair.run(6 * HEARTBEAT_NS);
    pair.assert_link_down(1, there);
}

#[test]
fn link__long_pause_is_noticed_by_both() {
    let (mut pair, [here, there]) = Pair::linked();
    pair.fabric.apply(Action::Pause { host: H1, for_ns: 10 * HEARTBEAT_NS });
    pair.run(5 * HEARTBEAT_NS);
    pair.assert_link_down(0, here);
    assert!(pair.next(1).is_none(), "it is paused");
    pair.run(6 * HEARTBEAT_NS);
    pair.assert_link_down(1, there);
}
