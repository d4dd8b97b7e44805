//! Unix sockets between processes of one host, and stand-ins for shared memory passed through them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};

use super::{Net, ProcessId};

/// Maximum number of waiting connections at a rendezvous.
const BACKLOG: usize = 16;

/// Names an end of a connection.
pub(super) type UnixConnectionId = usize;

/// The memory of a link's rings, without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) max_frame_bytes: usize,
    pub(crate) ring_bytes: usize,
    /// Distinguishes the segments of a network.
    pub(crate) number: u64,
    /// Whether the memory is valid.
    pub(super) is_sound: bool,
}

impl Memory {
    /// Memory sent by a foreign peer.
    pub(crate) const FOREIGN: Self =
        Self { max_frame_bytes: 2_048, ring_bytes: 0, number: 0, is_sound: false };
}

#[derive(Debug, Default)]
pub(super) struct UnixSockets {
    connections: Vec<UnixConnection>,
    rendezvous: BTreeMap<Vec<u8>, Rendezvous>,
}

#[derive(Debug)]
struct Rendezvous {
    process: ProcessId,
    token: usize,
    backlog: VecDeque<UnixConnectionId>,
}

#[derive(Debug)]
struct UnixConnection {
    process: ProcessId,
    peer: UnixConnectionId,
    token: Option<usize>,
    is_open: bool,
    received: VecDeque<u8>,
    /// Descriptors, with the number of bytes before them.
    fds: VecDeque<(usize, Memory)>,
}

impl UnixSockets {
    /// Removes the rendezvous of an ended process. Returns the process's ends of connections.
    fn forget_process(&mut self, process: ProcessId) -> Vec<UnixConnectionId> {
        self.rendezvous.retain(|_, rendezvous| rendezvous.process != process);
        let own = |id: &UnixConnectionId| self.connections[*id].process == process;
        (0..self.connections.len()).filter(own).collect()
    }
}

impl Net {
    /// Closes the Unix-socket connections of an ended process.
    pub(super) fn close_unix_of(&mut self, process: ProcessId) {
        let own = self.unix.forget_process(process);
        own.into_iter().for_each(|id| self.close_unix(id));
    }

    pub(super) fn open_rendezvous(
        &mut self,
        process: ProcessId,
        token: usize,
    ) -> io::Result<Vec<u8>> {
        self.take_descriptor(process)?;
        let name = format!("petrel-shm-{process:032x}").into_bytes();
        let rendezvous = Rendezvous { process, token, backlog: VecDeque::new() };
        self.unix.rendezvous.insert(name.clone(), rendezvous);
        Ok(name)
    }

