//! A crash leaves bytes of a lost append behind a file's end, in its last block; a second one must never show them. Whatever moves
//! the end on in between is tried here, cut everywhere, with every write lost and kept alone.

use crate::plan::{Format, Plan};
use crate::{fresh, mounted};
use blockwright_device::sim::recording::Action;
use blockwright_device::{
    AlignedBuf, BlockDevice as _, CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice,
};
use blockwright_vfs::engine::Place;
use blockwright_vfs::{
    CreateRequest, Cred, FallocMode, FileKind, Handle, InodeRef, OpenFlags, Patience, SyncMode,
    SyncScope, Vfs, WriteOp,
};
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// What is durable.
const OLD: u8 = 0x11;
/// What the first crash loses.
const LOST: u8 = 0x77;
/// What is written after it.
const NEW: u8 = 0x33;
/// Where the file ends when the power fails: inside of its second block.
const END: u64 = 5000;

/// From a mount to a crash.
struct Life {
    recording: Arc<RecordingDevice>,
    /// Forgotten, not unmounted.
    volume: ManuallyDrop<Arc<Vfs>>,
    file: ManuallyDrop<Arc<Handle>>,
}

impl Life {
    fn begin(base: &MemoryDevice, plan: &Plan) -> Self {
        let recording = Arc::new(RecordingDevice::new(base));
        let device: SharedDevice = recording.clone();
        let volume = mounted::mount_for(plan, device).expect("mounted");
        let root = volume.root().expect("a root");
        let inode = volume.lookup(&Cred::root(), &root, b"file").or_else(|_| {
            let request = CreateRequest::new(FileKind::Regular, 0o644);
            let made = volume.create(&Cred::root(), &root, b"file", &request);
            made.map(|(inode, _)| inode)
        });
        let file = open(&volume, &inode.expect("a file"), OpenFlags::read_write());
        Life {
            recording,
            volume: ManuallyDrop::new(volume),
            file: ManuallyDrop::new(file),
        }
    }

    fn write(&self, at: u64, bytes: usize) {
        let n = self.file.write_at(&vec![NEW; bytes], at).expect("written");
        assert_eq!(n, bytes);
    }

    /// A block, past the cache.
    fn write_past(&self, at: u64, sync: SyncMode) {
        let flags = OpenFlags {
            direct: true,
            sync,
            ..OpenFlags::read_write()
        };
        let direct = open(&self.volume, self.file.inode(), flags);
        let n = direct.write_at(&[NEW; 4096], at).expect("written");
        assert_eq!(n, 4096);
    }

    /// As [`Life::write_past`], submitted.
    fn submit_past(&self, at: u64) {
        let flags = OpenFlags {
            direct: true,
            ..OpenFlags::read_write()
        };
        let direct = open(&self.volume, self.file.inode(), flags);
        let (send, receive) = std::sync::mpsc::channel();
        let slices = vec![AlignedBuf::copy_of(&[NEW; 4096]).into()];
        let done = Box::new(move |done| drop(send.send(done)));
        direct.start(WriteOp::at(at, slices), done, Patience::Worker);
        let done = receive.recv().expect("told");
        assert_eq!(done.expect("written"), 4096);
    }

    /// Has one block written back.
    fn write_back(&self, at: u64) -> Place {
        self.file.map(at, 1).expect("mapped").place
    }

    fn allocate(&self, from: u64, to: u64, mode: FallocMode) {
        self.file.fallocate(from..to, mode).expect("allocated");
    }

    /// Makes all metadata durable, whatever data is in the cache still.
    fn sync_names(&self) {
        let root = self.volume.root().expect("a root");
        // So that there is something to make durable.
        let request = CreateRequest::new(FileKind::Directory, 0o755);
        let made = self.volume.create(&Cred::root(), &root, b"new", &request);
        made.expect("made");
        let root = open(&self.volume, &root, OpenFlags::read_only());
        root.sync(SyncScope::All).expect("durable");
    }
}

fn open(volume: &Arc<Vfs>, inode: &InodeRef, flags: OpenFlags) -> Arc<Handle> {
    volume.open(&Cred::root(), inode, flags).expect("opened")
}

/// A volume whose file lost an append, the bytes of which are in its last block.
fn lost_append(plan: &Plan) -> MemoryDevice {
    let base = fresh::fresh_volume(plan).expect("a volume");
    let life = Life::begin(&base, plan);
    let write = |at: u64, bytes: &[u8]| life.file.write_at(bytes, at).expect("written");
    write(0, &[OLD; END as usize]);
    life.volume.sync().expect("durable");
    write(END, &[LOST; 1000]);
    let Place::Mapped(block) = life.write_back(END) else {
        panic!("the last block is on the device");
    };
    let cut = life.recording.log_len();
    let image = life.recording.image_at(cut, CrashPolicy::AllKept);
    let mut there = [0; 4096];
    image.read_at(block, &mut there).expect("read");
    let lost = there.iter().filter(|b| **b == LOST).count();
    assert_eq!(lost, 1000, "the append's bytes are on the device");
    assert_eq!(contents(&image), [OLD; END as usize], "but not in the file");
    image
}

