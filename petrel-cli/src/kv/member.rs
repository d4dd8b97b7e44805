//! `petrel kv member` and `petrel kv transfer`.

use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use serde::Serialize;

use super::Cluster;
use crate::cli::{KvMemberArgs, KvMemberCommand, KvNodeArgs};

#[derive(Serialize)]
struct Done {
    done: &'static str,
    node: u16,
}

pub(super) fn run(args: &KvMemberArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        KvMemberCommand::Add(args) => {
            let (node, address) = (args.of.node, args.address);
            Cluster::new(&args.of.cluster)?
                .run(async |client| client.add_member(node, address).await)?;
            let line = format!("Node {node} may join: start it at {address}.");
            print_result(Done { done: "added", node }, &line, output)
        }
        KvMemberCommand::Remove(args) => {
            let node = args.node;
            let was_member = Cluster::new(&args.cluster)?
                .run(async |client| client.remove_member(node).await)?;
            let (done, line) = if was_member {
                ("removed", format!("Node {node} is no member any more: stop it, if it runs."))
            } else {
                ("nothing", format!("Node {node} was no member: nothing was done."))
            };
            print_result(Done { done, node }, &line, output)
        }
    }
}

pub(super) fn transfer(args: &KvNodeArgs, output: Output) -> Result<Outcome, Failure> {
    let node = args.node;
    Cluster::new(&args.cluster)?.run(async |client| client.transfer(node).await)?;
    print_result(Done { done: "leads", node }, &format!("Node {node} leads."), output)
}

fn print_result(done: Done, line: &str, output: Output) -> Result<Outcome, Failure> {
    output.line(line)?;
    output.record(&done)?;
    Ok(Outcome::Success)
}
