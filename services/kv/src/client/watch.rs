//! Watches: the changes of a range of keys, from replica to replica without a gap.

use std::collections::BTreeSet;
use std::future::pending;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use petrel::overload::Backoff;
use petrel::stream::Receiver;
use petrel::{Error, Status, Time};
use petrel_planted::planted;

use super::error::not_understood;
use super::{KvClient, KvError};
use crate::api::{
    Changes, Compacted, Consistency, RevisionReply, RevisionRequest, WatchMessage, WatchRequest,
    WatchingClient, methods,
};
use crate::limits::{KEY_BYTES_MAX, REVISION_CHANGES_BYTES_MAX};
use crate::wire::{after_prefix, check_bound, check_key};

/// Attempts for each member to find a replica that has a revision. A key, drawn anew, chooses the replica.
const ATTEMPTS_EACH: u32 = 8;

/// Attempts at the only address that is known, before its history counts as that of all members.
const ATTEMPTS_ALONE: u32 = 3;

/// A watch: the changes of a range of keys, one revision after the other. It ends when it is dropped.
///
/// The changes come from one replica at a time. When the replica ends, loses its leader or refuses, the watch goes on
/// at another one, behind the last revision that was complete. So it returns each change once, in the order of the
/// revisions, and never goes back. A change may come later than a read sees it.
#[derive(Debug)]
pub struct Watch {
    client: KvClient,
    from: Vec<u8>,
    until: Option<Vec<u8>>,
    /// The next revision. None: the one behind the present revision.
    next: Option<u64>,
    stream: Option<Receiver<Vec<u8>>>,
    /// Changes of the next revision, whose last ones have not come.
    incomplete: Vec<u8>,
    /// The attempts since the last message.
    failures: Failures,
    /// Differs for each watch: watches that fail together go to different replicas, at different times.
    spread: u64,
}

#[derive(Debug)]
struct Failures {
    /// Attempts that were begun.
    count: u32,
    backoff: Backoff,
    /// The time at which the watch gives up.
    until: Option<Time>,
    /// Nodes that do not have the next revision, and the first one that any of them has.
    compacted: BTreeSet<u16>,
    first: u64,
}

/// The changes of a revision, in the order of their execution: those of one write, of a batch, or of leases that ended
/// together.
#[derive(Clone, PartialEq, Eq)]
pub struct RevisionChanges {
    revision: u64,
    encoded: Vec<u8>,
}

impl RevisionChanges {
    /// The revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The changes: one at least.
    pub fn iter(&self) -> impl Iterator<Item = crate::api::Change<'_>> {
        Changes::of(&self.encoded).iter()
    }
}

impl std::fmt::Debug for RevisionChanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "revision {}: ", self.revision)?;
        f.debug_list().entries(self.iter()).finish()
    }
}

impl KvClient {
    /// Returns the revision of the store: no change that was answered before has a greater one. Read keys after this
    /// call and [watch](KvClient::watch) from the next revision on, to miss no change of them.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn revision(&self) -> Result<u64, KvError> {
        let consistency = Consistency::Linearizable;
        let request = RevisionRequest { consistency };
        let reply =
            self.read(methods::REVISION, consistency, &[], |out| request.encode(out)).await?;
        match RevisionReply::decode(&reply) {
            Ok(RevisionReply::At { revision, .. }) => Ok(revision),
            other => Err(KvError::of_read(not_understood(other.err()))),
        }
    }

    /// Watches the keys from `from` on, up to `until` (excluded) or to the end: all changes after the present revision, which the
    /// first call of [`Watch::next`] asks for, unless [`Watch::since`] names the begin.
    ///
    /// ```
    /// # async fn f(client: petrel_kv::KvClient) -> Result<(), petrel_kv::KvError> {
    /// let revision = client.revision().await?;
    /// // Here: read the keys.
    /// let mut watch = client.watch_prefix(b"config/").since(revision + 1);
    /// loop {
    ///     let changes = watch.next().await?;
    ///     for change in changes.iter() {
    ///         println!("{} of revision {}: {:?}", change.key.escape_ascii(), changes.revision(), change.value);
    ///     }
    /// }
    /// # }
    /// ```
    pub fn watch(&self, from: &[u8], until: Option<&[u8]>) -> Watch {
        let mut hasher = DefaultHasher::new();
        (from, until, self.shared.client.now().as_ns()).hash(&mut hasher);
        Watch {
            client: self.clone(),
            from: from.to_vec(),
            until: until.map(<[u8]>::to_vec),
            next: None,
            stream: None,
            incomplete: Vec::new(),
            failures: Failures::new(self),
            spread: hasher.finish(),
        }
    }

    /// Watches a key, like [`KvClient::watch`].
    pub fn watch_key(&self, key: &[u8]) -> Watch {
        match key.len() {
            // No longer key follows.
            KEY_BYTES_MAX => self.watch_prefix(key),
            _ => self.watch(key, Some(&[key, &[0]].concat())),
        }
    }

    /// Watches the keys with a prefix, like [`KvClient::watch`].
    pub fn watch_prefix(&self, prefix: &[u8]) -> Watch {
        let until = after_prefix(prefix);
        self.watch(prefix, until.as_deref())
    }

    /// The stub of the watches' service, made for the first watch.
    fn watching(&self) -> &WatchingClient {
        self.shared.watching.get_or_init(|| WatchingClient::new(self.shared.client.clone()))
    }
}

