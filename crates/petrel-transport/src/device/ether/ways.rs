//! The ways from a device to peers: routes, neighbours and the state of the link, as the kernel has them (RFC 826, RFC 4861).
//!
//! The kernel resolves neighbours and keeps them fresh. Datagrams of a peer without a way go by the kernel's socket, which makes the kernel
//! resolve. The kernel's rules for packets (nftables, IPsec) do not see frames that a device sends.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use petrel_planted::planted;
use rustix::io::Errno;
use thiserror::Error;

use super::frame::MacAddr;
use super::netlink::{Message, Request, Socket, attributes, half_at, messages, word_at};

/// Groups of events: links, neighbours, and all that decides about routes.
const GROUPS: u32 = (libc::RTMGRP_LINK
    | libc::RTMGRP_NEIGH
    | libc::RTMGRP_IPV4_IFADDR
    | libc::RTMGRP_IPV4_ROUTE
    | libc::RTMGRP_IPV4_RULE
    | libc::RTMGRP_IPV6_IFADDR
    | libc::RTMGRP_IPV6_ROUTE) as u32
    | GROUP_IPV6_RULE
    | GROUP_NEXT_HOP;

// `linux/rtnetlink.h`; libc lacks these.
const GROUP_IPV6_RULE: u32 = 1 << 18;
const GROUP_NEXT_HOP: u32 = 1 << 31;
const RTA_NEWDST: u16 = 19;
const RTA_IP_PROTO: u16 = 27;
const RTA_DPORT: u16 = 29;
const RTAX_MTU: u16 = 2;

/// Bytes of the structures before the attributes.
const LINK_BYTES: usize = 16;
const ROUTE_BYTES: usize = 12;
const NEIGHBOUR_BYTES: usize = 12;

/// States in which a neighbour's address is used.
const USABLE: u16 =
    libc::NUD_REACHABLE | libc::NUD_STALE | libc::NUD_DELAY | libc::NUD_PROBE | libc::NUD_PERMANENT;

/// A neighbour for which this host answers, not an address to send to (`NTF_PROXY`).
const PROXY: u8 = 0x08;

/// Most events that a call reads, to bound the time of the call; further events wait.
const EVENTS_MAX: usize = 256;

/// Most neighbours that are listed, as long as lists are cheaper than new questions.
const NEIGHBOURS_MAX: usize = 64;

/// The way from a device to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The device's address.
    pub from_mac: MacAddr,
    /// The next hop's address.
    pub to_mac: MacAddr,
    /// The address from which the kernel would send.
    pub from_ip: IpAddr,
    /// The gateway, or the peer itself.
    pub next_hop: IpAddr,
    /// Most bytes of an IP packet.
    pub mtu_bytes: usize,
}

/// The reason why a device cannot send to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NoWay {
    /// Another device has the route.
    #[error("the route leaves by another device, of index {0}")]
    OtherDevice(u32),
    /// The peer is on this host.
    #[error("the address is one of this host")]
    Local,
    /// Not the address of a single host.
    #[error("the address is not of a single host")]
    NotUnicast,
    /// Packets on this route get another head than Ethernet's, which only the kernel writes.
    #[error("the route encapsulates packets")]
    Encapsulated,
    /// IPv4 by a gateway with an IPv6 address.
    #[error("the gateway's address is of another family")]
    OtherFamily,
    /// The kernel has no link-layer address of this next hop yet.
    #[error("the next hop {0} is not resolved")]
    Unresolved(IpAddr),
    /// The kernel has no route, or cannot tell.
    #[error("the kernel has no way: {0}")]
    Refused(Errno),
}

/// The state of a device's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Frames can be sent.
    Up,
    /// The device is set down, or has no carrier.
    Down,
    /// The device was deleted, or moved to another namespace, and does not come back.
    Gone,
}

/// A neighbour of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its IP address: a next hop.
    pub ip: IpAddr,
    /// Its link-layer address, as long as the kernel uses one.
    pub mac: Option<MacAddr>,
}

/// Events that the kernel has told. Answers to later questions are newer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Whether any way may have changed, those by unlisted neighbours included: routes, addresses, the device's own address, its MTU and its
    /// link decide about ways. So do events that were lost.
    pub must_ask_again: bool,
    /// Neighbours with an event, each once, as the last one has it. Many events are of an unchanged address.
    pub neighbours: Vec<Neighbour>,
    /// The state of the link after all events.
    pub link: Link,
}

/// Asks the kernel for the ways of a device, and hears of their changes.
///
/// A way takes two questions, 7 µs in all. They may wait for another process that changes the network of the host.
#[derive(Debug)]
pub struct Ways {
    requests: Socket,
    events: Socket,
    /// Whether events were lost. Those that wait since before are older than any answer, until none waits.
    has_lost: bool,
    device: Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    index: u32,
    mac: MacAddr,
    mtu_bytes: usize,
    link: Link,
}

