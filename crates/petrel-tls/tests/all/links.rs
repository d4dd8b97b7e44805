//! Keys of links (`docs/wire-protocol.md` §17.2).

use petrel::security::SecureStream;
use petrel_tls::Suite;
use petrel_transport::seal::{DatagramKey, HEAD_BYTES, TAG_BYTES};

use crate::common::{Pair, authority, named};

const HEAD: [u8; HEAD_BYTES] = *b"\x0e\x01\0\0\x05\0\0\0\0\0\0\0";

/// Seals bytes that tell keys apart.
fn sealed(key: &dyn DatagramKey) -> Vec<u8> {
    let mut bytes = vec![0; 32 + TAG_BYTES];
    key.seal(5, &HEAD, &mut bytes);
    bytes
}

fn opens(key: &dyn DatagramKey, bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    let is_open = key.open(5, &HEAD, &mut bytes);
    is_open && bytes[..32] == [0; 32]
}

/// Contexts of links that differ in one byte from the first.
fn contexts() -> [[u8; 8]; 9] {
    let mut contexts = [[1, 2, 3, 4, 5, 6, 7, 8]; 9];
    for index in 0..8 {
        contexts[index + 1][index] ^= 0x80;
    }
    contexts
}

#[test]
fn link_keys__of_both_ends_fit_each_other_and_no_others() {
    let authority = authority();
    for suite in Suite::ALL {
        let of = |name| named(&authority, name).suites(&[suite]).unwrap();
        let (client, server) = (of("client"), of("server"));
        let mut connections = [(); 2].map(|()| Pair::of(&client, &server, Some("server")));
        let mut all: Vec<Vec<u8>> = Vec::new();
        for pair in &mut connections {
            pair.shake();
            for context in contexts() {
                let mut opener = pair.opener.link_keys(context, true).unwrap();
                let mut acceptor = pair.acceptor.link_keys(context, false).unwrap();
                for _epoch in 0..3 {
                    let (there, back) = (sealed(&*opener.send), sealed(&*acceptor.send));
                    assert!(opens(&*acceptor.receive, &there) && opens(&*opener.receive, &back));
                    assert!(!opens(&*opener.receive, &there) && !opens(&*acceptor.receive, &back));
                    all.extend([there, back]);
                    opener.send = opener.send.next();
                    opener.receive = opener.receive.next();
                    acceptor.send = acceptor.send.next();
                    acceptor.receive = acceptor.receive.next();
                }
            }
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!((all.len(), count), (108, 2 * 9 * 3 * 2), "no two keys are equal");
    }
}

#[test]
fn link_keys__before_the_handshake_is_over() {
    let authority = authority();
    let pair = Pair::of(&named(&authority, "client"), &named(&authority, "server"), None);
    for end in [&*pair.opener, &*pair.acceptor] as [&dyn SecureStream; 2] {
        let error = end.link_keys([0; 8], true).unwrap_err().to_string();
        assert_eq!(error, "a link has no keys before the handshake is over");
    }
}

#[test]
fn debug__of_ends_and_keys_tells_no_secret() {
    let authority = authority();
    let issued =
        authority.issue(&petrel_tls::issue::Subject::new(crate::common::DAY).name("a")).unwrap();
    let credentials = crate::common::credentials(&issued);
    let mut pair = Pair::of(&credentials, &credentials, Some("a"));
    pair.opener.write(b"marker of the program");
    let before = format!("{:?} {:?}", pair.opener, pair.acceptor);
    pair.shake();
    let keys = pair.opener.link_keys([1; 8], true).unwrap();
    let texts = [
        before,
        format!(
            "{:?} {:?} {keys:?} {credentials:?} {issued:?} {authority:?}",
            pair.opener, pair.acceptor
        ),
    ];
    let secret = issued.key.lines().nth(1).unwrap();
    for text in texts {
        assert!(!text.contains("marker") && !text.contains(secret), "{text}");
        // Numbers of secret bytes would stand in lists; those of fingerprints do.
        let lists = text.matches(", ").count();
        let fingerprints =
            text.matches("fingerprint: Some([").count() + text.matches("Fingerprint([").count();
        assert!(lists <= fingerprints * 32 + 40, "{text}");
    }
}
