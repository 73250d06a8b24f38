//! Empty f2fs volumes: the same places and sizes as mkfs.f2fs chooses, and nothing for fsck.f2fs to
//! say.
//!
//! Skipped (loudly) where the tools are missing; under `CI` that is a failure.

use blockwright_device::{HostDevice, OpenMode};
use blockwright_mkfs::f2fs::{FormatOptions, format};
use blockwright_mkfs::{Before, MkfsError};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Checkpoint, Log, RawSuperblock, Superblock};
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether the tools are there; a missing tool fails under CI.
fn tools() -> bool {
    blockwright_oracles::have(&["mkfs.f2fs", "fsck.f2fs"])
}

fn run(program: &str, args: &[&str]) -> (bool, String) {
    let out = Command::new("timeout")
        .args(["-k", "5", "60", program])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = [out.stdout, out.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (out.status.success(), text)
}

/// fsck.f2fs changes nothing and finds nothing.
fn fsck(path: &Path) {
    let (ok, text) = run("fsck.f2fs", &["--dry-run", "-f", path.to_str().unwrap()]);
    let bad = ["[Fail]", "[FIX]", "[ASSERT]", "corrupted"];
    let lines = text
        .lines()
        .filter(|l| bad.iter().any(|b| l.contains(b)) && !l.contains("other corrupted bugs"));
    let found: Vec<_> = lines.collect();
    assert!(ok && found.is_empty(), "{found:?}\n{text}");
}

fn sparse(path: &Path, bytes: u64) {
    let _old = std::fs::remove_file(path);
    std::fs::File::create(path).unwrap().set_len(bytes).unwrap();
}

/// Both heads of a volume's metadata.
fn heads(path: &Path) -> (RawSuperblock, Checkpoint) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(path).unwrap();
    let read = |block: u64, count: usize| {
        let mut bytes = vec![0; count * BLOCK_SIZE];
        file.read_exact_at(&mut bytes, block * 4096).unwrap();
        bytes
    };
    let bytes = file.metadata().unwrap().len();
    let sb = Superblock::parse(&read(0, 1), Some(bytes)).unwrap();
    let again = Superblock::parse(&read(1, 1), Some(bytes)).unwrap();
    assert_eq!(again.geo, sb.geo);
    let at = u64::from(sb.geo.cp.0);
    let cp = Checkpoint::parse(&read(at, 1 + sb.geo.cp_payload as usize), &sb.geo).unwrap();
    (sb.raw, cp)
}

/// What every tool must write alike.
fn comparable(path: &Path) -> (Vec<u8>, Vec<u64>) {
    let (mut raw, cp) = heads(path);
    raw.uuid = [0; 16];
    raw.version = [0; 256];
    raw.init_version = [0; 256];
    raw.crc.set(0);
    // mkfs.f2fs 1.15 forgets the encoding unless it is given.
    raw.s_encoding.set(0);
    let c = &cp.raw;
    let mut numbers = vec![
        c.user_block_count.get(),
        c.valid_block_count.get(),
        u64::from(c.rsvd_segment_count.get()),
        u64::from(c.overprov_segment_count.get()),
        u64::from(c.free_segment_count.get()),
        u64::from(c.valid_node_count.get()),
        u64::from(c.valid_inode_count.get()),
        u64::from(c.next_free_nid.get()),
        u64::from(c.ckpt_flags.get()),
        u64::from(c.cp_pack_total_block_count.get()),
    ];
    for log in Log::ALL {
        let head = c.log(log);
        numbers.extend([u64::from(head.segment.0), u64::from(head.offset)]);
    }
    (raw.to_bytes().to_vec(), numbers)
}

fn ours(path: &Path, bytes: u64, change: impl Fn(&mut FormatOptions)) -> Result<(), MkfsError> {
    sparse(path, bytes);
    let mut options = FormatOptions {
        uuid: Some([7; 16]),
        now: 1_700_000_000,
        before: Before::Zeroes,
        ..Default::default()
    };
    change(&mut options);
    let device = HostDevice::open(path, OpenMode::default()).unwrap();
    format(&device, &options).map(|_| ())
}

