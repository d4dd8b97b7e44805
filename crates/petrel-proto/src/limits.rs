//! Every limit of the protocol, with its unit and its reason (`docs/wire-protocol.md` §9).

/// Bytes of the common header of frames.
pub const HEADER_BYTES: usize = 16;

/// Bytes of the header of REQUEST_PART and RESPONSE_PART: the common header, then size, packet
/// and grant.
pub const PART_HEADER_BYTES: usize = 24;

/// Bytes of an extension block with a deadline alone.
pub const DEADLINE_BLOCK_BYTES: usize = 8;

/// Bytes of the longest header: packet 0 of a request with a deadline. A full packet always leaves room for it in a
/// frame.
pub const PACKET_OVERHEAD_BYTES: usize = PART_HEADER_BYTES + DEADLINE_BLOCK_BYTES;

/// Longest frame without payload: a PULL with a whole bitmap.
pub const CONTROL_FRAME_BYTES_MAX: usize = HEADER_BYTES + 16 + 8 * BITMAP_WORDS;

/// Longest extension block with marks: the lengths of block and record, the first packet, a word for each 64
/// packets of a window.
pub const MARKS_BLOCK_BYTES_MAX: usize = 2 + 2 + 4 + 8 * BITMAP_WORDS;

/// Longest CREDIT with marks. Further control frames keep the size of [`CONTROL_FRAME_BYTES_MAX`], and copy no more
/// than before.
pub const MARKED_CREDIT_BYTES_MAX: usize =
    HEADER_BYTES + 8 + MARKS_BLOCK_BYTES_MAX + 8 * BITMAP_WORDS;

/// Bytes of an extension block with an order alone.
pub const ORDER_BLOCK_BYTES: usize = 2 + 2 + 8;
/// Bytes of an extension block with a deadline and an order.
pub const DEADLINE_ORDER_BLOCK_BYTES: usize = DEADLINE_BLOCK_BYTES + 2 + 8;

/// Slots of a session: outstanding requests before calls queue. eRPC §4.3 uses 8, for handlers that answer at
/// once. A call that waits for an event occupies a slot meanwhile: with 8 slots, eight waiting calls stopped
/// a session. An application of many tasks has a few thousand calls on a handle.
pub const SLOTS_DEFAULT: u16 = 2048;

/// Most slots of a session. At 128 and 64 bytes a slot, one session can make a client keep 512 KiB and a
/// server 256 KiB.
pub const SLOTS_MAX: u16 = 4096;

/// Slots allocated at both ends from the beginning; calls allocate further ones as needed. With 8 slots an
/// idle session costs some 1.6 KiB at the client and 1.1 KiB at the server.
pub const SLOTS_AT_FIRST: u16 = 8;

/// Slots from which on a session reserves the first slot for the endpoint's own requests
/// ([`ENDPOINT_METHOD`]). Smaller sessions cannot spare one.
pub const SLOTS_WITH_RESERVE_MIN: u16 = 64;

/// The method of requests to the endpoint itself, for its health; these requests never wait behind calls.
pub const ENDPOINT_METHOD: u16 = u16::MAX;

/// Credits of a session, in packets: at 1.4 KB some 90 KB in flight. eRPC's implementation uses 32, the
/// bandwidth-delay product of 25 Gbit/s and 14 µs. With small calls the credits bound the calls in a round
/// trip: with 32 credits one session with 60 calls in flight reached 0.6 of its rate.
pub const CREDITS_DEFAULT: u16 = 64;

/// With this number of credits or more, one message holds at most half of the credits, and small calls
/// proceed beside large messages. Also, 32 packets of 16 KiB fit into half of a shared-memory ring; with 64
/// the ring was full, and the refused frames had to be made again.
pub const CREDITS_SHARED_MIN: u16 = 64;

/// Most credits of a session: bounds its share of a receive queue.
pub const CREDITS_MAX: u16 = 4096;

/// Words of the bitmap in CREDIT and PULL frames.
pub const BITMAP_WORDS: usize = 4;

/// Packets of one message in flight at most: as many as the bitmap names.
pub const WINDOW_PACKETS: u32 = 64 * BITMAP_WORDS as u32;

/// Further source ports that a side of a link can announce (§14.1): with the port of its offer, 32 paths. A
/// Clos network with more equal-cost paths between two racks is covered by chance, as by any hash.
pub const PATH_PORTS_MAX: usize = 31;

/// Paths of a session at most.
pub const PATHS_MAX: usize = PATH_PORTS_MAX + 1;

