//! The requests of operations (`docs/wire-protocol.md` §15).

use petrel_proto::Status;
use petrel_transport::verbs::PairAddress;

use super::key::RegionKey;

/// Has the client's card access a region: a number reserved at endpoints that serve regions by a card.
pub(crate) const REACH: u16 = 65_519;

/// The methods of operations: numbers reserved at endpoints that serve regions.
pub(crate) const READ: u16 = 65_520;
pub(crate) const WRITE: u16 = 65_521;
pub(crate) const COMPARE_SWAP: u16 = 65_522;
pub(crate) const FETCH_ADD: u16 = 65_523;
pub(crate) const READ_MANY: u16 = 65_524;
pub(crate) const READ_VERSIONED: u16 = 65_525;
pub(crate) const WRITE_VERSIONED: u16 = 65_526;
pub(crate) const MAP: u16 = 65_527;

/// All methods of operations.
pub(crate) const METHODS: [u16; 8] =
    [READ, WRITE, COMPARE_SWAP, FETCH_ADD, READ_MANY, READ_VERSIONED, WRITE_VERSIONED, MAP];

/// The most pieces of a request.
pub const PIECES_MAX: usize = 64;

/// Bytes in front of the data of a request: number, length, secret and offset.
pub(crate) const HEADER_BYTES: usize = 24;

/// The reason why an operation was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: Status,
    why: &'static str,
}

impl Refusal {
    pub(crate) const fn new(status: Status, why: &'static str) -> Self {
        Self { status, why }
    }

    pub(crate) fn status(&self) -> Status {
        self.status
    }

    /// Returns the text for people.
    pub(crate) fn why(&self) -> &'static str {
        self.why
    }

    const fn malformed(why: &'static str) -> Self {
        Self::new(Status::InvalidArgument, why)
    }
}

/// The first part of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    region: u32,
    len: u32,
    secret: u64,
    offset: u64,
}

impl Header {
    #[inline]
    pub(crate) fn region(&self) -> u32 {
        self.region
    }

    /// Returns the bytes to read; 0 in requests that do not read.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn secret(&self) -> u64 {
        self.secret
    }

    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    #[inline]
    pub(crate) fn part(&self, at: u64, len: u32) -> Self {
        Self { offset: self.offset + at, len, ..*self }
    }

    pub(crate) fn new(key: RegionKey, offset: u64, len: u32) -> Self {
        Self { region: key.id(), len, secret: key.secret(), offset }
    }

    pub(crate) fn split(request: &[u8]) -> Result<(Self, &[u8]), Refusal> {
        let Some((header, data)) = request.split_first_chunk::<HEADER_BYTES>() else {
            return Err(Refusal::malformed("a request for a region begins with 24 bytes"));
        };
        Ok((Self::of(header), data))
    }

    fn of(bytes: &[u8; HEADER_BYTES]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        Self { region: half(0), len: half(4), secret: word(8), offset: word(16) }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.region.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.secret.to_le_bytes());
        bytes[16..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    pub(crate) fn followed_by(self, data: &[u8]) -> Vec<u8> {
        let mut request = Vec::with_capacity(HEADER_BYTES + data.len());
        request.extend_from_slice(&self.to_bytes());
        request.extend_from_slice(data);
        request
    }
}

/// Reads the header of a request without data.
pub(crate) fn alone(request: &[u8]) -> Result<Header, Refusal> {
    match Header::split(request)? {
        (header, []) => Ok(header),
        _ => Err(Refusal::malformed("the request is longer than its operation")),
    }
}

/// Reads the header of a request about a region as a whole.
pub(crate) fn whole(request: &[u8]) -> Result<Header, Refusal> {
    match alone(request)? {
        header @ Header { len: 0, offset: 0, .. } => Ok(header),
        _ => Err(Refusal::malformed("a request about a whole region has no length and no offset")),
    }
}

pub(crate) fn with_data(request: &[u8]) -> Result<(Header, &[u8]), Refusal> {
    let (header, data) = Header::split(request)?;
    match header.len {
        0 => Ok((header, data)),
        _ => Err(Refusal::malformed("a request that reads nothing has no length")),
    }
}

