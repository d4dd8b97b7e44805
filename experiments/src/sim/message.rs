//! Requests and answers with every byte checked.
//!
//! A request ends with the requested length of the answer and with its number. The bytes before them do not
//! change, which saves a client writing eight megabytes for every call. The answer follows from a hash of
//! the whole request: a server that received one wrong byte answers incorrectly.

pub(super) use petrel_sim::check::pattern::{fill, is_filled};

/// Bytes of the shortest request.
pub(super) const REQUEST_BYTES_MIN: usize = 16;

/// The body of a request: everything before its last 16 bytes, and their hash.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body {
    len: usize,
    hash: u64,
}

impl Body {
    /// Writes the constant part of a request.
    pub(super) fn write(request: &mut [u8]) -> Self {
        let (body, _) = split(request.len());
        fill(request.len() as u64, &mut request[..body]);
        Self { len: request.len(), hash: hash(&request[..body]) }
    }

    /// Writes the variable part; returns the seed of the answer.
    pub(super) fn number(self, request: &mut [u8], number: u64, answer_bytes: u32) -> u64 {
        assert_eq!(request.len(), self.len, "the buffer is the one that the body was written to");
        let (body, answer_place) = split(self.len);
        request[body..answer_place].copy_from_slice(&u64::from(answer_bytes).to_le_bytes());
        request[answer_place..].copy_from_slice(&number.to_le_bytes());
        seed(self.hash, u64::from(answer_bytes), number)
    }
}

/// Returns the length of the answer and the seed of its bytes, or `None` for an invalid request.
pub(super) fn read(request: &[u8]) -> Option<(usize, u64)> {
    let (rest, number) = request.split_last_chunk::<8>()?;
    let (body, answer_bytes) = rest.split_last_chunk::<8>()?;
    let answer_bytes = u64::from_le_bytes(*answer_bytes);
    let seed = seed(hash(body), answer_bytes, u64::from_le_bytes(*number));
    Some((usize::try_from(answer_bytes).ok()?, seed))
}

fn split(len: usize) -> (usize, usize) {
    (len - REQUEST_BYTES_MIN, len - REQUEST_BYTES_MIN / 2)
}

fn seed(hash: u64, answer_bytes: u64, number: u64) -> u64 {
    mix(mix(hash, answer_bytes), number)
}

/// Returns a hash of all bytes and their places. Four states take turns, because every mixing step waits
/// for the previous one.
fn hash(bytes: &[u8]) -> u64 {
    let mut states = [1, 2, 3, bytes.len() as u64];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (state, word) in states.iter_mut().zip(words) {
            *state = mix(*state, u64::from_le_bytes(*word));
        }
    }
    let rest = rest.iter().fold(0, |state, &byte| mix(state, u64::from(byte)));
    states.into_iter().fold(rest, mix)
}

/// Folds a word into a state; any change of either changes the result.
fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ product >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request__is_read_as_it_was_written() {
        for len in [16, 17, 32, 47, 48, 80, 1_000] {
            let mut request = vec![0; len];
            let body = Body::write(&mut request);
            let seed = body.number(&mut request, 7, 100);
            assert_eq!(read(&request), Some((100, seed)));
            assert_ne!(body.number(&mut request, 8, 100), seed, "another number");
        }
        assert_eq!(read(&[0; 15]), None);
    }

    #[test]
    fn request__every_changed_byte_changes_the_answer() {
        let mut request = vec![0; 111];
        let seed = Body::write(&mut request).number(&mut request, 7, 100);
        for place in 0..request.len() {
            request[place] ^= 0x10;
            assert_ne!(read(&request), Some((100, seed)), "byte {place}");
            request[place] ^= 0x10;
        }
    }

    #[test]
    fn answer__every_changed_byte_is_noticed() {
        for len in [0, 1, 7, 8, 32, 45] {
            let mut answer = vec![0; len];
            fill(9, &mut answer);
            assert!(is_filled(9, &answer) && (len == 0 || !is_filled(10, &answer)));
            for place in 0..len {
                answer[place] ^= 1;
                assert!(!is_filled(9, &answer), "byte {place} of {len}");
                answer[place] ^= 1;
            }
        }
    }
}
