//! Real replicas over loopback.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::{Cluster, Options};
use petrel::endpoint::{EndpointConfig, SessionId};
use petrel::{Endpoint, Nexus};
use petrel_kv::api::{
    Applied, Consistency, GetReply, GetRequest, Outcome, Refusal, WriteReply, methods,
};
use petrel_kv::command::{Command, Op};

/// Timeout of the tests, far longer than any step takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A client that asks the replicas in turn until an answer arrives: the simplest correct client.
struct Client {
    endpoint: Endpoint,
    addresses: Vec<SocketAddr>,
    sessions: Vec<Option<SessionId>>,
    session: u64,
    sequence: u64,
}

impl Client {
    fn open(addresses: Vec<SocketAddr>) -> Self {
        let nexus = Nexus::builder().start().unwrap();
        let endpoint = nexus.endpoint(EndpointConfig::default()).unwrap();
        let sessions = vec![None; addresses.len()];
        let mut client = Self { endpoint, addresses, sessions, session: 0, sequence: 0 };
        let mut command = Vec::new();
        Command::OpenSession.encode(&mut command);
        client.session = client.write(&command).index;
        client
    }

    /// Calls the replicas in turn until `take` accepts an answer.
    fn ask<R>(&mut self, method: u16, request: &[u8], take: impl Fn(&[u8]) -> Option<R>) -> R {
        let begin = Instant::now();
        for place in (0..self.addresses.len()).cycle() {
            assert!(begin.elapsed() < TEST_TIMEOUT, "no replica answers");
            let connect = || self.endpoint.connect_wait(self.addresses[place]).ok();
            let Some(session) = self.sessions[place].or_else(connect) else { continue };
            self.sessions[place] = Some(session);
            match self.endpoint.call(session, method, request).wait() {
                Ok(reply) => {
                    if let Some(taken) = take(&reply) {
                        return taken;
                    }
                }
                Err(_) => self.sessions[place] = None,
            }
        }
        unreachable!("it goes round for ever")
    }

    fn write(&mut self, command: &[u8]) -> Applied {
        self.ask(methods::WRITE, command, |reply| match WriteReply::decode(reply).unwrap() {
            WriteReply::Applied(applied) => Some(applied),
            WriteReply::Refused(Refusal::NotLeader { .. } | Refusal::Unavailable { .. }) => None,
            WriteReply::Refused(refusal) => panic!("{refusal}"),
        })
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Applied {
        self.sequence += 1;
        let (session, sequence) = (self.session, self.sequence);
        let op = Op::Put { key, value };
        let mut command = Vec::new();
        Command::Write { session, sequence, first_pending: sequence, op }.encode(&mut command);
        self.write(&command)
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let mut request = Vec::new();
        GetRequest { consistency: Consistency::Linearizable, key }.encode(&mut request);
        self.ask(methods::GET, &request, |reply| match GetReply::decode(reply).unwrap() {
            GetReply::Found { value, .. } => Some(Some(value.to_vec())),
            GetReply::NotFound => Some(None),
            GetReply::Refused(Refusal::NotLeader { .. } | Refusal::Unavailable { .. }) => None,
            GetReply::Refused(refusal) => panic!("{refusal}"),
        })
    }
}

#[test]
fn cluster__writes_can_be_read_and_all_replicas_have_them() {
    let cluster = Cluster::start(3, Options::default());
    let mut client = Client::open(cluster.addresses());
    assert_eq!(client.get(b"key"), None);
    let first = client.put(b"key", b"one");
    assert_eq!(first.outcome, Outcome::Put { replaced: false });
    let second = client.put(b"key", b"two");
    assert!(second.index > first.index);
    assert_eq!(client.get(b"key").as_deref(), Some(&b"two"[..]));
    for number in 0..500u32 {
        client.put(&number.to_be_bytes(), b"value");
    }
    cluster.wait_for_equal_digests();
}

#[test]
fn cluster__of_one_needs_nobody() {
    let cluster = Cluster::start(1, Options::default());
    let mut client = Client::open(cluster.addresses());
    client.put(b"key", b"one");
    assert_eq!(client.get(b"key").as_deref(), Some(&b"one"[..]));
}

#[test]
fn cluster__goes_on_without_its_leader() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut client = Client::open(cluster.addresses());
    client.put(b"key", b"one");
    let leader = cluster.wait_for_leader();
    cluster.kill(leader);
    client.put(b"other", b"two");
    assert_eq!(client.get(b"key").as_deref(), Some(&b"one"[..]));
    assert_ne!(cluster.wait_for_leader(), leader);
}

#[test]
fn cluster__takes_in_a_replica_that_has_lost_everything() {
    let mut cluster = Cluster::start(3, Options { log_entries_max: 200, ..Options::default() });
    let mut client = Client::open(cluster.addresses());
    for round in 0..3 {
        let leader = cluster.wait_for_leader();
        let lost = (leader + 1 + round % 2) % 3;
        cluster.kill(lost);
        for number in 0..600u32 {
            client.put(&number.to_be_bytes(), &[round as u8; 100]);
        }
        cluster.restart(lost);
        cluster.wait_for_voters(3, lost);
        cluster.wait_for_equal_digests();
    }
    assert_eq!(client.get(&7u32.to_be_bytes()).as_deref(), Some(&[2; 100][..]));
}

#[test]
fn cluster__leases_answer_what_was_written() {
    let cluster = Cluster::start(3, Options { has_leases: true, ..Options::default() });
    let mut client = Client::open(cluster.addresses());
    for number in 0..200u32 {
        client.put(b"key", &number.to_be_bytes());
        assert_eq!(client.get(b"key").as_deref(), Some(&number.to_be_bytes()[..]));
    }
}

/// The old replica counts until the new one has caught up, and then no longer. No membership change enlarges the
/// majority, as adding a fourth voter beside a dead one would.
#[test]
fn cluster__a_lost_node_is_swapped_in_one_step_for_one_at_another_address() {
    let mut cluster = Cluster::start(3, Options::default());
    let mut client = Client::open(cluster.addresses());
    client.put(b"key", b"one");
    let lost = (cluster.wait_for_leader() + 1) % 3;
    let before = cluster.addresses()[lost];
    cluster.kill(lost);
    cluster.replace(lost);
    cluster.wait_for_voters(3, lost);
    let leader = cluster.view(cluster.wait_for_leader()).unwrap();
    let members: Vec<_> = leader.status.members.iter().map(|member| &*member.address).collect();
    let [old, new] = [before, cluster.addresses()[lost]].map(|address| address.to_string());
    assert_eq!(members.len(), 3, "{members:?}");
    assert!(members.contains(&&*new) && !members.contains(&&*old), "{members:?}");
    let mut client = Client::open(cluster.addresses());
    assert_eq!(client.get(b"key").as_deref(), Some(&b"one"[..]));
    cluster.wait_for_equal_digests();
}
