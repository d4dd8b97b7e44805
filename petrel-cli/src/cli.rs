//! The arguments of the command line. The help texts here are the reference of the command.
//!
//! Every flag states its unit and its default. Sizes are written `64KiB`, durations `10us`; see
//! [`petrel_command::units`].

#[cfg(feature = "full")]
mod cache;
mod client;
#[cfg(feature = "full")]
mod credentials;
#[cfg(feature = "full")]
mod device;
mod doctor;
#[cfg(feature = "full")]
mod index;
#[cfg(feature = "full")]
mod kv;
#[cfg(feature = "full")]
mod kv_chaos;
#[cfg(feature = "full")]
mod kv_files;
#[cfg(feature = "full")]
mod kv_lease;
#[cfg(feature = "full")]
mod kv_sim;
#[cfg(feature = "full")]
mod kv_watch;
mod manual;
mod server;
#[cfg(feature = "full")]
mod sim;

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::log::EventLevel;

#[cfg(feature = "full")]
pub(crate) use cache::{
    CacheArgs, CacheCommand, CacheIncrArgs, CacheKeyArgs, CacheServeArgs, CacheServerArgs,
    CacheStoreArgs, CacheTouchArgs,
};
pub(crate) use client::{CallArgs, HealthArgs, ListArgs, PingArgs, ServerArgs, StatsArgs};
#[cfg(feature = "full")]
pub(crate) use credentials::{
    CertArgs, CertCaArgs, CertCommand, CertIssueArgs, CertShowArgs, CredentialsArgs, KeyArgs,
    KeyCommand, KeyNewArgs, KeyPinArgs, RevokeArgs,
};
#[cfg(feature = "full")]
pub(crate) use device::{DpdkShimArgs, XdpHelperArgs};
pub(crate) use doctor::DoctorArgs;
#[cfg(feature = "full")]
pub(crate) use index::{
    IndexArgs, IndexCommand, IndexKeyArgs, IndexPutArgs, IndexScanArgs, IndexServeArgs,
    IndexStatusArgs,
};
#[cfg(feature = "full")]
pub(crate) use kv::{
    ClusterArgs, ExpectedArgs, FormatArgs, KvArgs, KvCasArgs, KvCommand, KvDeleteArgs, KvGetArgs,
    KvMemberArgs, KvMemberCommand, KvNodeArgs, KvPutArgs, KvScanArgs, KvServeArgs, KvStatusArgs,
};
#[cfg(feature = "full")]
pub(crate) use kv_chaos::{KvChaosArgs, KvChaosReplicaArgs};
#[cfg(feature = "full")]
pub(crate) use kv_files::{KvExportArgs, KvImportArgs, KvRestoreArgs, KvSaveArgs};
#[cfg(feature = "full")]
pub(crate) use kv_lease::{
    KvLeaseArgs, KvLeaseCommand, KvLeaseGrantArgs, KvLeaseKeepAliveArgs, KvLeaseListArgs,
    KvLeaseOfArgs, KvLeaseTtlArgs,
};
#[cfg(feature = "full")]
pub(crate) use kv_sim::KvSimArgs;
#[cfg(feature = "full")]
pub(crate) use kv_watch::KvWatchArgs;
pub(crate) use manual::{CompletionsArgs, ManArgs};
pub(crate) use server::ServeArgs;
#[cfg(feature = "full")]
pub(crate) use sim::{SeedsArgs, SimArgs};

/// Microsecond RPCs over plain networks: try and measure RPCs, and diagnose the host.
///
/// Petrel is an RPC library for datacenters. Petrel needs no special network card, no root and no huge
/// pages; the command needs no further programs. Start with `petrel doctor`, which reports the features
/// of this host, and advice about missing ones.
#[derive(Debug, Parser)]
#[command(name = "petrel", version, max_term_width = 100)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[cfg(feature = "full")]
    #[command(flatten)]
    pub(crate) credentials: CredentialsArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[cfg(feature = "full")]
impl Command {
    /// Returns true for commands that use credentials, or connect to nothing.
    pub(crate) fn connects(&self) -> bool {
        match self {
            Self::Bench(args) => args.uses_credentials(),
            Self::Demo(_) => false,
            Self::Cache(args) => {
                !matches!(args.what, CacheCommand::Bench(_) | CacheCommand::Attacks(_))
            }
            Self::Kv(args) => !matches!(
                args.what,
                KvCommand::Chaos(_) | KvCommand::ChaosReplica(_) | KvCommand::Sim(_)
            ),
            _ => true,
        }
    }

    /// Returns true for commands with endpoints of this process, and for the doctor, which tries a device.
    pub(crate) fn may_use_device(&self) -> bool {
        match self {
            Self::Bench(args) => args.uses_device(),
            Self::Cache(_) | Self::Index(_) | Self::Kv(_) => self.connects(),
            Self::Cert(_)
            | Self::Completions(_)
            | Self::Demo(_)
            | Self::DpdkShim(_)
            | Self::Key(_)
            | Self::Man(_)
            | Self::Sim(_)
            | Self::XdpHelper(_) => false,
            _ => true,
        }
    }

