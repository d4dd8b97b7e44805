//! Files about security: read with a limit and a look at modes, and read again after changes.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;

use super::SecurityError;

/// Longest file: 16 Ki lines of people, and more certificates than a handshake carries.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A file may change again within one tick of the file system's clock.
const SETTLES_AFTER: Duration = Duration::from_secs(2);

/// Time between two looks at the files.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The access of users besides the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// No further user may read or write the file: keys and passwords.
    Secret,
    /// All users may read the file, and only the group may write: trusted keys and rights.
    Trusted,
}

impl FileAccess {
    /// Returns the bits that the mode of a file must not have.
    pub fn forbidden(self) -> u32 {
        match self {
            Self::Secret => 0o066,
            Self::Trusted => 0o002,
        }
    }
}

/// Reads a file of at most 1 MiB. The bytes stay in place while the file is read, and a caller can erase all copies.
///
/// # Errors
/// The file cannot be read, is longer, or further users have access; the text says the remedy.
pub fn read_file(path: &Path, access: FileAccess) -> Result<Vec<u8>, SecurityError> {
    let shown = path.display();
    let failed = |error| SecurityError::new(format!("{shown} cannot be read: {error}"));
    // Without waiting for a writer, in case the file is a pipe.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    // The modes of the open file count, not the modes of a later file.
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(SecurityError::new(format!("{shown} is no regular file")));
    }
    if metadata.mode() & access.forbidden() != 0 {
        let right = match access {
            FileAccess::Secret => "600",
            FileAccess::Trusted => "644",
        };
        let mode = metadata.mode() & 0o777;
        let text =
            format!("other users have access to {shown} (mode {mode:o}): chmod {right} {shown}");
        return Err(SecurityError::new(text));
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(SecurityError::new(format!("{shown} is longer than {FILE_BYTES_MAX} bytes")));
    }
    // Room for all of it: a vector that grows leaves copies of a key behind.
    let mut bytes = Vec::with_capacity(FILE_BYTES_MAX.min(metadata.len() + 1) as usize);
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A value made of files, and made anew after changes. A look at the files, at most once a second, finds changes. Broken and half-written
/// files leave the former value in use.
#[derive(Debug)]
pub struct FromFiles<T> {
    paths: Vec<PathBuf>,
    /// Held while the files are read: others use the value of before meanwhile.
    stamps: Mutex<Stamps>,
    current: Mutex<Current<T>>,
}

/// The files at the last reading, good or bad; `None` if a file was not settled.
type Stamps = Option<Vec<Option<Stamp>>>;

#[derive(Debug)]
struct Current<T> {
    value: Arc<T>,
    looked_at: Instant,
    loads: u64,
    failure: Option<SecurityError>,
}

/// The state of a file: equal stamps mean equal contents, once settled.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    /// Device and inode: a rotation renames new files over old ones, or turns a symbolic link.
    file: (u64, u64),
}

/// The state of a value made of files, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilesStatus {
    /// Values put in use, the first included.
    pub loads: u64,
    /// Why the present files are not in use, and the former value is.
    pub failure: Option<SecurityError>,
}

