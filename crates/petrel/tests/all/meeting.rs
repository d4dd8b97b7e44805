//! Processes of one host and user in different network namespaces share memory if they meet in a directory.
//!
//! The tests restart themselves in a namespace where they may build networks: see `common/own_network.rs`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use petrel::client::Background;
use petrel::nexus::NexusBuilder;
use petrel::{Client, Nexus, Server};
use petrel_netns::{Host, bring_up};

use crate::common::own_network::{self, Trial};

const IS_NETWORKED: u16 = 1;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 2);

fn builder(directory: Option<&Path>) -> NexusBuilder {
    let builder = Nexus::builder().insecure();
    match directory {
        Some(directory) => builder.meeting_dir(directory),
        None => builder,
    }
}

/// Serves on the other host until the sender is dropped.
fn serve(host: &Host, directory: Option<PathBuf>) -> (SocketAddr, mpsc::Sender<()>) {
    let ((tell, told), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
    host.spawn(move || {
        let server = Server::bind((SERVER, 0)).nexus(builder(directory.as_deref())).insecure();
        let server = server.serve(
            |_| (),
            |endpoint| {
                endpoint.on(IS_NETWORKED, |_, cx, request| {
                    let is_networked = request.peer(cx).expect("it has a peer").is_networked;
                    request.reply(cx, &[is_networked.into()])
                });
            },
        );
        let server = server.start().unwrap();
        tell.send(server.local_addr()).unwrap();
        // An error: the test has dropped the sender.
        let _ = ended.recv();
    });
    (told.recv().unwrap(), end)
}

/// Returns true if the call of a client here went through the network.
fn is_networked(server: SocketAddr, directory: Option<&Path>) -> bool {
    let background = Background::builder().nexus(builder(directory)).start().unwrap();
    let client = Client::builder().background(&background).connect_wait(server).unwrap();
    client.call(IS_NETWORKED, "").wait().unwrap() == [1]
}

#[test]
fn network_namespaces__share_memory_by_a_common_directory() {
    let trial = Trial {
        what: "network namespaces",
        script: "echo | unshare --net true && ip link add v type veth peer name w",
        input: "",
    };
    let test = "network_namespaces__share_memory_by_a_common_directory";
    own_network::in_own_network(&trial, module_path!(), test, || {
        let host = Host::new().unwrap();
        host.join("v", "w").unwrap();
        bring_up("v", Ipv4Addr::new(10, 79, 0, 1)).unwrap();
        host.bring_up("w", SERVER).unwrap();
        let root = std::env::temp_dir().join(format!("petrel-meet-{}", std::process::id()));
        let [common, other] = ["common", "other"].map(|name| root.join(name));
        for directory in [&common, &other] {
            std::fs::create_dir_all(directory).unwrap();
        }
        // The same directory by another path, as in another container.
        let link = root.join("link");
        std::os::unix::fs::symlink(&common, &link).unwrap();

        let (without, _serving) = serve(&host, None);
        assert!(is_networked(without, None), "no directory");
        let (server, serving) = serve(&host, Some(common.clone()));
        assert!(!is_networked(server, Some(&link)), "one directory");
        assert!(is_networked(server, Some(&other)), "another directory");
        drop(serving);
        std::fs::remove_dir_all(&root).unwrap();
    });
}

#[test]
fn start__without_the_directory_says_which() {
    let error = Nexus::builder().meeting_dir("/no/such/directory").start().unwrap_err();
    assert!(error.to_string().contains("/no/such/directory"), "{error}");
}
