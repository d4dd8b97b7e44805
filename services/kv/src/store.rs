//! The state machine: every replica applies the commands of the log to it, in their order.
//!
//! The state is a pure function of the commands: no clock, no random numbers, no I/O. Two stores with the same applied
//! log answer every query equally, and have equal [digests](Store::digest).
//!
//! ```
//! use petrel_kv::api::{Applied, Outcome, WriteReply};
//! use petrel_kv::command::{Command, Op};
//! use petrel_kv::store::Store;
//!
//! let mut store = Store::new();
//! let mut apply = |index, command: Command<'_>| {
//!     let (mut request, mut reply) = (Vec::new(), Vec::new());
//!     command.encode(&mut request);
//!     store.apply(index, &request, &mut reply);
//!     reply
//! };
//! apply(1, Command::OpenSession);
//! let op = Op::Put { key: b"answer", value: b"42" };
//! let write = Command::Write { session: 1, sequence: 0, first_pending: 0, op };
//! let reply = apply(2, write);
//! let applied = Applied { index: 2, outcome: Outcome::Put { replaced: false } };
//! assert_eq!(WriteReply::decode(&reply), Ok(WriteReply::Applied(applied)));
//! assert_eq!(apply(3, write), reply, "it is applied once");
//! assert_eq!(store.get(b"answer"), Some((&b"42"[..], 2)));
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `map` | the keys: pages of sorted entries under directories, shared with images until they change |
//! | `history` | the changes of the last commands, which are no part of the state |
//! | `sessions` | client sessions, with the results of pending writes |
//! | `leases` | leases with their keys, and the lease clock |
//! | `restore` | from an empty store to a saved one |
//! | `image` | the state at one moment, as a stream of chunks |
//! | `build` | from chunks back to a store |

mod build;
mod execute;
mod history;
mod image;
mod leases;
mod map;
mod restore;
mod sessions;

pub use build::{BuildError, Builder};
pub(crate) use history::History;
pub(crate) use image::PairCursor;
pub use image::{Chunk, Cursor, Image};
pub(crate) use leases::Lease;
pub(crate) use map::PREFETCH_MIN;
pub use map::{PREFETCH_MAX, Range};

use crate::api::{Applied, Outcome, Refusal, WriteReply};
use crate::command::{Command, Op};
use history::Keys;
use leases::Leases;
use restore::Restores;
use sessions::{Admission, Sessions};

/// The replicated state: keys with their values and revisions, client sessions, and leases.
#[derive(Debug, Default)]
pub struct Store {
    /// Index of the last command.
    applied: u64,
    map: Keys,
    sessions: Sessions,
    restores: Restores,
    leases: Leases,
}

impl Store {
    /// An empty store.
    pub fn new() -> Store {
        Store::default()
    }

    /// Applies the command at `index` of the log, and appends the encoded [`WriteReply`] to `reply`.
    ///
    /// A repeated write gets its first reply, byte for byte. Malformed bytes change nothing except the index, and are
    /// refused. A [`Command::Advance`] has no reply.
    ///
    /// # Panics
    ///
    /// If a command with this or a later index has been applied.
    pub fn apply(&mut self, index: u64, command: &[u8], reply: &mut Vec<u8>) {
        assert!(index > self.applied, "entry {index} after entry {}", self.applied);
        self.applied = index;
        match Command::decode(command) {
            Ok(Command::OpenSession) => {
                let index = self.revision();
                self.sessions.open(index);
                let outcome = Outcome::SessionOpened;
                WriteReply::Applied(Applied { index, outcome }).encode(reply);
            }
            Ok(Command::Write { session, sequence, first_pending, op }) => {
                self.write(session, sequence, first_pending, &op).encode(reply);
            }
            Ok(Command::Advance { clock_ms }) => self.leases.advance(&mut self.map, clock_ms),
            Err(error) => Refusal::Malformed(&error.to_string()).encode(reply),
        }
        self.map.history.end(self.revision());
    }

    /// The reply of [`Store::apply`] to this command, computed without applying. Possible for a new write of a single
    /// key. Changes nothing.
    pub fn precompute(&self, index: u64, command: &[u8]) -> Option<Vec<u8>> {
        let Ok(Command::Write { session, sequence, first_pending, op }) = Command::decode(command)
        else {
            return None;
        };
        let would_admit = self.sessions.get(session)?.would_admit(sequence, first_pending);
        if !would_admit || self.is_restoring() {
            return None;
        }
        let outcome = execute::precompute(&self.map, &op)?;
        let index = self.restores.revision(index);
        let mut reply = Vec::with_capacity(size_of::<Applied>());
        WriteReply::Applied(Applied { index, outcome }).encode(&mut reply);
        Some(reply)
    }

