//! `petrel kv export` and `petrel kv import`: lines of JSON.

use std::collections::{HashSet, VecDeque};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::mem;
use std::path::Path;

use petrel::Status;
use petrel::task::{Handle, Task};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_kv::client::Batched;
use petrel_kv::command::{BatchBuffer, BatchError, Op};
use petrel_kv::{KvClient, KvError};
use serde::{Deserialize, Serialize};

use super::backup::{SavedRecord, begin};
use super::operations::ScanRecord;
use super::whole_file::WholeFile;
use super::{Cluster, failure_of};
use crate::cli::{FormatArgs, KvExportArgs, KvImportArgs};

/// Most bytes of a line: the longest key and value with each byte escaped as `\u0000`.
const LINE_BYTES_MAX: u64 = 7 << 20;

/// Bytes of keys and values in a batch, unless a single pair has more.
const BATCH_BYTES: usize = 64 << 10;

/// Batches on their way at a time.
const BATCHES_MAX: usize = 8;

/// Bad lines that are named; the others are counted.
const NAMED_MAX: u64 = 20;

/// A line of an import.
#[derive(Deserialize)]
struct Line {
    key: Option<String>,
    key_hex: Option<String>,
    value: Option<String>,
    value_hex: Option<String>,
}

#[derive(Serialize)]
struct ImportRecord {
    keys: u64,
    bad_lines: u64,
}

pub(super) fn export(args: &KvExportArgs, output: Output) -> Result<Outcome, Failure> {
    let mut cluster = Cluster::new(&args.cluster)?;
    if args.file == Path::new("-") {
        export_to(&mut cluster, args, output, &mut BufWriter::new(io::stdout().lock()))?;
        return Ok(Outcome::Success);
    }
    let mut file = WholeFile::create(&args.file)?;
    let record = export_to(&mut cluster, args, output, &mut file)?;
    file.finish()?;
    output.line(record.to_string())?;
    output.record(&record)?;
    Ok(Outcome::Success)
}

fn export_to(
    cluster: &mut Cluster,
    args: &KvExportArgs,
    output: Output,
    out: &mut impl Write,
) -> Result<SavedRecord, Failure> {
    let mut save = begin(cluster, args.stale)?;
    let head = save.head();
    let (mut progress, mut keys) = (output.progress(head.keys, "keys"), 0);
    while let Some(block) = cluster.run(async |_| save.next_block().await)? {
        for pair in block.pairs().iter() {
            let line = serde_json::to_string(&ScanRecord::new(&pair, args.format));
            writeln!(out, "{}", line.map_err(io::Error::from)?)?;
            keys += 1;
        }
        progress.set(keys);
    }
    out.flush()?;
    Ok(SavedRecord::new(head))
}

pub(super) fn import(args: &KvImportArgs, output: Output) -> Result<Outcome, Failure> {
    let cluster = Cluster::new(&args.cluster)?;
    let named = |error: io::Error| {
        Failure::new(Status::Unavailable, format!("{}: {error}", args.file.display()))
    };
    let (input, bytes): (Box<dyn Read>, u64) = match args.file == Path::new("-") {
        true => (Box::new(io::stdin()), 0),
        false => {
            let file = File::open(&args.file).map_err(named)?;
            let bytes = file.metadata().map_err(named)?.len();
            (Box::new(file), bytes)
        }
    };
    let mut lines =
        Lines { input: BufReader::with_capacity(BATCH_BYTES, input), read: 0, number: 0 };
    let mut import = Import::new(cluster);
    let mut progress = output.progress(bytes, "bytes");
    let mut bad_lines = 0;
    while let Some(line) = lines.next().map_err(named)? {
        let pair = line.and_then(|line| parse(&line, args.format));
        let added = match pair {
            Ok((key, value)) => import.add(lines.number, key, value)?,
            Err(reason) => Err(reason),
        };
        if let Err(reason) = added {
            bad_lines += 1;
            if bad_lines <= NAMED_MAX {
                eprintln!("petrel: line {}: {reason}", lines.number);
            }
        }
        progress.set(lines.read);
    }
    let keys = import.finish()?;
    drop(progress);
    if bad_lines > NAMED_MAX {
        eprintln!("petrel: {} more lines are not understood", bad_lines - NAMED_MAX);
    }
    output.line(format!("set {keys} keys; {bad_lines} lines were not understood"))?;
    output.record(&ImportRecord { keys, bad_lines })?;
    Ok(if bad_lines == 0 { Outcome::Success } else { Outcome::Failure })
}

