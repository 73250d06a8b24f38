//! Quota on f2fs: what users, groups and projects use is counted exactly, with fsck.f2fs (which counts itself), our
//! own check and Linux as judges; limits hold; what is out of date is counted anew.

use crate::common;
use crate::common::quota::{exceeded, open_as, set_project};
use crate::common::{assert_fsck_f2fs_clean, below};
use crate::uml;
use blockwright::{ErrorKind, OpenOptions, Volume, VolumeOptions, XattrMode};
use blockwright_check::{Mode, f2fs as check};
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{
    CrashPolicy, HostDevice, MemoryDevice, OpenMode, RecordingDevice, SharedDevice,
};
use blockwright_f2fs::F2fs;
use blockwright_ondisk::common::quota::{BLOCK_SIZE, RawQuotaEntry};
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::inode::{InlineFlags, set_checksum};
use blockwright_ondisk::f2fs::{BlockAddr, Checkpoint, Ino, Inode};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

const ANDROID: &str = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,\
                       flexible_inline_xattr,verity,casefold,compression,quota";
const KIB: u64 = 1024;
const USER: u32 = 1000;

struct Fixture {
    _dir: tempfile::TempDir,
    image: PathBuf,
}

fn tools() -> bool {
    common::have_tool("mkfs.f2fs") && common::have_tool("fsck.f2fs")
}

impl Fixture {
    /// A volume with a directory that every user may write to, and an empty file of user, group and project
    /// 1000.
    fn new(features: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        common::mkfs_f2fs(&image, features, 100 << 20);
        let f = Fixture { _dir: dir, image };
        let v = open_as(&f.image, 0);
        v.create_dir_mode("/home", 0o777).expect("made");
        v.write("/home/first", b"").expect("made");
        v.chown("/home/first", Some(USER), Some(USER)).expect("set");
        if features.contains("project_quota") {
            set_project(&v, "/home/first", USER).expect("set");
        }
        v.close().expect("closed");
        f
    }

    /// Where the entry of an id is in the image, and what it says.
    fn find(&self, which: usize, id: u32) -> (u64, RawQuotaEntry) {
        let image = std::fs::read(&self.image).expect("read");
        let volume = Volume::open_read_only(&self.image).expect("opens");
        let engine = volume.vfs().engine().as_any();
        let fs = engine.downcast_ref::<F2fs>().expect("f2fs").fs();
        let ino = Ino(fs.volume.sb.raw.qf_ino[which].get());
        let block = |at: BlockAddr| &image[at.0 as usize * 4096..][..4096];
        let node = block(fs.nodes.nat.get(ino.nid()).expect("a node").block);
        let inode = Inode::parse(node, ino, &fs.volume.geo).expect("an inode");
        let start = inode.layout(fs.volume.geo.features).address_bytes().start;
        for n in 0..inode.size.div_ceil(4096) as usize {
            let word = node[start + n * 4..start + n * 4 + 4].try_into();
            let at = u64::from(u32::from_le_bytes(word.expect("four"))) * 4096;
            for at in (at..at + 4096).step_by(BLOCK_SIZE) {
                for slot in 0..14 {
                    let at = at + 16 + slot * 72;
                    let bytes = &image[at as usize..at as usize + 72];
                    let entry = RawQuotaEntry::read_from_bytes(bytes).expect("72 bytes");
                    // Nothing else in the file has this id and counts below these.
                    if entry.id.get() == id
                        && entry.pad.get() == 0
                        && entry.curinodes.get() < 100_000
                        && entry.curspace.get() < 1 << 40
                        && entry.as_bytes().iter().any(|b| *b != 0)
                    {
                        return (at, entry);
                    }
                }
            }
        }
        panic!("{which} {id} has no entry");
    }

    fn set(&self, which: usize, edit: impl FnOnce(&mut RawQuotaEntry)) {
        let (at, mut entry) = self.find(which, USER);
        edit(&mut entry);
        self.write(entry.as_bytes(), at);
    }

    fn write(&self, bytes: &[u8], at: u64) {
        let image = std::fs::OpenOptions::new().write(true).open(&self.image);
        image
            .expect("opens")
            .write_all_at(bytes, at)
            .expect("written");
    }

    fn used(&self, which: usize) -> (u64, u64) {
        let entry = self.find(which, USER).1;
        (entry.curspace.get(), entry.curinodes.get())
    }

