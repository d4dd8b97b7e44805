//! Every limit of the nexus, with unit and reason. A peer may be hostile: the limits bound all memory, waiting and work
//! per turn at a peer's disposal.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Default interval of PINGs to a peer that may be dead.
pub(super) const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(1);

/// A peer counts as dead or hung that has not answered a PING after this number of its heartbeats (§8.6).
pub(super) const SILENT_HEARTBEATS_MAX: u32 = 3;

/// Heartbeats between PINGs while nothing raises a doubt: a server with a thousand idle clients answers twenty PINGs a
/// second. Devices between the hosts forget connections after a minute or more.
pub(super) const KEEP_ALIVE_HEARTBEATS: u32 = 48;

/// The growth from one of the first pauses between PINGs to the next. The first PINGs find the shortest round trip of a
/// path with a queue at the link's opening.
pub(super) const PAUSE_GROWTH: u32 = 4;

/// How long a link waits for its endpoint: the time a process may need from opening a port to starting its threads.
pub(super) const EARLY_WAIT: Duration = Duration::from_secs(1);

/// Links that may wait for their endpoints in all; further ones are refused at once.
pub(super) const EARLY_LINKS_MAX: usize = 1024;

/// Links of one source that may wait for their endpoints (see `usage`).
pub(super) const EARLY_LINKS_PER_SOURCE_MAX: usize = EARLY_LINKS_MAX / 2;

/// Default time for each step of another process.
pub(super) const STEP_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// How long a connection may stay without HELLO (§8.3).
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a message may stay incomplete after its first byte: a slow sender cannot hold a connection.
pub(super) const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the peer may leave sent bytes unread.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that have not said HELLO (§8.3); at the limit the oldest is dropped.
pub(super) const AWAITING_HELLO_MAX: usize = 256;

/// Accepted connections in all by default (§8.3), if there are descriptors for them: see [`Capacity`]. Each may hold a
/// partial message and [`OUT_SOFT_BYTES`] of answers.
pub(super) const CONNECTIONS_MAX: usize = 4_096;

/// The range of the limit. Links and data ports have room for twice as many peers.
pub(super) const CONNECTIONS_MAX_RANGE: RangeInclusive<usize> = 8..=65_536;

/// Connections reserved for peers without links: room to send HELLO to a new peer, to answer a request for counters,
/// and to explain a refusal.
pub(super) const UNLINKED_MIN: usize = 512;

/// How many connections there may be, by the process's limit of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// Accepted connections.
    pub(super) connections: usize,
    /// Accepted connections that have not said HELLO.
    pub(super) awaiting_hello_max: usize,
    /// Accepted connections that have links.
    pub(super) linked_max: usize,
    /// The limit for a source: seven eighths, to leave room for other addresses. 3 000 clients of a host fit.
    pub(super) linked_per_source_max: usize,
    /// Memory that the sessions of a source may use, in bytes.
    pub(super) session_bytes_per_source_max: usize,
    /// Closed connections waiting for the peer to close its end; at the limit the oldest is dropped.
    pub(super) closing: usize,
}

impl Capacity {
    /// Derives the limits from the setting, and from the limit of descriptors, `None` if unlimited. A quarter of the
    /// descriptors stays for the rest of the process: data ports, shared memory, and the application.
    pub(super) fn of(connections_max: usize, descriptors_max: Option<u64>) -> Self {
        let descriptors = descriptors_max.map_or(usize::MAX, |limit| limit.min(1 << 30) as usize);
        let connections = connections_max.min(descriptors / 4 * 3).max(8);
        let linked_max = connections - UNLINKED_MIN.min(connections / 4);
        Self {
            connections,
            awaiting_hello_max: AWAITING_HELLO_MAX.min(connections / 2),
            linked_max,
            linked_per_source_max: linked_max - (linked_max / 8).max(1),
            session_bytes_per_source_max: SESSION_BYTES_PER_SOURCE_MAX,
            closing: CLOSING_MAX.min(connections / 4),
        }
    }
}