/// Reads lines, and counts them and their bytes.
struct Lines<R> {
    input: BufReader<R>,
    read: u64,
    number: u64,
}

impl<R: Read> Lines<R> {
    /// Returns the next line that is not empty, or the reason why it is bad.
    fn next(&mut self) -> io::Result<Option<Result<Vec<u8>, String>>> {
        loop {
            let mut line = Vec::new();
            let read = (&mut self.input).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(None);
            }
            self.read += read as u64;
            self.number += 1;
            if read as u64 == LINE_BYTES_MAX && !line.ends_with(b"\n") {
                self.skip_line()?;
                return Ok(Some(Err(format!("it is longer than {LINE_BYTES_MAX} bytes"))));
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(Ok(line)));
            }
        }
    }

    fn skip_line(&mut self) -> io::Result<()> {
        loop {
            let available = self.input.fill_buf()?;
            let end = available.iter().position(|byte| *byte == b'\n');
            let used = end.map_or(available.len(), |at| at + 1);
            self.input.consume(used);
            self.read += used as u64;
            if end.is_some() || used == 0 {
                return Ok(());
            }
        }
    }
}

/// Returns the key and value of a line.
fn parse(line: &[u8], format: FormatArgs) -> Result<(Vec<u8>, Vec<u8>), String> {
    let line: Line = serde_json::from_slice(line).map_err(|error| {
        // Each line is parsed alone, and has another number in the file.
        let text = error.to_string();
        text.split(" at line ").next().unwrap_or_default().to_owned()
    })?;
    Ok((
        bytes("key", line.key, line.key_hex, format)?,
        bytes("value", line.value, line.value_hex, format)?,
    ))
}

fn bytes(
    name: &str,
    text: Option<String>,
    hex: Option<String>,
    format: FormatArgs,
) -> Result<Vec<u8>, String> {
    let bytes = match (text, hex) {
        (Some(text), None) => format.bytes(&text),
        (None, Some(hex)) => FormatArgs { hex: true }.bytes(&hex),
        (Some(_), Some(_)) => return Err(format!("it has both {name} and {name}_hex")),
        (None, None) => return Err(format!("it has neither {name} nor {name}_hex")),
    };
    bytes.map_err(|failure| failure.to_string())
}

/// Sets keys in batches, several of them on their way at a time.
struct Import {
    cluster: Cluster,
    handle: Handle,
    batch: Batch,
    sent: VecDeque<(Batch, Task<Result<Batched, KvError>>)>,
    keys: u64,
    /// The last line whose batch is done, and all before it.
    done_line: u64,
}

#[derive(Default)]
struct Batch {
    ops: BatchBuffer,
    keys: HashSet<Vec<u8>>,
    pairs: u64,
    bytes: usize,
    last_line: u64,
}

impl Import {
    fn new(cluster: Cluster) -> Self {
        let handle = cluster.endpoint.handle();
        let (batch, sent) = (Batch::default(), VecDeque::new());
        Self { cluster, handle, batch, sent, keys: 0, done_line: 0 }
    }

