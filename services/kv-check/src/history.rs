//! The history of the clients' operations and answers: for the linearizability checker, and for rules that need no
//! checker.

use std::collections::{BTreeMap, BTreeSet};

use petrel_kv::KvError;
use petrel_kv::api::{Applied, Certainty, Outcome};
use serde::Serialize;

/// An operation, as requested. Keys are numbers, values are represented by their tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Invocation {
    Get { key: u8 },
    Put { key: u8, tag: String },
    Delete { key: u8 },
    Cas { key: u8, expected: Expectation, tag: String },
    CasDelete { key: u8, expected: Expectation },
    Scan { from: u8, until: u8, max: u32 },
}

/// The expectation of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Expectation {
    Absent,
    Revision(u64),
    Tag(String),
}

/// A key, as a read found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Found {
    pub(crate) key: u8,
    pub(crate) tag: String,
    pub(crate) revision: u64,
}

/// The answer to an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Response {
    /// The existing keys among the requested ones.
    Found(Vec<Found>),
    /// The write took effect at this index; `was_there` if the key existed before.
    Changed { index: u64, was_there: bool },
    /// The expectation failed; revision 0 for an absent key.
    Mismatch { index: u64, revision: u64 },
}

/// The end of an operation of the store's own client, which may fail.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Answered(Response),
    /// The operation certainly had no effect, and will not have one.
    Failed,
    /// The operation may have taken effect, or may do so later.
    Unknown,
}

/// An operation: from before the first attempt to after the last.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Operation {
    pub(crate) client: u32,
    /// The number of its call event, counted over calls and ends.
    pub(crate) call: u64,
    /// The number of its end event. Without an end, the operation may take effect at any time after the call, or never.
    pub(crate) end: Option<u64>,
    pub(crate) invocation: Invocation,
    pub(crate) response: Option<Response>,
}

/// All operations of a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
    events: u64,
    /// Tags of requested writes, with their keys.
    requested: BTreeMap<String, u8>,
    /// The write of each index: key and tag.
    writers: BTreeMap<u64, (u8, String)>,
    indices: BTreeMap<String, u64>,
    /// The highest index in an answer; and the highest written or read index of every key.
    answered_max: u64,
    least_revisions: BTreeMap<u8, u64>,
    /// The values of `answered_max` and `least_revisions` at the call of each open operation.
    begun: BTreeMap<usize, (u64, BTreeMap<u8, u64>)>,
    /// Operations that certainly had no effect, and the tags of their writes.
    failed: BTreeSet<usize>,
    failed_tags: BTreeSet<String>,
}

impl Invocation {
    /// The key that the operation sets, and the tag of the value.
    fn sets(&self) -> Option<(u8, &str)> {
        match self {
            Invocation::Put { key, tag } | Invocation::Cas { key, tag, .. } => Some((*key, tag)),
            _ => None,
        }
    }
}

impl End {
    /// Converts a result of the store's own client.
    pub(crate) fn of(result: Result<Response, KvError>) -> Self {
        match result {
            Ok(response) => End::Answered(response),
            Err(error) if error.certainty() == Certainty::NotApplied => End::Failed,
            Err(_) => End::Unknown,
        }
    }
}

impl Response {
    /// Converts the result of a write; `None` for other results.
    pub(crate) fn of(applied: Applied) -> Option<Self> {
        let index = applied.index;
        match applied.outcome {
            Outcome::Put { replaced: was_there } | Outcome::Deleted { existed: was_there } => {
                Some(Self::Changed { index, was_there })
            }
            Outcome::Mismatch { revision, .. } => {
                Some(Self::Mismatch { index, revision: revision.unwrap_or(0) })
            }
            Outcome::SessionOpened | Outcome::Batch | Outcome::Restore(_) | Outcome::Lease(_) => {
                None
            }
        }
    }
}

impl History {
    /// Records the call of an operation.
    pub(crate) fn begin(&mut self, client: u32, invocation: Invocation) -> usize {
        let call = self.next_event();
        if let Some((key, tag)) = invocation.sets() {
            self.requested.insert(tag.to_owned(), key);
        }
        self.operations.push(Operation { client, call, end: None, invocation, response: None });
        let id = self.operations.len() - 1;
        self.begun.insert(id, (self.answered_max, self.least_revisions.clone()));
        id
    }

