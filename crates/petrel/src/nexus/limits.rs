//! Every limit of the nexus, with its unit and its reason. A peer may be hostile: whatever it can
//! make this process hold, wait for or do in one turn is bounded here.

use std::time::Duration;

/// Default interval of PINGs.
pub(super) const HEARTBEAT_DEFAULT: Duration = Duration::from_secs(1);

/// A peer is dead or hung after so many of its own intervals without a byte (§8.6).
pub(super) const SILENT_HEARTBEATS_MAX: u32 = 3;

/// How long a link waits for its endpoint: what a process may take from its first port to its
/// threads.
pub(super) const EARLY_WAIT: Duration = Duration::from_secs(1);

/// Links that may wait for their endpoints in all; beyond that they are refused at once.
pub(super) const EARLY_LINKS_MAX: usize = 1024;

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

/// Connections in all (§8.3). Each may hold a partial message and [`OUT_SOFT_BYTES`] of answers.
pub(super) const CONNECTIONS_MAX: usize = 4_096;

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

/// Sessions proposed and not answered, on one connection.
pub(super) const PROPOSALS_PER_CONNECTION_MAX: usize = 65_536;

/// Sessions proposed and not answered, in the process.
pub(super) const PROPOSALS_MAX: usize = 262_144;

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
    assert!(PROPOSALS_PER_CONNECTION_MAX * SESSION_OPEN_BYTES < OUT_HARD_BYTES);
    assert!(STATS_BYTES_MAX < OUT_HARD_BYTES);
    assert!(LINKS_PER_CONNECTION_MAX < LINKS_MAX);
};
