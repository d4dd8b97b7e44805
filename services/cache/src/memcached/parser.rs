//! Divides the bytes of a connection into requests.

use super::operation::{Action, Operation, Refusal, Request};
use super::{classic, meta, replies};
use crate::limits::{KEY_BYTES_MAX, KEYS_LINE_BYTES_MAX, LINE_BYTES_MAX, VALUE_BYTES_MAX};

/// The parser of a connection.
///
/// The owner keeps the bytes that have come, and calls [`Parser::next`] with them until more are needed. Bytes that a
/// step has used are not given again.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    /// The state before the last step.
    before: State,
    /// Bytes of an unfinished line in which its end was looked for.
    scanned: usize,
    /// A key that came in base64.
    decoded: DecodedKey,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// At the beginning of a line.
    #[default]
    Line,
    /// In a line of keys that has come completely.
    Keys(Action),
    /// In a value that was refused, with the number of its bytes that are still to come.
    Skip(usize),
}

/// A key in place of the text that encodes it.
#[derive(Debug)]
pub(super) struct DecodedKey {
    pub(super) bytes: [u8; KEY_BYTES_MAX],
    pub(super) length: usize,
}

impl Default for DecodedKey {
    fn default() -> Self {
        Self { bytes: [0; KEY_BYTES_MAX], length: 0 }
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step<'a> {
    /// More bytes are needed.
    More {
        /// The number of bytes with which the next step can be made; 0 if it is not known.
        needed: usize,
    },
    /// A request.
    Done {
        /// The bytes that belong to the request, and that the owner can drop.
        used: usize,
        /// The request.
        request: Request<'a>,
    },
}

pub(super) enum Line<'a> {
    /// A request without a value.
    Request(Request<'a>),
    /// One or more keys follow at this place of the line.
    Keys { action: Action, start: usize },
    /// A value of this length follows.
    Value { operation: Operation<'a>, bytes: usize, is_quiet: bool },
    /// A value of this length follows, and the command is wrong.
    Wrong { reply: &'static [u8], bytes: usize },
}

impl Parser {
    /// A parser at the beginning of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the next step with the bytes that have come.
    pub fn next<'a>(&'a mut self, input: &'a [u8]) -> Step<'a> {
        self.before = self.state;
        match self.state {
            State::Line => self.line(input, None),
            State::Keys(action) => self.next_key(action, input),
            State::Skip(_) if input.is_empty() => Step::More { needed: 0 },
            State::Skip(left) => {
                let used = left.min(input.len());
                self.state = if used < left { State::Skip(left - used) } else { State::Line };
                Step::Done { used, request: Request::Reply(b"") }
            }
        }
    }

    /// Takes the last step back: its request was not run, and its bytes come again.
    pub fn take_back(&mut self) {
        self.state = self.before;
    }

    /// Makes the next step with a value that has not come completely, and for which the owner has no memory: returns
    /// the refusal of the request, and skips the value.
    ///
    /// # Panics
    /// If [`Parser::next`] has not said how many bytes of this input it needs.
    pub fn refuse<'a>(&'a mut self, input: &'a [u8]) -> Step<'a> {
        assert!(matches!(self.state, State::Line), "the parser is within a request");
        let step = self.line(input, Some(Refusal::NoMemory));
        assert!(matches!(step, Step::Done { .. }), "a request of known length");
        step
    }

    /// Parses a line. With `refusal` a value is refused in any case.
    fn line<'a>(&'a mut self, input: &'a [u8], refusal: Option<Refusal>) -> Step<'a> {
        let scanned = std::mem::take(&mut self.scanned);
        let Some(end) = memchr::memchr(b'\n', &input[scanned..]) else {
            let step = unfinished(input);
            if matches!(step, Step::More { .. }) {
                self.scanned = input.len();
            }
            return step;
        };
        let end = scanned + end;
        if end > line_bytes_max(input) {
            return line_too_long(input);
        }
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        let used = end + 1;
        let line = match meta::is_meta(line) {
            true => meta::parse(line, &mut self.decoded),
            false => classic::parse(line),
        };
        match line {
            Line::Request(request) => Step::Done { used, request },
            Line::Keys { action, start } => {
                self.state = State::Keys(action);
                Step::Done { used: start, request: Request::Reply(b"") }
            }
            Line::Wrong { reply, bytes } => {
                self.state = State::Skip(bytes + 2);
                Step::Done { used, request: Request::Reply(reply) }
            }
            Line::Value { operation, bytes, is_quiet } => {
                let too_large = (bytes > VALUE_BYTES_MAX).then_some(Refusal::TooLarge);
                let Some(reason) = refusal.or(too_large) else {
                    return value(operation, bytes, is_quiet, used, input);
                };
                self.state = State::Skip(bytes + 2);
                let action = operation.action.refused(reason, is_quiet);
                let operation = Operation { action, value: b"", flags: b"", ..operation };
                Step::Done { used, request: Request::Operation(operation) }
            }
        }
    }

    /// Takes a key from a line of keys, or the end of the line.
    fn next_key<'a>(&mut self, action: Action, input: &'a [u8]) -> Step<'a> {
        let start = input.iter().position(|byte| *byte != b' ').unwrap_or(input.len());
        let rest = &input[start..];
        let end = rest.iter().position(|byte| matches!(byte, b' ' | b'\n'));
        let Some(end) = end else { unreachable!("the line was complete") };
        let key = match rest[end] {
            b'\n' => rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]),
            _ => &rest[..end],
        };
        if key.is_empty() {
            self.state = State::Line;
            return Step::Done { used: start + end + 1, request: Request::Reply(replies::END) };
        }
        let operation = Operation { action, key, value: b"", flags: b"" };
        Step::Done { used: start + key.len(), request: Request::Operation(operation) }
    }
}

/// Returns the limit of the line that begins here.
fn line_bytes_max(input: &[u8]) -> usize {
    let is_keys =
        [&b"get "[..], b"gets ", b"gat ", b"gats "].iter().any(|it| input.starts_with(it));
    if is_keys { KEYS_LINE_BYTES_MAX } else { LINE_BYTES_MAX }
}

/// A line whose end has not come.
fn unfinished(input: &[u8]) -> Step<'_> {
    match input.len() <= line_bytes_max(input) {
        true => Step::More { needed: 0 },
        false => line_too_long(input),
    }
}

fn line_too_long(input: &[u8]) -> Step<'_> {
    let reply = Request::Close(b"CLIENT_ERROR line too long\r\n");
    Step::Done { used: input.len(), request: reply }
}

/// A request whose value may have come.
fn value<'a>(
    operation: Operation<'a>,
    bytes: usize,
    is_quiet: bool,
    line: usize,
    input: &'a [u8],
) -> Step<'a> {
    let used = line + bytes + 2;
    let Some(rest) = input.get(line..used) else { return Step::More { needed: used } };
    let Some(value) = rest.strip_suffix(b"\r\n") else {
        let is_meta = matches!(operation.action, Action::Meta(..));
        let reply = if is_quiet && !is_meta { b"" } else { replies::BAD_CHUNK };
        return Step::Done { used, request: Request::Reply(reply) };
    };
    Step::Done { used, request: Request::Operation(Operation { value, ..operation }) }
}
