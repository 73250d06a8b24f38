//! Nodes are written ahead of a checkpoint, and the power fails before it ends: what was durable stays so, and what an fsync
//! promises in between is kept, although such nodes are clean and in no chain.

use crate::plan::{F2fsSwitches, Format, Plan};
use crate::{fresh, mounted, verify};
use blockwright_device::sim::recording::Action;
use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_f2fs::{F2fs, Mode};
use blockwright_vfs::{CreateRequest, Cred, FileKind, Handle, OpenFlags, SyncScope, Vfs};
use std::mem::ManuallyDrop;
use std::sync::Arc;

const OLD: u8 = 0x11;
const NEW: u8 = 0x33;
const BLOCK: usize = 4096;
/// Enough for an inode and two direct nodes.
const BLOCKS: usize = 2200;
/// Overwritten blocks: in the inode's reach, and in that of each node.
const CHANGED: [usize; 3] = [3, 1000, 2100];

struct Life {
    recording: Arc<RecordingDevice>,
    /// Forgotten, not unmounted.
    volume: ManuallyDrop<Arc<Vfs>>,
    file: ManuallyDrop<Arc<Handle>>,
}

fn plan() -> Plan {
    Plan {
        format: Format::F2fs,
        block_bytes: 4096,
        f2fs: F2fsSwitches {
            // Blocks get new places, so that nodes change.
            mode: Mode::Lfs,
            nodes_left: Some(0),
            ..F2fsSwitches::default()
        },
        ..Plan::small(1)
    }
}

fn open_file(volume: &Arc<Vfs>) -> Arc<Handle> {
    let cred = Cred::root();
    let root = volume.root().expect("a root");
    let inode = volume.lookup(&cred, &root, b"file").expect("a file");
    let opened = volume.open(&cred, &inode, OpenFlags::read_write());
    opened.expect("opened")
}

/// A volume with the file, whole and durable.
fn base() -> MemoryDevice {
    let fresh = fresh::fresh_volume(&plan()).expect("a volume");
    let device = Arc::new(fresh);
    let volume = mounted::mount_for(&plan(), device.clone()).expect("mounted");
    let root = volume.root().expect("a root");
    let request = CreateRequest::new(FileKind::Regular, 0o644);
    let made = volume.create(&Cred::root(), &root, b"file", &request);
    made.expect("made");
    let file = open_file(&volume);
    // The volume is small: two blocks in each node's reach, and holes.
    for block in CHANGED {
        let at = (block * BLOCK) as u64;
        let n = file.write_at(&[OLD; 2 * BLOCK], at).expect("written");
        assert_eq!(n, 2 * BLOCK);
    }
    file.set_len((BLOCKS * BLOCK) as u64).expect("set");
    drop(file);
    volume.unmount().expect("unmounted");
    device.snapshot()
}

impl Life {
    fn begin(base: &MemoryDevice) -> Self {
        let recording = Arc::new(RecordingDevice::new(base));
        let device: SharedDevice = recording.clone();
        let volume = mounted::mount_for(&plan(), device).expect("mounted");
        let file = open_file(&volume);
        Life {
            recording,
            volume: ManuallyDrop::new(volume),
            file: ManuallyDrop::new(file),
        }
    }

    /// Overwrites blocks and has them written back: their nodes are dirty then.
    fn overwrite(&self) {
        for block in CHANGED {
            let at = (block * BLOCK) as u64;
            let n = self.file.write_at(&[NEW; BLOCK], at).expect("written");
            assert_eq!(n, BLOCK);
            self.file.map(at, 1).expect("written back");
        }
    }

    /// Returns how many nodes were written.
    fn write_ahead(&self) -> u64 {
        let engine = self.volume.engine().as_any();
        let f2fs = engine.downcast_ref::<F2fs>().expect("f2fs");
        let before = self.count("checkpoint_early_nodes");
        f2fs.fs().checkpoints.write_ahead_of_checkpoint();
        self.count("checkpoint_early_nodes") - before
    }

