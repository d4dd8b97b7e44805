//! Arguments of `petrel kv watch`.

use clap::Args;

use super::kv::{ClusterArgs, FormatArgs};

/// Print the changes of a key, or of many, as they come, until interrupted
///
/// Each change is printed once, in the order of the revisions, whichever replicas fail meanwhile. The
/// end of a lease deletes its keys. Changes with the same revision belong together: a batch, or leases
/// that ended.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct KvWatchArgs {
    /// The key [default: all keys]
    #[arg(value_name = "KEY")]
    pub(crate) key: Option<String>,

    /// Keys that begin with this text
    #[arg(long, value_name = "PREFIX", conflicts_with = "key")]
    pub(crate) prefix: Option<String>,

    /// Keys from FROM on, before UNTIL
    #[arg(long, num_args = 2, value_names = ["FROM", "UNTIL"], conflicts_with_all = ["key", "prefix"])]
    pub(crate) range: Option<Vec<String>>,

    /// The first revision, as far back as the replicas have changes (`petrel kv serve --history`)
    /// [default: from now on]
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) from: Option<u64>,

    /// End after this number of revisions
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,

    #[command(flatten)]
    pub(crate) format: FormatArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

const AFTER_HELP: &str = "\
Examples:
  petrel kv watch colour --servers 127.0.0.1:7001
  petrel kv watch --prefix user: --from 17 --servers 127.0.0.1:7001
  petrel kv watch --range a c --json --servers 127.0.0.1:7001

A line has the revision, put or delete, the key and the value, with tabs between. With --json: an
object for each change, {revision, kind, key, value}; key_hex and value_hex for what is not UTF-8.
The exit code is 1 if the changes from a revision on are gone.";