    fn check(&self, mode: Mode) -> Vec<String> {
        let device = HostDevice::open(&self.image, OpenMode::default()).expect("opens");
        let options = check::CheckOptions {
            mode,
            ..check::CheckOptions::default()
        };
        let report = check::check(device, &options).expect("checked");
        report.issues.iter().map(ToString::to_string).collect()
    }

    fn assert_right(&self) {
        let issues = self.check(Mode::ReadOnly);
        assert!(issues.is_empty(), "{issues:#?}");
        assert_fsck_f2fs_clean(&self.image);
    }
}

/// Random changes of everything that is counted.
fn work(v: &Volume, rng: &mut SplitMix64, rounds: u64) {
    let name = |rng: &mut SplitMix64| format!("/home/f{}", below(rng, 60));
    for round in 0..rounds {
        let path = name(rng);
        let id = [0, USER, USER + 1, 70_000, 5_000_000][below(rng, 5) as usize];
        // Names that are not there, or there already, are no failure.
        let _either = match below(rng, 14) {
            0..=3 => v.write(&path, vec![round as u8; below(rng, 60_000) as usize]),
            4 => v.chown(&path, Some(id), None),
            5 => v.chown(&path, None, Some(id)),
            6 => set_project(v, &path, id),
            7 => v.remove_file(&path),
            8 => v.rename(&path, name(rng)),
            9 => {
                let file = OpenOptions::new().write(true).open(v, &path);
                file.and_then(|f| {
                    f.set_len(below(rng, 5 << 20))?;
                    f.write_all_at(b"far", below(rng, 40 << 20))?;
                    f.allocate(0, below(rng, 300_000))
                })
            }
            10 => v.set_xattr(&path, "user.x", [1; 3500], XattrMode::Any),
            11 => v.create_dir(format!("/home/d{}", below(rng, 20))),
            12 => v.symlink("x".repeat(4000), format!("/home/l{}", below(rng, 20))),
            _ => v.sync(),
        };
    }
}

#[test]
fn androids_set_is_counted_exactly() {
    if !tools() {
        return;
    }
    let mut rng = SplitMix64::new(common::seed(0xA11D));
    for features in [ANDROID, "quota"] {
        let f = Fixture::new(features);
        f.assert_right();
        for _ in 0..4 {
            let v = open_as(&f.image, 0);
            work(&v, &mut rng, 250);
            v.close().expect("closed");
            f.assert_right();
        }
        // Many owners: the file grows.
        let v = open_as(&f.image, 0);
        for n in 0..400u32 {
            let path = format!("/home/n{}", n % 50);
            v.write(&path, b"n").expect("written");
            v.chown(&path, Some(n * 1_000_003), Some(n)).expect("given");
        }
        v.close().expect("closed");
        f.assert_right();
    }
}

#[test]
fn wrong_counts_are_found_and_repaired() {
    if !tools() {
        return;
    }
    let f = Fixture::new("extra_attr,project_quota,quota");
    let v = open_as(&f.image, USER);
    v.write("/home/a", vec![1; 100_000]).expect("written");
    v.close().expect("closed");
    f.assert_right();
    for which in 0..3 {
        f.set(which, |e| {
            e.curspace.set(e.curspace.get() + 4096);
            e.bhardlimit.set(5000);
        });
    }
    let fsck = std::process::Command::new("fsck.f2fs")
        .arg("--dry-run")
        .arg(&f.image)
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&fsck.stdout).into_owned();
    assert!(text.contains("fsck_chk_quota_files"), "{text}");
    let issues = f.check(Mode::ReadOnly);
    assert_eq!(issues.len(), 3, "{issues:#?}");
    assert!(
        issues.iter().all(|i| i.contains("quota of 1000")),
        "{issues:#?}"
    );
    f.check(Mode::Preen);
    f.assert_right();
    assert_eq!(f.find(0, USER).1.bhardlimit.get(), 5000, "limits are kept");

    // A file that is invalid: no mount for writing before it is repaired.
    let (at, _) = f.find(1, USER);
    let block = at / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
    f.write(&[0xAB; BLOCK_SIZE], block);
    let found = f.check(Mode::ReadOnly);
    assert!(
        found.iter().any(|i| i.contains("group quota")),
        "{found:#?}"
    );
    f.check(Mode::Yes);
    f.assert_right();
}