/// What the file holds when a crash left this.
fn contents(image: &MemoryDevice) -> Vec<u8> {
    let volume = mounted::mount(Arc::new(image.snapshot())).expect("mounted");
    let root = volume.root().expect("a root");
    let inode = volume
        .lookup(&Cred::root(), &root, b"file")
        .expect("a file");
    let file = open(&volume, &inode, OpenFlags::read_only());
    let mut bytes = vec![0; volume.stat(&inode).size as usize];
    let n = file.read_at(&mut bytes, 0).expect("read");
    assert_eq!(n, bytes.len());
    bytes
}

type Change = (&'static str, fn(&Life));

const CHANGES: [Change; 18] = [
    ("an append", |l| l.write(END, 1000)),
    ("a direct write", |l| l.write_past(12288, SyncMode::None)),
    ("a direct write, submitted", |l| l.submit_past(12288)),
    ("a synchronous direct write", |l| {
        l.write_past(12288, SyncMode::All);
    }),
    ("an append and a direct write", |l| {
        l.write(END, 8192 - END as usize);
        l.write_past(8192, SyncMode::None);
    }),
    ("an append and a direct write, submitted", |l| {
        l.write(END, 8192 - END as usize);
        l.submit_past(8192);
    }),
    ("an append and a direct write inside of it", |l| {
        l.write(END, 20_000);
        l.write_past(12288, SyncMode::None);
    }),
    ("an append of which a later block is written back", |l| {
        l.write(END, 20_000);
        l.write_back(12288);
    }),
    ("a hole and a block written back behind it", |l| {
        l.write(12288, 100);
        l.write_back(12288);
    }),
    ("a larger size", |l| l.file.set_len(20_000).expect("set")),
    ("a slightly larger size", |l| {
        l.file.set_len(END + 500).expect("set");
    }),
    ("an append and a larger size", |l| {
        l.write(END, 100);
        l.file.set_len(20_000).expect("set");
    }),
    ("an append that is cut", |l| {
        l.write(END, 20_000);
        l.file.set_len(15_000).expect("set");
    }),
    ("an append that is cut in the last block", |l| {
        l.write(END, 1000);
        l.file.set_len(END + 500).expect("set");
    }),
    ("blocks allocated behind the end", |l| {
        l.allocate(12288, 16384, FallocMode::Allocate { keep_size: false });
    }),
    ("an append, and blocks of it zeroed", |l| {
        l.write(END, 20_000);
        l.allocate(8192, 12288, FallocMode::ZeroRange { keep_size: false });
    }),
    ("an append, and blocks inserted into it", |l| {
        l.write(END, 20_000);
        l.allocate(8192, 12288, FallocMode::InsertRange);
    }),
    ("an append, and blocks of it removed", |l| {
        l.write(END, 20_000);
        l.allocate(8192, 12288, FallocMode::CollapseRange);
    }),
];

/// Cuts a life everywhere from `from` on: where that shows what it must not.
fn cut(life: &Life, from: usize) -> Result<(), String> {
    let log = life.recording.log();
    for cut in from..=log.len() {
        let pending = life.recording.pending_at(cut).len();
        let mut policies = vec![CrashPolicy::AllKept];
        // Up to the next flush ever more is pending, and what was before is tried with it.
        let most = log
            .get(cut)
            .is_none_or(|e| matches!(e.action, Action::Flush));
        if most && pending > 0 {
            policies.push(CrashPolicy::NoneKept);
            policies.extend((0..pending).map(CrashPolicy::Only));
            policies.extend((0..pending).map(CrashPolicy::AllBut));
        }
        for policy in policies {
            let bytes = contents(&life.recording.image_at(cut, policy));
            let lost = bytes.iter().position(|b| *b == LOST);
            if lost.is_some() || (bytes.len() as u64) < END {
                let len = bytes.len();
                return Err(format!("{lost:?} of {len}, cut {cut}, {policy:?}"));
            }
        }
    }
    Ok(())
}

fn second_lives(plan: &Plan) {
    let base = lost_append(plan);
    let mut wrong = Vec::new();
    for (what, change) in CHANGES {
        type Sync = fn(&Life);
        let syncs: [(&str, Sync); 2] = [
            ("all but data durable", Life::sync_names),
            ("fsync", |l| l.file.sync(SyncScope::All).expect("durable")),
        ];
        for (then, sync) in syncs {
            let life = Life::begin(&base, plan);
            let from = life.recording.log_len();
            change(&life);
            sync(&life);
            if let Err(e) = cut(&life, from) {
                wrong.push(format!("{what}, then {then}: {e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn ext4_never_shows_a_lost_append() {
    let plan = Plan {
        block_bytes: 4096,
        ..Plan::small(1)
    };
    second_lives(&plan);
}

#[test]
fn f2fs_never_shows_a_lost_append() {
    if !blockwright_oracles::have(&["mkfs.f2fs"]) {
        return;
    }
    let plan = Plan {
        format: Format::F2fs,
        block_bytes: 4096,
        ..Plan::small(1)
    };
    second_lives(&plan);
}