impl Capacity {
    /// Sets the share of a source, in per cent.
    pub(super) fn with_source_share(self, percent: u8) -> Self {
        assert!(SOURCE_SHARE_RANGE.contains(&percent), "the builder has checked the share");
        let share_of = |all: usize| (all as u64 * u64::from(percent) / 100) as usize;
        Self {
            linked_per_source_max: share_of(self.linked_max).max(1),
            session_bytes_per_source_max: share_of(SESSION_BYTES_MAX),
            ..self
        }
    }

    /// Returns the limit for a connection: half of the source's, to leave room for other processes of the host. By default 61 000
    /// sessions of 8 slots.
    pub(super) fn session_bytes_per_connection_max(&self) -> usize {
        self.session_bytes_per_source_max / 2
    }
}

/// The range of a source's share, in per cent.
pub(super) const SOURCE_SHARE_RANGE: RangeInclusive<u8> = 1..=100;

/// Connections kept by the kernel until they are accepted, if `net.core.somaxconn` allows.
pub(super) const LISTEN_QUEUE: i32 = 4_096;

/// Connections accepted in one turn: a flood cannot starve the existing ones.
pub(super) const ACCEPTS_PER_TURN: usize = 32;

/// Pause after the system lacked a descriptor or memory for a new connection.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) const READ_BYTES: usize = 16 << 10;

/// Reads of one connection in one turn.
pub(super) const READS_PER_TURN: usize = 4;

/// Reading a connection pauses above this number of unsent bytes: a peer that does not read answers causes no more of
/// them.
pub(super) const OUT_SOFT_BYTES: usize = 64 << 10;

/// Memory that a connection keeps for its next bytes once all are sent: a handshake has needed several times as much.
pub(super) const OUT_KEPT_BYTES: usize = 512;

/// A connection with more unsent bytes is dropped. Only local endpoints can exceed [`OUT_SOFT_BYTES`]; this limit holds
/// all their proposals ([`PROPOSALS_PER_CONNECTION_MAX`]).
pub(super) const OUT_HARD_BYTES: usize = 8 << 20;

/// Bytes of an encoded SESSION_OPEN, to relate the two limits.
const SESSION_OPEN_BYTES: usize = 8 + 9 * 4 + 4 * 4 + 8 + 1 + 2 + 4 * 2;

/// Links of one connection: 128 endpoints on either side, fully connected.
pub(super) const LINKS_PER_CONNECTION_MAX: usize = 16_384;

/// Links of the process.
pub(super) const LINKS_MAX: usize = 131_072;

/// Links of one source (see `usage`): a quarter of all, and half of the peers that an endpoint's data port may have.
pub(super) const LINKS_PER_SOURCE_MAX: usize = 32_768;

/// Sessions proposed and not answered, on one connection.
pub(super) const PROPOSALS_PER_CONNECTION_MAX: usize = 65_536;

/// Sessions proposed and not answered, in the process.
pub(super) const PROPOSALS_MAX: usize = 262_144;

/// Unanswered proposals by peers of one source: a quarter of all, and half of the messages that may wait for an
/// endpoint.
pub(super) const PROPOSALS_PER_SOURCE_MAX: usize = 65_536;

/// Memory of a session at the server, in bytes, without slots: measured 0.5 KiB, including entries in tables.
const SESSION_BASE_BYTES: usize = 512;

/// Memory of a slot: one cache line, and the allocator's overhead.
const SLOT_BYTES: usize = 72;

/// Memory that the sessions of peers may use, in bytes: a million sessions of 8 slots.
pub(super) const SESSION_BYTES_MAX: usize = 1 << 30;

/// The default limit for a source: an eighth, which is 123 000 sessions of 8 slots, or 26 000 of 64. A host with six times the
/// 20 000 sessions that an endpoint is designed for has room.
pub(super) const SESSION_BYTES_PER_SOURCE_MAX: usize = SESSION_BYTES_MAX / 8;

/// Memory that sessions with servers as clients may use at this process, of a connection that this process has opened, in bytes: 28 sessions of 2 048 slots.
pub(super) const REVERSE_SESSION_BYTES_PER_CONNECTION_MAX: usize = 4 << 20;

