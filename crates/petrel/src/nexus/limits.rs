//! Every limit of the nexus, with its unit and its reason. A peer may be hostile: whatever it can
//! make this process hold, wait for or do in one turn is bounded here.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

/// Default interval of PINGs.
pub(super) const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(1);

/// A peer is dead or hung after so many of its own intervals without a byte (§8.6).
pub(super) const SILENT_HEARTBEATS_MAX: u32 = 3;

/// Intervals between PINGs on an accepted connection without a session. Thousands of silent connections
/// cost half as much as with one. The peer waits for [`SILENT_HEARTBEATS_MAX`]: one, less the tick by which a PING
/// may be late, is to spare.
pub(super) const IDLE_PING_HEARTBEATS: u32 = 2;

/// With a shorter interval a tick would be a large part of what is to spare, and all PINGs go at each interval.
pub(super) const IDLE_PING_MIN: Duration = Duration::from_millis(40);

/// How long a link waits for its endpoint: what a process may take from its first port to its
/// threads.
pub(super) const EARLY_WAIT: Duration = Duration::from_secs(1);

/// Links that may wait for their endpoints in all; beyond that they are refused at once.
pub(super) const EARLY_LINKS_MAX: usize = 1024;

/// The same of one site (see `shares`).
pub(super) const EARLY_LINKS_PER_SITE_MAX: usize = EARLY_LINKS_MAX / 2;

/// Default time for each step that another process has to take.
pub(super) const STEP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// How long a connection may stay without HELLO (§8.3).
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a message may be under way once its first byte has come: slow bytes must not hold a
/// connection that does nothing else.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the peer may leave what was sent to it unread.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that have not said HELLO (§8.3); the oldest goes.
pub(super) const UNGREETED_MAX: usize = 256;

/// Connections that peers made, in all (§8.3), if there are descriptors for them: see [`Capacity`].
/// Each may hold a partial message and [`OUT_SOFT_BYTES`] of answers.
pub(super) const CONNECTIONS_MAX: usize = 4_096;

/// Connections of those that links never take: room to greet a newcomer, to answer a question for
/// counters, and to say why a link is refused.
pub(super) const LOBBY_MIN: usize = 512;

/// How many connections there may be, by the descriptors that the process may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// Connections that peers made.
    pub(super) connections: usize,
    /// Those of them that have not said HELLO.
    pub(super) ungreeted: usize,
    /// Those of them that have links.
    pub(super) seats: usize,
    /// The same of one site: seven eighths, so that one address leaves room for others, and 3 000
    /// clients of one host have room in it.
    pub(super) seats_per_site: usize,
    /// Closed connections that wait for the peer's end; the oldest goes.
    pub(super) closing: usize,
}

impl Capacity {
    /// By the limit of descriptors, `None` if there is none. A quarter of them is left for the rest
    /// of the process: data ports, shared memory, and whatever the application opens.
    pub(super) fn by_descriptors(limit: Option<u64>) -> Self {
        let descriptors = limit.map_or(usize::MAX, |limit| limit.min(1 << 30) as usize);
        let connections = CONNECTIONS_MAX.min(descriptors / 4 * 3).max(8);
        let seats = connections - LOBBY_MIN.min(connections / 4);
        Self {
            connections,
            ungreeted: UNGREETED_MAX.min(connections / 2),
            seats,
            seats_per_site: seats - (seats / 8).max(1),
            closing: CLOSING_MAX.min(connections / 4),
        }
    }
}

/// Connections that the kernel keeps until they are accepted, if `net.core.somaxconn` allows.
pub(super) const LISTEN_QUEUE: i32 = CONNECTIONS_MAX as i32;

/// Connections accepted in one turn, so that a flood cannot keep the others from being heard.
pub(super) const ACCEPTS_PER_TURN: usize = 32;

/// Pause after the system had no descriptor or memory for a new connection.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Bytes read at once.
pub(super) const READ_BYTES: usize = 16 << 10;

