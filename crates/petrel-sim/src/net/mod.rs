//! A network of processes in virtual time: TCP and Unix sockets as a kernel presents them to one readiness
//! loop per process.
//!
//! Streams deliver in order, in arbitrary pieces, delayed or blocked by partitions. The network shows
//! behaviour of sockets that is rare in tests: short reads and writes, interrupted calls, full buffers,
//! resets that discard unread bytes, connections without descriptors, and silence.

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

use crate::fabric::FabricHandle;
use crate::rng::{Probability, Rng};

pub(crate) use system::{NetLink, SimNetwork, SimUnixConnection};
pub(crate) use tcp::SocketId;
pub(crate) use unix::Memory;

/// A process: the owner of sockets, and of one readiness loop.
pub(crate) type ProcessId = usize;
/// A host: one address, a power switch, and a place in the network.
pub(crate) type HostId = usize;

pub(crate) type NetRef = Rc<RefCell<Net>>;

/// The properties of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    /// Minimum and maximum delay between two hosts. Processes of one host have shorter delays.
    pub(crate) delay_ns: (u64, u64),
    /// Capacity of a connection between its two ends, in bytes.
    pub(crate) window_bytes: usize,
    /// How often a read or a write is short or interrupted.
    pub(crate) choppy: Probability,
    /// How often a reset discards unread bytes.
    pub(crate) harsh_resets: Probability,
    /// How often the system refuses to make or register a socket.
    pub(crate) scarce: Probability,
    /// How often shared memory is unavailable, or a rendezvous is full.
    pub(crate) scarce_shm: Probability,
    pub(crate) family: Family,
    /// Hosts with this number of addresses each are machines, whose processes share memory.
    pub(crate) machine_hosts: HostId,
    /// The MTU of all paths, in bytes of IP packet.
    pub(crate) mtu: usize,
}

/// The addresses of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Loopback,
    V4,
    V6,
    /// As hosts of a fabric: `ControlNetwork::address_of`.
    Fabric,
}

impl Family {
    pub(crate) fn address(self, host: HostId) -> IpAddr {
        let number = host as u16 + 1;
        match self {
            Self::Loopback => Ipv4Addr::new(127, 0, 0, number as u8).into(),
            Self::V4 => Ipv4Addr::new(10, 0, 0, number as u8).into(),
            Self::V6 => Ipv6Addr::new(0xfd00, 0, 0, number, 0, 0, 0, 1).into(),
            Self::Fabric => {
                let [high, low] = (host as u16).to_be_bytes();
                Ipv4Addr::new(10, 0, high, low).into()
            }
        }
    }
}

pub(crate) struct Net {
    now_ns: u64,
    base: Instant,
    pub(crate) rng: Rng,
    pub(crate) conditions: Conditions,
    arrivals: BinaryHeap<Reverse<(u64, u64)>>,
    /// Arrivals by their number.
    contents: BTreeMap<u64, Arrival>,
    sequence: u64,
    hosts: Vec<Host>,
    pub(crate) processes: Vec<Process>,
    sockets: Vec<tcp::Socket>,
    listeners: BTreeMap<SocketAddr, tcp::Listening>,
    unix: unix::UnixSockets,
    /// Cut pairs of hosts, the lower host first, and the waiting arrivals.
    cuts: BTreeMap<(HostId, HostId), Vec<Arrival>>,
    /// The fabric whose partitions cut hosts off as well, and the time between two looks for the end of a partition.
    partitions: Option<(FabricHandle, u64)>,
    /// Segments of memory so far.
    segments: u64,
    /// Processes with a newly ready token.
    signals: BTreeSet<ProcessId>,
    pub(crate) digest: u64,
}

struct Host {
    is_up: bool,
    next_port: u16,
}

/// The kernel's state of a process.
pub(crate) struct Process {
    pub(crate) host: HostId,
    pub(crate) is_alive: bool,
    /// Ready tokens, in order; each once.
    ready: Vec<usize>,
    /// The result of the last poll, until the turn begins.
    found: Option<Vec<usize>>,
    tokens: BTreeMap<usize, SocketId>,
    /// Descriptor counts: assumed limit, real limit, and in use.
    pub(crate) descriptors_max: u64,
    pub(crate) descriptors_real: u64,
    pub(crate) descriptors: u64,
    pub(crate) poll_fails: bool,
    /// Whether closing streams of peers hangs.
    pub(crate) closes_hang: bool,
    /// Outgoing and accepted connections.
    pub(crate) connects: u64,
    pub(crate) accepts: u64,
}

