//! `petrel completions` and `petrel man`: completions for shells and pages for `man`.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;
use petrel_command::Outcome;
use petrel_command::failure::Failure;

use crate::cli::{Cli, CompletionsArgs, ManArgs};

/// Prints a shell's completions.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    // By a single write, because the reader may close the pipe between two lines.
    io::stdout().write_all(&completions_of(args.shell))?;
    Ok(Outcome::Success)
}

fn completions_of(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "petrel", &mut text);
    text
}

/// Writes pages for the command and all subcommands.
pub(crate) fn man(args: &ManArgs) -> Result<Outcome, Failure> {
    std::fs::create_dir_all(&args.directory)?;
    clap_mangen::generate_to(Cli::command(), &args.directory)?;
    Ok(Outcome::Success)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn completions__know_each_subcommand_in_each_shell() {
        for shell in Shell::value_variants() {
            let text = String::from_utf8(completions_of(*shell)).unwrap();
            for word in ["ping", "health", "serve", "doctor"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }
}
