//! The transport itself: the rings of one endpoint, and the endpoint's sleep.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use super::bell::{Bell, Bells};
use super::config::ShmConfig;
use super::link::ShmLink;
use super::peer::{Outgoing, Peer};
use super::rings::Rings;
use crate::clock::{Clock, now_ns};
use crate::mux::Member;
use crate::transport::{
    FrameHandler, LinkError, PeerId, PeerProcess, RX_BURST_MAX, Transport, TransportStats,
};
use crate::wake::{Waker, Watch, Woken};

/// The shared-memory transport of one endpoint. See the [module](super).
#[derive(Debug)]
pub struct Shm {
    max_peers: usize,
    never_sleeps: bool,
    waker: Waker,
    /// Created with the first peer; never, if the endpoint never sleeps.
    bells: Option<Bells>,
    /// Whether the last sleep ended by a bell that has not been answered yet.
    has_rung: bool,
    rings: Rings<Bell>,
}

impl Shm {
    /// Creates a transport without peers. Local threads wake the transport by `waker`, and peers by
    /// their links.
    pub fn new(config: &ShmConfig, waker: Waker) -> Self {
        Self {
            max_peers: config.max_peers,
            never_sleeps: config.never_sleeps,
            waker,
            bells: None,
            has_rung: false,
            rings: Rings::new(),
        }
    }

    /// Announces to all peers that the endpoint is about to sleep. Returns false if the endpoint
    /// must not sleep: a frame has arrived, or the configuration forbids sleep.
    ///
    /// After true, a peer's next frame makes [`Shm::bells`] readable. The caller sleeps until the
    /// bells or the [`Waker`] are readable, and calls [`Shm::finish_wait`]. The method is for
    /// transports that combine several media; [`Transport::wait`] does all steps.
    pub fn prepare_wait(&mut self) -> bool {
        if self.never_sleeps {
            return false;
        }
        self.answer_bells();
        let may_sleep = self.rings.prepare_wait();
        if !may_sleep {
            self.finish_wait(false);
        }
        may_sleep
    }

    /// The descriptor peers make readable to wake a sleeping endpoint.
    pub fn bells(&self) -> Option<BorrowedFd<'_>> {
        self.bells.as_ref().map(Bells::as_fd)
    }

    /// Ends the announcement of [`Shm::prepare_wait`], so peers save their wake-ups again.
    /// `has_rung` is true if [`Shm::bells`] was readable. The next [`Transport::rx_burst`] polls
    /// every ring with frames.
    ///
    /// The bells are answered before the next sleep: a look at a bell takes three system calls, for
    /// which the frame that ended the sleep would have to wait.
    pub fn finish_wait(&mut self, has_rung: bool) {
        self.rings.declare_awake();
        self.has_rung |= has_rung;
        self.rings.look_at_all();
    }

    /// Receives the wake-ups of the last sleep, which would end the next sleep.
    fn answer_bells(&mut self) {
        if !std::mem::take(&mut self.has_rung) {
            return;
        }
        let Self { bells: Some(bells), rings, .. } = self else { return };
        rings.stats_mut().rx_syscalls += 1;
        for index in bells.rung() {
            if let Some((peer, stats)) = rings.get_mut(index) {
                // A system call examines the bytes, and another receives the bytes.
                stats.rx_syscalls += 2;
                if !peer.answer(stats) {
                    peer.hang_up(bells);
                }
            }
        }
    }

    /// Starts to listen to a new peer's wake-ups.
    fn listen(&mut self, peer: &Peer<Bell>, index: u32) -> Result<(), LinkError> {
        if self.never_sleeps {
            return Ok(());
        }
        let bells = match &mut self.bells {
            Some(bells) => bells,
            none => none.insert(Bells::new()?),
        };
        peer.listen(bells, index)
    }

    fn sleep(&mut self, timeout_ns: Option<u64>) -> bool {
        self.rings.stats_mut().rx_syscalls += 1;
        let mut watch = Watch::new(&self.waker);
        self.watch(&mut watch);
        let woken = watch.sleep(timeout_ns);
        self.has_rung(&woken)
    }

    fn has_rung(&self, woken: &Woken) -> bool {
        self.bells().is_some_and(|bells| woken.is_ready(bells))
    }
}