    /// Adds a pair. The inner error is that of a pair beyond the limits.
    fn add(
        &mut self,
        line: u64,
        key: Vec<u8>,
        value: Vec<u8>,
    ) -> Result<Result<(), String>, Failure> {
        // Batches on their way may be applied in any order.
        if self.sent.iter().any(|(batch, _)| batch.keys.contains(&key)) {
            self.wait_until(0)?;
        }
        let op = Op::Put { key: &key, value: &value };
        let mut pushed = self.batch.ops.push(&op);
        if matches!(pushed, Err(BatchError::Full | BatchError::TooLong)) {
            self.send()?;
            pushed = self.batch.ops.push(&op);
        }
        if let Err(error) = pushed {
            return Ok(Err(error.to_string()));
        }
        self.batch.bytes += key.len() + value.len();
        self.batch.pairs += 1;
        self.batch.last_line = line;
        self.batch.keys.insert(key);
        if self.batch.bytes >= BATCH_BYTES {
            self.send()?;
        }
        Ok(Ok(()))
    }

    /// Sends the rest, and returns the number of keys set.
    fn finish(mut self) -> Result<u64, Failure> {
        self.send()?;
        self.wait_until(0)?;
        Ok(self.keys)
    }

    fn send(&mut self) -> Result<(), Failure> {
        if self.batch.pairs == 0 {
            return Ok(());
        }
        self.wait_until(BATCHES_MAX - 1)?;
        let mut batch = mem::take(&mut self.batch);
        let (client, ops) = (self.cluster.client.clone(), mem::take(&mut batch.ops));
        let task = self.handle.spawn(async move { set(&client, &ops).await });
        self.sent.push_back((batch, task));
        Ok(())
    }

    /// Waits until at most this many batches are on their way.
    fn wait_until(&mut self, left: usize) -> Result<(), Failure> {
        while self.sent.len() > left {
            let (batch, task) = self.sent.pop_front().expect("there are some");
            let done = self.cluster.endpoint.block_on(task);
            done.map_err(|error| {
                let failure = failure_of(&error);
                let status = failure.status().unwrap_or(Status::Unknown);
                let set = format!("lines up to {} are set, later ones perhaps", self.done_line);
                Failure::new(status, format!("{failure}; {set}"))
            })?;
            self.keys += batch.pairs;
            self.done_line = batch.last_line;
        }
        Ok(())
    }
}

async fn set(client: &KvClient, ops: &BatchBuffer) -> Result<Batched, KvError> {
    client.batch(ops).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: FormatArgs = FormatArgs { hex: false };

    #[test]
    fn parse__text_digits_or_the_reason() {
        let parsed = |line: &str| parse(line.as_bytes(), TEXT);
        let pair = |key: &[u8], value: &[u8]| Ok((key.to_vec(), value.to_vec()));
        assert_eq!(parsed(r#"{"key":"a","revision":7,"value":"b"}"#), pair(b"a", b"b"));
        assert_eq!(parsed(r#"{"key_hex":"00ff","value":""}"#), pair(&[0, 255], b""));
        let hex = parse(br#"{"key":"61","value":"62"}"#, FormatArgs { hex: true });
        assert_eq!(hex, pair(b"a", b"b"));
        for (line, reason) in [
            ("{", "EOF while parsing an object"),
            (r#"{"key":7,"value":""}"#, "expected a string"),
            (r#"{"value":""}"#, "neither key nor key_hex"),
            (r#"{"key":"a"}"#, "neither value nor value_hex"),
            (r#"{"key":"a","key_hex":"61","value":""}"#, "both key and key_hex"),
            (r#"{"key_hex":"6","value":""}"#, "hexadecimal"),
            ("null", "expected struct Line"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(reason) && !error.contains(" line 1"), "{line}: {error}");
        }
    }

    #[test]
    fn lines__are_counted_and_bounded() {
        let long = vec![b'x'; LINE_BYTES_MAX as usize + 5];
        let text = [b"one\n\n \n", &long[..], b"\ntwo"].concat();
        let mut lines = Lines { input: BufReader::new(&text[..]), read: 0, number: 0 };
        assert_eq!(lines.next().unwrap(), Some(Ok(b"one\n".to_vec())));
        assert!(lines.next().unwrap().unwrap().unwrap_err().contains("longer"));
        assert_eq!((lines.number, lines.next().unwrap()), (4, Some(Ok(b"two".to_vec()))));
        assert_eq!((lines.number, lines.read, lines.next().unwrap()), (5, text.len() as u64, None));
    }
}