    /// Records the end of an operation.
    ///
    /// # Errors
    /// The contradiction between the answer and earlier answers.
    pub(crate) fn end(&mut self, id: usize, response: Response) -> Result<(), String> {
        let end = self.next_event();
        let (answered_max, least_revisions) = self.begun.remove(&id).expect("it has begun");
        let operation = &mut self.operations[id];
        operation.end = Some(end);
        operation.response = Some(response.clone());
        let invocation = operation.invocation.clone();
        match &response {
            Response::Found(found) => self.check_found(found, &least_revisions)?,
            Response::Changed { index, .. } | Response::Mismatch { index, .. } => {
                if *index <= answered_max {
                    return Err(format!(
                        "{invocation:?} took effect at {index}, after {answered_max} had been answered"
                    ));
                }
            }
        }
        self.learn(&invocation, &response)
    }

    /// Records the end of an operation that certainly had no effect.
    ///
    /// # Errors
    /// The contradiction, if a read has returned the operation's value.
    pub(crate) fn fail(&mut self, id: usize) -> Result<(), String> {
        self.begun.remove(&id);
        self.failed.insert(id);
        let Some((_, tag)) = self.operations[id].invocation.sets() else { return Ok(()) };
        if let Some(index) = self.indices.get(tag) {
            return Err(format!("{tag} is said not to be written, and is, at {index}"));
        }
        self.failed_tags.insert(tag.to_owned());
        Ok(())
    }

    pub(crate) fn has_failed(&self, id: usize) -> bool {
        self.failed.contains(&id)
    }

    pub(crate) fn failed(&self) -> usize {
        self.failed.len()
    }

    /// The number of operations with unknown effect.
    pub(crate) fn open(&self) -> usize {
        let has_no_end = |operation: &&Operation| operation.end.is_none();
        self.operations.iter().filter(has_no_end).count() - self.failed.len()
    }

    /// The operations that may have taken effect: input for the linearizability checker.
    pub(crate) fn possible(&self) -> Vec<&Operation> {
        let all = self.operations.iter().enumerate();
        all.filter(|(id, _)| !self.failed.contains(id)).map(|(_, operation)| operation).collect()
    }

    fn check_found(
        &self,
        found: &[Found],
        least_revisions: &BTreeMap<u8, u64>,
    ) -> Result<(), String> {
        for Found { key, revision, .. } in found {
            let least = least_revisions.get(key).copied().unwrap_or(0);
            if *revision < least {
                return Err(format!(
                    "key {key} was read at revision {revision}, after {least} had been answered"
                ));
            }
        }
        Ok(())
    }

    fn learn(&mut self, invocation: &Invocation, response: &Response) -> Result<(), String> {
        match (invocation, response) {
            (_, Response::Found(found)) => {
                for Found { key, tag, revision } in found {
                    self.note_write(*key, tag, *revision)?;
                }
            }
            (
                Invocation::Put { key, tag } | Invocation::Cas { key, tag, .. },
                Response::Changed { index, .. },
            ) => {
                self.note_write(*key, tag, *index)?;
            }
            (
                Invocation::Delete { key } | Invocation::CasDelete { key, .. },
                Response::Changed { index, was_there: true },
            ) => {
                self.raise_least_revision(*key, *index);
            }
            _ => {}
        }
        if let Response::Changed { index, .. } | Response::Mismatch { index, .. } = response {
            self.answered_max = self.answered_max.max(*index);
        }
        Ok(())
    }

    /// Records a write at an index, as its client or a reader reports. Each value is written only once. A contradiction
    /// therefore means a doubly applied write, or different logs.
    pub(crate) fn note_write(&mut self, key: u8, tag: &str, index: u64) -> Result<(), String> {
        if self.failed_tags.contains(tag) {
            return Err(format!("{tag} is said not to be written, and is, at {index}"));
        }
        let writer = self.writers.entry(index).or_insert_with(|| (key, tag.to_owned()));
        if *writer != (key, tag.to_owned()) {
            return Err(format!("index {index} wrote {writer:?} and {:?}", (key, tag)));
        }
        let known = *self.indices.entry(tag.to_owned()).or_insert(index);
        if known != index {
            return Err(format!("{tag} was applied twice: at {known} and at {index}"));
        }
        if self.requested.get(tag) != Some(&key) {
            return Err(format!("key {key} has a value that nobody wrote: {tag}"));
        }
        self.raise_least_revision(key, index);
        Ok(())
    }

