//! A folder with servers and mounts that all go away with the command, also when it is interrupted or killed.
//!
//! The servers are in one process group, whose leader only sleeps. A shell in another group waits for the end of its input, which comes when this process
//! drops the [`Scratch`] or ends. Then it unmounts, kills the group, and removes the folder. Ctrl-C reaches neither group.

use crate::steps::file;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// `$1`: the folder, with mount points `mnt.*`. `$2`: the group.
const CLEANER: &str = r#"
while read -r _; do :; done
for mnt in "$1"/mnt.*; do fusermount3 -u -z "$mnt" 2>/dev/null; done
kill -s KILL -- "-$2"
tries=0
until rm -rf --one-file-system "$1" 2>/dev/null || [ $tries -ge 50 ]; do tries=$((tries + 1)); sleep 0.1; done
"#;

/// See the module's head.
pub(crate) struct Scratch {
    dir: PathBuf,
    leader: Child,
    cleaner: Child,
}

impl Scratch {
    /// Makes a folder under the host's temporary one, with a name of its own, for this user alone. Its path is short, because paths of sockets are.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        // The cleaner removes whatever is at this path, so the folder is made first, and exclusively.
        let made = tempfile::Builder::new()
            .prefix(&format!("{name}-"))
            .permissions(Permissions::from_mode(0o700))
            .tempdir();
        let dir = file(&std::env::temp_dir(), made)?;
        let spawn = |command: &mut Command| {
            let spawned = command.process_group(0).stdout(Stdio::null()).spawn();
            file(Path::new(command.get_program()), spawned)
        };
        let mut leader = spawn(Command::new("sleep").arg("infinity").stdin(Stdio::null()))?;
        let mut cleaner = Command::new("sh");
        cleaner.args(["-c", CLEANER, "cleaner"]).arg(dir.path());
        cleaner.arg(leader.id().to_string()).stdin(Stdio::piped());
        match spawn(&mut cleaner) {
            Ok(cleaner) => Ok(Scratch {
                dir: dir.keep(),
                leader,
                cleaner,
            }),
            Err(e) => {
                // Nothing is left to do when they fail.
                let _killed = leader.kill();
                let _ended = leader.wait();
                Err(e)
            }
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Starts a server, whose messages go to the file `log`.
    ///
    /// # Errors
    /// It cannot be started.
    pub(crate) fn start(&self, command: &mut Command, log: &str) -> Result<Child, String> {
        let log = self.path(log);
        let out = file(
            &log,
            fs::OpenOptions::new().create(true).append(true).open(&log),
        )?;
        let err = file(&log, out.try_clone())?;
        command.process_group(self.leader.id().cast_signed());
        let spawned = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        file(Path::new(command.get_program()), spawned)
    }

    /// The last lines of all logs, for a failure.
    pub(crate) fn logs(&self) -> String {
        let mut all = String::new();
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|e| e == "log") {
                let bytes = fs::read(&path).unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes);
                let lines: Vec<&str> = text.lines().collect();
                let last = lines[lines.len().saturating_sub(8)..].join("\n  ");
                all += &format!("{}:\n  {last}\n", path.display());
            }
        }
        all
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.cleaner.stdin.take());
        // Nothing is left to do when they fail.
        let _ended = self.cleaner.wait();
        let _ended = self.leader.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_leaves_the_folder_of_another() {
        let mine = Scratch::new("blockwright-scratch").unwrap();
        drop(Scratch::new("blockwright-scratch").unwrap());
        let mode = fs::metadata(mine.path("")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn servers_and_the_folder_go_away_with_it() {
        let scratch = Scratch::new("blockwright-scratch").unwrap();
        let dir = scratch.path("");
        fs::create_dir(scratch.path("mnt.a")).unwrap();
        let mut command = Command::new("sleep");
        let mut server = scratch.start(command.arg("infinity"), "sleep.log").unwrap();
        assert!(scratch.path("sleep.log").exists());
        drop(scratch);
        assert!(!dir.exists());
        assert!(!server.wait().unwrap().success());
    }
}
