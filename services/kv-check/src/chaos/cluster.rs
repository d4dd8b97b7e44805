//! The replicas' processes.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::network::Network;
use super::replica::{Argument, Settings};

pub(super) struct Cluster<'a> {
    pub(super) network: &'a Network,
    /// The arguments for a replica.
    command: &'a [&'a str],
    pub(super) settings: Settings,
    pub(super) is_on_disk: bool,
    directory: PathBuf,
    processes: Vec<Option<Process>>,
    starts: u64,
    seed: u64,
}

struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl<'a> Cluster<'a> {
    pub(super) fn new(
        network: &'a Network,
        command: &'a [&'a str],
        settings: Settings,
        is_on_disk: bool,
        directory: &Path,
        seed: u64,
    ) -> Result<Self, String> {
        std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
        let processes = (0..settings.nodes).map(|_| None).collect();
        let directory = directory.to_owned();
        Ok(Self { network, command, settings, is_on_disk, directory, processes, starts: 0, seed })
    }

    fn slot(&mut self, node: u16) -> &mut Option<Process> {
        &mut self.processes[usize::from(node) - 1]
    }

    fn data(&self, node: u16) -> Option<PathBuf> {
        self.is_on_disk.then(|| self.directory.join(format!("data-{node}")))
    }

    pub(super) fn start(&mut self, node: u16) -> Result<(), String> {
        self.starts += 1;
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        // Makes names unique over all starts.
        let seed = self.seed ^ self.starts.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let argument = Argument { settings: self.settings, node, seed, data: self.data(node) };
        let argument = serde_json::to_string(&argument).map_err(|error| error.to_string())?;
        let log = self.directory.join(format!("node-{node}.log"));
        let log = File::options().create(true).append(true).open(log);
        let mut child = self
            .network
            .on(node, &own)
            .args(self.command)
            .arg(argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log.map_err(|error| error.to_string())?)
            .spawn()
            .map_err(|error| error.to_string())?;
        let input = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        *self.slot(node) = Some(Process { child, input, output });
        Ok(())
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self, node: u16) {
        if let Some(mut process) = self.slot(node).take() {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }

    /// Removes the node's files.
    pub(super) fn wipe(&self, node: u16) {
        self.data(node).into_iter().for_each(|path| {
            let _ = std::fs::remove_dir_all(path);
        });
    }

    pub(super) fn is_running(&self, node: u16) -> bool {
        self.processes[usize::from(node) - 1].is_some()
    }

    pub(super) fn signal(&mut self, node: u16, signal: Signal) {
        let id =
            self.slot(node).as_ref().and_then(|process| Pid::from_raw(process.child.id() as i32));
        if let Some(id) = id {
            let _ = kill_process(id, signal);
        }
    }

    /// Describes a replica that has ended without being killed.
    pub(super) fn ended(&mut self) -> Option<String> {
        (1u16..).zip(&mut self.processes).find_map(|(node, process)| {
            let status = process.as_mut()?.child.try_wait().ok()??;
            Some(format!("the replica of node {node} has ended by itself: {status}"))
        })
    }

    /// The applied index of a replica, and a digest of its state.
    pub(super) fn digest(&mut self, node: u16) -> Option<(u64, u64)> {
        let process = self.slot(node).as_mut()?;
        process.input.write_all(b"digest\n").ok()?;
        let mut line = String::new();
        process.output.read_line(&mut line).ok()?;
        let (index, digest) = line.trim().split_once(' ')?;
        Some((index.parse().ok()?, digest.parse().ok()?))
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        (1..=self.settings.nodes).for_each(|node| self.kill(node));
    }
}
