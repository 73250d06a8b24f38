//! A folder with servers and mounts that all go away with the command, also when it is interrupted or killed.
//!
//! The servers are in one process group, whose leader only sleeps. A shell in another group waits for the end of its input, which comes when this process
//! drops the [`Scratch`] or ends. Then it unmounts, kills the group, and removes the folder. Ctrl-C reaches neither group.

use crate::steps::file;
use std::fs;
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
    /// Makes a folder under the host's temporary one. Its path is short, because paths of sockets are.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let spawn = |command: &mut Command| {
            let spawned = command.process_group(0).stdout(Stdio::null()).spawn();
            file(Path::new(command.get_program()), spawned)
        };
        let leader = spawn(Command::new("sleep").arg("infinity").stdin(Stdio::null()))?;
        let mut cleaner = Command::new("sh");
        cleaner.args(["-c", CLEANER, "cleaner"]).arg(&dir);
        cleaner.arg(leader.id().to_string()).stdin(Stdio::piped());
        let cleaner = spawn(&mut cleaner)?;
        let scratch = Scratch {
            dir,
            leader,
            cleaner,
        };
        file(&scratch.dir, fs::create_dir(&scratch.dir))?;
        Ok(scratch)
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
