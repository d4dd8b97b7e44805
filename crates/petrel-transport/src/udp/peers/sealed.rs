//! The sealed peers of a peer table (`docs/wire-protocol.md` §17.3).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use petrel_planted::planted;

use super::{Peer, PeerTable, Terms};
use crate::seal::{Epochs, PATH_END, Receiver, SealedLink, Sender};
use crate::udp::addr::{AddrHash, AddrKey, RawAddr};
use crate::udp::plan::Target;
use crate::{LinkError, PeerId};

/// This end of a sealed link.
pub(super) struct SealedEnd {
    local_path: u32,
    sender: Sender,
    receiver: Receiver,
    /// Whether the link is in the list of ended ones, or was.
    is_ended: bool,
}

/// The sealed peers by path, and the addresses from which they send.
pub(super) struct Sealed {
    /// As 64 bits, which the hash takes at once.
    paths: HashMap<u64, PeerId, AddrHash>,
    /// The number of sealed links that may send from an address: their own address, or a further port of it.
    addresses: HashMap<AddrKey, u32, AddrHash>,
    /// The path and the address of the previous datagram, with the peer and the number of the source port that they lead to: most often
    /// also the next one's.
    last_found: Option<(u32, AddrKey, PeerId, u8)>,
    /// Links that must end, until the owner takes them.
    ended: Vec<PeerId>,
}

impl Sealed {
    pub(super) fn new(hash: AddrHash) -> Self {
        Self {
            paths: HashMap::with_hasher(hash),
            addresses: HashMap::with_hasher(hash),
            last_found: None,
            ended: Vec::new(),
        }
    }

    pub(super) fn has_links(&self) -> bool {
        !self.paths.is_empty()
    }

    /// Any of the sealed peers.
    pub(super) fn any(&self) -> Option<PeerId> {
        self.paths.values().next().copied()
    }

    /// The addresses from which sealed links may send.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &AddrKey> {
        self.addresses.keys()
    }

    /// Returns true if a sealed link may send from the address.
    pub(super) fn may_send_from(&self, key: AddrKey) -> bool {
        self.addresses.contains_key(&key)
    }
}

impl PeerTable {
    /// Adds a sealed link, which is a peer of its own.
    pub(in crate::udp) fn add_sealed(
        &mut self,
        addr: SocketAddr,
        max_frame_bytes: usize,
        (is_ecn, source_address): (bool, Option<IpAddr>),
        link: SealedLink,
        epochs: Epochs,
    ) -> Result<PeerId, LinkError> {
        let SealedLink { local_path, remote_path, send, receive } = link;
        if local_path >= PATH_END || remote_path >= PATH_END {
            return Err(LinkError::Unsupported("the path of a sealed link has 24 bits".to_owned()));
        }
        if self.sealed.paths.contains_key(&local_path.into()) {
            let why = format!("path {local_path} is that of another sealed link");
            return Err(LinkError::Unsupported(why));
        }
        let peer = self.free_slot()?;
        let key = AddrKey::from(addr);
        self.sealed.paths.insert(local_path.into(), peer);
        self.note_sealed_port(key);
        self.count += 1;
        self.ecn_count += usize::from(is_ecn);
        self.sourced_count += usize::from(source_address.is_some());
        let (source, further_ports) = (source_address, Arc::default());
        let sealed = SealedEnd {
            local_path,
            sender: Sender::new(remote_path, send, epochs),
            receiver: Receiver::new(receive, epochs),
            is_ended: false,
        };
        self.slots[peer.0 as usize] = Some(Peer {
            name: RawAddr::from(addr),
            max_frame_bytes,
            addr,
            terms: Terms { key, max_frame_bytes, is_ecn, source, further_ports },
            lane: 0,
            link_count: 0,
            source: peer,
            sealed: Some(Box::new(sealed)),
        });
        Ok(peer)
    }

    pub(super) fn remove_sealed(&mut self, peer: PeerId) {
        let Some(Peer { terms, sealed: Some(end), .. }) = self.slots[peer.0 as usize].take() else {
            unreachable!("the caller has seen a sealed peer");
        };
        let path = self.sealed.paths.remove(&end.local_path.into());
        assert!(path == Some(peer), "a path for each sealed peer");
        for key in ports_of(&terms) {
            self.forget_sealed_port(key);
        }
        self.sealed.ended.retain(|&ended| ended != peer);
        self.count -= 1;
        self.ecn_count -= usize::from(terms.is_ecn);
        self.sourced_count -= usize::from(terms.source.is_some());
        self.release(peer);
    }

    /// Replaces the further source ports of a sealed link.
    pub(super) fn accept_sealed_ports(&mut self, peer: PeerId, ports: &[u16]) {
        let Some(known) = &mut self.slots[peer.0 as usize] else { return };
        let terms = Terms { further_ports: ports.into(), ..known.terms.clone() };
        let former = std::mem::replace(&mut known.terms, terms.clone());
        ports_of(&terms).for_each(|key| self.note_sealed_port(key));
        ports_of(&former).for_each(|key| self.forget_sealed_port(key));
    }

