//! The memory that a card lends to clients.

use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};

use petrel_proto::{SessionId, Status};
use petrel_transport::verbs::{Lending, PairAddress};

use crate::region_memory::wire::Refusal;
use crate::sync::{Arc, Mutex, lock, thread};

/// Lendings of a session, and of the card in all: cards have room for some thousand connections at least.
const OF_A_SESSION_MAX: usize = 16;
const OF_A_CARD_MAX: usize = 1_024;

const TOO_MANY: Refusal =
    Refusal::new(Status::ResourceExhausted, "the server lends no further memory by its card");
const ENDED: Refusal = Refusal::new(Status::Unavailable, "the session has ended");

/// A session of one of the endpoints.
pub(super) type Borrower = (u32, SessionId);

/// The lendings of a card. Each belongs to a session, and ends with the session.
pub(super) struct Lendings {
    state: Arc<Mutex<State>>,
    /// To the thread that ends lendings: the kernel takes milliseconds to release large memory, and endpoints do not wait.
    ended: Sender<Vec<Place>>,
    bytes_max: u64,
}

#[derive(Default)]
struct State {
    /// The lendings of each session that has asked for one.
    sessions: HashMap<Borrower, Vec<Place>>,
    /// The number and the pinned bytes of all lendings, until they are released.
    count: usize,
    bytes: u64,
    endpoints: u32,
}

/// The place of a lending.
struct Place {
    far: PairAddress,
    bytes: u64,
    /// `None` while the lending is made.
    lending: Option<Arc<Lending>>,
}

impl Place {
    fn is_taken_back(&self) -> bool {
        self.lending.as_ref().is_some_and(|lending| lending.is_taken_back())
    }
}

impl Lendings {
    /// No lendings, of these bytes at most in all.
    pub(super) fn new(bytes_max: u64) -> io::Result<Self> {
        let (ended, to_release) = channel();
        let state = Arc::<Mutex<State>>::default();
        let of_thread = Arc::clone(&state);
        let thread = thread::Builder::new().name("petrel-card-end".to_owned());
        thread.spawn(move || release(&of_thread, &to_release))?;
        Ok(Self { state, ended, bytes_max })
    }

    /// Returns a number for an endpoint.
    pub(super) fn add_endpoint(&self) -> u32 {
        let mut state = lock(&self.state);
        state.endpoints += 1;
        state.endpoints
    }

    /// Notes that a lending may follow for a session. Called on the endpoint's thread, and so before the session's end.
    pub(super) fn expect(&self, borrower: Borrower) {
        lock(&self.state).sessions.entry(borrower).or_default();
    }

    /// Takes a place for a lending to a queue pair.
    pub(super) fn reserve(
        &self,
        borrower: Borrower,
        far: PairAddress,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let mut state = lock(&self.state);
        let State { sessions, count, bytes: pinned, .. } = &mut *state;
        let places = sessions.get_mut(&borrower).ok_or(ENDED)?;
        self.give_to_thread(places.extract_if(.., |place| place.is_taken_back()).collect());
        let has_place = places.len() < OF_A_SESSION_MAX
            && *count < OF_A_CARD_MAX
            && places.iter().all(|place| place.far != far);
        let sum = pinned.checked_add(bytes).filter(|sum| has_place && *sum <= self.bytes_max);
        *pinned = sum.ok_or(TOO_MANY)?;
        *count += 1;
        places.push(Place { far, bytes, lending: None });
        Ok(())
    }

    /// Keeps a lending in the place that was taken for it.
    pub(super) fn keep(
        &self,
        borrower: Borrower,
        far: PairAddress,
        lending: &Arc<Lending>,
    ) -> Result<(), Refusal> {
        let mut state = lock(&self.state);
        let places = state.sessions.get_mut(&borrower).ok_or(ENDED)?;
        let place = places.iter_mut().find(|place| place.far == far).ok_or(ENDED)?;
        let former = place.lending.replace(Arc::clone(lending));
        assert!(former.is_none(), "a place has one lending");
        Ok(())
    }

    /// Ends the lending to a queue pair, if there is one.
    pub(super) fn give_back(&self, borrower: Borrower, far: PairAddress) {
        let mut state = lock(&self.state);
        let Some(places) = state.sessions.get_mut(&borrower) else { return };
        self.give_to_thread(places.extract_if(.., |place| place.far == far).collect());
    }

    /// Ends the lendings of a session.
    pub(super) fn end(&self, borrower: Borrower) {
        let ended = lock(&self.state).sessions.remove(&borrower).unwrap_or_default();
        self.give_to_thread(ended);
    }

    /// Ends the lendings of all sessions of an endpoint.
    pub(super) fn end_all(&self, endpoint: u32) {
        let mut state = lock(&self.state);
        let ended = state.sessions.extract_if(|(number, _), _| *number == endpoint);
        self.give_to_thread(ended.flat_map(|(_, places)| places).collect());
    }

    fn give_to_thread(&self, ended: Vec<Place>) {
        if !ended.is_empty() {
            assert!(self.ended.send(ended).is_ok(), "the thread receives until this value is gone");
        }
    }
}

/// Releases what has ended, until the [`Lendings`] are gone.
fn release(state: &Mutex<State>, ended: &Receiver<Vec<Place>>) {
    while let Ok(places) = ended.recv() {
        for place in places {
            if let Some(lending) = place.lending {
                // A revocation that comes meanwhile finds the lending, and waits for the card.
                lending.take_back();
            }
            let mut state = lock(state);
            assert!(state.count > 0 && state.bytes >= place.bytes, "each lending is counted");
            state.count -= 1;
            state.bytes -= place.bytes;
        }
    }
}
