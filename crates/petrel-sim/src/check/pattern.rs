//! Message bytes that follow from a number, for checks at sender and receiver.

/// Bytes of a request that hold the call number.
pub(super) const ID_BYTES: usize = 4;

/// The byte with which applications overwrite returned buffers. Not an ASCII byte.
pub(super) const OVERWRITE_BYTE: u8 = 0xC7;

/// Writes the request of call `id`. A request too short for the number is filled with its low byte.
pub(super) fn fill_request(id: u32, request: &mut [u8]) {
    if request.len() < ID_BYTES {
        return request.fill(id as u8);
    }
    let (head, rest) = request.split_at_mut(ID_BYTES);
    head.copy_from_slice(&id.to_le_bytes());
    fill(u64::from(id), rest);
}

/// Returns true if these are the bytes of the request of call `id`.
pub(super) fn is_request(id: u32, request: &[u8]) -> bool {
    if request.len() < ID_BYTES {
        return request.iter().all(|&byte| byte == id as u8);
    }
    let (head, rest) = request.split_at(ID_BYTES);
    head == id.to_le_bytes() && is_filled(u64::from(id), rest)
}

/// Returns true if these bytes are part of the request of call `id`, from `offset` on. The request has a call number.
pub(super) fn is_part_of_request(id: u32, offset: usize, part: &[u8]) -> bool {
    let in_head = ID_BYTES.saturating_sub(offset).min(part.len());
    let (head, rest) = part.split_at(in_head);
    let place = offset.min(ID_BYTES);
    head == &id.to_le_bytes()[place..place + in_head]
        && is_part_of_filled(u64::from(id), offset.saturating_sub(ID_BYTES), rest)
}

/// Returns the call number of a request, if the request is long enough to have one.
pub(super) fn id_of(request: &[u8]) -> Option<u32> {
    request.first_chunk().map(|head| u32::from_le_bytes(*head))
}

/// Returns a hash of all bytes and their places.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    let mut state = bytes.len() as u64 ^ 0x51ed_270b;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = mix(state, u64::from_le_bytes(*word));
    }
    rest.iter().fold(state, |state, &byte| mix(state, u64::from(byte)))
}

/// Fills a slice with bytes that follow from `seed`.
pub fn fill(seed: u64, bytes: &mut [u8]) {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    let count = words.len();
    for (index, place) in words.iter_mut().enumerate() {
        *place = word(seed, index).to_le_bytes();
    }
    rest.copy_from_slice(&word(seed, count).to_le_bytes()[..rest.len()]);
}

/// Returns true if [`fill`] wrote these bytes.
pub fn is_filled(seed: u64, bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let count = words.len();
    words.iter().enumerate().all(|(index, bytes)| *bytes == word(seed, index).to_le_bytes())
        && rest == &word(seed, count).to_le_bytes()[..rest.len()]
}

/// Returns true if [`fill`] writes these bytes from `offset` on.
pub(super) fn is_part_of_filled(seed: u64, offset: usize, part: &[u8]) -> bool {
    // The bytes up to the next whole word are compared first, then the words after it.
    let before = offset.next_multiple_of(8) - offset;
    let (head, rest) = part.split_at(before.min(part.len()));
    let at = offset % 8;
    let (words, tail) = rest.as_chunks::<8>();
    let first = offset.div_ceil(8);
    head == &word(seed, offset / 8).to_le_bytes()[at..at + head.len()]
        && words.iter().zip(first..).all(|(bytes, at)| *bytes == word(seed, at).to_le_bytes())
        && tail == &word(seed, first + words.len()).to_le_bytes()[..tail.len()]
}

fn word(seed: u64, index: usize) -> u64 {
    let product = (seed ^ (index as u64) << 32 ^ 0x9e37_79b9).wrapping_mul(0xd134_2543_de82_ef95);
    product ^ product >> 29
}

/// Folds a word into a state; any change of either changes the result.
pub(super) fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product.rotate_left(23) ^ state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request__is_recognised_and_every_change_noticed() {
        for len in [0, 1, 4, 5, 11, 12, 13, 100] {
            let mut request = vec![0; len];
            fill_request(0x0102_0304, &mut request);
            assert!(is_request(0x0102_0304, &request));
            assert_eq!(id_of(&request), (len >= ID_BYTES).then_some(0x0102_0304));
            let before = hash(&request);
            for place in 0..len {
                request[place] ^= 0x10;
                assert!(!is_request(0x0102_0304, &request), "byte {place} of {len}");
                assert_ne!(hash(&request), before);
                request[place] ^= 0x10;
            }
        }
    }

    #[test]
    fn parts__are_recognised_wherever_they_begin() {
        let (mut request, mut filled) = ([0; 60], [0; 60]);
        fill_request(0x0102_0304, &mut request);
        fill(9, &mut filled);
        for (from, to) in (0..60).flat_map(|from| (from..=60).map(move |to| (from, to))) {
            assert!(is_part_of_request(0x0102_0304, from, &request[from..to]), "{from}..{to}");
            assert!(is_part_of_filled(9, from, &filled[from..to]), "{from}..{to}");
            for place in from..to {
                let mut wrong = filled;
                wrong[place] ^= 1;
                assert!(!is_part_of_filled(9, from, &wrong[from..to]), "{place} in {from}..{to}");
                let mut wrong = request;
                wrong[place] ^= 1;
                assert!(!is_part_of_request(0x0102_0304, from, &wrong[from..to]));
            }
        }
    }

    #[test]
    fn fill__differs_by_seed_and_place() {
        let (mut one, mut other) = (vec![0; 64], vec![0; 64]);
        fill(1, &mut one);
        fill(2, &mut other);
        assert!(is_filled(1, &one) && is_filled(2, &other) && !is_filled(1, &other));
        assert!(!is_filled(1, &one[8..]));
    }
}
