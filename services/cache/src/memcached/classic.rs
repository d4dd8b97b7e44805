//! The classic commands.

use super::operation::{Action, Everywhere, Operation, Request};
use super::parser::Line;
use super::replies::{BAD_FORMAT, ERROR, EXPTIME, OK};
use crate::limits::KEY_BYTES_MAX;
use crate::numbers::{signed, unsigned};
use crate::partition::Verb;

/// Most words of a command without a list of keys: `cas key flags exptime bytes version noreply`, and one too many.
const WORDS_MAX: usize = 8;

/// The largest number that is taken as the length of a value: memcached's, whose integers have room for the line's end.
pub(super) const VALUE_NUMBER_MAX: usize = i32::MAX as usize - 2;

const VERSION: &[u8] =
    concat!("VERSION 1.6.18-petrel-", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes();

struct Words<'a> {
    words: [&'a [u8]; WORDS_MAX],
    count: usize,
}

impl<'a> Words<'a> {
    fn of(line: &'a [u8]) -> Self {
        let mut words = [&b""[..]; WORDS_MAX];
        let all = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let count = words.iter_mut().zip(all).map(|(place, word)| *place = word).count();
        Self { words, count }
    }

    /// The word at this place; empty if the line is shorter.
    fn at(&self, place: usize) -> &'a [u8] {
        self.words[place]
    }

    /// Returns true if the line may be the request line of HTTP (RFC 9112 §3), with a version of HTTP as a word.
    fn has_http_version(&self) -> bool {
        self.words[..self.count].iter().any(|word| word.starts_with(b"HTTP/"))
    }

    /// Returns true if the command asks for silence.
    fn is_quiet(&self) -> bool {
        self.words[..self.count].last().is_some_and(|word| *word == b"noreply")
    }
}

/// Parses a line without its end.
pub(super) fn parse(line: &[u8]) -> Line<'_> {
    let start = line.iter().position(|byte| *byte != b' ').unwrap_or(line.len());
    let rest = &line[start..];
    let name = &rest[..rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len())];
    let after = start + name.len();
    match name {
        b"get" => keys(line, after, Action::Get { with_cas: false, touch: None }),
        b"gets" => keys(line, after, Action::Get { with_cas: true, touch: None }),
        b"gat" => get_and_touch(line, after, false),
        b"gats" => get_and_touch(line, after, true),
        b"set" => store(line, Verb::Set, false),
        b"add" => store(line, Verb::Add, false),
        b"replace" => store(line, Verb::Replace, false),
        b"append" => store(line, Verb::Append, false),
        b"prepend" => store(line, Verb::Prepend, false),
        b"cas" => store(line, Verb::Set, true),
        b"delete" => delete(line),
        b"incr" => count(line, true),
        b"decr" => count(line, false),
        b"touch" => touch(line),
        _ => Line::Request(administration(name, &Words::of(line))),
    }
}

fn refuse<'a>(reply: &'static [u8]) -> Line<'a> {
    Line::Request(Request::Reply(reply))
}

/// Refuses a command. A client that asked for silence reads no reply: a reply would stand for that of its next command.
fn refuse_unless<'a>(is_quiet: bool, reply: &'static [u8]) -> Line<'a> {
    refuse(if is_quiet { b"" } else { reply })
}

fn operation<'a>(action: Action, key: &'a [u8]) -> Line<'a> {
    Line::Request(Request::Operation(Operation { action, key, value: b"", flags: b"" }))
}

/// A list of keys from this place of the line. All are checked first: a reply begins only for a correct command.
fn keys(line: &[u8], start: usize, action: Action) -> Line<'_> {
    let mut keys =
        line[start..].split(|byte| *byte == b' ').filter(|key| !key.is_empty()).peekable();
    if keys.peek().is_none() && matches!(action, Action::Get { touch: None, .. }) {
        return refuse(ERROR);
    }
    if keys.any(|key| key.len() > KEY_BYTES_MAX) {
        return refuse(BAD_FORMAT);
    }
    Line::Keys { action, start }
}

fn get_and_touch(line: &[u8], start: usize, with_cas: bool) -> Line<'_> {
    let words = Words::of(line);
    if words.count < 2 {
        return refuse(ERROR);
    }
    let Some(exptime) = signed(words.at(1)) else { return refuse(EXPTIME) };
    // Behind the word: its bytes lie within the line.
    let skipped = line[start..].iter().take_while(|byte| **byte == b' ').count();
    let start = start + skipped + words.at(1).len();
    keys(line, start, Action::Get { with_cas, touch: Some(exptime) })
}

fn store(line: &[u8], verb: Verb, has_version: bool) -> Line<'_> {
    let words = Words::of(line);
    let least = if has_version { 6 } else { 5 };
    if words.count < least || words.count > least + 1 {
        return refuse(ERROR);
    }
    let key = words.at(1);
    let numbers = || {
        let client_flags = u32::try_from(unsigned(words.at(2))?).ok()?;
        let bytes = usize::try_from(unsigned(words.at(4))?).ok()?;
        let compare = if has_version { Some(unsigned(words.at(5))?) } else { None };
        let is_possible = key.len() <= KEY_BYTES_MAX && bytes <= VALUE_NUMBER_MAX;
        is_possible.then_some((client_flags, signed(words.at(3))?, bytes, compare))
    };
    let is_quiet = words.is_quiet();
    let Some((client_flags, exptime, bytes, compare)) = numbers() else {
        return refuse_unless(is_quiet, BAD_FORMAT);
    };
    let action = Action::Store { verb, client_flags, exptime, compare, is_quiet };
    let operation = Operation { action, key, value: b"", flags: b"" };
    Line::Value { operation, bytes, is_quiet }
}

