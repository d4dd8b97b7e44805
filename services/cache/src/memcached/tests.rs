//! Scripts of the protocol: bytes that come, bytes that go.

use super::*;
use crate::limits::{KEYS_LINE_BYTES_MAX, LINE_BYTES_MAX, VALUE_BYTES_MAX};
use crate::{Hasher, Partition, PartitionConfig};

/// A connection with one partition.
struct Script {
    parser: Parser,
    partition: Partition,
    hasher: Hasher,
    clock: Clock,
    input: Vec<u8>,
    is_closed: bool,
}

impl Script {
    fn new() -> Self {
        let hasher = Hasher::new(1);
        let mut partition =
            Partition::new(&PartitionConfig::new(32 << 20), hasher.clone()).unwrap();
        partition.set_time(Clock::FIRST);
        let clock = Clock::starting_at(1_700_000_000);
        Self {
            parser: Parser::new(),
            partition,
            hasher,
            clock,
            input: Vec::new(),
            is_closed: false,
        }
    }

    /// Receives bytes; returns the replies.
    fn receive(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.input.extend_from_slice(bytes);
        let mut out = Vec::new();
        loop {
            let (used, request) = match self.parser.next(&self.input) {
                Step::More { .. } => return out,
                Step::Done { used, request } => (used, request),
            };
            match request {
                Request::Operation(operation) => {
                    let key = self.hasher.key(operation.key).unwrap();
                    execute(&mut self.partition, &self.clock, key, &operation, &mut out);
                }
                Request::Reply(reply) => out.extend_from_slice(reply),
                Request::Everywhere(Everywhere::Flush { is_quiet, .. }) => {
                    self.partition.flush();
                    out.extend_from_slice(if is_quiet { b"" } else { replies::OK });
                }
                Request::Everywhere(_) => out.extend_from_slice(REPORT),
                Request::Close(reply) => {
                    out.extend_from_slice(reply);
                    self.is_closed = true;
                }
            }
            self.input.drain(..used);
        }
    }

    /// Runs pairs of `request -> reply` as `dialogue.txt` has them. The threads of a server, which are absent here, answer
    /// reports and limits.
    fn run(&mut self, script: &str) {
        let lines = script.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        for pair in lines.flat_map(|line| line.split(" ; ")).filter(|pair| !pair.is_empty()) {
            let (request, reply) = pair.split_once("->").unwrap();
            let bytes = |text: &str| text.trim().replace('|', "\r\n").replace("\\\r\n", "|");
            let got = self.receive(bytes(request).as_bytes());
            if got != REPORT {
                assert_eq!(String::from_utf8_lossy(&got), bytes(reply), "{pair}");
            }
        }
    }
}

const REPORT: &[u8] = b"(report)";

/// The tests over sockets send the same requests to memcached.
#[test]
fn requests__are_answered_as_by_memcached() {
    Script::new().run(include_str!("dialogue.txt"));
}

#[test]
fn versions_and_lengths__are_those_of_petrel() {
    Script::new().run(
        "set a 5 0 3|abc| -> STORED| ; gets a| -> VALUE a 5 3 1|abc|END|
         cas a 1 0 1 2|x| -> EXISTS| ; cas a 1 0 1 1|x| -> STORED| ; gats 100 a| -> VALUE a 1 1 2|x|END|
         ms a 2 k O9 c T10 F3|ab| -> HD ka O9 c3| ; mg a s t f c k O123 q| -> HD s2 t10 f3 c3 ka O123|
         ms a 1 C2|x| -> EX| ; ms a 1 C3|x| -> HD| ; md a C9| -> EX|
         set n 7 0 2|10| -> STORED| ; ma n D5 v t c| -> VA 2 t-1 c6|15| ; ma n C1| -> EX|
         decr n 6| -> 9| ; get n| -> VALUE n 7 1|9|END|
         me n| -> ME n exp=-1 la=0 cas=7 fetch=yes cls=1 size=32| ; stats| -> ; mn| -> MN|",
    );
}

#[test]
fn keys__have_250_bytes_at_most() {
    let mut script = Script::new();
    let (longest, longer) = ("k".repeat(250), "k".repeat(251));
    script.run(&format!("set {longest} 0 0 1|x| -> STORED|"));
    script.run(&format!("get {longest}| -> VALUE {longest} 0 1|x|END|"));
    // No item precedes the error, although the first key has one.
    script.run(&format!("get {longest} {longer}| -> CLIENT_ERROR bad command line format|"));
    for line in ["delete {}", "incr {} 1", "touch {} 0", "mg {} v", "ms {} 1", "set {} 0 0 1"] {
        let line = line.replace("{}", &longer);
        script.run(&format!("{line}| -> CLIENT_ERROR bad command line format|"));
    }
}