#[test]
fn damaged_files_are_not_written_over() {
    if !tools() {
        return;
    }
    let f = Fixture::new("extra_attr,project_quota,quota");
    // The user's file begins so, in its place and in those it had before.
    let image = std::fs::read(&f.image).expect("read");
    let magic = 0xD9C0_1F11u32.to_le_bytes();
    let heads = (0..image.len()).step_by(4096);
    let heads: Vec<usize> = heads.filter(|at| image[*at..at + 4] == magic).collect();
    assert!(!heads.is_empty());
    for at in heads {
        f.write(b"nope", at as u64);
    }
    let v = Volume::open(&f.image).expect("opened");
    assert!(v.is_read_only());
    let said = v.read_only_reason().expect("a reason");
    assert!(said.contains("quota"), "{said}");
    let e = v.write("/home/x", b"x").expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
    assert!(v.exists("/home/first").expect("readable"));
    v.close().expect("closed");
    f.check(Mode::Yes);
    f.assert_right();
    let v = open_as(&f.image, USER);
    v.write("/home/x", b"x").expect("written");
    v.close().expect("closed");
    f.assert_right();
}

#[test]
fn what_is_out_of_date_is_counted_anew() {
    if !tools() {
        return;
    }
    let f = Fixture::new("extra_attr,project_quota,quota");
    let v = open_as(&f.image, USER);
    v.write("/home/a", vec![1; 100_000]).expect("written");
    v.close().expect("closed");
    for which in 0..3 {
        f.set(which, |e| e.curspace.set(77));
    }
    // As another implementation leaves a volume whose quota it could not keep.
    let image = std::fs::read(&f.image).expect("read");
    let geo = {
        let volume = Volume::open_read_only(&f.image).expect("opens");
        let engine = volume.vfs().engine().as_any();
        (*engine.downcast_ref::<F2fs>().expect("f2fs").fs().volume.geo).clone()
    };
    for copy in [Copy2::First, Copy2::Second] {
        let at = geo.pack_start(copy).0 as usize * 4096;
        let Ok(mut cp) = Checkpoint::parse(&image[at..at + 4096], &geo) else {
            continue;
        };
        let mut flags = cp.flags() | CheckpointFlags::QUOTA_NEED_FSCK;
        flags -= CheckpointFlags::NAT_BITS;
        cp.raw.ckpt_flags.set(flags.bits());
        let head = cp.encode(&geo).expect("encoded");
        let tail = at as u64 + u64::from(cp.raw.cp_pack_total_block_count.get() - 1) * 4096;
        f.write(&head, at as u64);
        f.write(&head[..4096], tail);
    }
    let issues = f.check(Mode::ReadOnly);
    assert_eq!(issues.len(), 1, "told once, not for each id: {issues:#?}");
    let v = open_as(&f.image, USER);
    v.write("/home/b", b"b").expect("written");
    v.close().expect("closed");
    f.assert_right();
    let (bytes, inodes) = f.used(0);
    assert!(bytes >= 100 * KIB && inodes == 3, "{bytes} {inodes}");
}

#[test]
fn limits_hold() {
    if !tools() {
        return;
    }
    let f = Fixture::new("extra_attr,project_quota,quota");
    let limit = 600 * KIB;
    f.set(0, |e| e.bhardlimit.set(limit / KIB));
    let v = open_as(&f.image, USER);
    v.write("/home/full", vec![1; 40_960]).expect("written");
    let file = v.create_file("/home/sparse").expect("made");
    let mut refused = 0;
    // Behind the inode's own addresses, each far from the next: nodes count, too.
    for n in 0..300u64 {
        let at = (4 << 20) + (n * 7919 % 401) * (1 << 22);
        refused += u32::from(exceeded(file.write_at(&[1; 1024], at)));
    }
    assert!(refused > 0, "nothing was refused");
    let mut files = 0;
    for n in 0..50 {
        files += u32::from(!exceeded(
            v.write(format!("/home/f{n}"), vec![n as u8; 20_000]),
        ));
    }
    assert!(files < 30, "{files} files");
    v.sync().expect("what was accepted has room");
    drop(file);
    v.close().expect("closed");
    let (used, _) = f.used(0);
    assert!(used <= limit && used > limit / 2, "{used} of {limit}");
    f.assert_right();
    // What is full can be overwritten, and given back.
    f.set(0, |e| e.bhardlimit.set(used / KIB));
    let v = open_as(&f.image, USER);
    for direct in [false, true] {
        let file = OpenOptions::new()
            .write(true)
            .direct(direct)
            .open(&v, "/home/full")
            .expect("opens");
        file.write_all_at(&[2; 4096], 4096).expect("in place");
        assert!(exceeded(file.write_at(&[3; 4096], 1 << 20)), "{direct}");
        assert!(exceeded(file.allocate(0, 1 << 20)), "{direct}");
    }
    let long = vec![1; 3500];
    assert!(exceeded(v.set_xattr(
        "/home/full",
        "user.x",
        &long,
        XattrMode::Any
    )));
    assert!(exceeded(v.symlink("x".repeat(4000), "/home/link")));
    v.symlink("short", "/home/short").expect("in the inode");
    v.remove_file("/home/sparse").expect("removed");
    v.write("/home/more", vec![1; 200_000]).expect("room again");
    v.close().expect("closed");
    f.assert_right();
    // Inodes; and a change of owner needs room.
    for which in 0..3 {
        let (_, inodes) = f.used(which);
        f.set(which, |e| {
            e.bhardlimit.set(0);
            e.ihardlimit.set(inodes + 2);
        });
        let v = open_as(&f.image, 0);
        for n in 0..5 {
            let path = format!("/home/give{which}-{n}");
            v.write(&path, vec![1; 10_000]).expect("root has no limit");
            let given = match which {
                0 => v.chown(&path, Some(USER), None),
                1 => v.chown(&path, None, Some(USER)),
                _ => set_project(&v, &path, USER),
            };
            assert_eq!(exceeded(given), n >= 2, "{path}");
        }
        v.close().expect("closed");
        f.set(which, |e| e.ihardlimit.set(0));
        f.assert_right();
    }
}

