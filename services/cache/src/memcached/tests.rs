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
                Request::Everywhere(Everywhere::Flush { .. }) => self.partition.flush(),
                Request::Everywhere(_) => out.extend_from_slice(b"(report)"),
                Request::Close(reply) => {
                    out.extend_from_slice(reply);
                    self.is_closed = true;
                }
            }
            self.input.drain(..used);
        }
    }

    /// Runs lines of `request -> reply`, with `|` for the end of a line.
    fn run(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (request, reply) = line.split_once("->").unwrap();
            let bytes = |text: &str| text.trim().replace('|', "\r\n");
            let got = self.receive(bytes(request).as_bytes());
            assert_eq!(String::from_utf8_lossy(&got), bytes(reply), "{line}");
        }
    }
}

#[test]
fn storage__answers_as_the_protocol_says() {
    Script::new().run(
        "set a 5 0 3|abc| -> STORED|
         get a| -> VALUE a 5 3|abc|END|
         get a b a| -> VALUE a 5 3|abc|VALUE a 5 3|abc|END|
         add a 0 0 1|x| -> NOT_STORED|
         add b 0 0 1|x| -> STORED|
         replace c 0 0 1|x| -> NOT_STORED|
         append a 9 0 2|de| -> STORED|
         prepend a 9 0 1|_| -> STORED|
         gets a| -> VALUE a 5 6 4|_abcde|END|
         cas a 1 0 1 3|x| -> EXISTS|
         cas a 1 0 1 4|x| -> STORED|
         cas z 1 0 1 4|x| -> NOT_FOUND|
         set n 0 -1 1|x| -> STORED|
         get n| -> END|
         set e 0 0 0|| -> STORED|
         get e| -> VALUE e 0 0||END|
         delete a| -> DELETED|
         delete a| -> NOT_FOUND|
         delete b 0| -> DELETED|
         touch e 10| -> TOUCHED|
         touch a 10| -> NOT_FOUND|
         gat 0 e a| -> VALUE e 0 0||END|
         gats 100 e| -> VALUE e 0 0 7||END|
         gat 5| -> END|",
    );
}

#[test]
fn numbers__wrap_around_and_stop_at_zero() {
    Script::new().run(
        "set n 7 0 2|10| -> STORED|
         incr n 5| -> 15|
         decr n 6| -> 9|
         get n| -> VALUE n 7 1|9|END|
         decr n 100| -> 0|
         incr n 18446744073709551615| -> 18446744073709551615|
         incr n 5| -> 4|
         incr n -1| -> CLIENT_ERROR invalid numeric delta argument|
         incr n 18446744073709551616| -> CLIENT_ERROR invalid numeric delta argument|
         incr z 1| -> NOT_FOUND|
         set t 0 0 1|x| -> STORED|
         decr t 1| -> CLIENT_ERROR cannot increment or decrement non-numeric value|",
    );
}

#[test]
fn mistakes__are_answered_and_the_next_command_works() {
    Script::new().run(
        "| -> ERROR|
         bogus| -> ERROR|
         GET a| -> ERROR|
         get| -> ERROR|
         set a 0 0| -> ERROR|
         set a 0 0 -1| -> CLIENT_ERROR bad command line format|
         set a x 0 1|b| -> CLIENT_ERROR bad command line format|ERROR|
         set a 0 0 1 2 3 4 5|b| -> ERROR|ERROR|
         set a 0 0 3|abcde| -> CLIENT_ERROR bad data chunk|ERROR|
         delete a 1| -> CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]|
         touch a x| -> CLIENT_ERROR invalid exptime argument|
         gat x a| -> CLIENT_ERROR invalid exptime argument|
         flush_all x| -> CLIENT_ERROR invalid exptime argument|
         verbosity| -> ERROR|
         verbosity 1| -> OK|
         stats foo| -> ERROR|
         stats| -> (report)
         mn| -> MN|",
    );
}

