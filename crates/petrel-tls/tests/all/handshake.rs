//! Connections that succeed (`docs/wire-protocol.md` §17.1).

use petrel::security::Security;
use petrel_tls::issue::Subject;
use petrel_tls::{Credentials, Suite};

use crate::common::{DAY, GOOD, Pair, address, authority, credentials, exchange, named, read_all};

fn pair() -> Pair {
    let authority = authority();
    Pair::of(&named(&authority, "client"), &named(&authority, "server"), Some("server"))
}

#[test]
fn handshake__byte_by_byte() {
    let mut pair = Pair { piece: 1, ..pair() };
    pair.opener.write(b"written before the handshake");
    assert!(pair.opener.peer().is_none() && pair.acceptor.peer().is_none());
    let [opener, acceptor] = pair.shake();
    assert_eq!(opener.dns_names, ["client"]);
    assert_eq!(acceptor.dns_names, ["server"]);
    assert_eq!(read_all(&mut *pair.acceptor), b"written before the handshake");
    exchange(&mut pair);
}

#[test]
fn handshake__in_pieces_of_all_sizes() {
    let authority = authority();
    let (client, server) = (named(&authority, "client"), named(&authority, "server"));
    for piece in [2, 3, 5, 7, 100, 1_460, 4_096, 65_536] {
        let mut pair = Pair { piece, ..Pair::of(&client, &server, Some("server")) };
        pair.shake();
        exchange(&mut pair);
    }
}

#[test]
fn handshake__with_every_suite() {
    let authority = authority();
    for suite in Suite::ALL {
        let of = |name| named(&authority, name).suites(&[suite]).unwrap();
        let mut pair = Pair::of(&of("client"), &of("server"), Some("server"));
        pair.shake();
        exchange(&mut pair);
        let keys = pair.opener.link_keys([0; 8], true).unwrap();
        assert!(format!("{keys:?}").contains(&format!("{suite:?}")), "{keys:?}");
    }
}

#[test]
fn handshake__by_address_without_a_name() {
    let authority = authority();
    Pair::of(&named(&authority, "client"), &named(&authority, "server"), None).shake();
}

#[test]
fn handshake__identities_have_all_fields() {
    let authority = authority();
    let subject = Subject::new(DAY).name("a").name("b.example").spiffe("spiffe://prod/web");
    let issued = authority.issue(&subject).unwrap();
    let mut pair = Pair::of(&credentials(&issued), &named(&authority, "server"), Some("server"));
    let [opener, _] = pair.shake();
    assert_eq!(opener.spiffe_id.as_deref(), Some("spiffe://prod/web"));
    assert_eq!(opener.dns_names, ["a", "b.example"]);
    assert_eq!(opener.fingerprint, Some(issued.fingerprint().unwrap().0));
    assert_eq!(opener.expires_at, credentials(&issued).status().expires_at);
    assert!(opener.expires_at.is_some());
    assert_eq!((opener.uid, opener.pid), (None, None));
}

#[test]
fn handshake__with_an_expected_spiffe_id() {
    let authority = authority();
    let web =
        credentials(&authority.issue(&Subject::new(DAY).spiffe("spiffe://prod/web")).unwrap());
    for expected in ["spiffe://prod/web", "spiffe://prod"] {
        let client = named(&authority, "client").expect_spiffe(expected).unwrap();
        Pair::of(&client, &web, None).shake();
        Pair::of(&client, &web, Some("any.name")).shake();
    }
}

#[test]
fn handshake__with_two_authorities_in_the_file() {
    let (old, new) = (authority(), authority());
    let both = |issued: petrel_tls::issue::Issued| {
        let pem = format!("{}{}", old.certificate(), new.certificate());
        credentials(&petrel_tls::issue::Issued { authority: pem, ..issued })
    };
    let client = both(old.issue(&Subject::new(DAY).name("client")).unwrap());
    let server = both(new.issue(&Subject::new(DAY).name("server")).unwrap());
    Pair::of(&client, &server, Some("server")).shake();
}

#[test]
fn data__of_megabytes_both_ways() {
    let mut pair = pair();
    pair.shake();
    let bytes = |seed: u64| -> Vec<u8> {
        (0..4_000_000_u64).map(|i| ((i * i + seed) >> 7) as u8).collect()
    };
    let (to_acceptor, to_opener) = (bytes(1), bytes(2));
    let (mut at_acceptor, mut at_opener) = (Vec::new(), Vec::new());
    for (there, back) in to_acceptor.chunks(70_001).zip(to_opener.chunks(70_001)) {
        pair.opener.write(there);
        pair.acceptor.write(back);
        assert_eq!(pair.carry(), GOOD);
        at_acceptor.extend(read_all(&mut *pair.acceptor));
        at_opener.extend(read_all(&mut *pair.opener));
    }
    assert!(at_acceptor == to_acceptor && at_opener == to_opener);
}