/// A pause from which on frames in the rings may have waited for it: nothing says when they were written.
pub(crate) const UNSTAMPED_PAUSE_NS: u64 = 20_000_000;

impl Transport for Shm {
    type Link = ShmLink;
    type Return = Outgoing;

    #[inline]
    fn now(&self) -> u64 {
        now_ns()
    }

    fn clock(&self) -> Clock {
        Clock::machine()
    }

    fn add_peer(&mut self, link: ShmLink) -> Result<PeerId, LinkError> {
        if self.rings.peer_count() >= self.max_peers {
            return Err(LinkError::TooManyPeers { limit: self.max_peers });
        }
        let peer = Peer::new(link.open()?, self.never_sleeps);
        self.listen(&peer, self.rings.next_index())?;
        Ok(self.rings.add(peer))
    }

    fn remove_peer(&mut self, peer: PeerId) {
        if let Some(mut gone) = self.rings.remove(peer)
            && let Some(bells) = &self.bells
        {
            gone.hang_up(bells);
        }
    }

    fn open_group(&mut self, _: SocketAddr, _: PeerId, _: u32) -> Result<PeerId, LinkError> {
        Err(no_multicast())
    }

    fn join_group(&mut self, _: SocketAddr, _: PeerId) -> Result<(), LinkError> {
        Err(no_multicast())
    }

    #[inline]
    fn max_frame_bytes(&self, peer: PeerId) -> usize {
        self.rings.max_frame_bytes(peer)
    }

    fn is_networked(&self, _peer: PeerId) -> bool {
        false
    }

    fn medium_of(&self, _: PeerId) -> &'static str {
        "shm"
    }

    fn process_of(&self, peer: PeerId) -> Option<PeerProcess> {
        self.rings.get(peer.0)?.process()
    }

    #[inline]
    fn may_receive(&self) -> bool {
        self.rings.may_receive()
    }

    /// A wake-up has a time; frames that come while the owner is awake have no time.
    fn waited_ns(&mut self, pause_ns: u64, awake_ns: u64) -> (u64, usize) {
        let may_have_waited = awake_ns >= UNSTAMPED_PAUSE_NS && self.may_receive();
        let awake_ns = if may_have_waited { awake_ns } else { 0 };
        let waited_ns = awake_ns.max(self.rings.rung_since(pause_ns));
        (waited_ns, RX_BURST_MAX)
    }

    #[inline(always)]
    unsafe fn push(&mut self, peer: PeerId, head: &[u8], body: &[u8]) -> bool {
        self.rings.push(peer, head, body)
    }

    #[inline]
    fn path_to(&mut self, peer: PeerId) -> Option<&mut Outgoing> {
        self.rings.path_to(peer)
    }

    #[inline]
    fn flush(&mut self) {
        self.rings.flush();
    }

    #[inline]
    fn rx_burst_to<H: FrameHandler<Outgoing>>(&mut self, budget: usize, handler: H) -> usize {
        self.rings.rx_burst_to(budget, handler)
    }

    fn wait(&mut self, timeout_ns: Option<u64>) {
        if self.never_sleeps {
            // No wake-up would come: yield to other threads, and poll again.
            std::thread::yield_now();
        } else if self.prepare_wait() {
            let has_rung = self.sleep(timeout_ns);
            self.finish_wait(has_rung);
        }
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn stats(&self) -> TransportStats {
        self.rings.stats()
    }
}

fn no_multicast() -> LinkError {
    let why = "multicast is for peers over the network, and this one shares memory";
    LinkError::Unsupported(why.to_owned())
}

impl Member for Shm {
    fn has_peers(&self) -> bool {
        self.rings.peer_count() > 0
    }

    fn prepare_wait(&mut self) -> bool {
        Shm::prepare_wait(self)
    }

    fn watch<'a>(&'a self, watch: &mut Watch<'a>) {
        if let Some(bells) = self.bells() {
            watch.add(bells, false);
        }
    }

    fn finish_wait(&mut self, woken: &Woken) {
        let has_rung = self.has_rung(woken);
        Shm::finish_wait(self, has_rung);
    }
}
