//! The command over an RDMA card of the kernel (rdma_rxe), in an emulated machine: a program of its own, since two busy CPUs more disturb
//! the other tests.

#![allow(non_snake_case, reason = "tests are named function__condition")]

use std::path::Path;

use petrel_skip::{Need, skip};

/// Serves by the card, and calls: small calls, a large message, and beside them the datagrams of the library's own example.
const SCRIPT: &str = "
set -e
petrel doctor --device verbs:rxe0 >/run/doctor || { cat /run/doctor; exit 1; }
petrel serve --insecure --listen 10.77.0.1:31850 --device verbs:rxe0! >/run/serve 2>&1 &
server=$!
for _ in $(seq 100); do petrel health 10.77.0.1:31850 >/dev/null 2>&1 && break; sleep 0.2; done
over_verbs='10.77.0.1:31850 --device verbs:rxe0! --transport verbs --timeout 20s --json'
petrel ping $over_verbs --count 2000
petrel ping $over_verbs --count 3 --size 1MiB
ibv_ud_pingpong -d rxe0 -g 1 -s 64 -n 2000 >/run/pong 2>&1 &
sleep 1
ibv_ud_pingpong -d rxe0 -g 1 -s 64 -n 2000 10.77.0.1 | tail -1
kill -TERM $server
wait $server || { cat /run/serve; exit 1; }
";

#[test]
fn verbs__serve_and_ping() {
    match petrel_netns::in_guest(SCRIPT, &[Path::new(env!("CARGO_BIN_EXE_petrel"))]) {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}");
            let pings = text.matches("\"transport\":\"verbs\"").count();
            assert_eq!(pings, 2, "two runs went by the card: {text}");
            println!("{text}");
        }
        Err(error) => skip(Need::Card, error),
    }
}
