//! The peer table: addresses by [`PeerId`] for sending, and back for receiving.
//!
//! Every sealed link is a peer of its own. Its datagrams name the link, so that the peer is found by its path (see `sealed`), and not by the
//! address.

mod sealed;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use petrel_planted::planted;

use super::addr::{AddrHash, AddrKey, RawAddr};
use super::plan::Target;
use crate::{LinkError, PeerId};
use sealed::{Sealed, SealedEnd};

/// Most peers of one transport. The design aims at 20,000 sessions of an endpoint; three times that
/// number of peer processes leaves room, at about 200 bytes per process.
const PEERS_MAX: usize = 65_536;

/// Most addresses with a further source port in common. Every process behind an IP address can name all ports there: a
/// frame is delivered once for every address.
const CLAIMS_MAX: usize = 16;

/// The terms of a link: two links share a peer only if all terms are equal. So no link changes a
/// limit of another, whichever side opened it (`docs/wire-protocol.md` §8.4).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Terms {
    key: AddrKey,
    max_frame_bytes: usize,
    is_ecn: bool,
    /// The address from which its datagrams are sent, if not the kernel's choice.
    source: Option<IpAddr>,
    /// The announced further source ports.
    further_ports: Arc<[u16]>,
}

/// One peer: address and limits.
pub(super) struct Peer {
    pub(super) name: RawAddr,
    pub(super) max_frame_bytes: usize,
    addr: SocketAddr,
    terms: Terms,
    /// The queue of the peer's frames in the current or an earlier burst.
    lane: u32,
    /// Remaining plain links with these terms; 0 if the peer is sealed.
    link_count: u32,
    /// The id under which datagrams from the address are delivered.
    source: PeerId,
    /// The keys of a sealed link.
    sealed: Option<Box<SealedEnd>>,
}

/// An address peers have.
struct Source {
    /// The address's first peer, with a slot while the address has any peer.
    id: PeerId,
    /// Peers with links, each with different terms.
    peer_count: u32,
}

/// The announcement of a further source port by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FurtherSource {
    /// The id of delivered datagrams: the id of the peer's address.
    pub(super) peer: PeerId,
    /// The number of the port in the announcement, from 1 on.
    pub(super) source: u8,
    /// The peer that has announced the port.
    announced_by: PeerId,
}

pub(super) struct PeerTable {
    slots: Vec<Option<Peer>>,
    free: Vec<u32>,
    sources: HashMap<AddrKey, Source, AddrHash>,
    /// The announcements of every further source port, in order: a link's announcement takes nothing away from another link.
    further: HashMap<AddrKey, Vec<FurtherSource>, AddrHash>,
    /// Whether a further source port, or a source port of a sealed link, may be the port of a plain peer's address, too.
    is_shared: bool,
    sealed: Sealed,
    by_terms: HashMap<Terms, PeerId, AddrHash>,
    /// The sender of the previous datagram: most often also the next one's.
    last_found: Option<(AddrKey, PeerId)>,
    /// Peers with links.
    count: usize,
    /// The peers with links that agreed to ECN.
    ecn_count: usize,
    /// The peers with a source address of their own.
    sourced_count: usize,
}

impl Peer {
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(super) fn source_address(&self) -> Option<IpAddr> {
        self.terms.source
    }
}

