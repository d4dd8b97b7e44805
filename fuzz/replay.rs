//! The corpora of the fuzz targets, for the tests that replay them.
//!
//! `PETREL_FUZZ_RUNS` sets a number of further inputs, which are random changes of the corpus, and `PETREL_FUZZ_SEED` their
//! seed. They need no nightly compiler, and know nothing of the code that they reach.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// Longest changed input, in bytes: about that of the corpora.
const BYTES_MAX: usize = 2_000;

/// Passes each input of a target's corpus to `check`, and expects at least `count_min` inputs. A failing test
/// prints the input's name last.
pub fn replay(target: &str, count_min: usize, check: fn(&[u8])) {
    // The crate that includes this file is two folders below the root.
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let folder = fuzz.join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(paths.len() >= count_min, "{} inputs in {}", paths.len(), folder.display());
    paths.sort();
    let mut inputs = Vec::new();
    for path in paths {
        println!("{}", path.display());
        let input = std::fs::read(&path).unwrap();
        check(&input);
        inputs.push(input);
    }
    let seed = number("PETREL_FUZZ_SEED");
    let mut random = Random(seed);
    for run in 0..number("PETREL_FUZZ_RUNS") {
        let input = changed(&inputs, &mut random);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&input))) {
            let folder = fuzz.join("artifacts").join(target);
            let path = folder.join(format!("seed-{seed}-run-{run}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&path, &input).unwrap();
            println!("{}", path.display());
            resume_unwind(panic);
        }
    }
}

/// Returns the number in an environment variable, 0 without one.
fn number(name: &str) -> u64 {
    let parse =
        |text: String| text.parse().unwrap_or_else(|_| panic!("{name} is a number: {text}"));
    std::env::var(name).map_or(0, parse)
}

/// Splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((word ^ (word >> 31)) % limit as u64) as usize
    }
}

/// Returns an input with some bytes changed, removed, repeated, or taken from another input.
fn changed(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(input.len() + 1);
        let end = at + random.below((input.len() - at).min(64) + 1);
        match random.below(5) {
            0 if at < input.len() => input[at] = random.below(256) as u8,
            1 if at < input.len() => input[at] ^= 1 << random.below(8),
            2 => drop(input.drain(at..end)),
            3 => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            _ => {
                let other = &inputs[random.below(inputs.len())];
                let begin = random.below(other.len() + 1);
                let piece = begin + random.below(other.len() - begin + 1).min(256);
                input.splice(at..at, other[begin..piece].iter().copied());
            }
        }
        input.truncate(BYTES_MAX);
    }
    input
}
