//! Arguments of `petrel doctor`.

use clap::Args;
use petrel_command::args::address::DEFAULT_PORT;

/// Report what this host offers Petrel, and what to do about missing features
///
/// Tries the features that Petrel uses instead of guessing from version numbers: sends a
/// segmented datagram over loopback, receives a coalesced datagram, requests a large socket
/// buffer, seals a piece of shared memory, and so on. It needs no root, takes less than a second
/// and changes nothing. With --credentials it also checks the folder: modes, key, names, validity,
/// authority, revocation. With --device it opens the device as an endpoint would.
///
/// Each check is one of
///   ok    the feature works
///   info  a fact, or something only a dedicated machine would tune
///   warn  Petrel works, but slower or with a limit: the advice says what to do
///   fail  Petrel cannot run on this host before this is mended
#[derive(Args, Debug)]
#[command(verbatim_doc_comment, after_long_help = AFTER_HELP)]
pub(crate) struct DoctorArgs {
    /// The control port that servers will listen on, checked for being free
    #[arg(long, value_name = "PORT", default_value_t = DEFAULT_PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
}

const AFTER_HELP: &str = "\
Examples:
  petrel doctor
  petrel doctor --credentials db1
  petrel doctor --device xdp:eth0
  petrel doctor --json | jq -r 'select(.status == \"warn\") | .advice'

Exit code 0, unless a check that Petrel cannot do without fails: then 1.
With --json: one object per check, {name, area, status, found, advice}; advice may be null.";
