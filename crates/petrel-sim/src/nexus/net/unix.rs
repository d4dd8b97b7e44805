//! Unix sockets between processes of one host, and stand-ins for shared memory passed through them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};

use super::{Net, ProcessId};

/// Maximum number of waiting connections at a rendezvous.
const BACKLOG: usize = 16;

/// Names an end of a connection.
pub(super) type GuestId = usize;

/// The memory of a link's rings, without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nexus) struct Memory {
    pub(super) max_frame_bytes: usize,
    /// Whether the memory is valid.
    pub(super) is_sound: bool,
}

impl Memory {
    /// Memory sent by a foreign peer.
    pub(in crate::nexus) const FOREIGN: Self = Self { max_frame_bytes: 2_048, is_sound: false };
}

#[derive(Debug, Default)]
pub(super) struct UnixSockets {
    guests: Vec<Guest>,
    meetings: BTreeMap<Vec<u8>, Meeting>,
}

#[derive(Debug)]
struct Meeting {
    process: ProcessId,
    token: usize,
    backlog: VecDeque<GuestId>,
}

#[derive(Debug)]
struct Guest {
    process: ProcessId,
    peer: GuestId,
    token: Option<usize>,
    is_open: bool,
    received: VecDeque<u8>,
    /// Descriptors, with the number of bytes before them.
    fds: VecDeque<(usize, Memory)>,
}

impl UnixSockets {
    /// Removes the rendezvous of an ended process. Returns the process's ends of connections.
    fn forget_process(&mut self, process: ProcessId) -> Vec<GuestId> {
        self.meetings.retain(|_, meeting| meeting.process != process);
        let own = |id: &GuestId| self.guests[*id].process == process;
        (0..self.guests.len()).filter(own).collect()
    }
}

impl Net {
    /// Closes the Unix-socket connections of an ended process.
    pub(super) fn close_guests_of(&mut self, process: ProcessId) {
        let own = self.unix.forget_process(process);
        own.into_iter().for_each(|id| self.close_guest(id));
    }

    pub(super) fn open_rendezvous(
        &mut self,
        process: ProcessId,
        token: usize,
    ) -> io::Result<Vec<u8>> {
        self.take_descriptor(process)?;
        let name = format!("petrel-shm-{process:032x}").into_bytes();
        let meeting = Meeting { process, token, backlog: VecDeque::new() };
        self.unix.meetings.insert(name.clone(), meeting);
        Ok(name)
    }

    pub(in crate::nexus) fn meet(
        &mut self,
        process: ProcessId,
        name: &[u8],
    ) -> io::Result<GuestId> {
        let is_full = self.happens(self.conditions.scarce_shm);
        let host = self.processes[process].host;
        let meeting = self.unix.meetings.get(name);
        let meeting = meeting.filter(|meeting| self.processes[meeting.process].host == host);
        let meeting = meeting.ok_or(ErrorKind::ConnectionRefused)?;
        if is_full || meeting.backlog.len() >= BACKLOG {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (server, token) = (meeting.process, meeting.token);
        self.take_descriptor(process)?;
        let near = self.unix.guests.len();
        for (process, peer) in [(process, near + 1), (server, near)] {
            let (received, fds) = (VecDeque::new(), VecDeque::new());
            self.unix.guests.push(Guest {
                process,
                peer,
                token: None,
                is_open: true,
                received,
                fds,
            });
        }
        if let Some(meeting) = self.unix.meetings.get_mut(name) {
            meeting.backlog.push_back(near + 1);
        }
        self.notify(server, token);
        Ok(near)
    }

    pub(super) fn accept_guest(
        &mut self,
        process: ProcessId,
        name: &[u8],
    ) -> io::Result<Option<GuestId>> {
        if self.happens(self.conditions.choppy) && self.rng.below(4) == 0 {
            return Err(ErrorKind::Interrupted.into());
        }
        self.take_descriptor(process)?;
        let meeting = self.unix.meetings.get_mut(name);
        let next = meeting.and_then(|meeting| meeting.backlog.pop_front());
        if next.is_none() {
            self.give_descriptor(process);
        }
        Ok(next)
    }

    pub(super) fn register_guest(&mut self, id: GuestId, token: usize) -> io::Result<()> {
        if self.happens(self.conditions.scarce_shm) {
            return Err(ErrorKind::OutOfMemory.into());
        }
        let guest = &mut self.unix.guests[id];
        guest.token = Some(token);
        let (process, is_ready) = (guest.process, !guest.received.is_empty());
        if is_ready || !self.unix.guests[self.unix.guests[id].peer].is_open {
            self.notify(process, token);
        }
        Ok(())
    }

    pub(super) fn deregister_guest(&mut self, id: GuestId) {
        self.unix.guests[id].token = None;
    }

    fn tell_guest(&mut self, id: GuestId) {
        let guest = &self.unix.guests[id];
        if let (Some(token), true) = (guest.token, guest.is_open) {
            self.notify(guest.process, token);
        }
    }

    pub(in crate::nexus) fn send_to_guest(
        &mut self,
        id: GuestId,
        bytes: &[u8],
        memory: Option<Memory>,
    ) -> io::Result<usize> {
        let peer = self.unix.guests[id].peer;
        let receiver = &mut self.unix.guests[peer];
        if !receiver.is_open {
            return Err(ErrorKind::BrokenPipe.into());
        }
        receiver.fds.extend(memory.map(|memory| (receiver.received.len(), memory)));
        receiver.received.extend(bytes);
        self.tell_guest(peer);
        Ok(bytes.len())
    }

    pub(super) fn receive_from_guest(
        &mut self,
        id: GuestId,
        bytes: &mut [u8],
        fds: &mut Vec<Memory>,
        fds_max: usize,
    ) -> io::Result<usize> {
        let is_choppy = self.happens(self.conditions.choppy);
        let all = bytes.len().min(self.unix.guests[id].received.len());
        let count = if is_choppy { self.rng.between(1, all as u64) as usize } else { all };
        let count = count.min(all);
        let is_peer_open = self.unix.guests[self.unix.guests[id].peer].is_open;
        let guest = &mut self.unix.guests[id];
        if count == 0 {
            return if is_peer_open { Err(ErrorKind::WouldBlock.into()) } else { Ok(0) };
        }
        for (to, from) in bytes.iter_mut().zip(guest.received.drain(..count)) {
            *to = from;
        }
        let mut taken = 0;
        while let Some((before, memory)) = guest.fds.front().copied()
            && before < count
        {
            guest.fds.pop_front();
            // Surplus descriptors are discarded.
            if taken < fds_max {
                fds.push(memory);
                taken += 1;
            }
        }
        guest.fds.iter_mut().for_each(|(before, _)| *before -= count);
        Ok(count)
    }

    pub(in crate::nexus) fn close_guest(&mut self, id: GuestId) {
        let guest = &mut self.unix.guests[id];
        if std::mem::replace(&mut guest.is_open, false) {
            guest.token = None;
            let (process, peer) = (guest.process, guest.peer);
            self.give_descriptor(process);
            self.tell_guest(peer);
        }
    }

    /// Returns the name of a process's rendezvous.
    pub(in crate::nexus) fn meeting_of(&self, process: ProcessId) -> Option<Vec<u8>> {
        let own = self.unix.meetings.iter().find(|(_, meeting)| meeting.process == process);
        own.map(|(name, _)| name.clone())
    }
}
