//! The command: prints the figures that `petrel-house` measures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use petrel_house::language::{Figures, Kind, Sentence};
use petrel_house::lines::Lines;
use petrel_house::{Failure, language, lines, links, shape, source};

/// Figures of Petrel's own source
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The language of comments and documents, folder by folder
    Language {
        /// Also print this number of sentences with the most vague pronouns
        #[arg(long, default_value_t = 0)]
        worst: usize,
        /// Folders, relative to the repository; all by default
        folders: Vec<PathBuf>,
    },
    /// Lines and circles of imports of each crate
    Shape,
    /// Lines of each crate: code, comments, blank lines, and tests by themselves
    Lines {
        /// Another checkout to count, for example of an earlier commit [default: this one]
        #[arg(long)]
        root: Option<PathBuf>,
    },
    /// Links of the documents that lead nowhere
    Links,
}

/// Folders that are measured by themselves, and all.
const FOLDERS: [&str; 9] = [
    "crates/petrel-proto",
    "crates/petrel-transport",
    "crates/petrel",
    "crates/petrel-sim",
    "services",
    "petrel-cli",
    "tools",
    "bench",
    "",
];

/// Crates whose shape is measured.
const CRATES: [&str; 8] = [
    "crates/petrel-proto",
    "crates/petrel-transport",
    "crates/petrel",
    "crates/petrel-sim",
    "services/kv",
    "services/kv-check",
    "services/index",
    "petrel-cli",
];

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Language { worst, folders } => print_language(worst, folders),
        Command::Shape => print_shape(),
        Command::Lines { root } => print_lines(&root.unwrap_or_else(source::root)),
        Command::Links => print_links(),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("petrel-house: {failure}");
        ExitCode::from(2)
    })
}

fn print_language(worst: usize, mut folders: Vec<PathBuf>) -> Result<ExitCode, Failure> {
    if folders.is_empty() {
        folders = FOLDERS.map(PathBuf::from).to_vec();
    }
    let mut table =
        table(&["", "", "sentences", "words each", "vague, %", "clause subjects", "nobody"]);
    let mut all: Vec<Sentence> = Vec::new();
    for folder in &folders {
        for (kind, label) in [(Kind::Comments, "comments"), (Kind::Documents, "documents")] {
            let sentences = language::sentences(&source::root().join(folder), kind)?;
            let Figures {
                sentences: count,
                words_mean,
                vague_percent,
                clause_subjects,
                no_subjects,
            } = Figures::of(&sentences);
            let name = if folder.as_os_str().is_empty() {
                "all".into()
            } else {
                folder.display().to_string()
            };
            table.add_row([
                name,
                label.to_owned(),
                count.to_string(),
                format!("{words_mean:.1}"),
                format!("{vague_percent:.1}"),
                clause_subjects.to_string(),
                no_subjects.to_string(),
            ]);
            all.extend(sentences);
        }
    }
    println!("{table}");
    all.sort_by(|a, b| b.vague_percent().total_cmp(&a.vague_percent()));
    all.dedup_by(|a, b| a.text == b.text);
    for sentence in all.iter().take(worst) {
        println!(
            "{:.0} % {}:{}: {}",
            sentence.vague_percent(),
            sentence.path.display(),
            sentence.line,
            sentence.text
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn print_shape() -> Result<ExitCode, Failure> {
    let mut table = table(&["", "lines", "circles", "rooms in circles"]);
    let mut circles: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for folder in CRATES {
        let shape = shape::of_crate(&source::root().join(folder))?;
        table.add_row([
            folder.to_owned(),
            shape.lines.to_string(),
            shape.circles.len().to_string(),
            shape.room_circles.iter().map(Vec::len).sum::<usize>().to_string(),
        ]);
        let paths =
            |circle: Vec<PathBuf>| circle.iter().map(|path| path.display().to_string()).collect();
        circles.extend(shape.circles.into_iter().map(|circle| ("files", folder, paths(circle))));
        circles.extend(shape.room_circles.into_iter().map(|circle| ("rooms", folder, circle)));
    }
    println!("{table}");
    for (of, folder, circle) in circles {
        println!("circle of {of} in {folder}: {}", circle.join(" "));
    }
    Ok(ExitCode::SUCCESS)
}

fn print_lines(root: &Path) -> Result<ExitCode, Failure> {
    let mut table = table(&["", "outside tests", "code", "comments", "blank", "tests"]);
    let mut all = Lines::default();
    let mut add = |name: String, lines: Lines| {
        let counts = [lines.outside_tests(), lines.code, lines.comments, lines.blank, lines.tests];
        table.add_row([name].into_iter().chain(counts.map(|count| count.to_string())));
    };
    for (folder, lines) in lines::of_crates(root)? {
        add(folder.display().to_string(), lines);
        all += lines;
    }
    add("all".to_owned(), all);
    println!("{table}");
    Ok(ExitCode::SUCCESS)
}

fn print_links() -> Result<ExitCode, Failure> {
    let (followed, broken) = links::follow(&source::root())?;
    for link in &broken {
        println!("{}: {}: {}", link.document.display(), link.link, link.why);
    }
    println!("{followed} links, {} of them lead nowhere", broken.len());
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(header);
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}
