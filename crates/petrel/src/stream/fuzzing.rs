//! The fuzz target `stream` (`fuzz/README.md`): batches of a stranger for either side of a pair.

use std::task::Waker;

use petrel_proto::SessionId;

use super::pair::{Pair, Role, Taken};
use super::shared::{Shared, Waiters};
use crate::error::Error;
use crate::local::Key;
use crate::values::{Metadata, StreamConfig};

/// The most steps of an input, to bound the time.
const STEPS_MAX: usize = 64;

/// Few streams and little memory: inputs reach the limits.
fn config() -> StreamConfig {
    let mut config = StreamConfig::default();
    (config.streams_max, config.held_bytes_max) = (4, config.window_bytes);
    config
}

/// Hands batches to a pair, and lets the application read, send and end streams in between. A step begins with a byte for its kind, and
/// one for its length or its stream.
///
/// # Panics
/// If a rule of the pair is broken: a panic, or memory beyond the limits.
pub fn check(data: &[u8]) {
    let Some((&first, steps)) = data.split_first() else { return };
    let role = if first & 1 == 0 { Role::Client } else { Role::Server };
    let pair = Shared::new(role, config(), 1 << 20);
    let mut world = World { pair: &pair, keys: Vec::new(), sequence: 0, now_ns: 1 };
    if role == Role::Client {
        (0..4).for_each(|_| world.open());
    }
    world.run(steps);
    pair.fail(&Error::new(petrel_proto::Status::Unavailable, "the end"));
    world.keys.iter().for_each(|key| pair.with(|pair| pair.release(*key)));
    assert!(pair.with(|pair| pair.is_empty()), "no stream is left");
}

struct World<'a> {
    pair: &'a Shared,
    keys: Vec<Key>,
    sequence: u64,
    now_ns: u64,
}

impl World<'_> {
    fn run(&mut self, mut steps: &[u8]) {
        for _ in 0..STEPS_MAX {
            let [kind, of, rest @ ..] = steps else { return };
            let (bytes, rest) = match kind & 7 {
                0..=2 => rest.split_at(usize::from(*of).min(rest.len())),
                _ => (&[][..], rest),
            };
            steps = rest;
            self.step(*kind, usize::from(*of), bytes);
            self.pair.with(|pair| pair.check_limits());
        }
    }

    fn step(&mut self, kind: u8, of: usize, bytes: &[u8]) {
        let key = self.keys.get(of % self.keys.len().max(1)).copied();
        match (kind & 7, key) {
            (0, _) => self.batch(self.sequence, bytes),
            // Another number than the next.
            (1, _) => self.batch(self.sequence.wrapping_add(u64::from(kind >> 3)), bytes),
            (2, _) => self.batch(self.sequence, &bytes.repeat(1 + 40 * usize::from(kind >> 3))),
            (3, _) => self.transmit(),
            (4, Some(key)) => {
                self.pair.with(|pair| drop::<Taken>(pair.take(key, &mut Vec::new())));
            }
            (5, Some(key)) => {
                let len = usize::from(kind >> 3) * 3_000;
                let fill = |out: &mut Vec<u8>| out.resize(out.len() + len, 7);
                self.pair.with(|pair| drop(pair.send(key, fill)));
            }
            (6, Some(key)) if kind & 8 == 0 => {
                self.pair.with(|pair| pair.finish(key, Ok(()), Metadata::new()));
            }
            (6, Some(key)) => self.pair.with(|pair| pair.discard(key)),
            (7, Some(key)) => {
                self.keys.retain(|other| *other != key);
                self.pair.with(|pair| pair.release(key));
            }
            _ => self.now_ns = self.now_ns.saturating_add(1 << (of & 63)),
        }
    }

    fn open(&mut self) {
        let key =
            self.pair.with(|pair: &mut Pair<Waiters>| pair.open(7, u64::MAX, Metadata::new()));
        self.keys.extend(key.ok());
    }

    fn batch(&mut self, sequence: u64, records: &[u8]) {
        let session = SessionId { index: 0, generation: 0 };
        let batch = [&sequence.to_le_bytes(), records].concat();
        if let Ok(opened) = self.pair.handle_batch(session, self.now_ns, &batch) {
            self.sequence += u64::from(sequence == self.sequence);
            self.keys.extend(opened.into_iter().map(|(key, _)| key));
        }
    }

    fn transmit(&mut self) {
        let alloc = |bytes| Ok(vec![0; bytes]);
        let batch = self.pair.next_batch(self.now_ns, Waker::noop(), alloc, |memory| memory);
        if let Ok(Some(batch)) = batch {
            self.pair.with(|pair| pair.acknowledge(batch.sequence));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::replay::replay;

    #[test]
    fn check__corpus() {
        replay("stream", 6, check);
    }

    proptest! {
        #[test]
        fn check__of_any_steps(
            first in any::<u8>(),
            steps in prop::collection::vec(
                (any::<u8>(), prop::collection::vec((0_u32..5, 0_u8..8, 0_u8..30), 0..4)),
                1..40,
            ),
        ) {
            let mut input = vec![first];
            for (kind, records) in steps {
                let mut bytes = Vec::new();
                for (stream, kind, len) in records {
                    bytes.extend(stream.to_le_bytes());
                    bytes.extend([kind, len, 0, 0]);
                    bytes.extend(vec![1; len.into()]);
                }
                input.extend([kind, bytes.len() as u8]);
                input.extend(bytes);
            }
            check(&input);
        }
    }
}
