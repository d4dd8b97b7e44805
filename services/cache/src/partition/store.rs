//! Storing values.

use petrel_planted::planted;
use serde::{Deserialize, Serialize};

use super::{HEADER_BYTES, Header, Log, Mode, Partition, Place};
use crate::error::StoreError;
use crate::key::Key;
use crate::limits::VALUE_BYTES_MAX;

/// The condition of a value, and its effect on an item that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    /// Store in any case.
    #[default]
    Set,
    /// Store if there is no item.
    Add,
    /// Store if there is an item.
    Replace,
    /// Add the value behind the item's value.
    Append,
    /// Add the value before the item's value.
    Prepend,
}

/// A request to store a value.
#[derive(Clone, Copy, Debug)]
pub struct Store<'a> {
    /// The key.
    pub key: Key<'a>,
    /// The value.
    pub value: &'a [u8],
    /// The client's flags. APPEND and PREPEND keep the item's flags.
    pub flags: u32,
    /// The second at which the item ends; 0 for never. APPEND and PREPEND keep the item's expiry.
    pub expiry: u32,
    /// The condition.
    pub verb: Verb,
    /// The version that the item must have.
    pub compare: Option<u64>,
    /// With a version lower than the item's, store the value as a stale one.
    pub allows_stale: bool,
}

impl<'a> Store<'a> {
    /// A request to set a value without conditions, flags and expiry.
    pub fn set(key: Key<'a>, value: &'a [u8]) -> Self {
        let verb = Verb::Set;
        Self { key, value, flags: 0, expiry: 0, verb, compare: None, allows_stale: false }
    }
}

/// The outcome of a request to store a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stored {
    /// The value is stored.
    Done {
        /// The item's new version.
        cas: u64,
    },
    /// The condition of the verb does not hold.
    Refused,
    /// The item has another version.
    Exists,
    /// Without an item no version can agree.
    NotFound,
}

impl Partition {
    /// Stores a value.
    ///
    /// # Errors
    /// [`StoreError`]. In cache mode a SET that fails removes the former item, as in memcached: a reader must not find
    /// a value which its writer has meant to replace.
    pub fn store(&mut self, request: &Store<'_>) -> Result<Stored, StoreError> {
        self.counters.cmd_set += 1;
        let place = self.find(request.key);
        let header = match self.judge(request, place.as_ref()) {
            Ok(header) => header,
            Err(outcome) => return Ok(outcome),
        };
        let written = match (request.verb, place) {
            (Verb::Append | Verb::Prepend, Some(place)) => self.extend(request, &place, header),
            (_, place) => self.write(request.key, request.value, header, place),
        };
        match written {
            Ok(cas) => Ok(Stored::Done { cas }),
            Err(error) => {
                if request.verb == Verb::Set {
                    self.drop_stale(request.key);
                }
                Err(error)
            }
        }
    }

    /// Counts a request whose value its owner did not receive, since the value is too large or for lack of memory.
    /// `removes` says that the request was a SET without a version: a cache then removes the former item.
    pub(crate) fn refuse(&mut self, key: Key<'_>, is_too_large: bool, removes: bool) {
        self.counters.cmd_set += 1;
        match is_too_large {
            true => self.counters.store_too_large += 1,
            false => self.counters.store_no_memory += 1,
        }
        if removes {
            self.drop_stale(key);
        }
    }

    /// Removes the former item of a value that could not be stored. A store keeps the item.
    fn drop_stale(&mut self, key: Key<'_>) {
        if self.mode == Mode::Cache
            && let Some(place) = self.find(key)
        {
            self.drop_item(key, &place);
        }
    }

