//! A computation without accesses: SipHash-2-4 of 8 bytes, again and again (G-Opt §2.6.2 has CityHash).

use petrel_batch_bench::served::{Service, Workload};

/// Keys that are hashed together. Their instructions overlap.
const LANES: usize = 4;

/// The lower half of a number's hash, after some steps.
pub struct Hashes {
    steps: usize,
}

/// The four words of a hash in progress, by lane.
type States = [[u64; 4]; LANES];

fn mix(states: &mut States, rounds: usize) {
    for _ in 0..rounds {
        for state in &mut *states {
            let [mut a, mut b, mut c, mut d] = *state;
            a = a.wrapping_add(b);
            c = c.wrapping_add(d);
            b = b.rotate_left(13) ^ a;
            d = d.rotate_left(16) ^ c;
            a = a.rotate_left(32);
            c = c.wrapping_add(b);
            a = a.wrapping_add(d);
            b = b.rotate_left(17) ^ c;
            d = d.rotate_left(21) ^ a;
            c = c.rotate_left(32);
            *state = [a, b, c, d];
        }
    }
}

/// Returns the hashes of numbers under a key of zeros (Aumasson and Bernstein 2012).
fn hash(messages: [u64; LANES]) -> [u64; LANES] {
    const START: [u64; 4] = [
        0x736f_6d65_7073_6575,
        0x646f_7261_6e64_6f6d,
        0x6c79_6765_6e65_7261,
        0x7465_6462_7974_6573,
    ];
    let mut states = [START; LANES];
    // The last block has the message's length in its highest byte.
    for block in [messages, [8 << 56; LANES]] {
        states.iter_mut().zip(block).for_each(|(state, word)| state[3] ^= word);
        mix(&mut states, 2);
        states.iter_mut().zip(block).for_each(|(state, word)| state[0] ^= word);
    }
    states.iter_mut().for_each(|state| state[2] ^= 0xff);
    mix(&mut states, 4);
    states.map(|[a, b, c, d]| a ^ b ^ c ^ d)
}

/// Returns the hash by the standard library.
fn computed(key: u64, steps: usize) -> u32 {
    // The only hasher with this algorithm by promise; its successors leave the algorithm open.
    #[allow(deprecated)]
    let step = |key: u64| {
        let mut hasher = std::hash::SipHasher::new();
        std::hash::Hasher::write(&mut hasher, &key.to_le_bytes());
        std::hash::Hasher::finish(&hasher)
    };
    (0..steps).fold(key, |key, _| step(key)) as u32
}

impl Hashes {
    /// Returns numbers with their hashes.
    pub fn workload(count: usize, steps: usize) -> Workload<Self> {
        let keys: Vec<u64> =
            (1..=count as u64).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let answers = keys.iter().map(|key| computed(*key, steps)).collect();
        Workload { title: "SipHash-2-4".to_owned(), service: Self { steps }, keys, answers }
    }
}

impl Service for Hashes {
    type Key = u64;
    type Message = [u8; 8];

    fn message(key: u64) -> [u8; 8] {
        key.to_le_bytes()
    }

    fn key(message: &[u8]) -> u64 {
        message.try_into().map_or(0, u64::from_le_bytes)
    }

    /// There is no table.
    fn first_line(&self, _: u64) -> *const u8 {
        std::ptr::from_ref(self).cast()
    }

    fn arrays(&self) -> Vec<*const [u8]> {
        Vec::new()
    }

    fn find(&self, key: u64) -> u32 {
        (0..self.steps).fold([key; LANES], |keys, _| hash(keys))[0] as u32
    }

    fn find_batch(&self, keys: impl Iterator<Item = u64>, mut each: impl FnMut(usize, u32)) {
        let (mut lanes, mut waiting, mut first) = ([0; LANES], 0, 0);
        let mut answer = |lanes: [u64; LANES], count: usize, first: usize| {
            let hashes = (0..self.steps).fold(lanes, |keys, _| hash(keys));
            (0..count).for_each(|lane| each(first + lane, hashes[lane] as u32));
        };
        for key in keys {
            lanes[waiting] = key;
            waiting += 1;
            if waiting == LANES {
                answer(lanes, LANES, first);
                (waiting, first) = (0, first + LANES);
            }
        }
        answer(lanes, waiting, first);
    }
}
