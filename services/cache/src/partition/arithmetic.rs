//! Numbers as values: incr and decr.

use serde::{Deserialize, Serialize};

use super::{Header, Partition};
use crate::error::StoreError;
use crate::key::Key;
use crate::numbers::unsigned;

/// Most digits of a number below 2^64.
const DIGITS_MAX: usize = 20;

/// A request to change a number.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: Key<'a>,
    /// The number to add or to subtract.
    pub delta: u64,
    /// Whether to add. A sum wraps around at 2^64; a difference is 0 at least.
    pub is_increment: bool,
    /// The version that the item must have.
    pub compare: Option<u64>,
    /// Another expiry for the item.
    pub touch: Option<u32>,
    /// After a miss, number and expiry of the new item.
    pub initial: Option<(u64, u32)>,
}

/// The outcome of a change of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Counted {
    /// The item has this number now.
    Number {
        /// The number.
        number: u64,
        /// The item's new version.
        cas: u64,
        /// The second at which the item ends; 0 for never, and for clients of Petrel.
        #[serde(skip)]
        expiry: u32,
    },
    /// There is no item.
    NotFound,
    /// The item has another version.
    Exists,
    /// The item's value is no number below 2^64 in decimal.
    NotANumber,
}

impl Partition {
    /// Adds to a number, or subtracts from it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn count(&mut self, request: &Arithmetic<'_>) -> Result<Counted, StoreError> {
        let Some(place) = self.find(request.key) else {
            match request.is_increment {
                true => self.counters.incr_misses += 1,
                false => self.counters.decr_misses += 1,
            }
            let Some((number, expiry)) = request.initial else { return Ok(Counted::NotFound) };
            let header = Header::new(0, expiry, self.now);
            let cas = self.write(request.key, number.to_string().as_bytes(), header, None)?;
            return Ok(Counted::Number { number, cas, expiry });
        };
        if request.compare.is_some_and(|cas| cas != place.header.cas) {
            return Ok(Counted::Exists);
        }
        let Some(number) = parse(self.log.value(place.position, &place.header)) else {
            return Ok(Counted::NotANumber);
        };
        let number = match request.is_increment {
            true => number.wrapping_add(request.delta),
            false => number.saturating_sub(request.delta),
        };
        match request.is_increment {
            true => self.counters.incr_hits += 1,
            false => self.counters.decr_hits += 1,
        }
        let expiry = request.touch.unwrap_or(place.header.expiry);
        let header = place.header.ending_at(expiry).accessed_at(self.now);
        let cas = self.write(request.key, number.to_string().as_bytes(), header, Some(place))?;
        Ok(Counted::Number { number, cas, expiry })
    }
}

/// Parses a value as a number. Spaces behind the number are accepted: other caches pad with spaces.
fn parse(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii_end();
    if value.len() > DIGITS_MAX { None } else { unsigned(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse__takes_numbers_below_2_to_64() {
        assert_eq!(parse(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!((parse(b"007"), parse(b"42  ")), (Some(7), Some(42)));
        for value in
            [&b"18446744073709551616"[..], b"", b" ", b"-1", b"1x", b"100000000000000000000"]
        {
            assert_eq!(parse(value), None, "{value:?}");
        }
    }
}
