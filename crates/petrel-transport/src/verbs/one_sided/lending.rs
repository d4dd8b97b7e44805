//! Memory that a peer accesses.

use std::any::Any;
use std::ffi::c_int;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::connection::Connection;
use super::{Card, Kind, PairAddress, Place};
use crate::verbs::card::Owned;
use crate::verbs::error::VerbsError;
use crate::verbs::table::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, Registration,
};
use crate::words::WordMemory;

/// The accesses that a peer gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Whether the peer may read.
    pub read: bool,
    /// Whether the peer may write.
    pub write: bool,
}

impl Rights {
    fn flags(self) -> c_int {
        let read = if self.read { ACCESS_REMOTE_READ } else { 0 };
        // A card lets peers write where the process itself may.
        read | if self.write { ACCESS_REMOTE_WRITE | ACCESS_LOCAL_WRITE } else { 0 }
    }
}

/// The card's right to reach the memory.
enum Reach {
    Not,
    Registered(Owned<Registration>),
    TakenBack,
}

/// Memory that a peer accesses. The value ends the connection when it is dropped.
///
/// The memory is lent in two steps, so that an owner can note the lending before the card reaches the memory: a revocation that comes between
/// the two makes the second fail.
pub struct Lending {
    reach: Mutex<Reach>,
    connection: Connection,
    rights: Rights,
    start: *mut u8,
    bytes: usize,
    // The card reaches the memory until the registration is gone.
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the pointer leads to the memory that the value holds, and the process does not access the memory by it.
unsafe impl Send for Lending {}
// SAFETY: as above; the registration lies under a mutex, and the library's functions may run on several threads at once.
unsafe impl Sync for Lending {}

impl Lending {
    /// Connects to a peer that is to access the words of an object. The call may wait for the network to name the peer's Ethernet address, a
    /// second at most.
    ///
    /// # Errors
    /// See [`VerbsError`].
    pub fn open<M: Send + Sync + 'static>(
        card: &Arc<Card>,
        kind: Kind,
        (memory, words): (Arc<M>, impl Fn(&M) -> &WordMemory),
        rights: Rights,
        peer: &PairAddress,
    ) -> Result<Self, VerbsError> {
        let connection = Connection::open(card, kind, 1, rights.flags() & !ACCESS_LOCAL_WRITE)?;
        connection.receive_from(peer)?;
        let words = words(&memory);
        assert!(words.is_writable() || !rights.write, "read-only memory is not lent for writing");
        let (start, bytes) = (words.start(), words.bytes() as usize);
        let reach = Mutex::new(Reach::Not);
        Ok(Self { reach, connection, rights, start, bytes, _memory: memory })
    }

    /// Lets the card reach the memory, which is pinned meanwhile. Returns the memory as the peer names it, or `None` if the memory was taken
    /// back before.
    ///
    /// # Errors
    /// See [`VerbsError`].
    ///
    /// # Panics
    /// When the card reaches the memory already.
    pub fn lend(&self) -> Result<Option<Place>, VerbsError> {
        let mut reach = self.reach.lock().unwrap_or_else(PoisonError::into_inner);
        match *reach {
            Reach::Not => {}
            Reach::Registered(_) => panic!("memory is lent once"),
            Reach::TakenBack => return Ok(None),
        }
        // SAFETY: this value holds the memory, whose users expect changes of its words at any time.
        let registration =
            unsafe { self.connection.register(self.start, self.bytes, self.rights.flags())? };
        // SAFETY: a registration is a structure with its key.
        let key = unsafe { (*registration.get()).remote_key };
        *reach = Reach::Registered(registration);
        Ok(Some(Place { address: self.start as u64, key }))
    }

    /// The address to which the peer connects.
    pub fn address(&self) -> PairAddress {
        self.connection.address()
    }

    /// Takes the memory back, and returns when the card does not reach the memory any more. The card refuses the peer's next access.
    pub fn take_back(&self) {
        let mut reach = self.reach.lock().unwrap_or_else(PoisonError::into_inner);
        if let Reach::Registered(registration) = std::mem::replace(&mut *reach, Reach::TakenBack)
            && !registration.destroy()
        {
            self.connection.end();
        }
    }

    /// Returns true if the memory was taken back.
    pub fn is_taken_back(&self) -> bool {
        let reach = self.reach.lock().unwrap_or_else(PoisonError::into_inner);
        matches!(*reach, Reach::TakenBack)
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl fmt::Debug for Lending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lending").field("connection", &self.connection).finish_non_exhaustive()
    }
}
