//! An endpoint's handle to the nexus.

use std::net::SocketAddr;
use std::sync::Arc;

use petrel_proto::Status;
use petrel_transport::host::HostLink;
use petrel_transport::shm::ShmConfig;
use petrel_transport::udp::Mtu;
use petrel_transport::wake::Waker;

use super::mailbox::{Command, Inbox};
use super::media::HostLinks;
use super::net::{MioNetwork, Network};
use super::thread::Owner;
use crate::control::{ControlPlane, EndpointId, FromNexus, Reason, ToNexus};
use crate::error::SetupError;

/// An endpoint's description for the control plane, as passed to [`Nexus::attach`](super::Nexus::attach).
#[derive(Clone, Debug)]
pub struct Attach {
    /// The wanted number, or `None` for the lowest free one.
    pub id: Option<EndpointId>,
    /// How the endpoint is reached over UDP, if at all.
    pub udp: Option<UdpAttach>,
    /// How the endpoint is reached through shared memory, if at all.
    pub shm: Option<ShmAttach>,
    /// Wakes the endpoint when messages of the nexus wait.
    pub waker: Waker,
}

/// An endpoint's UDP side.
#[derive(Clone, Copy, Debug)]
pub struct UdpAttach {
    /// The data port's address.
    pub local: SocketAddr,
    /// The endpoint's MTU setting.
    pub mtu: Mtu,
    /// Whether the endpoint can make packets ECN-capable and reads marks, for peers that heed marks.
    pub reads_marks: bool,
    /// Whether its own sessions heed marks.
    pub heeds_marks: bool,
}

/// An endpoint's shared-memory side.
#[derive(Clone, Copy, Debug)]
pub struct ShmAttach {
    /// The endpoint's settings, for the segments that it creates.
    pub config: ShmConfig,
}

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
    pub(super) fn new(id: EndpointId, owner: Arc<Owner<N>>, inbox: Arc<Inbox<N::Link>>) -> Self {
        Self { id, owner, inbox }
    }

    /// Returns the endpoint's number in its process.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Sends a message to the nexus. Never blocks.
    pub fn post(&self, message: ToNexus) {
        if let Err(Command::Post(_, message)) =
            self.owner.mailbox().post(Command::Post(self.id, message))
        {
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
        // After `Gone`: the number's next owner is attached behind it in the queue.
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

/// Why every request fails once the nexus's thread has ended.
pub(super) fn thread_ended() -> Reason {
    Reason::new(Status::Internal, ENDED)
}

/// The same, as an error of setup.
pub(super) fn thread_has_ended() -> SetupError {
    SetupError::Panicked(ENDED)
}

const ENDED: &str =
    "the control plane of this process has ended by an internal error; restart the process";

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
}

/// A random number from the operating system.
pub(super) fn random_u64() -> std::io::Result<u64> {
    random_bytes().map(u64::from_ne_bytes)
}

/// Random bytes from the operating system.
fn random_bytes<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(bytes)
}

/// Fills a slice with random bytes from the operating system.
pub(super) fn fill_random(bytes: &mut [u8]) -> std::io::Result<()> {
    getrandom::fill(bytes).map_err(|error| std::io::Error::other(error.to_string()))
}
