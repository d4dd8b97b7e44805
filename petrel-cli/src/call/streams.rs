//! Methods with streams: a line for each message, in both directions.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io::{self, BufRead, BufReader};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Instant;

use petrel::client::{ClientConfig, wait};
use petrel::endpoint::EndpointId;
use petrel::stream::{RawEnds, Sender};
use petrel_command::Outcome;

use super::*;

/// A message of the server in the format of `--json`: `text` if the bytes are UTF-8, else `hex`.
#[derive(Serialize)]
struct Message {
    length_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

/// The line behind the messages of a stream that has ended well.
#[derive(Serialize)]
struct Finished {
    status: &'static str,
    messages: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    elapsed_ns: u64,
}

/// The failure of the thread that reads the input, and the waker of the stream's future.
#[derive(Default)]
struct Input {
    failure: Option<Failure>,
    waker: Option<Waker>,
}

/// Begins the stream, sends the messages of the input, and prints those of the server, until the stream ends.
pub(super) fn run(
    args: &CallArgs,
    (client, named): (&mut Client, Named),
    output: Output,
) -> Result<Outcome, Failure> {
    let medium = client.transport();
    let mut config = ClientConfig::default();
    config.timeout = args.server.timeout;
    let server = (client.address, EndpointId(args.server.endpoint));
    let begin = |call: petrel::stream::StreamCall<_>, (key, value): &(String, Vec<u8>)| {
        call.metadata(key, value)
    };
    let call = client.endpoint.client([server], config).stream(named.number);
    let call = args.metadata.iter().fold(call, begin);
    client.endpoint.block_on(exchange(call, (Arc::new(named), args.data.clone()), medium, output))
}

async fn exchange(
    call: petrel::stream::StreamCall<RawEnds>,
    (named, data): (Arc<Named>, Payload),
    medium: &'static str,
    output: Output,
) -> Result<Outcome, Failure> {
    let begun = Instant::now();
    let elapsed_ns = || begun.elapsed().as_nanos() as u64;
    let failed = |error: &petrel::Error| {
        print_failure(error, medium, elapsed_ns(), output)?;
        Ok::<_, Failure>(Outcome::Failure)
    };
    let (sender, mut receiver) = match call.start().await {
        Ok(ends) => ends,
        Err(error) => return failed(&error),
    };
    let input = Arc::new(Mutex::<Input>::default());
    let (sends, reads) = (Arc::clone(&named), Arc::clone(&input));
    // The thread ends with the process: an input may never end.
    thread::spawn(move || {
        if let Err(failure) = send(&sends, &data, sender) {
            let mut input = reads.lock().unwrap_or_else(PoisonError::into_inner);
            input.failure = Some(failure);
            input.waker.take().into_iter().for_each(Waker::wake);
        }
    });
    let mut messages = 0;
    loop {
        let next = poll_fn(|cx| {
            let mut input = input.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(failure) = input.failure.take() {
                return Poll::Ready(Err(failure));
            }
            input.waker = Some(cx.waker().clone());
            pin!(receiver.next()).poll(cx).map(Ok)
        });
        match next.await? {
            Some(Ok(message)) => print(&named.reply(&message)?, output)?,
            Some(Err(error)) => {
                print_metadata(&receiver.metadata());
                return failed(&error);
            }
            None => break,
        }
        messages += 1;
    }
    let metadata = receiver.metadata();
    print_metadata(&metadata);
    let (status, metadata) = (Status::Ok.name(), by_key(&metadata));
    output.record(&Finished { status, messages, metadata, elapsed_ns: elapsed_ns() })?;
    Ok(Outcome::Success)
}

/// Sends the input: as one request, or as a message for each line if the client streams.
fn send(named: &Named, data: &Payload, mut sender: Sender<Vec<u8>>) -> Result<(), Failure> {
    // If the stream is over, the receiver has the reason.
    let mut send =
        |message: Vec<u8>| Ok::<_, Failure>(wait(sender.send(named.request(message)?)).is_ok());
    if !named.streams.0 {
        return send(read(data)?).map(drop);
    }
    let lines: Box<dyn BufRead> = match data {
        Payload::Stdin => Box::new(io::stdin().lock()),
        Payload::Text(text) => Box::new(text.as_bytes()),
        Payload::File(path) => {
            let wrong = |error: io::Error| format!("cannot read {}: {error}", path.display());
            let file = File::open(path).map_err(|error| Failure::because(wrong(error)))?;
            Box::new(BufReader::new(file))
        }
    };
    for line in lines.split(b'\n') {
        let line = line?;
        let is_blank = named.has_json() && line.trim_ascii().is_empty();
        if !is_blank && !send(line)? {
            break;
        }
    }
    Ok(())
}

/// Prints a message, with the end of the line.
fn print(message: &[u8], output: Output) -> io::Result<()> {
    if output.is_json() {
        let (text, hex) = text_or_hex(message);
        return output.record(&Message { length_bytes: message.len(), text, hex });
    }
    output.bytes(&[message, b"\n"].concat())
}
