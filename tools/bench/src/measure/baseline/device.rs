//! Datagrams by AF_XDP, or by DPDK, without a protocol: heads that never change, no UDP checksum, and a copy in and out.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use petrel::endpoint::Device;
use petrel_command::device;
use petrel_command::failure::Failure;
use petrel_transport::device::Nic;
use petrel_transport::device::dpdk::Bare;
use petrel_transport::device::ether::frame::{HEAD_BYTES_V4, MacAddr, Template};
use petrel_transport::device::ether::ways::{NoWay, Ways};
use petrel_transport::device::xdp::Xdp;
use rustix::net::netdevice::name_to_index;

use super::super::veth;
use super::socket::{Joins, Medium};

/// The place of the UDP head's length and checksum.
const LENGTH_AT: usize = HEAD_BYTES_V4 - 4;
const CHECKSUM_AT: usize = HEAD_BYTES_V4 - 2;

/// Looks for the peer's link-layer address, a millisecond apart.
const LOOKS_MAX: u32 = 1_000;

/// A port without a protocol.
pub(in super::super) struct DevicePort<N = Xdp> {
    nic: N,
    /// The head of every frame to the peer.
    head: [u8; HEAD_BYTES_V4],
    /// Bytes of every datagram to the peer.
    bytes: usize,
    /// Whether all datagrams that have arrived are received together.
    is_joining: bool,
    /// Keeps the port.
    _socket: UdpSocket,
}

/// A port of DPDK, which the process has [offered](offer).
pub(in super::super) type BarePort = DevicePort<Bare>;

static OFFERED: Mutex<Option<Bare>> = Mutex::new(None);

/// Offers the device of the next [`BarePort`].
pub(in super::super) fn offer(bare: Bare) {
    *OFFERED.lock().unwrap_or_else(PoisonError::into_inner) = Some(bare);
}

impl Medium for DevicePort {
    fn addresses(_: [IpAddr; 2]) -> [IpAddr; 2] {
        veth::BARE_ADDRESSES.map(Into::into)
    }

    fn open(
        socket: UdpSocket,
        peer: SocketAddr,
        bytes: usize,
        joins: Joins,
    ) -> Result<Self, Failure> {
        let Device::Xdp(device) = device::get() else {
            return Err(Failure::because("the bare device is that of --device"));
        };
        let local = socket.local_addr()?;
        let nic = Xdp::open(&device.config, veth::BARE_DEVICE, socket.as_fd())
            .map_err(Failure::because)?;
        let index = name_to_index(&socket, veth::BARE_DEVICE).map_err(Failure::because)?;
        let ways = &mut Ways::open(index)?;
        let (from_mac, to_mac) = find(ways, &socket, (local, peer))?;
        Self::new(nic, (from_mac, to_mac), (local, peer), (bytes, joins), socket)
    }

    fn send(&mut self, datagrams: &[u8]) -> bool {
        self.send_all(datagrams)
    }

    fn receive(&mut self, datagrams: &mut [u8]) -> Option<usize> {
        self.receive_all(datagrams)
    }
}

impl Medium for BarePort {
    fn open(
        socket: UdpSocket,
        peer: SocketAddr,
        bytes: usize,
        joins: Joins,
    ) -> Result<Self, Failure> {
        let offered = OFFERED.lock().unwrap_or_else(PoisonError::into_inner).take();
        let nic = offered.ok_or_else(|| Failure::because("there is no bare port"))?;
        let local = socket.local_addr()?;
        // The peer looks at no address.
        let macs = (MacAddr([2; 6]), MacAddr([4; 6]));
        Self::new(nic, macs, (local, peer), (bytes, joins), socket)
    }

    fn send(&mut self, datagrams: &[u8]) -> bool {
        self.send_all(datagrams)
    }

    fn receive(&mut self, datagrams: &mut [u8]) -> Option<usize> {
        self.receive_all(datagrams)
    }
}

impl<N: Nic> DevicePort<N> {
    fn new(
        nic: N,
        (from_mac, to_mac): (MacAddr, MacAddr),
        (from, to): (SocketAddr, SocketAddr),
        (bytes, joins): (usize, Joins),
        socket: UdpSocket,
    ) -> Result<Self, Failure> {
        if bytes + HEAD_BYTES_V4 > nic.frame_bytes_max() {
            return Err(Failure::because("a bare message is one frame: choose a smaller --size"));
        }
        let mut frame = vec![0; HEAD_BYTES_V4 + bytes];
        Template::new(from.ip(), to, from_mac, to_mac).write(&mut frame, bytes, from.port(), false);
        frame[CHECKSUM_AT..HEAD_BYTES_V4].fill(0);
        let head = *frame.first_chunk().expect("the head is in the frame");
        let is_joining = matches!(joins, Joins::Received | Joins::Both);
        Ok(Self { nic, head, bytes, is_joining, _socket: socket })
    }

    #[inline]
    fn send_all(&mut self, datagrams: &[u8]) -> bool {
        let has_room = self.nic.has_room(datagrams.len() / self.bytes);
        if has_room {
            for datagram in datagrams.chunks_exact(self.bytes) {
                let frame = self.nic.begin().expect("there is room for all");
                frame[..HEAD_BYTES_V4].copy_from_slice(&self.head);
                frame[HEAD_BYTES_V4..][..self.bytes].copy_from_slice(datagram);
                self.nic.commit(HEAD_BYTES_V4 + self.bytes);
            }
        }
        self.nic.flush();
        has_room
    }

    #[inline]
    fn receive_all(&mut self, datagrams: &mut [u8]) -> Option<usize> {
        let mut taken = 0;
        while let Some(frame) = self.nic.received() {
            let length = usize::from(u16::from_be_bytes([frame[LENGTH_AT], frame[LENGTH_AT + 1]]));
            let payload = frame.get(HEAD_BYTES_V4..LENGTH_AT - 4 + length).unwrap_or_default();
            let Some(room) = datagrams[taken..].get_mut(..payload.len()) else { break };
            room.copy_from_slice(payload);
            taken += payload.len();
            self.nic.release();
            if !self.is_joining {
                break;
            }
        }
        (taken > 0).then_some(taken)
    }
}

/// Returns the addresses of both ends' devices.
fn find(
    ways: &mut Ways,
    socket: &UdpSocket,
    (from, to): (SocketAddr, SocketAddr),
) -> Result<(MacAddr, MacAddr), Failure> {
    for _ in 0..LOOKS_MAX {
        match ways.way_to(Some(from.ip()), to) {
            Ok(way) => return Ok((way.from_mac, way.to_mac)),
            Err(NoWay::Unresolved(_)) => {
                // For any datagram, as for this one to the discard service, the kernel asks for the address.
                let _ = socket.send_to(&[], (to.ip(), 9));
                thread::sleep(Duration::from_millis(1));
            }
            Err(why) => return Err(Failure::because(why)),
        }
    }
    Err(Failure::because("the peer's link-layer address stays unknown"))
}
