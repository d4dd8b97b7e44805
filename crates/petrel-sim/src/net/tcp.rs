//! TCP connections.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use super::wire::{Reader, SentMessages};
use super::{Arrival, HostId, Net, ProcessId};

/// Names an end of a connection; never reused.
pub(crate) type SocketId = usize;

/// Number of SYN retries, and the pause after the first, which doubles.
const SYN_TRIES: u32 = 5;
const SYN_PAUSE_NS: u64 = 1_000_000_000;

/// An end of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) process: ProcessId,
    host: HostId,
    local: SocketAddr,
    remote: SocketAddr,
    state: State,
    peer: Option<SocketId>,
    token: Option<usize>,
    /// Received and unread bytes.
    received: VecDeque<u8>,
    /// The peer has ended its direction after these bytes.
    is_at_end: bool,
    /// The connection broke, and its owner has not seen the error yet.
    broken: Option<ErrorKind>,
    /// Written bytes that the peer has not read.
    unread_bytes: usize,
    /// A write found no room.
    waits_for_room: bool,
    /// There is room again, and the owner has not been notified yet.
    room_is_due: bool,
    /// When the owner was last notified of room.
    room_ns: u64,
    has_ended: bool,
    /// Later arrivals at this end come no earlier, to keep their order.
    pub(super) arrival_floor_ns: u64,
    /// When the last byte arrived.
    heard_ns: u64,
    /// When the connection was established.
    connected_ns: u64,
    rtt_ns: u32,
    is_opener: bool,
    /// Parse the bytes written by the owner, and the received bytes.
    reader: Reader,
    listener: Reader,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Connected,
    Failed,
    /// Closed by its owner, or the owner has ended.
    Gone,
}

#[derive(Debug)]
pub(super) struct Listening {
    pub(super) process: ProcessId,
    token: usize,
    queue: usize,
    /// Connections to be accepted.
    backlog: VecDeque<SocketId>,
}

impl Socket {
    /// Ends without notice to the peer.
    pub(super) fn vanish(&mut self) {
        self.state = State::Gone;
        self.token = None;
        self.received = VecDeque::new();
    }
}

impl Arrival {
    /// Returns the receiving end of an arrival that has to keep its order.
    pub(super) fn receiver(&self) -> Option<SocketId> {
        match self {
            Self::Bytes { to, .. } | Self::End { to, .. } | Self::Reset { to } => Some(*to),
            _ => None,
        }
    }
}

impl Net {
    fn new_socket(
        &mut self,
        process: ProcessId,
        (local, remote): (SocketAddr, SocketAddr),
        state: State,
    ) -> SocketId {
        self.sockets.push(Socket {
            process,
            host: self.processes[process].host,
            local,
            remote,
            state,
            peer: None,
            token: None,
            received: VecDeque::new(),
            is_at_end: false,
            broken: None,
            unread_bytes: 0,
            waits_for_room: false,
            room_is_due: false,
            room_ns: 0,
            has_ended: false,
            arrival_floor_ns: 0,
            heard_ns: self.now_ns,
            connected_ns: self.now_ns,
            rtt_ns: u32::MAX,
            is_opener: state == State::Connecting,
            reader: Reader::default(),
            listener: Reader::default(),
        });
        self.sockets.len() - 1
    }

    /// Reserves a descriptor, if the process may have one more.
    pub(super) fn take_descriptor(&mut self, process: ProcessId) -> io::Result<()> {
        let entry = &mut self.processes[process];
        if entry.descriptors >= entry.descriptors_real {
            return Err(too_many_files());
        }
        entry.descriptors += 1;
        Ok(())
    }

    pub(super) fn give_descriptor(&mut self, process: ProcessId) {
        let entry = &mut self.processes[process];
        entry.descriptors = entry.descriptors.saturating_sub(1);
    }

    pub(crate) fn listen(
        &mut self,
        process: ProcessId,
        address: SocketAddr,
        queue: usize,
        token: usize,
    ) -> io::Result<SocketAddr> {
        if self.listeners.contains_key(&address) {
            return Err(ErrorKind::AddrInUse.into());
        }
        let listening = Listening { process, token, queue, backlog: VecDeque::new() };
        self.listeners.insert(address, listening);
        Ok(address)
    }

