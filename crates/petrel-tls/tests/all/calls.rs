//! Calls between processes with credentials, over every medium.

use std::net::SocketAddr;
use std::sync::Arc;

use petrel::client::Client;
use petrel::endpoint::AllowedTransports;
use petrel::nexus::NexusBuilder;
use petrel::security::Grant;
use petrel::{Error, Nexus, Server, Status};
use petrel_tls::Credentials;
use petrel_tls::issue::Authority;

use crate::common::{Folder, authority, issued, media};

const ECHO: u16 = 1;
const WHO: u16 = 2;
const SECRET: u16 = 3;

/// An authority, and a folder for the credentials that it has issued.
pub(crate) struct World {
    authority: Authority,
    folder: Folder,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { authority: authority(), folder: Folder::new() }
    }

    pub(crate) fn credentials(&self, id: &str) -> Arc<Credentials> {
        issued(&self.authority, &self.folder, id)
    }

    fn server(&self) -> (petrel::server::RunningServer, SocketAddr) {
        self.server_by(Nexus::builder())
    }

    fn server_by(&self, nexus: NexusBuilder) -> (petrel::server::RunningServer, SocketAddr) {
        let server = Server::bind("127.0.0.1:0").nexus(nexus);
        let server = server.credentials(self.credentials("server")).serve(
            |_| (),
            |endpoint| {
                endpoint.authorize(|peer| {
                    let identity = peer.identity.as_deref();
                    match identity.and_then(|identity| identity.spiffe_id.as_deref()) {
                        Some("spiffe://test/admin") => Grant::all(),
                        Some("spiffe://test/web") => Grant::methods([ECHO, WHO]),
                        _ => Grant::refuse("this service is for the test"),
                    }
                });
                endpoint.on(ECHO, |_, cx, request| {
                    let message = request.data().to_vec();
                    request.reply(cx, &message)
                });
                endpoint.on(WHO, |_, cx, request| {
                    let peer = request.peer(cx).expect("the session is open");
                    let identity = peer.identity.as_deref().expect("the peer has proven who it is");
                    let text =
                        format!("{} {}", peer.medium, identity.spiffe_id.as_deref().unwrap());
                    request.reply(cx, text.as_bytes())
                });
                endpoint.on(SECRET, |_, cx, request| request.reply(cx, b"42"));
            },
        );
        let running = server.start().unwrap();
        let address = running.local_addr();
        (running, address)
    }
}

fn connect(
    credentials: &Arc<Credentials>,
    address: SocketAddr,
    transports: AllowedTransports,
) -> Result<Client, Error> {
    let credentials = Arc::clone(credentials);
    Client::builder().credentials(credentials).transports(transports).connect_wait(address)
}

#[test]
fn calls__over_every_medium_by_clients_that_have_proven_who_they_are() {
    let world = World::new();
    let (_running, address) = world.server();
    let admin = world.credentials("admin");
    for (medium, transports) in media() {
        let client = connect(&admin, address, transports).unwrap();
        let who = client.call(WHO, b"").wait().unwrap();
        assert_eq!(
            String::from_utf8(who.to_vec()).unwrap(),
            format!("{medium} spiffe://test/admin")
        );
        for bytes in [0, 1, 100, 5_000, 1 << 20] {
            let message: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            assert!(
                client.call(ECHO, message.clone()).wait().unwrap() == message[..],
                "{medium} {bytes}"
            );
        }
    }
}

#[test]
fn authorize__limits_methods_and_refuses_sessions() {
    let world = World::new();
    let (_running, address) = world.server();
    for (medium, transports) in media() {
        let web = connect(&world.credentials("web"), address, transports).unwrap();
        assert_eq!(web.call(ECHO, b"a").wait().unwrap(), b"a"[..]);
        let refused = web.call(SECRET, b"").wait().unwrap_err();
        assert_eq!(refused.status, Status::PermissionDenied, "{medium}: {refused}");
        assert_eq!(web.call(ECHO, b"b").wait().unwrap(), b"b"[..]);
        let stranger = connect(&world.credentials("stranger"), address, transports).unwrap_err();
        assert!(stranger.to_string().contains("this service is for the test"), "{stranger}");
    }
}