pub(crate) fn with_words<const N: usize>(request: &[u8]) -> Result<(Header, [u64; N]), Refusal> {
    let (header, data) = with_data(request)?;
    let (words, rest) = data.as_chunks::<8>();
    match (<&[[u8; 8]; N]>::try_from(words), rest) {
        (Ok(words), []) => Ok((header, words.map(u64::from_le_bytes))),
        _ => Err(Refusal::malformed("an operation on a word has its operands, and nothing else")),
    }
}

pub(crate) fn pieces(request: &[u8]) -> Result<impl Iterator<Item = Header> + Clone, Refusal> {
    let (pieces, rest) = request.as_chunks::<HEADER_BYTES>();
    if !rest.is_empty() || pieces.is_empty() || pieces.len() > PIECES_MAX {
        return Err(Refusal::malformed("1 to 64 pieces are read at once, of 24 bytes each"));
    }
    Ok(pieces.iter().map(Header::of))
}

/// Bytes of the response of REACH.
const REACHED_BYTES: usize = PairAddress::BYTES + 8 + 4 + 8 + 1;

/// The response of REACH: the address of the server's end, the place of the memory, its size, and whether it may be read and written.
type Reached = ([u8; PairAddress::BYTES], (u64, u32), u64, (bool, bool));

pub(crate) fn reached(
    far: [u8; PairAddress::BYTES],
    (address, key): (u64, u32),
    bytes: u64,
    (read, write): (bool, bool),
) -> Vec<u8> {
    let rights = u8::from(read) | u8::from(write) << 1;
    let parts: [&[u8]; 5] =
        [&far, &address.to_le_bytes(), &key.to_le_bytes(), &bytes.to_le_bytes(), &[rights]];
    parts.concat()
}

pub(crate) fn read_reached(answer: &[u8]) -> Option<Reached> {
    let answer: &[u8; REACHED_BYTES] = answer.try_into().ok()?;
    let (far, rest) = answer.split_first_chunk()?;
    let (address, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_first_chunk()?;
    let (bytes, rights) = rest.split_first_chunk()?;
    let &[rights @ 1..=3] = rights else { return None };
    let place = (u64::from_le_bytes(*address), u32::from_le_bytes(*key));
    Some((*far, place, u64::from_le_bytes(*bytes), (rights & 1 != 0, rights & 2 != 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header::new(RegionKey::new(1, 0x0807_0605_0403_0201, 4096), 0x10, 3)
    }

    #[test]
    fn reached__comes_back_from_its_bytes() {
        let answer = reached([7; PairAddress::BYTES], (1 << 40, 5), 4096, (true, false));
        assert_eq!(
            read_reached(&answer),
            Some(([7; PairAddress::BYTES], (1 << 40, 5), 4096, (true, false)))
        );
        let end = answer.len() - 1;
        assert_eq!(read_reached(&answer[..end]), None);
        for rights in [0, 4, 5, 0xFF] {
            assert_eq!(read_reached(&[&answer[..end], &[rights]].concat()), None, "{rights}");
        }
    }

    #[test]
    fn to_bytes__is_the_layout_of_the_specification() {
        let expected = [1, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(header().to_bytes(), expected);
        assert_eq!(alone(&expected), Ok(header()));
    }

    #[test]
    fn requests__of_other_lengths_are_refused() {
        let whole = header().followed_by(&[9; 16]);
        for len in (0..HEADER_BYTES).chain([HEADER_BYTES + 1]) {
            assert_eq!(alone(&whole[..len]).unwrap_err().status, Status::InvalidArgument, "{len}");
        }
        assert!(with_data(&whole).is_err(), "it has a length");
        let whole = Header { len: 0, ..header() }.followed_by(&[9; 16]);
        assert_eq!(with_words::<2>(&whole).unwrap().1, [0x0909_0909_0909_0909; 2]);
        assert!(with_words::<1>(&whole).is_err() && with_words::<2>(&whole[..39]).is_err());
        assert!(with_words::<3>(&whole).is_err());
    }

    #[test]
    fn whole__has_no_length_and_no_offset() {
        let of = |offset, len| whole(&Header { offset, len, ..header() }.to_bytes()).is_ok();
        assert!(of(0, 0) && !of(0, 1) && !of(8, 0));
    }

    #[test]
    fn pieces__are_1_to_64() {
        let many = |count: usize| header().to_bytes().repeat(count);
        assert_eq!(pieces(&many(64)).unwrap().count(), 64);
        assert!(
            pieces(&many(65)).is_err() && pieces(&[]).is_err() && pieces(&many(2)[1..]).is_err()
        );
    }
}