    pub(crate) fn connect(
        &mut self,
        process: ProcessId,
        remote: SocketAddr,
    ) -> io::Result<SocketId> {
        if self.happens(self.conditions.scarce) {
            return Err(ErrorKind::NetworkUnreachable.into());
        }
        self.take_descriptor(process)?;
        self.processes[process].connects += 1;
        let host = self.processes[process].host;
        let port = self.hosts[host].next_port;
        self.hosts[host].next_port = if port == u16::MAX { 40_000 } else { port + 1 };
        let local = SocketAddr::new(self.conditions.family.address(host), port);
        let id = self.new_socket(process, (local, remote), State::Connecting);
        self.add_to_digest(1, id as u64);
        let to = self.host_at(remote);
        let delay_ns = self.draw_delay(host, to.unwrap_or(host));
        self.send_at(self.now_ns + delay_ns, Arrival::Syn { from: id, attempt: 0 });
        Ok(id)
    }

    fn host_at(&self, address: SocketAddr) -> Option<HostId> {
        (0..self.hosts.len()).find(|&host| self.conditions.family.address(host) == address.ip())
    }

    pub(crate) fn accept(
        &mut self,
        process: ProcessId,
        address: SocketAddr,
    ) -> io::Result<(SocketId, SocketAddr)> {
        // The kernel reserves a descriptor before it checks its queue.
        self.take_descriptor(process)?;
        let listening = self.listeners.get_mut(&address);
        let next = listening.and_then(|listening| listening.backlog.pop_front());
        let Some(id) = next else {
            self.give_descriptor(process);
            return Err(ErrorKind::WouldBlock.into());
        };
        if self.sockets[id].broken.is_some() && self.happens(self.conditions.choppy) {
            self.give_descriptor(process);
            self.sockets[id].vanish();
            return Err(ErrorKind::ConnectionAborted.into());
        }
        self.processes[process].accepts += 1;
        Ok((id, self.sockets[id].remote))
    }

    /// Returns true if a connection waits and a descriptor is free to accept it.
    pub(crate) fn can_accept(&self, process: ProcessId, address: SocketAddr) -> bool {
        let entry = &self.processes[process];
        self.has_waiting(address) && entry.descriptors < entry.descriptors_real
    }

    pub(super) fn has_waiting(&self, address: SocketAddr) -> bool {
        self.listeners.get(&address).is_some_and(|listening| !listening.backlog.is_empty())
    }

    /// Associates a socket with a token for readiness events; reports at once if the socket is ready.
    pub(crate) fn register(&mut self, id: SocketId, token: usize) -> io::Result<()> {
        if self.happens(self.conditions.scarce) {
            return Err(ErrorKind::OutOfMemory.into());
        }
        let process = self.sockets[id].process;
        self.sockets[id].token = Some(token);
        self.processes[process].tokens.insert(token, id);
        if self.sockets[id].state != State::Connecting {
            self.notify(process, token);
        }
        Ok(())
    }

    pub(super) fn deregister(&mut self, id: SocketId) {
        if let Some(token) = self.sockets[id].token.take() {
            let process = &mut self.processes[self.sockets[id].process];
            process.tokens.remove(&token);
            process.ready.retain(|ready| *ready != token);
        }
    }

    fn tell(&mut self, id: SocketId) {
        let (process, token) = (self.sockets[id].process, self.sockets[id].token);
        if let Some(token) = token {
            self.notify(process, token);
        }
    }

    pub(crate) fn is_writable(&self, id: SocketId) -> bool {
        let socket = &self.sockets[id];
        match socket.state {
            State::Connecting | State::Gone => false,
            State::Failed => true,
            State::Connected => socket.unread_bytes < self.conditions.window_bytes,
        }
    }

    /// Reads received bytes; some reads are short or interrupted.
    pub(crate) fn read(&mut self, id: SocketId, buffer: &mut [u8]) -> io::Result<usize> {
        let is_choppy = self.happens(self.conditions.choppy);
        if is_choppy && self.rng.below(4) == 0 {
            return Err(ErrorKind::Interrupted.into());
        }
        let all = buffer.len().min(self.sockets[id].received.len());
        if all > 0 {
            let count = if is_choppy { self.rng.between(1, all as u64) as usize } else { all };
            let socket = &mut self.sockets[id];
            for (to, from) in buffer.iter_mut().zip(socket.received.drain(..count)) {
                *to = from;
            }
            let (peer, host) = (socket.peer, socket.host);
            if let Some(peer) = peer {
                self.free_room(peer, host, count);
            }
            return Ok(count);
        }
        let socket = &mut self.sockets[id];
        match socket.broken.take() {
            Some(kind) => {
                socket.is_at_end = true;
                Err(kind.into())
            }
            None if socket.is_at_end => Ok(0),
            None if socket.state == State::Connected => Err(ErrorKind::WouldBlock.into()),
            None => Err(ErrorKind::NotConnected.into()),
        }
    }

