//! Keys, values, and the check of answers.

use std::time::Duration;

use petrel_command::output::latency::Latencies;
use petrel_kv::client::Put;

/// eRPC §7.1.
const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 64;

/// Operations of a kind with a number of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A call that the leader answers alone from memory: a stale get by `Context::call`.
    RawCall,
    /// A put by `Context::call`, with a hand-encoded command.
    RawPut,
    /// Puts by a `KvClient` per client.
    Put,
    /// Linearizable gets by a `KvClient` per client.
    Get,
    /// Puts by a shared `KvClient`, all in flight together.
    OneClientPut,
    /// Linearizable gets by a shared `KvClient`, all in flight together.
    OneClientGet,
    /// Puts by a shared `KvClient` from another thread, all in flight together.
    RemotePut,
}

impl Kind {
    /// Returns the kinds to measure with `clients` clients.
    pub(super) fn all(clients: usize) -> Vec<Self> {
        let mut all = vec![Self::RawCall, Self::RawPut, Self::Put, Self::Get, Self::RemotePut];
        if clients > 1 {
            all.extend([Self::OneClientPut, Self::OneClientGet]);
        }
        all
    }

    pub(super) fn is_raw(self) -> bool {
        matches!(self, Self::RawCall | Self::RawPut)
    }

    /// Returns the name in tables and in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RawCall => "stale get, raw call",
            Self::RawPut => "put, raw call",
            Self::Put => "put",
            Self::Get => "get",
            Self::OneClientPut => "put, one client",
            Self::OneClientGet => "get, one client",
            Self::RemotePut => "put, other thread",
        }
    }
}

/// The results of the operations of one kind.
pub(super) struct Counts {
    pub(super) latencies: Latencies,
    pub(super) answered: u64,
    pub(super) wrong: u64,
    pub(super) elapsed: Duration,
}

impl Default for Counts {
    fn default() -> Self {
        Self { latencies: Latencies::default(), answered: 0, wrong: 0, elapsed: Duration::ZERO }
    }
}

impl Counts {
    pub(super) fn per_second(&self) -> f64 {
        self.answered as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Records one answer.
    pub(super) fn note(&mut self, latency: Duration, is_right: bool) {
        self.latencies.record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        self.answered += 1;
        self.wrong += u64::from(!is_right);
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.latencies.add(&other.latencies);
        self.answered += other.answered;
        self.wrong += other.wrong;
        self.elapsed += other.elapsed;
    }
}

pub(super) fn key_of(number: u64) -> [u8; KEY_BYTES] {
    let mut key = [b'k'; KEY_BYTES];
    let mut left = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
    }
    key
}

/// Returns the value of a key. It begins with the key, which exposes answers for other keys.
pub(super) fn value_of(key: &[u8; KEY_BYTES], fill: u8) -> [u8; VALUE_BYTES] {
    let mut value = [fill; VALUE_BYTES];
    value[..KEY_BYTES].copy_from_slice(key);
    value
}

/// Returns true if the value was put for the key.
pub(super) fn is_value_of(key: &[u8; KEY_BYTES], value: &[u8]) -> bool {
    value.len() == VALUE_BYTES
        && value[..KEY_BYTES] == key[..]
        && value[KEY_BYTES..].iter().all(|byte| *byte == value[KEY_BYTES])
}

/// Returns true if a put replaced a value at a later revision: all keys exist before, and revisions of
/// one client ascend.
pub(super) fn is_next(put: Put, last_revision: &mut u64) -> bool {
    let is_next = put.revision > *last_revision;
    *last_revision = put.revision.max(*last_revision);
    is_next && put.replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of__has_the_number_in_it() {
        assert_eq!(&key_of(0), b"kkkk000000000000");
        assert_eq!(&key_of(999_999_999), b"kkkk000999999999");
    }

    #[test]
    fn is_value_of__detects_another_keys_value_and_a_torn_one() {
        let (one, other) = (key_of(1), key_of(2));
        let value = value_of(&one, 7);
        assert!(is_value_of(&one, &value));
        assert!(!is_value_of(&other, &value));
        assert!(!is_value_of(&one, &value[..63]));
        let mut torn = value;
        torn[63] = 8;
        assert!(!is_value_of(&one, &torn));
    }

    #[test]
    fn is_next__refuses_a_revision_twice_and_a_key_that_was_not_there() {
        let mut last = 4;
        assert!(is_next(Put { revision: 5, replaced: true }, &mut last));
        assert!(!is_next(Put { revision: 5, replaced: true }, &mut last));
        assert!(!is_next(Put { revision: 6, replaced: false }, &mut last));
    }
}