impl Ways {
    /// Asks for the ways of a device in the thread's network namespace.
    ///
    /// # Errors
    /// There is no such device, or the device is not of Ethernet.
    pub fn open(index: u32) -> io::Result<Self> {
        // The subscription comes first: no change is missed after the first answer.
        let (requests, events) = (Socket::open(0)?, Socket::open(GROUPS)?);
        let none = Device { index, mac: MacAddr([0; 6]), mtu_bytes: 0, link: Link::Down };
        let mut ways = Self { requests, events, has_lost: false, device: none };
        let body = ways.ask_for_link()?;
        if half_at(&body, 2) != libc::ARPHRD_ETHER {
            return Err(io::Error::other(format!("device {index} is not of Ethernet")));
        }
        ways.device.hear_link(&body);
        Ok(ways)
    }

    /// Readable when [`Ways::read_events`] has something to read.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// The state of the link, as of the last events that were read.
    pub fn link(&self) -> Link {
        self.device.link
    }

    /// Returns the way to a peer, for datagrams from an address of this host if one is given.
    ///
    /// # Errors
    /// The kernel would not send by this device, or not yet.
    pub fn way_to(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Way, NoWay> {
        let from = from.map(|from| from.to_canonical()).filter(|from| !from.is_unspecified());
        let route = self.route_to(from, to)?;
        let to_mac = self.mac_of(route.next_hop)?.ok_or(NoWay::Unresolved(route.next_hop))?;
        let Device { mac: from_mac, mtu_bytes, .. } = self.device;
        let mtu_bytes = route.mtu_bytes.map_or(mtu_bytes, |bytes| bytes.min(mtu_bytes));
        let Route { from_ip, next_hop, .. } = route;
        Ok(Way { from_mac, to_mac, from_ip, next_hop, mtu_bytes })
    }

    /// Reads the kernel's events.
    pub fn read_events(&mut self) -> Changes {
        let mut changes =
            Changes { must_ask_again: false, neighbours: Vec::new(), link: Link::Down };
        let mut is_drained = false;
        for _ in 0..EVENTS_MAX {
            match self.events.read() {
                Ok(datagram) => messages(datagram).for_each(|m| changes.hear(m, &mut self.device)),
                Err(Errno::AGAIN) => {
                    is_drained = true;
                    break;
                }
                Err(_) => self.has_lost = true,
            }
        }
        if self.has_lost {
            changes.must_ask_again = true;
            changes.neighbours.clear();
            match self.ask_for_link() {
                Ok(body) => drop(self.device.hear_link(&body)),
                Err(Errno::NODEV) => self.device.link = Link::Gone,
                Err(_) => self.device.link = Link::Down,
            }
            self.has_lost = !is_drained;
        }
        changes.link = self.device.link;
        changes
    }

    fn ask_for_link(&mut self) -> Result<Vec<u8>, Errno> {
        let mut link = [0; LINK_BYTES];
        link[4..8].copy_from_slice(&self.device.index.to_ne_bytes());
        self.requests.ask(Request::new(libc::RTM_GETLINK, &link))
    }

    fn route_to(&mut self, from: Option<IpAddr>, to: SocketAddr) -> Result<Route, NoWay> {
        let ip = to.ip().to_canonical();
        if ip.is_multicast() {
            return Err(NoWay::NotUnicast);
        }
        let bits = if ip.is_ipv6() { 128 } else { 32 };
        let mut route = [0; ROUTE_BYTES];
        [route[0], route[1]] = [family_of(ip), bits];
        route[2] = if from.is_some() { bits } else { 0 };
        let mut request = Request::new(libc::RTM_GETROUTE, &route)
            .with(libc::RTA_DST, &octets(ip))
            .with(RTA_IP_PROTO, &[libc::IPPROTO_UDP as u8])
            .with(RTA_DPORT, &to.port().to_be_bytes());
        if let Some(from) = from {
            request = request.with(libc::RTA_SRC, &octets(from));
        }
        if let SocketAddr::V6(v6) = to
            && v6.ip().is_unicast_link_local()
        {
            request = request.with(libc::RTA_OIF, &v6.scope_id().to_ne_bytes());
        }
        let answer = self.requests.ask(request).map_err(NoWay::Refused)?;
        Route::parse(&answer, self.device.index, from, ip)
    }

    /// Returns the link-layer address of a next hop, if the kernel has one. The request for a single neighbour needs Linux 5.0.
    fn mac_of(&mut self, ip: IpAddr) -> Result<Option<MacAddr>, NoWay> {
        let mut neighbour = [0; NEIGHBOUR_BYTES];
        neighbour[0] = family_of(ip);
        neighbour[4..8].copy_from_slice(&self.device.index.to_ne_bytes());
        let request = Request::new(libc::RTM_GETNEIGH, &neighbour).with(libc::NDA_DST, &octets(ip));
        match self.requests.ask(request) {
            Ok(answer) => Ok(Neighbour::parse(&answer).and_then(|found| found.mac)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(NoWay::Refused(error)),
        }
    }
}

impl Device {
    /// Takes an event about a link. Returns true if the device's own state has changed.
    fn hear_link(&mut self, body: &[u8]) -> bool {
        let before = *self;
        let flags = word_at(body, 8) as i32;
        let needed = libc::IFF_UP | libc::IFF_LOWER_UP;
        self.link = if flags & needed == needed { Link::Up } else { Link::Down };
        for (kind, value) in attributes(body, LINK_BYTES) {
            match (kind, value.try_into()) {
                (libc::IFLA_ADDRESS, Ok(mac)) => self.mac = MacAddr(mac),
                (libc::IFLA_MTU, _) => self.mtu_bytes = word_at(value, 0) as usize,
                _ => (),
            }
        }
        *self != before
    }
}

impl Changes {
    fn hear(&mut self, Message { kind, body, .. }: Message<'_>, device: &mut Device) {
        // Bridges report their ports and stations by messages of the same kinds, in a family of their own.
        let family = i32::from(body.first().copied().unwrap_or_default());
        let is_own = word_at(body, 4) == device.index;
        match kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK if family != libc::AF_UNSPEC || !is_own => (),
            libc::RTM_DELLINK => device.link = Link::Gone,
            libc::RTM_NEWLINK if device.link == Link::Gone => (),
            libc::RTM_NEWLINK => self.must_ask_again |= device.hear_link(body),
            libc::RTM_NEWNEIGH | libc::RTM_DELNEIGH => {
                if let Some(neighbour) = Neighbour::parse(body).filter(|_| is_own) {
                    let is_kept = kind == libc::RTM_NEWNEIGH;
                    self.list(Neighbour { mac: neighbour.mac.filter(|_| is_kept), ..neighbour });
                }
            }
            // Exceptions of single destinations are no change of a route.
            libc::RTM_NEWROUTE | libc::RTM_DELROUTE
                if word_at(body, 8) & libc::RTM_F_CLONED != 0 => {}
            _ => self.must_ask_again = true,
        }
    }

    fn list(&mut self, neighbour: Neighbour) {
        if planted("ether_stale_neighbour_kept") {
            return;
        }
        self.neighbours.retain(|other| other.ip != neighbour.ip);
        if self.neighbours.len() < NEIGHBOURS_MAX {
            self.neighbours.push(neighbour);
        } else {
            self.must_ask_again = true;
        }
    }
}

impl Neighbour {
    fn parse(body: &[u8]) -> Option<Self> {
        let is_proxy = body.get(10)? & PROXY != 0;
        let is_usable = half_at(body, 8) & USABLE != 0;
        let (mut ip, mut mac) = (None, None);
        for (kind, value) in attributes(body, NEIGHBOUR_BYTES) {
            match kind {
                libc::NDA_DST => ip = address(value),
                libc::NDA_LLADDR => mac = value.try_into().ok().map(MacAddr),
                _ => (),
            }
        }
        let ip = ip.filter(|ip| body[0] == family_of(*ip) && !is_proxy)?;
        Some(Self { ip, mac: mac.filter(|_| is_usable) })
    }
}

struct Route {
    from_ip: IpAddr,
    next_hop: IpAddr,
    mtu_bytes: Option<usize>,
}

impl Route {
    /// Reads the route from `from` to `to`, which has to leave by the device of this index.
    fn parse(body: &[u8], index: u32, from: Option<IpAddr>, to: IpAddr) -> Result<Self, NoWay> {
        match body.get(7).copied() {
            Some(libc::RTN_UNICAST) => (),
            Some(libc::RTN_LOCAL) => return Err(NoWay::Local),
            _ => return Err(NoWay::NotUnicast),
        }
        let (mut from_ip, mut next_hop, mut mtu_bytes, mut device) = (from, to, None, 0);
        for (kind, value) in attributes(body, ROUTE_BYTES) {
            match kind {
                libc::RTA_OIF => device = word_at(value, 0),
                libc::RTA_GATEWAY => next_hop = address(value).unwrap_or(to),
                libc::RTA_PREFSRC => from_ip = from_ip.or(address(value)),
                libc::RTA_VIA => return Err(NoWay::OtherFamily),
                libc::RTA_ENCAP | libc::RTA_ENCAP_TYPE | RTA_NEWDST => {
                    return Err(NoWay::Encapsulated);
                }
                libc::RTA_METRICS => {
                    let mtu = attributes(value, 0).find(|(kind, _)| *kind == RTAX_MTU);
                    mtu_bytes = mtu.map(|(_, value)| word_at(value, 0) as usize);
                }
                _ => (),
            }
        }
        if device != index {
            return Err(NoWay::OtherDevice(device));
        }
        let from_ip = from_ip.ok_or(NoWay::Refused(Errno::ADDRNOTAVAIL))?;
        Ok(Self { from_ip, next_hop, mtu_bytes })
    }
}

fn family_of(ip: IpAddr) -> u8 {
    (if ip.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET }) as u8
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

/// Reads the value of an attribute with an IP address of either family.
fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    <[u8; 16]>::try_from(value).ok().map(IpAddr::from).or_else(v4)
}