    /// Frees room for the peer after a read.
    fn free_room(&mut self, peer: SocketId, from: HostId, count: usize) {
        let at_ns = self.now_ns + self.draw_delay(from, self.sockets[peer].host);
        let socket = &mut self.sockets[peer];
        socket.unread_bytes = socket.unread_bytes.saturating_sub(count);
        if std::mem::take(&mut socket.waits_for_room) {
            socket.room_is_due = true;
            self.send_at(at_ns, Arrival::Room { to: peer });
        }
    }

    /// Writes as many bytes as the window has room for; some writes are short or interrupted.
    pub(crate) fn write(&mut self, id: SocketId, bytes: &[u8]) -> io::Result<usize> {
        let is_choppy = self.happens(self.conditions.choppy);
        if is_choppy && self.rng.below(4) == 0 {
            return Err(ErrorKind::Interrupted.into());
        }
        let (now_ns, window_bytes) = (self.now_ns, self.conditions.window_bytes);
        let socket = &mut self.sockets[id];
        match socket.state {
            State::Connecting => return Err(ErrorKind::WouldBlock.into()),
            State::Connected if socket.broken.is_none() && !socket.has_ended => {}
            _ => return Err(socket.broken.take().unwrap_or(ErrorKind::BrokenPipe).into()),
        }
        let room = window_bytes.saturating_sub(socket.unread_bytes).min(bytes.len());
        let Some(peer) = socket.peer.filter(|_| room > 0) else {
            socket.waits_for_room = true;
            return Err(ErrorKind::WouldBlock.into());
        };
        let count = if is_choppy { self.rng.between(1, room as u64) as usize } else { room };
        let socket = &mut self.sockets[id];
        socket.unread_bytes += count;
        socket.reader.read(&bytes[..count], now_ns);
        self.add_to_digest(2, (id + count) as u64);
        let bytes = Box::from(&bytes[..count]);
        self.send_to(peer, id, Arrival::Bytes { to: peer, from: id, bytes });
        Ok(count)
    }

    /// Sends an arrival after all earlier arrivals at that end.
    fn send_to(&mut self, to: SocketId, from: SocketId, arrival: Arrival) {
        let delay_ns = self.draw_delay(self.sockets[from].host, self.sockets[to].host);
        let rtt_ns = u32::try_from(2 * delay_ns).unwrap_or(u32::MAX);
        let sender = &mut self.sockets[from];
        sender.rtt_ns = sender.rtt_ns.min(rtt_ns);
        let floor = &mut self.sockets[to].arrival_floor_ns;
        *floor = (*floor).max(self.now_ns + delay_ns);
        let at_ns = *floor;
        self.send_at(at_ns, arrival);
    }

    pub(crate) fn shutdown(&mut self, id: SocketId) -> io::Result<()> {
        let socket = &mut self.sockets[id];
        if socket.state != State::Connected || socket.broken.is_some() {
            return Err(ErrorKind::NotConnected.into());
        }
        self.end_direction(id);
        // Every `shutdown` of a socket is an event of that socket.
        self.tell(id);
        Ok(())
    }

    fn end_direction(&mut self, id: SocketId) {
        let socket = &mut self.sockets[id];
        if !std::mem::replace(&mut socket.has_ended, true)
            && let Some(peer) = socket.peer
        {
            self.send_to(peer, id, Arrival::End { to: peer, from: id });
        }
    }

    /// Closes an end for its owner.
    pub(crate) fn close(&mut self, id: SocketId) {
        self.deregister(id);
        let socket = &self.sockets[id];
        if socket.state == State::Gone {
            return;
        }
        self.give_descriptor(socket.process);
        self.add_to_digest(3, id as u64);
        self.close_quietly(id);
    }

    /// Like `close`, for a socket without a descriptor.
    fn close_quietly(&mut self, id: SocketId) {
        let socket = &self.sockets[id];
        let is_unread = !socket.received.is_empty();
        match socket.peer {
            Some(peer) if is_unread => self.send_to(peer, id, Arrival::Reset { to: peer }),
            _ => self.end_direction(id),
        }
        self.sockets[id].vanish();
    }

