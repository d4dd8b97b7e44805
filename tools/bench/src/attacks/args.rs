//! Arguments of `petrel bench attacks`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use petrel_command::units::parse_duration;

use super::AttackKind;

/// Arguments of `petrel bench attacks`.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttacksArgs {
    /// Attacks to run, in turn; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    #[arg(default_values = [
        "half-requests", "kept-answers", "second-link", "doorbell", "connections", "sessions",
        "spray",
    ])]
    pub(crate) attack: Vec<AttackKind>,

    /// The attacker's credentials for `beyond-quota`: its identity is not that of the honest clients, who have --credentials
    #[arg(long, value_name = "DIR")]
    pub(crate) attacker: Option<PathBuf>,

    /// Windows without each attack, as many with the attack on another server, and as many with the
    /// attack
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,

    /// Length of every window
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) window: Duration,
}
