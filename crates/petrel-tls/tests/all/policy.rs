//! A policy file: methods, counters and regions by caller, and changes under open sessions.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use petrel::client::Client;
use petrel::nexus::fetch_stats_inside;
use petrel::region::{Access, Region, RegionMemory, Regions, RemoteRegion};
use petrel::security::Policy;
use petrel::server::RunningServer;
use petrel::{Error, Server, Status};
use petrel_tls::Credentials;

use crate::common::{Folder, authority, issued};
use petrel_tls::issue::Authority;

const ECHO: u16 = 1;
const SECRET: u16 = 2;

/// Beyond the time of any answer; a guard against hanging.
const LONG: Duration = Duration::from_secs(60);

/// A server under a policy.
struct World {
    folder: Folder,
    authority: Authority,
    policy: Arc<Policy>,
    region: Region,
    server: RunningServer,
}

impl World {
    fn new(text: &str) -> Self {
        let (folder, authority) = (Folder::new(), authority());
        let file = folder.file("policy");
        std::fs::write(&file, text).unwrap();
        let policy = Arc::new(Policy::from_file(&file, [("echo", ECHO)]).unwrap());
        let regions = Regions::new();
        let memory = RegionMemory::private(4_096).unwrap();
        let region = regions.register(memory, Access::READ | Access::WRITE).unwrap();
        let server = Server::bind("127.0.0.1:0")
            .credentials(issued(&authority, &folder, "server"))
            .authorize(Arc::clone(&policy) as _)
            .serve(
                |_| (),
                move |endpoint| {
                    endpoint.on(ECHO, |_, cx, request| {
                        let message = request.data().to_vec();
                        request.reply(cx, &message)
                    });
                    endpoint.on(SECRET, |_, cx, request| request.reply(cx, b"42"));
                    endpoint.serve_regions(&regions);
                },
            )
            .start()
            .unwrap();
        Self { folder, authority, policy, region, server }
    }

    fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    fn credentials(&self, id: &str) -> Arc<Credentials> {
        issued(&self.authority, &self.folder, id)
    }

    fn client(&self, id: &str) -> Result<Client, Error> {
        Client::builder().credentials(self.credentials(id)).connect_wait(self.address())
    }

    fn stats(&self, id: &str) -> Result<String, Error> {
        fetch_stats_inside(self.address(), LONG, &*self.credentials(id))
    }

    fn file(&self) -> PathBuf {
        self.folder.file("policy")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.file(), text).unwrap();
    }
}

/// Calls until the outcome has the text; empty for success.
fn wait_for(client: &Client, method: u16, wanted: &str) {
    let end = Instant::now() + LONG;
    loop {
        let text = client
            .call(method, b"")
            .wait()
            .map_or_else(|error| error.to_string(), |_| String::new());
        if text.is_empty() == wanted.is_empty() && text.contains(wanted) {
            return;
        }
        assert!(Instant::now() < end, "{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const REFUSED: &str = "the client may not call this method";

#[test]
fn policy__decides_about_methods_counters_and_regions() {
    let world = World::new(
        "spiffe://test/web echo\nspiffe://test/ops stats\nspiffe://test/admin all\n\
         spiffe://test/memory 65520-65527\n* nothing \"ask the shop\"",
    );
    let web = world.client("web").unwrap();
    assert_eq!(web.call(ECHO, b"a").wait().unwrap(), b"a"[..]);
    assert_eq!(web.call(SECRET, b"").wait().unwrap_err().status, Status::PermissionDenied);
    let read = |client: &Client| RemoteRegion::new(client, world.region.key()).read(0, 8).wait();
    assert_eq!(read(&web).unwrap_err().status, Status::PermissionDenied);
    assert_eq!(read(&world.client("memory").unwrap()).unwrap(), [0; 8]);
    let admin = world.client("admin").unwrap();
    assert_eq!(admin.call(SECRET, b"").wait().unwrap(), b"42"[..]);
    assert_eq!(read(&admin).unwrap(), [0; 8]);
    let stranger = world.client("stranger").unwrap_err();
    assert!(stranger.to_string().contains("ask the shop"), "{stranger}");
    for (id, sees) in [("ops", true), ("admin", true), ("web", false), ("stranger", false)] {
        match world.stats(id) {
            Ok(json) => assert!(sees && json.contains("\"endpoints\""), "{id}: {json}"),
            Err(error) => {
                assert!(!sees && error.status == Status::PermissionDenied, "{id}: {error}");
                assert!(error.to_string().contains("grant `stats`"), "{error}");
            }
        }
    }
    assert!(world.stats("ops").unwrap().contains("\"stats_refused\":2"));
}

#[test]
fn policy__that_changes_judges_sessions_again() {
    let world = World::new("spiffe://test/web echo\nspiffe://test/admin all");
    let (web, admin) = (world.client("web").unwrap(), world.client("admin").unwrap());
    wait_for(&web, ECHO, "");
    wait_for(&admin, SECRET, "");

    world.write("spiffe://test/web 1-2\nspiffe://test/admin echo");
    wait_for(&web, SECRET, "");
    wait_for(&admin, SECRET, REFUSED);
    wait_for(&admin, ECHO, "");

    world.write("spiffe://test/web nothing \"it is revoked\"\nspiffe://test/admin all");
    wait_for(&web, ECHO, "it is revoked");
    assert!(world.client("web").unwrap_err().to_string().contains("it is revoked"));
    wait_for(&admin, SECRET, "");
    assert_eq!(world.policy.status().loads, 3);
}

#[test]
fn policy__that_is_broken_changes_nothing() {
    let world = World::new("spiffe://test/web echo");
    let web = world.client("web").unwrap();
    world.write("spiffe://test/web nothing\nspiffe://test/web");
    let error = world.policy.reload().unwrap_err().to_string();
    assert!(error.contains("policy, line 2: it does not say"), "{error}");
    wait_for(&web, ECHO, "");
    assert!(world.client("web").is_ok());
    let status = world.policy.status();
    assert_eq!((status.loads, status.failure.unwrap().to_string()), (1, error));

    world.write("spiffe://test/web 1");
    assert_eq!(world.policy.reload(), Ok(()));
    assert_eq!((world.policy.status().loads, world.policy.status().failure), (2, None));
    assert!(Policy::from_file(world.folder.file("none"), [("echo", ECHO)]).is_err());
}
