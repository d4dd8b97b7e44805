//! etcd beside the store, by the program in `bench/etcd`.

use std::path::Path;
use std::process::{Command, Stdio};

use petrel_command::failure::Failure;
use serde::Deserialize;

use super::KvBenchArgs;

/// One row that the program prints.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub(super) struct EtcdRow {
    pub(super) clients: usize,
    pub(super) puts_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
}

/// Runs the program with the same number of clients and duration, and with its data in the replicas' directory.
pub(super) fn measure(program: &Path, args: &KvBenchArgs) -> Result<Vec<EtcdRow>, Failure> {
    let clients = args.clients.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let mut command = Command::new(program);
    command.args(["-clients", &clients, "-keys", &args.keys.to_string()]);
    command.args(["-duration", &format!("{}ms", args.duration.as_millis())]);
    if let Some(data) = &args.data {
        command.arg("-data").arg(data);
    }
    let ran = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = ran.map_err(|error| {
        Failure::because(format!("{} (from bench/etcd): {error}", program.display()))
    })?;
    if !output.status.success() {
        return Err(Failure::because(format!("{}: {}", program.display(), output.status)));
    }
    serde_json::from_slice(&output.stdout).map_err(Failure::because)
}