    /// Delivers an arrival, or keeps it while its path is cut.
    pub(super) fn deliver(&mut self, arrival: Arrival) {
        if let Some((a, b)) = self.path_of(&arrival)
            && self.find_cut(a, b)
            && let Some(waiting) = self.cuts.get_mut(&(a.min(b), a.max(b)))
        {
            // SYNs are retransmitted by their own timer.
            return match arrival {
                Arrival::Syn { from, attempt } => self.try_again(from, attempt),
                arrival => waiting.push(arrival),
            };
        }
        match arrival {
            Arrival::Syn { from, attempt } => self.on_syn(from, attempt),
            Arrival::SynAck { to, peer } => self.on_syn_ack(to, peer),
            Arrival::Refused { to } => self.on_failed(to, ErrorKind::ConnectionRefused),
            Arrival::Bytes { to, from, bytes } => self.on_bytes(to, from, &bytes),
            Arrival::End { to, .. } => self.on_end(to),
            Arrival::Reset { to } => self.on_reset(to),
            Arrival::Room { to } => self.on_room(to),
            Arrival::Look(a, b) => self.look(a, b),
        }
    }

    fn path_of(&self, arrival: &Arrival) -> Option<(HostId, HostId)> {
        let host = |id: &SocketId| self.sockets[*id].host;
        let to_peer = |id: &SocketId| {
            let peer = self.sockets[*id].peer;
            Some((host(id), peer.map(|peer| host(&peer))?))
        };
        match arrival {
            Arrival::Syn { from, .. } => {
                Some((host(from), self.host_at(self.sockets[*from].remote)?))
            }
            Arrival::SynAck { to, peer } => Some((host(to), host(peer))),
            Arrival::Refused { to } => Some((host(to), self.host_at(self.sockets[*to].remote)?)),
            Arrival::Bytes { to, from, .. } | Arrival::End { to, from } => {
                Some((host(to), host(from)))
            }
            Arrival::Reset { to } | Arrival::Room { to } => to_peer(to),
            Arrival::Look(..) => None,
        }
    }

    fn on_syn(&mut self, from: SocketId, attempt: u32) {
        let opener = &self.sockets[from];
        if opener.state != State::Connecting {
            return;
        }
        let (local, remote, host) = (opener.local, opener.remote, opener.host);
        let Some(target) = self.host_at(remote) else { return };
        if !self.hosts[target].is_up {
            return self.try_again(from, attempt);
        }
        let back_ns = self.now_ns + self.draw_delay(target, host);
        match self.listeners.get(&remote) {
            None => self.send_at(back_ns, Arrival::Refused { to: from }),
            Some(listening) if listening.backlog.len() >= listening.queue => {
                self.try_again(from, attempt);
            }
            Some(listening) => {
                let (process, token) = (listening.process, listening.token);
                let id = self.new_socket(process, (remote, local), State::Connected);
                self.sockets[id].peer = Some(from);
                self.sockets[id].arrival_floor_ns = back_ns;
                // From now on the two ends may reset each other.
                self.sockets[from].peer = Some(id);
                self.sockets[from].arrival_floor_ns = back_ns;
                if let Some(listening) = self.listeners.get_mut(&remote) {
                    listening.backlog.push_back(id);
                }
                self.notify(process, token);
                self.send_at(back_ns, Arrival::SynAck { to: from, peer: id });
            }
        }
    }

    fn try_again(&mut self, from: SocketId, attempt: u32) {
        if attempt >= SYN_TRIES {
            return self.on_failed(from, ErrorKind::TimedOut);
        }
        let at_ns = self.now_ns + (SYN_PAUSE_NS << attempt);
        self.send_at(at_ns, Arrival::Syn { from, attempt: attempt + 1 });
    }

    fn on_syn_ack(&mut self, to: SocketId, peer: SocketId) {
        let now_ns = self.now_ns;
        let socket = &mut self.sockets[to];
        if socket.state != State::Connecting {
            // The opener no longer waits.
            if socket.state == State::Gone {
                self.send_to(peer, to, Arrival::Reset { to: peer });
            }
            return;
        }
        socket.state = State::Connected;
        (socket.connected_ns, socket.heard_ns) = (now_ns, now_ns);
        self.tell(to);
    }

    fn on_failed(&mut self, to: SocketId, kind: ErrorKind) {
        let socket = &mut self.sockets[to];
        if socket.state == State::Connecting {
            socket.state = State::Failed;
            socket.broken = Some(kind);
            self.tell(to);
        }
    }