/// Distance between the sequence of an ordered call and the oldest call that has not ended (§14.6): the
/// server remembers by a bitmap of a window which calls have run.
pub const ORDER_WINDOW_CALLS: u32 = WINDOW_PACKETS;

/// Largest message that can be agreed on, in bytes: bounds a server's memory for one request.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 30;

/// Largest message by default, in bytes: 8 MiB, inclusive.
pub const MESSAGE_BYTES_DEFAULT: u32 = 8 << 20;

/// Longest retransmission timeout that can be set, in nanoseconds: an hour, far above any network's. The
/// timeout is doubled up to 20 times before this bound applies, without exceeding 64 bits.
pub const RTO_NS_MAX: u64 = 3_600_000_000_000;

/// Packets of a message: the packet index has 24 bits.
pub const MESSAGE_PACKETS_MAX: u32 = 1 << 24;

/// Least payload of a full packet: the IPv6 minimum MTU of 1 280, less 48 bytes of IPv6 and UDP
/// header, less [`PACKET_OVERHEAD_BYTES`].
pub const PACKET_BYTES_MIN: u32 = 1200;

/// Largest payload of a full packet: 16 MiB. Over shared memory a large message can thus be one packet, read
/// in place by the handler. Over UDP a datagram's 65 507 bytes are the limit.
pub const PACKET_BYTES_MAX: u32 = 16 << 20;

/// Sessions of an endpoint: the session field has 20 bits.
pub const SESSIONS_MAX: u32 = 1 << 20;

/// First number that a request cannot have: the request field has 48 bits.
pub const REQUEST_NUMBER_END: u64 = 1 << 48;

/// First request numbers are below this value, to leave at least as many later numbers.
pub const FIRST_REQUEST_END: u64 = 1 << 47;

/// Rounds of a slot that a request may be ahead of the server. A client gives up one request per round, and
/// ends the session before giving up as many without an answer (§5.4).
pub const FUTURE_ROUNDS_MAX: u64 = 65_536;

/// A slot probes for the answer of a running request after its waiting time divided by this number. So a lost
/// answer is found within half of the handler's time, and a minute of waiting costs some 30 probes.
pub const WAITING_PROBE_DIVISOR: u64 = 2;

/// Longest time between these probes, in nanoseconds: 4 s. Then 2 000 calls that wait for long cost a session
/// 500 probes a second, and a lost answer is 4 s late at most.
pub const WAITING_PROBE_NS_MAX: u64 = 4_000_000_000;

/// A packet is lost when a packet sent this many transmissions later has arrived (RFC 9002 §6.1.1, which
/// takes the number from TCP).
pub const REORDERING_THRESHOLD: u32 = 3;

/// Most frames of one call of `Core::transmit`: one burst of a transport. The other end processes one burst
/// while the next is made; with 60 calls in flight over UDP, 32 frames were better than 64 by a third, and
/// than 16 frames by half.
pub const TRANSMIT_FRAMES_MAX: usize = 32;

/// CANCEL frames that may wait to be sent. When the queue is full, the medium accepts nothing anyway, and
/// omitted CANCELs are made up for (§5.4).
pub const CANCELS_QUEUED_MAX: usize = 4096;

/// Most probes, and answers to probes, that wait to be sent.
pub const PROBES_QUEUED_MAX: usize = 1024;

/// Unanswered timeouts at which a client asks a server on the same host before it repeats a packet: 15 ms with
/// the least timeout. Nothing is lost in shared memory. A server without memory for a packet has dropped it,
/// so that the packet must be repeated in the end.
pub const QUESTIONS_MAX: u8 = 3;

/// A timeout of this length, in nanoseconds, after which the server's process may be dead (§8.6): six timeouts in a row on
/// a near path.
pub const SILENCE_NS: u64 = 50_000_000;

/// Calls that may wait in a session's queue for a slot. Bounds the buffers that a stuck session holds.
pub const BACKLOG_CALLS_MAX: usize = 65_536;

/// Default memory for messages of an endpoint, in bytes: 1 GiB.
pub const MEMORY_BYTES_DEFAULT: u64 = 1 << 30;

/// One session may hold an eighth of the endpoint's memory for half-arrived requests and kept answers:
/// sixteen messages of 8 MiB by default.
pub const HELD_SHARE_OF_SESSION: u64 = 8;

/// All sessions of one peer together may hold a quarter.
pub const HELD_SHARE_OF_PEER: u64 = 4;

/// All sessions of the peers of one account together may hold half: a client with many processes leaves room to further
/// clients.
pub const HELD_SHARE_OF_ACCOUNT: u64 = 2;

/// An eighth is reserved for small messages: half-arrived requests and kept answers cannot use it.
pub const HELD_SHARE_OF_ALL: u64 = 8;

