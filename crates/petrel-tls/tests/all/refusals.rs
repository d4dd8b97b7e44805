//! Connections that must not be: each end's error, in the words that people read.

use std::sync::Arc;
use std::time::SystemTime;

use petrel::security::Security;
use petrel_tls::Credentials;
use petrel_tls::issue::{Authority, Issued, Purpose, Subject};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, ServerConfig,
    ServerConnection, SignatureScheme,
};

use crate::common::{DAY, Foreign, Pair, Wire, address, authority, credentials, named};

const PETREL: &[&[u8]] = &[b"petrel/1"];

/// Trusts every server.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        unreachable!("TLS 1.2 is not built")
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn chain(issued: &Issued) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let certificate = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
    (vec![certificate], PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap())
}

/// An opener that trusts everybody, with a certificate or without, and with these protocols.
fn foreign_opener(issued: Option<&Issued>, protocols: &[&[u8]]) -> Box<Foreign> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting));
    let mut config = match issued.map(chain) {
        Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let name = ServerName::try_from("server").unwrap();
    Box::new(Foreign(Connection::Client(ClientConnection::new(Arc::new(config), name).unwrap())))
}

/// An acceptor that asks for no certificate.
fn foreign_acceptor(issued: &Issued, protocols: &[&[u8]]) -> Box<Foreign> {
    let (chain, key) = chain(issued);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Box::new(Foreign(Connection::Server(ServerConnection::new(Arc::new(config)).unwrap())))
}

/// The error of an acceptor of Petrel about an opener with this certificate.
#[track_caller]
fn acceptor_error(authority: &Authority, opener: Box<Foreign>) -> String {
    let acceptor = named(authority, "server").accept().unwrap();
    let mut pair = Pair::new(opener, acceptor);
    let error = pair.carry().acceptor.expect("the acceptor refuses");
    assert!(pair.acceptor.peer().is_none());
    assert!(pair.acceptor.link_keys([0; 8], false).is_err());
    assert_eq!(pair.acceptor.receive(b"more").unwrap_err().to_string(), error);
    error
}

/// The error of an opener of Petrel about an acceptor with this certificate.
#[track_caller]
fn opener_error(opener: &Credentials, acceptor: Box<Foreign>) -> String {
    let mut pair = Pair::new(opener.connect(address(), Some("server")).unwrap(), acceptor);
    pair.opener.write(b"a secret of the program");
    let error = pair.carry().opener.expect("the opener refuses");
    assert!(pair.opener.peer().is_none());
    let mut buffer = [0; 100];
    assert_eq!(pair.acceptor.read(&mut buffer), 0, "nothing of the program has left");
    error
}

/// The errors of both ends about a certificate of the other.
#[track_caller]
fn both_errors(authority: &Authority, issued: &Issued) -> [String; 2] {
    let client = named(authority, "client");
    [
        opener_error(&client, foreign_acceptor(issued, PETREL)),
        acceptor_error(authority, foreign_opener(Some(issued), PETREL)),
    ]
}

fn subject() -> Subject {
    Subject::new(DAY).name("server")
}

#[test]
fn certificate__that_expired() {
    let authority = authority();
    let from = SystemTime::now() - 10 * DAY;
    let issued = authority.issue(&Subject { from, lasts: 5 * DAY, ..subject() }).unwrap();
    for error in both_errors(&authority, &issued) {
        assert!(error.starts_with("the peer's certificate expired on "), "{error}");
        assert!(error.ends_with(" +0000; renew it there"), "{error}");
    }
}

#[test]
fn certificate__that_is_not_valid_yet() {
    let authority = authority();
    let from = SystemTime::now() + 10 * DAY;
    let issued = authority.issue(&Subject { from, ..subject() }).unwrap();
    for error in both_errors(&authority, &issued) {
        assert!(error.starts_with("the peer's certificate is valid from "), "{error}");
        assert!(error.ends_with(" only; compare the clocks of both hosts"), "{error}");
    }
}

#[test]
fn certificate__of_another_authority() {
    let issued = authority().issue(&subject()).unwrap();
    for error in both_errors(&Authority::new("another name", DAY).unwrap(), &issued) {
        assert!(
            error.starts_with("no authority of ca.pem has issued the peer's certificate"),
            "{error}"
        );
    }
    // The name is the same, and the key is another.
    for error in both_errors(&authority(), &issued) {
        assert!(error.contains("ca.pem has perhaps an authority of the same name"), "{error}");
    }
}

