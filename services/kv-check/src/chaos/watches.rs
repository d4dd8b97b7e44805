//! A user of a watch: it shows each write, and leads to the state at the end.

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
            let mut ends = None;
            loop {
                match self.follow(&client, &handle).await {
                    Ok(()) => break,
                    Err(KvError::Compacted { .. }) => self.recorder.lock().watches_compacted += 1,
                    Err(_) => {}
                }
                if self.end.load(Ordering::Relaxed)
                    && ends.get_or_insert_with(Instant::now).elapsed() > RECOVERY_MAX
                {
                    self.report(Err("it never came to its end".to_owned()));
                    break;
                }
            }
        });
        Ok(())
    }

    async fn follow(&self, client: &KvClient, handle: &Handle) -> Result<(), KvError> {
        let mut follower = Follower::new(Vec::new(), None);
        let mut watch = follower.begin(client).await?;
        let mut end = None;
        while end.as_ref().is_none_or(|(last, _)| watch.revision() < Some(*last)) {
            if self.end.load(Ordering::Relaxed) && end.is_none() {
                end = self.state(client, &follower).await?;
            }
            let changes = match handle.timeout(LOOK, watch.next()).await {
                Ok(changes) => changes?,
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
        let state = self.recorder.lock();
        let writes = (0..).zip(&state.groups).flat_map(|(number, group)| {
            let key = move |key| format!("{}/{number}/{key}", self.phase).into_bytes();
            group.history.writes().map(move |(revision, of)| (revision, key(of)))
        });
        let whole = follower.check_whole(writes, last);
        drop(state);
        self.report(whole.and(follower.compare(&found)));
        Ok(())
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
