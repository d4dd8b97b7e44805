//! memcached's protocol: the parser, and a partition of the cache behind it.

use petrel_cache::memcached::{Clock, Everywhere, Parser, Request, Step, execute};
use petrel_cache::{Hasher, Mode, Partition, PartitionConfig};

/// A connection to one partition.
struct Connection {
    parser: Parser,
    partition: Partition,
    hasher: Hasher,
    clock: Clock,
    input: Vec<u8>,
    replies: Vec<u8>,
    is_closed: bool,
}

/// Feeds the bytes after the first two to a connection: at once, and in pieces whose size the second chooses. Replies and
/// contents must be the same. The first chooses the partition's mode.
pub fn check(data: &[u8]) {
    let [mode, size, stream @ ..] = data else { return };
    let mode = if mode % 2 == 0 { Mode::Cache } else { Mode::Store };
    let mut whole = Connection::new(mode);
    whole.receive(stream);
    let mut pieces = Connection::new(mode);
    for piece in stream.chunks(usize::from(*size).max(1)) {
        pieces.receive(piece);
    }
    assert_eq!(whole.replies.escape_ascii().to_string(), pieces.replies.escape_ascii().to_string());
    assert_eq!(whole.partition.counters(), pieces.partition.counters());
    assert_eq!(whole.partition.items(), pieces.partition.items());
}

impl Connection {
    fn new(mode: Mode) -> Self {
        let hasher = Hasher::new(1);
        let config = PartitionConfig { mode, ..PartitionConfig::new(64 << 10) };
        let mut partition = Partition::new(&config, hasher.clone()).expect("the least memory");
        partition.set_time(Clock::FIRST);
        Self {
            parser: Parser::new(),
            partition,
            hasher,
            clock: Clock::starting_at(1_700_000_000),
            input: Vec::new(),
            replies: Vec::new(),
            is_closed: false,
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let mut start = 0;
        while !self.is_closed {
            let input = &self.input[start..];
            let (used, request) = match self.parser.next(input) {
                Step::More { needed } => {
                    assert!(needed == 0 || needed > input.len(), "{needed} bytes have come");
                    break;
                }
                Step::Done { used, request } => (used, request),
            };
            assert!(used <= input.len(), "{used} bytes of {}", input.len());
            match request {
                Request::Operation(operation) => {
                    let key = self.hasher.key(operation.key).expect("a key of legal length");
                    execute(&mut self.partition, &self.clock, key, &operation, &mut self.replies);
                }
                Request::Everywhere(Everywhere::Flush { .. }) => self.partition.flush(),
                Request::Everywhere(_) => {}
                Request::Reply(reply) => self.replies.extend_from_slice(reply),
                Request::Close(reply) => {
                    self.replies.extend_from_slice(reply);
                    self.is_closed = true;
                }
            }
            start += used;
        }
        self.input.drain(..start);
    }
}