    /// Returns the names of the served methods, for a policy; `None` for a command without a service.
    pub(crate) fn served(&self) -> Option<Vec<(String, u16)>> {
        let (service, names): (_, &[(&str, u16)]) = match self {
            Self::Serve(_) => ("", &petrel_command::methods::NAMES),
            Self::Cache(CacheArgs { what: CacheCommand::Serve(_) }) => {
                ("cache.", &petrel_cache::wire::METHODS)
            }
            Self::Index(IndexArgs { what: IndexCommand::Serve(_) }) => {
                ("index.", &petrel_index::METHODS)
            }
            Self::Kv(KvArgs { what: KvCommand::Serve(_) }) => {
                ("kv.", &petrel_kv::api::methods::NAMES)
            }
            _ => return None,
        };
        Some(names.iter().map(|(name, number)| (format!("{service}{name}"), *number)).collect())
    }
}

impl Cli {
    /// Parses a command line, and checks arguments beside each other.
    ///
    /// # Errors
    /// A wrong argument, or the help text that was asked for.
    pub(crate) fn read(
        words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let cli = Self::try_parse_from(words)?;
        let checked = match &cli.command {
            Command::Ping(args) => args.check(),
            Command::Stats(args) => args.target().map(|_| ()),
            _ => Ok(()),
        };
        match checked {
            Ok(()) => Ok(cli),
            Err(reason) => Err(Self::command().error(ErrorKind::ValueValidation, reason)),
        }
    }
}

const AFTER_HELP: &str = "\
Sizes are bytes or carry a unit: 32, 64KiB, 8MiB (powers of 1024), 1MB (of 1000).
Durations carry a unit: 250ns, 10us, 1.5ms, 3s, 2min.

Exit codes: 0 success, 1 failure, 2 wrong usage.

Environment:
  NO_COLOR    set to anything, it switches colours off
  PETREL_LOG  error, warn, info or debug: as --log

`petrel COMMAND --help` explains each command with examples.";

/// Flags of every subcommand.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub(crate) struct GlobalArgs {
    /// Print one JSON object per line instead of text for people
    ///
    /// Standard output then carries JSON only, without colours and progress bars. Times are whole
    /// nanoseconds in fields named `*_ns`, sizes are bytes in fields named `*_bytes`.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Show no progress bars
    ///
    /// Progress bars go to standard error, and only to a terminal, so scripts need not set this flag.
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,

    /// Write events to standard error: why sessions end, links fail and calls are refused
    ///
    /// `petrel kv serve` writes the events of its replica too, by default those of info.
    #[arg(long, global = true, value_enum, value_name = "LEVEL", env = "PETREL_LOG")]
    pub(crate) log: Option<EventLevel>,
}

// The help texts stand with the argument structs: a comment on a variant here would replace them.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Demo(petrel_bench::demo::DemoArgs),
    Serve(ServeArgs),
    Ping(PingArgs),
    Call(CallArgs),
    List(ListArgs),
    Stats(StatsArgs),
    Health(HealthArgs),
    #[cfg(feature = "full")]
    Cert(CertArgs),
    #[cfg(feature = "full")]
    Key(KeyArgs),
    #[cfg(feature = "full")]
    Kv(KvArgs),
    #[cfg(feature = "full")]
    Bench(petrel_bench::command::BenchArgs),
    #[cfg(feature = "full")]
    Index(IndexArgs),
    #[cfg(feature = "full")]
    Cache(CacheArgs),
    #[cfg(feature = "full")]
    Sim(SimArgs),
    #[cfg(feature = "full")]
    XdpHelper(XdpHelperArgs),
    #[cfg(feature = "full")]
    DpdkShim(DpdkShimArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
    #[cfg(not(feature = "full"))]
    #[command(hide = true)]
    Bench(LeftOutArgs),
    #[cfg(not(feature = "full"))]
    #[command(hide = true)]
    Cache(LeftOutArgs),
    #[cfg(not(feature = "full"))]
    #[command(hide = true)]
    Index(LeftOutArgs),
    #[cfg(not(feature = "full"))]
    #[command(hide = true)]
    Kv(LeftOutArgs),
    #[cfg(not(feature = "full"))]
    #[command(hide = true)]
    Sim(LeftOutArgs),
}

/// Why a subcommand of the whole command is missing.
#[cfg(not(feature = "full"))]
pub(crate) const LEFT_OUT: &str = "this build has neither benchmarks, services nor the simulator; \
     `cargo install --path petrel-cli` builds the whole command";

