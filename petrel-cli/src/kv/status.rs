//! `petrel kv status`: the state of all replicas.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use comfy_table::{Cell, CellAlignment, Color};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_command::units::format_bytes;
use petrel_kv::KvError;
use petrel_kv::api::{Member, MemberKind, Role, Status};
use serde::Serialize;

use super::Cluster;
use crate::cli::KvStatusArgs;

struct Replica {
    address: SocketAddr,
    status: Result<Status, KvError>,
}

#[derive(Serialize)]
struct Record<'a> {
    address: SocketAddr,
    node: u16,
    raft_id: u64,
    role: &'static str,
    vote: &'static str,
    term: u64,
    commit: u64,
    applied: u64,
    first_index: u64,
    last_index: u64,
    /// Entries that the leader has committed and this replica has not applied.
    lag: Option<u64>,
    keys: u64,
    bytes: u64,
    sessions: u64,
    counters: BTreeMap<&'a str, u64>,
}

#[derive(Serialize)]
struct Silent {
    address: SocketAddr,
    error: String,
}

/// Asks all replicas and prints their states.
pub(super) fn run(args: &KvStatusArgs, output: Output) -> Result<Outcome, Failure> {
    let mut cluster = Cluster::new(&args.cluster)?;
    let replicas = ask_all(&mut cluster);
    let leader = leader(&replicas);
    print(&replicas, leader, output)?;
    if args.counters {
        print_counters(&replicas, output)?;
    }
    if leader.is_none() {
        eprintln!("petrel: no replica that answers leads");
        return Ok(Outcome::Failure);
    }
    Ok(Outcome::Success)
}

/// Asks the replicas of `--servers`, and then their members.
fn ask_all(cluster: &mut Cluster) -> Vec<Replica> {
    let mut queried = BTreeSet::new();
    let mut next: BTreeSet<SocketAddr> = cluster.addresses.iter().copied().collect();
    let mut replicas = Vec::new();
    while let Some(address) = next.pop_first() {
        if !queried.insert(address) {
            continue;
        }
        let client = cluster.client.clone();
        let status = cluster.endpoint.block_on(client.status(address));
        let members = status.iter().flat_map(|status| &status.members);
        next.extend(members.filter_map(|member| member.address.parse::<SocketAddr>().ok()));
        replicas.push(Replica { address, status });
    }
    replicas.sort_by_key(|replica| {
        (replica.status.as_ref().map_or(u16::MAX, |status| status.node), replica.address)
    });
    replicas
}

/// Returns the leader of the latest term.
fn leader(replicas: &[Replica]) -> Option<&Status> {
    let statuses = replicas.iter().filter_map(|replica| replica.status.as_ref().ok());
    statuses.filter(|status| status.role == Role::Leader).max_by_key(|status| status.term)
}

fn print(replicas: &[Replica], leader: Option<&Status>, output: Output) -> Result<(), Failure> {
    let header =
        ["node", "address", "role", "vote", "term", "commit", "applied", "lag", "keys", "bytes"];
    let mut table = output.table(&header);
    for Replica { address, status } in replicas {
        match status {
            Ok(status) => {
                output.record(&record(*address, status, leader))?;
                table.add_row(row(*address, status, leader));
            }
            Err(error) => {
                output.record(&Silent { address: *address, error: error.to_string() })?;
                let silent = Cell::new("no answer").fg(Color::Red);
                table.add_row(vec![node_at(*address, leader), Cell::new(address), silent]);
            }
        }
    }
    output.line(table)?;
    for Replica { address, status } in replicas {
        if let Err(error) = status {
            output.line(format!("{address}: {error}"))?;
        }
    }
    Ok(())
}

fn record<'a>(address: SocketAddr, status: &'a Status, leader: Option<&Status>) -> Record<'a> {
    let counters = status.counters.iter().map(|(name, value)| (&**name, *value)).collect();
    Record {
        address,
        node: status.node,
        raft_id: status.raft_id,
        role: role(status),
        vote: vote(status, leader),
        term: status.term,
        commit: status.commit,
        applied: status.applied,
        first_index: status.first_index,
        last_index: status.last_index,
        lag: lag(status, leader),
        keys: status.keys,
        bytes: status.bytes,
        sessions: status.sessions,
        counters,
    }
}

fn row(address: SocketAddr, status: &Status, leader: Option<&Status>) -> Vec<Cell> {
    let number = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let role = match status.role {
        Role::Leader => Cell::new(role(status)).fg(Color::Green),
        _ => Cell::new(role(status)),
    };
    vec![
        Cell::new(status.node),
        Cell::new(address),
        role,
        Cell::new(vote(status, leader)),
        number(status.term.to_string()),
        number(status.commit.to_string()),
        number(status.applied.to_string()),
        number(lag(status, leader).map_or_else(|| "?".to_owned(), |lag| lag.to_string())),
        number(status.keys.to_string()),
        number(format_bytes(status.bytes)),
    ]
}

/// Returns the number of a node that does not answer, from the leader's list.
fn node_at(address: SocketAddr, leader: Option<&Status>) -> Cell {
    let members = leader.into_iter().flat_map(|status| &status.members);
    let mut node = members.filter(|member| member.address == address.to_string()).map(Member::node);
    Cell::new(node.next_back().map_or_else(|| "?".to_owned(), |node| node.to_string()))
}

fn role(status: &Status) -> &'static str {
    match status.role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::PreCandidate => "pre-candidate",
        Role::Candidate => "candidate",
    }
}

/// Returns whether the leader counts a replica's vote.
fn vote(status: &Status, leader: Option<&Status>) -> &'static str {
    let members = leader.into_iter().flat_map(|leader| &leader.members);
    let mut kind =
        members.filter(|member| member.raft_id == status.raft_id).map(|member| member.kind);
    match (kind.next_back(), leader) {
        (Some(MemberKind::Voter), _) => "voter",
        (Some(MemberKind::Learner), _) => "learner",
        (Some(MemberKind::Joining), _) => "joining",
        (Some(MemberKind::Leaving), _) => "leaving",
        (None, Some(_)) => "none",
        (None, None) => "?",
    }
}

fn lag(status: &Status, leader: Option<&Status>) -> Option<u64> {
    Some(leader?.commit.saturating_sub(status.applied))
}

fn print_counters(replicas: &[Replica], output: Output) -> Result<(), Failure> {
    let statuses: Vec<&Status> =
        replicas.iter().filter_map(|replica| replica.status.as_ref().ok()).collect();
    let nodes: Vec<String> =
        statuses.iter().map(|status| format!("node {}", status.node)).collect();
    let header: Vec<&str> =
        ["counter"].into_iter().chain(nodes.iter().map(String::as_str)).collect();
    let mut table = output.table(&header);
    let names: BTreeSet<&str> = statuses
        .iter()
        .flat_map(|status| status.counters.iter().map(|(name, _)| &**name))
        .collect();
    for name in names {
        let value = |status: &&Status| {
            let counter = status.counters.iter().find(|(other, _)| other == name);
            let text = counter.map_or_else(String::new, |(_, value)| value.to_string());
            Cell::new(text).set_alignment(CellAlignment::Right)
        };
        table.add_row([Cell::new(name)].into_iter().chain(statuses.iter().map(value)));
    }
    Ok(output.line(table)?)
}
