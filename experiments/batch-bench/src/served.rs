//! Lookups for servers: a request has the key, and its answer is a number.
//!
//! A table answers by a plain function and by the batch of `#[batched]`.

use crate::{ipv4, ipv6, names, switch};

pub use crate::chase::Chain;

/// Requests of a workload: more lines of a table than a core's own caches hold.
const REQUESTS: usize = 1 << 20;

/// The size of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Divides the size of the table, from 1 to 256.
    pub smaller: usize,
    /// The number of requests.
    pub requests: usize,
}

impl Size {
    /// Returns the size of a table that `smaller` divides, with requests for more lines than a core's own caches hold.
    pub fn divided_by(smaller: usize) -> Self {
        Self { smaller, requests: REQUESTS / smaller }
    }
}

/// The inputs in flight: as many as an endpoint hands to a batched handler.
pub(crate) const WIDTH: usize = 32;

/// The answer for a key without an entry.
pub(crate) const ABSENT: u32 = u32::MAX;

/// A table that answers messages.
pub trait Service: Send + Sync + 'static {
    /// The input of a lookup.
    type Key: Copy + Send + Sync + 'static;
    /// The bytes of a request.
    type Message: AsRef<[u8]>;

    /// Returns the request for a key.
    fn message(key: Self::Key) -> Self::Message;

    /// Returns the key of a request. Bytes that are no request have some key as well.
    fn key(message: &[u8]) -> Self::Key;

    /// Returns the address of the first line that a lookup reads.
    fn first_line(&self, key: Self::Key) -> *const u8;

    /// Returns the arrays of the table, for a copy in the memory of another device.
    fn arrays(&self) -> Vec<*const [u8]>;

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

/// Returns IPv4 routes (DIR-24-8).
pub fn ipv4(size: Size) -> Workload<impl Service> {
    ipv4::workload(size)
}

/// Returns IPv6 routes (a trie).
pub fn ipv6(size: Size) -> Workload<impl Service> {
    ipv6::workload(size)
}

/// Returns the addresses of an Ethernet switch (a cuckoo hash table).
pub fn switch(size: Size) -> Workload<impl Service> {
    switch::workload(size)
}

/// Returns routes of named data (a cuckoo hash table of prefixes).
pub fn ndn(size: Size) -> Workload<impl Service> {
    names::workload(size)
}

/// Returns chains of dependent accesses, one access per request until [`Workload::set_steps`].
pub fn chain(size: Size) -> Workload<Chain> {
    Chain::workload(size)
}

impl Workload<Chain> {
    /// Sets the accesses per request.
    pub fn set_steps(&mut self, steps: usize) {
        self.answers = self.service.set_steps(steps, &self.keys);
    }
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
        let size = Size::divided_by(256);
        assert_answers(&ipv4(size));
        assert_answers(&ipv6(size));
        assert_answers(&switch(size));
        assert_answers(&ndn(size));
        let mut chain = chain(size);
        assert_answers(&chain);
        chain.set_steps(5);
        assert_answers(&chain);
    }
}
