//! Further source ports: sockets that only send. ECMP chooses among the paths of a network by a packet's ports, so a peer
//! reached from several ports is reached on several paths (`docs/wire-protocol.md` §14).
//!
//! A burst has a plan per source port. A datagram, and a message for segmentation offload (GSO), therefore has frames of one
//! port only, and each port of a burst takes a system call.
//!
//! The sockets are not connected, and a filter drops all datagrams that arrive: peers answer to the port of the transport's
//! address.

use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::io::Errno;

use super::burst::{Burst, Outlet, Room, send_loose};
use super::config::{UdpConfig, UdpError};
use super::device::{Leaving, Sent};
use super::ecn::Ecn;
use super::peers::PeerTable;
use super::plan::Plan;
use super::send::Sender;
use super::socket;
use crate::device::either::{DevicePort, EitherNic, EitherWays};
use crate::transport::{LinkError, PeerId, TransportStats};
use crate::wake::Watch;

/// Most further source ports: a session has at most 32 paths.
pub(super) const FURTHER_PORTS_MAX: usize = 31;

/// The parts of the transport that all source ports share.
pub(super) struct Shared<'a> {
    pub(super) peers: &'a mut PeerTable,
    pub(super) sender: &'a mut Sender,
    pub(super) stats: &'a mut TransportStats,
    /// The device, if one works.
    pub(super) device: Option<&'a mut DevicePort>,
}

/// The further source ports of a transport.
#[derive(Default)]
pub(super) struct FurtherPorts {
    ports: Vec<u16>,
    exits: Vec<Exit>,
}

/// One source port.
struct Exit {
    socket: UdpSocket,
    number: u16,
    ecn: Ecn,
    plan: Plan,
    room: Room,
    has_gso: bool,
    /// The queue of each peer in the plan, by [`PeerId`]: see [`PeerTable::swap_lane`].
    lanes: Vec<u32>,
}

impl FurtherPorts {
    /// Opens the configured number of ports beside `local`.
    pub(super) fn open(
        config: &UdpConfig,
        local: SocketAddr,
        message_bytes_max: usize,
    ) -> Result<Self, UdpError> {
        let configured = usize::from(config.further_ports);
        if configured > FURTHER_PORTS_MAX {
            return Err(UdpError::TooManyPorts { configured });
        }
        let mut further = Self::default();
        for _ in 0..configured {
            let socket = socket::open_to_send(config, local)?;
            let port = socket.local_addr()?.port();
            let is_new = port != local.port() && !further.ports.contains(&port);
            assert!(is_new, "the kernel binds a port once");
            further.ports.push(port);
            further.exits.push(Exit {
                socket,
                number: port,
                ecn: Ecn::new(local),
                plan: Plan::new(message_bytes_max)?,
                room: Room::default(),
                has_gso: message_bytes_max > 0,
                lanes: Vec::new(),
            });
        }
        Ok(further)
    }

    /// Replaces the socket of the port with this index, which then may be full.
    #[cfg(test)]
    pub(super) fn replace_socket(&mut self, index: usize, socket: UdpSocket) {
        self.exits[index].socket = socket;
    }

    /// The ports' numbers.
    pub(super) fn ports(&self) -> &[u16] {
        &self.ports
    }

    /// Returns true if a kept frame waits for room.
    pub(super) fn has_backlog(&self) -> bool {
        self.exits.iter().any(|exit| exit.room.is_backlog())
    }

    /// Returns the burst of the port with this index.
    #[inline]
    pub(super) fn plan_mut(&mut self, index: usize) -> &mut Plan {
        &mut self.exits[index].plan
    }

    /// Adds a frame that the fast path did not accept to the burst of the port with this index.
    ///
    /// # Safety
    /// That of [`Transport::push`](crate::Transport::push).
    pub(super) unsafe fn push_slowly(
        &mut self,
        index: usize,
        shared: Shared<'_>,
        peer: PeerId,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        // SAFETY: by the function's contract.
        unsafe { self.exits[index].push_slowly(shared, peer, head, body) }
    }

    /// Sends the bursts of all ports.
    pub(super) fn flush(&mut self, mut shared: Shared<'_>) {
        for exit in &mut self.exits {
            if !exit.plan.is_empty() && !exit.room.has_asked() {
                exit.with(shared.lend()).send_pushed();
            }
            exit.room.end_burst();
        }
    }

    /// Offers kept frames to the kernel again.
    pub(super) fn retry(&mut self, mut shared: Shared<'_>) {
        for exit in self.exits.iter_mut().filter(|exit| exit.room.is_backlog()) {
            exit.with(shared.lend()).send_pushed();
        }
    }

