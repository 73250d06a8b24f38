//! e2fsck and fsck.f2fs on images in memory.

use blockwright_device::MemoryDevice;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory in memory, when there is one: every case writes its image there.
pub fn scratch() -> tempfile::TempDir {
    let shm = Path::new("/dev/shm");
    match shm.is_dir() {
        true => tempfile::tempdir_in(shm),
        false => tempfile::tempdir(),
    }
    .expect("a directory")
}

/// A file that holds the images of one case after the other: what they have in common is not written again.
pub struct Slot {
    pub path: PathBuf,
    now: Vec<u8>,
}

impl Slot {
    pub fn new(dir: &Path, name: &str) -> Self {
        Slot {
            path: dir.join(name),
            now: Vec::new(),
        }
    }

    /// Makes the file hold this image.
    pub fn put(&mut self, image: &[u8]) {
        if self.now.len() != image.len() {
            std::fs::write(&self.path, image).expect("written");
            self.now = image.to_vec();
            return;
        }
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&self.path)
            .expect("opened");
        for (n, new) in image.chunks(4096).enumerate() {
            let at = n * 4096;
            let old = &mut self.now[at..at + new.len()];
            if *old != *new {
                file.write_all_at(new, at as u64).expect("written");
                old.copy_from_slice(new);
            }
        }
    }

    /// The image after a tool worked on it. A tool that wrote far behind the volume's end has left a sparse file that no
    /// memory holds, so the file gets its length back.
    pub fn take(&mut self) -> Vec<u8> {
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&self.path)
            .expect("opened");
        if file.metadata().expect("a length").len() > self.now.len() as u64 {
            file.set_len(self.now.len() as u64).expect("cut");
        }
        self.now = std::fs::read(&self.path).expect("read");
        self.now.clone()
    }
}

/// Runs a tool under a time limit: exit code, and what it said.
pub fn run(program: &str, args: &[&str], image: &Path) -> (i32, String) {
    let out = Command::new("timeout")
        .args(["-k", "2", "240", program])
        .args(args)
        .arg(image)
        .stdin(Stdio::null())
        .output()
        .expect("a program");
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap_or(-1), text)
}

/// A device with the contents of a sparse file.
pub fn load(path: &Path) -> MemoryDevice {
    MemoryDevice::load(path).expect("loaded")
}
