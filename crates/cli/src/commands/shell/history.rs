//! Lines of earlier sessions in a file that the user names. Without one, a session's lines end with it: they name what is in images.
//!
//! The file has one line each, the newest last. Sessions may share it: each adds its lines as they are typed, under a lock, and sees those that were there
//! when it began. The file is cut when a session begins.

use crate::failure::{At, Failure, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Lines that are remembered.
pub const LINES_MAX: usize = 1000;
/// The longest line that is remembered, in bytes.
pub const LINE_BYTES_MAX: usize = 4096;
/// A file that is longer is none of ours.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The file.
pub struct History {
    path: PathBuf,
}

impl History {
    /// Opens the file, which is made when it is not there, and cuts it to its last [`LINES_MAX`] lines, which it returns.
    ///
    /// # Errors
    /// The host's. A file of another user, of another kind, or with other bytes than text is left as it is.
    pub fn open(path: &Path) -> Result<(Self, Vec<String>)> {
        let history = History {
            path: path.to_owned(),
        };
        let lines = history.read().at(path.display())?;
        Ok((history, lines))
    }

    /// The file under a lock, which ends with the handle.
    fn locked(&self) -> Result<File> {
        // Opening a pipe must not wait for its other end.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::open(&self.path, flags, mode).map_err(std::io::Error::from)?;
        let file = File::from(file);
        let found = file.metadata()?;
        let refused = |why: &str| Err(Failure::new(format_args!("no history of the shell: {why}")));
        if !found.is_file() {
            return refused("not a regular file");
        }
        if found.uid() != rustix::process::geteuid().as_raw() {
            return refused("it belongs to another user");
        }
        if found.len() > FILE_BYTES_MAX {
            return refused("it has more than 16 MiB");
        }
        flock(&file, FlockOperation::LockExclusive).map_err(std::io::Error::from)?;
        Ok(file)
    }

    fn read(&self) -> Result<Vec<String>> {
        let mut file = self.locked()?;
        let mut text = String::new();
        Read::by_ref(&mut file)
            .take(FILE_BYTES_MAX)
            .read_to_string(&mut text)?;
        // An image begins with zeroes, and many a file has some.
        if text.contains('\0') {
            return Err(Failure::new("no history of the shell: it is not text"));
        }
        let skipped = text.lines().count().saturating_sub(LINES_MAX);
        let lines = text.lines().skip(skipped);
        let lines: Vec<String> = lines
            .filter(|line| is_remembered(line))
            .map(str::to_owned)
            .collect();
        if skipped > 0 {
            let kept: String = lines
                .iter()
                .flat_map(|line| [line.as_str(), "\n"])
                .collect();
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(kept.as_bytes())?;
        }
        Ok(lines)
    }

    /// Adds lines.
    ///
    /// # Errors
    /// Those of [`History::open`].
    pub fn add(&self, lines: &str) -> Result<()> {
        let kept = lines.lines().filter(|line| is_remembered(line));
        let text: String = kept.flat_map(|line| [line, "\n"]).collect();
        if text.is_empty() {
            return Ok(());
        }
        let add = || -> Result<()> {
            let mut file = self.locked()?;
            file.seek(SeekFrom::End(0))?;
            Ok(file.write_all(text.as_bytes())?)
        };
        add().at(self.path.display())
    }
}

/// Whether a line comes back: not an empty one, one that begins with a space, nor one that would change the terminal.
fn is_remembered(line: &str) -> bool {
    !line.trim().is_empty()
        && !line.starts_with(' ')
        && line.len() <= LINE_BYTES_MAX
        && !line.chars().any(|c| c.is_control() && c != '\t')
}
