//! The methods that `petrel serve` answers, by number and name.
//!
//! | number | name | request | response |
//! | --- | --- | --- | --- |
//! | 1 | echo | any bytes | the request's bytes |
//! | 2 | sink | any bytes | length and checksum of the request, two `u64` |
//! | 3 | source | size `u32`, seed `u64` | this many bytes of the [`Pattern`] of the seed |
//! | 4 | fail | status `u8`, text | none: the call ends with the requested status and text |
//! | 5 | hello | a name | a greeting |
//! | 6 | sample | any bytes | length and sum of the [`stamps`] in every 8 KiB, two `u64` |
//! | 7 | samples | any bytes | length and sum of the stamps in every KiB, two `u64` |
//! | 65535 | health | empty, or a method `u16` | one byte: 1 serving, 2 not serving, 3 unknown (every endpoint answers) |
//!
//! Numbers are little-endian.

use petrel::endpoint::{HEALTH_METHOD, Handled};
use petrel::{Context, Endpoint, Request, Status};
use petrel_proto::limits::MESSAGE_BYTES_DEFAULT;

use crate::payload::{Pattern, checksum, stamps};

/// Echoes the request.
pub const ECHO: u16 = 1;
/// Consumes the request, and returns its length and checksum.
pub const SINK: u16 = 2;
/// Returns bytes of a pattern.
pub const SOURCE: u16 = 3;
/// Fails with the requested status and text.
pub const FAIL: u16 = 4;
/// Greets.
pub const HELLO: u16 = 5;
/// Returns length and sum of the stamps in every 8 KiB.
pub const SAMPLE: u16 = 6;
/// Returns length and sum of the stamps in every KiB.
pub const SAMPLES: u16 = 7;

/// Names of the methods.
pub const NAMES: [(&str, u16); 8] = [
    ("echo", ECHO),
    ("sink", SINK),
    ("source", SOURCE),
    ("fail", FAIL),
    ("hello", HELLO),
    ("sample", SAMPLE),
    ("samples", SAMPLES),
    ("health", HEALTH_METHOD),
];

/// Bytes of a response of [`SINK`].
pub const SINK_REPLY_BYTES: usize = 16;

/// Bytes of a response of [`SAMPLE`] and [`SAMPLES`].
pub const SAMPLE_REPLY_BYTES: usize = SINK_REPLY_BYTES;

/// Bytes of a request of [`SOURCE`].
const SOURCE_REQUEST_BYTES: usize = 12;

/// Registers all methods.
pub fn register(endpoint: &mut Endpoint) {
    endpoint.on(ECHO, |_, cx, request| echo(cx, request));
    endpoint.on(SINK, |_, cx, request| sink(cx, request));
    endpoint.on(SOURCE, |_, cx, request| source(cx, request));
    endpoint.on(FAIL, |_, cx, request| fail(cx, request));
    endpoint.on(HELLO, |_, cx, request| hello(cx, request));
    endpoint.on(SAMPLE, |_, cx, request| sample(cx, request));
    endpoint.on(SAMPLES, |_, cx, request| samples(cx, request));
}

/// Returns the answer of [`SINK`].
pub fn sink_reply(length: usize, checksum: u64) -> [u8; SINK_REPLY_BYTES] {
    let mut reply = [0; SINK_REPLY_BYTES];
    reply[..8].copy_from_slice(&(length as u64).to_le_bytes());
    reply[8..].copy_from_slice(&checksum.to_le_bytes());
    reply
}

/// Returns the answer of [`SAMPLE`] and [`SAMPLES`].
#[inline]
pub fn sample_reply(length: usize, sum: u64) -> [u8; SAMPLE_REPLY_BYTES] {
    sink_reply(length, sum)
}

/// Returns the request that makes [`SOURCE`] send `size` bytes.
pub fn source_request(size: u32, seed: u64) -> [u8; SOURCE_REQUEST_BYTES] {
    let mut request = [0; SOURCE_REQUEST_BYTES];
    request[..4].copy_from_slice(&size.to_le_bytes());
    request[4..].copy_from_slice(&seed.to_le_bytes());
    request
}

/// Returns the pattern that [`SOURCE`] sends.
pub fn source_pattern(seed: u64) -> Pattern {
    Pattern::new(seed, 0)
}

fn echo(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let length = request.data().len();
    request.reply_with(cx, length, |request, reply| {
        reply.copy_from_slice(request);
        length
    })
}

fn sink(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let data = request.data();
    let reply = sink_reply(data.len(), checksum(data));
    request.reply(cx, &reply)
}

fn sample(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    sampled(cx, request, stamps::SPARSE)
}

fn samples(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    sampled(cx, request, stamps::DENSE)
}

fn sampled(cx: &mut Context<'_>, request: Request<'_>, every: usize) -> Handled {
    let data = request.data();
    let reply = sample_reply(data.len(), stamps::sum(data, every));
    request.reply(cx, &reply)
}

fn source(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let Some((size, seed)) = parse_source(request.data()) else {
        let text = "a request of `source` is 12 bytes: size u32, seed u64, little-endian";
        return request.fail(cx, Status::InvalidArgument, text);
    };
    if size > MESSAGE_BYTES_DEFAULT {
        let text = format!("`source` sends at most {MESSAGE_BYTES_DEFAULT} bytes");
        return request.fail(cx, Status::OutOfRange, &text);
    }
    let size = size as usize;
    request.reply_with(cx, size, |_, reply| {
        source_pattern(seed).fill(reply);
        size
    })
}

fn parse_source(data: &[u8]) -> Option<(u32, u64)> {
    let data: &[u8; SOURCE_REQUEST_BYTES] = data.try_into().ok()?;
    let (size, seed) = data.split_first_chunk()?;
    Some((u32::from_le_bytes(*size), u64::from_le_bytes(seed.try_into().ok()?)))
}

fn fail(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let Some((status, text)) = parse_fail(request.data()) else {
        let text = "a request of `fail` is a status from 1 to 16 in one byte, and a text";
        return request.fail(cx, Status::InvalidArgument, text);
    };
    request.fail(cx, status, &text)
}

fn parse_fail(data: &[u8]) -> Option<(Status, String)> {
    let (&code, text) = data.split_first()?;
    let status = Status::from_code(code);
    let is_failure = status != Status::Ok && status.code() == code;
    is_failure.then(|| (status, String::from_utf8_lossy(text).into_owned()))
}

fn hello(cx: &mut Context<'_>, request: Request<'_>) -> Handled {
    let name = String::from_utf8_lossy(request.data()).into_owned();
    request.reply(cx, format!("Hello, {name}!").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_source__reads_what_source_request_writes() {
        assert_eq!(parse_source(&source_request(7, 9)), Some((7, 9)));
        assert_eq!(parse_source(&[0; 11]), None);
        assert_eq!(parse_source(&[0; 13]), None);
    }

    #[test]
    fn parse_fail__takes_failures_only() {
        assert_eq!(parse_fail(b"\x05gone"), Some((Status::NotFound, "gone".to_owned())));
        for wrong in [&b""[..], b"\x00fine", b"\x11beyond"] {
            assert_eq!(parse_fail(wrong), None);
        }
    }

    #[test]
    fn names__are_unique_and_no_numbers() {
        for (index, (name, number)) in NAMES.iter().enumerate() {
            assert!(name.parse::<u16>().is_err());
            assert!(NAMES[..index].iter().all(|(other, no)| other != name && no != number));
        }
    }
}
