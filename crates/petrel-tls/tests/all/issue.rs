//! Certificates, raw keys and pins that Petrel makes.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use petrel_tls::issue::{self, Authority, Subject};
use petrel_tls::{Credentials, Fingerprint};

use crate::common::{DAY, Folder, Pair, authority};

fn mode(path: std::path::PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn issued__files_have_their_modes_and_nothing_is_left_beside() {
    let folder = Folder::new();
    for _ in 0..2 {
        authority().issue(&Subject::new(DAY).name("a")).unwrap().write(folder.path()).unwrap();
        let modes = ["key.pem", "cert.pem", "ca.pem"].map(|name| mode(folder.file(name)));
        assert_eq!(modes, [0o600, 0o644, 0o644]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }
    let issued = authority().issue(&Subject::new(DAY).name("a")).unwrap();
    issued.write(folder.file("a/new/folder")).unwrap();
    Credentials::from_dir(folder.file("a/new/folder")).unwrap();
}

#[test]
fn authority__of_files_issues_what_the_first_would() {
    let folder = Folder::new();
    let (certificate, key) = (folder.file("ca.pem"), folder.file("ca-key.pem"));
    let first = authority();
    first.write(&certificate, &key).unwrap();
    assert_eq!((mode(certificate.clone()), mode(key.clone())), (0o644, 0o600));
    let second = Authority::read(&certificate, &key).unwrap();
    assert_eq!(second.certificate(), first.certificate());
    let client = crate::common::named(&first, "client");
    let server = crate::common::named(&second, "server");
    Pair::of(&client, &server, Some("server")).shake();

    let error = first.write(&certificate, &key).unwrap_err().to_string();
    assert!(error.contains("ca-key.pem cannot be written: "), "{error}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let error = Authority::read(&certificate, &key).unwrap_err().to_string();
    assert!(error.contains("chmod 600"), "{error}");
}

#[test]
fn issue__of_subjects_that_cannot_be() {
    let error = |subject: Subject| authority().issue(&subject).unwrap_err().to_string();
    let none = error(Subject::new(DAY));
    assert_eq!(none, "a certificate needs a name, an address or a SPIFFE ID");
    assert!(error(Subject::new(DAY).name("ä")).starts_with("the certificate cannot be made: "));
}

#[test]
fn raw_key__has_its_mode_and_one_fingerprint() {
    let folder = Folder::new();
    let path = folder.file("key.pem");
    let fingerprint = issue::new_raw_key(&path).unwrap();
    assert_eq!(mode(path.clone()), 0o600);
    assert_eq!(issue::fingerprint_of_raw_key(&path).unwrap(), fingerprint);
    assert_eq!(fingerprint.to_string().parse::<Fingerprint>().unwrap(), fingerprint);
    let credentials = Credentials::raw_key(&path, folder.file("none")).unwrap();
    assert_eq!(credentials.status().fingerprint, fingerprint);
    assert_eq!(credentials.status().expires_at, None);
    fs::write(folder.file("known_peers"), "").unwrap();
    let credentials = Credentials::from_dir(folder.path()).unwrap();
    assert_eq!(credentials.status().fingerprint, fingerprint);
    let error = issue::new_raw_key(&path).unwrap_err().to_string();
    assert!(error.contains("key.pem cannot be written: "), "{error}");
    assert_eq!(issue::fingerprint_of_raw_key(&path).unwrap(), fingerprint, "the key is kept");
}

#[test]
fn pin__replaces_the_lines_of_a_name_and_keeps_the_others() {
    let folder = Folder::new();
    let path = folder.file("known_peers");
    let key = |byte| Fingerprint([byte; 32]);
    let (one, two, three) = (key(1), key(2), key(3));
    fs::write(&path, format!("# ours\nDb1 {one} # old\ndb2 {two}\ndb1 {two}\n")).unwrap();
    assert_eq!(issue::pin(&path, "db1", three).unwrap(), [one, two]);
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("# ours\ndb2 {two}\ndb1 {three}\n"));
    assert_eq!(mode(path.clone()), 0o644);
    assert_eq!(issue::pin(folder.file("new"), "::1", one).unwrap(), []);
    assert_eq!(fs::read_to_string(folder.file("new")).unwrap(), format!("::1 {one}\n"));
    for name in ["", "a b", "#a", "a\nb"] {
        assert!(issue::pin(&path, name, one).is_err(), "{name:?}");
    }
    fs::write(&path, "broken\n").unwrap();
    assert!(issue::pin(&path, "db1", one).is_err(), "a broken file is not replaced");
    assert_eq!(fs::read_to_string(&path).unwrap(), "broken\n");
}

#[test]
fn revoke_and_pin__at_once_lose_no_entry() {
    let folder = Folder::new();
    let key = |byte| Fingerprint([byte; 32]);
    std::thread::scope(|scope| {
        for byte in 0..16 {
            let folder = &folder;
            scope.spawn(move || {
                issue::revoke(folder.path(), key(byte)).unwrap();
                issue::pin(folder.file("known_peers"), &format!("db{byte}"), key(byte)).unwrap();
            });
        }
    });
    for file in ["revoked", "known_peers"] {
        let text = fs::read_to_string(folder.file(file)).unwrap();
        assert!((0..16).all(|byte| text.contains(&key(byte).to_string())), "{text}");
    }
}
