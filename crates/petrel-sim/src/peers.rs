//! The peers of a simulated transport.

use std::collections::BTreeMap;

use petrel_transport::{LinkError, PeerId};

use crate::fabric::SimAddr;

/// Maximum number of peers of one transport.
const PEERS_MAX: usize = 1 << 20;

/// The peers of a transport, by number and by address. A repeatedly added address keeps its peer, which
/// stays until the matching number of removals.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    slots: Vec<Option<Peer>>,
    free: Vec<PeerId>,
    numbers: Numbers,
}

#[derive(Debug)]
struct Peer {
    addr: SimAddr,
    /// The source ports after the first, in the order of their announcement.
    further_ports: Vec<u16>,
    added_count: u32,
    /// The longest frame that all links take.
    max_frame_bytes: usize,
}

/// The sender of a packet: a peer, and which of its source ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) peer: PeerId,
    /// 0 for the port of the peer's address.
    pub(crate) source: u8,
}

impl Peers {
    pub(crate) fn add(
        &mut self,
        addr: SimAddr,
        max_frame_bytes: usize,
    ) -> Result<PeerId, LinkError> {
        if let Some(Sender { peer: id, source: 0 }) = self.find(addr) {
            if let Some(peer) = &mut self.slots[id.0 as usize] {
                peer.added_count += 1;
                peer.max_frame_bytes = peer.max_frame_bytes.min(max_frame_bytes);
            }
            return Ok(id);
        }
        if self.slots.len() - self.free.len() >= PEERS_MAX {
            return Err(LinkError::TooManyPeers { limit: PEERS_MAX });
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            PeerId((self.slots.len() - 1) as u32)
        });
        let (further_ports, added_count) = (Vec::new(), 1);
        self.slots[id.0 as usize] =
            Some(Peer { addr, further_ports, added_count, max_frame_bytes });
        self.numbers.set(addr, Some(Sender { peer: id, source: 0 }));
        Ok(id)
    }

    /// Accepts packets of a peer from further source ports, which replace those of an earlier
    /// announcement. A port of an earlier announcement moves to the later peer, and a peer keeps the port of its address: live
    /// processes of a simulation have no port in common, and no frame need be delivered for several peers.
    pub(crate) fn set_further_ports(&mut self, id: PeerId, ports: &[u16]) {
        let Some(Some(peer)) = self.slots.get_mut(id.0 as usize) else { return };
        let host = peer.addr.host;
        let before = std::mem::replace(&mut peer.further_ports, ports.to_vec());
        self.forget_ports(SimAddr::new(host, 0), id, &before);
        for (&port, source) in ports.iter().zip(1u8..) {
            let addr = SimAddr::new(host, port);
            if self.find(addr).is_none_or(|before| before.source > 0) {
                self.numbers.set(addr, Some(Sender { peer: id, source }));
            }
        }
    }

    fn forget_ports(&mut self, host: SimAddr, id: PeerId, ports: &[u16]) {
        for &port in ports {
            let addr = SimAddr { port, ..host };
            let is_own = |from: Sender| from.peer == id && from.source > 0;
            if self.find(addr).is_some_and(is_own) {
                self.numbers.set(addr, None);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: PeerId) {
        let Some(slot) = self.slots.get_mut(id.0 as usize) else { return };
        let Some(peer) = slot else { return };
        peer.added_count -= 1;
        if peer.added_count == 0 {
            let (addr, ports) = (peer.addr, std::mem::take(&mut peer.further_ports));
            *slot = None;
            self.free.push(id);
            self.numbers.set(addr, None);
            self.forget_ports(addr, id, &ports);
        }
    }

    pub(crate) fn addr(&self, id: PeerId) -> Option<SimAddr> {
        self.slots.get(id.0 as usize)?.as_ref().map(|peer| peer.addr)
    }

    /// Returns the longest frame to a peer; 0 without the peer.
    pub(crate) fn max_frame_bytes(&self, id: PeerId) -> usize {
        let slot = self.slots.get(id.0 as usize).and_then(Option::as_ref);
        slot.map_or(0, |peer| peer.max_frame_bytes)
    }

    pub(crate) fn find(&self, addr: SimAddr) -> Option<Sender> {
        self.numbers.get(addr)
    }
}

/// Ports from this number on are looked up in a tree, because all ports would make a host's table large.
const TABLE_PORTS: u16 = 64;

/// The peer of each address. Every received packet needs a lookup. Therefore the usual addresses of
/// clusters, hosts and ports counted from zero, are in tables.
#[derive(Debug, Default)]
struct Numbers {
    /// The packed sender, or 0 without a peer, by host and then by port.
    tables: Vec<Vec<u32>>,
    others: BTreeMap<SimAddr, Sender>,
}

/// Bits of a packed sender for the peer's number plus 1; the source's index is above them.
const NUMBER_BITS: u32 = 24;
const _: () = assert!(PEERS_MAX < 1 << NUMBER_BITS, "a number plus 1 has room");

fn pack(from: Sender) -> u32 {
    u32::from(from.source) << NUMBER_BITS | (from.peer.0 + 1)
}

fn unpack(packed: u32) -> Option<Sender> {
    let number = packed & ((1 << NUMBER_BITS) - 1);
    let source = (packed >> NUMBER_BITS) as u8;
    Some(Sender { peer: PeerId(number.checked_sub(1)?), source })
}

impl Numbers {
    #[inline]
    fn get(&self, addr: SimAddr) -> Option<Sender> {
        if addr.port >= TABLE_PORTS {
            return self.others.get(&addr).copied();
        }
        unpack(*self.tables.get(usize::from(addr.host.0))?.get(usize::from(addr.port))?)
    }

    fn set(&mut self, addr: SimAddr, from: Option<Sender>) {
        let (host, port) = (usize::from(addr.host.0), usize::from(addr.port));
        if addr.port >= TABLE_PORTS {
            match from {
                Some(from) => self.others.insert(addr, from),
                None => self.others.remove(&addr),
            };
            return;
        }
        if self.tables.len() <= host {
            self.tables.resize(host + 1, Vec::new());
        }
        let table = &mut self.tables[host];
        if table.len() <= port {
            table.resize(port + 1, 0);
        }
        table[port] = from.map_or(0, pack);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::HostId;

    #[test]
    fn peers__are_found_by_address_until_every_addition_is_removed() {
        let mut peers = Peers::default();
        let addresses: Vec<SimAddr> = [0, 1, 63, 64, 65_535]
            .into_iter()
            .flat_map(|port| [0, 3, 4_095].map(|host| SimAddr::new(HostId(host), port)))
            .collect();
        let ids: Vec<PeerId> =
            addresses.iter().map(|&addr| peers.add(addr, 1_472).unwrap()).collect();
        for (&addr, &id) in addresses.iter().zip(&ids) {
            let found = peers.find(addr).unwrap();
            assert_eq!((found, peers.addr(id)), (Sender { peer: id, source: 0 }, Some(addr)));
            assert_eq!(peers.add(addr, 1_472).unwrap(), id, "the same peer");
        }
        assert_eq!(peers.find(SimAddr::new(HostId(1), 1)), None);
        for &id in &ids {
            peers.remove(id);
            assert!(peers.addr(id).is_some(), "it was added twice");
            peers.remove(id);
        }
        assert!(addresses.iter().all(|&addr| peers.find(addr).is_none()));
        assert!(
            ids.contains(&peers.add(addresses[4], 1_472).unwrap()),
            "a number that is free again"
        );
    }

    #[test]
    fn set_further_ports__are_the_peer_s_until_others_replace_them() {
        let mut peers = Peers::default();
        let at = |port| SimAddr::new(HostId(3), port);
        let [one, other] = [1, 2].map(|port| peers.add(at(port), 1_472).unwrap());
        let found = |peers: &Peers, port| peers.find(at(port)).map(|from| (from.peer, from.source));
        peers.set_further_ports(one, &[40_000, 9, 2]);
        assert_eq!(found(&peers, 40_000), Some((one, 1)));
        assert_eq!(found(&peers, 9), Some((one, 2)));
        assert_eq!(found(&peers, 2), Some((other, 0)), "the address of another peer");
        peers.set_further_ports(other, &[40_000]);
        assert_eq!(found(&peers, 40_000), Some((other, 1)), "the later announcement counts");
        peers.set_further_ports(one, &[9]);
        assert_eq!((found(&peers, 40_000), found(&peers, 9)), (Some((other, 1)), Some((one, 1))));
        peers.remove(one);
        assert_eq!((found(&peers, 1), found(&peers, 9)), (None, None));
        assert_eq!(found(&peers, 2), Some((other, 0)));
        peers.set_further_ports(other, &[]);
        assert_eq!(found(&peers, 40_000), None);
    }
}
