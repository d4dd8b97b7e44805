//! Files that appear when they are whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use petrel::Status;
use petrel_command::failure::Failure;

/// Bytes written at once.
const WRITE_BYTES: usize = 256 << 10;

/// A file under another name, until it is whole and on disk. Dropped earlier, it is removed.
pub(super) struct WholeFile {
    path: PathBuf,
    unfinished: PathBuf,
    out: Option<BufWriter<File>>,
}

impl WholeFile {
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.new", std::process::id()));
        let unfinished = PathBuf::from(name);
        let file = File::create(&unfinished).map_err(|error| failed(&unfinished, &error))?;
        let out = Some(BufWriter::with_capacity(WRITE_BYTES, file));
        Ok(Self { path: path.to_owned(), unfinished, out })
    }

    /// Gives the file its name, once the content is on disk.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let out = self.out.take().expect("it is there until the end");
        let named = || -> io::Result<()> {
            out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            fs::rename(&self.unfinished, &self.path)?;
            let directory = self.path.parent().filter(|path| !path.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        };
        let result = named();
        if result.is_err() {
            self.remove();
        }
        result.map_err(|error| failed(&self.path, &error))
    }

    fn remove(&self) {
        // The failure that led here is reported.
        let _ = fs::remove_file(&self.unfinished);
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.as_mut().expect("it is there until the end").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().expect("it is there until the end").flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if self.out.is_some() {
            self.remove();
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Status::Unavailable, format!("{}: {error}", path.display()))
}