    fn count(&self, name: &str) -> u64 {
        self.volume.stats().get(name).expect("a statistic")
    }

    fn fsync(&self) {
        self.file.sync(SyncScope::All).expect("durable");
    }

    /// Cuts everywhere from `from` on, every write lost and kept alone. The file is old or new, block by block; from
    /// `promised` on it is new. Returns how many images there were.
    fn cut(&self, from: usize, promised: usize) -> Result<usize, String> {
        let log = self.recording.log();
        let mut images = 0;
        for cut in from..=log.len() {
            let pending = self.recording.pending_at(cut).len();
            let mut policies = vec![CrashPolicy::AllKept, CrashPolicy::NoneKept];
            // Up to the next flush ever more is pending, and what was before is tried with it.
            let most = log
                .get(cut)
                .is_none_or(|e| matches!(e.action, Action::Flush));
            if most {
                policies.extend((0..pending).map(CrashPolicy::Only));
                policies.extend((0..pending).map(CrashPolicy::AllBut));
            }
            for (n, policy) in policies.into_iter().enumerate() {
                let image = self.recording.image_at(cut, policy);
                look(image, cut >= promised, n < 2 && most)
                    .map_err(|e| format!("cut {cut} of {}, {policy:?}: {e}", log.len()))?;
                images += 1;
            }
        }
        Ok(images)
    }
}

/// Recovers the image, reads the file, unmounts and checks.
fn look(image: MemoryDevice, promised: bool, fsck: bool) -> Result<(), String> {
    let image = Arc::new(image);
    let device: SharedDevice = image.clone();
    let volume = mounted::mount(Arc::clone(&device))?;
    let file = open_file(&volume);
    let mut bytes = vec![0; BLOCKS * BLOCK];
    let n = file.read_at(&mut bytes, 0).map_err(|e| e.to_string())?;
    if n != bytes.len() {
        return Err(format!("{n} bytes are left"));
    }
    for (at, block) in bytes.chunks_exact(BLOCK).enumerate() {
        let is = |byte: u8| block.iter().all(|b| *b == byte);
        let right = match CHANGED.contains(&at) {
            true => is(NEW) || (!promised && is(OLD)),
            false if at > 0 && CHANGED.contains(&(at - 1)) => is(OLD),
            false => is(0),
        };
        if !right {
            return Err(format!("block {at} begins with {:#x}", block[0]));
        }
    }
    drop(file);
    volume.unmount().map_err(|e| e.to_string())?;
    verify::check_f2fs(&device)?;
    if fsck {
        verify::run_fsck_f2fs(&image)?;
    }
    Ok(())
}

fn have_tools() -> bool {
    blockwright_oracles::have(&["mkfs.f2fs", "fsck.f2fs"])
}

#[test]
fn fsync_of_nodes_written_ahead_is_kept() {
    if !have_tools() {
        return;
    }
    let life = Life::begin(&base());
    let from = life.recording.log_len();
    life.overwrite();
    assert!(life.write_ahead() >= 3, "an inode and two nodes");
    life.fsync();
    assert_eq!(life.count("fsync_checkpoints_early"), 1);
    let promised = life.recording.log_len();
    assert!(life.cut(from, promised).expect("kept") > 20);
}

#[test]
fn a_chain_is_kept_when_its_nodes_are_written_ahead_and_the_power_fails() {
    if !have_tools() {
        return;
    }
    let life = Life::begin(&base());
    life.overwrite();
    life.fsync();
    assert_eq!(life.count("fsyncs_chained"), 1, "no checkpoint");
    let promised = life.recording.log_len();
    // The same nodes again, in other places.
    life.overwrite();
    assert!(life.write_ahead() >= 3, "an inode and two nodes");
    life.volume.sync().expect("a checkpoint");
    assert!(life.cut(promised, promised).expect("kept") > 20);
}
