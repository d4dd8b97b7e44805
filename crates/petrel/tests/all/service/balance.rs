//! The choice of servers for calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use petrel::client::{Balance, ClientConfig, Target, TargetName, Targets};
use petrel::endpoint::EndpointConfig;
use petrel::{Client, Endpoint};

use super::{Counts, NAME, NEVER, seconds, server, to_both};
use crate::common::{Server, client, run_until_seen};

/// Makes calls that the servers keep, and returns the number per server.
fn keep(
    endpoint: &mut Endpoint,
    service: &Client,
    servers: &[(Server, Arc<Counts>)],
    calls: u32,
) -> Vec<u32> {
    let kept: Vec<_> =
        (0..calls).map(|_| service.call(NEVER, "").options(seconds(60)).started()).collect();
    let came = || servers.iter().map(|(_, counts)| counts.came.load(Ordering::SeqCst));
    run_until_seen(endpoint, || came().sum::<u32>() == calls);
    let came = came().collect();
    drop(kept);
    came
}

fn weighing(servers: &[(Server, Arc<Counts>)], weights: &[u32]) -> Vec<Target> {
    let weighing = |((server, _), weight): (&(Server, _), &u32)| {
        Target::from(server.address).weighing(*weight)
    };
    servers.iter().zip(weights).map(weighing).collect()
}

#[test]
fn least_busy__servers_get_calls_by_their_weights() {
    let servers = [server("one"), server("three"), server("four")];
    let mut endpoint = client(EndpointConfig::default());
    let config = ClientConfig::default();
    let service = to_both(&mut endpoint, &servers, config);
    service.set_targets(weighing(&servers, &[1, 3, 4])).unwrap();
    endpoint.run_once();
    assert_eq!(keep(&mut endpoint, &service, &servers, 24), [3, 9, 12]);
    assert_eq!(
        service.stats().sessions_opened,
        3,
        "a server whose weight changes keeps its session"
    );
}

#[test]
fn two_choices__share_the_calls_nearly_evenly() {
    let servers = [(); 4].map(|()| server("one of four"));
    let mut endpoint = client(EndpointConfig::default());
    let mut config = ClientConfig::default();
    config.balance = Balance::TwoChoices;
    let service = to_both(&mut endpoint, &servers, config);
    let came = keep(&mut endpoint, &service, &servers, 400);
    // With servers drawn independently, the shares would have a standard deviation of 8.7.
    assert!(came.iter().all(|count| (96..=104).contains(count)), "{came:?}");
}

/// Returns the name of a client's server for each key.
fn places(endpoint: &mut Endpoint, service: &Client) -> BTreeMap<u32, Vec<u8>> {
    let name = |key: u32| {
        let call = service.call(NAME, "").options(seconds(60)).key(key.to_le_bytes());
        (key, endpoint.block_on(call).unwrap().into_vec())
    };
    (0..200).map(name).collect()
}

#[test]
fn key__goes_to_its_server_and_when_that_is_gone_to_the_next() {
    let mut servers = vec![server("a"), server("b"), server("c"), server("d")];
    let mut endpoint = client(EndpointConfig::default());
    let service = to_both(&mut endpoint, &servers, ClientConfig::default());
    let before = places(&mut endpoint, &service);
    let names: Vec<_> = ["a", "b", "c", "d"].map(|name| name.as_bytes().to_vec()).into();
    for name in &names {
        let share = before.values().filter(|place| *place == name).count();
        assert!((20..=90).contains(&share), "{share} of 200 keys");
    }
    // Another client of the same servers, in another order, agrees.
    servers.rotate_left(1);
    let other = to_both(&mut endpoint, &servers, ClientConfig::default());
    assert_eq!(places(&mut endpoint, &other), before);
    // One server goes: only its keys move, and to several servers.
    let gone = servers.iter().position(|(server, _)| {
        let first: Client = endpoint.client([server.address], ClientConfig::default());
        let name = endpoint.block_on(first.call(NAME, "").options(seconds(60).wait_for_ready()));
        name.unwrap() == *b"c"
    });
    servers[gone.unwrap()].0.end();
    endpoint.run_until(|_, _| service.stats().servers_ready == 3);
    let after = places(&mut endpoint, &service);
    let moved: Vec<_> = before.keys().filter(|key| before[key] != after[key]).collect();
    assert!(moved.iter().all(|key| before[key] == b"c") && !moved.is_empty());
    assert!(after.values().all(|place| place != b"c"));
    assert!(names.iter().filter(|name| moved.iter().any(|key| after[key] == **name)).count() > 1);
}

#[test]
fn key__in_a_call_with_a_continuation_finds_the_same_server() {
    let servers = [server("a"), server("b"), server("c")];
    let mut endpoint = client(EndpointConfig::default());
    let service = to_both(&mut endpoint, &servers, ClientConfig::default());
    for (key, place) in places(&mut endpoint, &service) {
        let call = endpoint.call(&service, NAME, "").key(key.to_le_bytes()).idempotent();
        assert_eq!(call.timeout(Duration::from_secs(60)).wait().unwrap()[..], place);
    }
}

#[test]
fn weighing__of_names_is_that_of_each_address() {
    let (server, _) = server("by name");
    let name = format!("localhost:{}", server.address.port());
    let targets = Targets::from(TargetName::from(name).weighing(3));
    let service = Client::connect_wait(targets).unwrap();
    assert_eq!(service.call(NAME, "").wait().unwrap(), b"by name");
}
