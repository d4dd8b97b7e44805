//! A user of a watch: it shows each write, and leads to the state at the end.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use petrel::task::Handle;
use petrel_kv::{KvClient, KvError};

use super::load;
use super::recorder::Recorder;
use super::recovery::RECOVERY_MAX;
use crate::watches::Follower;

/// Longest wait for changes before a look whether the phase ends.
const LOOK: Duration = Duration::from_millis(100);

/// A user of a watch of all keys.
pub(super) struct WatchUser {
    pub(super) phase: u64,
    pub(super) recorder: Arc<Recorder>,
    /// Set when no client writes any more.
    pub(super) end: Arc<AtomicBool>,
}

impl WatchUser {
    /// Watches until the end of the phase, and compares the keys.
    pub(super) fn run(self, nodes: u16) -> Result<(), String> {
        let (mut endpoint, client) = load::connect(nodes)?;
        let handle = endpoint.handle();
        endpoint.block_on(async {
            let ended = OnceCell::new();
            while !self.is_overdue(&ended) {
                match self.follow(&client, &handle, &ended).await {
                    Ok(()) => return,
                    Err(KvError::Compacted { .. }) => self.recorder.lock().watches_compacted += 1,
                    // No replica answers the reads before the watch.
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return self.report(Err(format!("it ends: {error}"))),
                }
            }
            self.report(Err("it never came to its end".to_owned()));
        });
        Ok(())
    }

    /// Returns true if the watch should have come to its end long ago. `ended` keeps the time at which the clients were seen to end.
    fn is_overdue(&self, ended: &OnceCell<Instant>) -> bool {
        self.end.load(Ordering::Relaxed) && ended.get_or_init(Instant::now).elapsed() > RECOVERY_MAX
    }

    async fn follow(
        &self,
        client: &KvClient,
        handle: &Handle,
        ended: &OnceCell<Instant>,
    ) -> Result<(), KvError> {
        let mut follower = Follower::new(Vec::new(), None);
        let mut watch = follower.begin(client).await?;
        let mut end = None;
        while end.as_ref().is_none_or(|(last, _)| watch.revision() < Some(*last)) {
            if self.is_overdue(ended) {
                self.check_writes(&follower, watch.revision().unwrap_or(0));
                self.report(Err("it never came to its end".to_owned()));
                return Ok(());
            }
            if self.end.load(Ordering::Relaxed) && end.is_none() {
                end = match self.state(client, &follower).await {
                    Err(error) if is_passing(&error) => None,
                    state => state?,
                };
            }
            let changes = match handle.timeout(LOOK, watch.next()).await {
                Ok(Ok(changes)) => changes,
                // No replica serves watches now. The same watch goes on.
                Ok(Err(error)) if is_passing(&error) => continue,
                Ok(Err(error)) => {
                    // The changes before the error are whole.
                    self.check_writes(&follower, watch.revision().unwrap_or(0));
                    return Err(error);
                }
                Err(_) => continue,
            };
            if end.as_ref().is_some_and(|(last, _)| changes.revision() > *last) {
                break;
            }
            self.recorder.lock().changes_watched += 1;
            let noted = follower.note(&changes, |key, tag, revision| {
                let Some((group, key)) = self.place(key) else { return Ok(()) };
                let mut state = self.recorder.lock();
                match state.groups.get_mut(group) {
                    Some(group) => group.history.note_write(key, tag, revision),
                    None => Err(format!("there are no keys {group}")),
                }
            });
            self.report(noted);
        }
        let (last, found) = end.expect("the watch ends behind it");
        self.check_writes(&follower, last);
        self.report(follower.compare(&found));
        Ok(())
    }

    /// Checks that the watch has shown the writes of this phase up to a revision.
    fn check_writes(&self, follower: &Follower, last: u64) {
        let state = self.recorder.lock();
        let writes = (0..).zip(&state.groups).flat_map(|(number, group)| {
            let key = move |key| format!("{}/{number}/{key}", self.phase).into_bytes();
            group.history.writes().map(move |(revision, of)| (revision, key(of)))
        });
        let whole = follower.check_whole(writes, last);
        drop(state);
        self.report(whole);
    }

    /// Returns the keys at one revision, unless a lease ended meanwhile.
    async fn state(
        &self,
        client: &KvClient,
        follower: &Follower,
    ) -> Result<Option<(u64, crate::watches::Keys)>, KvError> {
        let before = client.revision().await?;
        let found = follower.read(client).await?;
        Ok((client.revision().await? == before).then_some((before, found)))
    }

    /// The group and the number of a key of the clients.
    fn place(&self, key: &[u8]) -> Option<(usize, u8)> {
        let mut parts = str::from_utf8(key).ok()?.split('/').skip(1);
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }

    fn report(&self, rule: Result<(), String>) {
        if let Err(what) = rule {
            self.recorder.lock().violations.push(format!("the watch: {what}"));
        }
    }
}

/// Returns true for an error that says nothing but that no replica answers now.
fn is_passing(error: &KvError) -> bool {
    matches!(error, KvError::Timeout { .. } | KvError::Unavailable(_))
}
