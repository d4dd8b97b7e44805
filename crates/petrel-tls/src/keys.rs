//! The keys of sealed datagrams (`docs/wire-protocol.md` §17.2 and §17.3).

use std::fmt;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::hkdf;
use petrel::security::SecurityError;
use petrel_transport::seal::{DatagramKey, HEAD_BYTES, TAG_BYTES};
use rustls::CipherSuite;
use zeroize::{Zeroize, Zeroizing};

/// Longest secret: that of SHA-384.
pub(crate) const SECRET_BYTES_MAX: usize = 48;

/// Longest key: that of AES-256 and ChaCha20.
const KEY_BYTES_MAX: usize = 32;

const IV_BYTES: usize = 12;

/// A cipher suite of TLS 1.3: the cipher and the hash of a connection and of its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// AES-128 in GCM, with SHA-256.
    Aes128Gcm,
    /// AES-256 in GCM, with SHA-384.
    Aes256Gcm,
    /// ChaCha20-Poly1305, with SHA-256.
    ChaCha20Poly1305,
}

impl Suite {
    /// All suites, in the order in which an opener offers them. AES-128 with SHA-256 is first, as in BoringSSL and Go: SHA-384 takes a
    /// seventh of a handshake's time, and no attack on 128 bits is known to be within reach.
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Returns the length of a link's secret: the length of the suite's hash.
    pub fn secret_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => 32,
            Self::Aes256Gcm => 48,
        }
    }

    /// Returns the suite with TLS's number, if Petrel knows it.
    pub(crate) fn of(suite: CipherSuite) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.number() == suite)
    }

    pub(crate) fn number(self) -> CipherSuite {
        match self {
            Self::Aes128Gcm => CipherSuite::TLS13_AES_128_GCM_SHA256,
            Self::Aes256Gcm => CipherSuite::TLS13_AES_256_GCM_SHA384,
            Self::ChaCha20Poly1305 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        }
    }

    fn cipher(self) -> &'static Algorithm {
        match self {
            Self::Aes128Gcm => &AES_128_GCM,
            Self::Aes256Gcm => &AES_256_GCM,
            Self::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    fn hash(self) -> hkdf::Algorithm {
        match self {
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => hkdf::HKDF_SHA256,
            Self::Aes256Gcm => hkdf::HKDF_SHA384,
        }
    }
}

/// Returns the key of epoch 0 that a secret of TLS's exporter gives. Both ends of a direction have the same secret.
///
/// # Errors
/// The secret has not the length of the suite's hash.
pub fn keys_from_secret(
    suite: Suite,
    secret: &[u8],
) -> Result<Box<dyn DatagramKey>, SecurityError> {
    if secret.len() != suite.secret_bytes() {
        let text = format!(
            "a secret of {suite:?} has {} bytes, and this one has {}",
            suite.secret_bytes(),
            secret.len()
        );
        return Err(SecurityError::new(text));
    }
    Ok(Box::new(EpochKey::new(suite, secret)))
}

/// The key of a direction in an epoch.
struct EpochKey {
    suite: Suite,
    cipher: LessSafeKey,
    iv: Zeroizing<[u8; IV_BYTES]>,
    /// The first [`Suite::secret_bytes`] count.
    secret: Zeroizing<[u8; SECRET_BYTES_MAX]>,
}

impl EpochKey {
    fn new(suite: Suite, secret: &[u8]) -> Self {
        let cipher = suite.cipher();
        let prk = hkdf::Prk::new_less_safe(suite.hash(), secret);
        let mut key = Zeroizing::new([0; KEY_BYTES_MAX]);
        let key = &mut key[..cipher.key_len()];
        expand(&prk, b"petrel key", key);
        let mut iv = Zeroizing::new([0; IV_BYTES]);
        expand(&prk, b"petrel iv", &mut *iv);
        let unbound = UnboundKey::new(cipher, key);
        key.zeroize();
        let mut kept = Zeroizing::new([0; SECRET_BYTES_MAX]);
        kept[..secret.len()].copy_from_slice(secret);
        // The cipher refuses only keys of the wrong length.
        let cipher = LessSafeKey::new(unbound.expect("the key has the cipher's length"));
        Self { suite, cipher, iv, secret: kept }
    }

