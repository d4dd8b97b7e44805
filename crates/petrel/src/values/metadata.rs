//! Metadata of calls: small entries beside the message (`docs/wire-protocol.md` §8.11).

use std::fmt;
use std::sync::Arc;

use petrel_proto::Status;

use crate::error::Error;
use crate::sync::{Mutex, lock};

/// The most bytes of a block of metadata.
pub(crate) const BLOCK_BYTES_MAX: usize = 1_024;

/// The length of the block, at the end of a body.
const LENGTH_BYTES: usize = 2;

/// The most bytes of a key: seven bits have the length.
const KEY_BYTES_MAX: usize = 127;

/// The bit of an entry that nested calls inherit, beside the key's length.
const INHERITED: u8 = 0x80;

/// The bytes of an entry before its key: the key's length with the flag, and the value's length.
const HEAD_BYTES: usize = 3;

/// The end of keys whose values are bytes.
const BYTES_KEY_END: &str = "-bin";

/// Entries of keys and values beside the message of a call, or of its reply: at most 1 KiB with three bytes for each entry.
///
/// Keys are as gRPC's: 1 to 127 lower-case letters, digits, `_`, `-` and `.`. A value is text without control characters; with a
/// key that ends in `-bin`, it is bytes. An entry may be marked as *inherited*: calls for which the handler asks take it on
/// ([`AnnotatedCall::inherit`](crate::service::AnnotatedCall::inherit)).
///
/// ```
/// use petrel::service::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("tenant", "a")?;
/// metadata.insert("digest-bin", [7, 0, 255])?;
/// assert_eq!(metadata.get("tenant"), Some("a"));
/// assert_eq!(metadata.get_bytes("digest-bin"), Some(&[7, 0, 255][..]));
/// # Ok::<(), petrel::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The entries in the form of the wire, each valid.
    block: Vec<u8>,
}

/// An entry of [`Metadata`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a str,
    /// The value: text in UTF-8, unless the key ends in `-bin`.
    pub value: &'a [u8],
    /// Whether nested calls may inherit the entry.
    pub is_inherited: bool,
}

/// No metadata.
pub(crate) static EMPTY: Metadata = Metadata::new();

impl Metadata {
    /// Returns metadata without entries.
    pub const fn new() -> Self {
        Self { block: Vec::new() }
    }

    /// Returns true without entries.
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// Adds an entry. It takes the place of an entry with the same key.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a key or value that is not allowed, and RESOURCE_EXHAUSTED beyond 1 KiB; nothing is changed.
    pub fn insert(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.put(Entry { key, value: value.as_ref(), is_inherited: false })
    }

    /// Adds an entry like [`insert`](Self::insert), which nested calls may inherit.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_inherited(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.put(Entry { key, value: value.as_ref(), is_inherited: true })
    }

    /// Adds the entries of `other` that nested calls may inherit, unless the key is here.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED beyond 1 KiB.
    pub fn inherit(&mut self, other: &Self) -> Result<(), Error> {
        let inherited = other.iter().filter(|entry| entry.is_inherited);
        for entry in inherited {
            if self.get_bytes(entry.key).is_none() {
                self.put(entry)?;
            }
        }
        Ok(())
    }

    /// Returns the text of a key; `None` without one, and for keys of bytes.
    pub fn get(&self, key: &str) -> Option<&str> {
        let value = self.get_bytes(key).filter(|_| !key.ends_with(BYTES_KEY_END))?;
        Some(str::from_utf8(value).expect("an entry is checked before it is here"))
    }

    /// Returns the value of a key as bytes.
    pub fn get_bytes(&self, key: &str) -> Option<&[u8]> {
        self.iter().find(|entry| entry.key == key).map(|entry| entry.value)
    }

    /// Returns the entries.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut rest = &self.block[..];
        std::iter::from_fn(move || {
            let (entry, after) = split_entry(rest)?;
            rest = after;
            Some(entry)
        })
    }

    fn put(&mut self, entry: Entry<'_>) -> Result<(), Error> {
        let Entry { key, value, is_inherited } = entry;
        check(&entry).map_err(|why| Error::new(Status::InvalidArgument, why))?;
        let former: Vec<u8> = self.block_without(key);
        let bytes = former.len() + HEAD_BYTES + key.len() + value.len();
        if bytes > BLOCK_BYTES_MAX {
            let text = format!("metadata of {bytes} bytes: at most {BLOCK_BYTES_MAX} are allowed");
            return Err(Error::new(Status::ResourceExhausted, text));
        }
        self.block = former;
        let flag = if is_inherited { INHERITED } else { 0 };
        self.block.push(key.len() as u8 | flag);
        self.block.extend_from_slice(&(value.len() as u16).to_le_bytes());
        self.block.extend_from_slice(key.as_bytes());
        self.block.extend_from_slice(value);
        Ok(())
    }

    /// Returns the entries with other keys.
    fn block_without(&self, key: &str) -> Vec<u8> {
        let mut block = Vec::with_capacity(self.block.len());
        let mut rest = &self.block[..];
        while let Some((entry, after)) = split_entry(rest) {
            if entry.key != key {
                block.extend_from_slice(&rest[..rest.len() - after.len()]);
            }
            rest = after;
        }
        block
    }

    /// Returns the bytes that the metadata adds to a body.
    pub(crate) fn wire_len(&self) -> usize {
        self.block.len() + LENGTH_BYTES
    }

    /// Writes the metadata to the end of a body.
    pub(crate) fn write(&self, out: &mut [u8]) {
        let (block, length) = out.split_at_mut(self.block.len());
        block.copy_from_slice(&self.block);
        length.copy_from_slice(&(self.block.len() as u16).to_le_bytes());
    }

    /// Appends the metadata to a message, which makes a body *with an envelope*: for tools that call methods by their numbers
    /// ([`ServedMethod::envelope`](crate::service::ServedMethod)).
    pub fn append_to(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.block);
        body.extend_from_slice(&(self.block.len() as u16).to_le_bytes());
    }

    /// Splits a body with an envelope: returns the message and the metadata. `None` if the body breaks the format.
    pub fn split(body: &[u8]) -> Option<(&[u8], Self)> {
        let (rest, length) = body.split_last_chunk::<LENGTH_BYTES>()?;
        let len = usize::from(u16::from_le_bytes(*length));
        let at = rest.len().checked_sub(len).filter(|_| len <= BLOCK_BYTES_MAX)?;
        let (message, block) = rest.split_at(at);
        Some((message, Self::of_block(block)?))
    }

    /// Returns the entries as they are sent.
    pub(crate) fn block(&self) -> &[u8] {
        &self.block
    }

    /// Reads entries. `None` if they break the format.
    pub(crate) fn of_block(block: &[u8]) -> Option<Self> {
        let mut left = block;
        while !left.is_empty() {
            let (entry, after) = split_entry(left)?;
            check(&entry).ok()?;
            left = after;
        }
        (block.len() <= BLOCK_BYTES_MAX).then(|| Self { block: block.to_vec() })
    }
}

