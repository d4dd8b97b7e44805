//! The two queues between an endpoint and the nexus's thread.
//!
//! Neither side waits long for the other: the locks are held for a push or a pop only.

use std::collections::VecDeque;

use petrel_planted::planted;
use petrel_transport::host::HostLink;
use petrel_transport::wake::Waker;

use super::media::Media;
use super::net::{MioNetwork, Network, Wake};
use crate::control::{EndpointId, FromNexus, LinkId, ToNexus};
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// A command to the nexus's thread from its process.
#[derive(Debug)]
pub(super) enum Command<L> {
    /// Adds an endpoint.
    Attach(EndpointId, Media<L>, std::sync::Arc<Inbox<L>>),
    /// A message from an endpoint.
    Post(EndpointId, ToNexus),
    /// Stop accepting connections.
    StopListening,
    /// The last user of the nexus has gone.
    Shutdown,
}

/// The queue from all endpoints to the nexus's thread, in order.
#[derive(Debug)]
pub(super) struct Mailbox<N: Network = MioNetwork> {
    /// `None` once the thread has ended.
    queue: Mutex<Option<Commands<N::Link>>>,
    /// Links that got their first request since the thread last asked: at most an entry per link.
    used: Mutex<Vec<(EndpointId, LinkId)>>,
    thread: N::Waker,
}

#[derive(Debug)]
struct Commands<L> {
    all: VecDeque<Command<L>>,
    /// Commands for which the thread is woken. The thread takes all commands at once.
    urgent: usize,
}

impl<L> Default for Commands<L> {
    fn default() -> Self {
        Self { all: VecDeque::new(), urgent: 0 }
    }
}

impl<N: Network> Mailbox<N> {
    pub(super) fn new(thread: N::Waker) -> Self {
        let used = Mutex::new(Vec::new());
        Self { queue: Mutex::new(Some(Commands::default())), used, thread }
    }

    /// Queues a command, or returns it if the thread has ended. The end of a session waits for the next command or event: the thread asks
    /// for commands before it refuses another session, and a client's end costs the server no further wake-up.
    pub(super) fn post(&self, command: Command<N::Link>) -> Result<(), Command<N::Link>> {
        let mut queue = lock(&self.queue);
        let Some(commands) = &mut *queue else { return Err(command) };
        let is_urgent = !matches!(command, Command::Post(_, ToNexus::SessionEnded { .. }));
        commands.urgent += usize::from(is_urgent);
        commands.all.push_back(command);
        let first = if planted("mailbox_first_wakes_nobody") { 2 } else { 1 };
        let wakes = is_urgent && commands.urgent == first;
        drop(queue);
        if wakes {
            // Waking fails only if the kernel lacks memory; the next tick finds the command.
            let _ = self.thread.wake();
        }
        Ok(())
    }

    /// Notes the first request of an endpoint's link. Does not wake the thread: the thread asks before a
    /// connection yields, and a connect costs the server no further wake-up.
    pub(super) fn note_used(&self, endpoint: EndpointId, link: LinkId) {
        lock(&self.used).push((endpoint, link));
    }

    /// Takes the links that have got their first requests.
    pub(super) fn take_used(&self) -> Vec<(EndpointId, LinkId)> {
        std::mem::take(&mut lock(&self.used))
    }

    pub(super) fn take(&self) -> VecDeque<Command<N::Link>> {
        lock(&self.queue).as_mut().map(std::mem::take).unwrap_or_default().all
    }

    /// Takes all commands, and closes the mailbox.
    pub(super) fn close(&self) -> VecDeque<Command<N::Link>> {
        lock(&self.queue).take().unwrap_or_default().all
    }
}

/// The queue from the nexus's thread to one endpoint, in order.
#[derive(Debug)]
pub(super) struct Inbox<L = HostLink> {
    queue: Mutex<Queue<L>>,
    /// Length of `queue`, checked by endpoints in every turn of the event loop: it is mostly empty.
    pending: AtomicUsize,
    endpoint: Waker,
}

#[derive(Debug)]
struct Queue<L> {
    messages: VecDeque<FromNexus<L>>,
    /// Whether the endpoint has been woken for the messages: it takes all of them.
    is_woken: bool,
}

