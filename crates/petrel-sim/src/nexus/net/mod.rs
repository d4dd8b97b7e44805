//! A network of processes in virtual time: TCP and Unix sockets as the kernel's look to one readiness loop per process.
//!
//! Streams deliver in order, in whatever pieces, late or never where the network is cut. The network does what sockets
//! may do and rarely show in tests: short reads and writes, interrupted calls, full buffers, resets that swallow what
//! was not read, connections without descriptors for them, and silence.

mod system;
mod tcp;
#[cfg(test)]
mod tests;
mod unix;
mod wire;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use petrel::nexus::net::Ready;

use crate::rng::{Probability, Rng};

pub(super) use system::{SimLink, SimNetwork};
pub(super) use tcp::SocketId;
pub(super) use unix::Memory;

/// A process: the owner of sockets, and of one readiness loop.
pub(super) type ProcessId = usize;
/// A host: one address, a power switch, and a place in the network.
pub(super) type HostId = usize;

pub(super) type NetRef = Rc<RefCell<Net>>;

/// What the network is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions {
    /// Least and largest delay between two hosts, and between processes of one.
    pub(super) delay_ns: (u64, u64),
    /// Bytes that a connection holds between its two ends.
    pub(super) window_bytes: usize,
    /// How often a read or a write is short or interrupted.
    pub(super) choppy: Probability,
    /// How often a reset takes what was not read with it.
    pub(super) harsh_resets: Probability,
    /// How often the system refuses to make or register a socket.
    pub(super) scarce: Probability,
    /// How often shared memory cannot be had, or a rendezvous is full.
    pub(super) scarce_shm: Probability,
    pub(super) family: Family,
}

/// Which addresses hosts have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Loopback,
    V4,
    V6,
}

impl Family {
    pub(super) fn address(self, host: HostId) -> IpAddr {
        let number = host as u16 + 1;
        match self {
            Self::Loopback => Ipv4Addr::new(127, 0, 0, number as u8).into(),
            Self::V4 => Ipv4Addr::new(10, 0, 0, number as u8).into(),
            Self::V6 => Ipv6Addr::new(0xfd00, 0, 0, number, 0, 0, 0, 1).into(),
        }
    }
}

pub(super) struct Net {
    now_ns: u64,
    base: Instant,
    pub(super) rng: Rng,
    pub(super) conditions: Conditions,
    arrivals: BinaryHeap<Reverse<(u64, u64)>>,
    /// What arrives, by its number.
    contents: BTreeMap<u64, Arrival>,
    sequence: u64,
    hosts: Vec<Host>,
    pub(super) processes: Vec<Process>,
    sockets: Vec<tcp::Socket>,
    listeners: BTreeMap<SocketAddr, tcp::Listening>,
    unix: unix::UnixSockets,
    /// Pairs of hosts between which nothing passes, the lower first, and what waits there.
    cuts: BTreeMap<(HostId, HostId), Vec<Arrival>>,
    /// Processes for which something has become ready.
    signals: BTreeSet<ProcessId>,
    pub(super) digest: u64,
}

struct Host {
    is_up: bool,
    next_port: u16,
}

/// A process as the kernel sees it.
pub(super) struct Process {
    pub(super) host: HostId,
    pub(super) is_alive: bool,
    /// Tokens of what is ready, in order; each once.
    ready: Vec<usize>,
    /// What the poll that has returned has found, until the turn begins.
    found: Option<Vec<usize>>,
    tokens: BTreeMap<usize, SocketId>,
    /// Descriptors that it believes to have, that it has, and that it uses.
    pub(super) descriptors_max: u64,
    pub(super) descriptors_real: u64,
    pub(super) descriptors: u64,
    /// Its next poll fails.
    pub(super) poll_fails: bool,
    /// Whether streams of peers hang when they are closed.
    pub(super) closes_hang: bool,
    /// Connections that it made and that it accepted.
    pub(super) connects: u64,
    pub(super) accepts: u64,
}

