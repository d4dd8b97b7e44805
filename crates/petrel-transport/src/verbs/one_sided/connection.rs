//! A connected queue pair.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::ptr;
use std::sync::Arc;

use super::{Card, Kind, PairAddress};
use crate::verbs::PAIRS_MAX;
use crate::verbs::card::Owned;
use crate::verbs::error::VerbsError;
use crate::verbs::table::{
    Capacity, CompletionQueue, Domain, Operations, Pair, PairSettings, PairState, QP_ACCESS_FLAGS,
    QP_AV, QP_PATH_MTU, QP_PEER, QP_PEER_READS, QP_PKEY_INDEX, QP_PORT, QP_READS, QP_RETRY_COUNT,
    QP_RNR_RETRY, QP_RNR_TIMER, QP_RQ_PSN, QP_SQ_PSN, QP_STATE, QP_TIMEOUT, QPS_ERROR, QPS_INIT,
    QPS_RTR, QPS_RTS, QPT_RC, QPT_UC, Registration,
};

/// Reads that a connection has in progress: every card allows at least as many.
const READS: u8 = 4;

/// The time until a card sends a packet again, 4.096 µs times two to this power, and the repetitions: half a second in all.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;

/// Repetitions for want of a receive request, which reads and writes do not need.
const RNR_RETRIES: u8 = 0;

/// A queue pair of a connection.
pub(super) struct Connection {
    pub(super) pair: Owned<Pair>,
    pub(super) queue: Owned<CompletionQueue>,
    domain: Owned<Domain>,
    card: Arc<Card>,
    kind: Kind,
    first: u32,
}

impl Connection {
    pub(super) fn open(
        card: &Arc<Card>,
        kind: Kind,
        sends: u32,
        access: c_int,
    ) -> Result<Self, VerbsError> {
        let (table, context) = (&card.table, card.port.context.get());
        // SAFETY: the context is open.
        let domain = unsafe { (table.alloc_domain)(context) };
        let domain = Owned::new(domain, table.dealloc_domain, "ibv_alloc_pd")?;
        // SAFETY: the context is open; the queue has no channel.
        let queue = unsafe {
            (table.create_queue)(context, sends as c_int, ptr::null_mut(), ptr::null_mut(), 0)
        };
        let queue = Owned::new(queue, table.destroy_queue, "ibv_create_cq")?;
        let mut settings = PairSettings {
            owner: ptr::null_mut(),
            send_queue: queue.get(),
            receive_queue: queue.get(),
            shared_queue: ptr::null_mut(),
            capacity: Capacity {
                sends,
                receives: 1,
                send_pieces: 1,
                receive_pieces: 1,
                inline_bytes: 0,
            },
            kind: if kind == Kind::Reliable { QPT_RC } else { QPT_UC },
            signal_all: 0,
        };
        // SAFETY: the queue and the domain outlive the pair.
        let pair = unsafe { (table.create_pair)(domain.get(), &mut settings) };
        let pair = Owned::new(pair, table.destroy_pair, "ibv_create_qp")?;
        let mut number = [0; 4];
        getrandom::fill(&mut number).map_err(|error| {
            VerbsError::refused("getrandom", io::Error::other(error.to_string()))
        })?;
        let first = u32::from_ne_bytes(number) % PAIRS_MAX;
        let this = Self { pair, queue, domain, card: Arc::clone(card), kind, first };
        let port = card.port.number;
        this.modify(QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS, |state| {
            (state.state, state.port, state.access) = (QPS_INIT, port, access);
        })?;
        Ok(this)
    }

    pub(super) fn address(&self) -> PairAddress {
        let port = self.card.port.address();
        // SAFETY: a queue pair is a structure with its number.
        let pair = unsafe { (*self.pair.get()).number };
        PairAddress { gid: port.gid, lid: port.lid, pair, first: self.first, mtu: self.card.mtu() }
    }

    /// Lets the pair receive from a peer.
    pub(super) fn receive_from(&self, peer: &PairAddress) -> Result<(), VerbsError> {
        let path = self.card.port.path_to((peer.gid, peer.lid), false);
        let mask = QP_AV
            | QP_PATH_MTU
            | QP_PEER
            | QP_RQ_PSN
            | self.of_reliable(QP_PEER_READS | QP_RNR_TIMER);
        self.modify(mask, |state| {
            state.state = QPS_RTR;
            state.path = path;
            state.path_mtu = peer.mtu.min(self.card.mtu()).into();
            (state.peer, state.receive_number) = (peer.pair, peer.first);
            (state.peer_reads, state.rnr_timer) = (READS, 1);
        })
    }

    /// Lets the pair send.
    pub(super) fn send(&self) -> Result<(), VerbsError> {
        let mask =
            QP_SQ_PSN | self.of_reliable(QP_TIMEOUT | QP_RETRY_COUNT | QP_RNR_RETRY | QP_READS);
        self.modify(mask, |state| {
            (state.state, state.send_number) = (QPS_RTS, self.first);
            (state.timeout, state.retries, state.rnr_retries) = (TIMEOUT, RETRIES, RNR_RETRIES);
            state.reads = READS;
        })
    }

    /// Returns the mask if the connection is of the kind that has these attributes.
    fn of_reliable(&self, mask: c_int) -> c_int {
        if self.kind == Kind::Reliable { mask } else { 0 }
    }

    fn modify(&self, mask: c_int, set: impl FnOnce(&mut PairState)) -> Result<(), VerbsError> {
        // SAFETY: zero is a value of each field.
        let mut state: PairState = unsafe { std::mem::zeroed() };
        set(&mut state);
        let modify = self.card.table.modify_pair;
        // SAFETY: the pair is this value's, and the mask names fields that are set.
        match unsafe { modify(self.pair.get(), &mut state, mask | QP_STATE) } {
            0 => Ok(()),
            error => Err(VerbsError::refused("ibv_modify_qp", io::Error::from_raw_os_error(error))),
        }
    }

    /// Lets nothing pass any more.
    pub(super) fn end(&self) {
        // A card that refuses this state is gone.
        let _ = self.modify(0, |state| state.state = QPS_ERROR);
    }

    pub(super) fn operations(&self) -> &Operations {
        // SAFETY: the context stays open as long as this value, and its operations do not change.
        unsafe { &(*self.card.port.context.get()).operations }
    }

    /// Lets the card access memory.
    ///
    /// # Safety
    /// The memory stays mapped until the result is dropped, and the process expects changes by the peer if it grants writing.
    pub(super) unsafe fn register(
        &self,
        start: *mut u8,
        bytes: usize,
        access: c_int,
    ) -> Result<Owned<Registration>, VerbsError> {
        let register = self.card.table.register;
        // SAFETY: by the promise of the caller.
        let registration = unsafe { register(self.domain.get(), start.cast(), bytes, access) };
        Owned::new(registration, self.card.table.deregister, "ibv_reg_mr")
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}