    /// Returns the nonce of a number: its big-endian bytes, in the last eight of the vector.
    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = *self.iv;
        for (byte, with) in nonce[IV_BYTES - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= with;
        }
        Nonce::assume_unique_for_key(nonce)
    }
}

impl DatagramKey for EpochKey {
    fn seal(&self, number: u64, head: &[u8; HEAD_BYTES], bytes: &mut [u8]) {
        let plain = bytes.len().checked_sub(TAG_BYTES).expect("the caller leaves room for the tag");
        let (plain, room) = bytes.split_at_mut(plain);
        // The cipher writes the tag to its place, since a tag on the way through the stack waits for its own stores.
        self.cipher
            .seal_in_place_scatter(self.nonce(number), Aad::from(head), plain, &[], room)
            .expect("a datagram is shorter than the cipher's limit");
    }

    fn open(&self, number: u64, head: &[u8; HEAD_BYTES], bytes: &mut [u8]) -> bool {
        // With the tag apart, since the cipher's other function moves the plain bytes onto themselves.
        let Some((sealed, tag)) = bytes.split_last_chunk_mut::<TAG_BYTES>() else { return false };
        let nonce = self.nonce(number);
        self.cipher.open_in_place_separate_tag(nonce, Aad::from(head), tag, sealed).is_ok()
    }

    fn next(&self) -> Box<dyn DatagramKey> {
        let length = self.suite.secret_bytes();
        let prk = hkdf::Prk::new_less_safe(self.suite.hash(), &self.secret[..length]);
        let mut secret = Zeroizing::new([0; SECRET_BYTES_MAX]);
        expand(&prk, b"petrel ku", &mut secret[..length]);
        Box::new(Self::new(self.suite, &secret[..length]))
    }

    fn forgeries_max(&self) -> u64 {
        match self.suite {
            Suite::ChaCha20Poly1305 => 1 << 36,
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 52,
        }
    }
}

/// Tells the suite alone: the rest is secret.
impl fmt::Debug for EpochKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpochKey").field("suite", &self.suite).finish_non_exhaustive()
    }
}

/// A length of HKDF's output.
#[derive(Clone, Copy)]
struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Fills `to` by HKDF-Expand (RFC 5869), with `info` as it stands.
fn expand(prk: &hkdf::Prk, info: &[u8], to: &mut [u8]) {
    prk.expand(&[info], Length(to.len()))
        .and_then(|output| output.fill(to))
        .expect("keys are shorter than 255 hashes");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce__has_the_number_in_its_last_bytes() {
        for suite in Suite::ALL {
            let key = EpochKey::new(suite, &[7; SECRET_BYTES_MAX][..suite.secret_bytes()]);
            let of = |number| *key.nonce(number).as_ref();
            assert_eq!(of(0), *key.iv);
            let mut expected = *key.iv;
            expected[4] ^= 0x01;
            expected[11] ^= 0x08;
            assert_eq!(of(0x0100_0000_0000_0008), expected);
        }
    }

    #[test]
    fn debug__tells_no_secret() {
        let key = keys_from_secret(Suite::Aes128Gcm, &[0xa7; 32]).unwrap();
        assert_eq!(format!("{key:?}"), "EpochKey { suite: Aes128Gcm, .. }");
    }

    #[test]
    fn keys_from_secret__of_another_length() {
        let error = keys_from_secret(Suite::Aes256Gcm, &[0; 32]).unwrap_err().to_string();
        assert_eq!(error, "a secret of Aes256Gcm has 48 bytes, and this one has 32");
    }
}