/// The bytes charged for a session with this number of slots.
pub(super) fn session_bytes(slots: u16) -> usize {
    SESSION_BASE_BYTES + usize::from(slots) * SLOT_BYTES
}

/// Slots beyond the minimum that sessions with `bytes` of `bytes_max` may still get. Extra slots use at most half of
/// the memory: the other half is reserved for sessions with the minimum.
pub(super) fn slots_left(bytes_max: usize, bytes: usize) -> u64 {
    ((bytes_max / 2).saturating_sub(bytes) / SLOT_BYTES) as u64
}

/// Messages queued for an endpoint beyond which peers are refused: a stalled event loop must not make this process grow
/// without limit.
pub(super) const INBOX_MAX: usize = 131_072;

/// Exchanges of descriptors in progress at this process's rendezvous.
pub(super) const EXCHANGES_MAX: usize = 512;

/// Exchanges begun by this process at others' rendezvous. Half of a Unix socket's queue, to leave room when many links
/// open at once.
pub(super) const OPENER_EXCHANGES_MAX: usize = 64;

/// An outgoing connection without links is closed after this time. The accepting side waits twice as long: the opener
/// goes first, since it knows whether it is about to use the connection.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Closed connections waiting for the peer to close its end; at the limit the oldest is dropped.
pub(super) const CLOSING_MAX: usize = 256;

/// How long a closed connection waits for the peer to close its end too. Without the wait a reset could discard the
/// GOODBYE.
pub(super) const LINGER: Duration = Duration::from_secs(1);

/// The time that endpoints have to report their counters.
pub(super) const STATS_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest JSON of one endpoint, and of all.
pub(super) const STATS_ENDPOINT_BYTES_MAX: usize = 64 << 10;
/// See [`STATS_ENDPOINT_BYTES_MAX`].
pub(super) const STATS_BYTES_MAX: usize = 4 << 20;

/// First and longest pause before retrying a connection that broke before any use.
pub(super) const REDIAL_PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`REDIAL_PAUSE_MIN`].
pub(super) const REDIAL_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Remote processes whose incarnation is remembered.
pub(super) const INCARNATIONS_MAX: usize = 4_096;

/// The shortest and longest interval between looks at a connection whose peer owes an answer: a quarter of the heartbeat
/// in between. A later look shows a pause of the own process.
pub(super) const TICK_MIN: Duration = Duration::from_millis(5);
/// See [`TICK_MIN`].
pub(super) const TICK_MAX: Duration = Duration::from_millis(250);

/// The heap of deadlines is first swept at this length.
pub(super) const DEADLINES_MIN: usize = 4_096;

/// Connections made for one stream until the process of the link answers: a load balancer may choose others first.
pub(super) const STREAM_DIALS_MAX: u32 = 64;

