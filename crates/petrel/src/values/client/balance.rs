//! Load balancing: chooses the server of a call.

use super::Target;

/// How a client chooses a server among those available. Calls with a [key](crate::client::Call::key) choose by the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Balance {
    /// The server with the fewest outstanding calls of the client, relative to its [weight](Target::weight); equals
    /// take turns. Examines every server.
    #[default]
    LeastBusy,
    /// The less busy of two servers drawn at random by weight (Mitzenmacher, "The Power of Two Choices in Randomized
    /// Load Balancing", IEEE TPDS 12(10), 2001). The cost does not grow with the number of servers, and the clients of
    /// a service do not all choose the same server at once.
    TwoChoices,
}

/// Returns the hash of a key, equal in all processes: FNV-1a, mixed.
pub(crate) fn hash_of(key: &[u8]) -> u64 {
    let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    mix(key.iter().fold(0xCBF2_9CE4_8422_2325, fnv))
}

/// Returns the place of a key's owner among `count` endpoints of a process. Calls with
/// [the key](crate::client::Call::key) go to the endpoint at this place in the server's [description](crate::endpoint::ServiceDescription).
///
/// ```
/// use petrel::client::owner_of;
///
/// let owners: Vec<usize> = (0..100_u32).map(|key| owner_of(&key.to_le_bytes(), 4)).collect();
/// assert!((0..4).all(|place| owners.iter().filter(|owner| **owner == place).count() > 10));
/// ```
///
/// # Panics
/// When `count` is 0.
pub fn owner_of(key: &[u8], count: usize) -> usize {
    assert!(count > 0, "a key has an owner among some endpoints");
    place_of(hash_of(key), count)
}

/// Returns the place of a key's owner, by the hash of the key.
pub(crate) fn place_of(hash: u64, count: usize) -> usize {
    // The hash as a fraction of all hashes, times the number of places.
    ((u128::from(hash) * count as u128) >> u64::BITS) as usize
}

/// Returns the hash of a server, by its name.
pub(crate) fn hash_of_server(target: &Target) -> u64 {
    hash_of(format!("{} {}", target.address, target.asked().0).as_bytes())
}

/// Returns the rank of a server for a key, by the hashes of both: the server with the highest rank gets the call
/// (Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", IEEE/ACM ToN 6(1), 1998). Each server
/// has a share of the keys by its weight; adding or removing a server moves only its own keys.
pub(crate) fn rank(key: u64, server: u64, weight: u32) -> f64 {
    // A number evenly distributed between 0 and 1, excluding both.
    let drawn = ((mix(key ^ server) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    f64::from(weight) / -drawn.ln()
}

/// Murmur3's finaliser: each input bit changes about half of the output bits.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    bits = (bits ^ bits >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    bits ^ bits >> 33
}

/// Returns true if a server with `busy` outstanding calls and this weight is less busy than `other`. Compares the loads
/// relative to the weights, after one more call.
pub(crate) fn is_less_busy((busy, weight): (u32, u32), other: (u32, u32)) -> bool {
    let load = |busy: u32, weight: u32| (u64::from(busy) + 1) * u64::from(weight);
    load(busy, other.1) < load(other.0, weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: u64 = 20_000;

    fn targets(weights: &[u32]) -> Vec<Target> {
        let target = |(port, &weight): (u16, &u32)| {
            Target::from(std::net::SocketAddr::from(([10, 0, 0, 1], port))).weighing(weight)
        };
        (1..).zip(weights).map(target).collect()
    }

    fn server_of(key: u64, targets: &[Target]) -> Target {
        let key = hash_of(&key.to_le_bytes());
        let rank = |target: &Target| rank(key, hash_of_server(target), target.weight);
        let by_rank = |a: &&Target, b: &&Target| rank(a).total_cmp(&rank(b));
        *targets.iter().max_by(by_rank).unwrap()
    }

    #[test]
    fn rank__shares_the_keys_by_the_weights() {
        let targets = targets(&[1, 1, 2, 4]);
        for target in &targets {
            let count = (0..KEYS).filter(|key| server_of(*key, &targets) == *target).count() as f64;
            let expected = KEYS as f64 * f64::from(target.weight) / 8.0;
            assert!((count / expected - 1.0).abs() < 0.06, "{target:?}: {count}, {expected}");
        }
    }

    #[test]
    fn rank__of_servers_that_stay_moves_no_key_when_one_goes() {
        let all = targets(&[1, 2, 3, 1]);
        let left = [&all[..1], &all[2..]].concat();
        for key in 0..KEYS {
            let before = server_of(key, &all);
            let after = server_of(key, &left);
            assert!(before == all[1] || before == after, "{key}");
        }
    }

    /// Other versions must find the same owner.
    #[test]
    fn owner_of__is_the_same_for_ever_and_shares_the_keys() {
        assert_eq!([1, 2, 3, 8].map(|count| owner_of(b"petrel", count)), [0, 0, 0, 0]);
        assert_eq!([1, 2, 3, 8].map(|count| owner_of(b"", count)), [0, 1, 2, 7]);
        for count in [1, 2, 3, 16] {
            let mut owned = vec![0_u64; count];
            (0..KEYS).for_each(|key| owned[owner_of(&key.to_le_bytes(), count)] += 1);
            let expected = KEYS / count as u64;
            assert!(owned.iter().all(|keys| keys * 10 > expected * 8), "{owned:?}");
        }
    }

    /// Other versions must find the same server.
    #[test]
    fn hash_of__is_the_same_for_ever() {
        assert_eq!(hash_of(b""), 0xEFD0_1F60_BA99_2926);
        assert_eq!(hash_of(b"petrel"), 1_061_678_391_425_492_193);
    }

    #[test]
    fn is_less_busy__by_weight() {
        for (one, other, is_less) in [
            ((0, 1), (0, 1), false),
            ((0, 1), (1, 1), true),
            ((1, 1), (0, 1), false),
            // Three for a server with four times the weight.
            ((2, 4), (0, 1), true),
            ((3, 4), (0, 1), false),
            ((0, 1), (4, 4), true),
            ((u32::MAX, u32::MAX), (u32::MAX, 1), true),
        ] {
            assert_eq!(is_less_busy(one, other), is_less, "{one:?}, {other:?}");
        }
    }
}
