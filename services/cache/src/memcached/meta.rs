//! The meta commands.

use super::classic::VALUE_NUMBER_MAX;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::flags;
use super::operation::{Action, MetaCommand, Operation, Request};
use super::parser::{DecodedKey, Line};
use super::replies::{BAD_FORMAT, ERROR};
use crate::limits::KEY_BYTES_MAX;
use crate::numbers::unsigned;

pub(super) fn is_meta(line: &[u8]) -> bool {
    matches!(
        line,
        [b'm', b'g' | b's' | b'd' | b'a' | b'e' | b'n']
            | [b'm', b'g' | b's' | b'd' | b'a' | b'e' | b'n', b' ', ..]
    )
}

/// Parses a line without its end. A key in base64 is decoded to `decoded`.
pub(super) fn parse<'a>(line: &'a [u8], decoded: &'a mut DecodedKey) -> Line<'a> {
    let command = match line[1] {
        b'g' => MetaCommand::Get,
        b's' => MetaCommand::Set,
        b'd' => MetaCommand::Delete,
        b'a' => MetaCommand::Count,
        b'e' => MetaCommand::Debug,
        _ => return refuse(b"MN\r\n"),
    };
    let (key, rest) = word(&line[2..]);
    if key.is_empty() {
        return refuse(if command == MetaCommand::Debug { BAD_FORMAT } else { ERROR });
    }
    if key.len() > KEY_BYTES_MAX {
        return refuse(BAD_FORMAT);
    }
    let (bytes, flags) = match command {
        MetaCommand::Set => {
            let (bytes, rest) = word(rest);
            let length = unsigned(bytes).and_then(|bytes| usize::try_from(bytes).ok());
            let Some(bytes) = length.filter(|bytes| *bytes <= VALUE_NUMBER_MAX) else {
                return refuse(BAD_FORMAT);
            };
            (Some(bytes), rest)
        }
        _ => (None, rest),
    };
    let wrong = |reply| match bytes {
        Some(bytes) => Line::Wrong { reply, bytes },
        None => refuse(reply),
    };
    let params = match flags::parse(command, flags) {
        Ok(params) => params,
        Err(reply) => return wrong(reply),
    };
    let key = match params.is_base64 {
        false => key,
        true => match decode(key, decoded) {
            Some(key) => key,
            None => return wrong(b"CLIENT_ERROR error decoding key\r\n"),
        },
    };
    let operation = Operation { action: Action::Meta(command, params), key, value: b"", flags };
    match bytes {
        Some(bytes) => Line::Value { operation, bytes, is_quiet: params.is_quiet },
        None => Line::Request(Request::Operation(operation)),
    }
}

fn refuse<'a>(reply: &'static [u8]) -> Line<'a> {
    Line::Request(Request::Reply(reply))
}

/// Returns the first word of a text, and the rest.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    let start = text.iter().position(|byte| *byte != b' ').unwrap_or(text.len());
    let text = &text[start..];
    text.split_at(text.iter().position(|byte| *byte == b' ').unwrap_or(text.len()))
}

fn decode<'a>(text: &[u8], decoded: &'a mut DecodedKey) -> Option<&'a [u8]> {
    // The text of 250 bytes at most encodes fewer bytes than the buffer has.
    decoded.length = STANDARD.decode_slice(text, &mut decoded.bytes).ok()?;
    let key = &decoded.bytes[..decoded.length];
    (!key.is_empty()).then_some(key)
}
