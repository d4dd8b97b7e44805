//! The vectors of sealed datagrams in `docs/wire-vectors.md`, §17.3.

use petrel_tls::{Suite, keys_from_secret};
use petrel_transport::seal::{EPOCH_DATAGRAMS, HEAD_BYTES, TAG_BYTES};

const PAGE: &str = include_str!("../../../../docs/wire-vectors.md");

/// The fields of a block, in their order.
const FIELDS: [&str; 10] = [
    "name:",
    "suite:",
    "secret:",
    "epoch:",
    "key:",
    "iv:",
    "number:",
    "head:",
    "plain:",
    "datagram:",
];

/// Returns the text of a field: up to the next field, or the end of the block.
fn field(block: &'static str, name: &str) -> &'static str {
    let index = FIELDS.iter().position(|field| *field == name).unwrap();
    let start = block.find(name).unwrap() + name.len();
    let end = FIELDS.get(index + 1).map(|next| block.find(&format!("\n{next}")).unwrap());
    block[start..end.unwrap_or(block.len())].trim()
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

#[test]
fn vectors__seal_and_open() {
    let blocks = PAGE.split("```sealed-vector\n").skip(1);
    let blocks: Vec<_> = blocks.map(|block| block.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 8, "the vectors are found");
    for block in blocks {
        let name = field(block, "name:");
        let suite = match field(block, "suite:") {
            "AES-128-GCM" => Suite::Aes128Gcm,
            "AES-256-GCM" => Suite::Aes256Gcm,
            "ChaCha20-Poly1305" => Suite::ChaCha20Poly1305,
            other => panic!("{name}: {other}"),
        };
        let number: u64 = field(block, "number:").parse().unwrap();
        let epoch: u64 = field(block, "epoch:").parse().unwrap();
        assert_eq!(epoch, number / EPOCH_DATAGRAMS, "{name}");
        let head: [u8; HEAD_BYTES] = bytes(field(block, "head:")).try_into().unwrap();
        assert_eq!(head[4..], number.to_le_bytes(), "{name}");
        let plain = bytes(field(block, "plain:"));
        let datagram = bytes(field(block, "datagram:"));

        let mut key = keys_from_secret(suite, &bytes(field(block, "secret:"))).unwrap();
        for _ in 0..epoch {
            key = key.next();
        }
        let mut sealed = [&plain[..], &[0; TAG_BYTES]].concat();
        key.seal(number, &head, &mut sealed);
        assert_eq!([&head[..], &sealed].concat(), datagram, "{name}");
        let mut opened = datagram[HEAD_BYTES..].to_vec();
        assert!(key.open(number, &head, &mut opened), "{name}");
        assert_eq!(opened[..plain.len()], plain, "{name}");
    }
}
