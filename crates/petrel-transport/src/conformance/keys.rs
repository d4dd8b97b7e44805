//! Keys for tests of sealed links.

use crate::seal::{DatagramKey, HEAD_BYTES, SealedLink, TAG_BYTES};

/// A key for tests. **It is not secure**: a keystream without any strength, and a keyed checksum instead of a message
/// authentication code. It detects the errors and the attacks of tests: changed bytes, other numbers, heads, keys and epochs.
#[derive(Clone, Debug)]
pub struct TestKey {
    secret: u64,
    forgeries_max: u64,
}

/// The finaliser of SplitMix64.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

impl TestKey {
    /// The key of the first epoch.
    pub fn new(secret: u64) -> Self {
        Self { secret: mix(secret ^ 0x9E37_79B9_7F4A_7C15), forgeries_max: 1 << 36 }
    }

    /// The same key with another limit of forgeries.
    #[must_use]
    pub fn with_forgeries_max(self, forgeries_max: u64) -> Self {
        Self { forgeries_max, ..self }
    }

    fn apply_stream(&self, number: u64, text: &mut [u8]) {
        for (index, block) in (0u64..).zip(text.chunks_mut(8)) {
            let stream = mix(mix(self.secret ^ number).wrapping_add(index)).to_le_bytes();
            block.iter_mut().zip(stream).for_each(|(byte, key)| *byte ^= key);
        }
    }

    fn tag(&self, number: u64, head: &[u8; HEAD_BYTES], text: &[u8]) -> [u8; TAG_BYTES] {
        let mut sums = [mix(self.secret ^ !number), mix(self.secret.rotate_left(32) ^ number)];
        for block in head.chunks(8).chain(text.chunks(8)) {
            let mut word = [0; 8];
            word[..block.len()].copy_from_slice(block);
            let word = u64::from_le_bytes(word);
            sums = [mix(sums[0] ^ word), mix(sums[1].wrapping_add(word))];
        }
        let mut tag = [0; TAG_BYTES];
        tag[..8].copy_from_slice(&mix(sums[0] ^ text.len() as u64).to_le_bytes());
        tag[8..].copy_from_slice(&mix(sums[1] ^ text.len() as u64).to_le_bytes());
        tag
    }
}

impl DatagramKey for TestKey {
    fn seal(&self, number: u64, head: &[u8; HEAD_BYTES], bytes: &mut [u8]) {
        let (text, tag) = bytes.split_at_mut(bytes.len() - TAG_BYTES);
        self.apply_stream(number, text);
        tag.copy_from_slice(&self.tag(number, head, text));
    }

    fn open(&self, number: u64, head: &[u8; HEAD_BYTES], bytes: &mut [u8]) -> bool {
        let (text, tag) = bytes.split_at_mut(bytes.len() - TAG_BYTES);
        let sent = <[u8; TAG_BYTES]>::try_from(&*tag).expect("split off with this length");
        let [sent, right] = [sent, self.tag(number, head, text)].map(u128::from_le_bytes);
        // By a hash: a fuzzer learns from the operands of comparisons, and has found a right tag among them.
        let differs = sent ^ right;
        let is_authentic = mix(differs as u64) | mix((differs >> 64) as u64) == 0;
        // Also if not: the contents are unspecified then, and no caller may rely on them.
        self.apply_stream(number, text);
        is_authentic
    }

    fn next(&self) -> Box<dyn DatagramKey> {
        Box::new(Self { secret: mix(self.secret.wrapping_add(1)), ..*self })
    }

    fn forgeries_max(&self) -> u64 {
        self.forgeries_max
    }
}

/// Returns both ends of a sealed link, which is not secure: see [`TestKey`]. The first end has the first path.
pub fn sealed_link(secret: u64, paths: [u32; 2]) -> [SealedLink; 2] {
    let key =
        |direction| -> Box<dyn DatagramKey> { Box::new(TestKey::new(secret << 1 | direction)) };
    [0, 1].map(|end| SealedLink {
        local_path: paths[end],
        remote_path: paths[1 - end],
        send: key(end as u64),
        receive: key(1 - end as u64),
    })
}
