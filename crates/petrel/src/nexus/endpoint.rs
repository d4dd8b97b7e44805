//! The endpoints of this process, as the nexus knows them.

use std::sync::Arc;

use super::limits::INBOX_MAX;
use super::mailbox::Inbox;
use super::media::{Media, Medium};
use super::net::Network;
use crate::control::FromNexus;

/// An endpoint of this process.
#[derive(Debug)]
pub(super) struct Endpoint<N: Network> {
    media: Media<N::Link>,
    inbox: Arc<Inbox<N::Link>>,
}

impl<N: Network> Endpoint<N> {
    pub(super) fn new(media: Media<N::Link>, inbox: Arc<Inbox<N::Link>>) -> Self {
        assert!(!media.is_empty(), "an endpoint says of each medium why it cannot be used");
        Self { media, inbox }
    }

    /// Its media, the preferred one first.
    pub(super) fn media(&self) -> impl Iterator<Item = &dyn Medium<N::Link>> {
        self.media.iter().map(|medium| &**medium)
    }

    /// Its medium of a kind.
    pub(super) fn medium(&self, kind: u8) -> Option<&dyn Medium<N::Link>> {
        self.media().find(|medium| medium.kind() == kind)
    }

    /// Sends it a message.
    pub(super) fn tell(&self, message: FromNexus<N::Link>) {
        self.inbox.push(message);
    }

    /// Returns true if its inbox is too long for peers to add to.
    pub(super) fn is_overloaded(&self) -> bool {
        self.inbox.len() >= INBOX_MAX
    }
}

#[cfg(test)]
impl Endpoint<super::net::MioNetwork> {
    /// Replaces its media by a data port.
    pub(super) fn set_test_media(&mut self, udp: super::attach::UdpAttach) {
        let waker = petrel_transport::wake::Waker::new().unwrap();
        let attach = super::attach::Attach { id: None, udp: Some(udp), shm: None, waker };
        self.media = super::media::media_of(&attach, Vec::new());
    }
}