#[test]
fn data__read_in_small_pieces_between_long_messages() {
    let mut pair = pair();
    pair.shake();
    let (mut sent, mut read) = (Vec::new(), Vec::new());
    let mut buffer = [0; 30_011];
    for round in 0..40_usize {
        let message: Vec<u8> = (0..40_000).map(|i| (i * 7 + round * 13) as u8).collect();
        pair.opener.write(&message);
        sent.extend(message);
        assert_eq!(pair.carry(), GOOD);
        let length = pair.acceptor.read(&mut buffer);
        assert_eq!(length, buffer.len(), "all the buffer is filled");
        read.extend_from_slice(&buffer);
    }
    read.extend(read_all(&mut *pair.acceptor));
    assert!(read == sent);
}

#[test]
fn data__not_read_is_bounded() {
    let mut pair = pair();
    pair.shake();
    for _ in 0..16 {
        pair.opener.write(&[1; 60_000]);
        assert_eq!(pair.carry(), GOOD);
    }
    for _ in 0..3 {
        pair.opener.write(&[1; 60_000]);
    }
    let error = pair.carry().acceptor.unwrap();
    assert_eq!(error, "more than 1048576 decrypted bytes wait for the program");
    assert_eq!(pair.acceptor.receive(&[]).unwrap_err().to_string(), error);
}

#[test]
fn data__written_before_the_handshake_is_bounded() {
    let mut pair = pair();
    pair.opener.write(&[1; 65_536]);
    pair.shake();
    assert_eq!(read_all(&mut *pair.acceptor), [1; 65_536]);

    let mut pair = self::pair();
    pair.acceptor.write(&[1; 65_536]);
    pair.acceptor.write(&[1]);
    let error = pair.acceptor.receive(&[]).unwrap_err().to_string();
    assert_eq!(error, "more than 65536 bytes wait for the handshake");
}

/// Shakes hands, and returns the kind of handshake in which both ends agree.
fn kind(client: &Credentials, server: &Credentials, name: Option<&str>) -> &'static str {
    let mut pair = Pair::of(client, server, name);
    let [opener, _] = pair.shake();
    assert_eq!(opener.dns_names, ["client"]);
    exchange(&mut pair);
    let (opener, acceptor) = (format!("{:?}", pair.opener), format!("{:?}", pair.acceptor));
    let is = |kind| opener.contains(kind) && acceptor.contains(kind);
    match (is("handshake: Some(Full)"), is("handshake: Some(Resumed)")) {
        (true, false) => "full",
        (false, true) => "resumed",
        _ => panic!("{opener} {acceptor}"),
    }
}

#[test]
fn resumption__has_the_identity_of_the_first_connection() {
    let authority = authority();
    let (client, server) = (named(&authority, "client"), named(&authority, "server"));
    let kinds = |name| [(); 4].map(|()| kind(&client, &server, name));
    assert_eq!(kinds(Some("server")), ["full", "resumed", "resumed", "resumed"]);
    assert_eq!(
        kinds(None),
        ["full", "resumed", "resumed", "resumed"],
        "another name is another server"
    );
    let restarted = named(&authority, "server");
    assert_eq!(
        kind(&client, &restarted, Some("server")),
        "full",
        "tickets end with their acceptor"
    );
}

#[test]
fn resumption__of_one_ticket_happens_once() {
    let authority = authority();
    let (client, server) = (named(&authority, "client"), named(&authority, "server"));
    assert_eq!(kind(&client, &server, Some("server")), "full");
    // Two tickets came. Three connections begin before another comes.
    let mut pairs = [(); 3].map(|()| Pair::of(&client, &server, Some("server")));
    let resumed = pairs.each_mut().map(|pair| {
        pair.shake();
        format!("{:?}", pair.acceptor).contains("Resumed")
    });
    assert_eq!(resumed, [true, true, false]);
}

#[test]
fn hello__offers_the_post_quantum_group_first_and_no_early_data() {
    let authority = authority();
    let mut hello = Vec::new();
    let mut opener = named(&authority, "client").connect(address(), Some("server")).unwrap();
    opener.take_output(&mut hello);
    let has = |bytes: &[u8]| hello.windows(bytes.len()).any(|window| window == bytes);
    assert!(has(&[0, 10, 0, 10, 0, 8, 0x11, 0xec]), "supported groups, X25519MLKEM768 first");
    assert!(has(&[0, 43, 0, 3, 2, 3, 4]), "supported versions: 1.3 alone");
    assert!(has(b"\x00\x10\x00\x0b\x00\x09\x08petrel/1"), "the protocol's name");
    assert!(!has(&[0, 42, 0, 0]), "early data");
}