#[test]
fn noreply__is_silent() {
    Script::new().run(
        "set a 0 0 1 noreply|1| ->
         incr a 1 noreply| ->
         append a 0 0 1 noreply|0| ->
         cas a 0 0 1 99 noreply|x| ->
         touch a 0 noreply| ->
         set a 0 0 1 noreply|toolong| -> ERROR|
         get a| -> VALUE a 0 2|20|END|
         delete a noreply| ->
         verbosity 1 noreply| ->
         get a| -> END|",
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
fn meta_get__returns_flags_in_their_order() {
    Script::new().run(
        "set a 5 100 3|abc| -> STORED|
         mg a| -> HD|
         mg a v| -> VA 3|abc|
         mg a s t f c k O123 q| -> HD s3 t100 f5 c1 ka O123|
         mg a s v| -> VA 3 s3|abc|
         mg a h l| -> HD h1 l0|
         mg z| -> EN|
         mg z q| ->
         mg z k O12| -> EN kz O12|
         mg a T30 t| -> HD t30|
         mg a T0 t| -> HD t-1|
         mg a Lone Ptwo| -> HD|
         mg a y| -> CLIENT_ERROR invalid flag|
         mg a v v| -> CLIENT_ERROR duplicate flag|
         mg a Tx| -> CLIENT_ERROR bad token in command line format|
         mg| -> ERROR|
         set b 0 0 1|b| -> STORED|
         mg b u h| -> HD h0|
         mg b h| -> HD h0|
         mg b h| -> HD h1|",
    );
}

#[test]
fn meta_get__tells_one_client_to_make_a_value() {
    Script::new().run(
        "mg a N30 t v| -> VA 0 t30 W||
         mg a N30 t v| -> VA 0 t30 Z||
         mg a s| -> HD s0 Z|
         ms a 1 T30|x| -> HD|
         mg a v t| -> VA 1 t30|x|
         mg a R20| -> HD|
         mg a R31| -> HD W|
         mg a R31| -> HD Z|
         ms a 1|y| -> HD|
         md a I T60 k O5| -> HD ka O5|
         mg a v t| -> VA 1 t60 X W|y|
         mg a v| -> VA 1 Z X|y|
         ms a 1|z| -> HD|
         mg a v| -> VA 1|z|",
    );
}

#[test]
fn meta_set__has_modes_and_versions() {
    Script::new().run(
        "ms a 2 k O9 c T10 F3|ab| -> HD ka O9 c1|
         ms a 2 q|ab| ->
         ms a 2 ME|xx| -> NS|
         ms b 2 MR|xx| -> NS|
         ms b 2 MA q|xx| -> NS|
         ms a 1 MA|c| -> HD|
         ms a 1 MP|_| -> HD|
         mg a v f| -> VA 4 f0|_abc|
         ms a 1 C1|x| -> EX|
         ms z 1 C1|x| -> NF|
         ms a 1 C1 I|x| -> HD|
         mg a v| -> VA 1 X W|x|
         ms a 1 MX|x| -> CLIENT_ERROR invalid mode for ms M token|
         ms a 1 M|x| -> CLIENT_ERROR incorrect length for M token|
         ms a 1 Fx|x| -> CLIENT_ERROR bad command line format|
         ms a 1 q|xyz| -> CLIENT_ERROR bad data chunk|ERROR|
         ms a| -> CLIENT_ERROR bad command line format|
         mn| -> MN|",
    );
}

#[test]
fn meta_delete_and_count__answer_with_codes() {
    Script::new().run(
        "ms a 1|x| -> HD|
         md a C9| -> EX|
         md a k| -> HD ka|
         md a q| -> NF|
         ms n 2|10| -> HD|
         ma n| -> HD|
         ma n v| -> VA 2|12|
         ma n D5 v t c| -> VA 2 t-1 c5|17|
         ma n MD D100 v| -> VA 1|0|
         ma n M+ v k O7| -> VA 1 kn O7|1|
         ma n q| ->
         ma n Dx| -> CLIENT_ERROR invalid or duplicate flag|
         ma n Mx| -> CLIENT_ERROR invalid mode for ma M token|
         ma n C1| -> EX|
         ma z k| -> NF kz|
         ma z N30 J13 v t| -> VA 2 t30|13|
         ma z N30 J13 v T60 t| -> VA 2 t60|14|
         ms n 1|x| -> HD|
         ma n| -> CLIENT_ERROR cannot increment or decrement non-numeric value|
         me n| -> ME n exp=-1 la=0 cas=11 fetch=no cls=1 size=32|
         me q| -> EN|",
    );
}

#[test]
fn keys__may_come_in_base64() {
    Script::new().run(
        "ms Zm9v 3 b k|abc| -> HD kZm9v b|
         mg Zm9v b k v| -> VA 3 kZm9v b|abc|
         mg foo v| -> VA 3|abc|
         mg *** b| -> CLIENT_ERROR error decoding key|
         md Zm9v b k| -> HD kZm9v b|
         mg foo v| -> EN|",
    );
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
