//! Files of a checkpoint: [frames](crate::frame), and an empty frame as the end.
//!
//! ```text
//! file = frame with what the checkpoint says of itself | frames with the image's chunks | empty frame
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use protobuf::Message;
use raft::eraftpb::ConfState;

use super::directory::write_whole;
use super::error::{DiskError, During};
use crate::frame::{HEADER_BYTES, read_frame, write_frame};
use crate::persist::Checkpoint;
use crate::store::{Builder, Store};
use crate::wire::{Reader, Write as _};

/// Bytes of the image read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Bytes after which the file is synced, to keep delays of the log's syncs short.
const UNSYNCED_BYTES_MAX: usize = 4 << 20;

/// Writes a checkpoint to a file, unless it is no longer wanted. Returns the number of bytes.
pub(super) fn write(
    path: &Path,
    checkpoint: &Checkpoint,
    is_wanted: impl Fn() -> bool,
) -> Result<usize, DiskError> {
    write_whole(path, |file| {
        let mut frames = Frames { file, bytes: 0, unsynced_bytes: 0 };
        frames.push(&head(checkpoint))?;
        for chunk in checkpoint.image.chunks(CHUNK_BYTES) {
            if !is_wanted() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if !chunk.is_empty() {
                frames.push(&chunk)?;
            }
        }
        frames.push(&[])?;
        Ok(frames.bytes)
    })
}

pub(super) fn read(path: &Path) -> Result<(Checkpoint, Store), DiskError> {
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DiskError::damaged(path, "the log names it, and it is missing"),
        _ => DiskError::Io { path: path.to_owned(), what: "open", source: error },
    })?;
    let mut input = BufReader::with_capacity(CHUNK_BYTES, file);
    let head = read_frame(&mut input).during("read", path)?;
    let mut builder = Builder::new();
    loop {
        let chunk = read_frame(&mut input).during("read", path)?;
        if chunk.is_empty() {
            break;
        }
        builder.add(&chunk).map_err(|error| DiskError::damaged(path, error))?;
    }
    if input.read(&mut [0]).during("read", path)? > 0 {
        return Err(DiskError::damaged(path, "more follows its end"));
    }
    let store = builder.finish().map_err(|error| DiskError::damaged(path, error))?;
    let head = parse_head(&head, &store);
    Ok((head.map_err(|what| DiskError::damaged(path, what))?, store))
}

struct Frames<'a> {
    file: &'a mut File,
    bytes: usize,
    unsynced_bytes: usize,
}

impl Frames<'_> {
    fn push(&mut self, content: &[u8]) -> io::Result<()> {
        write_frame(self.file, content)?;
        self.bytes += HEADER_BYTES + content.len();
        self.unsynced_bytes += HEADER_BYTES + content.len();
        if self.unsynced_bytes >= UNSYNCED_BYTES_MAX {
            self.unsynced_bytes = 0;
            self.file.sync_data()?;
        }
        Ok(())
    }
}

pub(super) fn head(checkpoint: &Checkpoint) -> Vec<u8> {
    let conf_state = checkpoint.conf_state.write_to_bytes();
    let conf_state = conf_state.expect("a vector takes all bytes, and nothing is required");
    let mut out = Vec::new();
    out.put_u64(checkpoint.index);
    out.put_u64(checkpoint.term);
    for part in [&conf_state, &checkpoint.membership] {
        out.put_u32(part.len() as u32);
        out.extend_from_slice(part);
    }
    out
}

pub(super) fn parse_head(bytes: &[u8], store: &Store) -> Result<Checkpoint, String> {
    let mut input = Reader::new(bytes);
    let mut number = |field| input.u64(field).map_err(|error| error.to_string());
    let (index, term) = (number("index")?, number("term")?);
    let mut part = |field| {
        let length = input.u32(field)? as usize;
        input.take(length, field)
    };
    let conf_state = part("configuration").map_err(|error| error.to_string())?;
    let membership = part("membership").map_err(|error| error.to_string())?.to_vec();
    input.end().map_err(|error| error.to_string())?;
    let conf_state = ConfState::parse_from_bytes(conf_state).map_err(|error| error.to_string())?;
    Ok(Checkpoint { index, term, conf_state, membership, image: store.image() })
}