#[test]
fn linux_counts_on() {
    if !tools() || !uml::available() {
        return;
    }
    let mut rng = SplitMix64::new(common::seed(0x11A6));
    // Linux 6.1 of user-mode-linux has neither casefolding nor compression.
    let f = Fixture::new("extra_attr,project_quota,quota,inode_checksum,inode_crtime");
    let v = open_as(&f.image, 0);
    work(&v, &mut rng, 300);
    v.close().expect("closed");
    f.assert_right();
    let out = f.image.with_file_name("out");
    std::fs::create_dir(&out).expect("a directory");
    let script = "attach a\n\
        cp -r /usr/lib/uml/modules/*/kernel/fs/f2fs /mnt/a/home/linux\n\
        chown -R 1000:70000 /mnt/a/home/linux\n\
        for n in 1 2 3 4 5; do echo $n > /mnt/a/home/k$n; chown $((n * 99)):$n /mnt/a/home/k$n; done\n\
        rm -f /mnt/a/home/f1*\n\
        umount /mnt/a";
    uml::run(&out, &[&f.image], script, Duration::from_secs(100));
    let dmesg = std::fs::read_to_string(out.join("dmesg")).expect("written");
    for line in dmesg.lines().filter(|l| l.contains("F2FS-fs")) {
        let fine = ["Mounted with checkpoint", "nat_bits"];
        assert!(fine.iter().any(|f| line.contains(f)), "{line}");
    }
    f.assert_right();
    let v = open_as(&f.image, 0);
    work(&v, &mut rng, 300);
    v.close().expect("closed");
    f.assert_right();
}

#[test]
fn cleaning_moves_quota_files_too() {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    common::mkfs_f2fs(&image, "extra_attr,project_quota,quota", 100 << 20);
    let f = Fixture { _dir: dir, image };
    let mut rng = SplitMix64::new(common::seed(0xC1EA));
    let mut options = VolumeOptions::default();
    options.parts.f2fs.mode = blockwright_f2fs::Mode::Lfs;
    let v = options.open(&f.image).expect("opens");
    v.create_dir("/home").expect("made");
    // Nearly full, then holes everywhere: sections are cleaned, those with quota blocks among them.
    let mut files = 0;
    let room = |v: &Volume| v.statfs().expect("statfs").blocks_free * 4096;
    while room(&v) > 4 << 20 {
        let path = format!("/home/f{files}");
        v.write(&path, vec![files as u8; 150_000]).expect("written");
        v.chown(&path, Some(files), Some(7 * files)).expect("given");
        files += 1;
    }
    for round in 0..1500u64 {
        let n = below(&mut rng, u64::from(files));
        let path = format!("/home/f{n}");
        v.write(&path, vec![round as u8; below(&mut rng, 150_000) as usize])
            .expect("written");
        if round % 50 == 0 {
            v.sync().expect("synced");
        }
    }
    let moved = v.vfs().stats().get("moved_data_blocks");
    assert!(
        moved.is_some_and(|n| n > 0),
        "nothing was cleaned: {moved:?}"
    );
    v.close().expect("closed");
    f.assert_right();
}