/// Reads of one connection in one turn.
pub(super) const READS_PER_TURN: usize = 4;

/// While more than this is unsent, nothing more is read from the connection: a peer that asks
/// and does not read the answers makes no more of them.
pub(super) const OUT_SOFT_BYTES: usize = 64 << 10;

/// A connection with more unsent bytes is dropped. Only this process's own endpoints get beyond
/// [`OUT_SOFT_BYTES`]; this holds all their proposals ([`PROPOSALS_PER_CONNECTION_MAX`]).
pub(super) const OUT_HARD_BYTES: usize = 8 << 20;

/// Bytes of an encoded SESSION_OPEN, for the relation of the two limits.
const SESSION_OPEN_BYTES: usize = 8 + 9 * 4 + 4 * 4 + 8 + 1 + 2 + 4 * 2;

/// Links of one connection: 128 endpoints on either side, each with each.
pub(super) const LINKS_PER_CONNECTION_MAX: usize = 16_384;

/// Links of the process.
pub(super) const LINKS_MAX: usize = 131_072;

/// Links of one site (see `shares`): a quarter of all, and half of the peers that an endpoint's
/// data port may have.
pub(super) const LINKS_PER_SITE_MAX: usize = 32_768;

/// Sessions proposed and not answered, on one connection.
pub(super) const PROPOSALS_PER_CONNECTION_MAX: usize = 65_536;

/// Sessions proposed and not answered, in the process.
pub(super) const PROPOSALS_MAX: usize = 262_144;

/// The same by peers of one site: a quarter of all, and half of what may wait for an endpoint.
pub(super) const PROPOSALS_PER_SITE_MAX: usize = 65_536;

/// Memory of a session at its server, in bytes, besides its slots: measured 0.5 KiB, with the
/// tables that lead to it.
const SESSION_BASE_BYTES: usize = 512;

/// The same of each slot: one cache line, and what the allocator adds.
const SLOT_BYTES: usize = 72;

/// Memory that the sessions of peers may take, in bytes: a million of 8 slots.
pub(super) const SESSION_BYTES_MAX: usize = 1 << 30;

/// The same of one site: an eighth, which is 123 000 sessions of 8 slots, or 26 000 of 64. A host
/// with six times the 20 000 sessions that an endpoint is made for has room in it.
pub(super) const SESSION_BYTES_PER_SITE_MAX: usize = SESSION_BYTES_MAX / 8;

/// The same of one connection: half of its site's, so that one process does not take all that the
/// processes of its host have. That is 61 000 sessions of 8 slots.
pub(super) const SESSION_BYTES_PER_CONNECTION_MAX: usize = SESSION_BYTES_PER_SITE_MAX / 2;

/// What a session of so many slots counts for.
pub(super) fn session_bytes(slots: u16) -> usize {
    SESSION_BASE_BYTES + usize::from(slots) * SLOT_BYTES
}

/// Slots beyond the least that may still be given to sessions which have `bytes` of `bytes_max`. Such slots take half of
/// the memory at most: the other half is kept for sessions with the least.
pub(super) fn slots_left(bytes_max: usize, bytes: usize) -> u64 {
    ((bytes_max / 2).saturating_sub(bytes) / SLOT_BYTES) as u64
}

/// Entries that a table keeps room for, however few it has.
pub(crate) const TABLE_ROOM_MIN: usize = 1_024;

/// Gives the memory of a table back that has few entries left of many. Each time at least three
/// quarters of its entries have gone, so that it costs each of them a constant.
pub(crate) fn shrink<K: Eq + Hash, V, H: BuildHasher>(table: &mut HashMap<K, V, H>) {
    if table.capacity() > TABLE_ROOM_MIN && table.len() < table.capacity() / 8 {
        table.shrink_to(TABLE_ROOM_MIN.max(2 * table.len()));
    }
}

