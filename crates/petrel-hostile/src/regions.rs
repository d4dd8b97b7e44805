//! Operations on regions that a server must refuse (`docs/wire-protocol.md` §15).

/// The methods of operations (§15.1).
pub mod method {
    /// READ.
    pub const READ: u16 = 65_520;
    /// WRITE.
    pub const WRITE: u16 = 65_521;
    /// COMPARE_SWAP.
    pub const COMPARE_SWAP: u16 = 65_522;
    /// FETCH_ADD.
    pub const FETCH_ADD: u16 = 65_523;
    /// READ_MANY.
    pub const READ_MANY: u16 = 65_524;
    /// READ_VERSIONED.
    pub const READ_VERSIONED: u16 = 65_525;
    /// WRITE_VERSIONED.
    pub const WRITE_VERSIONED: u16 = 65_526;
    /// MAP.
    pub const MAP: u16 = 65_527;
}

/// INVALID_ARGUMENT (§3.3).
pub const INVALID_ARGUMENT: u8 = 3;
/// PERMISSION_DENIED.
pub const PERMISSION_DENIED: u8 = 7;
/// OUT_OF_RANGE.
pub const OUT_OF_RANGE: u8 = 11;

/// What an attacker knows of a region.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The region's number.
    pub region: u32,
    /// The region's secret.
    pub secret: u64,
    /// The region's size, in bytes.
    pub bytes: u64,
}

/// A request that a server must refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The method.
    pub method: u16,
    /// The request.
    pub request: Vec<u8>,
    /// The status of the answer.
    pub status: u8,
}

/// The number of kinds of [`wrong`] operations.
pub const KINDS: u64 = 21;

/// Returns a request, with its header.
pub fn operation(key: &Key, offset: u64, length: u32, data: &[u8]) -> Vec<u8> {
    let mut request = key.region.to_le_bytes().to_vec();
    request.extend(length.to_le_bytes());
    request.extend(key.secret.to_le_bytes());
    request.extend(offset.to_le_bytes());
    request.extend(data);
    request
}

/// Returns an operation on a region without the right to map, whose size is no multiple of 8 and at least 16 bytes. The
/// operation is a function of `number`, which takes all [`KINDS`] in turn.
pub fn wrong(number: u64, key: &Key) -> Wrong {
    use method::*;
    let round = number / KINDS;
    let guess = key.secret ^ (round.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let word = key.bytes / 8 * 8;
    let last = u64::MAX - 7;
    let with = |offset, length, data: &[u8]| operation(key, offset, length, data);
    let (method, request, status) = match number % KINDS {
        0 => (READ, operation(&Key { secret: guess, ..*key }, 0, 8, &[]), PERMISSION_DENIED),
        1 => {
            let region = key.region + 1 + round as u32;
            (WRITE, operation(&Key { region, ..*key }, 0, 0, b"x"), PERMISSION_DENIED)
        }
        2 => (
            FETCH_ADD,
            operation(&Key { region: u32::MAX, ..*key }, 0, 0, &[1; 8]),
            PERMISSION_DENIED,
        ),
        3 => (MAP, with(0, 0, &[]), PERMISSION_DENIED),
        4 => (READ, with(u64::MAX - round % 8, 8 + round as u32, &[]), OUT_OF_RANGE),
        5 => (READ, with(key.bytes - round % 8, 8, &[]), OUT_OF_RANGE),
        6 => (READ, with(round % 8, u32::MAX, &[]), OUT_OF_RANGE),
        7 => (READ, with(key.bytes + 1 + round, 0, &[]), OUT_OF_RANGE),
        8 => (WRITE, with(u64::MAX - round % 16, 0, &[0xEE; 16]), OUT_OF_RANGE),
        9 => (WRITE, with(key.bytes - round % 8, 0, &[0xEE; 8]), OUT_OF_RANGE),
        10 => (COMPARE_SWAP, with(last, 0, &[0; 16]), OUT_OF_RANGE),
        11 => (FETCH_ADD, with(word, 0, &[1; 8]), OUT_OF_RANGE),
        12 => (FETCH_ADD, with(1 + round % 7, 0, &[1; 8]), INVALID_ARGUMENT),
        13 => (READ_VERSIONED, with(last, u32::MAX, &[]), OUT_OF_RANGE),
        14 => (READ_VERSIONED, with(0, key.bytes as u32 - 7, &[]), OUT_OF_RANGE),
        15 => (WRITE_VERSIONED, with(last, 0, &[0xEE; 8]), OUT_OF_RANGE),
        16 => {
            let request = [with(0, 8, &[]), with(key.bytes - 1, 2, &[])].concat();
            (READ_MANY, request, OUT_OF_RANGE)
        }
        17 => (READ_MANY, vec![0; (round as usize * 24) % 240 + 1], INVALID_ARGUMENT),
        18 => (WRITE, with(0, 1, &[0xEE; 8]), INVALID_ARGUMENT),
        19 => (COMPARE_SWAP, with(0, 0, &[0; 15]), INVALID_ARGUMENT),
        _ => (READ, with(0, 8, &[])[..round as usize % 24].to_vec(), INVALID_ARGUMENT),
    };
    Wrong { method, request, status }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation__is_the_layout_of_the_specification() {
        let key = Key { region: 1, secret: 0x0807_0605_0403_0201, bytes: 4_096 };
        let expected =
            [1, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(operation(&key, 0x10, 3, &[9]), expected);
    }

    #[test]
    fn wrong__guesses_another_secret_each_time() {
        let key = Key { region: 0, secret: 7, bytes: 4_093 };
        let guesses: std::collections::BTreeSet<_> =
            (0..1_000).map(|round| wrong(round * KINDS, &key).request[8..16].to_vec()).collect();
        assert_eq!(guesses.len(), 1_000);
        assert!(!guesses.contains(&7_u64.to_le_bytes()[..]));
    }
}
