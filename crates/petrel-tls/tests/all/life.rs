//! The life of credentials in use: rotation under load, certificates that end, and revocation.

use std::collections::HashSet;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use petrel::client::Client;
use petrel::endpoint::AllowedTransports;
use petrel::security::Security;
use petrel::server::RunningServer;
use petrel::{Error, Server};
use petrel_tls::issue::{self, Authority, Subject};
use petrel_tls::{Credentials, Fingerprint};

use crate::common::{DAY, Folder, GOOD, Pair, authority, media, named};

const WHO: u16 = 1;

/// How long a test waits for an expected event.
const LONG: Duration = Duration::from_secs(60);

fn poll<T>(mut is_there: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = is_there() {
            return found;
        }
        assert!(Instant::now() < end, "it never comes");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Writes a new certificate into a folder.
fn renew(authority: &Authority, folder: &Folder, lasts: Duration) -> Fingerprint {
    let subject = Subject::new(lasts).name("127.0.0.1");
    let issued = authority.issue(&subject).unwrap();
    issued.write(folder.path()).unwrap();
    issued.fingerprint().unwrap()
}

/// A server for questions of clients about the own fingerprint.
fn server(credentials: Credentials) -> RunningServer {
    let server = Server::bind("127.0.0.1:0").credentials(Arc::new(credentials)).serve(
        |_| (),
        |endpoint| {
            endpoint.on(WHO, |_, cx, request| {
                let peer = request.peer(cx).expect("the session is open");
                let identity = peer.identity.as_deref().expect("the peer has proven who it is");
                request.reply(cx, &identity.fingerprint.unwrap())
            });
        },
    );
    server.start().unwrap()
}

fn client(credentials: Credentials, to: SocketAddr, medium: AllowedTransports) -> Client {
    Client::builder()
        .credentials(Arc::new(credentials))
        .transports(medium)
        .connect_wait(to)
        .unwrap()
}

/// Calls, and returns the client's fingerprint as seen by the server.
fn who(client: &Client) -> Result<Fingerprint, Error> {
    // On a busy machine a handshake may outlast a certificate of seconds: calls wait for the next connection.
    let answer = client.call(WHO, b"").timeout(LONG).wait_for_ready().wait()?;
    Ok(Fingerprint(answer[..].try_into().unwrap()))
}

#[test]
fn rotation__under_load_loses_no_call() {
    const LASTS: Duration = Duration::from_secs(3);
    const ROTATIONS: usize = 8;
    let authority = authority();
    let folders = [(); 4].map(|()| Folder::new());
    let renew_all = || {
        for folder in &folders {
            renew(&authority, folder, LASTS);
        }
    };
    renew_all();
    let server = server(Credentials::from_dir(folders[3].path()).unwrap());
    let address = server.local_addr();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = [0, 1, 2].map(|index| {
            let (folder, medium, is_over) = (folders[index].path(), media()[index].1, &is_over);
            scope.spawn(move || {
                // A handshake on a busy machine may outlast the certificate.
                let client = loop {
                    let credentials = Credentials::from_dir(folder).unwrap();
                    let client = Client::builder().credentials(Arc::new(credentials));
                    if let Ok(client) = client.transports(medium).connect_wait(address) {
                        break client;
                    }
                };
                let (mut seen, mut calls) = (HashSet::new(), 0_u64);
                while !is_over.load(Ordering::Relaxed) {
                    seen.insert(
                        who(&client).unwrap_or_else(|error| panic!("call {calls}: {error}")),
                    );
                    calls += 1;
                }
                (seen.len(), calls)
            })
        });
        for _ in 0..ROTATIONS {
            thread::sleep(Duration::from_secs(1));
            renew_all();
        }
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            // A certificate lives for three rotations at most: a client has had several.
            let (certificates, calls) = client.join().unwrap();
            assert!(certificates >= ROTATIONS / 3 && calls > 100, "{certificates}, {calls} calls");
        }
    });
}

#[test]
fn ticket__does_not_outlive_its_certificate() {
    let authority = authority();
    for is_opener in [true, false] {
        let folder = Folder::new();
        renew(&authority, &folder, Duration::from_secs(10));
        let short = Credentials::from_dir(folder.path()).unwrap();
        let long = named(&authority, "127.0.0.1");
        let (opener, acceptor) = if is_opener { (short, long) } else { (long, short) };
        let pair = || Pair::of(&opener, &acceptor, Some("127.0.0.1"));
        let ends = |pair: &mut Pair| pair.shake().map(|peer| peer.expires_at);
        let mut first = pair();
        let of_first = ends(&mut first);
        let mut resumed = pair();
        assert_eq!(ends(&mut resumed), of_first);
        assert!(format!("{:?}", resumed.opener).contains("Resumed"));
        let soonest = of_first.iter().min().copied().flatten();
        assert_eq!(
            (resumed.opener.expires_at(), resumed.acceptor.expires_at()),
            (soonest, soonest)
        );
        // These begin while the own certificate is good, with a ticket each.
        let mut late: Vec<Pair> = (0..2).map(|_| pair()).collect();
        poll(|| opener.connect(([127, 0, 0, 1], 1).into(), None).and(acceptor.accept()).err());
        for pair in &mut late {
            let outcome = pair.carry();
            let error = outcome.opener.into_iter().chain(outcome.acceptor).next().unwrap();
            assert!(error.contains("expired"), "{error}");
        }
    }
}