/// Messages that wait for an endpoint, beyond which peers are refused. An endpoint whose event
/// loop stands still must not make this process grow.
pub(super) const INBOX_MAX: usize = 131_072;

/// Exchanges of descriptors under way at this process's rendezvous.
pub(super) const EXCHANGES_MAX: usize = 512;

/// Exchanges that this process has begun at others' rendezvous. Half of what a Unix socket
/// queues, so that many links at once do not find it full.
pub(super) const MEETINGS_MAX: usize = 64;

/// An outgoing connection without links is closed after this time. The side that accepted it
/// waits twice as long: so the opener, which knows whether it is about to use it, is first.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Closed connections that wait for the peer's end; the oldest goes.
pub(super) const CLOSING_MAX: usize = 256;

/// How long a closed connection waits for the peer to close its end too, so that the GOODBYE
/// is not lost by a reset.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// How long endpoints have to give their counters.
pub(super) const STATS_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest JSON of one endpoint, and of all.
pub(super) const STATS_ENDPOINT_BYTES_MAX: usize = 64 << 10;
/// See [`STATS_ENDPOINT_BYTES_MAX`].
pub(super) const STATS_BYTES_MAX: usize = 4 << 20;

/// First and longest pause before a connection that broke before it was of use is tried again.
pub(super) const REDIAL_PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`REDIAL_PAUSE_MIN`].
pub(super) const REDIAL_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Remote processes whose incarnation is remembered.
pub(super) const INCARNATIONS_MAX: usize = 4_096;

/// How often connections are looked after, at least and at most: a quarter of the heartbeat in
/// between. Looking at all of them takes some tens of microseconds.
pub(super) const TICK_MIN: Duration = Duration::from_millis(5);
/// See [`TICK_MIN`].
pub(super) const TICK_MAX: Duration = Duration::from_millis(250);

/// Deadlines in the heap before those that are void are first thrown out.
pub(super) const DEADLINES_MIN: usize = 4_096;

