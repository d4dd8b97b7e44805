//! Arguments of `petrel completions` and `petrel man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Print completions for a shell
#[derive(Args, Debug)]
#[command(after_long_help = COMPLETIONS_AFTER_HELP)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

const COMPLETIONS_AFTER_HELP: &str = "\
Examples:
  petrel completions bash > /etc/bash_completion.d/petrel
  petrel completions zsh > ~/.zfunc/_petrel";

/// Write manual pages: a page for the command, and pages for the subcommands
#[derive(Args, Debug)]
#[command(after_long_help = MAN_AFTER_HELP)]
pub(crate) struct ManArgs {
    /// The directory for the pages, created on demand
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

const MAN_AFTER_HELP: &str = "\
Examples:
  petrel man /usr/local/share/man/man1";