impl Watch {
    /// Begins with the changes of this revision, or of later ones.
    #[must_use]
    pub fn since(self, revision: u64) -> Self {
        Self { next: Some(revision.max(1)), ..self }
    }

    /// The last revision up to which the watch has returned all changes; none before the first is known. Rises with the
    /// store while other keys change, some second late, as long as a caller waits in [`Watch::next`].
    pub fn revision(&self) -> Option<u64> {
        self.next.map(|next| next - 1)
    }

    /// Returns the changes of the next revision that changes a key of the range, after a wait if need be. A drop of the
    /// future loses nothing.
    ///
    /// # Errors
    /// [`KvError::Compacted`] if no replica has the next changes any more: read the keys anew, and watch from there.
    /// [`KvError::Timeout`] or [`KvError::Unavailable`] if no replica served the watch for the client's
    /// timeout: the next call goes on at the same place. Else as [`KvClient::get`].
    pub async fn next(&mut self) -> Result<RevisionChanges, KvError> {
        loop {
            let Some(stream) = &mut self.stream else {
                self.begin().await?;
                continue;
            };
            let error = match stream.next_bytes().await {
                Some(Ok(message)) => {
                    let message = WatchMessage::decode(message);
                    let next = self.next.as_mut().expect("a stream begins at a revision");
                    match message.map(|message| take(message, next, &mut self.incomplete)) {
                        Ok(Ok(changes)) => {
                            self.failures = Failures::new(&self.client);
                            match changes {
                                Some(changes) => return Ok(changes),
                                None => continue,
                            }
                        }
                        Ok(Err(what)) => Error::new(Status::Internal, what),
                        Err(error) => not_understood(Some(error)),
                    }
                }
                Some(Err(error)) => error,
                None => Error::new(Status::Unavailable, "the replica has ended the watch"),
            };
            self.stop();
            self.fail(error).await?;
        }
    }

    /// Begins the stream at a replica.
    async fn begin(&mut self) -> Result<(), KvError> {
        let revision = match self.next {
            Some(next) => next,
            None => self.client.revision().await?.saturating_add(1),
        };
        self.next = Some(revision);
        let (from, until) = (&self.from[..], self.until.as_deref());
        let request = WatchRequest { revision, from, until };
        let empty = until.filter(|until| *until <= from).map(|_| "the range is empty".to_owned());
        empty.map_or(Ok(()), |text| Err(KvError::InvalidArgument(text)))?;
        let is_key = until.is_some_and(|until| until.strip_prefix(from) == Some(&[0]));
        let end = until.filter(|_| !is_key).map_or(Ok(()), check_bound);
        let bounds = if is_key { check_key(from) } else { check_bound(from) };
        bounds.and(end).map_err(KvError::invalid)?;
        let call = self.client.watching().watch(request.to_vec()).wait_for_ready();
        // The first attempt goes to the leader, which has all changes first.
        let call = match self.failures.count {
            0 => call,
            count => call.key((self.spread ^ u64::from(count)).to_le_bytes()),
        };
        // A caller may drop the future before a replica that hangs has answered.
        self.failures.count += 1;
        let client = &self.client.shared.client;
        match client.timeout(self.client.timeout, call.start()).await.flatten() {
            Ok(stream) => {
                self.stream = Some(stream);
                Ok(())
            }
            Err(error) => self.fail(error).await,
        }
    }

    /// Ends the stream: another one begins with the first revision that is not complete.
    fn stop(&mut self) {
        self.stream = None;
        self.incomplete = Vec::new();
        if planted("kv_watch_resumes_early") {
            self.next = self.next.map(|next| next.saturating_sub(1).max(1));
        }
    }

