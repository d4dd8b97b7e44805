//! `petrel completions` and `petrel man`: what shells and `man` want to know of the command.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Outcome;
use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::failure::Failure;

/// Prints a shell's completions.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    // Whole, and not line by line: what reads it may have gone.
    io::stdout().write_all(&completions_of(args.shell))?;
    Ok(Outcome::Success)
}

fn completions_of(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "petrel", &mut text);
    text
}

/// Writes a page for the command and one for each of its subcommands.
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