impl<T> FromFiles<T> {
    /// Makes the first value. Without paths the value never changes.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn new(
        paths: Vec<PathBuf>,
        read: impl FnOnce() -> Result<T, SecurityError>,
    ) -> Result<Self, SecurityError> {
        let stamps = settled(stamps(&paths));
        let value = Arc::new(read()?);
        let current = Current { value, looked_at: Instant::now(), loads: 1, failure: None };
        Ok(Self { paths, stamps: Mutex::new(stamps), current: Mutex::new(current) })
    }

    /// Returns the value in use, after a look at the files if the last look is a second ago and no other thread looks. After a change `read`
    /// makes the next value, given the value in use; `None` keeps the value.
    pub fn get(
        &self,
        now: Instant,
        read: impl FnOnce(&T) -> Result<Option<T>, SecurityError>,
    ) -> Arc<T> {
        let is_due = now.duration_since(self.looked_at()) >= LOOK_EVERY;
        let stamps = is_due.then(|| self.stamps.try_lock());
        match stamps {
            Some(Ok(stamps)) => self.look_at(stamps, now, read),
            Some(Err(TryLockError::Poisoned(stamps))) => {
                self.look_at(stamps.into_inner(), now, read);
            }
            Some(Err(TryLockError::WouldBlock)) | None => {}
        }
        self.last()
    }

    /// Returns the value in use, after a look at the files.
    pub fn look(
        &self,
        now: Instant,
        read: impl FnOnce(&T) -> Result<Option<T>, SecurityError>,
    ) -> Arc<T> {
        self.look_at(lock(&self.stamps), now, read);
        self.last()
    }

    fn look_at(
        &self,
        mut former: MutexGuard<'_, Stamps>,
        now: Instant,
        read: impl FnOnce(&T) -> Result<Option<T>, SecurityError>,
    ) {
        lock(&self.current).looked_at = now;
        let stamps = stamps(&self.paths);
        if former.as_ref() != Some(&stamps) {
            *former = settled(stamps);
            self.take(read(&self.last()));
        }
    }

    /// Returns the value in use, without a look at the files.
    pub fn last(&self) -> Arc<T> {
        Arc::clone(&lock(&self.current).value)
    }

    /// Reads the files now.
    ///
    /// # Errors
    /// Those of `read`; the former value stays in use.
    pub fn reload(
        &self,
        read: impl FnOnce(&T) -> Result<Option<T>, SecurityError>,
    ) -> Result<(), SecurityError> {
        let mut former = lock(&self.stamps);
        lock(&self.current).looked_at = Instant::now();
        *former = settled(stamps(&self.paths));
        self.take(read(&self.last()));
        self.status().failure.map_or(Ok(()), Err)
    }

    /// Returns the time of the last look at the files.
    pub fn looked_at(&self) -> Instant {
        lock(&self.current).looked_at
    }

    /// Returns the state.
    pub fn status(&self) -> FilesStatus {
        let current = lock(&self.current);
        FilesStatus { loads: current.loads, failure: current.failure.clone() }
    }

    /// Takes the next value. A failure leaves the former in use.
    fn take(&self, read: Result<Option<T>, SecurityError>) {
        let mut current = lock(&self.current);
        current.failure = read.as_ref().err().cloned();
        if let Ok(Some(value)) = read {
            current.value = Arc::new(value);
            current.loads += 1;
        }
    }
}

/// A panic elsewhere leaves a complete value behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stamps(paths: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |path: &PathBuf| {
        let metadata = fs::metadata(path).ok()?;
        let file = (metadata.dev(), metadata.ino());
        Some(Stamp { modified: metadata.modified().ok(), length: metadata.len(), file })
    };
    paths.iter().map(stamp).collect()
}

/// Returns `None` if a file changed recently: a further change may leave the stamp equal.
fn settled(stamps: Vec<Option<Stamp>>) -> Option<Vec<Option<Stamp>>> {
    let now = SystemTime::now();
    let is_old = |time: SystemTime| now.duration_since(time).is_ok_and(|age| age >= SETTLES_AFTER);
    let are_old = stamps.iter().flatten().filter_map(|stamp| stamp.modified).all(is_old);
    are_old.then_some(stamps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get__while_another_thread_reads_is_the_former_value() {
        let never = |_: &u32| panic!("the files are being read");
        let files = FromFiles::new(Vec::new(), || Ok(1)).unwrap();
        let later = files.looked_at() + 2 * LOOK_EVERY;
        files
            .reload(|former| {
                assert_eq!((*former, *files.last(), files.status().loads), (1, 1, 1));
                let other = || *files.get(later, never);
                let seen = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
                Ok(Some(seen + 1))
            })
            .unwrap();
        assert_eq!((*files.last(), files.status().loads), (2, 2));
    }
}