#[test]
fn certificate__for_another_purpose() {
    let authority = authority();
    let of = |purpose| authority.issue(&Subject { purpose, ..subject() }).unwrap();
    let (opener, acceptor) = (of(Purpose::Opener), of(Purpose::Acceptor));
    let error = opener_error(&named(&authority, "client"), foreign_acceptor(&opener, PETREL));
    assert_eq!(
        error,
        "the peer's certificate is for another purpose; issue it with the extended key usage ServerAuth"
    );
    let error = acceptor_error(&authority, foreign_opener(Some(&acceptor), PETREL));
    assert_eq!(
        error,
        "the peer's certificate is for another purpose; issue it with the extended key usage ClientAuth"
    );
    // Each is good for its own end.
    Pair::of(&credentials(&opener), &credentials(&acceptor), Some("server")).shake();
}

#[test]
fn certificate__for_another_name_or_address() {
    let authority = authority();
    let (client, server) = (named(&authority, "client"), named(&authority, "db1.example"));
    let error = |name| Pair::of(&client, &server, Some(name)).carry().opener.unwrap();
    assert_eq!(
        error("db2.example"),
        "the peer's certificate is for DnsName(\"db1.example\"), IpAddress(192.0.2.7), and not for db2.example; \
         issue it with that name, or connect by another"
    );
    assert!(error("198.51.100.1").contains("and not for 198.51.100.1;"));
    assert!(error("example").contains("and not for example;"));
    let web =
        credentials(&authority.issue(&Subject::new(DAY).spiffe("spiffe://prod/web")).unwrap());
    let error = Pair::of(&client, &web, Some("web")).carry().opener.unwrap();
    assert!(error.contains("and not for web;"), "{error}");
}

#[test]
fn certificate__with_another_spiffe_id() {
    let authority = authority();
    let web =
        credentials(&authority.issue(&Subject::new(DAY).spiffe("spiffe://prod/web")).unwrap());
    let client = || named(&authority, "client");
    for expected in ["spiffe://prod/db", "spiffe://staging"] {
        let client = client().expect_spiffe(expected).unwrap();
        let error = Pair::of(&client, &web, None).carry().opener.unwrap();
        assert_eq!(error, format!("the peer is spiffe://prod/web, and {expected} is expected"));
    }
    let client = client().expect_spiffe("spiffe://prod").unwrap();
    let mut pair = Pair::of(&client, &named(&authority, "server"), Some("server"));
    let error = pair.carry().opener.unwrap();
    assert_eq!(error, "the peer's certificate has no SPIFFE ID, and spiffe://prod is expected");
}

#[test]
fn opener__without_a_certificate() {
    let authority = authority();
    let acceptor = named(&authority, "server").accept().unwrap();
    let mut pair = Pair::new(foreign_opener(None, PETREL), acceptor);
    let outcome = pair.carry();
    assert_eq!(
        outcome.acceptor.as_deref(),
        Some("the client has no certificate; start it with credentials of its own")
    );
    assert_eq!(outcome.opener.as_deref(), Some("AlertReceived(CertificateRequired)"));
}

#[test]
fn opener__is_told_why_it_was_refused() {
    let (ours, theirs) = (authority(), Authority::new("theirs", DAY).unwrap());
    let issued = ours.issue(&Subject::new(DAY).name("client")).unwrap();
    // The client trusts the server, and the server does not trust the client.
    let client = credentials(&Issued { authority: theirs.certificate().to_owned(), ..issued });
    let outcome = Pair::of(&client, &named(&theirs, "server"), Some("server")).carry();
    assert!(outcome.acceptor.unwrap().starts_with("no authority of ca.pem"));
    assert_eq!(
        outcome.opener.as_deref(),
        Some(
            "the peer does not know the authority of this certificate; add it to the peer's ca.pem"
        )
    );
}

#[test]
fn protocol__of_another_name() {
    let authority = authority();
    let issued = authority.issue(&subject()).unwrap();
    let opener = || foreign_opener(Some(&issued), &[b"h2", b"petrel/2"]);
    let error = acceptor_error(&authority, opener());
    assert_eq!(error, "the peer speaks another protocol than `petrel/1` over TLS");
    let client = named(&authority, "client");
    let error = opener_error(&client, foreign_acceptor(&issued, &[b"h2"]));
    assert_eq!(error, "the peer does not speak `petrel/1` over TLS");
}

#[test]
fn protocol__without_a_name() {
    let authority = authority();
    let issued = authority.issue(&subject()).unwrap();
    let expected = "the peer does not ask for `petrel/1` over TLS; it is another program";
    assert_eq!(acceptor_error(&authority, foreign_opener(Some(&issued), &[])), expected);
    let client = named(&authority, "client");
    assert_eq!(opener_error(&client, foreign_acceptor(&issued, &[])), expected);
}