    /// Prefetches memory for [`Store::apply`] of these commands, with overlapping cache misses. Serves up to
    /// [`PREFETCH_MAX`] commands, to be applied directly afterwards. Changes nothing.
    pub fn prefetch<'c>(&self, commands: impl Iterator<Item = &'c [u8]>) {
        self.map.prefetch(commands.filter_map(|command| match Command::decode(command) {
            Ok(Command::Write { op, .. }) => op.first_key(),
            _ => None,
        }));
    }

    /// Prefetches the memory for [`Store::get`] of these keys, up to [`PREFETCH_MAX`].
    pub fn prefetch_keys<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        self.map.prefetch(keys);
    }

    /// Returns the value and revision of a key.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<(&[u8], u64)> {
        self.map.get(key)
    }

    /// The pairs from key `from` (included) to `until` (excluded).
    pub fn scan<'a>(&'a self, from: &[u8], until: Option<&'a [u8]>) -> Range<'a> {
        self.map.range(from, until)
    }

    /// Index of the last applied command.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The revision of the last applied command: its log index, plus a constant after a restore.
    pub fn revision(&self) -> u64 {
        self.restores.revision(self.applied)
    }

    /// The changes of the last commands.
    pub(crate) fn history(&self) -> &History {
        &self.map.history
    }

    /// Bounds the memory of the history, in bytes.
    pub(crate) fn set_history_bytes_max(&mut self, bytes_max: usize) {
        self.map.history.set_bytes_max(bytes_max);
    }

    /// Returns true if a restore has begun and not ended: the store is not whole.
    #[inline]
    pub fn is_restoring(&self) -> bool {
        self.restores.is_unfinished()
    }

    /// The number of keys.
    pub fn keys(&self) -> u64 {
        self.map.keys()
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// The number of leases.
    pub fn leases(&self) -> u64 {
        self.leases.len() as u64
    }

    /// The number of keys with a lease.
    pub fn leased_keys(&self) -> u64 {
        self.leases.keys() as u64
    }

    /// The memory of all leases, about, in bytes.
    pub(crate) fn lease_bytes(&self) -> u64 {
        self.leases.bytes()
    }

    /// The last value of the lease clock, in milliseconds.
    pub fn lease_clock_ms(&self) -> u64 {
        self.leases.clock_ms()
    }

    /// Returns true if a lease's time waits for an advance of the lease clock, to begin.
    pub(crate) fn has_fresh_leases(&self) -> bool {
        self.leases.has_fresh()
    }

    /// Returns true if the time of a lease is over at this value of the lease clock.
    pub(crate) fn has_ended_leases(&self, clock_ms: u64) -> bool {
        self.leases.has_ended(clock_ms)
    }

    /// The lease with a number.
    pub(crate) fn lease(&self, id: u64) -> Option<&Lease> {
        self.leases.get(id)
    }

    /// The leases from a number on, in the order of their numbers.
    pub(crate) fn leases_from(&self, id: u64) -> impl Iterator<Item = (u64, &Lease)> {
        self.leases.from(id)
    }

    /// The number of sessions.
    pub fn sessions(&self) -> u64 {
        self.sessions.len() as u64
    }

    /// The state at this moment, readable while the store continues. The cost grows with the sessions and with the
    /// directories of some ten thousand keys, but not with single keys.
    pub fn image(&self) -> Image {
        let sessions = self.sessions.image();
        let leases = (self.leases.clock_ms(), self.leases.image());
        Image::new(self.applied, self.map.image(), sessions, self.restores.clone(), leases)
    }

    /// A digest of the whole state: the same for equal states, and most likely different otherwise. Reads everything.
    pub fn digest(&self) -> u64 {
        self.image().digest()
    }

    fn write(
        &mut self,
        session: u64,
        sequence: u64,
        first_pending: u64,
        op: &Op<'_>,
    ) -> WriteReply<'static> {
        let index = self.revision();
        let Some(session) = self.sessions.touch(session, index) else {
            return WriteReply::Refused(Refusal::SessionUnknown);
        };
        match session.admit(sequence, first_pending) {
            Admission::New => {
                let outcome = match op {
                    Op::Restore(step) => {
                        let was_unfinished = self.restores.is_unfinished();
                        let map = self.map.unrecorded();
                        let outcome = self.restores.step(map, self.applied, step);
                        if was_unfinished || self.restores.is_unfinished() {
                            self.map.history.restart(self.restores.revision(self.applied) + 1);
                        }
                        Outcome::Restore(outcome)
                    }
                    _ if self.restores.is_unfinished() => {
                        return WriteReply::Refused(Refusal::Restoring);
                    }
                    _ => execute::execute(&mut self.map, &mut self.leases, index, op),
                };
                let applied = Applied { index, outcome };
                session.record(sequence, applied);
                WriteReply::Applied(applied)
            }
            Admission::Repeat(applied) => WriteReply::Applied(applied),
            Admission::TooOld => WriteReply::Refused(Refusal::SequenceTooOld),
            Admission::TooMany => WriteReply::Refused(Refusal::TooManyPending),
        }
    }
}