impl<L> Inbox<L> {
    pub(super) fn new(endpoint: Waker) -> Self {
        let queue = Queue { messages: VecDeque::new(), is_woken: false };
        Self { queue: Mutex::new(queue), pending: AtomicUsize::new(0), endpoint }
    }

    /// Queues a message, and wakes the endpoint.
    pub(super) fn push(&self, message: FromNexus<L>) {
        self.add(message, true);
    }

    /// Queues a message that the endpoint needs only with a later one: a wake-up costs both threads some microseconds.
    pub(super) fn push_for_later(&self, message: FromNexus<L>) {
        self.add(message, false);
    }

    fn add(&self, message: FromNexus<L>, wakes: bool) {
        let mut queue = lock(&self.queue);
        let wakes = wakes && !queue.is_woken;
        queue.is_woken |= wakes;
        let wakes_first = wakes && planted("mailbox_wakes_before_it_counts");
        if wakes_first {
            self.endpoint.wake();
        }
        queue.messages.push_back(message);
        // Pairs with the load in `pop`: a reader that sees the count finds the message.
        self.pending.store(queue.messages.len(), Ordering::Release);
        drop(queue);
        if wakes && !wakes_first {
            self.endpoint.wake();
        }
    }

    pub(super) fn pop(&self) -> Option<FromNexus<L>> {
        if self.pending.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut queue = lock(&self.queue);
        let message = queue.messages.pop_front();
        queue.is_woken &= !queue.messages.is_empty();
        self.pending.store(queue.messages.len(), Ordering::Release);
        message
    }

    pub(super) fn len(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn inbox__keeps_order_and_wakes() {
        let waker = Waker::new().unwrap();
        let inbox: Inbox = Inbox::new(waker.clone());
        assert!(inbox.pop().is_none());
        (0..3).for_each(|request| inbox.push(FromNexus::StatsRequested { request }));
        assert_eq!(inbox.len(), 3);
        assert!(waker.drain());
        let mut requests = Vec::new();
        while let Some(FromNexus::StatsRequested { request }) = inbox.pop() {
            requests.push(request);
        }
        assert_eq!(requests, [0, 1, 2]);
    }

    #[test]
    fn inbox__wakes_once_for_all_messages_and_not_for_later_ones() {
        let waker = Waker::new().unwrap();
        let inbox: Inbox = Inbox::new(waker.clone());
        for _ in 0..2 {
            inbox.push_for_later(FromNexus::StatsRequested { request: 0 });
            assert!(!waker.drain());
            inbox.push(FromNexus::StatsRequested { request: 1 });
            assert!(waker.drain());
            inbox.push(FromNexus::StatsRequested { request: 2 });
            inbox.push_for_later(FromNexus::StatsRequested { request: 3 });
            assert!(!waker.drain(), "the endpoint takes all messages");
            assert_eq!(std::iter::from_fn(|| inbox.pop()).count(), 4);
        }
    }

    #[test]
    fn mailbox__wakes_once_for_all_commands_and_not_for_ended_sessions() {
        let (mut net, waker) = MioNetwork::<HostLink>::new(7).unwrap();
        let mailbox: Mailbox = Mailbox::new(waker);
        let mut events = net.events(8);
        let mut is_woken = || {
            net.poll(&mut events, Some(std::time::Duration::ZERO)).unwrap();
            !events.is_empty()
        };
        let ended = || {
            let ended = ToNexus::SessionEnded { link: LinkId(0), slots: 8 };
            mailbox.post(Command::Post(EndpointId(0), ended)).unwrap();
        };
        for _ in 0..2 {
            ended();
            assert!(!is_woken());
            mailbox.post(Command::StopListening).unwrap();
            assert!(is_woken());
            mailbox.post(Command::StopListening).unwrap();
            ended();
            assert!(!is_woken(), "the thread takes all commands");
            assert_eq!(mailbox.take().len(), 4);
        }
    }

    #[test]
    fn mailbox__returns_commands_after_the_end() {
        let (_net, waker) = MioNetwork::<HostLink>::new(0).unwrap();
        let mailbox: Mailbox = Mailbox::new(waker);
        mailbox.post(Command::Shutdown).unwrap();
        assert_eq!(mailbox.take().len(), 1);
        assert_eq!(mailbox.close().len(), 0);
        assert!(matches!(mailbox.post(Command::Shutdown), Err(Command::Shutdown)));
        assert_eq!(mailbox.take().len(), 0);
    }
}