#[test]
fn values__have_a_mebibyte_at_most() {
    let mut script = Script::new();
    let value = vec![b'v'; VALUE_BYTES_MAX];
    let request = [format!("set a 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    assert_eq!(script.receive(&request), b"STORED\r\n");
    let request =
        [format!("set a 0 0 {}\r\n", value.len() + 1).as_bytes(), &value, b"v\r\nmn\r\n"].concat();
    let reply = script.receive(&request);
    assert_eq!(reply, b"SERVER_ERROR object too large for cache\r\nMN\r\n");
    // The former value would be wrong now.
    script.run("get a| -> END|");
    let longest = format!("set a 0 0 {}\r\n", i32::MAX - 2);
    assert_eq!(
        Script::new().receive(longest.as_bytes()),
        b"SERVER_ERROR object too large for cache\r\n"
    );
}

#[test]
fn lines__without_an_end_close_the_connection() {
    for (start, limit) in [("x", LINE_BYTES_MAX), ("get ", KEYS_LINE_BYTES_MAX)] {
        let mut script = Script::new();
        script.receive(start.as_bytes());
        assert_eq!(script.receive(&vec![b'x'; limit - start.len()]), b"");
        assert_eq!(script.receive(b"x"), b"CLIENT_ERROR line too long\r\n");
        assert!(script.is_closed);
    }
}

#[test]
fn lines__that_are_too_long_close_the_connection_with_their_end_too() {
    for (start, limit) in [("mg key P", LINE_BYTES_MAX), ("get ", KEYS_LINE_BYTES_MAX)] {
        let mut script = Script::new();
        let line = [start.as_bytes(), &vec![b'x'; limit + 1 - start.len()], b"\r\n"].concat();
        assert_eq!(script.receive(&line), b"CLIENT_ERROR line too long\r\n");
        assert!(script.is_closed);
    }
}

/// The owner of a key may have no room for an operation.
#[test]
fn take_back__repeats_a_value_that_is_too_large() {
    let mut parser = Parser::new();
    let input = b"set k 0 0 2000000\r\nflush_all\r\n";
    let first = format!("{:?}", parser.next(input));
    parser.take_back();
    assert_eq!(format!("{:?}", parser.next(input)), first);
    let Step::Done { used, request } = parser.next(&input[19..]) else { panic!("it is skipped") };
    assert_eq!((used, request), (11, Request::Reply(b"")), "the value is no command");
}

#[test]
fn input__may_come_in_pieces_of_any_size() {
    let request =
        b"set a 0 0 10\r\nline\r\nline\r\nget a  b\r\nms b 2 c k\r\nxy\r\nmg b v\r\nbogus\nmn\r\n";
    let whole = Script::new().receive(request);
    assert!(whole.ends_with(b"VA 2\r\nxy\r\nERROR\r\nMN\r\n"));
    for size in 1..request.len() {
        let mut script = Script::new();
        let replies: Vec<_> =
            request.chunks(size).flat_map(|piece| script.receive(piece)).collect();
        assert_eq!(replies, whole, "pieces of {size} bytes");
    }
}

#[test]
fn large_values__remove_the_former_item_of_a_set_alone() {
    let mut script = Script::new();
    script.run("set a 0 0 1|x| -> STORED|");
    let size = VALUE_BYTES_MAX + 1;
    let value = [vec![b'v'; size], b"\r\n".to_vec()].concat();
    let mut refuse = |head: &str, reply: &[u8]| {
        let got = script.receive(&[head.as_bytes(), b"\r\n", &value].concat());
        assert_eq!(got, reply, "{head}");
        script.receive(b"get a\r\n").len() > b"END\r\n".len()
    };
    let reply = b"SERVER_ERROR object too large for cache\r\n";
    for command in ["add", "replace", "append", "prepend"] {
        assert!(refuse(&format!("{command} a 0 0 {size}"), reply), "{command} removes");
    }
    assert!(refuse(&format!("cas a 0 0 {size} 7"), reply));
    assert!(refuse(&format!("ms a {size} ME q"), reply));
    assert!(!refuse(&format!("set a 0 0 {size} noreply"), b""));
    let counters = script.partition.counters();
    assert_eq!((counters.delete_hits, counters.delete_misses), (0, 0));
    assert_eq!((counters.store_too_large, counters.cmd_set), (7, 8));
}

#[test]
fn refuse__skips_the_value_and_says_so_unless_asked_not_to() {
    for (head, is_quiet) in
        [("set a 0 0 5", false), ("set a 0 0 5 noreply", true), ("ms a 5 q", false)]
    {
        let mut parser = Parser::new();
        let input = format!("{head}\r\nab");
        assert!(matches!(parser.next(input.as_bytes()), Step::More { needed } if needed > 0));
        let Step::Done { used, request } = parser.refuse(input.as_bytes()) else {
            panic!("{head} is not refused")
        };
        let Request::Operation(operation) = request else { panic!("{request:?}") };
        let refused = Action::Refused { reason: Refusal::NoMemory, removes: true, is_quiet };
        assert_eq!((operation.action, operation.key, used), (refused, &b"a"[..], head.len() + 2));
        assert_eq!(
            parser.next(b"abcde\r\nmn\r\n"),
            Step::Done { used: 7, request: Request::Reply(b"") }
        );
    }
}

/// A line may come byte by byte: a search from its beginning at each byte would take quadratic time.
#[test]
fn next__looks_for_the_end_of_a_line_in_new_bytes_alone() {
    let mut parser = Parser::new();
    assert_eq!(parser.next(b"get aaaa"), Step::More { needed: 0 });
    // The owner gives the same bytes again. A change shows which bytes are read.
    assert_eq!(parser.next(b"get\naaaa b"), Step::More { needed: 0 });
    assert!(matches!(parser.next(b"get aaaa b\r\n"), Step::Done { used: 3, .. }));
}