/// Quota files that are too short for what is to be counted: a repair gives them blocks, and nodes where they need them.
#[test]
fn files_that_must_grow_are_repaired() {
    if !tools() {
        return;
    }
    // So many owners that the files' blocks fit their inodes, and so many that they do not.
    for (owners, inline) in [(400u32, false), (400, true), (2600, false)] {
        let f = Fixture::new("extra_attr,project_quota,quota,inode_checksum");
        let v = open_as(&f.image, 0);
        for n in 0..owners {
            let path = format!("/home/n{n}");
            v.write(&path, b"n").expect("written");
            let id = n.wrapping_mul(1_000_003);
            v.chown(&path, Some(id), Some(id)).expect("given");
            set_project(&v, &path, id).expect("set");
        }
        v.close().expect("closed");
        f.assert_right();
        f.set(0, |e| e.bhardlimit.set(5000));
        let blocks: Vec<u64> = (0..3).map(|which| f.shorten(which, inline)).collect();
        assert!(
            blocks.iter().all(|n| (*n > 1018) == (owners > 400)),
            "{blocks:?}"
        );
        let told = f.check(Mode::ReadOnly);
        assert!(told.iter().any(|i| i.contains("quota file")), "{told:#?}");
        if owners == 400 && !inline {
            f.repair_cut_anywhere();
        }
        f.check(Mode::Yes);
        f.assert_right();
        // What could be read of limits is kept, and who mounts it counts on.
        let (_, e) = f.find(0, USER);
        assert_eq!(e.bhardlimit.get(), if inline { 0 } else { 5000 });
        let v = open_as(&f.image, USER);
        v.write("/home/more", vec![1; 50_000]).expect("written");
        v.close().expect("closed");
        f.assert_right();
    }
}

impl Fixture {
    /// Takes all but the first two blocks from a quota file, without a change of any count. Returns how many
    /// it had.
    fn shorten(&self, which: usize, inline: bool) -> u64 {
        let volume = Volume::open_read_only(&self.image).expect("opens");
        let engine = volume.vfs().engine().as_any();
        let fs = engine.downcast_ref::<F2fs>().expect("f2fs").fs();
        let ino = Ino(fs.volume.sb.raw.qf_ino[which].get());
        let at = u64::from(fs.nodes.nat.get(ino.nid()).expect("a node").block.0) << 12;
        let mut block = vec![0; 4096];
        let image = std::fs::File::open(&self.image).expect("opens");
        image.read_exact_at(&mut block, at).expect("read");
        let mut inode = Inode::parse(&block, ino, &fs.volume.geo).expect("an inode");
        let had = inode.size.div_ceil(4096);
        let words = inode.layout(fs.volume.geo.features).address_bytes();
        block[words.start + 8..words.end].fill(0);
        inode.nids = Default::default();
        inode.size = 8192;
        inode.blocks = 3;
        if inline {
            inode.inline |= InlineFlags::DATA | InlineFlags::DATA_EXIST;
            inode.size = 100;
        }
        inode.encode_into(&mut block).expect("encoded");
        set_checksum(&mut block, ino, &fs.volume.geo);
        drop(volume);
        self.write(&block, at);
        had
    }

    /// A repair that is cut short leaves the volume repaired, or so that it can be.
    fn repair_cut_anywhere(&self) {
        let memory = MemoryDevice::load(&self.image).expect("loaded");
        let recording = Arc::new(RecordingDevice::new(&memory));
        let check = |device: SharedDevice, mode| {
            let options = check::CheckOptions {
                mode,
                ..check::CheckOptions::default()
            };
            check::check(device, &options).expect("checked")
        };
        check(recording.clone(), Mode::Yes);
        let log = recording.log_len();
        let (mut old, mut new) = (0, 0);
        for at in 0..=log {
            for policy in [CrashPolicy::AllKept, CrashPolicy::NoneKept] {
                let image: SharedDevice = Arc::new(recording.image_at(at, policy));
                if check(image.clone(), Mode::ReadOnly).is_clean() {
                    new += 1;
                    continue;
                }
                old += 1;
                check(image.clone(), Mode::Yes);
                let left = check(image, Mode::ReadOnly).issues;
                assert!(left.is_empty(), "cut at {at} of {log}: {left:#?}");
            }
        }
        assert!(old > 0 && new > 0, "{old} {new}");
    }
}
