//! Look-ups against thundering herds: stale items, and the one client that makes a new value.

use super::header::space;
use super::{Header, Item, Partition, Place, Removed};
use crate::error::StoreError;
use crate::key::Key;

/// A look-up with conditions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fetch {
    /// Another expiry for the item.
    pub touch: Option<u32>,
    /// After a miss, the expiry of the new, empty item.
    pub vivify: Option<u32>,
    /// With fewer seconds left, one client is told to refresh the value.
    pub recache_s: Option<u32>,
    /// Leave the marks of an access as they are.
    pub is_silent: bool,
}

/// A found item, and the state before the look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched<'a> {
    /// The item.
    pub item: Item<'a>,
    /// The bytes that the item takes in the log.
    pub bytes: u64,
    /// Whether a client has fetched the item before.
    pub was_fetched: bool,
    /// Seconds since the last access.
    pub idle_s: u32,
    /// The item has been invalidated.
    pub is_stale: bool,
    /// This client is to make a new value.
    pub has_won: bool,
    /// Another client has been told to make a new value.
    pub other_has_won: bool,
}

impl Partition {
    /// Looks an item up.
    ///
    /// # Errors
    /// [`StoreError`] if an item was to be made.
    pub fn fetch(
        &mut self,
        key: Key<'_>,
        request: &Fetch,
    ) -> Result<Option<Fetched<'_>>, StoreError> {
        self.counters.cmd_get += 1;
        self.counters.cmd_touch += u64::from(request.touch.is_some());
        let Some(place) = self.find_counted(key) else {
            self.counters.get_misses += 1;
            self.counters.touch_misses += u64::from(request.touch.is_some());
            return match request.vivify {
                Some(expiry) => self.vivify(key, expiry).map(Some),
                None => Ok(None),
            };
        };
        self.counters.get_hits += 1;
        self.counters.touch_hits += u64::from(request.touch.is_some());
        Ok(Some(self.fetch_found(&place, request)))
    }

    /// Makes an empty item, whose value this client is to make.
    fn vivify(&mut self, key: Key<'_>, expiry: u32) -> Result<Fetched<'_>, StoreError> {
        let header = Header::new(0, expiry, self.now).won(true);
        let cas = self.write(key, b"", header, None)?;
        Ok(Fetched {
            item: Item { value: b"", flags: 0, cas, expiry },
            bytes: space(key.bytes().len(), 0),
            was_fetched: false,
            idle_s: 0,
            is_stale: false,
            has_won: true,
            other_has_won: false,
        })
    }

    fn fetch_found(&mut self, place: &Place, request: &Fetch) -> Fetched<'_> {
        let before = place.header;
        let mut header = before;
        if !request.is_silent {
            header = header.fetched_at(self.now);
        }
        if let Some(expiry) = request.touch {
            header.expiry = expiry;
        }
        let ends_soon = request.recache_s.is_some_and(|limit| {
            before.expiry != 0 && before.expiry.saturating_sub(self.now) < limit
        });
        let has_won = !before.is_won() && (before.is_stale() || ends_soon);
        header = header.won(before.is_won() || has_won);
        if header != before {
            self.log.set_header(place.position, header);
        }
        let item = self.item(place.position, &header);
        Fetched { item, has_won, ..self.fetched(place) }
    }

    fn fetched(&self, &Place { position, header, .. }: &Place) -> Fetched<'_> {
        Fetched {
            item: self.item(position, &header),
            bytes: header.space(),
            was_fetched: header.is_fetched(),
            idle_s: self.now.saturating_sub(header.accessed()),
            is_stale: header.is_stale(),
            has_won: false,
            other_has_won: header.is_won(),
        }
    }

    /// Looks an item up without counting and without marks.
    pub fn peek(&self, key: Key<'_>) -> Option<Fetched<'_>> {
        let place = self.find_any(key).filter(|place| !place.header.is_expired(self.now))?;
        Some(self.fetched(&place))
    }

    /// Marks an item as stale, if the version equals `compare`: the next look-up may serve the value, and its client is
    /// told to refresh the value.
    pub fn invalidate(
        &mut self,
        key: Key<'_>,
        compare: Option<u64>,
        expiry: Option<u32>,
    ) -> Removed {
        let Some(place) = self.find(key) else {
            self.counters.delete_misses += 1;
            return Removed::NotFound;
        };
        if compare.is_some_and(|cas| cas != place.header.cas) {
            return Removed::Exists;
        }
        self.counters.delete_hits += 1;
        let (cas, expiry) = (self.next_cas(), expiry.unwrap_or(place.header.expiry));
        let mut header = place.header.ending_at(expiry).stale().won(false);
        header.cas = cas;
        self.log.set_header(place.position, header);
        Removed::Done
    }
}
