//! Operations of a client on a region.

use petrel_proto::Status;

use crate::client::{Call, Client};
use crate::error::Error;
use crate::local::client_call::Response;
use crate::region_memory::wire::{
    COMPARE_SWAP, FETCH_ADD, HEADER_BYTES, Header, MAP, READ, READ_MANY, READ_VERSIONED, WRITE,
    WRITE_VERSIONED,
};
use crate::region_memory::{PIECES_MAX, RegionKey, RegionMemory, door};

/// A region of a server, as its clients see it. The client must have a single server: a key is valid only at its
/// server.
///
/// Each operation is a [`Call`], with its options: it has a deadline, can be cancelled, and is executed at most once.
/// Reads are [idempotent](Call::idempotent); writes and operations on words are repeated only if the caller says so.
///
/// ```
/// # use petrel::region::{Access, RegionMemory, Regions, RemoteRegion};
/// # let regions = Regions::new();
/// # let table = regions.register(RegionMemory::private(4096)?, Access::READ | Access::WRITE | Access::ATOMIC)?;
/// # let served = regions.clone();
/// # let server = petrel::Server::bind("127.0.0.1:0").serve(|_| (), move |endpoint| endpoint.serve_regions(&served));
/// # let server = server.start()?;
/// # let client = petrel::Client::connect_wait(server.local_addr())?;
/// # let key = table.key();
/// let remote = RemoteRegion::new(&client, key);
/// remote.write(16, b"petrel").wait()?;
/// assert_eq!(remote.read(16, 6).wait()?, b"petrel");
/// assert_eq!(remote.fetch_add(0, 2).wait()?, 0); // the word before the addition
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RemoteRegion {
    client: Client,
    key: RegionKey,
}

/// A value with its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The version: even, and larger after each change.
    pub version: u64,
    /// The value.
    pub value: Vec<u8>,
}

impl RemoteRegion {
    /// Returns the region with this key at the client's server.
    pub fn new(client: &Client, key: RegionKey) -> Self {
        Self { client: client.clone(), key }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// The region's key.
    pub fn key(&self) -> RegionKey {
        self.key
    }

    /// Reads `len` bytes at `offset`. Ends with OUT_OF_RANGE beyond the end, and PERMISSION_DENIED if the key is
    /// revoked or does not grant reading.
    pub fn read(&self, offset: u64, len: u32) -> Call<Vec<u8>> {
        let request = Header::new(self.key, offset, len).to_bytes();
        self.begin(READ, request.to_vec(), len.into(), whole).idempotent()
    }

    /// Reads several pieces by one request, at most [`PIECES_MAX`]: offsets and lengths. Returns the bytes of all, one
    /// after the other.
    ///
    /// # Panics
    /// Without a piece, and with more than [`PIECES_MAX`].
    pub fn read_many(&self, pieces: &[(u64, u32)]) -> Call<Vec<u8>> {
        assert!((1..=PIECES_MAX).contains(&pieces.len()), "1 to 64 pieces are read at once");
        let header = |&(offset, len)| Header::new(self.key, offset, len).to_bytes();
        let request: Vec<u8> = pieces.iter().flat_map(header).collect();
        let bytes = pieces.iter().map(|(_, len)| u64::from(*len)).sum();
        self.begin(READ_MANY, request, bytes, whole).idempotent()
    }

    /// Reads a versioned value of `len` bytes, whose version is the word at `offset`. Ends with ABORTED if writers
    /// change it all the time.
    pub fn read_versioned(&self, offset: u64, len: u32) -> Call<Versioned> {
        let request = Header::new(self.key, offset, len).to_bytes();
        let read = |answer: Response, len: u64| {
            let mut value = whole(answer, 8 + len)?;
            let version = value.drain(..8).rev().fold(0, |word, byte| word << 8 | u64::from(byte));
            Ok(Versioned { version, value })
        };
        self.begin(READ_VERSIONED, request.to_vec(), len.into(), read).idempotent()
    }

    /// Writes bytes at `offset`. A `Vec` is taken without a copy.
    ///
    /// The packets of a large write take effect as they arrive. So a failed write may have written some bytes, unless
    /// the error says that the write was not executed.
    pub fn write(&self, offset: u64, data: impl Into<Vec<u8>>) -> Call<()> {
        let read = |answer, bytes| whole(answer, bytes).map(|_| ());
        self.begin_with(WRITE, offset, data.into(), 0, read)
    }

    /// Replaces a versioned value, whose version is the word at `offset`. Returns the new version. A `Vec` is taken without
    /// a copy.
    pub fn write_versioned(&self, offset: u64, data: impl Into<Vec<u8>>) -> Call<u64> {
        self.begin_with(WRITE_VERSIONED, offset, data.into(), 8, word)
    }

    /// Replaces the word at `offset` if it is `expected`. Returns the former value: the word was replaced if this is
    /// `expected`.
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Call<u64> {
        let operands = [expected.to_le_bytes(), new.to_le_bytes()].concat();
        let request = Header::new(self.key, offset, 0).followed_by(&operands);
        self.begin(COMPARE_SWAP, request, 8, word)
    }

    /// Adds to the word at `offset`, modulo 2⁶⁴. Returns the former value.
    pub fn fetch_add(&self, offset: u64, delta: u64) -> Call<u64> {
        let request = Header::new(self.key, offset, 0).followed_by(&delta.to_le_bytes());
        self.begin(FETCH_ADD, request, 8, word)
    }

    /// Maps the region, at a server of the same host and user, with the thread parked meanwhile. The key must grant
    /// [`Access::MAP`](super::Access::MAP).
    ///
    /// # Errors
    /// UNAVAILABLE if the server is elsewhere, PERMISSION_DENIED if the region cannot be mapped.
    pub fn map_wait(&self) -> Result<RegionMemory, Error> {
        let request = Header::new(self.key, 0, 0).to_bytes();
        let name = self.client.call(MAP, request).idempotent().wait()?;
        door::fetch(&name, self.key)
    }

    /// Begins an operation with data, which the header follows until it is sent.
    fn begin_with<T>(
        &self,
        method: u16,
        offset: u64,
        mut data: Vec<u8>,
        expected: u64,
        read: fn(Response, u64) -> Result<T, Error>,
    ) -> Call<T> {
        data.reserve_exact(HEADER_BYTES);
        data.extend_from_slice(&Header::new(self.key, offset, 0).to_bytes());
        self.begin(method, data, expected, read).head_last(HEADER_BYTES as u8)
    }

    fn begin<T>(
        &self,
        method: u16,
        request: Vec<u8>,
        expected: u64,
        read: fn(Response, u64) -> Result<T, Error>,
    ) -> Call<T> {
        Call::reading(self.client.clone(), method, request, expected, read)
    }
}

/// Returns a response of the expected length.
fn whole(answer: Response, bytes: u64) -> Result<Vec<u8>, Error> {
    if answer.len() as u64 == bytes {
        return Ok(answer.into_vec());
    }
    let text = format!("the server's answer has {} bytes instead of {bytes}", answer.len());
    Err(Error::new(Status::Internal, text))
}

fn word(answer: Response, bytes: u64) -> Result<u64, Error> {
    let answer = whole(answer, bytes)?;
    Ok(answer.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}
