//! `petrel completions` and `petrel man`: completions for shells and pages for `man`.

use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;
use petrel_command::Outcome;
use petrel_command::failure::Failure;

use crate::cli::{Cli, CompletionsArgs, ManArgs};

/// Prints a shell's completions.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    // A single write: the reader may close the pipe between two lines.
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
    let folder = &args.directory;
    let failed = |error: io::Error| {
        Failure::because(format!("cannot write pages to {}: {error}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write_pages(&command, folder).map_err(failed)?;
    Ok(Outcome::Success)
}

fn write_pages(command: &clap::Command, folder: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_pages(subcommand, folder)?;
    }
    let page = Man::new(command.clone());
    std::fs::write(folder.join(page.get_filename()), page_of(&page, command)?)
}

/// Returns a page whose synopsis is the usage line, with the names of values.
fn page_of(page: &Man, command: &clap::Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('\\', "\\\\").replace('-', "\\-");
    writeln!(text, ".SH SYNOPSIS\n{usage}")?;
    page.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(&mut text)?;
    }
    if command.get_subcommands().any(|command| !command.is_hide_set()) {
        page.render_subcommands_section(&mut text)?;
    }
    if command.get_after_long_help().or(command.get_after_help()).is_some() {
        page.render_extra_section(&mut text)?;
    }
    if command.get_version().is_some() {
        page.render_version_section(&mut text)?;
    }
    Ok(text)
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