#[test]
fn revoked__peers_lose_their_connections_and_get_no_others() {
    let authority = authority();
    let [of_server, bad, good] = [(); 3].map(|()| Folder::new());
    renew(&authority, &of_server, DAY);
    let (fingerprint, _) = (renew(&authority, &bad, DAY), renew(&authority, &good, DAY));
    let server = server(Credentials::from_dir(of_server.path()).unwrap());
    for (_, medium) in media() {
        let connect = |folder: &Folder| {
            client(Credentials::from_dir(folder.path()).unwrap(), server.local_addr(), medium)
        };
        let (revoked, honest) = (connect(&bad), connect(&good));
        assert_eq!(who(&revoked).unwrap(), fingerprint);
        let standing = who(&honest).unwrap();
        issue::revoke(of_server.path(), fingerprint).unwrap();
        issue::revoke(of_server.path(), fingerprint).unwrap();
        let quick = || revoked.call(WHO, b"").timeout(Duration::from_secs(1)).wait().err();
        let error = poll(quick).to_string();
        let refused = Client::builder()
            .credentials(Arc::new(Credentials::from_dir(bad.path()).unwrap()))
            .connect_wait(server.local_addr());
        assert!(refused.is_err(), "{error}");
        assert_eq!(who(&honest).unwrap(), standing);
        fs::remove_file(of_server.file("revoked")).unwrap();
        poll(|| who(&revoked).ok());
    }
}

#[test]
fn revoked__file_with_a_broken_line_changes_nothing() {
    let authority = authority();
    let folder = Folder::new();
    let own = renew(&authority, &folder, DAY);
    issue::revoke(folder.path(), own).unwrap();
    let credentials = Credentials::from_dir(folder.path()).unwrap();
    let before = credentials.revision();
    let peer =
        Pair::of(&named(&authority, "a"), &named(&authority, "b"), Some("b")).shake()[1].clone();
    assert_eq!(credentials.distrusts(&peer), None);
    let theirs = Fingerprint(peer.fingerprint.unwrap());
    fs::write(folder.file("revoked"), format!("# one\n{theirs} # the other\nsha1:AAAA\n")).unwrap();
    let error = credentials.reload().unwrap_err().to_string();
    assert!(error.contains("revoked: `sha1:AAAA` is no fingerprint"), "{error}");
    assert_eq!((credentials.distrusts(&peer), credentials.revision()), (None, before));
    fs::write(folder.file("revoked"), format!("# one\n{theirs} # the other\n")).unwrap();
    // A revocation holds beside a broken certificate.
    fs::write(folder.file("cert.pem"), "").unwrap();
    assert!(credentials.reload().is_err());
    assert!(credentials.revision() > before);
    assert!(credentials.distrusts(&peer).unwrap().contains("is revoked here"));
    // A folder that is gone revokes nothing, and takes nothing back.
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(credentials.reload().is_err());
    assert!(credentials.distrusts(&peer).unwrap().contains("is revoked here"));
}

#[test]
fn pin__taken_out_ends_the_connections_of_the_key() {
    let [of_server, of_client] = [(); 2].map(|()| Folder::new());
    let [key, client_key] =
        [&of_server, &of_client].map(|folder| issue::new_raw_key(folder.file("key.pem")).unwrap());
    issue::pin(of_client.file("known_peers"), "127.0.0.1", key).unwrap();
    issue::pin(of_server.file("known_peers"), "client", client_key).unwrap();
    let read = |folder: &Folder| {
        Credentials::raw_key(folder.file("key.pem"), folder.file("known_peers")).unwrap()
    };
    let server = server(read(&of_server));
    let client = client(read(&of_client), server.local_addr(), AllowedTransports::ALL);
    assert_eq!(who(&client).unwrap(), client_key);
    fs::write(of_server.file("known_peers"), "").unwrap();
    poll(|| client.call(WHO, b"").timeout(Duration::from_secs(1)).wait().err());
    issue::pin(of_server.file("known_peers"), "client", client_key).unwrap();
    poll(|| who(&client).ok());
    // A pin that changes is not followed either.
    fs::write(of_server.file("known_peers"), format!("client {key}\n")).unwrap();
    poll(|| client.call(WHO, b"").timeout(Duration::from_secs(1)).wait().err());
}

#[test]
fn authority__under_another_is_trusted_by_the_root() {
    let root = authority();
    let below = root.under("below", DAY).unwrap();
    let folder = Folder::new();
    below.write(folder.file("ca.pem"), folder.file("ca-key.pem")).unwrap();
    let read = Authority::read(folder.file("ca.pem"), folder.file("ca-key.pem")).unwrap();
    for authority in [&below, &read] {
        let (client, server) = (named(&root, "client"), named(authority, "server"));
        let mut pair = Pair::of(&client, &server, Some("server"));
        assert_eq!(pair.carry(), GOOD);
        let error = authority.under("further", DAY).unwrap_err().to_string();
        assert!(error.starts_with("this authority may have no other under it"), "{error}");
    }
    // The intermediate authority is revoked.
    let ours = Folder::new();
    renew(&root, &ours, DAY);
    let below = issue::fingerprint_of_certificate(below.certificate().as_bytes()).unwrap();
    issue::revoke(ours.path(), below).unwrap();
    let client = Credentials::from_dir(ours.path()).unwrap();
    let error = Pair::of(&client, &named(&read, "server"), Some("server")).carry().opener.unwrap();
    assert!(error.contains("is revoked here"), "{error}");
}
