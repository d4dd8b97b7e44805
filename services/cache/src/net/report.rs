//! Counters of all partitions, and the replies to `stats`.

use std::io::Write;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::thread::Shared;
use crate::limits::{DUMP_BYTES_MAX, KEY_BYTES_MAX};
use crate::memcached::replies::{END, OK};
use crate::memcached::{Clock, Everywhere};
use crate::partition::{Counters, Mode, Partition};

/// The counters of a partition, or of several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) counters: Counters,
    pub(crate) items: u64,
    pub(crate) live_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) log_bytes: u64,
    pub(crate) index_bytes: u64,
    /// Seconds since the last access to the oldest item.
    pub(crate) age_s: u64,
    /// Lines about items.
    pub(crate) text: Vec<u8>,
}

impl Snapshot {
    pub(crate) fn of(partition: &Partition) -> Self {
        Self {
            counters: *partition.counters(),
            items: partition.items(),
            live_bytes: partition.live_bytes(),
            memory_bytes: partition.memory_bytes(),
            log_bytes: partition.log_bytes(),
            index_bytes: partition.index_bytes(),
            age_s: partition.age_s(),
            text: Vec::new(),
        }
    }

    /// Adds a line for each of the oldest items, at most as many as that. Keys that came in base64 and are no words are left out: a
    /// reader of lines could not tell them from further lines.
    pub(crate) fn with_items(mut self, partition: &Partition, clock: &Clock, items: usize) -> Self {
        let mut left = items;
        partition.each_item(|key, value_bytes, expiry| {
            if left == 0 || self.text.len() > DUMP_BYTES_MAX {
                return false;
            }
            if key.iter().any(|byte| byte.is_ascii_control() || *byte == b' ') {
                return true;
            }
            left -= 1;
            self.text.extend_from_slice(b"ITEM ");
            self.text.extend_from_slice(key);
            let unix = if expiry == 0 { 0 } else { clock.unix(expiry) };
            // Writing to a vector does not fail.
            let _ = write!(self.text, " [{value_bytes} b; {unix} s]\r\n");
            true
        });
        self
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counters.add(&other.counters);
        self.items += other.items;
        self.live_bytes += other.live_bytes;
        self.memory_bytes += other.memory_bytes;
        self.log_bytes += other.log_bytes;
        self.index_bytes += other.index_bytes;
        self.age_s = self.age_s.max(other.age_s);
        self.text.extend_from_slice(&other.text);
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
        Everywhere::Flush { is_quiet: false, .. } => out.extend_from_slice(OK),
        Everywhere::ResetStats => out.extend_from_slice(b"RESET\r\n"),
        Everywhere::Stats => put_stats(shared, sum, out),
        Everywhere::Settings => put_settings(shared, out),
        Everywhere::Items => put_items(sum, out),
        Everywhere::Slabs => put_slabs(shared, sum, out),
        Everywhere::Dump { items } => {
            // Each partition has sent as many, and the client gets no more than it asked for.
            let lines = sum.text.split_inclusive(|byte| *byte == b'\n').take(items);
            lines.for_each(|line| out.extend_from_slice(line));
            out.extend_from_slice(END);
        }
        Everywhere::Connections => put_connections(shared, out),
        Everywhere::Limit { is_quiet: true, .. } => {}
        Everywhere::Limit { is_quiet: false, .. } => out.extend_from_slice(OK),
    }
}

/// One class has all items.
fn put_items(sum: &Snapshot, out: &mut Vec<u8>) {
    let counters = &sum.counters;
    let lines = [
        ("number", sum.items),
        ("age", sum.age_s),
        ("mem_requested", sum.live_bytes),
        ("evicted", counters.evictions),
        ("evicted_unfetched", counters.evicted_unfetched),
        ("outofmemory", counters.store_no_memory),
        ("tailrepairs", 0),
        ("reclaimed", counters.reclaimed),
        ("expired_unfetched", counters.expired_unfetched),
    ];
    if sum.items > 0 {
        lines.iter().for_each(|(name, value)| put(out, &format!("items:1:{name}"), value));
    }
    out.extend_from_slice(END);
}

/// One class has the memory, in chunks of a word of the log.
fn put_slabs(shared: &Shared, sum: &Snapshot, out: &mut Vec<u8>) {
    const CHUNK_BYTES: u64 = 8;
    let (counters, pages) = (&sum.counters, shared.partitions as u64);
    let chunks = sum.log_bytes / CHUNK_BYTES;
    let lines = [
        ("chunk_size", CHUNK_BYTES),
        ("chunks_per_page", chunks / pages),
        ("total_pages", pages),
        ("total_chunks", chunks),
        ("used_chunks", sum.live_bytes / CHUNK_BYTES),
        ("free_chunks", chunks - sum.live_bytes / CHUNK_BYTES),
        ("free_chunks_end", 0),
        ("get_hits", counters.get_hits),
        ("cmd_set", counters.cmd_set),
        ("delete_hits", counters.delete_hits),
        ("incr_hits", counters.incr_hits),
        ("decr_hits", counters.decr_hits),
        ("cas_hits", counters.cas_hits),
        ("cas_badval", counters.cas_badval),
        ("touch_hits", counters.touch_hits),
    ];
    lines.iter().for_each(|(name, value)| put(out, &format!("1:{name}"), value));
    put(out, "active_slabs", 1);
    put(out, "total_malloced", sum.log_bytes);
    out.extend_from_slice(END);
}

