//! Pilaf's table (HERD §5.1.1; Mitchell et al., USENIX ATC 2013): cuckoo hashing with three places for a key, and values behind the buckets.
//!
//! A bucket has 32 bytes: the key, the offset and length of the value, and a checksum of all. The value has a checksum, too: a READ can meet a
//! writer, and the client then repeats the READ. A bucket without an item has the checksum of its zeros: memory of zeros is not whole.

use std::sync::Arc;

use petrel::Status;
use petrel_command::failure::Failure;
use petrel_transport::verbs::{AccessError, Card};
use petrel_transport::words::WordMemory;

use super::{Carried, Gets, KEY_BYTES, Key, Remote, hash, key_of, memory, place_of, value_of};

const BUCKET_BYTES: usize = 32;
const SUM_BYTES: usize = 8;

/// The share of places that are taken, in percent (HERD §5.1.1).
const FILLED: usize = 75;

/// The places of a key.
const FUNCTIONS: u64 = 3;

/// Displacements of one insertion, before the table counts as full.
const MOVES_MAX: usize = 1_000;

/// READs of a bucket or value whose checksum does not fit.
const TRIES: usize = 16;

/// Returns a checksum: the papers leave the function open.
fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |sum, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash(sum ^ u64::from_le_bytes(word), 1)
    })
}

fn bucket(key: &Key, offset: u64, len: usize) -> [u8; BUCKET_BYTES] {
    let mut bytes = [0; BUCKET_BYTES];
    bytes[..KEY_BYTES].copy_from_slice(key);
    // The offset has 48 bits, and the length 16; a bucket in use has a length, and one without an item has none.
    bytes[16..24].copy_from_slice(&(offset | (len as u64) << 48).to_le_bytes());
    let sum = sum(&bytes[..24]);
    bytes[24..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns true if the checksum at the end of a bucket or value fits.
fn is_whole(bytes: &[u8]) -> bool {
    let (content, end) = bytes.split_at(bytes.len() - SUM_BYTES);
    sum(content).to_le_bytes() == *end
}

/// Returns the place of each item.
fn arrange(items: usize, places: usize) -> Result<Vec<Option<u64>>, Failure> {
    let mut table: Vec<Option<u64>> = vec![None; places];
    for item in 0..items as u64 {
        let (mut homeless, mut moves) = (item, 0);
        loop {
            let key = key_of(homeless);
            let of = |function| place_of(&key, function, places);
            if let Some(free) = (0..FUNCTIONS).map(of).find(|place| table[*place].is_none()) {
                table[free] = Some(homeless);
                break;
            }
            // The item that was moved last is not moved again at once, as the function follows the count.
            let place = of(hash(homeless, moves as u64) % FUNCTIONS);
            homeless = table[place].replace(homeless).expect("all places are taken");
            moves += 1;
            if moves > MOVES_MAX {
                return Err(Failure::new(Status::ResourceExhausted, "Pilaf's table is full"));
            }
        }
    }
    Ok(table)
}

pub(super) struct Client {
    remote: Remote,
    places: usize,
}

impl Client {
    /// Fills a table in memory that the card lends, and connects to it.
    pub(super) fn open(card: &Arc<Card>, items: usize, value: usize) -> Result<Self, Failure> {
        let places = items * 100 / FILLED;
        let table = arrange(items, places)?;
        let extent = (value + SUM_BYTES).next_multiple_of(8);
        let buckets = places * BUCKET_BYTES;
        let memory: WordMemory = memory(buckets + items * extent)?;
        for (place, item) in table.into_iter().enumerate() {
            let bucket = match item {
                Some(item) => {
                    let offset = (buckets + item as usize * extent) as u64;
                    let bytes = value_of(item, value);
                    memory.write(offset, &bytes);
                    memory.write(offset + value as u64, &sum(&bytes).to_le_bytes());
                    bucket(&key_of(item), offset, value + SUM_BYTES)
                }
                None => bucket(&[0; KEY_BYTES], 0, 0),
            };
            memory.write((place * BUCKET_BYTES) as u64, &bucket);
        }
        Ok(Self { remote: Remote::connect(card, &Arc::new(memory))?, places })
    }

    /// Reads bytes until the checksum at their end fits. Bytes that never become whole are lost, and not an absent item.
    fn read_summed(&mut self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        for _ in 0..TRIES {
            self.remote.read(offset, to)?;
            if is_whole(to) {
                return Ok(());
            }
        }
        Err(AccessError::Lost(u32::MAX))
    }
}

impl Gets for Client {
    fn get(&mut self, key: &Key) -> Result<Option<Vec<u8>>, AccessError> {
        for function in 0..FUNCTIONS {
            let place = place_of(key, function, self.places);
            let mut bucket = [0; BUCKET_BYTES];
            self.read_summed((place * BUCKET_BYTES) as u64, &mut bucket)?;
            if bucket[..KEY_BYTES] != *key {
                continue;
            }
            let word = u64::from_le_bytes(std::array::from_fn(|at| bucket[16 + at]));
            let (offset, len) = (word & 0xFFFF_FFFF_FFFF, (word >> 48) as usize);
            if len < SUM_BYTES {
                continue;
            }
            let mut value = vec![0; len];
            self.read_summed(offset, &mut value)?;
            value.truncate(len - SUM_BYTES);
            return Ok(Some(value));
        }
        Ok(None)
    }

    fn carried(&self) -> Carried {
        self.remote.carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrange__needs_1_6_probes_for_a_key() {
        let (items, places) = (30_000, 40_000);
        let table = arrange(items, places).unwrap();
        let probes = |place: usize, item: u64| {
            let key = key_of(item);
            (0..FUNCTIONS).position(|function| place_of(&key, function, places) == place)
        };
        let all: Vec<usize> = (table.iter().enumerate())
            .filter_map(|(place, item)| Some(1 + probes(place, (*item)?).unwrap()))
            .collect();
        assert_eq!(all.len(), items);
        let mean = all.iter().sum::<usize>() as f64 / items as f64;
        assert!((1.5..1.9).contains(&mean), "{mean}");
    }

    #[test]
    fn is_whole__sees_each_change_of_a_bucket() {
        for bytes in [bucket(&key_of(7), 1 << 40, 40), bucket(&[0; KEY_BYTES], 0, 0)] {
            assert!(is_whole(&bytes));
            for at in 0..BUCKET_BYTES {
                let mut other = bytes;
                other[at] ^= 1;
                assert!(!is_whole(&other), "byte {at}");
            }
        }
    }

    #[test]
    fn is_whole__of_memory_that_was_never_written_is_false() {
        for bytes in [BUCKET_BYTES, 40, 4_104] {
            assert!(!is_whole(&vec![0; bytes]), "{bytes} bytes");
        }
    }
}
