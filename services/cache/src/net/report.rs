//! Counters of all partitions, and the replies to `stats`.

use std::io::Write;
use std::sync::atomic::Ordering;

use super::thread::Shared;
use crate::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::memcached::Everywhere;
use crate::partition::{Counters, Mode, Partition};

/// The counters of a partition, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) counters: Counters,
    pub(crate) items: u64,
    pub(crate) live_bytes: u64,
    pub(crate) memory_bytes: u64,
}

impl Snapshot {
    pub(crate) fn of(partition: &Partition) -> Self {
        Self {
            counters: *partition.counters(),
            items: partition.items(),
            live_bytes: partition.live_bytes(),
            memory_bytes: partition.memory_bytes(),
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counters.add(&other.counters);
        self.items += other.items;
        self.live_bytes += other.live_bytes;
        self.memory_bytes += other.memory_bytes;
    }

    /// Appends the numbers, for another thread of this process.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let sizes = [self.items, self.live_bytes, self.memory_bytes];
        let counters = self.counters.named().map(|(_, value)| value);
        sizes
            .into_iter()
            .chain(counters)
            .for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    }

    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "numbers of eight bytes");
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let mut next = || words.next().expect("as many numbers as were written");
        let (items, live_bytes, memory_bytes) = (next(), next(), next());
        let counters = Counters::from_values(next);
        assert_eq!(words.next(), None, "more numbers than counters");
        Self { counters, items, live_bytes, memory_bytes }
    }

    /// Names and values, with the names of memcached.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let sizes = [
            ("curr_items", self.items),
            ("bytes", self.live_bytes),
            ("partition_bytes", self.memory_bytes),
        ];
        sizes.into_iter().chain(self.counters.named())
    }
}

/// Writes the reply of an operation on all partitions.
pub(super) fn format(shared: &Shared, everywhere: Everywhere, sum: &Snapshot, out: &mut Vec<u8>) {
    match everywhere {
        Everywhere::Flush { is_quiet: true, .. } => {}
        Everywhere::Flush { is_quiet: false, .. } => out.extend_from_slice(b"OK\r\n"),
        Everywhere::ResetStats => out.extend_from_slice(b"RESET\r\n"),
        Everywhere::Stats => put_stats(shared, sum, out),
        Everywhere::Settings => put_settings(shared, out),
    }
}

fn put_stats(shared: &Shared, sum: &Snapshot, out: &mut Vec<u8>) {
    let connections = &shared.connections;
    put(out, "pid", std::process::id());
    put(out, "uptime", shared.started.elapsed().as_secs());
    put(out, "time", super::thread::unix_seconds());
    put(out, "version", concat!("1.6.18-petrel-", env!("CARGO_PKG_VERSION")));
    put(out, "pointer_size", usize::BITS);
    put(out, "max_connections", shared.limits.connections_max);
    put(out, "curr_connections", connections.open.load(Ordering::Relaxed));
    put(out, "total_connections", connections.accepted.load(Ordering::Relaxed));
    put(out, "rejected_connections", connections.rejected.load(Ordering::Relaxed));
    put(out, "displaced_connections", connections.displaced.load(Ordering::Relaxed));
    put(out, "idle_kicks", connections.idle.load(Ordering::Relaxed));
    put(out, "memory_kicks", connections.stalled.load(Ordering::Relaxed));
    if shared.tls.is_some() {
        put(out, "credential_errors", connections.without_tls.load(Ordering::Relaxed));
    }
    put(out, "limit_maxbytes", shared.limits.memory_bytes);
    put(out, "threads", shared.inboxes.len());
    put(out, "partitions", shared.partitions);
    if let Some(passwords) = &shared.passwords {
        put(out, "auth_cmds", passwords.attempts.load(Ordering::Relaxed));
        put(out, "auth_errors", passwords.failures.load(Ordering::Relaxed));
    }
    sum.named().for_each(|(name, value)| put(out, name, value));
    out.extend_from_slice(b"END\r\n");
}

fn put_settings(shared: &Shared, out: &mut Vec<u8>) {
    put(out, "maxbytes", shared.limits.memory_bytes);
    put(out, "maxconns", shared.limits.connections_max);
    put(out, "evictions", if shared.mode == Mode::Cache { "on" } else { "off" });
    put(out, "cas_enabled", "yes");
    put(out, "num_threads", shared.inboxes.len());
    put(out, "item_size_max", VALUE_BYTES_MAX);
    put(out, "key_size_max", KEY_BYTES_MAX);
    let on = |is_on| if is_on { "yes" } else { "no" };
    put(out, "ssl_enabled", on(shared.tls.is_some()));
    put(out, "auth_enabled_ascii", on(shared.passwords.is_some()));
    put(out, "idle_timeout", shared.limits.idle_s.unwrap_or(0));
    out.extend_from_slice(b"END\r\n");
}

fn put(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    // Writing to a vector does not fail.
    let _ = write!(out, "STAT {name} {value}\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decode__reads_each_encoding() {
        let mut bytes = Vec::new();
        let mut value = 0;
        let counters = Counters::from_values(|| {
            value += 1;
            value
        });
        let snapshot = Snapshot { counters, items: 100, live_bytes: 200, memory_bytes: 300 };
        snapshot.encode(&mut bytes);
        assert_eq!(Snapshot::decode(&bytes), snapshot);
        assert!(counters.named().map(|(_, value)| value).eq(1..=value));
    }
}