fn put_connections(shared: &Shared, out: &mut Vec<u8>) {
    let now = shared.second();
    for (file, address, active) in shared.clients.all() {
        put(out, &format!("{file}:addr"), address);
        put(out, &format!("{file}:state"), "conn_read");
        put(out, &format!("{file}:secs_since_last_cmd"), now.saturating_sub(active));
    }
    out.extend_from_slice(END);
}

fn put_stats(shared: &Shared, sum: &Snapshot, out: &mut Vec<u8>) {
    let connections = &shared.connections;
    put(out, "pid", std::process::id());
    put(out, "uptime", shared.started.elapsed().as_secs());
    put(out, "time", super::thread::unix_seconds());
    put(out, "version", concat!("1.6.18-petrel-", env!("CARGO_PKG_VERSION")));
    put(out, "pointer_size", usize::BITS);
    put_cpu_times(out);
    put(out, "max_connections", shared.limits.connections_max);
    put(out, "curr_connections", connections.open.load(Ordering::Relaxed));
    put(out, "total_connections", connections.accepted.load(Ordering::Relaxed));
    put(out, "rejected_connections", connections.rejected.load(Ordering::Relaxed));
    put(out, "accepting_conns", 1);
    put(out, "listen_disabled_num", 0);
    put(out, "conn_yields", connections.yields.load(Ordering::Relaxed));
    put(out, "bytes_read", connections.bytes_read.load(Ordering::Relaxed));
    put(out, "bytes_written", connections.bytes_written.load(Ordering::Relaxed));
    put(out, "hash_bytes", sum.index_bytes);
    put(out, "hash_is_expanding", 0);
    put(out, "displaced_connections", connections.displaced.load(Ordering::Relaxed));
    put(out, "idle_kicks", connections.idle.load(Ordering::Relaxed));
    put(out, "memory_kicks", connections.stalled.load(Ordering::Relaxed));
    if shared.tls.is_some() {
        put(out, "credential_errors", connections.without_tls.load(Ordering::Relaxed));
    }
    put(out, "limit_maxbytes", shared.memory_limit.load(Ordering::Relaxed));
    put(out, "threads", shared.inboxes.len());
    put(out, "partitions", shared.partitions);
    if let Some(passwords) = &shared.passwords {
        put(out, "auth_cmds", passwords.attempts.load(Ordering::Relaxed));
        put(out, "auth_errors", passwords.failures.load(Ordering::Relaxed));
    }
    sum.named().for_each(|(name, value)| put(out, name, value));
    out.extend_from_slice(END);
}

/// The times that the process has run, in the form of memcached's `rusage_user`.
fn put_cpu_times(out: &mut Vec<u8>) {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    // Behind the name of the program, which may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut ticks = fields.split(' ').skip(12).filter_map(|field| field.parse::<u64>().ok());
    for name in ["rusage_user", "rusage_system"] {
        let ticks = ticks.next().unwrap_or(0);
        // Linux reports hundredths of a second, whatever its own ticks are.
        put(out, name, format_args!("{}.{:02}0000", ticks / 100, ticks % 100));
    }
}

fn put_settings(shared: &Shared, out: &mut Vec<u8>) {
    put(out, "maxbytes", shared.memory_limit.load(Ordering::Relaxed));
    put(out, "maxconns", shared.limits.connections_max);
    put(out, "evictions", if shared.mode == Mode::Cache { "on" } else { "off" });
    put(out, "cas_enabled", "yes");
    put(out, "num_threads", shared.inboxes.len());
    put(out, "item_size_max", shared.limits.value_bytes_max);
    put(out, "key_size_max", KEY_BYTES_MAX);
    let on = |is_on| if is_on { "yes" } else { "no" };
    put(out, "ssl_enabled", on(shared.tls.is_some()));
    put(out, "auth_enabled_ascii", on(shared.passwords.is_some()));
    put(out, "flush_enabled", on(shared.limits.may_flush));
    put(out, "idle_timeout", shared.limits.idle_s.unwrap_or(0));
    out.extend_from_slice(END);
}

fn put(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    // Writing to a vector does not fail.
    let _ = write!(out, "STAT {name} {value}\r\n");
}
