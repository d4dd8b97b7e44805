//! Shared memory to processes of this host, an RDMA card or UDP to remote hosts, and TCP streams where no datagrams get through, as
//! one transport: an endpoint's default.

use crate::far::Far;
use crate::mux::{Mux, MuxLink};
use crate::shm::{Shm, ShmConfig, ShmError, ShmLink};
use crate::stream::StreamLink;
use crate::udp::{Device, DeviceState, Udp, UdpConfig, UdpError, UdpLink};
use crate::verbs::{Verbs, VerbsLink};
use crate::wake::Waker;

/// The bit of peers that are reached through shared memory.
const SHM_BIT: u32 = 31;

/// Settings of a [`Host`].
#[derive(Clone, Debug, Default)]
pub struct HostConfig {
    /// The data port, and the device beside: an RDMA card, too.
    pub udp: UdpConfig,
    /// True for a host without a data port.
    pub is_without_udp: bool,
    /// Sizes and limits of rings.
    pub shm: ShmConfig,
}

/// Why a [`Host`] could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The data port cannot be used.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// The settings for shared memory are impossible.
    #[error(transparent)]
    Shm(#[from] ShmError),
}

/// Shared memory, UDP, streams and an RDMA card as one transport.
pub type Host = Mux<Shm, Far, SHM_BIT>;

/// How a peer of a [`Host`] is reached.
pub type HostLink = MuxLink<ShmLink, MuxLink<UdpLink, MuxLink<StreamLink, VerbsLink>>>;

impl From<UdpLink> for HostLink {
    fn from(link: UdpLink) -> Self {
        MuxLink::Far(link.into())
    }
}

impl From<StreamLink> for HostLink {
    fn from(link: StreamLink) -> Self {
        MuxLink::Far(MuxLink::Far(MuxLink::Near(link)))
    }
}

impl From<VerbsLink> for HostLink {
    fn from(link: VerbsLink) -> Self {
        MuxLink::Far(MuxLink::Far(MuxLink::Far(link)))
    }
}

/// A further medium beside a [`Host`], or beside a `Mux` with one.
impl<A: From<UdpLink>, B> From<UdpLink> for MuxLink<A, B> {
    fn from(link: UdpLink) -> Self {
        MuxLink::Near(link.into())
    }
}

/// A further medium beside a [`Host`].
impl<A: From<StreamLink>, B> From<StreamLink> for MuxLink<A, B> {
    fn from(link: StreamLink) -> Self {
        MuxLink::Near(link.into())
    }
}

/// A [`HostLink`] is one of these.
impl<A: From<ShmLink>, B> From<ShmLink> for MuxLink<A, B> {
    fn from(link: ShmLink) -> Self {
        MuxLink::Near(link.into())
    }
}

