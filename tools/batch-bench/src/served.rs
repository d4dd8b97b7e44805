//! Lookups for servers: a request has the key, and its answer is a number.
//!
//! The same table answers by a plain function and by the batch that `#[batched]` wrote of it.

use crate::{ipv4, ipv6, names, switch};

/// Requests of a workload: more lines of a table than a core's own caches hold.
pub(crate) const REQUESTS: usize = 1 << 20;

/// The inputs in flight: as many as an endpoint hands to a batched handler.
pub(crate) const WIDTH: usize = 32;

/// The answer for a key without an entry.
pub(crate) const ABSENT: u32 = u32::MAX;

/// A table that answers messages.
pub trait Service: 'static {
    /// The input of a lookup.
    type Key: Copy + 'static;
    /// The bytes of a request.
    type Message: AsRef<[u8]>;

    /// Returns the request for a key.
    fn message(key: Self::Key) -> Self::Message;

    /// Returns the key of a request. Bytes that are no request have some key as well.
    fn key(message: &[u8]) -> Self::Key;

    /// Returns the address of the first line that a lookup reads.
    fn first_line(&self, key: Self::Key) -> *const u8;

    /// Looks up a key.
    fn find(&self, key: Self::Key) -> u32;

    /// Looks up several keys together. `each` gets the results, with the numbers of their keys.
    fn find_batch(&self, keys: impl Iterator<Item = Self::Key>, each: impl FnMut(usize, u32));
}

/// A table with requests and their answers.
pub struct Workload<S: Service> {
    /// The kind and the size of the table, for human readers.
    pub title: String,
    /// The table.
    pub service: S,
    /// The keys of requests.
    pub keys: Vec<S::Key>,
    /// The right answers, computed by other means than the lookup.
    pub answers: Vec<u32>,
}

impl<S: Service> Workload<S> {
    pub(crate) fn new(
        title: String,
        service: S,
        keys: Vec<S::Key>,
        answer: impl Fn(S::Key) -> u32,
    ) -> Self {
        let answers = keys.iter().map(|key| answer(*key)).collect();
        Self { title, service, keys, answers }
    }
}

/// Returns IPv4 routes (DIR-24-8). `smaller` divides the number of prefixes and of requests, from 1 to 256.
pub fn ipv4(smaller: usize) -> Workload<impl Service> {
    ipv4::workload(smaller)
}

/// Returns IPv6 routes (a trie), whose size `smaller` divides.
pub fn ipv6(smaller: usize) -> Workload<impl Service> {
    ipv6::workload(smaller)
}

/// Returns the addresses of an Ethernet switch (a cuckoo hash table), whose size `smaller` divides.
pub fn switch(smaller: usize) -> Workload<impl Service> {
    switch::workload(smaller)
}

/// Returns routes of named data (a cuckoo hash table of prefixes), whose number `smaller` divides.
pub fn ndn(smaller: usize) -> Workload<impl Service> {
    names::workload(smaller)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_answers<S: Service>(workload: &Workload<S>) {
        let key_of = |key: &S::Key| S::key(S::message(*key).as_ref());
        let plain: Vec<u32> =
            workload.keys.iter().map(|key| workload.service.find(key_of(key))).collect();
        assert!(plain == workload.answers, "{}", workload.title);
        let mut batched = vec![0; plain.len()];
        workload
            .service
            .find_batch(workload.keys.iter().map(key_of), |index, found| batched[index] = found);
        assert!(batched == plain, "{}", workload.title);
    }

    #[test]
    fn workloads__plain_and_batched_answers_are_right() {
        assert_answers(&ipv4(256));
        assert_answers(&ipv6(256));
        assert_answers(&switch(256));
        assert_answers(&ndn(256));
    }
}
