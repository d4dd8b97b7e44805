//! Datagrams by AF_XDP without a protocol: heads that never change, no UDP checksum, and a copy in and out.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use petrel::endpoint::Device;
use petrel_command::device;
use petrel_command::failure::Failure;
use petrel_transport::device::Nic;
use petrel_transport::device::ether::frame::{HEAD_BYTES_V4, Template};
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

/// A port of one end's veth device, whose other end is the peer's.
pub(in super::super) struct DevicePort {
    nic: Xdp,
    /// The head of every frame to the peer.
    head: [u8; HEAD_BYTES_V4],
    /// Bytes of every datagram to the peer.
    bytes: usize,
    /// Keeps the port.
    _socket: UdpSocket,
}

impl Medium for DevicePort {
    fn addresses(_: [IpAddr; 2]) -> [IpAddr; 2] {
        veth::BARE_ADDRESSES.map(Into::into)
    }

    fn open(socket: UdpSocket, peer: SocketAddr, bytes: usize, _: Joins) -> Result<Self, Failure> {
        let Device::Xdp(device) = device::get() else {
            return Err(Failure::because("the bare device is that of --device"));
        };
        let local = socket.local_addr()?;
        let nic = Xdp::open(&device.config, veth::BARE_DEVICE, socket.as_fd())
            .map_err(Failure::because)?;
        let index = name_to_index(&socket, veth::BARE_DEVICE).map_err(Failure::because)?;
        let head = head(&mut Ways::open(index)?, &socket, (local, peer), bytes)?;
        match bytes + HEAD_BYTES_V4 <= nic.frame_bytes_max() {
            true => Ok(Self { nic, head, bytes, _socket: socket }),
            false => Err(Failure::because("a bare message is one frame: choose a smaller --size")),
        }
    }

    #[inline]
    fn send(&mut self, datagrams: &[u8]) -> bool {
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
    fn receive(&mut self, datagrams: &mut [u8]) -> Option<usize> {
        let frame = self.nic.received()?;
        let length = usize::from(u16::from_be_bytes([frame[LENGTH_AT], frame[LENGTH_AT + 1]]));
        let payload = frame.get(HEAD_BYTES_V4..LENGTH_AT - 4 + length);
        let bytes = payload.map(|payload| {
            datagrams[..payload.len()].copy_from_slice(payload);
            payload.len()
        });
        self.nic.release();
        bytes
    }
}

/// Returns the head of frames with `bytes` bytes of payload.
fn head(
    ways: &mut Ways,
    socket: &UdpSocket,
    (from, to): (SocketAddr, SocketAddr),
    bytes: usize,
) -> Result<[u8; HEAD_BYTES_V4], Failure> {
    for _ in 0..LOOKS_MAX {
        match ways.way_to(Some(from.ip()), to) {
            Ok(way) => {
                let template = Template::new(from.ip(), to, way.from_mac, way.to_mac);
                let mut frame = vec![0; HEAD_BYTES_V4 + bytes];
                template.write(&mut frame, bytes, from.port(), false);
                frame[CHECKSUM_AT..HEAD_BYTES_V4].fill(0);
                return Ok(*frame.first_chunk().expect("the head is in the frame"));
            }
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