    /// Pauses before the next attempt, unless the watch has failed.
    async fn fail(&mut self, error: Error) -> Result<(), KvError> {
        let next = self.next.unwrap_or(0);
        let client = &self.client.shared.client;
        let members = self.client.addresses().len();
        let failures = &mut self.failures;
        let (now, timeout) = (client.now(), self.client.timeout);
        failures.count = failures.count.max(1);
        let until = *failures.until.get_or_insert(now + timeout);
        let compacted = Compacted::of(&error);
        // A replica of a former version does not know watches.
        let is_passing = matches!(
            error.status,
            Status::Unavailable
                | Status::ResourceExhausted
                | Status::DeadlineExceeded
                | Status::Unimplemented
        );
        let failed = if let Some(Compacted { first, node }) = compacted {
            failures.compacted.insert(node);
            failures.first = failures.first.min(first);
            // A client that was given one address may not know the other members yet.
            let are_known = members > 1 || failures.count >= ATTEMPTS_ALONE;
            let tried = failures.compacted.len() >= members && are_known
                || failures.count >= ATTEMPTS_EACH * members as u32;
            tried.then_some(KvError::Compacted { from: next, first: failures.first })
        } else if is_passing && now < until {
            None
        } else if failures.compacted.is_empty() {
            // A replica that refuses has answered, and still none serves the watch.
            Some(match error.status {
                Status::DeadlineExceeded => KvError::Timeout { last: error.message.clone() },
                _ if is_passing => KvError::Unavailable(error.message.clone()),
                _ => KvError::of_read(error),
            })
        } else {
            Some(KvError::Compacted { from: next, first: failures.first })
        };
        if let Some(failed) = failed {
            self.failures = Failures::new(&self.client);
            return Err(failed);
        }
        let random = self.spread.rotate_left(failures.count);
        let pause = Duration::from_nanos(failures.backoff.next_ns(random));
        let _ = client.timeout(pause, pending::<()>()).await;
        Ok(())
    }
}

impl Failures {
    fn new(client: &KvClient) -> Self {
        let backoff = Backoff::new(client.shared.backoff);
        Self { count: 0, backoff, until: None, compacted: BTreeSet::new(), first: u64::MAX }
    }
}

/// Takes a message of a stream, whose next revision is `next`. Returns the changes of a revision when all have come.
fn take(
    message: WatchMessage<'_>,
    next: &mut u64,
    incomplete: &mut Vec<u8>,
) -> Result<Option<RevisionChanges>, &'static str> {
    match message {
        WatchMessage::Progress { revision } => {
            if !incomplete.is_empty() {
                return Err("a revision ends without its last changes");
            }
            // A replica that is behind has nothing new.
            *next = (*next).max(revision.saturating_add(1));
            Ok(None)
        }
        WatchMessage::Changes { revision, is_last, changes } => {
            let is_expected = match incomplete.is_empty() {
                true => revision >= *next,
                false => revision == *next,
            };
            if !is_expected || revision == u64::MAX {
                return Err("changes out of their order");
            }
            if incomplete.len() + changes.encoded().len() > REVISION_CHANGES_BYTES_MAX {
                return Err("a revision with too many changes");
            }
            incomplete.extend_from_slice(changes.encoded());
            *next = revision + u64::from(is_last);
            let encoded = is_last.then(|| std::mem::take(incomplete));
            Ok(encoded.map(|encoded| RevisionChanges { revision, encoded }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Change;

    #[test]
    fn take__a_revision_is_returned_when_it_is_complete() {
        let (mut next, mut incomplete) = (5, Vec::new());
        let mut encoded = Vec::new();
        Change { key: b"a", value: Some(b"1") }.write(&mut encoded);
        let changes = Changes::of(&encoded);
        let message = |revision, is_last| WatchMessage::Changes { revision, is_last, changes };
        let progress = |revision| WatchMessage::Progress { revision };
        let mut take = |message| take(message, &mut next, &mut incomplete).map_err(|_| ());
        assert_eq!(take(progress(2)), Ok(None), "of a replica that is behind");
        assert_eq!(take(message(4, true)), Err(()), "it was returned");
        assert_eq!(take(message(7, false)), Ok(None));
        assert_eq!(take(progress(7)), Err(()));
        assert_eq!(take(message(8, true)), Err(()), "revision 7 has more");
        let whole = take(message(7, true)).unwrap().unwrap();
        assert_eq!((whole.revision(), whole.iter().count()), (7, 2));
        assert_eq!(take(message(7, true)), Err(()), "twice");
        assert_eq!(take(progress(20)), Ok(None));
        assert_eq!(take(message(20, true)), Err(()));
        assert!(take(message(21, true)).unwrap().is_some());
        assert_eq!(take(message(u64::MAX, true)), Err(()));
    }
}