impl PeerTable {
    pub(super) fn new() -> Self {
        let hash = AddrHash::new();
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            sources: HashMap::with_hasher(hash),
            further: HashMap::with_hasher(hash),
            is_shared: false,
            sealed: Sealed::new(hash),
            by_terms: HashMap::with_hasher(hash),
            last_found: None,
            count: 0,
            ecn_count: 0,
            sourced_count: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The number of peers that agreed to ECN.
    pub(super) fn ecn_count(&self) -> usize {
        self.ecn_count
    }

    /// The number of peers with a source address of their own.
    pub(super) fn sourced_count(&self) -> usize {
        self.sourced_count
    }

    /// Returns the address from which a peer's datagrams are sent, if not the kernel's choice.
    pub(super) fn source_address(&self, peer: PeerId) -> Option<IpAddr> {
        self.get(peer)?.source_address()
    }

    /// Returns true if the peer has links and agreed to ECN.
    #[inline]
    pub(super) fn is_ecn(&self, peer: PeerId) -> bool {
        self.get(peer).is_some_and(|peer| peer.terms.is_ecn)
    }

    /// The address of all peers' datagrams, if there is only one.
    pub(super) fn only(&self) -> Option<SocketAddr> {
        if !self.further.is_empty() {
            return None;
        }
        let sealed = self.sealed.addresses().filter(|key| !self.sources.contains_key(key));
        let mut addresses = self.sources.keys().chain(sealed);
        let (Some(address), None) = (addresses.next(), addresses.next()) else { return None };
        let plain = self.sources.get(address).map(|source| source.id);
        self.slot(plain.or_else(|| self.sealed.any())?).map(|peer| peer.addr)
    }

    fn slot(&self, peer: PeerId) -> Option<&Peer> {
        self.slots.get(peer.0 as usize)?.as_ref()
    }

    /// Returns true if the number is that of a peer, or of an address whose first peer has gone.
    #[inline]
    pub(super) fn is_known(&self, peer: PeerId) -> bool {
        self.slot(peer).is_some()
    }

    /// A peer with links.
    #[inline]
    pub(super) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.slot(peer).filter(|peer| peer.link_count > 0 || peer.sealed.is_some())
    }

    /// The id under which datagrams from a peer's address are delivered.
    pub(super) fn source_of(&self, peer: PeerId) -> PeerId {
        self.slot(peer).map_or(peer, |known| known.source)
    }