fn delete(line: &[u8]) -> Line<'_> {
    const USAGE: &[u8] =
        b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
    let words = Words::of(line);
    let is_quiet = words.is_quiet();
    match words.count {
        0 | 1 => return refuse(ERROR),
        2 => {}
        3 if is_quiet || words.at(2) == b"0" => {}
        4 if is_quiet && words.at(2) == b"0" => {}
        3 | 4 => return refuse_unless(is_quiet, USAGE),
        _ => return refuse(ERROR),
    }
    with_key(words.at(1), Action::Delete { is_quiet }, is_quiet)
}

fn with_key(key: &[u8], action: Action, is_quiet: bool) -> Line<'_> {
    match key.len() <= KEY_BYTES_MAX {
        true => operation(action, key),
        false => refuse_unless(is_quiet, BAD_FORMAT),
    }
}

fn count(line: &[u8], is_increment: bool) -> Line<'_> {
    let words = Words::of(line);
    if words.count < 3 || words.count > 4 {
        return refuse(ERROR);
    }
    let is_quiet = words.is_quiet();
    let Some(delta) = unsigned(words.at(2)) else {
        return refuse_unless(is_quiet, b"CLIENT_ERROR invalid numeric delta argument\r\n");
    };
    with_key(words.at(1), Action::Count { is_increment, delta, is_quiet }, is_quiet)
}

fn touch(line: &[u8]) -> Line<'_> {
    let words = Words::of(line);
    if words.count < 3 || words.count > 4 {
        return refuse(ERROR);
    }
    let is_quiet = words.is_quiet();
    let Some(exptime) = signed(words.at(2)) else { return refuse_unless(is_quiet, EXPTIME) };
    with_key(words.at(1), Action::Touch { exptime, is_quiet }, is_quiet)
}

/// Commands without a key.
fn administration(name: &[u8], words: &Words<'_>) -> Request<'static> {
    let is_quiet = words.is_quiet();
    let answer = |reply| Request::Reply(if is_quiet { b"" } else { reply });
    match name {
        b"version" => Request::Reply(VERSION),
        b"quit" => Request::Close(b""),
        b"flush_all" => flush(words),
        b"stats" => stats(words),
        // The level has no effect: the server writes no log.
        b"verbosity" if !(2..=3).contains(&words.count) => Request::Reply(ERROR),
        b"verbosity" if is_quiet || unsigned(words.at(1)).is_some() => answer(OK),
        b"verbosity" => Request::Reply(BAD_FORMAT),
        b"cache_memlimit" => limit(words),
        b"shutdown" => Request::Reply(b"ERROR: shutdown not enabled\r\n"),
        // A web page has a browser send the line, and commands behind: no command may run. memcached closes, too.
        _ if words.has_http_version() => Request::Close(b""),
        _ => Request::Reply(ERROR),
    }
}

fn flush(words: &Words<'_>) -> Request<'static> {
    let is_quiet = words.is_quiet();
    let exptime = match words.count - usize::from(is_quiet) {
        1 => Some(0),
        _ => signed(words.at(1)),
    };
    match exptime {
        Some(exptime) => Request::Everywhere(Everywhere::Flush { exptime, is_quiet }),
        None => Request::Reply(if is_quiet { b"" } else { EXPTIME }),
    }
}

fn limit(words: &Words<'_>) -> Request<'static> {
    let is_quiet = words.is_quiet();
    let answer = |reply| Request::Reply(if is_quiet { b"" } else { reply });
    match unsigned(words.at(1)) {
        _ if !(2..=3).contains(&words.count) => Request::Reply(ERROR),
        None => answer(ERROR),
        Some(mebibytes) if mebibytes < 8 => {
            answer(b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n")
        }
        Some(mebibytes) => {
            let memory_bytes = mebibytes.saturating_mul(1 << 20);
            Request::Everywhere(Everywhere::Limit { memory_bytes, is_quiet })
        }
    }
}

fn stats(words: &Words<'_>) -> Request<'static> {
    match words.at(1) {
        b"" => Request::Everywhere(Everywhere::Stats),
        b"settings" => Request::Everywhere(Everywhere::Settings),
        b"reset" => Request::Everywhere(Everywhere::ResetStats),
        b"items" => Request::Everywhere(Everywhere::Items),
        b"slabs" => Request::Everywhere(Everywhere::Slabs),
        b"conns" => Request::Everywhere(Everywhere::Connections),
        b"sizes" => Request::Reply(b"STAT sizes_status disabled\r\nEND\r\n"),
        b"cachedump" => dump(words),
        b"detail" => detail(words),
        _ => Request::Reply(ERROR),
    }
}

/// Counters by prefix do not exist: they stay off, and their report has no lines.
fn detail(words: &Words<'_>) -> Request<'static> {
    Request::Reply(match words.at(2) {
        b"off" => OK,
        b"dump" => super::replies::END,
        b"on" => b"SERVER_ERROR counters by prefix are not supported\r\n",
        _ => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n",
    })
}

/// All items are of one class, with the number 1; 0 items for as many as a reply takes.
fn dump(words: &Words<'_>) -> Request<'static> {
    if words.count < 4 {
        return Request::Reply(b"CLIENT_ERROR bad command line\r\n");
    }
    match (unsigned(words.at(2)), unsigned(words.at(3))) {
        (Some(1), Some(items)) => {
            let items = if items == 0 { usize::MAX } else { items as usize };
            Request::Everywhere(Everywhere::Dump { items })
        }
        (Some(0..=63), Some(_)) => Request::Reply(super::replies::END),
        (Some(_), Some(_)) => Request::Reply(b"CLIENT_ERROR Illegal slab id\r\n"),
        _ => Request::Reply(BAD_FORMAT),
    }
}
