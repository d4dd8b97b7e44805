//! The fuzz target `region` (`fuzz/README.md`): requests for regions, compared with a model of the specification's
//! section 15.

use petrel_proto::Status;

use super::agent::{execute, execute_in_packets};
use crate::region_memory::wire::{
    COMPARE_SWAP, FETCH_ADD, HEADER_BYTES, MAP, METHODS, PIECES_MAX, READ, READ_MANY,
    READ_VERSIONED, WRITE, WRITE_VERSIONED,
};
use crate::region_memory::{Access, Region, RegionMemory, Regions};

/// Sizes of the regions: whole words, and some bytes more.
const BYTES: [u64; 3] = [64, 100, 8];

/// The rights of the regions: all, to read, and to change words.
const RIGHTS: [&[Access]; 3] =
    [&[Access::READ, Access::WRITE, Access::ATOMIC], &[Access::READ], &[Access::ATOMIC]];

/// Bytes of a packet: the header, and some data.
const PACKET_BYTES: usize = HEADER_BYTES + 8;

/// The most requests of an input, to bound the time.
const REQUESTS_MAX: usize = 64;

/// Executes requests that the input has. A request begins with three bytes: its method, its length, and how the first
/// header is completed.
///
/// # Panics
/// If an answer or the memory differs from the model's.
pub fn check(mut data: &[u8]) {
    let mut world = World::new();
    for _ in 0..REQUESTS_MAX {
        let [method, len, completion, rest @ ..] = data else { break };
        let method = METHODS[usize::from(*method) % METHODS.len()];
        let (request, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        data = rest;
        world.run(method, &world.completed(request, *completion), completion & 64 == 0);
    }
}

/// Regions, and the expected bytes.
struct World {
    regions: Regions,
    registered: Vec<Region>,
    expected: Vec<Vec<u8>>,
}

/// A header, as the specification has it.
struct Fields {
    region: u32,
    len: u64,
    secret: u64,
    offset: u64,
}

impl World {
    fn new() -> Self {
        let regions = Regions::new();
        let register = |(bytes, rights): (&u64, &&[Access])| {
            let access = rights.iter().copied().reduce(|all, right| all | right);
            let memory = RegionMemory::private(*bytes).expect("some bytes");
            regions.register(memory, access.expect("a right")).expect("private memory")
        };
        let registered = BYTES.iter().zip(&RIGHTS).map(register).collect();
        let expected = BYTES.iter().map(|bytes| vec![0; *bytes as usize]).collect();
        Self { regions, registered, expected }
    }

    /// Returns a request whose headers name regions that exist, at offsets near them, unless bits of `completion` leave
    /// the fields as they are.
    fn completed(&self, request: &[u8], completion: u8) -> Vec<u8> {
        let mut request = request.to_vec();
        let (headers, _) = request.as_chunks_mut::<HEADER_BYTES>();
        for header in headers {
            let number = usize::from(header[0]) % self.registered.len();
            if completion & 1 == 0 {
                header[..4].copy_from_slice(&(number as u32).to_le_bytes());
            }
            if completion & 2 == 0 {
                header[5..8].fill(0);
            }
            if completion & 4 == 0 {
                let secret = self.registered[number].key().to_bytes()[4..12].to_vec();
                header[8..16].copy_from_slice(&secret);
            }
            if completion & 8 == 0 {
                header[17..].fill(0);
            }
            if completion & 16 == 0 {
                header[16] &= !7;
            }
            if completion & 32 == 0 {
                header[4] = 0;
            }
        }
        request
    }

    /// Executes a request: a WRITE also `in_packets`, which go to the region as they come.
    fn run(&mut self, method: u16, request: &[u8], in_packets: bool) {
        let expected = self.model(method, request);
        let mut answer = Vec::new();
        let placed = if method == WRITE && in_packets && request.len() > PACKET_BYTES {
            let placed = execute_in_packets(&self.regions, request, PACKET_BYTES);
            // Packets of a WRITE at an offset within a word share words.
            let has_whole_words = request[16].is_multiple_of(8);
            let may_begin = expected.is_ok() && has_whole_words;
            assert_eq!(placed.is_some(), may_begin, "a write that is refused is not begun");
            placed
        } else {
            None
        };
        let outcome = match placed {
            Some(outcome) => outcome.map(|()| Vec::new()),
            None => execute(&self.regions, method, request, &mut answer).map(|()| answer),
        };
        assert_eq!(outcome, expected, "method {method}");
        for (region, expected) in self.registered.iter().zip(&self.expected) {
            let mut seen = vec![0; expected.len()];
            region.read(0, &mut seen).expect("the whole region");
            assert_eq!(seen, *expected, "method {method}");
        }
    }

    /// Executes a request as the specification says.
    fn model(&mut self, method: u16, request: &[u8]) -> Result<Vec<u8>, Status> {
        if method == READ_MANY {
            let pieces = request.chunks(HEADER_BYTES);
            let is_well_formed = request.len().is_multiple_of(HEADER_BYTES)
                && !request.is_empty()
                && pieces.len() <= PIECES_MAX;
            if !is_well_formed {
                return Err(Status::InvalidArgument);
            }
            let read = |piece| self.read(&fields(piece));
            return Ok(pieces.map(read).collect::<Result<Vec<_>, _>>()?.concat());
        }
        let Some((header, operands)) = request.split_at_checked(HEADER_BYTES) else {
            return Err(Status::InvalidArgument);
        };
        let header = fields(header);
        let has_length = match method {
            READ | READ_VERSIONED => operands.is_empty(),
            MAP => operands.is_empty() && (header.len, header.offset) == (0, 0),
            COMPARE_SWAP => operands.len() == 16 && header.len == 0,
            FETCH_ADD => operands.len() == 8 && header.len == 0,
            _ => header.len == 0,
        };
        if !has_length {
            return Err(Status::InvalidArgument);
        }
        match method {
            READ => self.read(&header),
            READ_VERSIONED => {
                let version = self.range(&header, Access::READ, Some(header.len))?;
                let all = &self.expected[header.region as usize][version];
                if all[0].is_multiple_of(2) { Ok(all.to_vec()) } else { Err(Status::Aborted) }
            }
            WRITE => {
                let range = self.range(&header, Access::WRITE, None)?;
                let end = range.start.checked_add(operands.len());
                let bytes = &mut self.expected[header.region as usize];
                let place = end.and_then(|end| bytes.get_mut(range.start..end));
                place.ok_or(Status::OutOfRange)?.copy_from_slice(operands);
                Ok(Vec::new())
            }
            WRITE_VERSIONED => {
                let range = self.range(&header, Access::WRITE, Some(operands.len() as u64))?;
                let place = &mut self.expected[header.region as usize][range];
                let (version, value) = place.split_at_mut(8);
                if !version[0].is_multiple_of(2) {
                    return Err(Status::Aborted);
                }
                value.copy_from_slice(operands);
                Ok(replace(version, |version| version.wrapping_add(2)).1)
            }
            COMPARE_SWAP => {
                let range = self.range(&header, Access::ATOMIC, Some(0))?;
                let word = &mut self.expected[header.region as usize][range];
                let (expected, new) = (word_of(&operands[..8]), word_of(&operands[8..]));
                Ok(replace(word, |word| if word == expected { new } else { word }).0)
            }
            FETCH_ADD => {
                let range = self.range(&header, Access::ATOMIC, Some(0))?;
                let word = &mut self.expected[header.region as usize][range];
                Ok(replace(word, |word| word.wrapping_add(word_of(operands))).0)
            }
            _ => Err(self.find(&header, Access::MAP).expect_err("no region can be mapped")),
        }
    }

    fn find(&self, header: &Fields, right: Access) -> Result<(), Status> {
        let number = header.region as usize;
        let region = self.registered.get(number).ok_or(Status::PermissionDenied)?;
        let has_secret = word_of(&region.key().to_bytes()[4..12]) == header.secret;
        let is_right = has_secret && RIGHTS[number].contains(&right);
        if is_right { Ok(()) } else { Err(Status::PermissionDenied) }
    }

    fn read(&self, header: &Fields) -> Result<Vec<u8>, Status> {
        self.find(header, Access::READ)?;
        let (start, end) = (header.offset, header.offset.checked_add(header.len));
        let bytes = &self.expected[header.region as usize];
        let range = start as usize..end.ok_or(Status::OutOfRange)? as usize;
        Ok(bytes.get(range).ok_or(Status::OutOfRange)?.to_vec())
    }

    /// Checks the right of an operation, and the place of its word and `behind` further bytes, if it has a word. Returns
    /// the range of both, or an empty one at the offset.
    fn range(
        &self,
        header: &Fields,
        right: Access,
        behind: Option<u64>,
    ) -> Result<std::ops::Range<usize>, Status> {
        self.find(header, right)?;
        let Some(behind) = behind else {
            return Ok(header.offset as usize..header.offset as usize);
        };
        if !header.offset.is_multiple_of(8) {
            return Err(Status::InvalidArgument);
        }
        let end = header.offset.checked_add(8 + behind).ok_or(Status::OutOfRange)?;
        let is_within = end <= BYTES[header.region as usize];
        if is_within { Ok(header.offset as usize..end as usize) } else { Err(Status::OutOfRange) }
    }
}

fn fields(header: &[u8]) -> Fields {
    let half = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let (secret, offset) = (word_of(&header[8..16]), word_of(&header[16..]));
    Fields { region: half(0), len: half(4).into(), secret, offset }
}

fn word_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// Replaces a word; returns the former one and the new one.
fn replace(word: &mut [u8], change: impl FnOnce(u64) -> u64) -> (Vec<u8>, Vec<u8>) {
    let (former, new) = (word.to_vec(), change(word_of(word)).to_le_bytes());
    word.copy_from_slice(&new);
    (former, new.to_vec())
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "the file is that of other crates, too")]
#[path = "../../../../fuzz/replay.rs"]
pub(crate) mod replay;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::replay::replay;
    use super::*;

    #[test]
    fn check__corpus() {
        replay("region", 10, check);
    }

    proptest! {
        #[test]
        fn check__of_any_requests(
            requests in prop::collection::vec(
                (any::<u8>(), 0..80_u8, any::<u8>(), prop::collection::vec(any::<u8>(), 80)),
                1..40,
            ),
        ) {
            let mut input = Vec::new();
            for (method, len, completion, bytes) in requests {
                input.extend([method, len, completion]);
                input.extend_from_slice(&bytes[..usize::from(len)]);
            }
            check(&input);
        }
    }
}
