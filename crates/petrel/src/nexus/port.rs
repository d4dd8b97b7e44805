//! An endpoint's handle to the nexus.

use std::sync::Arc;

use petrel_transport::host::HostLink;

use super::attach::Attach;
use super::mailbox::{Command, Inbox};
use super::media::{HostLinks, Medium};
use super::net::{MioNetwork, Network};
use super::random::random_bytes;
use super::thread::{Owner, thread_ended};
use crate::control::{ControlPlane, EndpointId, FromNexus, ToNexus};
use crate::error::SetupError;
use crate::security::Authorize;

/// Random words drawn at once, to save a system call per session.
const RANDOM_WORDS: usize = 32;

/// An endpoint's connection to a nexus over some network. Dropping it ends the endpoint's links.
#[derive(Debug)]
pub struct NexusHandle<N: Network> {
    id: EndpointId,
    owner: Arc<Owner<N>>,
    inbox: Arc<Inbox<N::Link>>,
}

impl<N: Network> NexusHandle<N> {
    pub(super) fn attach(
        owner: &Arc<Owner<N>>,
        attach: &Attach,
        others: Vec<Box<dyn Medium<N::Link>>>,
    ) -> Result<Self, SetupError> {
        let (id, inbox) = owner.attach(attach, others)?;
        Ok(Self { id, owner: Arc::clone(owner), inbox })
    }

    /// Returns the endpoint's number in its process.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Sends a message to the nexus. Never blocks.
    pub fn post(&self, message: ToNexus) {
        let mailbox = self.owner.mailbox();
        if let ToNexus::LinkUsed { link } = message {
            return mailbox.note_used(self.id, link);
        }
        if let Err(Command::Post(_, message)) = mailbox.post(Command::Post(self.id, message)) {
            self.answer_for_the_dead(&message);
        }
    }

    /// Returns the next message of the nexus, if any: a single load if the queue is empty.
    #[inline]
    pub fn poll(&mut self) -> Option<FromNexus<N::Link>> {
        self.inbox.pop()
    }

    /// Answers in place of a thread that has ended: no caller waits forever.
    fn answer_for_the_dead(&self, message: &ToNexus) {
        // A proposal ends with its link, and the end of the link was reported with the thread's. Nothing may follow
        // that message.
        if let ToNexus::OpenLink { request, .. } = *message {
            self.inbox.push(FromNexus::LinkFailed { request, reason: thread_ended() });
        }
    }
}

impl<N: Network> Drop for NexusHandle<N> {
    fn drop(&mut self) {
        self.post(ToNexus::Gone);
        // The number is freed after `Gone`, so the next owner's messages follow `Gone` in the queue.
        self.owner.free_endpoint(self.id);
    }
}

/// An endpoint's connection to the nexus. Dropping it ends the endpoint's links.
#[derive(Debug)]
pub struct ControlPort<L: HostLinks = HostLink> {
    handle: NexusHandle<MioNetwork<L>>,
    random: [u64; RANDOM_WORDS],
    random_left: usize,
}

impl<L: HostLinks> ControlPort<L> {
    pub(super) fn new(handle: NexusHandle<MioNetwork<L>>) -> Self {
        Self { handle, random: [0; RANDOM_WORDS], random_left: 0 }
    }

    /// Returns the endpoint's number in this process.
    pub fn id(&self) -> EndpointId {
        self.handle.id()
    }

    /// Sends a message to the nexus. Never blocks.
    pub fn post(&self, message: ToNexus) {
        self.handle.post(message);
    }

    /// Returns the next message of the nexus, if any: a single load if the queue is empty.
    #[inline]
    pub fn poll(&mut self) -> Option<FromNexus<L>> {
        self.handle.poll()
    }

    /// Returns an unguessable number.
    ///
    /// # Panics
    /// When the system has no randomness. There was some when the nexus started, and Linux does not lose it.
    pub fn random(&mut self) -> u64 {
        if self.random_left == 0 {
            let bytes: [u8; 8 * RANDOM_WORDS] = random_bytes().expect("getrandom worked before");
            let (words, _) = bytes.as_chunks();
            self.random = std::array::from_fn(|word| u64::from_ne_bytes(words[word]));
            self.random_left = RANDOM_WORDS;
        }
        self.random_left -= 1;
        // Each number is returned once.
        std::mem::take(&mut self.random[self.random_left])
    }
}

impl<L: HostLinks> ControlPlane<L> for ControlPort<L> {
    fn post(&self, message: ToNexus) {
        ControlPort::post(self, message);
    }

    #[inline]
    fn poll(&mut self) -> Option<FromNexus<L>> {
        ControlPort::poll(self)
    }

    fn endpoint_id(&self) -> EndpointId {
        self.handle.id()
    }

    fn random(&mut self) -> u64 {
        ControlPort::random(self)
    }

    fn authorization(&self) -> Option<Arc<dyn Authorize>> {
        self.handle.owner.authorization().cloned()
    }
}