impl Host {
    /// Opens the data port. Shared memory and streams need nothing until the first link.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn new(config: HostConfig) -> Result<Self, HostError> {
        let waker = Waker::new().map_err(UdpError::Io)?;
        let card = match &config.udp.device {
            Some(Device::Verbs(device)) => {
                let opened = Verbs::open(&device.config, waker.clone());
                let opened = opened.map_err(|why| why.to_string());
                if let (Err(why), true) = (&opened, device.is_required) {
                    return Err(UdpError::Device(why.clone()).into());
                }
                Some(opened)
            }
            _ => None,
        };
        Self::beside(card, config, waker)
    }

    /// Opens the data port beside an RDMA card, or the reason why there is none, if one was asked for. The card shares `waker`.
    ///
    /// # Errors
    /// See [`HostError`].
    pub fn beside(
        card: Option<Result<Verbs, String>>,
        config: HostConfig,
        waker: Waker,
    ) -> Result<Self, HostError> {
        config.shm.validate()?;
        let udp = match config.is_without_udp {
            true => Udp::without_port(waker.clone())?,
            false => Udp::bind_with_waker(config.udp, waker.clone())?,
        };
        let far = Far::new(udp, card, waker.clone());
        Ok(Self::of(Shm::new(&config.shm, waker.clone()), far, waker))
    }

    /// The UDP part: its address and the options the kernel granted.
    pub fn udp(&self) -> &Udp {
        self.far().udp()
    }

    /// The use of the device in the settings; `None` without one.
    pub fn device(&self) -> Option<DeviceState> {
        match self.far().card() {
            None => self.udp().device(),
            Some(Ok(card)) => Some(DeviceState::On(card.card().to_owned())),
            Some(Err(why)) => Some(DeviceState::Off(why.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::{self, End, Harness, Medium, Star};
    use crate::shm::{Segment, Side};
    use crate::stream::STREAM_FRAME_BYTES;
    use crate::verbs::{VerbsConfig, detached};
    use crate::{PeerId, ReceiveQueue, Transport, TxFrame};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    fn host() -> Host {
        Host::new(HostConfig::default()).unwrap()
    }

    fn link_by_udp(a: &mut Host, b: &mut Host) -> (PeerId, PeerId) {
        let to = |host: &Host| HostLink::from(UdpLink::to(host.udp().local_addr()));
        (a.add_peer(to(b)).unwrap(), b.add_peer(to(a)).unwrap())
    }

    fn link_by_shm(a: &mut Host, b: &mut Host) -> (PeerId, PeerId) {
        let (bell_a, bell_b) = UnixStream::pair().unwrap();
        let segment = Segment::create(&ShmConfig::default()).unwrap();
        let opened = Segment::from_fd(segment.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let link_a = ShmLink::new(segment, Side::Creator, bell_a);
        let link_b = ShmLink::new(opened, Side::Opener, bell_b);
        (a.add_peer(HostLink::Near(link_a)).unwrap(), b.add_peer(HostLink::Near(link_b)).unwrap())
    }

    fn link_by_stream(a: &mut Host, b: &mut Host) -> (PeerId, PeerId) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let [one, other] = [one, listener.accept().unwrap().0]
            .map(|socket| StreamLink::new(socket, STREAM_FRAME_BYTES, Vec::new()).unwrap());
        (a.add_peer(one.into()).unwrap(), b.add_peer(other.into()).unwrap())
    }

    fn host_with_card() -> Host {
        let waker = Waker::new().unwrap();
        let card = detached::open(&VerbsConfig::default(), waker.clone()).unwrap();
        Host::beside(Some(Ok(card)), HostConfig::default(), waker).unwrap()
    }

    fn link_by_card(a: &mut Host, b: &mut Host) -> (PeerId, PeerId) {
        let to = |host: &Host| {
            let card = host.far().card().unwrap().unwrap();
            let (address, max_frame) = (card.address(), card.frame_bytes());
            HostLink::from(VerbsLink { address, max_frame, ecn: false })
        };
        let (to_b, to_a) = (a.add_peer(to(b)).unwrap(), b.add_peer(to(a)).unwrap());
        for host in [a, b] {
            host.far_mut().settle();
        }
        (to_b, to_a)
    }

    type LinkUp = fn(&mut Host, &mut Host) -> (PeerId, PeerId);

    /// A hub and two leaves, linked by the two given functions.
    struct Linked(fn() -> Host, [LinkUp; 2]);

    impl Harness for Linked {
        type T = Host;

        fn medium(&self) -> Medium {
            Medium::lossy_when_full().with_capacity(70_000)
        }

        fn star(&mut self) -> Star<Host> {
            let mut hub = self.0();
            let mut leaf = |link_up: LinkUp| {
                let mut transport = self.0();
                let (to_leaf, peer) = link_up(&mut hub, &mut transport);
                (to_leaf, End { transport, peer })
            };
            let [(to_first, first), (to_second, second)] = self.1.map(&mut leaf);
            Star { hub, peers: [to_first, to_second], leaves: [first, second] }
        }
    }

    fn conforms(links: [LinkUp; 2]) {
        conforms_of(host, links);
    }

    fn conforms_of(make: fn() -> Host, links: [LinkUp; 2]) {
        conformance::run_all(&mut Linked(make, links));
        conformance::run_threaded(&mut Linked(make, links));
    }

    #[test]
    fn conformance__by_card() {
        conforms_of(host_with_card, [link_by_card, link_by_card]);
        conforms_of(host_with_card, [link_by_card, link_by_udp]);
        conforms_of(host_with_card, [link_by_stream, link_by_card]);
    }

    #[test]
    fn conformance__by_udp() {
        conforms([link_by_udp, link_by_udp]);
    }

    #[test]
    fn conformance__by_shm() {
        conforms([link_by_shm, link_by_shm]);
    }

    #[test]
    fn conformance__by_stream() {
        conforms([link_by_stream, link_by_stream]);
    }

    #[test]
    fn conformance__by_two() {
        conforms([link_by_udp, link_by_shm]);
        conforms([link_by_shm, link_by_udp]);
        conforms([link_by_stream, link_by_shm]);
        conforms([link_by_udp, link_by_stream]);
    }

    #[test]
    fn medium_of__is_that_of_the_link() {
        let (mut a, mut b) = (host_with_card(), host_with_card());
        for (link_up, medium, is_networked) in [
            (link_by_udp as LinkUp, "udp", true),
            (link_by_shm, "shm", false),
            (link_by_stream, "stream", false),
            (link_by_card, "verbs", true),
        ] {
            let (peer, _) = link_up(&mut a, &mut b);
            assert_eq!((a.medium_of(peer), a.is_networked(peer)), (medium, is_networked));
            assert_eq!(Host::is_near(peer), medium == "shm");
        }
        assert_eq!(a.receive_queue(), Some(ReceiveQueue::Ring(1_024)));
        assert_eq!(host().receive_queue(), a.udp().receive_queue());
    }

    #[test]
    fn take_broken__names_the_peer_of_the_host() {
        let (mut a, mut b) = (host(), host());
        let (peer, other) = link_by_stream(&mut a, &mut b);
        b.remove_peer(other);
        let (broken, why) = loop {
            a.rx_burst(24, |_, _| {});
            if let Some(broken) = a.take_broken() {
                break broken;
            }
        };
        assert_eq!((broken, why.as_str()), (peer, "the peer has closed the connection"));
    }

    #[test]
    fn wait__is_not_ended_by_strangers_while_there_is_no_udp_peer() {
        let (mut a, mut b) = (host(), host());
        let (to_b, _) = link_by_shm(&mut a, &mut b);
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(b"\x1Ahello", b.udp().local_addr()).unwrap();
        assert_eq!(b.rx_burst(64, |_, _| panic!("a stranger was heard")), 0);
        assert_eq!(b.stats().rx_syscalls, 0);
        a.tx_burst(&[TxFrame { peer: to_b, head: b"\x1Aframe", body: b"" }]);
        b.wait(None);
        assert_eq!(b.rx_burst(64, |peer, _| assert!(Host::is_near(peer))), 1);
    }

    /// A datagram is not forgotten while each call finds frames in a ring.
    #[test]
    fn rx_burst__looks_at_the_socket_every_eighth_time_while_rings_are_busy() {
        let (mut hub, mut near, mut far) = (host(), host(), host());
        let (_, near_peer) = link_by_shm(&mut hub, &mut near);
        let (from_far, far_peer) = link_by_udp(&mut hub, &mut far);
        let by_ring = TxFrame { peer: near_peer, head: b"\x1Aring", body: b"" };
        near.tx_burst(&[by_ring]);
        assert_eq!(hub.rx_burst(64, |_, _| {}), 1);
        far.tx_burst(&[TxFrame { peer: far_peer, head: b"\x1Afar", body: b"" }]);
        let mut calls_until_heard = 0;
        let mut is_heard = false;
        while !is_heard {
            near.tx_burst(&[by_ring]);
            hub.rx_burst(64, |peer, _| is_heard |= peer == from_far);
            calls_until_heard += 1;
            assert!(is_heard || calls_until_heard < 1_000_000, "the datagram is forgotten");
        }
        assert!(calls_until_heard >= 8, "the socket was looked at in call {calls_until_heard}");
    }

    #[test]
    fn rx_burst__after_a_wait_looks_at_both() {
        let (mut hub, mut near, mut far) = (host(), host(), host());
        let (from_near, near_peer) = link_by_shm(&mut hub, &mut near);
        let (from_far, far_peer) = link_by_udp(&mut hub, &mut far);
        for _ in 0..100 {
            near.tx_burst(&[TxFrame { peer: near_peer, head: b"\x1Aring", body: b"" }]);
            hub.wait(None);
            assert_eq!(hub.rx_burst(64, |peer, _| assert_eq!(peer, from_near)), 1);
            far.tx_burst(&[TxFrame { peer: far_peer, head: b"\x1Afar", body: b"" }]);
            hub.wait(None);
            assert_eq!(hub.rx_burst(64, |peer, _| assert_eq!(peer, from_far)), 1);
        }
    }

    #[test]
    fn rx_burst__shares_one_budget() {
        let (mut hub, mut near, mut far) = (host(), host(), host());
        let (_, near_peer) = link_by_shm(&mut hub, &mut near);
        let (_, far_peer) = link_by_udp(&mut hub, &mut far);
        // Too large to share a datagram; datagrams are delivered whole.
        let large = [0x1A; 3000];
        let to = |peer| TxFrame { peer, head: &large, body: b"" };
        assert_eq!(near.tx_burst(&[to(near_peer); 30]), 0);
        assert_eq!(far.tx_burst(&[to(far_peer); 20]), 0);
        let mut delivered = 0;
        while delivered < 50 {
            let count = hub.rx_burst(10, |_, _| {});
            assert!(count <= 10, "{count} frames at a budget of 10");
            delivered += count;
        }
    }
}
