//! A relay between two endpoints over UDP: it loses, copies, delays and reads datagrams.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};

use petrel::endpoint::EndpointId;
use petrel::nexus::ControlPort;
use petrel::unstable::control::{ControlPlane, FromNexus, ToNexus};
use petrel_proto::wire::{Fields, Frame, Kind};
use petrel_transport::bundle;
use petrel_transport::host::HostLink;
use petrel_transport::mux::MuxLink;
use petrel_transport::udp::UdpLink;

use super::message;

/// The longest delay of a datagram, in turns.
const LATE_TURNS_MAX: u64 = 200;

/// Faults of datagrams, per thousand each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) copied: u64,
    pub(crate) late: u64,
}

/// The relay. Either end sees a socket of the relay as the peer.
pub(crate) struct Relay {
    sockets: [UdpSocket; 2],
    ends: [Option<SocketAddr>; 2],
    faults: Faults,
    random: u64,
    turn: u64,
    late: Vec<(u64, usize, Vec<u8>)>,
    /// Payload of each packet except a message's last.
    pub(crate) packet_bytes: usize,
    /// The call of each request number.
    calls: BTreeMap<u64, u32>,
    /// Payloads read, and retransmitted ones among them.
    pub(crate) payloads: u64,
    pub(crate) repeated: u64,
}

impl Relay {
    pub(crate) fn new(faults: Faults) -> Self {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        Self {
            sockets: [socket(), socket()],
            ends: [None; 2],
            faults,
            random: 0x9E37_79B9_7F4A_7C15,
            turn: 0,
            late: Vec::new(),
            packet_bytes: 0,
            calls: BTreeMap::new(),
            payloads: 0,
            repeated: 0,
        }
    }

    /// Returns the peer's address as seen by an end.
    pub(crate) fn address_for(&self, end: usize) -> SocketAddr {
        self.sockets[end].local_addr().unwrap()
    }

    /// Sets the address of an end.
    pub(crate) fn set_end(&mut self, end: usize, at: SocketAddr) {
        self.ends[end] = Some(at);
    }

    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Reads and forwards received datagrams. Returns true if there were any.
    pub(crate) fn run_once(&mut self) -> bool {
        self.turn += 1;
        let mut buffer = vec![0; 1 << 16];
        let mut any = false;
        for end in 0..2 {
            while let Ok(len) = self.sockets[end].recv(&mut buffer) {
                any = true;
                self.read(&buffer[..len]);
                self.pass_on(1 - end, &buffer[..len]);
            }
        }
        let turn = self.turn;
        let due: Vec<_> = self.late.extract_if(.., |(at, ..)| *at <= turn).collect();
        due.into_iter().for_each(|(_, to, datagram)| self.deliver(to, &datagram));
        any
    }

    fn pass_on(&mut self, to: usize, datagram: &[u8]) {
        let Faults { lost, copied, late } = self.faults;
        if self.below(1000) < lost {
            return;
        }
        if self.below(1000) < copied {
            self.deliver_late(to, datagram);
        }
        match self.below(1000) < late {
            true => self.deliver_late(to, datagram),
            false => self.deliver(to, datagram),
        }
    }

    fn deliver_late(&mut self, to: usize, datagram: &[u8]) {
        let at = self.turn + self.below(LATE_TURNS_MAX);
        self.late.push((at, to, datagram.to_vec()));
    }

    fn deliver(&self, to: usize, datagram: &[u8]) {
        let Some(at) = self.ends[to] else { return };
        // A full buffer, or an end that is gone: lost, as on any network.
        let _ = self.sockets[to].send_to(datagram, at);
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// Compares every payload with the call's message: both directions carry the same bytes.
    fn read(&mut self, datagram: &[u8]) {
        for frame in bundle::frames(datagram).expect("a datagram of the transport's") {
            let frame = Frame::parse(frame).expect("a frame of the core's");
            let is_data = !matches!(frame.header.kind, Kind::Credit | Kind::Pull | Kind::Probe);
            let is_answer = matches!(frame.header.kind, Kind::Response | Kind::ResponsePart);
            if is_data && !(is_answer && frame.header.aux as u8 != 0) {
                self.read_payload(&frame);
            }
        }
    }

    fn read_payload(&mut self, frame: &Frame<'_>) {
        let packet = match frame.fields {
            Fields::Part(part) => part.packet as usize,
            _ => 0,
        };
        let number = frame.header.request;
        if packet == 0 && !self.calls.contains_key(&number) {
            self.calls.insert(number, message::call_of(frame.payload).expect("a whole word"));
        }
        // The kernel may have dropped the first packet before it reached the relay.
        let Some(&call) = self.calls.get(&number) else { return };
        let offset = packet * self.packet_bytes;
        assert!(
            message::is_part(call, offset, frame.payload),
            "{frame} shows something else than the message of call {call}: {:x?}",
            &frame.payload[..frame.payload.len().min(32)]
        );
        self.payloads += 1;
        self.repeated += u64::from(frame.header.flags.repeats());
    }
}

/// A control plane that sends an endpoint's datagrams through the relay.
pub(crate) struct RelayControl {
    pub(crate) port: ControlPort,
    pub(crate) via: SocketAddr,
}

impl ControlPlane<HostLink> for RelayControl {
    fn post(&self, message: ToNexus) {
        self.port.post(message);
    }

    fn poll(&mut self) -> Option<FromNexus<HostLink>> {
        let mut message = self.port.poll()?;
        if let FromNexus::LinkUp {
            transport: HostLink::Far(MuxLink::Near(UdpLink { addr, .. })),
            ..
        } = &mut message
        {
            *addr = self.via;
        }
        Some(message)
    }

    fn endpoint_id(&self) -> EndpointId {
        self.port.id()
    }

    fn random(&mut self) -> u64 {
        self.port.random()
    }
}
