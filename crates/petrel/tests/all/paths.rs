//! Sessions of several paths over UDP: the source ports of two endpoints (`docs/paths.md`).

use petrel::Endpoint;
use petrel::endpoint::{Disorder, EndpointConfig, PathPolicy, SessionId};

use crate::common::{ECHO, Server, client, over, pattern};

const POLICIES: [PathPolicy; 3] =
    [PathPolicy::Plb, PathPolicy::Coupled, PathPolicy::MpRdma(Disorder::WINDOW)];

/// An endpoint over UDP with this number of further source ports.
fn with_ports(further_ports: u8, path_policy: PathPolicy) -> EndpointConfig {
    let mut config = over(true, false);
    config.host.udp.further_ports = further_ports;
    config.sessions.path_policy = path_policy;
    config
}

/// Echoes messages of one packet and of many, and checks the responses.
fn echo(client: &mut Endpoint, session: SessionId) {
    for round in 0..40 {
        for bytes in [0, 32, 1_400, 20_000, 400_000] {
            let message = pattern(bytes, round);
            let response = client.call(session, ECHO, &message).wait().unwrap();
            assert!(*response == *message, "{bytes} bytes, round {round}");
        }
    }
}

fn packets(client: &Endpoint, session: SessionId) -> Vec<u64> {
    client.path_counts(session).iter().map(|counts| counts.packets).collect()
}

/// The two sides have different numbers of ports: the server answers from those that it has.
#[test]
fn path_counts__have_packets_on_every_path_of_the_client() {
    for (further, server_further) in [(3, 3), (3, 1), (1, 7)] {
        let server_config = with_ports(server_further, PathPolicy::Single);
        let server = Server::start(server_config, "127.0.0.1:0", |_| ());
        for policy in POLICIES {
            let mut client = client(with_ports(further, policy));
            let session = client.connect_wait(server.address).unwrap();
            echo(&mut client, session);
            let packets = packets(&client, session);
            assert_eq!(packets.len(), usize::from(further) + 1, "{policy:?}");
            assert!(packets.iter().sum::<u64>() > 1_000, "{policy:?}: {packets:?}");
            // On a quiet machine a session with this policy stays on one path.
            let is_spread = policy != PathPolicy::Plb;
            assert!(
                !is_spread || packets.iter().all(|packets| *packets > 0),
                "{policy:?}: {packets:?}"
            );
        }
    }
}

/// The sums have the counters of ended sessions, too.
#[test]
fn stats__have_the_paths_of_all_sessions() {
    let server = Server::start(with_ports(3, PathPolicy::Single), "127.0.0.1:0", |_| ());
    let mut client = client(with_ports(3, PathPolicy::Coupled));
    assert!(!client.stats().to_json().contains("path_"));
    let mut sent = [0; 4];
    for _ in 0..2 {
        let session = client.connect_wait(server.address).unwrap();
        echo(&mut client, session);
        sent.iter_mut().zip(packets(&client, session)).for_each(|(sum, sent)| *sum += sent);
        client.close(session);
    }
    let stats = client.stats();
    let totals = |range: std::ops::Range<usize>| stats.paths[range].iter().map(|path| path.packets);
    assert!(totals(0..4).eq(sent.iter().copied()) && totals(4..32).all(|packets| packets == 0));
    let json = stats.to_json();
    for (path, packets) in sent.iter().enumerate() {
        assert!(json.contains(&format!("\"path_{path}_packets\":{packets},")), "{json}");
        assert!(json.contains(&format!("\"path_{path}_losses\":")), "{json}");
    }
    assert!(!json.contains("path_4_"), "{json}");
}

#[test]
fn path_counts__are_none_where_a_side_has_one_port_or_asks_for_one_path() {
    for (policy, further, server_further) in
        [(PathPolicy::Coupled, 0, 3), (PathPolicy::Coupled, 3, 0), (PathPolicy::Single, 3, 3)]
    {
        let server_config = with_ports(server_further, PathPolicy::Single);
        let server = Server::start(server_config, "127.0.0.1:0", |_| ());
        let mut client = client(with_ports(further, policy));
        let session = client.connect_wait(server.address).unwrap();
        echo(&mut client, session);
        assert!(client.path_counts(session).is_empty());
    }
}