const _: () = {
    assert!(UNGREETED_MAX + CLOSING_MAX < CONNECTIONS_MAX);
    assert!(ACCEPTS_PER_TURN < UNGREETED_MAX);
    assert!(IDLE_PING_HEARTBEATS < SILENT_HEARTBEATS_MAX);
    assert!(IDLE_PING_MIN.as_millis() >= 8 * TICK_MIN.as_millis());
    assert!(PROPOSALS_PER_CONNECTION_MAX * SESSION_OPEN_BYTES < OUT_HARD_BYTES);
    assert!(STATS_BYTES_MAX < OUT_HARD_BYTES);
    assert!(LINKS_PER_CONNECTION_MAX <= LINKS_PER_SITE_MAX);
    assert!(LINKS_PER_SITE_MAX < LINKS_MAX);
    assert!(PROPOSALS_PER_SITE_MAX < PROPOSALS_MAX);
    assert!(PROPOSALS_PER_SITE_MAX < INBOX_MAX);
    assert!(UNGREETED_MAX < LOBBY_MIN && LOBBY_MIN < CONNECTIONS_MAX / 4);
    assert!(SESSION_BYTES_PER_SITE_MAX < SESSION_BYTES_MAX);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/operating.md` and `docs/wire-protocol.md` name these.
    #[test]
    fn limits__are_those_that_operators_are_told() {
        let Capacity { connections, ungreeted, seats, seats_per_site, closing } =
            Capacity::by_descriptors(None);
        assert_eq!((connections, ungreeted, closing), (4_096, 256, 256));
        assert_eq!((seats_per_site, seats), (3_136, 3_584));
        let of_sessions =
            [SESSION_BYTES_PER_CONNECTION_MAX, SESSION_BYTES_PER_SITE_MAX, SESSION_BYTES_MAX];
        assert_eq!(of_sessions.map(|bytes| bytes >> 20), [64, 128, 1_024]);
        assert_eq!((session_bytes(0), session_bytes(1) - session_bytes(0)), (512, 72));
        assert_eq!([HELLO_TIMEOUT, MESSAGE_TIMEOUT, WRITE_TIMEOUT].map(|t| t.as_secs()), [5; 3]);
        assert_eq!((EARLY_WAIT.as_secs(), LINGER.as_secs(), IDLE_TIMEOUT.as_secs()), (1, 1, 30));
        assert_eq!((OUT_SOFT_BYTES, OUT_HARD_BYTES), (64 << 10, 8 << 20));
    }

    #[test]
    fn capacity__of_few_descriptors_in_figures() {
        let of = |limit| {
            let Capacity { connections, ungreeted, seats, seats_per_site, closing } =
                Capacity::by_descriptors(Some(limit));
            [connections, ungreeted, seats, seats_per_site, closing]
        };
        assert_eq!(of(0), [8, 4, 6, 5, 2]);
        assert_eq!(of(64), [48, 24, 36, 32, 12]);
        assert_eq!(of(1_024), [768, 256, 576, 504, 192]);
        assert_eq!(of(4_096), [3_072, 256, 2_560, 2_240, 256]);
    }

    #[test]
    fn slots_left__in_half_of_the_memory() {
        let slot = SLOT_BYTES as u64;
        assert_eq!(slots_left(1 << 20, 0), (1 << 19) / slot);
        for (bytes, slots) in [(0, 10), (1, 9), (SLOT_BYTES, 9), (9 * SLOT_BYTES, 1)] {
            assert_eq!(slots_left(20 * SLOT_BYTES, bytes), slots);
        }
        for bytes in [9 * SLOT_BYTES + 1, 10 * SLOT_BYTES, 11 * SLOT_BYTES, usize::MAX] {
            assert_eq!(slots_left(20 * SLOT_BYTES, bytes), 0);
        }
    }

    /// The room of a table before and after, which had room for `room` and has so many entries.
    fn shrunk(room: usize, entries: usize) -> (usize, usize) {
        let mut table: HashMap<usize, usize> = HashMap::with_capacity(room);
        table.extend((0..entries).zip(0..));
        let before = table.capacity();
        shrink(&mut table);
        assert!(table.capacity() >= entries && table.len() == entries);
        (before, table.capacity())
    }

    #[test]
    fn shrink__gives_back_what_a_table_of_few_entries_had_for_many() {
        let (room, _) = shrunk(20_000, 0);
        assert_eq!(shrunk(room, room / 8), (room, room), "an eighth of its entries are there");
        let (_, left) = shrunk(room, room / 8 - 1);
        assert!((2 * (room / 8 - 1)..room / 2).contains(&left), "{left} of {room}");
        let (_, left) = shrunk(room, 0);
        assert!((TABLE_ROOM_MIN..2 * TABLE_ROOM_MIN).contains(&left), "{left} of {room}");
        let (few, left) = shrunk(TABLE_ROOM_MIN / 2, 0);
        assert_eq!(left, few, "few need room again soon");
    }

    #[test]
    fn capacity__fits_the_descriptors() {
        let whole = Capacity::by_descriptors(None);
        assert_eq!(whole.connections, CONNECTIONS_MAX);
        assert_eq!((whole.ungreeted, whole.closing), (UNGREETED_MAX, CLOSING_MAX));
        // So many honest clients of one host are not refused.
        assert!(whole.seats_per_site < whole.seats && whole.seats_per_site >= 3_000);
        for limit in [0, 1, 16, 40, 64, 256, 1_024, 65_536] {
            let some = Capacity::by_descriptors(Some(limit));
            assert!(some.connections <= whole.connections);
            assert!(limit < 16 || some.connections < limit as usize);
            assert!(0 < some.ungreeted && some.ungreeted < some.connections);
            assert!(0 < some.seats_per_site && some.seats_per_site < some.seats);
            assert!(some.seats < some.connections && some.closing > 0);
        }
    }
}
