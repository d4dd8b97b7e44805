//! The rules for watches: each change of the range is seen once and in the order of the revisions, whichever replicas
//! the changes come from, and the changes together lead to the state at the end.
//!
//! A user reads the keys of a range, and watches them from there on. The watch has to show each write of the clients'
//! history, and at the end the keys are as the changes have left them, with the ends of leases. If the history of all
//! replicas has lost the next changes, the user begins anew, as every user has to.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use petrel::task::Handle;
use petrel_kv::client::{RevisionChanges, Watch};
use petrel_kv::{KvClient, KvError};
use petrel_sim::Rng;

use crate::common::Common;
use crate::value::{key_of, number_of, tag_of};

/// Timeout of operations after the faults: longer than any wait of a world.
const FOREVER: Duration = Duration::from_secs(3_600);

/// Keys with their revisions and values.
pub(crate) type Keys = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// A range of keys as a watch shows it.
pub(crate) struct Follower {
    pub(crate) from: Vec<u8>,
    pub(crate) until: Option<Vec<u8>>,
    keys: Keys,
    /// The revision of the begin, and those with changes since.
    begin: u64,
    seen: BTreeSet<u64>,
}

impl Follower {
    pub(crate) fn new(from: Vec<u8>, until: Option<Vec<u8>>) -> Self {
        Self { from, until, keys: Keys::new(), begin: 0, seen: BTreeSet::new() }
    }

    /// Reads the keys, and begins a watch of what changes after that.
    pub(crate) async fn begin(&mut self, client: &KvClient) -> Result<Watch, KvError> {
        self.begin = client.revision().await?;
        self.seen.clear();
        self.keys = self.read(client).await?;
        let watch = client.watch(&self.from, self.until.as_deref());
        Ok(watch.since(self.begin.saturating_add(1)))
    }

    /// Reads the keys of the range.
    pub(crate) async fn read(&self, client: &KvClient) -> Result<Keys, KvError> {
        let mut scan = client.scan(&self.from, self.until.as_deref());
        let mut keys = Keys::new();
        while let Some(pair) = scan.next().await? {
            keys.insert(pair.key, (pair.revision, pair.value));
        }
        Ok(keys)
    }

    fn has(&self, key: &[u8]) -> bool {
        key >= &self.from[..] && self.until.as_deref().is_none_or(|until| key < until)
    }

    /// Follows the changes of a revision. `note_put` learns of each put.
    ///
    /// # Errors
    /// The broken rule.
    pub(crate) fn note(
        &mut self,
        changes: &RevisionChanges,
        mut note_put: impl FnMut(&[u8], &str, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let revision = changes.revision();
        let last = self.seen.last().copied().unwrap_or(self.begin);
        if revision <= last {
            return Err(format!("revision {revision} comes after {last}"));
        }
        self.seen.insert(revision);
        for change in changes.iter() {
            if !self.has(change.key) {
                return Err(format!("a change of {:?}", change.key));
            }
            let Some(value) = change.value else {
                self.keys.remove(change.key);
                continue;
            };
            let tag = tag_of(value).unwrap_or_else(|| "malformed".to_owned());
            note_put(change.key, &tag, revision)?;
            self.keys.insert(change.key.to_vec(), (revision, value.to_vec()));
        }
        Ok(())
    }

    /// Checks that the watch has shown these writes, with their revisions, if they are of its range and time.
    ///
    /// # Errors
    /// The write that was not shown.
    pub(crate) fn check_whole(
        &self,
        writes: impl Iterator<Item = (u64, Vec<u8>)>,
        last: u64,
    ) -> Result<(), String> {
        let is_missing = |(revision, key): &(u64, Vec<u8>)| {
            let is_of_its_time = *revision > self.begin && *revision <= last;
            is_of_its_time && self.has(key) && !self.seen.contains(revision)
        };
        match { writes }.find(is_missing) {
            Some((revision, key)) => {
                Err(format!("the write of {} at {revision} was not shown", key.escape_ascii()))
            }
            None => Ok(()),
        }
    }

    /// Compares the keys with those of the store.
    ///
    /// # Errors
    /// The difference.
    pub(crate) fn compare(&self, found: &Keys) -> Result<(), String> {
        let differs = |key: &&Vec<u8>| self.keys.get(*key) != found.get(*key);
        let Some(key) = self.keys.keys().chain(found.keys()).find(differs) else { return Ok(()) };
        let [shown, there] = [&self.keys, found].map(|keys| keys.get(key).map(|it| it.0));
        let key = key.escape_ascii();
        Err(format!("{key}: the watch led to revision {shown:?}, and the store has {there:?}"))
    }
}

/// A user of a watch.
pub(crate) struct WatchUser {
    common: Rc<Common>,
    handle: Handle,
    client: KvClient,
    number: u32,
    follower: Follower,
}

impl WatchUser {
    pub(crate) fn new(
        common: Rc<Common>,
        handle: Handle,
        client: KvClient,
        number: u32,
        mut rng: Rng,
    ) -> Self {
        let key = key_of(rng.below(u64::from(common.scenario.load.keys)) as u8).to_vec();
        let follower = match rng.below(4) {
            // The keys of clients alone; of the leases alone; a single key.
            0 => Follower::new(b"key".to_vec(), Some(b"kez".to_vec())),
            1 => Follower::new(b"leased".to_vec(), None),
            2 => Follower::new(key.clone(), Some([&key[..], &[0]].concat())),
            _ => Follower::new(Vec::new(), None),
        };
        Self { common, handle, client, number, follower }
    }

