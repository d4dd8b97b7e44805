//! The peer table: addresses by [`PeerId`] for sending, and back for receiving.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::addr::{AddrHash, AddrKey, RawAddr};
use super::plan::Target;
use crate::{LinkError, PeerId};

/// Most peers of one transport. An endpoint with 20,000 sessions is the design's aim; three times
/// that many processes to talk to leaves room, at about 100 bytes each.
const PEERS_MAX: usize = 65_536;

/// One peer: where it is, and what it takes.
pub(super) struct Peer {
    pub(super) name: RawAddr,
    pub(super) max_frame_bytes: usize,
    addr: SocketAddr,
    key: AddrKey,
    /// The lane that its frames have in the current burst, or had in an earlier one.
    lane: u32,
    /// Links to this address that are not yet removed.
    link_count: u32,
    /// Whether all links since the first one agreed to ECN.
    is_ecn: bool,
}

pub(super) struct PeerTable {
    slots: Vec<Option<Peer>>,
    free: Vec<u32>,
    by_key: HashMap<AddrKey, PeerId, AddrHash>,
    /// Who sent the previous datagram: most often who sends the next one.
    last_found: Option<(AddrKey, PeerId)>,
    /// Peers that agreed to ECN.
    ecn_count: usize,
}

impl Peer {
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl PeerTable {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::with_hasher(AddrHash::new()),
            last_found: None,
            ecn_count: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// How many peers agreed to ECN.
    pub(super) fn ecn_count(&self) -> usize {
        self.ecn_count
    }

    /// Whether a peer is there and agreed to ECN.
    #[inline]
    pub(super) fn is_ecn(&self, peer: PeerId) -> bool {
        self.get(peer).is_some_and(|peer| peer.is_ecn)
    }

    /// The address of the only peer.
    pub(super) fn only(&self) -> Option<SocketAddr> {
        let mut peers = self.by_key.values();
        let (Some(&peer), None) = (peers.next(), peers.next()) else { return None };
        self.get(peer).map(|peer| peer.addr)
    }

    #[inline]
    pub(super) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.slots.get(peer.0 as usize)?.as_ref()
    }

    /// Where frames to a peer go.
    #[inline]
    pub(super) fn target(&mut self, peer: PeerId) -> Option<Target<'_>> {
        let Peer { name, max_frame_bytes, lane, .. } =
            self.slots.get_mut(peer.0 as usize)?.as_mut()?;
        Some(Target { peer, name, datagram_bytes_max: *max_frame_bytes, lane })
    }

    /// Whose address `key` is.
    #[inline]
    pub(super) fn find(&mut self, key: AddrKey) -> Option<PeerId> {
        match self.last_found {
            Some((last, peer)) if last == key => Some(peer),
            _ => self.look_up(key),
        }
    }

    fn look_up(&mut self, key: AddrKey) -> Option<PeerId> {
        let peer = *self.by_key.get(&key)?;
        self.last_found = Some((key, peer));
        Some(peer)
    }

    /// Adds a link. A second one to the same address shares the slot, since nothing in a datagram
    /// tells them apart, and its limit replaces the first one's: it is the peer's latest word.
    pub(super) fn add(
        &mut self,
        addr: SocketAddr,
        max_frame_bytes: usize,
        is_ecn: bool,
    ) -> Result<PeerId, LinkError> {
        let key = AddrKey::from(addr);
        if let Some(&peer) = self.by_key.get(&key) {
            let known = self.slots[peer.0 as usize].as_mut().expect("keys point to peers");
            known.link_count += 1;
            known.max_frame_bytes = max_frame_bytes;
            // One that agreed shares the socket's address with one that did not.
            if known.is_ecn && !is_ecn {
                known.is_ecn = false;
                self.ecn_count -= 1;
            }
            return Ok(peer);
        }
        let peer = self.free_slot()?;
        let name = RawAddr::from(addr);
        self.slots[peer.0 as usize] =
            Some(Peer { name, max_frame_bytes, addr, key, lane: 0, link_count: 1, is_ecn });
        self.by_key.insert(key, peer);
        self.ecn_count += usize::from(is_ecn);
        Ok(peer)
    }

    fn free_slot(&mut self) -> Result<PeerId, LinkError> {
        if let Some(index) = self.free.pop() {
            return Ok(PeerId(index));
        }
        if self.slots.len() == PEERS_MAX {
            return Err(LinkError::TooManyPeers { limit: PEERS_MAX });
        }
        self.slots.push(None);
        Ok(PeerId((self.slots.len() - 1) as u32))
    }

    /// Removes one link; the peer goes with its last one.
    pub(super) fn remove(&mut self, peer: PeerId) {
        let Some(slot) = self.slots.get_mut(peer.0 as usize) else { return };
        let Some(known) = slot else { return };
        known.link_count -= 1;
        if known.link_count == 0 {
            self.by_key.remove(&known.key);
            self.ecn_count -= usize::from(known.is_ecn);
            self.last_found = None;
            self.free.push(peer.0);
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(host: u16, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, (host >> 8) as u8, host as u8], port))
    }

    #[test]
    fn find__knows_peers_by_address_until_removed() {
        let mut table = PeerTable::new();
        let first = table.add(addr(1, 5), 2000, false).unwrap();
        let second = table.add(addr(1, 6), 3000, false).unwrap();
        assert_ne!(first, second);
        for _ in 0..2 {
            assert_eq!(table.find(addr(1, 5).into()), Some(first));
            assert_eq!(table.find(addr(1, 6).into()), Some(second));
            assert_eq!(table.find(addr(2, 5).into()), None);
        }
        table.remove(first);
        assert_eq!(table.find(addr(1, 5).into()), None);
        assert!(table.get(first).is_none());
        assert_eq!(table.get(second).unwrap().max_frame_bytes, 3000);
        table.remove(first);
        table.remove(PeerId(77));
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn add__again_shares_the_peer_and_updates_its_limit() {
        let mut table = PeerTable::new();
        let peer = table.add(addr(1, 5), 2000, false).unwrap();
        assert_eq!(table.add(addr(1, 5), 3000, false).unwrap(), peer);
        assert_eq!(table.get(peer).unwrap().max_frame_bytes, 3000);
        table.remove(peer);
        assert_eq!(table.find(addr(1, 5).into()), Some(peer));
        table.remove(peer);
        assert_eq!(table.find(addr(1, 5).into()), None);
    }

    #[test]
    fn add__stops_at_the_limit_and_reuses_slots() {
        let mut table = PeerTable::new();
        let nth = |n: usize| addr((n / 1000) as u16, (n % 1000) as u16 + 1);
        let first = table.add(nth(0), 2000, false).unwrap();
        (1..PEERS_MAX).for_each(|n| _ = table.add(nth(n), 2000, false).unwrap());
        let full = table.add(nth(PEERS_MAX), 2000, false);
        assert!(matches!(full, Err(LinkError::TooManyPeers { limit: PEERS_MAX })));
        table.remove(first);
        assert_eq!(table.add(nth(PEERS_MAX), 2000, false).unwrap(), first);
    }
}