    /// The destination of frames to a peer that is not sealed.
    #[inline]
    pub(super) fn target(&mut self, peer: PeerId) -> Option<Target<'_>> {
        let known = self.slots.get_mut(peer.0 as usize)?.as_mut()?;
        let Peer { name, max_frame_bytes, lane, link_count, .. } = known;
        (*link_count > 0).then_some(Target {
            peer,
            name,
            datagram_bytes_max: *max_frame_bytes,
            lane,
        })
    }

    /// The plain peer with the address `key`, if datagrams from there can be for no other peer.
    #[inline]
    pub(super) fn find(&mut self, key: AddrKey) -> Option<PeerId> {
        match self.last_found {
            Some((last, peer)) if last == key => Some(peer),
            _ => self.look_up(key),
        }
    }

    fn look_up(&mut self, key: AddrKey) -> Option<PeerId> {
        let peer = self.find_own(key)?;
        if self.is_shared && (self.further.contains_key(&key) || self.sealed.may_send_from(key)) {
            return None;
        }
        self.last_found = Some((key, peer));
        Some(peer)
    }

    /// Returns true if a further source port may be the port of a plain peer's address, too.
    #[inline]
    pub(super) fn has_shared_ports(&self) -> bool {
        self.is_shared
    }

    /// The plain peer with the address `key`.
    pub(super) fn find_own(&self, key: AddrKey) -> Option<PeerId> {
        let sealed = planted("udp_plain_on_sealed_link").then(|| self.sealed_at(key)).flatten();
        self.sources.get(&key).map(|source| source.id).or(sealed)
    }

    /// The announcements of a further source port `key`, the first one first.
    #[inline]
    pub(super) fn find_further(&self, key: AddrKey) -> &[FurtherSource] {
        self.further.get(&key).map_or(&[], Vec::as_slice)
    }

    /// Gives a link of a peer further source ports: the link moves to the peer with equal terms and `ports`. Returns that peer.
    pub(super) fn accept_ports(
        &mut self,
        peer: PeerId,
        ports: &[u16],
    ) -> Result<PeerId, LinkError> {
        let Some(known) = self.get(peer) else { return Ok(peer) };
        if known.sealed.is_some() {
            self.accept_sealed_ports(peer, ports);
            return Ok(peer);
        }
        if *known.terms.further_ports == *ports {
            return Ok(peer);
        }
        let terms = Terms { further_ports: ports.into(), ..known.terms.clone() };
        if known.link_count == 1 && !self.by_terms.contains_key(&terms) {
            self.change_ports(peer, terms);
            return Ok(peer);
        }
        let moved = self.add_link(known.addr, terms)?;
        self.remove(peer);
        Ok(moved)
    }

    /// Changes the further source ports of a peer with one link.
    fn change_ports(&mut self, peer: PeerId, terms: Terms) {
        let known = self.slots[peer.0 as usize].as_mut().expect("the peer has a link");
        let source = known.source;
        let former = std::mem::replace(&mut known.terms, terms.clone());
        self.by_terms.remove(&former);
        self.forget_ports(peer, &former);
        self.announce_ports(peer, &terms, source);
        self.by_terms.insert(terms, peer);
    }

    /// Notes the further source ports of a new peer.
    fn announce_ports(&mut self, peer: PeerId, terms: &Terms, source: PeerId) {
        self.last_found = None;
        for (index, port) in (1..).zip(terms.further_ports.iter()) {
            let key = terms.key.with_port(*port);
            self.is_shared |= self.sources.contains_key(&key);
            let claims = self.further.entry(key).or_default();
            if claims.len() < CLAIMS_MAX {
                claims.push(FurtherSource { peer: source, source: index, announced_by: peer });
            }
        }
    }

    /// Forgets the further source ports of a peer that has no link any more.
    fn forget_ports(&mut self, peer: PeerId, terms: &Terms) {
        for port in terms.further_ports.iter() {
            let key = terms.key.with_port(*port);
            let Some(claims) = self.further.get_mut(&key) else { continue };
            claims.retain(|claim| claim.announced_by != peer);
            if claims.is_empty() {
                self.further.remove(&key);
            }
        }
        self.note_unshared();
    }

    /// Forgets that ports may be shared, if there are none to share.
    fn note_unshared(&mut self) {
        self.is_shared &= !self.further.is_empty() || self.sealed.has_links();
    }

    /// Replaces the number of a peer's queue, since each source port has queues of its own. Returns
    /// the former number.
    pub(super) fn swap_lane(&mut self, peer: PeerId, lane: u32) -> u32 {
        let known = self.slots.get_mut(peer.0 as usize).and_then(Option::as_mut);
        known.map_or(lane, |known| std::mem::replace(&mut known.lane, lane))
    }

    /// Adds a link. Links with equal terms share a peer; a link with different terms gets a
    /// separate peer. Datagrams do not distinguish peers of an address: delivery is under the
    /// address's [source](PeerTable::source_of).
    pub(super) fn add(
        &mut self,
        addr: SocketAddr,
        max_frame_bytes: usize,
        (is_ecn, source): (bool, Option<IpAddr>),
    ) -> Result<PeerId, LinkError> {
        let (key, further_ports) = (AddrKey::from(addr), Arc::default());
        self.add_link(addr, Terms { key, max_frame_bytes, is_ecn, source, further_ports })
    }

    fn add_link(&mut self, addr: SocketAddr, terms: Terms) -> Result<PeerId, LinkError> {
        let Terms { key, max_frame_bytes, is_ecn, .. } = terms;
        if let Some(&peer) = self.by_terms.get(&terms) {
            let known = self.slots[peer.0 as usize].as_mut().expect("terms point to peers");
            assert!(known.terms == terms && known.link_count > 0, "a peer with links");
            known.link_count += 1;
            return Ok(peer);
        }
        let peer = self.free_slot()?;
        if self.further.contains_key(&key) || self.sealed.may_send_from(key) {
            (self.is_shared, self.last_found) = (true, None);
        }
        let source = self.sources.entry(key).or_insert(Source { id: peer, peer_count: 0 });
        source.peer_count += 1;
        let source = source.id;
        self.announce_ports(peer, &terms, source);
        self.by_terms.insert(terms.clone(), peer);
        self.count += 1;
        self.ecn_count += usize::from(is_ecn);
        self.sourced_count += usize::from(terms.source.is_some());
        let name = RawAddr::from(addr);
        self.slots[peer.0 as usize] = Some(Peer {
            name,
            max_frame_bytes,
            addr,
            terms,
            lane: 0,
            link_count: 1,
            source,
            sealed: None,
        });
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

    /// Removes one link; a peer goes with the last link, and an address with the last peer.
    pub(super) fn remove(&mut self, peer: PeerId) {
        let Some(Some(known)) = self.slots.get_mut(peer.0 as usize) else { return };
        if known.sealed.is_some() {
            self.remove_sealed(peer);
            return;
        }
        if known.link_count == 0 {
            // The slot remains only as the source of its address.
            return;
        }
        known.link_count -= 1;
        if known.link_count > 0 {
            return;
        }
        let (terms, source) = (known.terms.clone(), known.source);
        self.forget_ports(peer, &terms);
        self.by_terms.remove(&terms);
        self.count -= 1;
        self.ecn_count -= usize::from(terms.is_ecn);
        self.sourced_count -= usize::from(terms.source.is_some());
        if source != peer {
            self.release(peer);
        }
        let entry = self.sources.get_mut(&terms.key).expect("peers have a source");
        assert!(entry.id == source, "one source for each address");
        entry.peer_count -= 1;
        if entry.peer_count == 0 {
            self.sources.remove(&terms.key);
            self.last_found = None;
            self.release(source);
        }
    }

    fn release(&mut self, peer: PeerId) {
        self.slots[peer.0 as usize] = None;
        self.free.push(peer.0);
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
        let first = table.add(addr(1, 5), 2000, (false, None)).unwrap();
        let second = table.add(addr(1, 6), 3000, (false, None)).unwrap();
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
    fn find__remembers_whom_it_found_last_while_the_address_has_peers() {
        let mut table = PeerTable::new();
        let known =
            [addr(1, 5), addr(1, 6)].map(|at| (at, table.add(at, 2000, (false, None)).unwrap()));
        assert_eq!(table.last_found, None);
        for (at, peer) in known.into_iter().chain(known) {
            assert_eq!(table.find(at.into()), Some(peer));
            assert_eq!(table.last_found, Some((at.into(), peer)));
            assert_eq!(table.find(addr(2, 5).into()), None);
            assert_eq!(table.last_found, Some((at.into(), peer)), "an unknown one is not found");
        }
        table.remove(known[1].1);
        assert_eq!(table.last_found, None);
    }

    #[test]
    fn add__of_the_same_terms_shares_the_peer() {
        let mut table = PeerTable::new();
        let peer = table.add(addr(1, 5), 2000, (false, None)).unwrap();
        assert_eq!(table.add(addr(1, 5), 2000, (false, None)).unwrap(), peer);
        table.remove(peer);
        assert_eq!(table.find(addr(1, 5).into()), Some(peer));
        table.remove(peer);
        assert_eq!(table.find(addr(1, 5).into()), None);
    }

    #[test]
    fn add__of_other_terms_leaves_the_first_peer_as_it_was() {
        let mut table = PeerTable::new();
        let first = table.add(addr(1, 5), 2000, (true, None)).unwrap();
        let smaller = table.add(addr(1, 5), 1232, (true, None)).unwrap();
        let unmarked = table.add(addr(1, 5), 2000, (false, None)).unwrap();
        assert_eq!(table.get(first).unwrap().max_frame_bytes, 2000);
        assert_eq!(table.get(smaller).unwrap().max_frame_bytes, 1232);
        assert!(table.is_ecn(first) && table.is_ecn(smaller) && !table.is_ecn(unmarked));
        assert_eq!((table.len(), table.ecn_count()), (3, 2));
        assert_eq!(table.only(), Some(addr(1, 5)));
        for peer in [first, smaller, unmarked] {
            assert_eq!(table.source_of(peer), first);
        }
    }

    #[test]
    fn remove__of_the_source_keeps_the_name_for_the_others() {
        let mut table = PeerTable::new();
        let first = table.add(addr(1, 5), 2000, (false, None)).unwrap();
        let second = table.add(addr(1, 5), 1232, (false, None)).unwrap();
        table.remove(first);
        table.remove(first);
        assert!(table.get(first).is_none() && table.target(first).is_none());
        assert_eq!(table.find(addr(1, 5).into()), Some(first));
        let other = table.add(addr(1, 6), 2000, (false, None)).unwrap();
        assert_ne!(other, first, "the slot is not free");
        let third = table.add(addr(1, 5), 2000, (false, None)).unwrap();
        assert_eq!(table.source_of(third), first);
        table.remove(second);
        table.remove(third);
        assert_eq!(table.find(addr(1, 5).into()), None);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn add__stops_at_the_limit_and_reuses_slots() {
        let mut table = PeerTable::new();
        let nth = |n: usize| addr((n / 1000) as u16, (n % 1000) as u16 + 1);
        let first = table.add(nth(0), 2000, (false, None)).unwrap();
        (1..PEERS_MAX).for_each(|n| _ = table.add(nth(n), 2000, (false, None)).unwrap());
        let full = table.add(nth(PEERS_MAX), 2000, (false, None));
        assert!(matches!(full, Err(LinkError::TooManyPeers { limit: PEERS_MAX })));
        table.remove(first);
        assert_eq!(table.add(nth(PEERS_MAX), 2000, (false, None)).unwrap(), first);
    }
}
