//! Two hosts that an Ethernet device joins: the test's thread has `near`, the other host `far`.

use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use petrel_netns::{Host, ip};
use petrel_skip::{Need, skip};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::device::ether::frame::MacAddr;

pub(super) const NEAR: [&str; 2] = ["10.9.0.1", "fd09::1"];
pub(super) const FAR: [&str; 2] = ["10.9.0.2", "fd09::2"];
pub(super) const NEAR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const FAR_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// How long a busy machine may take.
pub(super) const TIME_MAX: Duration = Duration::from_secs(30);

/// Runs a test on a thread of the near host.
pub(super) fn between_hosts(test: fn(&Host)) {
    let inside = move || match petrel_netns::leave().and_then(|()| Host::new()) {
        Err(why) => skip(Need::Namespaces, why),
        Ok(host) => {
            join(&host);
            test(&host);
        }
    };
    if let Err(panic) = thread::spawn(inside).join() {
        resume_unwind(panic);
    }
}

fn join(host: &Host) {
    host.join("near", "far").unwrap();
    let of = |device: &str, mac: MacAddr, [v4, v6]: [&str; 2]| {
        [
            format!("link set {device} address {mac:?}"),
            format!("address add {v4}/24 brd + dev {device}"),
            format!("address add {v6}/64 dev {device} nodad"),
            format!("link set {device} up"),
            "link set lo up".to_owned(),
        ]
    };
    for arguments in of("near", NEAR_MAC, NEAR) {
        ip(&arguments).unwrap();
    }
    for arguments in of("far", FAR_MAC, FAR) {
        far_ip(host, &arguments);
    }
}

/// Runs `ip` on the far host.
pub(super) fn far_ip(host: &Host, arguments: &str) {
    host.run("ip", &arguments.split(' ').collect::<Vec<_>>(), "").unwrap();
}

/// A socket of the far host's kernel.
pub(super) fn far_socket(host: &Host, ip: &'static str) -> UdpSocket {
    let socket = host.spawn(move || UdpSocket::bind((ip, 0)).unwrap()).join().unwrap();
    socket.set_read_timeout(Some(TIME_MAX)).unwrap();
    socket
}

pub(super) fn index_of(device: &str) -> u32 {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    rustix::net::netdevice::name_to_index(socket, device).unwrap()
}

/// All frames of a device.
pub(crate) struct Raw(Socket);

impl Raw {
    pub(crate) fn open(device: &str) -> Self {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let any = Protocol::from(i32::from(protocol));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(any)).unwrap();
        let link = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: protocol,
            sll_ifindex: index_of(device) as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the storage has room for any address, and the length is that of the address.
        let addr = unsafe {
            SockAddr::try_init(|storage, length| {
                storage.cast::<libc::sockaddr_ll>().write(link);
                *length = size_of_val(&link) as libc::socklen_t;
                Ok(())
            })
        };
        socket.bind(&addr.unwrap().1).unwrap();
        socket.set_read_timeout(Some(TIME_MAX)).unwrap();
        Self(socket)
    }

    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut frame = vec![0; 1 << 16];
        let bytes = loop {
            match self.0.read(&mut frame) {
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                result => break result.unwrap(),
            }
        };
        frame.truncate(bytes);
        frame
    }

    pub(crate) fn send(&mut self, frame: &[u8]) {
        assert_eq!(self.0.write(frame).unwrap(), frame.len());
    }
}
