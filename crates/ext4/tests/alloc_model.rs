//! Random changes of file mappings against a model, on volumes of every layout; then e2fsck.

mod support;

use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice};
use blockwright_ext4::{Ext4, Options};
use blockwright_vfs::engine::{Attributes, Data, Names, Space, Volume as _};
use blockwright_vfs::engine::{FallocMode, Intent, Place};
use blockwright_vfs::{ErrorKind, FileKind, Inode, NewInode, Timestamp};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{Image, fsck, have, save};

/// What a file should read as: block → stamp. Blocks not in it read as zeroes.
type Model = BTreeMap<u64, u64>;

struct Volume {
    device: Arc<MemoryDevice>,
    engine: Arc<Ext4>,
    block: u64,
}

fn file(name: &str) -> NewInode {
    let _ = name;
    NewInode {
        kind: FileKind::Regular,
        perm: 0o644,
        uid: 0,
        gid: 0,
        rdev: 0,
        symlink: Vec::new(),
        now: Timestamp::now(),
        xattrs: Vec::new(),
    }
}

impl Volume {
    fn mount(image: &Image) -> Volume {
        let device = Arc::new(image.load());
        let engine = Ext4::mount(device.clone(), Options::default()).expect("mount");
        let block = u64::from(engine.format().block_bytes);
        Volume {
            device,
            engine,
            block,
        }
    }

    fn create(&self, name: &str) -> Arc<Inode> {
        let root = self.engine.load(self.engine.format().root).expect("root");
        self.engine
            .create(&root, name.as_bytes(), &file(name))
            .expect("create")
    }

    /// Writes blocks full of a stamp, as writeback or a direct write does.
    fn write(
        &self,
        inode: &Arc<Inode>,
        blocks: std::ops::Range<u64>,
        stamp: u64,
        intent: Intent,
    ) -> Result<(), ErrorKind> {
        let (start, end) = (blocks.start * self.block, blocks.end * self.block);
        if intent == Intent::Writeback {
            self.engine
                .reserve(inode, start..end)
                .map_err(|e| e.kind())?;
        }
        inode.update_attr(|a| a.size = a.size.max(end));
        let mut at = start;
        while at < end {
            let t = self
                .engine
                .allocate(inode, at..end, end, intent)
                .map_err(|e| e.kind())?;
            assert_eq!(t.offset, at);
            assert!(t.bytes > 0 && at + t.bytes <= end);
            let to = t.device.expect("on the device");
            let bytes: Vec<u8> = stamp.to_le_bytes().repeat(t.bytes as usize / 8);
            self.device
                .write_at(to, &bytes, Flags::empty())
                .expect("write");
            if t.commit {
                self.engine
                    .commit_write(inode, &t, end)
                    .map_err(|e| e.kind())?;
            }
            at += t.bytes;
        }
        Ok(())
    }

    fn read(&self, inode: &Arc<Inode>, block: u64) -> u64 {
        let m = self
            .engine
            .map(inode, block * self.block, self.block)
            .expect("map");
        assert!(m.offset <= block * self.block && m.offset + m.bytes > block * self.block);
        match m.place {
            Place::Mapped(at) => {
                let mut bytes = vec![0u8; self.block as usize];
                let skip = block * self.block - m.offset;
                self.device
                    .read_at(DevOffset(at.0 + skip), &mut bytes)
                    .expect("read");
                u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
            }
            Place::Hole | Place::Unwritten(_) => 0,
            other => panic!("block {block} is {other:?}"),
        }
    }

    fn verify(&self, inode: &Arc<Inode>, model: &Model, up_to: u64, context: &str) {
        let size = inode.size().div_ceil(self.block);
        for block in 0..up_to {
            let expected = if block < size {
                model.get(&block).copied().unwrap_or(0)
            } else {
                0
            };
            if block < size {
                assert_eq!(
                    self.read(inode, block),
                    expected,
                    "{context}: block {block}"
                );
            }
        }
    }

    fn close(self, context: &str) {
        let dir = tempfile::tempdir().expect("dir");
        self.engine.unmount().expect("unmount");
        drop(self.engine);
        if let Err(e) = fsck(&save(&self.device, dir.path(), "done")) {
            panic!("{context}: {e}");
        }
    }
}