    pub(crate) fn connect_rendezvous(
        &mut self,
        process: ProcessId,
        name: &[u8],
    ) -> io::Result<UnixConnectionId> {
        let is_full = self.happens(self.conditions.scarce_shm);
        let machine = self.machine_of(process);
        let rendezvous = self.unix.rendezvous.get(name);
        let rendezvous =
            rendezvous.filter(|rendezvous| self.machine_of(rendezvous.process) == machine);
        let rendezvous = rendezvous.ok_or(ErrorKind::ConnectionRefused)?;
        if is_full || rendezvous.backlog.len() >= BACKLOG {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (server, token) = (rendezvous.process, rendezvous.token);
        self.take_descriptor(process)?;
        let near = self.unix.connections.len();
        for (process, peer) in [(process, near + 1), (server, near)] {
            let (received, fds) = (VecDeque::new(), VecDeque::new());
            self.unix.connections.push(UnixConnection {
                process,
                peer,
                token: None,
                is_open: true,
                received,
                fds,
            });
        }
        if let Some(rendezvous) = self.unix.rendezvous.get_mut(name) {
            rendezvous.backlog.push_back(near + 1);
        }
        self.notify(server, token);
        Ok(near)
    }

    pub(super) fn accept_unix(
        &mut self,
        process: ProcessId,
        name: &[u8],
    ) -> io::Result<Option<UnixConnectionId>> {
        if self.happens(self.conditions.choppy) && self.rng.below(4) == 0 {
            return Err(ErrorKind::Interrupted.into());
        }
        self.take_descriptor(process)?;
        let rendezvous = self.unix.rendezvous.get_mut(name);
        let next = rendezvous.and_then(|rendezvous| rendezvous.backlog.pop_front());
        if next.is_none() {
            self.give_descriptor(process);
        }
        Ok(next)
    }

    pub(super) fn register_unix(&mut self, id: UnixConnectionId, token: usize) -> io::Result<()> {
        if self.happens(self.conditions.scarce_shm) {
            return Err(ErrorKind::OutOfMemory.into());
        }
        let connection = &mut self.unix.connections[id];
        connection.token = Some(token);
        let (process, is_ready) = (connection.process, !connection.received.is_empty());
        if is_ready || !self.unix.connections[self.unix.connections[id].peer].is_open {
            self.notify(process, token);
        }
        Ok(())
    }

    pub(super) fn deregister_unix(&mut self, id: UnixConnectionId) {
        self.unix.connections[id].token = None;
    }

    fn notify_unix(&mut self, id: UnixConnectionId) {
        let connection = &self.unix.connections[id];
        if let (Some(token), true) = (connection.token, connection.is_open) {
            self.notify(connection.process, token);
        }
    }

    pub(crate) fn send_unix(
        &mut self,
        id: UnixConnectionId,
        bytes: &[u8],
        memory: Option<Memory>,
    ) -> io::Result<usize> {
        let peer = self.unix.connections[id].peer;
        let receiver = &mut self.unix.connections[peer];
        if !receiver.is_open {
            return Err(ErrorKind::BrokenPipe.into());
        }
        receiver.fds.extend(memory.map(|memory| (receiver.received.len(), memory)));
        receiver.received.extend(bytes);
        self.notify_unix(peer);
        Ok(bytes.len())
    }

    pub(super) fn receive_unix(
        &mut self,
        id: UnixConnectionId,
        bytes: &mut [u8],
        fds: &mut Vec<Memory>,
        fds_max: usize,
    ) -> io::Result<usize> {
        let is_choppy = self.happens(self.conditions.choppy);
        let all = bytes.len().min(self.unix.connections[id].received.len());
        let count = if is_choppy { self.rng.between(1, all as u64) as usize } else { all };
        let count = count.min(all);
        let is_peer_open = self.unix.connections[self.unix.connections[id].peer].is_open;
        let connection = &mut self.unix.connections[id];
        if count == 0 {
            return if is_peer_open { Err(ErrorKind::WouldBlock.into()) } else { Ok(0) };
        }
        for (to, from) in bytes.iter_mut().zip(connection.received.drain(..count)) {
            *to = from;
        }
        let mut taken = 0;
        while let Some((before, memory)) = connection.fds.front().copied()
            && before < count
        {
            connection.fds.pop_front();
            // Surplus descriptors are discarded.
            if taken < fds_max {
                fds.push(memory);
                taken += 1;
            }
        }
        connection.fds.iter_mut().for_each(|(before, _)| *before -= count);
        Ok(count)
    }

    pub(crate) fn close_unix(&mut self, id: UnixConnectionId) {
        let connection = &mut self.unix.connections[id];
        if std::mem::replace(&mut connection.is_open, false) {
            connection.token = None;
            let (process, peer) = (connection.process, connection.peer);
            self.give_descriptor(process);
            self.notify_unix(peer);
        }
    }

    /// Returns the number of the machine on which a process runs.
    pub(super) fn machine_of(&self, process: ProcessId) -> usize {
        self.processes[process].host / self.conditions.machine_hosts
    }

    /// Returns the name of a process's rendezvous.
    pub(crate) fn rendezvous_of(&self, process: ProcessId) -> Option<Vec<u8>> {
        let own = self.unix.rendezvous.iter().find(|(_, rendezvous)| rendezvous.process == process);
        own.map(|(name, _)| name.clone())
    }
}