    /// Watches until the end of the world's operations, and compares the keys.
    pub(crate) async fn run(mut self) {
        while !self.common.has_failed() {
            let Err(error) = self.watch().await else { break };
            self.common.fabric.note(format_args!("WATCH {} ends: {error}", self.number));
            match error {
                KvError::Compacted { .. } => {
                    self.common.counters.borrow_mut().watches_compacted += 1;
                }
                KvError::Timeout { .. } | KvError::Unavailable(_) => {}
                error => self.report(Err(format!("the watch ends: {error}"))),
            }
        }
        let busy = &self.common.watches_busy;
        busy.set(busy.get() - 1);
    }

    async fn watch(&mut self) -> Result<(), KvError> {
        let mut watch = self.follower.begin(&self.client).await?;
        self.common.fabric.note(format_args!("WATCH {} of {watch:?}", self.number));
        while !self.common.watches_end.get() {
            if let Err(error) = self.wait(&mut watch).await {
                // The changes before the error are whole.
                self.check_writes(watch.revision().unwrap_or(0));
                return Err(error);
            }
        }
        // Nothing changes any more.
        let last = self.client.within(FOREVER).revision().await?;
        while watch.revision().is_none_or(|revision| revision < last) {
            if self.common.has_failed() {
                return Ok(());
            }
            self.wait(&mut watch).await?;
        }
        let found = self.follower.read(&self.client.within(FOREVER)).await?;
        self.check_writes(last);
        self.report(self.follower.compare(&found));
        Ok(())
    }

    /// Checks that the watch has shown the writes of its range up to a revision.
    fn check_writes(&self, last: u64) {
        let history = self.common.history.borrow();
        let writes = history.writes().map(|(revision, key)| (revision, key_of(key).to_vec()));
        let whole = self.follower.check_whole(writes, last);
        drop(history);
        self.report(whole);
    }

    /// Waits for the next changes, some time.
    async fn wait(&mut self, watch: &mut Watch) -> Result<(), KvError> {
        let time = Duration::from_nanos(self.common.scenario.election_ns() / 2);
        match self.handle.timeout(time, watch.next()).await {
            Ok(Ok(changes)) => {
                self.common.counters.borrow_mut().changes_watched += 1;
                let mut history = self.common.history.borrow_mut();
                let noted =
                    self.follower.note(&changes, |key, tag, revision| match number_of(key) {
                        Some(number) => history.note_write(number, tag, revision),
                        None => Ok(()),
                    });
                drop(history);
                self.report(noted);
                Ok(())
            }
            // No replica serves watches now. The same watch goes on.
            Ok(Err(KvError::Timeout { .. } | KvError::Unavailable(_))) | Err(_) => Ok(()),
            Ok(Err(error)) => Err(error),
        }
    }

    fn report(&self, rule: Result<(), String>) {
        if let Err(what) = rule {
            self.common.fail(format!("user {} of a watch: {what}", self.number));
        }
    }
}