    /// Applies the conditions of a request. Returns the new item's header, without sizes and version.
    fn judge(&mut self, request: &Store<'_>, place: Option<&Place>) -> Result<Header, Stored> {
        let &Store { flags, expiry, verb, compare, allows_stale, .. } = request;
        let new = Header::new(flags, expiry, self.now);
        let Some(old) = place.map(|place| place.header) else {
            self.counters.cas_misses += u64::from(compare.is_some());
            return match (compare, verb) {
                (Some(_), _) => Err(Stored::NotFound),
                (None, Verb::Set | Verb::Add) => Ok(new),
                (None, Verb::Replace | Verb::Append | Verb::Prepend) => Err(Stored::Refused),
            };
        };
        let is_stale = match compare {
            Some(cas) if cas == old.cas => {
                self.counters.cas_hits += 1;
                false
            }
            Some(cas) if allows_stale && cas < old.cas => true,
            Some(_) => {
                self.counters.cas_badval += 1;
                return Err(Stored::Exists);
            }
            None => false,
        };
        match verb {
            Verb::Add => Err(Stored::Refused),
            Verb::Append | Verb::Prepend => Ok(old.accessed_at(self.now)),
            // The item was invalidated meanwhile: the new value may be served as stale, and keeps the old item's
            // expiry.
            Verb::Set | Verb::Replace if is_stale => {
                Ok(new.ending_at(old.expiry).stale().won(old.is_won()))
            }
            Verb::Set | Verb::Replace => Ok(new),
        }
    }

    /// Stores the value of an item with more bytes before or behind it.
    fn extend(
        &mut self,
        request: &Store<'_>,
        place: &Place,
        header: Header,
    ) -> Result<u64, StoreError> {
        let old = self.log.value(place.position, &place.header);
        let parts = match request.verb {
            Verb::Prepend => [request.value, old],
            _ => [old, request.value],
        };
        // Of two values of the greatest size at most, which `write` refuses.
        let mut value = Vec::with_capacity(parts[0].len() + parts[1].len());
        parts.iter().for_each(|part| value.extend_from_slice(part));
        self.write(request.key, &value, header, Some(*place))
    }

    /// Writes an item, in place of another or at the log's head, and returns its version.
    pub(super) fn write(
        &mut self,
        key: Key<'_>,
        value: &[u8],
        header: Header,
        place: Option<Place>,
    ) -> Result<u64, StoreError> {
        let value_bytes = value.len().min(VALUE_BYTES_MAX + 1);
        let mut header = header.sized(key.bytes().len(), value_bytes);
        self.check_size(&header)?;
        if let Some(place) = place
            && place.header.space() == header.space()
        {
            header.cas = self.next_cas();
            // The item keeps its place. The mark keeps it from the next eviction.
            header = header.referenced(!planted("cache_set_again_stays_old"));
            self.log.overwrite(place.position, header, value);
            self.counters.total_items += 1;
            return Ok(header.cas);
        }
        let replaced = place.map_or(0, |place| place.header.space());
        self.make_room(header.space(), replaced)?;
        header.cas = self.next_cas();
        self.append(key, value, header)?;
        Ok(header.cas)
    }

    /// Appends an item to the log, which has room, and lets the index lead to it.
    fn append(&mut self, key: Key<'_>, value: &[u8], header: Header) -> Result<(), StoreError> {
        let position = self.log.append(header, key.bytes(), value);
        self.items += 1;
        self.live_bytes += header.space();
        // Room was made since the first look-up, so that the item may have moved or gone.
        match self.find_old(key, position) {
            Some(old) => {
                self.index.set(old.slot, Log::offset(position));
                self.bury(old.position);
            }
            None => {
                if let Err(error) = self.insert(key.hash(), position) {
                    if !planted("cache_refused_item_counts") {
                        self.bury(position);
                    }
                    return Err(error);
                }
            }
        }
        self.counters.total_items += 1;
        let used = self.items * HEADER_BYTES as u64;
        assert!(used <= self.live_bytes && self.live_bytes <= self.log.capacity(), "wrong counts");
        Ok(())
    }

    /// Finds the item that another at `position` replaces.
    fn find_old(&self, key: Key<'_>, position: u64) -> Option<Place> {
        let old = self.find_any(key)?;
        assert!(old.position != position, "the index leads to the new item too early");
        Some(old)
    }
}
