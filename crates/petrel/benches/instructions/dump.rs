//! Reads callgrind's profile format (valgrind's manual, "Callgrind Format Specification").
//!
//! The relevant kinds of lines: `fn=` and `ob=` name the function and object of the costs that follow. A line of
//! numbers is a cost, after an address and a line number. The numbers after a `calls=` are the cost of a callee, listed
//! elsewhere in its own lines.

use std::collections::HashMap;

/// Where instructions were executed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Place {
    /// An address in this program.
    Address(u64),
    /// A function of a library.
    Function(String),
}

impl Place {
    pub(crate) fn address(&self) -> Option<u64> {
        match self {
            Place::Address(address) => Some(*address),
            Place::Function(_) => None,
        }
    }
}

/// Executed instructions.
#[derive(Debug, Default)]
pub(crate) struct Costs {
    pub(crate) total: u64,
    /// Instructions in the C library's functions that copy memory.
    pub(crate) copying: u64,
    pub(crate) places: HashMap<Place, u64>,
}

/// Parses a profile; addresses are kept apart in the object `program`.
///
/// # Errors
/// The line with an invalid format.
pub(crate) fn parse(text: &str, program: &str) -> Result<Costs, String> {
    let mut reader = Reader::default();
    for line in text.lines() {
        reader
            .take(line, program)
            .ok_or_else(|| format!("callgrind's file has a line of no known form: {line}"))?;
    }
    Ok(reader.costs)
}

#[derive(Default)]
struct Reader {
    costs: Costs,
    functions: Names,
    objects: Names,
    address: u64,
    /// The next numbers are a callee's.
    is_callee: bool,
}

impl Reader {
    fn take(&mut self, line: &str, program: &str) -> Option<()> {
        if line.starts_with(['+', '-', '*']) || line.starts_with("0x") {
            return self.take_cost(line, program);
        }
        match line.split_once('=') {
            Some(("fn", name)) => self.functions.enter(name)?,
            Some(("cfn", name)) => self.functions.mention(name)?,
            Some(("ob", name)) => self.objects.enter(name)?,
            Some(("cob", name)) => self.objects.mention(name)?,
            Some(("calls", _)) => self.is_callee = true,
            _ => {}
        }
        Some(())
    }

    fn take_cost(&mut self, line: &str, program: &str) -> Option<()> {
        let mut numbers = line.split_whitespace();
        self.address = address(numbers.next()?, self.address)?;
        let cost: u64 = numbers.nth(1)?.parse().ok()?;
        if !std::mem::take(&mut self.is_callee) {
            self.add(cost, program);
        }
        Some(())
    }

    fn add(&mut self, cost: u64, program: &str) {
        let function = self.functions.current();
        self.costs.total += cost;
        if is_copy(function) {
            self.costs.copying += cost;
        }
        let place = if self.objects.current() == program {
            Place::Address(self.address)
        } else {
            Place::Function(function.to_owned())
        };
        *self.costs.places.entry(place).or_default() += cost;
    }
}

/// Parses an address, or its distance from the previous address.
fn address(text: &str, last: u64) -> Option<u64> {
    match text.split_at(1) {
        ("*", "") => Some(last),
        ("+", more) => Some(last + more.parse::<u64>().ok()?),
        ("-", less) => last.checked_sub(less.parse().ok()?),
        _ => u64::from_str_radix(text.strip_prefix("0x")?, 16).ok(),
    }
}

/// Functions that copy memory have a variant per processor: `__memcpy_avx_unaligned_erms`, `__memmove_sse2_unaligned`.
fn is_copy(function: &str) -> bool {
    let name = function.trim_start_matches('_');
    name.starts_with("memcpy") || name.starts_with("memmove")
}

/// Names appear in full at first, `(7) name`, and as `(7)` later.
#[derive(Default)]
struct Names {
    known: HashMap<String, String>,
    current: String,
}

impl Names {
    fn current(&self) -> &str {
        &self.current
    }

    fn enter(&mut self, text: &str) -> Option<()> {
        let key = self.note(text)?;
        self.current.clone_from(self.known.get(key)?);
        Some(())
    }

    fn mention(&mut self, text: &str) -> Option<()> {
        self.note(text).map(|_| ())
    }

    fn note<'a>(&mut self, text: &'a str) -> Option<&'a str> {
        let (key, name) = text.strip_prefix('(')?.split_once(')')?;
        if let Some(name) = name.strip_prefix(' ') {
            self.known.insert(key.to_owned(), name.to_owned());
        }
        Some(key)
    }
}