    /// The known writes: their revisions, with their keys.
    pub(crate) fn writes(&self) -> impl Iterator<Item = (u64, u8)> {
        self.writers.iter().map(|(revision, (key, _))| (*revision, *key))
    }

    fn raise_least_revision(&mut self, key: u8, index: u64) {
        let least = self.least_revisions.entry(key).or_default();
        *least = index.max(*least);
    }

    fn next_event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(tag: &str) -> Invocation {
        Invocation::Put { key: 1, tag: tag.to_owned() }
    }

    fn changed(index: u64) -> Response {
        Response::Changed { index, was_there: false }
    }

    fn found(tag: &str, revision: u64) -> Response {
        Response::Found(vec![Found { key: 1, tag: tag.to_owned(), revision }])
    }

    #[test]
    fn end__a_read_of_what_was_overwritten_is_found() {
        let mut history = History::default();
        let first = history.begin(1, put("a"));
        history.end(first, changed(5)).unwrap();
        let early = history.begin(2, Invocation::Get { key: 1 });
        let second = history.begin(1, put("b"));
        history.end(second, changed(6)).unwrap();
        let late = history.begin(2, Invocation::Get { key: 1 });
        assert_eq!(history.end(early, found("a", 5)), Ok(()));
        assert!(history.end(late, found("a", 5)).unwrap_err().contains("after 6"));
    }

    #[test]
    fn end__a_write_before_one_that_was_answered_is_found() {
        let mut history = History::default();
        let first = history.begin(1, put("a"));
        history.end(first, changed(5)).unwrap();
        let second = history.begin(1, put("b"));
        assert!(history.end(second, changed(4)).is_err());
    }

    #[test]
    fn fail__a_write_that_shows_nevertheless_is_found() {
        for is_seen_before in [true, false] {
            let mut history = History::default();
            let write = history.begin(1, put("a"));
            let (early, late) = (
                history.begin(2, Invocation::Get { key: 1 }),
                history.begin(3, Invocation::Get { key: 1 }),
            );
            if is_seen_before {
                history.end(early, found("a", 5)).unwrap();
                assert!(history.fail(write).unwrap_err().contains("at 5"));
            } else {
                history.fail(write).unwrap();
                assert!(history.end(late, found("a", 7)).unwrap_err().contains("at 7"));
            }
        }
    }

    #[test]
    fn end__a_value_that_nobody_wrote_to_the_key_is_found() {
        let mut history = History::default();
        let write = history.begin(1, Invocation::Put { key: 2, tag: "a".to_owned() });
        let reads = [1, 2, 3].map(|client| history.begin(client, Invocation::Get { key: 1 }));
        assert!(history.end(reads[0], found("a", 5)).unwrap_err().contains("nobody"));
        assert!(history.end(reads[1], found("b", 6)).unwrap_err().contains("nobody"));
        assert_eq!(
            history.end(write, changed(7)),
            Err("a was applied twice: at 5 and at 7".into())
        );
        assert_eq!(history.end(reads[2], Response::Found(vec![])), Ok(()));
    }

    #[test]
    fn possible__has_what_may_have_done_something() {
        let mut history = History::default();
        let ids = ["a", "b", "c"].map(|tag| history.begin(1, put(tag)));
        history.end(ids[0], changed(5)).unwrap();
        history.fail(ids[1]).unwrap();
        let ends: Vec<_> = history.possible().iter().map(|one| one.end.is_some()).collect();
        assert_eq!(ends, [true, false]);
        assert_eq!((history.failed(), history.open()), (1, 1));
    }

    #[test]
    fn end__a_write_that_was_applied_twice_is_found() {
        let mut history = History::default();
        let first = history.begin(1, put("a"));
        history.end(first, changed(5)).unwrap();
        let read = history.begin(2, Invocation::Get { key: 1 });
        assert!(history.end(read, found("a", 7)).unwrap_err().contains("twice"));
        let read = history.begin(2, Invocation::Get { key: 1 });
        assert!(history.end(read, found("b", 5)).unwrap_err().contains("index 5"));
    }
}