/// The places and values that differ, for a message that can be read.
fn differences(mine: &Path, theirs: &Path) -> Vec<String> {
    let ((a, x), (b, y)) = (comparable(mine), comparable(theirs));
    let bytes = a.iter().zip(&b).enumerate().filter(|(_, (a, b))| a != b);
    let mut out: Vec<String> = bytes
        .map(|(at, (a, b))| format!("superblock byte {at}: {a} here, {b} there"))
        .collect();
    let numbers = x.iter().zip(&y).enumerate().filter(|(_, (a, b))| a != b);
    out.extend(numbers.map(|(at, (a, b))| format!("checkpoint number {at}: {a} here, {b} there")));
    out
}

const MIB: u64 = 1 << 20;

/// Sizes at and around every change of a formula that could be found.
fn sizes() -> Vec<u64> {
    let mut out: Vec<u64> = (40..130).step_by(2).map(|m| m * MIB).collect();
    out.extend((130..1100).step_by(37).map(|m| m * MIB));
    out.extend([511, 512, 513, 514, 515, 516, 518, 519, 521, 530].map(|m| m * MIB));
    out.extend([1, 2, 3, 7, 15, 33, 64, 100, 127, 255, 256, 1000].map(|g| g << 30));
    out.extend([
        100 * MIB + 512,
        100 * MIB + 4096,
        101 * MIB - 4096,
        1 << 40,
        (3 << 40) + 4096,
    ]);
    out
}

#[test]
fn the_same_layout_as_mkfs_f2fs_at_many_sizes() {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mine, theirs) = (dir.path().join("mine"), dir.path().join("theirs"));
    let mut compared = 0;
    for bytes in sizes() {
        sparse(&theirs, bytes);
        // Discarding a sparse file takes as long as it is large.
        let (ok, text) = run("mkfs.f2fs", &["-q", "-f", theirs.to_str().unwrap()]);
        let made = ours(&mine, bytes, |_| ());
        assert_eq!(ok, made.is_ok(), "{bytes} bytes: {made:?}\n{text}");
        if ok {
            let found = differences(&mine, &theirs);
            assert!(found.is_empty(), "{bytes} bytes: {found:?}");
            compared += 1;
        }
    }
    assert!(compared > 80, "{compared}");
}

#[test]
fn the_same_layout_with_features() {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mine, theirs) = (dir.path().join("mine"), dir.path().join("theirs"));
    let android = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,\
                   flexible_inline_xattr,verity,casefold,compression";
    for features in [
        "extra_attr",
        "encrypt,verity",
        "extra_attr,inode_checksum,inode_crtime",
        "lost_found",
        "sb_checksum",
        android,
    ] {
        let features = features.to_owned();
        sparse(&theirs, 200 * MIB);
        let all = [
            "-q",
            "-f",
            "-l",
            "a label",
            "-O",
            &features,
            theirs.to_str().unwrap(),
        ];
        let (ok, text) = run("mkfs.f2fs", &all);
        assert!(ok, "{text}");
        ours(&mine, 200 * MIB, |o| {
            o.features = features.clone();
            o.label = "a label".into();
        })
        .unwrap();
        fsck(&mine);
        let mut found = differences(&mine, &theirs);
        if features == android {
            // Our quota file is in the log of ordinary files; what follows from that is not compared.
            found.retain(|d| d.starts_with("superblock"));
        }
        assert!(found.is_empty(), "{features}: {found:?}");
    }
}

#[test]
fn empty_volumes_pass_fsck() {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for (bytes, features) in [
        (52 * MIB, ""),
        (100 * MIB, "extra_attr,quota,project_quota,lost_found"),
        (3 << 30, "quota"),
        (64 << 30, "sb_checksum,lost_found"),
        (5 << 40, ""),
    ] {
        ours(&path, bytes, |o| o.features = features.into()).unwrap();
        fsck(&path);
        let allocated = std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
        assert!(
            allocated < 2 * MIB,
            "{bytes} bytes: {allocated} are not sparse"
        );
    }
}

#[test]
fn the_same_options_make_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let features = |o: &mut FormatOptions| o.features = "extra_attr,inode_crtime,quota".into();
    ours(&a, 60 * MIB, features).unwrap();
    ours(&b, 60 * MIB, features).unwrap();
    assert!(std::fs::read(&a).unwrap() == std::fs::read(&b).unwrap());
}

#[test]
fn what_the_device_held_before_does_not_show() {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, vec![0xA5u8; 60 << 20]).unwrap();
    let options = FormatOptions {
        features: "quota,lost_found".into(),
        ..Default::default()
    };
    let device = HostDevice::open(&path, OpenMode::default()).unwrap();
    format(&device, &options).unwrap();
    drop(device);
    fsck(&path);
}
