//! Pinned raw public keys (RFC 7250).

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use petrel_tls::{Credentials, Fingerprint, issue};

use crate::common::{Folder, Pair, authority, exchange, named};

/// A process with a raw key.
struct Host {
    folder: Folder,
    fingerprint: Fingerprint,
}

impl Host {
    fn new() -> Self {
        let folder = Folder::new();
        let fingerprint = issue::new_raw_key(folder.file("key.pem")).unwrap();
        Self { folder, fingerprint }
    }

    fn known(&self) -> PathBuf {
        self.folder.file("known_peers")
    }

    fn pin(&self, name: &str, key: Fingerprint) {
        issue::pin(self.known(), name, key).unwrap();
    }

    fn credentials(&self) -> Credentials {
        Credentials::raw_key(self.folder.file("key.pem"), self.known()).unwrap()
    }
}

/// Two hosts with pinned keys: the server has a name and an address.
fn hosts() -> (Host, Host) {
    let (client, server) = (Host::new(), Host::new());
    client.pin("server", server.fingerprint);
    client.pin("192.0.2.7", server.fingerprint);
    server.pin("client", client.fingerprint);
    (client, server)
}

#[test]
fn pinned__by_name_and_address() {
    let (client, server) = hosts();
    let (of_client, of_server) = (client.credentials(), server.credentials());
    for name in [Some("server"), Some("SERVER"), None] {
        let mut pair = Pair { piece: 7, ..Pair::of(&of_client, &of_server, name) };
        let [opener, acceptor] = pair.shake();
        assert_eq!(opener.fingerprint, Some(client.fingerprint.0));
        assert_eq!(acceptor.fingerprint, Some(server.fingerprint.0));
        assert_eq!(
            (&opener.spiffe_id, &opener.dns_names, opener.expires_at),
            (&None, &vec![], None)
        );
        exchange(&mut pair);
        pair.opener.link_keys([0; 8], true).unwrap();
    }
    let again = Pair::of(&of_client, &of_server, Some("server"));
    let mut again = again;
    let [opener, _] = again.shake();
    assert!(format!("{:?}", again.opener).contains("Resumed"));
    assert_eq!(opener.fingerprint, Some(client.fingerprint.0));
}

#[test]
fn unknown__server_tells_how_to_pin_it() {
    let (client, server) = (Host::new(), Host::new());
    server.pin("client", client.fingerprint);
    let outcome = Pair::of(&client.credentials(), &server.credentials(), Some("db1")).carry();
    let (key, known) = (server.fingerprint, client.known());
    assert_eq!(
        outcome.opener.unwrap(),
        format!(
            "the key of db1 is unknown: {key}. Compare it with `petrel key show` there, then pin it: \
             `petrel key pin {} db1 {key}`",
            known.parent().unwrap().display()
        )
    );
    let refused = "the peer does not accept this certificate or key; its log says why";
    assert_eq!(outcome.acceptor.as_deref(), Some(refused));
}

#[test]
fn unknown__client_tells_how_to_pin_it() {
    let (client, server) = (Host::new(), Host::new());
    client.pin("server", server.fingerprint);
    let outcome = Pair::of(&client.credentials(), &server.credentials(), Some("server")).carry();
    let (key, known) = (client.fingerprint, server.known());
    assert_eq!(
        outcome.acceptor.unwrap(),
        format!(
            "the client's key is unknown: {key}. If you trust it, pin it: \
             `petrel key pin {} NAME {key}`",
            known.parent().unwrap().display()
        )
    );
    assert!(outcome.opener.is_some());
}

#[test]
fn changed__key_of_a_server() {
    let (client, server) = hosts();
    let other = Host::new();
    other.pin("client", client.fingerprint);
    let mut pair = Pair::of(&client.credentials(), &other.credentials(), Some("server"));
    let error = pair.carry().opener.unwrap();
    let (now, before, known) = (other.fingerprint, server.fingerprint, client.known());
    let (known, folder) = (known.display(), client.folder.path().display());
    assert_eq!(
        error,
        format!(
            "the key of server has changed: it is {now}, and {known} has {before}. If that is intended, replace the \
             line: `petrel key pin {folder} server {now}`. If not, another host answers for server"
        )
    );
    // The command's work, and the next connection.
    let of_client = client.credentials();
    assert_eq!(issue::pin(client.known(), "server", now).unwrap(), [before]);
    of_client.reload().unwrap();
    Pair::of(&of_client, &other.credentials(), Some("server")).shake();
}

#[test]
fn removed__key_of_a_client_is_refused_in_spite_of_tickets() {
    let (client, server) = hosts();
    let (of_client, of_server) = (client.credentials(), server.credentials());
    Pair::of(&of_client, &of_server, Some("server")).shake();
    fs::write(server.known(), "# empty\n").unwrap();
    of_server.reload().unwrap();
    let error = Pair::of(&of_client, &of_server, Some("server")).carry().acceptor.unwrap();
    assert!(error.starts_with("the client's key is unknown: "), "{error}");
}

#[test]
fn mixed__with_certificates() {
    let (client, server) = hosts();
    let certificates = named(&authority(), "server");
    let kinds = "one side has a raw key, the other a certificate; give both the same kind";
    let common = "the peer has nothing in common with this end: cipher suites, or the kind of keys";
    let outcome = Pair::of(&client.credentials(), &certificates, Some("server")).carry();
    assert_eq!(
        (outcome.acceptor.as_deref(), outcome.opener.as_deref()),
        (Some(kinds), Some(common))
    );
    let outcome = Pair::of(&certificates, &server.credentials(), Some("server")).carry();
    assert_eq!(
        (outcome.acceptor.as_deref(), outcome.opener.as_deref()),
        (Some(kinds), Some(common))
    );
}

#[test]
fn files__with_wrong_modes_or_lines() {
    let (client, _) = hosts();
    let error = || {
        let credentials = Credentials::raw_key(client.folder.file("key.pem"), client.known());
        credentials.unwrap_err().to_string()
    };
    fs::set_permissions(client.known(), Permissions::from_mode(0o666)).unwrap();
    assert!(error().contains("(mode 666): chmod 644 "), "{}", error());
    fs::set_permissions(client.known(), Permissions::from_mode(0o644)).unwrap();
    fs::write(client.known(), "server sha256:short\n").unwrap();
    assert!(error().contains("known_peers, line 1: "), "{}", error());
    fs::write(client.known(), "").unwrap();
    fs::set_permissions(client.folder.file("key.pem"), Permissions::from_mode(0o640)).unwrap();
    assert!(error().contains("(mode 640): chmod 600 "), "{}", error());
}

#[test]
fn expect_spiffe__of_raw_keys_is_refused() {
    let (client, _) = hosts();
    let error = client.credentials().expect_spiffe("spiffe://prod").unwrap_err().to_string();
    assert_eq!(error, "raw keys have no SPIFFE IDs; pin keys of peers instead");
}