/// Splits the first entry from a block. `None` if the block does not begin with a whole entry whose key is text.
fn split_entry(block: &[u8]) -> Option<(Entry<'_>, &[u8])> {
    let (head, rest) = block.split_first_chunk::<HEAD_BYTES>()?;
    let [key_len, low, high] = *head;
    let (key, rest) = rest.split_at_checked(usize::from(key_len & !INHERITED))?;
    let (value, rest) = rest.split_at_checked(u16::from_le_bytes([low, high]).into())?;
    let key = str::from_utf8(key).ok()?;
    Some((Entry { key, value, is_inherited: key_len & INHERITED != 0 }, rest))
}

/// Checks key and value.
///
/// # Errors
/// The reason, for people.
fn check(entry: &Entry<'_>) -> Result<(), String> {
    let Entry { key, value, .. } = entry;
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.');
    if !(1..=KEY_BYTES_MAX).contains(&key.len()) || !key.bytes().all(is_allowed) {
        return Err(format!(
            "{key:?} is no key of metadata: 1 to {KEY_BYTES_MAX} lower-case letters, digits, `_`, `-` and `.`"
        ));
    }
    let is_text = || str::from_utf8(value).is_ok_and(|text| !text.contains(char::is_control));
    match key.ends_with(BYTES_KEY_END) || is_text() {
        true => Ok(()),
        false => Err(format!(
            "the value of {key} is no text without control characters: a key of bytes ends in `{BYTES_KEY_END}`"
        )),
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |entry: Entry<'_>| entry.value.escape_ascii().to_string();
        f.debug_map().entries(self.iter().map(|entry| (entry.key, value(entry)))).finish()
    }
}

/// The metadata of a request with an envelope, and of its reply.
#[derive(Debug, Default)]
pub(crate) struct Envelope {
    request: Metadata,
    /// Workers may share their request with further threads.
    reply: Mutex<Metadata>,
}

impl Envelope {
    pub(crate) fn new(request: Metadata) -> Arc<Self> {
        Arc::new(Self { request, reply: Mutex::default() })
    }

    /// Returns the metadata of the request whose handler runs.
    pub(crate) fn request_of(envelope: Option<&Self>) -> &Metadata {
        envelope.map_or(&EMPTY, |envelope| &envelope.request)
    }

    /// Adds an entry to the reply. A caller without an envelope gets none: the entry is checked and dropped.
    pub(crate) fn insert_reply(
        envelope: Option<&Self>,
        key: &str,
        value: &[u8],
    ) -> Result<(), Error> {
        match envelope {
            Some(envelope) => lock(&envelope.reply).insert(key, value),
            None => Metadata::new().insert(key, value),
        }
    }