/// All clients have one address and user: only the identities tell them apart.
#[test]
fn quotas__one_identity_uses_its_share_and_another_goes_on() {
    let world = World::new();
    // A quarter of the 24 connections that may have links.
    let (running, address) = world.server_by(Nexus::builder().connections_max(32).source_share(25));
    let udp = media()[1].1;
    let admin = connect(&world.credentials("admin"), address, udp).unwrap();
    let web = |_| {
        let client = connect(&world.credentials("web"), address, udp)?;
        client.call(ECHO, b"a").wait()?;
        Ok::<_, Error>(client)
    };
    let held: Vec<_> = (0..6).map(web).collect::<Result<_, _>>().unwrap();
    let refused = web(6).unwrap_err();
    assert!(refused.to_string().contains("your identity"), "{refused}");
    // Clients with a connection go on, and another identity gets further connections.
    assert_eq!(admin.call(SECRET, b"").wait().unwrap(), b"42"[..]);
    assert_eq!(held[0].call(ECHO, b"b").wait().unwrap(), b"b"[..]);
    let more = connect(&world.credentials("admin"), address, udp).unwrap();
    assert_eq!(more.call(SECRET, b"").wait().unwrap(), b"42"[..]);
    drop(running);
}

#[test]
fn connect__to_and_from_processes_that_are_not_trusted() {
    let (world, other) = (World::new(), World::new());
    let (_running, address) = world.server();
    let error = connect(&other.credentials("admin"), address, AllowedTransports::ALL).unwrap_err();
    assert!(error.to_string().contains("not to be trusted"), "{error}");
    let plain = Client::connect_wait(address).unwrap_err();
    assert!(plain.to_string().contains("inside TLS only"), "{plain}");
    // A server without credentials.
    let insecure = Server::bind("127.0.0.1:0").serve(|_| (), |_| ()).start().unwrap();
    let admin = world.credentials("admin");
    let error = connect(&admin, insecure.local_addr(), AllowedTransports::ALL).unwrap_err();
    assert!(error.to_string().contains("without TLS"), "{error}");
}

#[test]
fn permissive__servers_take_clients_without_credentials_too() {
    let world = World::new();
    let folder = world.folder.file("server");
    world.credentials("server");
    let credentials = Credentials::from_dir(folder).unwrap().permissive(true);
    let server = Server::bind("127.0.0.1:0").credentials(Arc::new(credentials)).serve(
        |_| (),
        |endpoint| {
            endpoint.on(WHO, |_, cx, request| {
                let is_proven = request.peer(cx).is_some_and(|peer| peer.identity.is_some());
                request.reply(cx, &[is_proven.into()])
            });
        },
    );
    let running = server.start().unwrap();
    let plain = Client::connect_wait(running.local_addr()).unwrap();
    assert_eq!(plain.call(WHO, b"").wait().unwrap(), [0][..]);
    let admin = connect(&world.credentials("admin"), running.local_addr(), AllowedTransports::ALL);
    assert_eq!(admin.unwrap().call(WHO, b"").wait().unwrap(), [1][..]);
}

#[test]
fn authorize__a_decision_that_panics_grants_nothing() {
    let world = World::new();
    let server = Server::bind("127.0.0.1:0").credentials(world.credentials("server")).serve(
        |_| (),
        |endpoint| {
            endpoint.authorize(|_| panic!("the test's own"));
            endpoint.on(ECHO, |_, cx, request| request.reply(cx, b""));
        },
    );
    let running = server.start().unwrap();
    let refused = connect(&world.credentials("web"), running.local_addr(), AllowedTransports::ALL);
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("decision about the client panicked"), "{refused}");
}
