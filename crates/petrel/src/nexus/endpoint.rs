//! The endpoints of this process, as the nexus knows them.

use std::collections::HashMap;
use std::sync::Arc;

use super::limits::INBOX_MAX;
use super::mailbox::Inbox;
use super::media::{Media, Medium};
use super::net::Network;
use crate::control::{EndpointId, FromNexus};

/// An endpoint of this process that is attached to the nexus.
#[derive(Debug)]
pub(super) struct Attached<N: Network> {
    media: Media<N::Link>,
    inbox: Arc<Inbox<N::Link>>,
}

impl<N: Network> Attached<N> {
    pub(super) fn new(media: Media<N::Link>, inbox: Arc<Inbox<N::Link>>) -> Self {
        assert!(!media.is_empty(), "an endpoint says of each medium why it cannot be used");
        Self { media, inbox }
    }

    /// Its media, the preferred one first.
    pub(super) fn media(&self) -> impl Iterator<Item = &dyn Medium<N::Link>> {
        self.media.iter().map(|medium| &**medium)
    }

    pub(super) fn medium(&self, kind: u8) -> Option<&dyn Medium<N::Link>> {
        self.media().find(|medium| medium.kind() == kind)
    }

    pub(super) fn tell(&self, message: FromNexus<N::Link>) {
        self.inbox.push(message);
    }

    /// Sends a message without a wake-up: the endpoint needs the message only with a later message.
    pub(super) fn tell_later(&self, message: FromNexus<N::Link>) {
        self.inbox.push_for_later(message);
    }

    /// Returns true if its inbox is too long for peers to add to.
    pub(super) fn is_overloaded(&self) -> bool {
        self.inbox.len() >= INBOX_MAX
    }
}

/// The endpoints of this process.
#[derive(Debug)]
pub(super) struct Endpoints<N: Network> {
    by_id: HashMap<EndpointId, Attached<N>>,
}

impl<N: Network> Default for Endpoints<N> {
    fn default() -> Self {
        Self { by_id: HashMap::new() }
    }
}

impl<N: Network> Endpoints<N> {
    /// Adds an endpoint. The number may be a former endpoint's.
    pub(super) fn attach(&mut self, id: EndpointId, endpoint: Attached<N>) {
        let former = self.by_id.insert(id, endpoint);
        assert!(former.is_none(), "endpoint {} is attached already", id.0);
    }

    pub(super) fn remove(&mut self, id: EndpointId) {
        self.by_id.remove(&id);
    }

    pub(super) fn get(&self, id: EndpointId) -> Option<&Attached<N>> {
        self.by_id.get(&id)
    }

    pub(super) fn contains(&self, id: EndpointId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Iterates over all, in any order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (EndpointId, &Attached<N>)> {
        self.by_id.iter().map(|(id, endpoint)| (*id, endpoint))
    }

    pub(super) fn medium(&self, id: EndpointId, kind: u8) -> Option<&dyn Medium<N::Link>> {
        self.get(id)?.medium(kind)
    }

    pub(super) fn notify(&self, id: EndpointId, message: FromNexus<N::Link>) {
        if let Some(endpoint) = self.get(id) {
            endpoint.tell(message);
        }
    }

    /// Returns true if an endpoint's inbox is too long for peers to add to.
    pub(super) fn is_overloaded(&self, id: EndpointId) -> bool {
        self.get(id).is_some_and(Attached::is_overloaded)
    }

    #[cfg(test)]
    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Attached<N>> {
        self.by_id.get_mut(&id)
    }
}

#[cfg(test)]
impl Attached<super::net::MioNetwork> {
    /// Replaces its media by a data port.
    pub(super) fn set_test_media(&mut self, udp: super::attach::UdpAttach) {
        let waker = petrel_transport::wake::Waker::new().unwrap();
        let attach =
            super::attach::Attach { id: None, udp: Some(udp), shm: None, stream: false, waker };
        self.media = super::media::media_of(&attach, Vec::new());
    }
}