    /// Notes an address from which a sealed link may send. The way by the address no longer leads to a plain peer at once.
    fn note_sealed_port(&mut self, key: AddrKey) {
        *self.sealed.addresses.entry(key).or_default() += 1;
        self.is_shared |= self.sources.contains_key(&key);
        self.last_found = None;
    }

    fn forget_sealed_port(&mut self, key: AddrKey) {
        let links = self.sealed.addresses.get_mut(&key).expect("the address was noted");
        *links -= 1;
        if *links == 0 {
            self.sealed.addresses.remove(&key);
        }
        self.sealed.last_found = None;
        self.note_unshared();
    }

    /// Returns true if there is a sealed link.
    #[inline]
    pub(in crate::udp) fn has_sealed(&self) -> bool {
        self.sealed.has_links()
    }

    /// Returns true if a sealed link may send from the address.
    pub(in crate::udp) fn is_sealed_address(&self, key: AddrKey) -> bool {
        self.sealed.may_send_from(key)
    }

    /// A sealed link to this address: only a defect asks for it.
    pub(super) fn sealed_at(&self, key: AddrKey) -> Option<PeerId> {
        let mut peers = self.sealed.paths.values().copied();
        peers.find(|&peer| self.slot(peer).is_some_and(|known| known.terms.key == key))
    }

    /// Returns true if the peer is a sealed link.
    pub(in crate::udp) fn is_sealed(&self, peer: PeerId) -> bool {
        self.slot(peer).is_some_and(|known| known.sealed.is_some())
    }

    /// The destination of frames to a sealed peer, unless its numbers are used up.
    #[inline]
    pub(in crate::udp) fn sealed_target(&mut self, peer: PeerId) -> Option<Target<'_>> {
        let known = self.slots.get_mut(peer.0 as usize)?.as_mut()?;
        let Peer { name, max_frame_bytes, lane, sealed, .. } = known;
        let end = sealed.as_mut()?;
        if end.sender.is_ended() {
            end.note_ended(peer, &mut self.sealed.ended);
            return None;
        }
        Some(Target { peer, name, datagram_bytes_max: *max_frame_bytes, lane })
    }

    /// The sender of a sealed peer.
    #[inline]
    pub(in crate::udp) fn sender_of(&mut self, peer: PeerId) -> Option<&mut Sender> {
        let known = self.slots.get_mut(peer.0 as usize)?.as_mut()?;
        known.sealed.as_mut().map(|end| &mut end.sender)
    }

    /// Finds the sealed peer with this path, if its datagrams may come from the address. Returns it with the number of the source port.
    #[inline]
    pub(in crate::udp) fn find_sealed(
        &mut self,
        path: u32,
        from: AddrKey,
    ) -> Option<(PeerId, u8, &mut Receiver)> {
        let (peer, source) = match self.sealed.last_found {
            Some((last_path, last_from, peer, source))
                if (last_path, last_from) == (path, from) =>
            {
                (peer, source)
            }
            _ => self.look_up_sealed(path, from)?,
        };
        let known = self.slots[peer.0 as usize].as_mut()?;
        known.sealed.as_mut().map(|end| (peer, source, &mut end.receiver))
    }

    fn look_up_sealed(&mut self, path: u32, from: AddrKey) -> Option<(PeerId, u8)> {
        let peer = *self.sealed.paths.get(&path.into())?;
        let is_from = |key| key == from || planted("udp_sealed_from_any_address");
        let place = ports_of(&self.slot(peer)?.terms).position(is_from)?;
        let source = u8::try_from(place).ok()?;
        self.sealed.last_found = Some((path, from, peer, source));
        Some((peer, source))
    }

    /// Notes that a datagram of a sealed peer did not open, which may end the link.
    pub(in crate::udp) fn note_forgery(&mut self, peer: PeerId) {
        let known = self.slots[peer.0 as usize].as_mut();
        if let Some(end) = known.and_then(|known| known.sealed.as_mut())
            && end.receiver.is_ended()
        {
            end.note_ended(peer, &mut self.sealed.ended);
        }
    }

    /// Returns a sealed peer whose link must end, each once.
    pub(in crate::udp) fn take_ended(&mut self) -> Option<PeerId> {
        self.sealed.ended.pop()
    }
}

impl SealedEnd {
    fn note_ended(&mut self, peer: PeerId, ended: &mut Vec<PeerId>) {
        if !std::mem::replace(&mut self.is_ended, true) {
            ended.push(peer);
        }
    }
}

/// The address of a link and, behind it, its further source ports.
#[inline]
fn ports_of(terms: &Terms) -> impl Iterator<Item = AddrKey> {
    let further = terms.further_ports.iter().map(|port| terms.key.with_port(*port));
    std::iter::once(terms.key).chain(further)
}
