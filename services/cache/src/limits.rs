//! Every limit of the cache, with its unit and reason.

/// Longest key, in bytes: memcached's limit.
pub const KEY_BYTES_MAX: usize = 250;

/// Longest value, in bytes: memcached's default limit for an item, which its users know.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// Longest line of a command, in bytes, without its end: the longest key twice, numbers, and flags with their tokens.
pub const LINE_BYTES_MAX: usize = 2 << 10;

/// Longest line with a list of keys, in bytes: 4 000 keys of the greatest length.
pub const KEYS_LINE_BYTES_MAX: usize = 1 << 20;

/// Most bytes of `stats cachedump` from a partition, in bytes: a partition's owner does nothing else meanwhile.
pub const DUMP_BYTES_MAX: usize = 64 << 10;

/// Longest opaque token of a meta command, in bytes: memcached's limit.
pub const OPAQUE_BYTES_MAX: usize = 32;

/// Least memory of a partition, in bytes. Below, the log has room for a few small values only.
pub const PARTITION_BYTES_MIN: u64 = 64 << 10;

/// Most memory of a partition, in bytes. An index entry names 2^44 words of the log, and the scrubber must visit each
/// entry before the log's positions repeat.
pub const PARTITION_BYTES_MAX: u64 = 1 << 40;

/// Default mean size of an item (key, value and header), in bytes, from which the index gets its size.
pub const ITEM_BYTES_EXPECTED_DEFAULT: u32 = 160;

/// Share of a log that one item may take, in cache mode. A larger item would evict most items.
pub const CACHE_ITEMS_PER_LOG_MIN: u64 = 8;

/// Share of a log that one item may take, in store mode. The cleaner moves live items, and needs free room for two of
/// them besides the room for the new item.
pub const STORE_ITEMS_PER_LOG_MIN: u64 = 64;

/// Part of a log that live items may fill in store mode, in eighths. With a fuller log the cleaner would copy more
/// than seven bytes for each byte that it frees.
pub const STORE_FILL_EIGHTHS: u64 = 7;

/// Bytes of the log that a request to a full store cleans, in search of items whose time is over: some 100 µs.
pub const SWEEP_BYTES_MAX: u64 = 1 << 20;

/// Part of the log that a full store cleans in a second, in search of items whose time is over: a 16th, between
/// [`SWEEP_BYTES_MAX`] and [`SWEEP_BYTES_PER_S_MAX`].
pub const SWEEP_SHARE_PER_S: u64 = 16;

/// Most bytes of the log that a full store cleans in a second, in search of items whose time is over: a few percent of
/// the owner's time.
pub const SWEEP_BYTES_PER_S_MAX: u64 = 64 << 20;

/// Bytes of items in use that may move from the tail of a cache's log to the head, for each byte of a new item: with four,
/// a log of which four fifths are in use keeps them all.
pub const RENEWED_PER_BYTE: u64 = 4;

/// Most bytes of such moves at a time: two items of the greatest size, some 100 µs.
pub const RENEWAL_BYTES_MAX: u64 = 2 << 20;

/// Seconds after which another fetch of an item is noted in its header. Noting each fetch would make every look-up a
/// write; memcached notes them as seldom (its `ITEM_UPDATE_INTERVAL`).
pub const ACCESS_NOTED_EVERY_S: u32 = 60;

/// Look-ups whose memory accesses overlap: as many as an endpoint passes to a batched handler.
pub const LOOKUPS_TOGETHER_MAX: usize = 32;

/// Longest command and longest value of an unauthenticated client, in bytes: memcached's limit.
pub const AUTH_BYTES_MAX: usize = 2 << 10;

/// Length from which a line of the file of passwords is too long, in bytes: memcached's limit.
pub const AUTH_LINE_BYTES_MAX: usize = 256;

/// Most users with a password: an attempt looks at all users. memcached has 8.
pub const AUTH_USERS_MAX: usize = 64;

/// Memory of a connection inside TLS beside its buffers, in bytes: its state, and a record that has not come whole.
pub const TLS_CONNECTION_BYTES: u64 = 20 << 10;

/// Bytes of a client inside TLS without one for the program, in a row: a handshake with certificates, or a record of the longest kind,
/// and what a read takes beyond it.
pub const TLS_SILENT_BYTES_MAX: usize = 32 << 10;

/// Wrong passwords after which a connection ends.
pub const AUTH_FAILURES_MAX: u32 = 8;

/// Bytes that a thread reads at a time, to a buffer for all its connections.
pub const READ_BYTES: usize = 64 << 10;

/// Bytes with which a connection goes on while memory for buffers is short: the bytes of a read, and
/// replies as long.
pub const LIGHT_BYTES: usize = 2 * READ_BYTES;

/// Memory that a connection may hold without ever being closed for memory, in bytes.
pub const SAFE_BYTES: usize = READ_BYTES / 4;