#[derive(Debug)]
enum Arrival {
    Syn {
        from: SocketId,
        attempt: u32,
    },
    SynAck {
        to: SocketId,
        peer: SocketId,
    },
    Refused {
        to: SocketId,
    },
    Bytes {
        to: SocketId,
        from: SocketId,
        bytes: Box<[u8]>,
    },
    End {
        to: SocketId,
        from: SocketId,
    },
    Reset {
        to: SocketId,
    },
    Room {
        to: SocketId,
    },
    /// A look for the end of a partition between two hosts.
    Look(HostId, HostId),
}

impl Net {
    pub(crate) fn new(rng: Rng, conditions: Conditions, hosts: usize) -> NetRef {
        Rc::new(RefCell::new(Self {
            now_ns: 0,
            base: Instant::now(),
            rng,
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
            partitions: None,
            segments: 0,
            signals: BTreeSet::new(),
            digest: 0,
        }))
    }

    /// Lets partitions of a fabric cut hosts off, too. Every `look_ns`, bytes that wait look for the end of their partition.
    pub(crate) fn follow_partitions(&mut self, fabric: &FabricHandle, look_ns: u64) {
        self.partitions = Some((fabric.clone(), look_ns));
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub(crate) fn instant(&self) -> Instant {
        self.base + Duration::from_nanos(self.now_ns)
    }

    pub(crate) fn add_process(
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

    /// Returns the time of the next arrival.
    pub(crate) fn next_ns(&self) -> u64 {
        self.arrivals.peek().map_or(u64::MAX, |Reverse((at_ns, _))| *at_ns)
    }

    /// Advances time, and delivers due arrivals.
    pub(crate) fn advance(&mut self, to_ns: u64) {
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

    /// Returns processes with a token that has become ready since the last call.
    pub(crate) fn take_signals(&mut self) -> BTreeSet<ProcessId> {
        std::mem::take(&mut self.signals)
    }

    pub(crate) fn add_to_digest(&mut self, event: u64, number: u64) {
        let word = self.now_ns ^ event << 56 ^ number << 32;
        self.digest = (self.digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }

    fn send_at(&mut self, at_ns: u64, arrival: Arrival) {
        self.sequence += 1;
        self.arrivals.push(Reverse((at_ns, self.sequence)));
        self.contents.insert(self.sequence, arrival);
    }

    /// Draws the delay from one host to another, in nanoseconds.
    fn draw_delay(&mut self, a: HostId, b: HostId) -> u64 {
        let (least, largest) = self.conditions.delay_ns;
        let (least, largest) = if a == b { (1_000, 20_000) } else { (least, largest) };
        self.rng.between(least, largest)
    }

    fn happens(&mut self, probability: Probability) -> bool {
        probability != Probability::NEVER && self.rng.chance(probability)
    }

    /// Marks a token of a process as ready.
    pub(crate) fn notify(&mut self, process: ProcessId, token: usize) {
        let entry = &mut self.processes[process];
        if entry.is_alive {
            if !entry.ready.contains(&token) {
                entry.ready.push(token);
            }
            self.signals.insert(process);
        }
    }

    pub(crate) fn has_ready(&self, process: ProcessId) -> bool {
        let process = &self.processes[process];
        !process.ready.is_empty() || process.found.is_some()
    }

    /// Ends the wait of a process: its next turn, whenever it begins, sees exactly the tokens ready by now.
    pub(crate) fn end_wait(&mut self, process: ProcessId) {
        let entry = &mut self.processes[process];
        if entry.found.is_none() {
            entry.found = Some(std::mem::take(&mut entry.ready));
        }
    }

    /// Discards the found tokens of a process that does not poll.
    pub(crate) fn forget_found(&mut self, process: ProcessId) {
        self.processes[process].found = None;
    }

    pub(crate) fn end_faults(&mut self) {
        let conditions = &mut self.conditions;
        (conditions.scarce, conditions.scarce_shm) = (Probability::NEVER, Probability::NEVER);
        self.processes.iter_mut().for_each(|process| process.closes_hang = false);
    }

    /// Returns the result of a poll, at most `count` tokens; the rest stays.
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
        let ready = |token| Ready { token, is_writable: is_writable(token), is_read_closed: true };
        tokens.into_iter().map(ready).collect()
    }

    /// Cuts two hosts off from each other. Bytes in flight wait, because TCP would retransmit them.
    pub(crate) fn cut(&mut self, a: HostId, b: HostId) {
        if a != b {
            self.cuts.entry((a.min(b), a.max(b))).or_default();
        }
    }

    /// Returns true if no packet gets from one of two hosts to the other. The first that finds out cuts the hosts off until the partition
    /// ends.
    fn find_cut(&mut self, a: HostId, b: HostId) -> bool {
        if self.cuts.contains_key(&(a.min(b), a.max(b))) {
            return true;
        }
        let is_cut = self.is_partitioned(a, b);
        if is_cut && let Some((_, look_ns)) = self.partitions {
            self.cut(a, b);
            self.send_at(self.now_ns + look_ns, Arrival::Look(a, b));
        }
        is_cut
    }

    fn is_partitioned(&self, a: HostId, b: HostId) -> bool {
        let [here, there] = [a, b].map(|host| crate::fabric::HostId(host as u16));
        let fabric = self.partitions.as_ref().map(|(fabric, _)| fabric);
        fabric.is_some_and(|fabric| fabric.is_cut(here, there) || fabric.is_cut(there, here))
    }

    fn look(&mut self, a: HostId, b: HostId) {
        match self.partitions {
            Some((_, look_ns)) if self.is_partitioned(a, b) => {
                self.send_at(self.now_ns + look_ns, Arrival::Look(a, b));
            }
            _ => self.heal(a, b),
        }
    }

    /// Ends the cut between two hosts: the bytes that waited arrive in order.
    pub(crate) fn heal(&mut self, a: HostId, b: HostId) {
        let mut waiting = self.cuts.remove(&(a.min(b), a.max(b))).unwrap_or_default();
        // Bytes that were sent shortly before and have not reached the cut must not overtake the waiting ones. No delay
        // is longer than the delay below: the bytes would have arrived before that time, and now arrive exactly then.
        let held: BTreeSet<_> = waiting.iter().filter_map(Arrival::receiver).collect();
        let is_behind = |arrival: &Arrival| arrival.receiver().is_some_and(|to| held.contains(&to));
        let behind = self.contents.iter().filter(|(_, arrival)| is_behind(arrival));
        let behind: Vec<u64> = behind.map(|(number, _)| *number).collect();
        waiting.extend(behind.iter().filter_map(|number| self.contents.remove(number)));
        for arrival in waiting {
            let at_ns = self.now_ns + self.conditions.delay_ns.1;
            // Connections keep their order: later bytes arrive later.
            if let Some(to) = arrival.receiver() {
                let floor = &mut self.sockets[to].arrival_floor_ns;
                *floor = (*floor).max(at_ns);
            }
            self.send_at(at_ns, arrival);
        }
    }

    pub(crate) fn heal_all(&mut self) {
        let cuts: Vec<_> = self.cuts.keys().copied().collect();
        cuts.into_iter().for_each(|(a, b)| self.heal(a, b));
    }

    /// Cuts or restores the power of a host. A cut ends its processes without notice to any peer.
    pub(crate) fn set_power(&mut self, host: HostId, is_up: bool) {
        self.hosts[host].is_up = is_up;
        if !is_up {
            let all = 0..self.processes.len();
            let here: Vec<_> = all.filter(|&id| self.processes[id].host == host).collect();
            here.into_iter().for_each(|process| self.forget_process(process, false));
        }
    }

    pub(crate) fn is_up(&self, host: HostId) -> bool {
        self.hosts[host].is_up
    }

    /// Ends a process; the kernel closes its sockets, and notifies the peers unless power is lost.
    pub(crate) fn forget_process(&mut self, process: ProcessId, notifies_peers: bool) {
        if !std::mem::replace(&mut self.processes[process].is_alive, false) {
            return;
        }
        self.listeners.retain(|_, listening| listening.process != process);
        for id in 0..self.sockets.len() {
            if self.sockets[id].process == process {
                if notifies_peers { self.close(id) } else { self.sockets[id].vanish() }
            }
        }
        self.close_unix_of(process);
        let entry = &mut self.processes[process];
        entry.ready.clear();
        entry.found = None;
        entry.tokens.clear();
        entry.descriptors = 0;
    }
}
