//! Methods with streams: a line for each message, in both directions.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use petrel::client::{ClientConfig, wait};
use petrel::service::Metadata;
use petrel::stream::{Receiver, Sender};
use petrel_command::Outcome;
use petrel_command::client::connect_service;

use super::*;

/// Messages between the stream and standard output.
const MESSAGES_MAX: usize = 64;

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

/// News for the thread that prints.
enum News {
    Message(Vec<u8>),
    /// The input is no message.
    Wrong(Failure),
    Ended(Result<(), petrel::Error>, Metadata),
}

/// Begins the stream, sends the messages of the input, and prints those of the server, until the stream ends.
pub(super) fn run(
    args: &CallArgs,
    (named, medium): (Named, &'static str),
    output: Output,
) -> Result<Outcome, Failure> {
    let ServerArgs { address, transport, endpoint, timeout } = &args.server;
    let mut config = ClientConfig::default();
    config.timeout = *timeout;
    let client = connect_service(address, *endpoint, transport.allowed(), &config)?;
    let begin = |call: petrel::stream::StreamCall<_>, (key, value): &(String, Vec<u8>)| {
        call.metadata(key, value)
    };
    let call = args.metadata.iter().fold(client.stream(named.number), begin);
    let begun = Instant::now();
    let elapsed_ns = || begun.elapsed().as_nanos() as u64;
    let failed = |error: &petrel::Error| {
        print_failure(error, medium, elapsed_ns(), output)?;
        Ok::<_, Failure>(Outcome::Failure)
    };
    let (sender, receiver) = match call.start_wait() {
        Ok(ends) => ends,
        Err(error) => return failed(&error),
    };
    let (tell, told) = sync_channel(MESSAGES_MAX);
    let (named, data, reads) = (Arc::new(named), args.data.clone(), tell.clone());
    let sends = Arc::clone(&named);
    // The threads end with the process: an input may never end.
    thread::spawn(move || {
        if let Err(failure) = send(&sends, &data, sender) {
            let _ = tell.send(News::Wrong(failure));
        }
    });
    thread::spawn(move || receive(receiver, &reads));
    let mut messages = 0;
    loop {
        match told.recv().map_err(|_| Failure::because("a thread of the stream has ended"))? {
            News::Message(message) => print(&named.reply(&message)?, output)?,
            News::Wrong(failure) => return Err(failure),
            News::Ended(outcome, metadata) => {
                print_metadata(&metadata);
                if let Err(error) = outcome {
                    return failed(&error);
                }
                let (status, metadata) = (Status::Ok.name(), by_key(&metadata));
                output.record(&Finished {
                    status,
                    messages,
                    metadata,
                    elapsed_ns: elapsed_ns(),
                })?;
                return Ok(Outcome::Success);
            }
        }
        messages += 1;
    }
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

fn receive(mut receiver: Receiver<Vec<u8>>, tell: &SyncSender<News>) {
    loop {
        let news = match wait(receiver.next()) {
            Some(Ok(message)) => News::Message(message),
            Some(Err(error)) => News::Ended(Err(error), receiver.metadata()),
            None => News::Ended(Ok(()), receiver.metadata()),
        };
        let is_end = matches!(news, News::Ended(..));
        if tell.send(news).is_err() || is_end {
            return;
        }
    }
}

/// Prints a message, with the end of the line.
fn print(message: &[u8], output: Output) -> io::Result<()> {
    if output.is_json() {
        let (text, hex) = text_or_hex(message);
        return output.record(&Message { length_bytes: message.len(), text, hex });
    }
    output.bytes(&[message, b"\n"].concat())
}
