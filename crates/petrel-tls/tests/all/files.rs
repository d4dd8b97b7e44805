//! Credentials of files: their checks, and their change under use.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use petrel::security::{SecureStream, Security};
use petrel_tls::issue::{Issued, Subject};
use petrel_tls::{Credentials, CredentialsStatus};

use crate::common::{DAY, Folder, Pair, address, authority, exchange};

fn subject() -> Subject {
    Subject::new(DAY).name("server")
}

/// Writes files that are good, and lets a test break them; returns the error.
#[track_caller]
fn error(subject: &Subject, breaks: impl Fn(&Folder)) -> String {
    let folder = Folder::new();
    authority().issue(subject).unwrap().write(folder.path()).unwrap();
    breaks(&folder);
    let error = Credentials::from_dir(folder.path()).unwrap_err().to_string();
    error.replace(folder.path().to_str().unwrap(), "/etc/petrel")
}

#[test]
fn from_dir__of_a_certificate_that_is_not_valid_now() {
    let from = SystemTime::now() - 10 * DAY;
    let error_of = |subject| error(&subject, |_| ());
    let text = error_of(Subject { from, lasts: 5 * DAY, ..subject() });
    assert!(
        text.starts_with("/etc/petrel/cert.pem: this process's certificate expired on "),
        "{text}"
    );
    assert!(text.ends_with("; issue a new one (`petrel cert issue`)"), "{text}");
    let text = error_of(Subject { from: SystemTime::now() + DAY, ..subject() });
    assert!(text.contains("certificate is valid from "), "{text}");
    assert!(text.ends_with(" only; check the clock, or issue it anew"), "{text}");
}

#[test]
fn from_dir__of_a_key_that_others_may_read_or_write() {
    for mode in [0o640, 0o620, 0o604, 0o602, 0o666] {
        let text = error(&subject(), |folder| {
            fs::set_permissions(folder.file("key.pem"), Permissions::from_mode(mode)).unwrap();
        });
        assert_eq!(
            text,
            format!(
                "other users have access to /etc/petrel/key.pem (mode {mode:o}): chmod 600 /etc/petrel/key.pem"
            )
        );
    }
    let text = error(&subject(), |folder| {
        fs::set_permissions(folder.file("ca.pem"), Permissions::from_mode(0o666)).unwrap();
    });
    assert_eq!(
        text,
        "other users have access to /etc/petrel/ca.pem (mode 666): chmod 644 /etc/petrel/ca.pem"
    );
}

#[test]
fn from_dir__of_a_key_of_another_certificate() {
    let text = error(&subject(), |folder| {
        let other = authority().issue(&subject()).unwrap();
        fs::write(folder.file("cert.pem"), other.certificate).unwrap();
    });
    assert!(
        text.starts_with(
            "/etc/petrel/cert.pem: the private key does not belong to the certificate"
        ),
        "{text}"
    );
}

#[test]
fn from_dir__of_missing_empty_swapped_or_endless_files() {
    for name in ["cert.pem", "key.pem", "ca.pem"] {
        let text = error(&subject(), |folder| fs::remove_file(folder.file(name)).unwrap());
        assert!(text.starts_with(&format!("/etc/petrel/{name} cannot be read: ")), "{text}");
        let text = error(&subject(), |folder| fs::write(folder.file(name), "").unwrap());
        assert!(text.starts_with(&format!("/etc/petrel/{name}: no ")), "{text}");
        let text =
            error(&subject(), |folder| fs::write(folder.file(name), vec![b'a'; 1 << 21]).unwrap());
        assert_eq!(text, format!("/etc/petrel/{name} is longer than 1048576 bytes"));
    }
    let text = error(&subject(), |folder| {
        let certificate = fs::read(folder.file("cert.pem")).unwrap();
        fs::write(folder.file("key.pem"), certificate).unwrap();
    });
    assert!(text.contains("key.pem: no private key is there"), "{text}");
}

#[test]
fn from_dir__of_another_encoding_of_the_certificate() {
    let text = error(&subject(), |folder| {
        let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        fs::write(folder.file("cert.pem"), pem).unwrap();
    });
    assert_eq!(text, "/etc/petrel/cert.pem: the certificate is no X.509 certificate in DER");
}

