//! `petrel call`: makes one call and writes the reply, or the messages of a stream, to standard output.

mod streams;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use petrel::endpoint::{HEALTH_METHOD, Health};
use petrel::service::{Entry, Metadata};
use petrel::{Execution, Status};
use petrel_command::Outcome;
use petrel_command::args::Payload;
use petrel_command::client::{Client, ClientConfig};
use petrel_command::failure::Failure;
use petrel_command::load::executed;
use petrel_command::output::Output;
use petrel_command::text::{clean, to_hex};
use petrel_command::units::format_ns;
use serde::Serialize;

use crate::cli::{CallArgs, ServerArgs};
use crate::health;
use crate::typed::Named;

/// The reply in the format of `--json`; `text` if the bytes are UTF-8, else `hex`.
#[derive(Serialize)]
struct Answer {
    transport: &'static str,
    status: &'static str,
    length_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    elapsed_ns: u64,
}

/// A detail of an error, with its value in hexadecimal digits.
#[derive(Serialize)]
struct Detail<'a> {
    name: &'a str,
    hex: String,
}

/// The end of a call without a reply.
#[derive(Serialize)]
struct Ended<'a> {
    transport: &'static str,
    status: &'static str,
    message: &'a str,
    #[serde(rename = "may_have_executed")]
    executed: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<Detail<'a>>,
    elapsed_ns: u64,
}

/// Makes the call and prints its reply.
pub(crate) fn run(args: &CallArgs, output: Output) -> Result<Outcome, Failure> {
    let mut client = Client::<()>::connect(&args.server.address, &client_config(&args.server))?;
    let name = args.name.as_deref();
    let named = name.map(|name| Named::find(&mut client, name, args.server.timeout)).transpose()?;
    let named = match named {
        Some(named) if named.streams != (false, false) => {
            return streams::run(args, (&mut client, named), output);
        }
        other => other,
    };
    let data = read(&args.data)?;
    let (method, data) = match &named {
        Some(named) => enclosed(named, &args.metadata, named.request(data)?)?,
        None => (args.method.0, data),
    };
    let transport = client.transport();
    let started = Instant::now();
    let session = client.sessions[0];
    // The server learns the time limit from the request, and the end of the call from a CANCEL.
    let call = client.endpoint.call(session, method, &data).timeout(args.server.timeout);
    let reply = call.wait().map_err(|failure| explain(failure, args.server.timeout));
    let elapsed_ns = started.elapsed().as_nanos() as u64;
    match reply {
        Ok(response) => {
            let (response, metadata) = match &named {
                Some(named) if named.envelope.is_some() => {
                    let split = Metadata::split(&response);
                    let malformed = || Failure::because("the metadata of the reply are malformed");
                    let (message, metadata) = split.ok_or_else(malformed)?;
                    (named.reply(message)?, metadata)
                }
                Some(named) => (named.reply(&response)?, Metadata::new()),
                None => (response.to_vec(), Metadata::new()),
            };
            match health_word(method, &data, &response) {
                Some(word) if !output.is_json() => output.line(word)?,
                _ => print_response((&response, &metadata), transport, elapsed_ns, output)?,
            }
            Ok(Outcome::Success)
        }
        Err(failure) => {
            print_failure(&failure, transport, elapsed_ns, output)?;
            Ok(Outcome::Failure)
        }
    }
}

/// Returns the number and the request of a call by name: with metadata behind the message, if the server takes any.
fn enclosed(
    named: &Named,
    entries: &[(String, Vec<u8>)],
    mut request: Vec<u8>,
) -> Result<(u16, Vec<u8>), Failure> {
    let Some(number) = named.envelope else {
        return match entries {
            [] => Ok((named.number, request)),
            _ => Err(Failure::new(Status::Unimplemented, "the server takes no metadata")),
        };
    };
    let mut metadata = Metadata::new();
    for (key, value) in entries {
        metadata.insert(key, value)?;
    }
    metadata.append_to(&mut request);
    Ok((number, request))
}

/// Returns the word of an endpoint's health, whose code on the wire is a control character.
fn health_word(method: u16, request: &[u8], response: &[u8]) -> Option<&'static str> {
    let is_health = method == HEALTH_METHOD && matches!(request.len(), 0 | 2);
    match (is_health, response) {
        (true, [code]) => Health::from_code(*code).map(health::word),
        _ => None,
    }
}