fn random_changes(args: &[&str], kib: u64, seed: u64, extents: bool) {
    let image = Image::make(kib, args);
    let v = Volume::mount(&image);
    let mut rng = StdRng::seed_from_u64(seed);
    let context = format!("{args:?} seed {seed}");
    let files: Vec<Arc<Inode>> = (0..4).map(|i| v.create(&format!("f{i}"))).collect();
    let mut models: Vec<Model> = vec![Model::new(); files.len()];
    let span = 700u64;
    for step in 0..500u64 {
        let n = rng.random_range(0..files.len());
        let (inode, model) = (&files[n], &mut models[n]);
        let a = rng.random_range(0..span);
        let len = if rng.random_bool(0.5) {
            rng.random_range(1..4)
        } else {
            rng.random_range(1..90)
        };
        let b = (a + len).min(span);
        let stamp = step + 1;
        let size = inode.size() / v.block;
        let bytes = a * v.block..b * v.block;
        let now = Timestamp::now();
        let result = match rng.random_range(0..if extents { 13 } else { 8 }) {
            0..=3 => {
                let intent = if rng.random_bool(0.5) {
                    Intent::Writeback
                } else {
                    Intent::Direct
                };
                let done = v.write(inode, a..b, stamp, intent);
                if done.is_ok() {
                    model.extend((a..b).map(|i| (i, stamp)));
                }
                done
            }
            4 => {
                let done = v
                    .engine
                    .truncate(inode, a * v.block, now)
                    .map_err(|e| e.kind());
                model.split_off(&a);
                done
            }
            5 | 6 => {
                let done = v
                    .engine
                    .fallocate(inode, bytes, FallocMode::PunchHole, now)
                    .map_err(|e| e.kind());
                (a..b).for_each(|i| {
                    model.remove(&i);
                });
                done
            }
            7 => {
                v.engine.release_write(inode);
                v.engine
                    .fs()
                    .volume
                    .journal
                    .commit_running()
                    .map_err(|e| e.kind())
            }
            8 | 9 => {
                let keep_size = rng.random_bool(0.5);
                v.engine
                    .fallocate(inode, bytes, FallocMode::Allocate { keep_size }, now)
                    .map_err(|e| e.kind())
            }
            10 => {
                let keep_size = rng.random_bool(0.5);
                let done = v
                    .engine
                    .fallocate(inode, bytes, FallocMode::ZeroRange { keep_size }, now)
                    .map_err(|e| e.kind());
                (a..b).for_each(|i| {
                    model.remove(&i);
                });
                done
            }
            11 if b < size => {
                let done = v
                    .engine
                    .fallocate(inode, bytes, FallocMode::CollapseRange, now)
                    .map_err(|e| e.kind());
                let tail = model.split_off(&a);
                model.extend(
                    tail.into_iter()
                        .filter(|(k, _)| *k >= b)
                        .map(|(k, s)| (k - (b - a), s)),
                );
                done
            }
            12 if a < size => {
                let done = v
                    .engine
                    .fallocate(inode, bytes, FallocMode::InsertRange, now)
                    .map_err(|e| e.kind());
                let tail = model.split_off(&a);
                model.extend(tail.into_iter().map(|(k, s)| (k + (b - a), s)));
                done
            }
            _ => Ok(()),
        };
        result.unwrap_or_else(|e| panic!("{context} step {step}: {e:?}"));
        if step % 25 == 0 {
            v.verify(
                inode,
                model,
                span * 2,
                &format!("{context} step {step} file {n}"),
            );
        }
    }
    for (n, inode) in files.iter().enumerate() {
        v.verify(inode, &models[n], span * 3, &format!("{context} file {n}"));
        v.engine.release_write(inode);
    }
    for inode in files {
        v.engine.evict(&inode).expect("evict");
    }
    assert_eq!(
        v.engine
            .fs()
            .alloc
            .counters()
            .iter()
            .find(|c| c.0 == "alloc_blocks_claimed")
            .map_or(0, |c| c.1),
        0
    );
    v.close(&context);
}

#[test]
fn extent_files_follow_the_model() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    for (i, args) in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "2048", "-O", "^metadata_csum,uninit_bg"],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^flex_bg,^64bit,^metadata_csum,^uninit_bg",
            "-g",
            "1024",
        ],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "meta_bg,^resize_inode,sparse_super2",
        ],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
    ]
    .iter()
    .enumerate()
    {
        for seed in 0..3 {
            random_changes(args, 64 << 10, 1000 * i as u64 + seed, true);
        }
    }
}

#[test]
fn block_mapped_files_follow_the_model() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    for (i, args) in [
        &["-t", "ext2", "-b", "1024"][..],
        &["-t", "ext3", "-b", "4096"],
        &["-t", "ext3", "-b", "1024", "-I", "128"],
    ]
    .iter()
    .enumerate()
    {
        for seed in 0..3 {
            random_changes(args, 64 << 10, 9000 + 1000 * i as u64 + seed, false);
        }
    }
}