/// A server drops a request after this time without a packet, and a large answer after this time without a
/// request for it: 10 s. A client gives up after 14 timeouts of 0.5 s at most.
pub const HELD_IDLE_NS: u64 = 10_000_000_000;

/// The same time for a request where memory is short: 1 s, twice the longest retransmission timeout.
pub const ARRIVING_SHORT_NS: u64 = 1_000_000_000;

/// The same time for an answer where memory is short: 250 ms. A client asks for a missing packet within some
/// round trips. Waiting for a rare client with longer gaps is not worth the memory.
pub const ANSWER_SHORT_NS: u64 = 250_000_000;

/// Where memory is short, a request may take a second, plus this time for every byte: a request slower than 1 MB/s
/// gives way to quicker requests.
pub const ARRIVING_NS_PER_BYTE: u64 = 1_000;

/// Interval of a server's searches for idle holdings, in nanoseconds, while there are holdings.
pub const HELD_SWEEP_NS: u64 = 1_000_000_000;

/// Holdings checked by one search for memory: some 10 µs if every check misses the caches.
pub const HELD_LOOKS_MAX: usize = 128;

/// Answers up to this size stay in their slot for the next answer: the largest packet over UDP. Larger ones
/// are kept for a while and counted, even if one packet carries them.
pub const KEPT_ANSWER_BYTES_MAX: u32 = 64 << 10;

/// A client confirms the reception of responses from this size on, to let the server free them: one
/// additional frame for 45 packets over UDP.
pub const CONFIRMED_RESPONSE_BYTES_MIN: u32 = 64 << 10;

const _: () = {
    assert!(HELD_SHARE_OF_SESSION >= HELD_SHARE_OF_PEER && HELD_SHARE_OF_PEER > 1);
    assert!(ANSWER_SHORT_NS <= ARRIVING_SHORT_NS && ARRIVING_SHORT_NS < HELD_IDLE_NS);
    assert!(SLOTS_MAX.is_power_of_two() && SLOTS_DEFAULT.is_power_of_two());
    assert!(SLOTS_DEFAULT <= SLOTS_MAX);
    assert!(SLOTS_AT_FIRST.is_power_of_two() && SLOTS_AT_FIRST < SLOTS_WITH_RESERVE_MIN);
    // Numbers that stand for no slot are above all slots.
    assert!(SLOTS_MAX < u16::MAX - 2);
    // The sign of a difference distinguishes future request numbers from past ones.
    assert!(FUTURE_ROUNDS_MAX * (SLOTS_MAX as u64) < REQUEST_NUMBER_END);
    assert!(CREDITS_DEFAULT <= CREDITS_MAX);
    // The smallest packets still carry the largest message within the packet index.
    assert!(MESSAGE_BYTES_MAX.div_ceil(PACKET_BYTES_MIN) <= MESSAGE_PACKETS_MAX);
    assert!(RTO_NS_MAX << 20 >> 20 == RTO_NS_MAX);
    assert!(CONTROL_FRAME_BYTES_MAX <= 64);
    assert!(FIRST_REQUEST_END < REQUEST_NUMBER_END);
    assert!(PACKET_BYTES_MIN as usize + PACKET_OVERHEAD_BYTES == 1280 - 48);
};

/// Returns the number of packets of a message of `size_bytes`, at `packet_bytes` per packet: at least one.
#[inline]
pub const fn packets_of(size_bytes: u32, packet_bytes: u32) -> u32 {
    if size_bytes <= packet_bytes { 1 } else { size_bytes.div_ceil(packet_bytes) }
}

/// Returns the offset and length in bytes of packet `packet` of a message.
#[inline]
pub const fn packet_span(packet: u32, size_bytes: u32, packet_bytes: u32) -> (usize, usize) {
    let offset = packet as usize * packet_bytes as usize;
    let rest = size_bytes as usize - offset;
    let length = if rest < packet_bytes as usize { rest } else { packet_bytes as usize };
    (offset, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_cover_the_message_exactly() {
        for size in [0, 1, 1200, 1201, 2400, 2401, 8 << 20, MESSAGE_BYTES_MAX] {
            let count = packets_of(size, 1200);
            let mut covered = 0;
            for packet in [0, count / 2, count - 1] {
                let (offset, length) = packet_span(packet, size, 1200);
                assert_eq!(offset, packet as usize * 1200);
                covered = offset + length;
            }
            assert_eq!(covered, size as usize, "the last packet ends the message");
        }
        assert_eq!(packets_of(0, 1200), 1);
    }
}