    /// Forgets the queues of a peer that is removed.
    pub(super) fn close_lane(&mut self, peer: PeerId, is_sealed: bool) {
        self.exits.iter_mut().for_each(|exit| exit.plan.close_lane(peer, is_sealed));
    }

    /// See [`Plan::prepare_to_seal`].
    pub(super) fn prepare_to_seal(&mut self) -> Result<(), LinkError> {
        self.exits.iter_mut().try_for_each(|exit| exit.plan.prepare_to_seal())
    }

    /// Adapts the sockets to the peers' agreements on marks: see [`Ecn::adapt`].
    pub(super) fn adapt_to_ecn(&mut self, peers: &PeerTable) -> std::io::Result<()> {
        for Exit { socket, ecn, plan, .. } in &mut self.exits {
            ecn.adapt(socket.as_fd(), peers, plan.is_empty())?;
        }
        Ok(())
    }

    /// Watches for room for kept frames, if the sockets had none.
    pub(super) fn watch<'a>(&'a self, watch: &mut Watch<'a>, for_room: bool) {
        for exit in self.exits.iter().filter(|exit| for_room && exit.room.is_backlog()) {
            watch.add(exit.socket.as_fd(), true);
        }
    }
}

impl Shared<'_> {
    fn lend(&mut self) -> Shared<'_> {
        let device = self.device.as_deref_mut();
        Shared { peers: self.peers, sender: self.sender, stats: self.stats, device }
    }
}

impl Exit {
    fn with<'a>(&'a mut self, shared: Shared<'a>) -> ExitOf<'a> {
        ExitOf { exit: self, shared }
    }

    /// # Safety
    /// That of [`Transport::push`](crate::Transport::push).
    unsafe fn push_slowly(
        &mut self,
        shared: Shared<'_>,
        peer: PeerId,
        head: &[u8],
        body: &[u8],
    ) -> bool {
        let place = peer.0 as usize;
        let lane = self.lanes.get(place).copied().unwrap_or(0);
        let others = shared.peers.swap_lane(peer, lane);
        let mut exit = self.with(shared);
        // SAFETY: by the function's contract.
        let is_taken = unsafe { exit.push_slowly(peer, head, body) };
        let (lane, is_known) =
            (exit.shared.peers.swap_lane(peer, others), exit.shared.peers.is_known(peer));
        // The number of no peer may be any.
        if is_known {
            self.lanes.resize(self.lanes.len().max(place + 1), 0);
            self.lanes[place] = lane;
        }
        is_taken
    }
}

/// A source port with the shared parts.
struct ExitOf<'a> {
    exit: &'a mut Exit,
    shared: Shared<'a>,
}

impl ExitOf<'_> {
    /// The device with the burst.
    fn leaving(&mut self) -> Option<Leaving<'_, EitherNic, EitherWays>> {
        let Exit { plan, number, .. } = &mut *self.exit;
        let Shared { peers, stats, device, .. } = &mut self.shared;
        Some(Leaving { port: device.as_deref_mut()?, plan, peers, stats, source_port: *number })
    }
}

impl Outlet for ExitOf<'_> {
    fn burst(&mut self) -> Burst<'_> {
        let Exit { plan, room, has_gso, .. } = &mut *self.exit;
        let Shared { peers, stats, .. } = &mut self.shared;
        Burst { plan, peers, stats, room, has_gso }
    }

    fn send_loose(&mut self, is_to_seal: bool) -> bool {
        if let Some(leaving) = self.leaving() {
            return leaving.send_loose(is_to_seal);
        }
        let Exit { socket, ecn, plan, .. } = &mut *self.exit;
        let Shared { peers, stats, .. } = &mut self.shared;
        let peers = is_to_seal.then_some(&mut **peers);
        !ecn.is_by_message() && send_loose(socket.as_fd(), (plan, peers), false, stats)
    }

    #[cold]
    fn allow_fragments(&mut self) {
        socket::allow_fragments(&self.exit.socket);
    }

    unsafe fn send_by_device(&mut self, first: usize) -> Option<Sent> {
        // SAFETY: by this function's contract.
        self.leaving().map(|leaving| unsafe { leaving.send_from(first) })
    }

    unsafe fn send_by_kernel(&mut self, messages: Range<usize>) -> Result<usize, Errno> {
        let Exit { socket, ecn, plan, .. } = &mut *self.exit;
        let ecn = ecn.is_by_message().then_some(&*self.shared.peers);
        let messages = &plan.messages()[messages];
        // SAFETY: by this function's contract.
        unsafe { self.shared.sender.send(socket.as_fd(), plan, messages, false, ecn) }
    }
}
