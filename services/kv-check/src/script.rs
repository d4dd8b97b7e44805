//! The operations of a user of the store's own client.

use std::collections::BTreeMap;

use petrel_sim::Rng;

use crate::history::{Expectation, Invocation, Response};

pub(crate) struct Script {
    number: u32,
    keys: u8,
    padding_max: u64,
    pub(crate) rng: Rng,
    writes: u64,
    known: Known,
}

/// The last known tag and revision of keys: for conditions.
#[derive(Default)]
pub(crate) struct Known(BTreeMap<u8, (String, u64)>);

impl Script {
    /// The script of a client. Keys are numbered below `keys`; values have less padding than `padding_max`.
    pub(crate) fn new(number: u32, keys: u8, padding_max: u64, rng: Rng) -> Self {
        Self { number, keys, padding_max, rng, writes: 0, known: Known::default() }
    }

    /// Forgets all keys, because a new group of keys begins.
    pub(crate) fn forget(&mut self) {
        self.known = Known::default();
    }

    pub(crate) fn draw(&mut self, has_scans: bool) -> Invocation {
        let key = self.rng.below(u64::from(self.keys)) as u8;
        let kind = self.rng.below(if has_scans { 24 } else { 20 });
        let tag = self.next_tag();
        match kind {
            0..7 => Invocation::Get { key },
            7..13 => Invocation::Put { key, tag },
            13..15 => Invocation::Delete { key },
            15..19 => {
                Invocation::Cas { key, expected: self.known.draw_expected(&mut self.rng, key), tag }
            }
            19 => Invocation::CasDelete {
                key,
                expected: self.known.draw_expected(&mut self.rng, key),
            },
            _ => {
                let until = self.rng.between(u64::from(key) + 1, u64::from(self.keys)) as u8;
                Invocation::Scan { from: key, until, max: self.rng.between(1, 8) as u32 }
            }
        }
    }

    pub(crate) fn next_tag(&mut self) -> String {
        let padding = self.rng.below(self.padding_max);
        self.writes += 1;
        format!("{}.{}.{padding}", self.number, self.writes)
    }

    pub(crate) fn remember(&mut self, invocation: &Invocation, response: &Response) {
        self.known.remember(invocation, response);
        if let Invocation::Delete { key } | Invocation::CasDelete { key, .. } = invocation {
            self.known.0.remove(key);
        }
    }
}

impl Known {
    pub(crate) fn draw_expected(&self, rng: &mut Rng, key: u8) -> Expectation {
        match (rng.below(4), self.0.get(&key)) {
            (0, _) | (_, None) => Expectation::Absent,
            (1, Some((tag, _))) => Expectation::Tag(tag.clone()),
            (_, Some((_, revision))) => Expectation::Revision(*revision),
        }
    }

    /// Remembers the values that an operation has found or written.
    pub(crate) fn remember(&mut self, invocation: &Invocation, response: &Response) {
        match (invocation, response) {
            (_, Response::Found(found)) => found.iter().for_each(|found| {
                self.0.insert(found.key, (found.tag.clone(), found.revision));
            }),
            (
                Invocation::Put { key, tag } | Invocation::Cas { key, tag, .. },
                Response::Changed { index, .. },
            ) => {
                self.0.insert(*key, (tag.clone(), *index));
            }
            _ => {}
        }
    }
}