/// Puts a body behind its length, which has so many bytes.
fn counted(length_bytes: usize, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes()[4 - length_bytes..], body].concat()
}

fn handshake_record(kind: u8, body: &[u8]) -> Vec<u8> {
    let message = [&[kind][..], &counted(3, body)].concat();
    [&[0x16, 3, 3][..], &counted(2, &message)].concat()
}

#[test]
fn opener__of_tls_1_2_alone() {
    let extensions = [
        // Supported groups, formats of points, signature algorithms, the protocol: and no supported versions.
        &[0, 10, 0, 4, 0, 2, 0, 29][..],
        &[0, 11, 0, 2, 1, 0],
        &[0, 13, 0, 4, 0, 2, 4, 3],
        b"\x00\x10\x00\x0b\x00\x09\x08petrel/1",
    ]
    .concat();
    let hello = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &counted(2, &[0xc0, 0x2b, 0xc0, 0x2f, 0x13, 0x01]),
        &[1, 0],
        &counted(2, &extensions),
    ]
    .concat();
    let wire = Wire { output: handshake_record(1, &hello), ..Wire::default() };
    let mut pair = Pair::new(Box::new(wire), named(&authority(), "server").accept().unwrap());
    let error = pair.carry().acceptor.unwrap();
    assert_eq!(error, "the peer offers no TLS 1.3, and Petrel no older version");
}

#[test]
fn acceptor__of_tls_1_2_alone() {
    let opener = named(&authority(), "client").connect(address(), Some("server")).unwrap();
    let mut pair = Pair::new(opener, Box::new(Wire::default()));
    let hello = [&[3, 3][..], &[7; 32], &[0], &[0xc0, 0x2b], &[0], &counted(2, &[])].concat();
    pair.acceptor.write(&handshake_record(2, &hello));
    let error = pair.carry().opener.unwrap();
    assert_eq!(error, "the peer offers no TLS 1.3, and Petrel no older version");
}

#[test]
fn bytes__without_tls() {
    let authority = authority();
    let error = |bytes: &[u8]| {
        let mut acceptor = named(&authority, "server").accept().unwrap();
        acceptor.receive(bytes).unwrap_err().to_string()
    };
    assert_eq!(
        error(b"PETREL\r\n"),
        "the peer speaks Petrel without TLS; start it with credentials, or make this end permissive"
    );
    assert_eq!(error(b"GET / HTTP/1.1\r\n"), "the peer does not speak TLS");
    assert_eq!(error(&[0]), "the peer does not speak TLS");
    assert!(error(&[0x16; 100]).starts_with("TLS failed: "));
}

#[test]
fn bytes__changed_on_the_way() {
    let authority = authority();
    let (client, server) = (named(&authority, "client"), named(&authority, "server"));
    let mut pair = Pair::of(&client, &server, Some("server"));
    pair.shake();
    let mut bytes = Vec::new();
    // The first record is good, and is not read either: the program has an error, and no half of a message.
    pair.opener.write(b"pay");
    pair.opener.take_output(&mut bytes);
    pair.opener.write(b" 1");
    pair.opener.take_output(&mut bytes);
    *bytes.last_mut().unwrap() ^= 1;
    assert!(pair.acceptor.receive(&bytes).is_err());
    assert!(pair.acceptor.peer().is_none());
    assert!(pair.acceptor.link_keys([0; 8], false).is_err());
    let mut buffer = [0; 10];
    assert_eq!(pair.acceptor.read(&mut buffer), 0);
}

#[test]
fn bytes__of_every_first_flight_changed_never_open() {
    let authority = authority();
    let (client, server) = (named(&authority, "client"), named(&authority, "server"));
    let mut hello = Vec::new();
    client.connect(address(), Some("server")).unwrap().take_output(&mut hello);
    for index in (0..hello.len()).step_by(13) {
        let mut bytes = hello.clone();
        bytes[index] ^= 0x55;
        let mut acceptor = server.accept().unwrap();
        let _ = acceptor.receive(&bytes);
        assert!(acceptor.peer().is_none(), "byte {index}");
    }
}

#[test]
fn name__that_is_none() {
    let client = named(&authority(), "client");
    for name in ["server:4000", "", "a b", "http://server"] {
        let error = client.connect(address(), Some(name)).unwrap_err().to_string();
        assert_eq!(error, format!("`{name}` is no name of a host: give it without port"));
    }
}
