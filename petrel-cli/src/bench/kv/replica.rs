//! A replica as a process: beside the store it answers echoes, so that a put can be compared with one.

use std::time::Duration;

use petrel::control::AllowedTransports;
use petrel::{EndpointConfig, IdlePolicy, Nexus};
use petrel_kv::persist::Volatile;
use petrel_kv::{Replica, ReplicaConfig};

use crate::cli::KvReplicaArgs;
use crate::cores::Seat;
use crate::failure::Failure;

/// Answers a request of a put's length with an answer of a put's length.
pub(super) const ECHO: u16 = 100;

const ELECTION: Duration = Duration::from_secs(5);

/// Bytes of the answer to a put.
pub(super) const ANSWER_BYTES: usize = 11;

pub(super) fn run(args: &KvReplicaArgs) -> Result<(), Failure> {
    let place = args.node as usize - 1;
    let Some(address) = args.peers.get(place).copied() else {
        return Err(Failure::because("the node is not in the list of peers"));
    };
    // First: the nexus's thread is to run like this one, or it would get no time beside it.
    let _seated = Seat { cpu: Some(args.cpu), is_realtime: args.realtime }.take()?;
    let nexus = Nexus::builder().listen(address).start()?;
    let config = endpoint_config(&args.transport, args.shares || args.realtime);
    let mut endpoint = nexus.endpoint(config).map_err(Failure::because)?;
    let peers = (1..).zip(args.peers.iter().copied()).collect();
    let seed = u64::from(std::process::id()) << 16 | u64::from(args.node);
    let mut config = ReplicaConfig::new(args.node, address, peers, seed);
    // Who leads is not to change because the machine has other things to do.
    config.election = ELECTION;
    let replica = Replica::start(&mut endpoint, config, Box::<Volatile>::default(), None)
        .map_err(Failure::because)?;
    endpoint.register(ECHO, |cx, request| request.reply(cx, &[1; ANSWER_BYTES]));
    // Ends by a signal, when the measurement does.
    let ended = replica.run(&mut endpoint, || false);
    ended.map_err(Failure::because)
}

/// An endpoint that has a CPU, or shares it with others.
pub(super) fn endpoint_config(transport: &str, shares: bool) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.transports = AllowedTransports { udp: transport != "shm", shm: transport != "udp" };
    config.idle = if shares { IdlePolicy::Yield } else { IdlePolicy::Poll };
    config
}