pub(crate) fn client_config(server: &ServerArgs) -> ClientConfig {
    ClientConfig::new(server.endpoint, server.transport.allowed(), server.timeout)
}

fn read(payload: &Payload) -> Result<Vec<u8>, Failure> {
    match payload {
        Payload::Text(text) => Ok(text.clone().into_bytes()),
        Payload::File(path) => fs::read(path)
            .map_err(|error| Failure::because(format!("cannot read {}: {error}", path.display()))),
        Payload::Stdin => {
            let mut data = Vec::new();
            io::stdin().lock().read_to_end(&mut data)?;
            Ok(data)
        }
    }
}

/// Returns the failure, with the command line's time limit in its message if the limit ended the call.
fn explain(failure: petrel::Error, timeout: Duration) -> petrel::Error {
    let has_expired = failure.status == Status::DeadlineExceeded
        && matches!(failure.execution, Execution::NotSent | Execution::MayHaveExecuted);
    match has_expired {
        true => failure.with_message(format!("no reply within {timeout:?}")),
        false => failure,
    }
}

/// Returns the value of an entry of metadata as text.
fn shown(entry: Entry<'_>) -> String {
    match str::from_utf8(entry.value) {
        Ok(text) if !entry.key.ends_with("-bin") => text.to_owned(),
        _ => to_hex(entry.value),
    }
}

fn by_key(metadata: &Metadata) -> BTreeMap<String, String> {
    metadata.iter().map(|entry| (entry.key.to_owned(), shown(entry))).collect()
}

fn print_metadata(metadata: &Metadata) {
    for entry in metadata.iter() {
        eprintln!("metadata {}: {}", entry.key, clean(&shown(entry)));
    }
}

/// Returns the bytes as text if they are UTF-8, else as hexadecimal digits.
fn text_or_hex(bytes: &[u8]) -> (Option<String>, Option<String>) {
    let text = str::from_utf8(bytes).ok().map(str::to_owned);
    let hex = text.is_none().then(|| to_hex(bytes));
    (text, hex)
}

fn print_response(
    (response, metadata): (&[u8], &Metadata),
    transport: &'static str,
    elapsed_ns: u64,
    output: Output,
) -> io::Result<()> {
    if !output.is_json() {
        print_metadata(metadata);
        return output.bytes(response);
    }
    let ((text, hex), length_bytes) = (text_or_hex(response), response.len());
    let (status, metadata) = (Status::Ok.name(), by_key(metadata));
    output.record(&Answer { transport, status, length_bytes, text, hex, metadata, elapsed_ns })
}

fn print_failure(
    failure: &petrel::Error,
    transport: &'static str,
    elapsed_ns: u64,
    output: Output,
) -> io::Result<()> {
    eprintln!("petrel: {}, after {}", clean(&failure.to_string()), format_ns(elapsed_ns));
    let details = failure.details().map(|one| Detail { name: one.name, hex: to_hex(one.value) });
    let details: Vec<_> = details.collect();
    for Detail { name, hex } in &details {
        eprintln!("detail {}: {hex}", clean(name));
    }
    let (status, message) = (failure.status.name(), &failure.message);
    let executed = executed(failure.execution);
    output.record(&Ended { transport, status, message, executed, details, elapsed_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_word__only_for_an_answer_about_health() {
        for (request, response, word) in [
            (&b""[..], &b"\x01"[..], Some("serving")),
            (b"\x07\x00", b"\x03", Some("unknown: the server has no such method")),
            (b"\x01", b"\x01", None),
            (b"", b"\x09", None),
            (b"", b"", None),
        ] {
            assert_eq!(health_word(HEALTH_METHOD, request, response), word);
        }
        assert_eq!(health_word(1, b"", b"\x01"), None);
    }

    #[test]
    fn read__takes_text_and_names_missing_files() {
        assert_eq!(read(&Payload::Text("abc".into())).unwrap(), b"abc");
        let missing = read(&Payload::File("/no/such/file".into())).unwrap_err();
        assert!(missing.to_string().contains("/no/such/file"));
    }
}