    fn on_bytes(&mut self, to: SocketId, from: SocketId, bytes: &[u8]) {
        let now_ns = self.now_ns;
        let is_up = self.hosts[self.sockets[to].host].is_up;
        let socket = &mut self.sockets[to];
        if socket.state == State::Gone {
            // A running host resets connections that it does not know.
            if is_up {
                self.send_to(from, to, Arrival::Reset { to: from });
            }
            return;
        }
        socket.listener.read(bytes, now_ns);
        socket.received.extend(bytes);
        socket.heard_ns = now_ns;
        self.tell(to);
    }

    fn on_room(&mut self, to: SocketId) {
        let socket = &mut self.sockets[to];
        (socket.room_is_due, socket.room_ns) = (false, self.now_ns);
        self.tell(to);
    }

    fn on_end(&mut self, to: SocketId) {
        let socket = &mut self.sockets[to];
        if socket.state != State::Gone {
            socket.is_at_end = true;
            self.tell(to);
        }
    }

    fn on_reset(&mut self, to: SocketId) {
        let is_harsh = self.happens(self.conditions.harsh_resets);
        let socket = &mut self.sockets[to];
        match socket.state {
            State::Gone | State::Failed => return,
            State::Connecting => return self.on_failed(to, ErrorKind::ConnectionRefused),
            State::Connected => {}
        }
        socket.broken = Some(ErrorKind::ConnectionReset);
        if is_harsh {
            socket.received.clear();
        }
        self.tell(to);
    }
}

/// Socket state that owners may query.
impl Net {
    pub(super) fn take_error(&mut self, id: SocketId) -> Option<io::Error> {
        let socket = &mut self.sockets[id];
        let is_failed = socket.state == State::Failed;
        socket.broken.take_if(|_| is_failed).map(Into::into)
    }

    pub(super) fn peer_addr(&self, id: SocketId) -> io::Result<SocketAddr> {
        match self.sockets[id].state {
            State::Connected => Ok(self.sockets[id].remote),
            _ => Err(ErrorKind::NotConnected.into()),
        }
    }

    pub(super) fn local_addr(&self, id: SocketId) -> SocketAddr {
        self.sockets[id].local
    }

    pub(super) fn min_rtt_ns(&self, id: SocketId) -> Option<u32> {
        Some(self.sockets[id].rtt_ns).filter(|rtt_ns| *rtt_ns != u32::MAX)
    }
}

/// Connection state for the checker.
impl Net {
    /// Returns the registered and unclosed ends of a process.
    pub(crate) fn sockets_of(&self, process: ProcessId) -> impl Iterator<Item = SocketId> + '_ {
        let registered = self.processes[process].tokens.values().copied();
        registered.filter(|id| self.sockets[*id].state != State::Gone)
    }

    /// Returns when the last byte arrived at an end, or when the connection was established.
    pub(crate) fn heard_ns(&self, id: SocketId) -> u64 {
        self.sockets[id].heard_ns.max(self.sockets[id].connected_ns)
    }

    /// Returns since when the owner of a socket is no longer blocked by a full window; `None` until
    /// the owner is notified of room. A cut delays the notification, too.
    pub(crate) fn room_ns(&self, id: SocketId) -> Option<u64> {
        let socket = &self.sockets[id];
        (!socket.room_is_due).then_some(socket.room_ns)
    }

    /// Returns the process at the other end.
    pub(crate) fn peer_process(&self, id: SocketId) -> Option<ProcessId> {
        self.sockets[id].peer.map(|peer| self.sockets[peer].process)
    }

    pub(crate) fn is_broken(&self, id: SocketId) -> bool {
        let socket = &self.sockets[id];
        socket.broken.is_some() || socket.is_at_end || socket.has_ended
    }

    pub(crate) fn is_connected(&self, id: SocketId) -> bool {
        self.sockets[id].state == State::Connected
    }

    /// Returns the messages written by the owner.
    pub(crate) fn sent(&self, id: SocketId) -> SentMessages {
        self.sockets[id].reader.sent
    }

    /// Returns when the peer's HELLO arrived, if it has.
    pub(crate) fn greeted_ns(&self, id: SocketId) -> Option<u64> {
        let sent = self.sockets[id].listener.sent;
        (sent.hellos > 0).then_some(sent.hello_ns)
    }

    pub(crate) fn is_opener(&self, id: SocketId) -> bool {
        self.sockets[id].is_opener
    }
}

fn too_many_files() -> io::Error {
    rustix::io::Errno::MFILE.into()
}