/// Any arguments of a subcommand that this build leaves out.
#[cfg(not(feature = "full"))]
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct LeftOutArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _any: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::read(line.split_ascii_whitespace()).map(|cli| cli.command)
    }

    #[test]
    fn cli__is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn cli__global_flags_are_taken_on_both_sides_of_the_subcommand() {
        for line in [["petrel", "--json", "doctor"], ["petrel", "doctor", "--json"]] {
            assert!(Cli::try_parse_from(line).unwrap().global.json);
        }
    }

    /// Returns every line of the help texts that shows a call of the command, up to a pipe.
    fn examples() -> Vec<String> {
        let everything = Cli::command();
        let nested = everything.find_subcommand("kv").unwrap().get_subcommands();
        let shown = everything.get_subcommands().chain(nested).filter(|it| !it.is_hide_set());
        let helps = shown.map(|subcommand| {
            let help = subcommand.get_after_long_help().map(ToString::to_string);
            help.unwrap_or_else(|| panic!("{} has no examples", subcommand.get_name()))
        });
        helps
            .flat_map(|help| help.lines().map(str::to_owned).collect::<Vec<_>>())
            .filter_map(|line| {
                let call = &line[line.find("petrel ").filter(|_| line.starts_with("  "))?..];
                Some(call.split(['|', '>']).next()?.to_owned())
            })
            .collect()
    }

    #[test]
    fn cli__every_example_in_the_help_parses() {
        let examples = examples();
        assert!(examples.len() >= 20, "{examples:?}");
        for example in examples {
            parse(&example).unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }

    #[test]
    fn cli__defaults_are_those_that_the_help_names() {
        let Command::Ping(ping) = parse("petrel ping host").unwrap() else { panic!() };
        assert_eq!((ping.count, ping.size, ping.in_flight), (10, 32, 1));
        assert_eq!(ping.server.address.to_string(), "host:31850");
        let Command::Serve(serve) = parse("petrel serve").unwrap() else { panic!() };
        assert_eq!((serve.listen.address, serve.mtu), ("127.0.0.1:31850".parse().unwrap(), None));
        assert!(!serve.listen.insecure);
    }

    #[test]
    fn cli__watch_without_a_value_leaves_the_address_alone() {
        for (line, seconds) in [
            ("petrel stats 127.0.0.1:1", None),
            ("petrel stats --watch 127.0.0.1:1", Some(1)),
            ("petrel stats --watch=3s 127.0.0.1:1", Some(3)),
            ("petrel stats 127.0.0.1:1 --watch 2s", Some(2)),
            ("petrel stats --watch 2s 127.0.0.1:1", Some(2)),
        ] {
            let Command::Stats(stats) = parse(line).unwrap() else { panic!() };
            let (address, watch) = stats.target().unwrap();
            assert_eq!(address.to_string(), "127.0.0.1:1", "{line}");
            assert_eq!(watch.map(|every| every.as_secs()), seconds, "{line}");
        }
    }

    #[test]
    fn cli__values_out_of_range_are_usage_errors() {
        for line in [
            "petrel no-such-command",
            "petrel doctor --no-such-flag",
            "petrel doctor --port 0",
            "petrel doctor surplus",
            "petrel ping",
            "petrel ping host --size many",
            "petrel ping host --transport pigeon",
            "petrel bench rate --duration 3",
            "petrel bench rate --cores 3",
            "petrel bench rate --veth --cores 2",
            "petrel bench rate --veth --connect 127.0.0.1",
            "petrel bench rate --veth --memif",
            "petrel bench rate --batch 0",
            "petrel bench sessions --sessions 0",
            "petrel bench sessions --sessions 65001",
            "petrel ping host --count 0",
            "petrel ping host --size 64K",
            "petrel ping host --timeout 5",
            "petrel ping host:0",
            "petrel ping host --size 2",
            "petrel stats host 1s",
            "petrel stats host --watch=0s",
            "petrel stats host --watch 0s",
            "petrel stats one two --watch",
            "petrel serve --message-max 0",
            "petrel serve --message-max 1",
            "petrel bench latency --duration 0s",
            "petrel bench latency --duration 1ms",
            "petrel bench rate --window 0s",
            "petrel kv serve --id 1 --peers 1=127.0.0.1:1 --log-level info",
            "petrel serve --listen localhost",
            "petrel serve --mtu 1279",
            "petrel serve --endpoints 0",
            "petrel serve --idle sleep",
            "petrel call host --data @",
            "petrel call host --method no-such-method",
            "petrel bench rate --endpoint 1",
            "petrel bench",
            "petrel bench rate --transport tcp",
            "petrel bench counted-workload tcp-60 600",
            "petrel sim --trace",
            "petrel sim --seed 1 --seeds 2 --trace",
            "petrel sim --seed x",
            "petrel kv serve --id 0 --peers 1=127.0.0.1:1",
            "petrel kv serve --id 1 --peers 127.0.0.1:1",
            "petrel kv serve --id 1",
            "petrel kv cas key value --servers host",
            "petrel kv cas key value --absent --revision 1 --servers host",
            "petrel kv scan a b --prefix --servers host",
            "petrel kv member add 4 somewhere --servers host",
        ] {
            let error = parse(line).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}: {error}");
        }
    }
}
