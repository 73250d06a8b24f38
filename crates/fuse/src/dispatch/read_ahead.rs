//! Reads the files of a listing before they are asked for.
//!
//! [`ListedFiles`] says which. A job of the pool loads their inodes and starts their reads, many together
//! ([`Vfs::read_ahead`]). The bytes come into the volume's page cache, where READs find them and are answered by the thread that
//! receives them.
//!
//! One such job runs at a time. READDIR and READ add to what is due and wait for nothing.
//!
//! # Locks
//! `state`, a leaf.

use crate::scheduling::limits::{
    AHEAD_BYTES_MAX, AHEAD_CACHE_PART, AHEAD_FILE_BYTES_MAX, AHEAD_FILES, AHEAD_WINDOW_BYTES,
};
use crate::scheduling::listed_files::{ListedFiles, Point};
use crate::threads::Threads;
use blockwright_vfs::{FileKind, Ino, InodeFlags, InodeRef, Stats, Vfs};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most that may be due; what is older is left out.
const DUE_MAX: usize = 256;

struct State {
    files: ListedFiles,
    due: VecDeque<Due>,
    is_running: bool,
}

enum Due {
    Files(Point),
    /// Directories that are about to be listed.
    Directories(Vec<Ino>),
}

/// A part of a listing that is being made.
pub(super) struct Listing {
    dir: Ino,
    begins: bool,
    files: Vec<u64>,
    dirs: Vec<Ino>,
}

impl Listing {
    /// An entry as the directory has it.
    pub(super) fn add(&mut self, ino: Ino, kind: Option<FileKind>, name: &[u8]) {
        match kind {
            Some(FileKind::Regular) => self.files.push(ino.0),
            Some(FileKind::Directory) if !matches!(name, b"." | b"..") => self.dirs.push(ino),
            _ => {}
        }
    }
}

/// See the module's head.
pub(super) struct FileReadahead {
    vfs: Arc<Vfs>,
    threads: Arc<Threads>,
    state: Mutex<State>,
    /// Something was listed: READs are worth a look.
    is_in_use: AtomicBool,
}

impl FileReadahead {
    pub(super) fn new(vfs: &Arc<Vfs>, threads: &Arc<Threads>) -> Arc<Self> {
        let share = vfs.options().cache_bytes / AHEAD_CACHE_PART;
        let all = share.min(AHEAD_BYTES_MAX);
        Arc::new(FileReadahead {
            vfs: Arc::clone(vfs),
            threads: Arc::clone(threads),
            state: Mutex::new(State {
                files: ListedFiles::new(all.min(AHEAD_WINDOW_BYTES), all),
                due: VecDeque::new(),
                is_running: false,
            }),
            is_in_use: AtomicBool::new(false),
        })
    }

    /// A directory is being listed from this position on.
    pub(super) fn listing(&self, dir: Ino, offset: u64) -> Listing {
        Listing {
            dir,
            begins: offset == 0,
            files: Vec::new(),
            dirs: Vec::new(),
        }
    }

    /// The listings so far.
    pub(super) fn listed(self: &Arc<Self>, listing: Listing) {
        let Listing {
            dir,
            begins,
            files,
            dirs,
        } = listing;
        if files.is_empty() && dirs.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let mut due = state.files.listed(dir.0, begins, &files).map(Due::Files);
        if !dirs.is_empty() && state.files.is_trusted() {
            state.due.extend(due.take());
            due = Some(Due::Directories(dirs));
        }
        self.is_in_use.store(true, Ordering::Relaxed);
        self.add(state, due);
    }

    /// A file is read from its beginning.
    pub(super) fn read(self: &Arc<Self>, file: Ino) {
        if self.is_in_use.load(Ordering::Relaxed) {
            let mut state = self.state.lock();
            let due = state.files.read(file.0).map(Due::Files);
            self.add(state, due);
        }
    }

    fn add(self: &Arc<Self>, mut state: parking_lot::MutexGuard<'_, State>, due: Option<Due>) {
        let Some(due) = due else { return };
        if state.due.len() >= DUE_MAX {
            state.due.pop_front();
        }
        state.due.push_back(due);
        if !std::mem::replace(&mut state.is_running, true) {
            drop(state);
            let me = Arc::clone(self);
            self.threads.run(move || me.work());
        }
    }

    pub(super) fn stats(&self, out: &mut Stats) {
        let (ahead, hits) = self.state.lock().files.counts();
        blockwright_vfs::stat_lines! { out;
            counter "fuse_files_read_ahead", Count, "files of listings that were read before they were asked for" => ahead;
            counter "fuse_files_read_ahead_used", Count, "those that were asked for afterwards" => hits;
        }
    }

    /// Does what is due.
    fn work(&self) {
        let _running = Running(self);
        loop {
            let mut state = self.state.lock();
            let Some(due) = state.due.pop_front() else {
                state.is_running = false;
                return;
            };
            // Switched off by an option or a tunable.
            if self.vfs.options().readahead_bytes == 0 {
                continue;
            }
            let named = match due {
                Due::Files(point) => state.files.name(point, AHEAD_FILES),
                Due::Directories(dirs) => {
                    drop(state);
                    self.vfs.list_ahead(&dirs);
                    continue;
                }
            };
            if named.is_empty() {
                continue;
            }
            if let Due::Files(point) = due {
                // As long as more are wanted.
                state.due.push_front(Due::Files(point));
            }
            drop(state);
            self.start(&named);
        }
    }

    fn start(&self, named: &[u64]) {
        let inos: Vec<Ino> = named.iter().map(|file| Ino(*file)).collect();
        let loaded = self.vfs.inodes(&inos);
        let wanted: Vec<(InodeRef, u64)> = loaded
            .into_iter()
            .flatten()
            .map(|inode| {
                let bytes = bytes_of(&inode);
                (inode, bytes)
            })
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        self.vfs.read_ahead(&wanted);
        let mut state = self.state.lock();
        for (inode, bytes) in &wanted {
            state.files.began(inode.ino().0, *bytes);
        }
        // The others are left out.
        named.iter().for_each(|file| state.files.began(*file, 0));
        drop(state);
    }
}

/// A job that runs. After a panic the next one may begin.
struct Running<'a>(&'a FileReadahead);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().is_running = false;
        }
    }
}

/// How much of a file is read ahead.
fn bytes_of(inode: &InodeRef) -> u64 {
    let attr = inode.attr();
    let readable = inode.kind() == FileKind::Regular && !attr.flags.contains(InodeFlags::ENCRYPT);
    match readable {
        true => attr.size.min(AHEAD_FILE_BYTES_MAX),
        false => 0,
    }
}
