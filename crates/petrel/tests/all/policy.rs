//! Decisions about callers without credentials: by the user of a process over shared memory, and by code.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use petrel::client::Client;
use petrel::nexus::fetch_stats;
use petrel::security::{Authorize, Grant, PeerIdentity, Policy, SecurityError};
use petrel::{Server, Status};

use crate::common::{ECHO, over};

const LONG: Duration = Duration::from_secs(60);

fn serve(rules: Arc<dyn Authorize>) -> petrel::server::RunningServer {
    let set_up = |endpoint: &mut petrel::Endpoint| {
        endpoint.on(ECHO, |_, cx, request| request.reply(cx, b""));
    };
    Server::bind("127.0.0.1:0").authorize(rules).serve(|_| (), set_up).start().unwrap()
}

#[test]
fn policy__knows_the_user_of_a_process_over_shared_memory_alone() {
    let file = std::env::temp_dir().join(format!("petrel-policy-{}", std::process::id()));
    let user = rustix::process::getuid().as_raw();
    std::fs::write(&file, format!("uid:{user} {ECHO} stats")).unwrap();
    let policy = Policy::from_file(&file, [("echo", ECHO)]).unwrap();
    let server = serve(Arc::new(policy));
    let connect = |udp, shm| {
        let transports = over(udp, shm).transports;
        Client::builder().transports(transports).connect_wait(server.local_addr())
    };
    assert!(connect(false, true).unwrap().call(ECHO, "").wait().is_ok());
    let error = connect(true, false).unwrap_err();
    assert!(error.to_string().contains("policy does not let this client call"), "{error}");
    // The kernel knows who has a socket of this host.
    assert!(fetch_stats(server.local_addr(), LONG).is_ok());
    std::fs::write(&file, format!("uid:{} all", user + 1)).unwrap();
    loop {
        // The limit of the whole test ends this loop.
        match fetch_stats(server.local_addr(), LONG) {
            Ok(_) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => break assert_eq!(error.status, Status::PermissionDenied),
        }
    }
    std::fs::remove_file(file).unwrap();
}

/// Grants all while the number is even.
#[derive(Debug)]
struct Even(AtomicU64);

impl Authorize for Even {
    fn grant(&self, _: &PeerIdentity) -> Grant {
        let is_even = self.0.load(Ordering::SeqCst).is_multiple_of(2);
        if is_even { Grant::all() } else { Grant::refuse("the number is odd") }
    }

    /// A change counts beside a later one that cannot be used.
    fn look(&self) -> (u64, Option<SecurityError>) {
        let failure = SecurityError::new("a later change is broken");
        (self.0.load(Ordering::SeqCst), Some(failure))
    }
}

#[test]
fn authorize__by_code_judges_sessions_again_when_its_number_changes() {
    let even = Arc::new(Even(AtomicU64::new(0)));
    let server = serve(Arc::clone(&even) as _);
    let client = Client::connect_wait(server.local_addr()).unwrap();
    for number in 0..4 {
        even.0.store(number, Ordering::SeqCst);
        let is_even = number % 2 == 0;
        // The limit of the whole test ends this loop.
        while client.call(ECHO, "").wait().is_ok() != is_even {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