#[test]
fn builder__without_a_part() {
    let issued = authority().issue(&subject()).unwrap();
    let error = |builder: petrel_tls::CredentialsBuilder| builder.build().unwrap_err().to_string();
    let builder = || Credentials::builder();
    let with_key = || builder().key_pem(issued.key.as_bytes()).unwrap();
    assert_eq!(error(builder()), "the private key is missing");
    assert_eq!(error(with_key()), "this process has no certificate");
    let text = error(with_key().certificate_pem(issued.certificate.as_bytes()).unwrap());
    assert!(text.starts_with("the authorities are unusable: "), "{text}");
    assert!(builder().key_pem(b"nothing").is_err());
    assert!(builder().authorities_pem(b"nothing").is_err());
}

/// The fingerprint that a new opener sees of the acceptor.
fn seen(opener: &Credentials, acceptor: &Credentials) -> [u8; 32] {
    let [_, acceptor] = Pair::of(opener, acceptor, Some("server")).shake();
    acceptor.fingerprint.unwrap()
}

fn bytes(issued: &Issued) -> [u8; 32] {
    issued.fingerprint().unwrap().0
}

#[test]
fn reload__while_connections_live() {
    let folder = Folder::new();
    let authority = authority();
    let issue = || authority.issue(&subject()).unwrap();
    let (first, second) = (issue(), issue());
    first.write(folder.path()).unwrap();
    let server = Credentials::from_dir(folder.path()).unwrap();
    let client = crate::common::named(&authority, "client");
    let mut before = Pair::of(&client, &server, Some("server"));
    before.shake();
    let mut during = Pair::of(&client, &server, Some("server"));

    second.write(folder.path()).unwrap();
    assert_eq!(server.reload(), Ok(()));
    exchange(&mut before);
    let [_, acceptor] = during.shake();
    assert_eq!(acceptor.fingerprint, Some(bytes(&first)), "it began with the former files");
    exchange(&mut during);
    // The tickets of the former certificate are not taken any more.
    assert_eq!(seen(&client, &server), bytes(&second));
    let CredentialsStatus { loads, failure, fingerprint, .. } = server.status();
    assert_eq!((loads, failure, fingerprint.0), (2, None, bytes(&second)));
}

#[test]
fn rotation__beside_handshakes_fails_none() {
    let folder = Folder::new();
    let authority = authority();
    authority.issue(&subject()).unwrap().write(folder.path()).unwrap();
    let server = Credentials::from_dir(folder.path()).unwrap();
    let client = crate::common::named(&authority, "client");
    std::thread::scope(|scope| {
        let rotation = scope.spawn(|| {
            for _ in 0..100 {
                authority.issue(&subject()).unwrap().write(folder.path()).unwrap();
            }
        });
        while !rotation.is_finished() {
            // The files are perhaps half written, and then the former ones are used.
            let _ = server.reload();
            seen(&client, &server);
        }
    });
    server.reload().unwrap();
    let text = fs::read(folder.file("cert.pem")).unwrap();
    let last = petrel_tls::issue::fingerprint_of_certificate(&text).unwrap();
    assert_eq!(seen(&client, &server), last.0);
    assert!(server.status().loads > 1);
}

#[test]
fn reload__takes_trust_away() {
    let folder = Folder::new();
    let (old, new) = (authority(), petrel_tls::issue::Authority::new("new", DAY).unwrap());
    let issued = old.issue(&subject()).unwrap();
    issued.write(folder.path()).unwrap();
    let server = Credentials::from_dir(folder.path()).unwrap();
    let client = crate::common::named(&old, "client");
    seen(&client, &server);
    seen(&client, &server);
    fs::write(folder.file("ca.pem"), new.certificate()).unwrap();
    server.reload().unwrap();
    // The client has tickets of the time before.
    let error = Pair::of(&client, &server, Some("server")).carry().acceptor.unwrap();
    assert!(error.starts_with("no authority of ca.pem"), "{error}");
}

#[test]
fn settings__outlive_a_reload() {
    let folder = Folder::new();
    authority().issue(&subject()).unwrap().write(folder.path()).unwrap();
    let credentials = Credentials::from_dir(folder.path()).unwrap().permissive(true);
    let credentials = credentials.suites(&[petrel_tls::Suite::ChaCha20Poly1305]).unwrap();
    let hello = || {
        let mut hello = Vec::new();
        let mut opener: Box<dyn SecureStream> = credentials.connect(address(), None).unwrap();
        opener.take_output(&mut hello);
        hello
    };
    let has_one_suite = |hello: Vec<u8>| hello[76..80] == [0, 2, 0x13, 0x03];
    assert!(has_one_suite(hello()));
    authority().issue(&subject()).unwrap().write(folder.path()).unwrap();
    credentials.reload().unwrap();
    assert_eq!(credentials.status().loads, 2);
    assert!(has_one_suite(hello()) && credentials.is_permissive());
}
