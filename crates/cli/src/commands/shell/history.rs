//! Lines of earlier sessions in a file that the user names. Without one, a session's lines end with it: they name what is in images.
//!
//! The file has one line each, the newest last. Sessions may share it: each adds its lines as they are typed, under a lock, and sees those that were there
//! when it began.
//!
//! The file is cut when a session begins: a new file takes its place, so that a crash leaves either. A session that waited for the lock of the old file
//! opens the new one.

use crate::failure::{At, Failure, Result};
use rustix::fs::{FlockOperation, Mode, OFlags, fchmod, flock};
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
        loop {
            let file = self.opened()?;
            flock(&file, FlockOperation::LockExclusive).map_err(std::io::Error::from)?;
            let locked = file.metadata()?;
            // Another session may have cut it meanwhile.
            let is_it =
                |now: std::fs::Metadata| (now.dev(), now.ino()) == (locked.dev(), locked.ino());
            if std::fs::metadata(&self.path).is_ok_and(is_it) {
                return Ok(file);
            }
        }
    }

    fn opened(&self) -> Result<File> {
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
            // A file that cannot be replaced (a folder that is not writable, a file that is a mount point) stays long.
            let _kept_whole = self.replace(&kept);
        }
        Ok(lines)
    }

    /// Puts a new file with this text in the place of the locked one. Its owner alone can read it.
    fn replace(&self, text: &str) -> Result<()> {
        // A link to the file stays one.
        let path = std::fs::canonicalize(&self.path)?;
        let folder = path.parent().unwrap_or(&path);
        let mut new = tempfile::Builder::new()
            .prefix(".blockwright-")
            .tempfile_in(folder)?;
        new.write_all(text.as_bytes())?;
        // Otherwise a crash could leave an empty file of this name.
        new.as_file().sync_all()?;
        new.persist(&path).map_err(|e| e.error)?;
        Ok(())
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
            if file.metadata()?.mode() & 0o077 != 0 {
                let mode = Mode::RUSR | Mode::WUSR;
                fchmod(&file, mode).map_err(std::io::Error::from)?;
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    /// A second name of the old file keeps all of its lines, and the link that the user names stays one.
    #[test]
    fn cutting_makes_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let name = |name: &str| dir.path().join(name);
        let many: String = (0..1500).map(|n| format!("pwd {n}\n")).collect();
        std::fs::write(name("lines"), &many).unwrap();
        std::fs::set_permissions(name("lines"), std::fs::Permissions::from_mode(0o644)).unwrap();
        std::fs::hard_link(name("lines"), name("old")).unwrap();
        std::os::unix::fs::symlink("lines", name("link")).unwrap();
        let (_, lines) = History::open(&name("link")).unwrap();
        assert_eq!((lines.len(), lines[0].as_str()), (LINES_MAX, "pwd 500"));
        assert_eq!(std::fs::read_to_string(name("old")).unwrap(), many);
        let kept = std::fs::read_to_string(name("lines")).unwrap();
        assert!(kept.starts_with("pwd 500\n") && kept.ends_with("pwd 1499\n"));
        assert_eq!(mode(&name("lines")), 0o600);
        assert!(name("link").is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_file_that_others_can_read_is_closed_when_a_line_is_added() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        std::fs::write(&path, "pwd\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let (history, _) = History::open(&path).unwrap();
        assert_eq!(mode(&path), 0o644);
        history.add("ls\n").unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "pwd\nls\n");
    }

    /// Sessions that add lines while others cut the file: each line is kept.
    #[test]
    fn no_line_is_lost_to_a_cut() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let old = "pwd\n".repeat(LINES_MAX);
        std::fs::write(&path, &old).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for n in 0..50 {
                        let (history, _) = History::open(path).unwrap();
                        history.add(&format!("cat {thread}-{n}\n")).unwrap();
                    }
                });
            }
        });
        let text = std::fs::read_to_string(&path).unwrap();
        let kept = text.lines().filter(|line| line.starts_with("cat ")).count();
        assert_eq!(kept, 200);
    }
}