/// What reaches a socket after a while.
#[derive(Debug)]
enum Arrival {
    Syn { from: SocketId, attempt: u32 },
    SynAck { to: SocketId, peer: SocketId },
    Refused { to: SocketId },
    Bytes { to: SocketId, from: SocketId, bytes: Box<[u8]> },
    End { to: SocketId, from: SocketId },
    Reset { to: SocketId },
    Room { to: SocketId },
}

impl Net {
    pub(super) fn new(seed: u64, conditions: Conditions, hosts: usize) -> NetRef {
        Rc::new(RefCell::new(Self {
            now_ns: 0,
            base: Instant::now(),
            rng: Rng::stream(seed, 0x7e7_0000, 0),
            conditions,
            arrivals: BinaryHeap::new(),
            contents: BTreeMap::new(),
            sequence: 0,
            hosts: (0..hosts).map(|_| Host { is_up: true, next_port: 40_000 }).collect(),
            processes: Vec::new(),
            sockets: Vec::new(),
            listeners: BTreeMap::new(),
            unix: unix::UnixSockets::default(),
            cuts: BTreeMap::new(),
            signals: BTreeSet::new(),
            digest: seed,
        }))
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now_ns)
    }

    pub(super) fn add_process(
        &mut self,
        host: HostId,
        (descriptors_max, descriptors_real): (u64, u64),
    ) -> ProcessId {
        self.processes.push(Process {
            host,
            is_alive: true,
            ready: Vec::new(),
            found: None,
            tokens: BTreeMap::new(),
            descriptors_max,
            descriptors_real,
            descriptors: 0,
            poll_fails: false,
            closes_hang: false,
            connects: 0,
            accepts: 0,
        });
        self.processes.len() - 1
    }

    /// When the next thing arrives.
    pub(super) fn next_ns(&self) -> u64 {
        self.arrivals.peek().map_or(u64::MAX, |Reverse((at_ns, _))| *at_ns)
    }

    /// Lets time pass, and what is due arrive.
    pub(super) fn advance(&mut self, to_ns: u64) {
        while let Some(&Reverse((at_ns, number))) = self.arrivals.peek()
            && at_ns <= to_ns
        {
            self.arrivals.pop();
            self.now_ns = self.now_ns.max(at_ns);
            if let Some(arrival) = self.contents.remove(&number) {
                self.deliver(arrival);
            }
        }
        self.now_ns = self.now_ns.max(to_ns);
    }

    /// Processes for which something has become ready since the last call.
    pub(super) fn take_signals(&mut self) -> BTreeSet<ProcessId> {
        std::mem::take(&mut self.signals)
    }

    /// Mixes what happened into the digest.
    pub(super) fn note(&mut self, what: u64, number: u64) {
        let word = self.now_ns ^ what << 56 ^ number << 32;
        self.digest = (self.digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn send_at(&mut self, at_ns: u64, arrival: Arrival) {
        self.sequence += 1;
        self.arrivals.push(Reverse((at_ns, self.sequence)));
        self.contents.insert(self.sequence, arrival);
    }

    /// The way from one host to another, in nanoseconds.
    fn draw_delay(&mut self, a: HostId, b: HostId) -> u64 {
        let (least, largest) = self.conditions.delay_ns;
        let (least, largest) = if a == b { (1_000, 20_000) } else { (least, largest) };
        self.rng.between(least, largest)
    }

    fn happens(&mut self, probability: Probability) -> bool {
        probability != Probability::NEVER && self.rng.chance(probability)
    }

    /// Tells a process that a token is ready.
    pub(super) fn notify(&mut self, process: ProcessId, token: usize) {
        let entry = &mut self.processes[process];
        if entry.is_alive {
            if !entry.ready.contains(&token) {
                entry.ready.push(token);
            }
            self.signals.insert(process);
        }
    }

    pub(super) fn has_ready(&self, process: ProcessId) -> bool {
        let process = &self.processes[process];
        !process.ready.is_empty() || process.found.is_some()
    }

    /// The wait of a process ends: what is ready by now is what its turn will see, whenever that begins.
    pub(super) fn end_wait(&mut self, process: ProcessId) {
        let entry = &mut self.processes[process];
        if entry.found.is_none() {
            entry.found = Some(std::mem::take(&mut entry.ready));
        }
    }

    /// A process that does not poll has seen what was found.
    pub(super) fn forget_found(&mut self, process: ProcessId) {
        self.processes[process].found = None;
    }

    /// Nothing is scarce or cut short any more.
    pub(super) fn calm(&mut self) {
        let conditions = &mut self.conditions;
        (conditions.scarce, conditions.scarce_shm) = (Probability::NEVER, Probability::NEVER);
        self.processes.iter_mut().for_each(|process| process.closes_hang = false);
    }

    /// What a poll tells, at most `count`; the rest stays.
    fn take_ready(&mut self, process: ProcessId, count: usize) -> Vec<Ready> {
        let entry = &mut self.processes[process];
        let mut tokens = entry.found.take().unwrap_or_else(|| std::mem::take(&mut entry.ready));
        if tokens.len() > count {
            let mut rest = tokens.split_off(count);
            rest.extend(entry.ready.iter().filter(|token| !tokens.contains(token)));
            rest.dedup();
            entry.ready = rest;
        }
        let is_writable = |token| {
            let socket = self.processes[process].tokens.get(&token);
            socket.is_some_and(|&socket| self.is_writable(socket))
        };
        tokens.into_iter().map(|token| Ready { token, is_writable: is_writable(token) }).collect()
    }

    /// Cuts two hosts off from each other. What is under way waits, as TCP would send it again.
    pub(super) fn cut(&mut self, a: HostId, b: HostId) {
        if a != b {
            self.cuts.entry((a.min(b), a.max(b))).or_default();
        }
    }

    pub(super) fn heal(&mut self, a: HostId, b: HostId) {
        let mut waiting = self.cuts.remove(&(a.min(b), a.max(b))).unwrap_or_default();
        // What was sent shortly before and has not come to the cut yet must not overtake what waits there. No delay is
        // longer than the one below, so that it would have come before that time, and now comes at it.
        let held: BTreeSet<_> = waiting.iter().filter_map(Arrival::receiver).collect();
        let is_behind = |arrival: &Arrival| arrival.receiver().is_some_and(|to| held.contains(&to));
        let behind = self.contents.iter().filter(|(_, arrival)| is_behind(arrival));
        let behind: Vec<u64> = behind.map(|(number, _)| *number).collect();
        waiting.extend(behind.iter().filter_map(|number| self.contents.remove(number)));
        for arrival in waiting {
            let at_ns = self.now_ns + self.conditions.delay_ns.1;
            // Connections keep their order: what is sent from now on comes later.
            if let Some(to) = arrival.receiver() {
                let floor = &mut self.sockets[to].arrival_floor_ns;
                *floor = (*floor).max(at_ns);
            }
            self.send_at(at_ns, arrival);
        }
    }

    pub(super) fn heal_all(&mut self) {
        let cuts: Vec<_> = self.cuts.keys().copied().collect();
        cuts.into_iter().for_each(|(a, b)| self.heal(a, b));
    }

    /// A host loses power, or has it again. Its processes are gone, and nobody is told.
    pub(super) fn set_power(&mut self, host: HostId, is_up: bool) {
        self.hosts[host].is_up = is_up;
        if !is_up {
            let all = 0..self.processes.len();
            let here: Vec<_> = all.filter(|&id| self.processes[id].host == host).collect();
            here.into_iter().for_each(|process| self.forget_process(process, false));
        }
    }

    pub(super) fn is_up(&self, host: HostId) -> bool {
        self.hosts[host].is_up
    }

    /// A process has ended; the kernel closes what it had, and says so unless power has gone.
    pub(super) fn forget_process(&mut self, process: ProcessId, says_so: bool) {
        if !std::mem::replace(&mut self.processes[process].is_alive, false) {
            return;
        }
        self.listeners.retain(|_, listening| listening.process != process);
        for id in 0..self.sockets.len() {
            if self.sockets[id].process == process {
                if says_so { self.close(id) } else { self.sockets[id].vanish() }
            }
        }
        self.close_guests_of(process);
        let entry = &mut self.processes[process];
        entry.ready.clear();
        entry.found = None;
        entry.tokens.clear();
        entry.descriptors = 0;
    }
}