    /// Takes the metadata of the reply.
    pub(crate) fn take_reply(&self) -> Metadata {
        std::mem::take(&mut *lock(&self.reply))
    }
}

#[cfg(test)]
mod tests {
    use super::super::method_table::tests::vector_of;
    use super::*;

    fn body(message: &[u8], metadata: &Metadata) -> Vec<u8> {
        let mut body = message.to_vec();
        metadata.append_to(&mut body);
        let mut written = vec![0; metadata.wire_len()];
        metadata.write(&mut written);
        assert_eq!(body, [message, &written].concat());
        body
    }

    #[test]
    fn body__as_in_the_specification_and_back() {
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "a").unwrap();
        metadata.insert_inherited("id-bin", [7, 0]).unwrap();
        let vector = vector_of("envelope-vector", "a message with two entries");
        assert_eq!(body(b"hello", &metadata), vector);
        let (message, read) = Metadata::split(&vector).expect("a body");
        assert_eq!((message, &read), (&b"hello"[..], &metadata));
        let entries: Vec<_> = read.iter().map(|one| (one.key, one.is_inherited)).collect();
        assert_eq!(entries, [("tenant", false), ("id-bin", true)]);
        let empty = vector_of("envelope-vector", "a message without entries");
        assert_eq!(body(b"hello", &EMPTY), empty);
        assert_eq!(Metadata::split(&empty), Some((&b"hello"[..], Metadata::new())));
    }

    #[test]
    fn split__refuses_parts_of_bodies_and_wrong_entries() {
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "a").unwrap();
        let whole = body(b"", &metadata);
        assert!(
            (0..whole.len()).all(|from| from == 0 || Metadata::split(&whole[from..]).is_none())
        );
        let changed = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            Metadata::split(&bytes).map(|(_, metadata)| metadata)
        };
        // The key's length, the value's, a letter of the key, the value, and the block's length.
        for (at, byte) in [
            (0, 0),
            (0, 7),
            (1, 0),
            (1, 2),
            (2, 1),
            (3, b'T'),
            (3, 0xff),
            (9, b'\n'),
            (9, 0xff),
            (10, 9),
            (11, 4),
        ] {
            assert_eq!(changed(at, byte), None, "byte {at}: {byte}");
        }
        assert!(changed(9, b'b').is_some() && changed(0, 6 | INHERITED).is_some());
        let mut largest = Metadata::new();
        largest.insert("a-bin", vec![0; BLOCK_BYTES_MAX - 8]).unwrap();
        let mut too_large = body(b"", &largest);
        assert!(Metadata::split(&too_large).is_some());
        let len = BLOCK_BYTES_MAX as u16 + 1;
        too_large.truncate(BLOCK_BYTES_MAX);
        too_large[1..3].copy_from_slice(&(len - 8).to_le_bytes());
        too_large.push(0);
        too_large.extend(len.to_le_bytes());
        assert_eq!(Metadata::split(&too_large), None);
    }

    #[test]
    fn insert__replaces_and_refuses() {
        let mut metadata = Metadata::new();
        metadata.insert("a", "first").unwrap();
        metadata.insert("b", "other").unwrap();
        metadata.insert_inherited("a", "second").unwrap();
        assert_eq!((metadata.get("a"), metadata.get("b")), (Some("second"), Some("other")));
        let before = metadata.clone();
        for (key, value) in [("", "x"), ("Key", "x"), ("k y", "x"), ("k", "a\nb"), ("k", "\u{7f}")]
        {
            let error = metadata.insert(key, value).unwrap_err();
            assert_eq!(error.status, Status::InvalidArgument, "{error}");
        }
        metadata.insert("k", [0xff]).unwrap_err();
        metadata.insert(&"k".repeat(KEY_BYTES_MAX + 1), "").unwrap_err();
        let error = metadata.insert("c", "x".repeat(BLOCK_BYTES_MAX - 20)).unwrap_err();
        assert_eq!(error.status, Status::ResourceExhausted);
        assert_eq!(metadata, before);
        assert_eq!(metadata.get("x-bin"), None);
        metadata.insert("x-bin", [0xff, 0]).unwrap();
        assert_eq!(
            (metadata.get("x-bin"), metadata.get_bytes("x-bin")),
            (None, Some(&[0xff, 0][..]))
        );
    }

    #[test]
    fn inherit__takes_marked_entries_and_keeps_own_ones() {
        let mut of = Metadata::new();
        of.insert("own", "1").unwrap();
        of.insert_inherited("trace", "2").unwrap();
        of.insert_inherited("tenant", "3").unwrap();
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "4").unwrap();
        metadata.inherit(&of).unwrap();
        let values = ["own", "trace", "tenant"].map(|key| metadata.get(key));
        assert_eq!(values, [None, Some("2"), Some("4")]);
        assert!(metadata.iter().any(|entry| entry.key == "trace" && entry.is_inherited));
    }
}