const _: () = {
    assert!(AWAITING_HELLO_MAX + CLOSING_MAX < CONNECTIONS_MAX);
    assert!(ACCEPTS_PER_TURN < AWAITING_HELLO_MAX);
    assert!(PROPOSALS_PER_CONNECTION_MAX * SESSION_OPEN_BYTES < OUT_HARD_BYTES);
    assert!(STATS_BYTES_MAX < OUT_HARD_BYTES);
    assert!(LINKS_PER_CONNECTION_MAX <= LINKS_PER_SOURCE_MAX);
    assert!(LINKS_PER_SOURCE_MAX < LINKS_MAX);
    assert!(PROPOSALS_PER_SOURCE_MAX < PROPOSALS_MAX);
    assert!(PROPOSALS_PER_SOURCE_MAX < INBOX_MAX);
    assert!(AWAITING_HELLO_MAX < UNLINKED_MIN && UNLINKED_MIN < CONNECTIONS_MAX / 4);
    assert!(SESSION_BYTES_PER_SOURCE_MAX < SESSION_BYTES_MAX);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/operating.md` and `docs/wire-protocol.md` name these.
    #[test]
    fn limits__are_those_that_operators_are_told() {
        let Capacity {
            connections,
            awaiting_hello_max,
            linked_max,
            linked_per_source_max,
            session_bytes_per_source_max,
            closing,
        } = Capacity::of(CONNECTIONS_MAX, None);
        assert_eq!((connections, awaiting_hello_max, closing), (4_096, 256, 256));
        assert_eq!((linked_per_source_max, linked_max), (3_136, 3_584));
        let of_sessions = [
            Capacity::of(CONNECTIONS_MAX, None).session_bytes_per_connection_max(),
            session_bytes_per_source_max,
            SESSION_BYTES_MAX,
        ];
        assert_eq!(of_sessions.map(|bytes| bytes >> 20), [64, 128, 1_024]);
        assert_eq!(REVERSE_SESSION_BYTES_PER_CONNECTION_MAX >> 20, 4);
        assert_eq!((session_bytes(0), session_bytes(1) - session_bytes(0)), (512, 72));
        assert_eq!([HELLO_TIMEOUT, MESSAGE_TIMEOUT, WRITE_TIMEOUT].map(|t| t.as_secs()), [5; 3]);
        assert_eq!((EARLY_WAIT.as_secs(), LINGER.as_secs(), IDLE_TIMEOUT.as_secs()), (1, 1, 30));
        assert_eq!((OUT_SOFT_BYTES, OUT_HARD_BYTES), (64 << 10, 8 << 20));
    }

    #[test]
    fn capacity__of_few_descriptors_in_figures() {
        let of = |connections_max, limit| {
            let Capacity {
                connections,
                awaiting_hello_max,
                linked_max,
                linked_per_source_max,
                session_bytes_per_source_max: _,
                closing,
            } = Capacity::of(connections_max, Some(limit));
            [connections, awaiting_hello_max, linked_max, linked_per_source_max, closing]
        };
        assert_eq!(of(4_096, 0), [8, 4, 6, 5, 2]);
        assert_eq!(of(4_096, 64), [48, 24, 36, 32, 12]);
        assert_eq!(of(4_096, 1_024), [768, 256, 576, 504, 192]);
        assert_eq!(of(4_096, 4_096), [3_072, 256, 2_560, 2_240, 256]);
        assert_eq!(of(65_536, 4_096), of(4_096, 4_096));
        // 16 000 client processes of one host.
        assert_eq!(of(20_000, 65_536), [20_000, 256, 19_488, 17_052, 256]);
        assert_eq!(of(8, 65_536), [8, 4, 6, 5, 2]);
    }

    #[test]
    fn source_share__is_of_connections_and_of_session_memory() {
        let of = |percent| {
            let capacity = Capacity::of(CONNECTIONS_MAX, None).with_source_share(percent);
            let bytes = capacity.session_bytes_per_source_max;
            assert_eq!(capacity.session_bytes_per_connection_max(), bytes / 2);
            (capacity.linked_per_source_max, bytes >> 20)
        };
        assert_eq!([of(1), of(50), of(100)], [(35, 10), (1_792, 512), (3_584, 1_024)]);
        let few = Capacity::of(8, None).with_source_share(1);
        assert_eq!(few.linked_per_source_max, 1, "a source may have a connection");
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

    #[test]
    fn capacity__fits_the_descriptors() {
        let whole = Capacity::of(CONNECTIONS_MAX, None);
        assert_eq!(whole.connections, CONNECTIONS_MAX);
        assert_eq!((whole.awaiting_hello_max, whole.closing), (AWAITING_HELLO_MAX, CLOSING_MAX));
        // 3 000 honest clients of one host are not refused.
        assert!(
            whole.linked_per_source_max < whole.linked_max && whole.linked_per_source_max >= 3_000
        );
        for limit in [0, 1, 16, 40, 64, 256, 1_024, 65_536] {
            let some = Capacity::of(CONNECTIONS_MAX, Some(limit));
            assert!(some.connections <= whole.connections);
            assert!(limit < 16 || some.connections < limit as usize);
            assert!(0 < some.awaiting_hello_max && some.awaiting_hello_max < some.connections);
            assert!(0 < some.linked_per_source_max && some.linked_per_source_max < some.linked_max);
            assert!(some.linked_max < some.connections && some.closing > 0);
        }
    }
}