/// Reads of a connection in a row, before the others get their turn.
pub const READS_MAX: usize = 4;

/// Requests and keys of a connection in a row, before the others get their turn: some 20 µs. Without the limit, four clients with
/// full pipelines left further clients a quarter of the calls that memcached leaves.
pub const STEPS_MAX: usize = 128;

/// Bytes of replies that a connection may have unsent; beyond, its requests wait.
pub const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Replies that a connection may wait for; beyond, its requests wait.
pub const REPLIES_MAX: usize = 1024;

/// Bytes expected of the first replies of other threads, before their sizes are known: four requests of a new connection wait
/// for other threads, and further requests follow small replies. Without expectations, 60 clients that asked for large values
/// filled the batches, and the other clients' operations waited for hundreds of milliseconds.
pub const REPLY_BYTES_EXPECTED: usize = OUTPUT_BYTES_MAX / 4;

/// Bytes of a value that a full batch takes from a connection without a request in any batch.
pub const FIRST_VALUE_BYTES_MAX: usize = 1 << 10;

/// Operations in a batch for another thread: some 100 µs of work for the owner.
pub const BATCH_ENTRIES_MAX: usize = 1024;

/// Bytes of keys and values in a batch for another thread, with one value beyond.
pub const BATCH_BYTES_MAX: usize = 256 << 10;

/// Bytes of replies in a batch, with one reply beyond. The owner returns a batch with more, before it has run all.
pub const REPLIES_BYTES_MAX: usize = 256 << 10;

/// Most threads of a server.
pub const THREADS_MAX: u16 = 256;

/// Memory of a server beyond partitions, buffers and threads, in bytes: what the allocator and the loader take at the
/// start. The pages of the program's code come on top; all processes of the program share them.
pub const PROCESS_BYTES: u64 = 3 << 20;

/// Memory of a thread with connections, in bytes: its stack, the buffer of a read and the list of events.
pub const THREAD_BYTES: u64 = 160 << 10;

/// Memory of an endpoint with its share of the control plane, in bytes.
pub const ENDPOINT_BYTES: u64 = 8 << 20;

/// Part of a server's memory for buffers of connections and batches: a 32nd, and at least [`POOL_BYTES_MIN`]. With a 16th,
/// clients that read no replies had half of the other clients' calls, since filling the buffers takes time.
pub const POOL_SHARE: u64 = 32;

/// Least memory for buffers of all threads, in bytes. Requests begin in half of the memory: a value of the greatest size
/// and its batch fit.
pub const POOL_BYTES_MIN: u64 = 4 << 20;

/// Most memory for buffers that a thread has of its own, in bytes: two connections that go on while memory is short.
pub const OWN_BUFFER_BYTES_MAX: usize = 2 * LIGHT_BYTES;

/// Bytes that a thread borrows for buffers at a time.
pub const BORROWED_UNIT_BYTES: usize = 64 << 10;

/// Least memory of a thread's partition in a server, in bytes.
pub const SERVED_PARTITION_BYTES_MIN: u64 = 1 << 20;

/// Default limit of connections: memcached's.
pub const CONNECTIONS_MAX_DEFAULT: usize = 1024;

/// Connections that a thread accepts in a row, before the open ones get their turn.
pub const ACCEPTS_MAX: usize = 16;

/// Accepted connections beyond the limit, on their way to the threads.
pub const ARRIVALS_MAX: usize = 64;

/// Descriptors of a server besides its connections: listener, readiness loops, standard streams, and the endpoints'.
pub const FILES_BESIDE: usize = 256;

/// Seconds after which a connection that does not read its replies is closed, if memory for buffers is short.
pub const STALLED_S: u32 = 2;

/// Milliseconds without the end of a request or of its replies, after which a connection is closed for a waiter.
pub const HELD_MS: u64 = 1_000;

/// Milliseconds of a request's wait for memory before the refusal.
pub const MEMORY_WAIT_MS: u64 = 2_000;

/// Milliseconds between two looks at connections without memory, if no memory is given back meanwhile.
pub const MEMORY_LOOK_MS: u64 = 100;

/// Largest request that needs no memory beforehand if all of its bytes have come: a connection's turn reads and runs the request.
pub const WHOLE_BYTES: usize = (READS_MAX - 1) * READ_BYTES;

const _: () = {
    assert!(KEY_BYTES_MAX <= u8::MAX as usize && VALUE_BYTES_MAX < 1 << 21);
    // A full lap of the cleaner frees an eighth of the log: eight items of the greatest size.
    assert!(STORE_ITEMS_PER_LOG_MIN / (8 - STORE_FILL_EIGHTHS) >= 8 * 8);
    assert!(PARTITION_BYTES_MIN / STORE_ITEMS_PER_LOG_MIN >= 512);
};
