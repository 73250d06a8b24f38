//! Which of two checkpoint packs counts: the newer one that was written whole, whatever its fields say.
//!
//! A pack is written whole if both its ends have right checksums and one version. The other pack is older: a volume that
//! went back to it would silently lose all that was synced since. So a newest pack with fields that cannot be makes a volume
//! that no mount takes (Linux: "Failed sanity check"), and that a check repairs.

use blockwright_test_support::lab::f2fs as lab;
use blockwright_test_support::uml;

use blockwright::{ErrorKind, Volume};
use blockwright_check::Mode;
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, RawCheckpoint, checksum};
use lab::F2Volume;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromBytes;

/// A volume that was synced with `/older`, then with `/newer`, and lost power.
fn synced_twice() -> F2Volume {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let shared = Arc::clone(&device) as SharedDevice;
    blockwright_mkfs::f2fs::format(&shared, &Default::default()).expect("formatted");
    let v = Volume::open_device(shared).expect("opens");
    for name in ["/older", "/newer"] {
        v.write(name, vec![7; 9000]).expect("written");
        v.sync().expect("synced");
    }
    let copy = device.snapshot();
    drop(v);
    F2Volume::new(copy)
}

/// Changes the head of the newest pack, and writes it to both ends with the right checksum.
fn edit_newest(v: &F2Volume, edit: &dyn Fn(&mut RawCheckpoint)) {
    let start = v.geo.pack_start(v.pack.which).0;
    let total = v.pack.checkpoint.raw.cp_pack_total_block_count.get();
    let mut head = v.block(BlockAddr(start));
    let (raw, _) = RawCheckpoint::mut_from_prefix(&mut head).expect("long enough");
    edit(raw);
    let offset = raw.checksum_offset.get() as usize;
    if let Some(sum) = checksum::checkpoint(&head[..BLOCK_SIZE], offset) {
        head[offset..offset + 4].copy_from_slice(&sum.to_le_bytes());
    }
    v.put(BlockAddr(start), &head);
    v.put(BlockAddr(start + total - 1), &head);
}

const BOTH: &str = "newer older";

/// What the engine shows, or why it refuses.
fn names(device: &MemoryDevice) -> Result<String, String> {
    let shared: SharedDevice = Arc::new(device.snapshot());
    let v = match Volume::options().read_only(true).open_device(shared) {
        Ok(v) => v,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
            return Err(e.to_string());
        }
    };
    let names = v.read_dir("/").expect("listed");
    let name = |e: blockwright::DirEntry| e.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = names.map(|e| name(e.expect("an entry"))).collect();
    names.sort();
    Ok(names.join(" "))
}

type Edit = (&'static str, Box<dyn Fn(&mut RawCheckpoint)>);

fn edits(v: &F2Volume) -> Vec<Edit> {
    let main = v.geo.main_segments;
    let blocks = v.geo.main_blocks();
    let nids = v.geo.nids();
    let mut all: Vec<Edit> = Vec::new();
    macro_rules! edits {
        ($($what:literal: $field:ident $([$n:literal])? = $value:expr;)*) => {
            $(all.push(($what, Box::new(move |cp| cp.$field $([$n])? .set($value))));)*
        };
    }
    edits! {
        "nothing": ckpt_flags = 0;
        "no reserved segments": rsvd_segment_count = 0;
        "more reserved segments than there are": rsvd_segment_count = main + 1;
        "no over-provisioned segments": overprov_segment_count = 0;
        "more over-provisioned segments than there are": overprov_segment_count = main + 1;
        "more free segments than there are": free_segment_count = main + 1;
        "no blocks for users": user_block_count = 0;
        "more blocks for users than there are": user_block_count = blocks + 1;
        "more blocks in use than users have": valid_block_count = blocks;
        "as many nodes as there are numbers": valid_node_count = nids;
        "more inodes than nodes": valid_inode_count = nids - 1;
        "a next free node that cannot be": next_free_nid = nids + 1;
        "a log outside of the volume": cur_node_segno[0] = main;
        "a log behind its segment": cur_data_blkoff[0] = 512;
        "summaries in the head": cp_pack_start_sum = 0;
        "summaries behind the pack": cp_pack_start_sum = 600;
    }
    all
}

#[test]
fn a_newest_pack_that_cannot_be_is_refused_as_linux_refuses_it() {
    if !uml::available() {
        return;
    }
    let base = synced_twice();
    let dir = tempfile::tempdir().expect("a directory");
    let mut images: Vec<(&str, PathBuf, MemoryDevice)> = Vec::new();
    for (n, (what, edit)) in edits(&base).into_iter().enumerate() {
        let v = base.copy();
        edit_newest(&v, &*edit);
        let path = dir.path().join(format!("{n}.img"));
        v.device.save(&path).expect("saved");
        images.push((what, path, v.device));
    }
    let out = dir.path().join("out");
    std::fs::create_dir(&out).expect("a directory");
    let paths: Vec<&std::path::Path> = images.iter().map(|(_, path, _)| path.as_path()).collect();
    let letters: Vec<char> = ('a'..).take(images.len()).collect();
    let script = letters
        .iter()
        .map(|x| {
            format!(
                "if attach {x} ro,norecovery 2> /dev/null; then echo {x} $(ls /mnt/{x} | tr '\\n' ' '); umount /mnt/{x}; else echo {x} refused; fi\n"
            )
        })
        .collect::<String>();
    let said = uml::run(&out, &paths, &script, Duration::from_secs(100));
    assert_eq!(said.lines().count(), images.len(), "{said}");
    for ((what, _, device), linux) in images.iter().zip(said.lines()) {
        let ours = names(device).unwrap_or_else(|_| "refused".to_owned());
        let linux = linux[2..].trim();
        // Linux does not look at these counts. It never goes back to the older pack.
        let more = [
            "more over-provisioned segments than there are",
            "more free segments than there are",
            "more inodes than nodes",
            "a next free node that cannot be",
        ];
        match more.contains(what) {
            true => assert_eq!((linux, &*ours), (BOTH, "refused"), "{what}"),
            false => assert_eq!(linux, ours, "{what}"),
        }
        let report = lab::verify_f2fs(device).expect("checked");
        let found = lab::show(&report);
        assert_eq!(report.is_clean(), ours == BOTH, "{what}: {found}");
        let (report, after) = lab::repair_f2fs(device, Mode::Yes);
        let report = report.expect("repaired");
        assert!(!report.has_uncorrected(), "{what}: {}", lab::show(&report));
        assert_eq!(names(&after).as_deref(), Ok(BOTH), "{what}: {found}");
        let again = lab::verify_f2fs(&after).expect("checked");
        assert!(again.is_clean(), "{what}: {}", lab::show(&again));
    }
}

/// What cannot be mended is told of, and only then the older pack is taken.
#[test]
fn a_newest_pack_that_cannot_be_mended_is_named() {
    let v = synced_twice();
    edit_newest(&v, &|cp| {
        cp.ckpt_flags
            .set(cp.ckpt_flags.get() | CheckpointFlags::ORPHAN_PRESENT.bits());
        cp.cp_pack_start_sum.set(600);
    });
    let refused = names(&v.device).expect_err("refused");
    assert!(refused.contains("summaries at block 600"), "{refused}");
    let report = lab::verify_f2fs(&v.device).expect("checked");
    assert!(!report.is_clean());
    assert!(
        lab::names(&report).contains(&"CheckpointImpossible".to_owned()),
        "{}",
        lab::show(&report)
    );
    let (report, after) = lab::repair_f2fs(&v.device, Mode::Yes);
    let report = report.expect("repaired");
    assert!(!report.has_uncorrected(), "{}", lab::show(&report));
    assert_eq!(names(&after).as_deref(), Ok("older"));
    let again = lab::verify_f2fs(&after).expect("checked");
    assert!(again.is_clean(), "{}", lab::show(&again));
}

/// A pack that was not written whole is none: the other one counts, and nothing is wrong.
#[test]
fn a_pack_that_was_not_written_whole_does_not_count() {
    let v = synced_twice();
    let start = v.geo.pack_start(v.pack.which).0;
    let total = v.pack.checkpoint.raw.cp_pack_total_block_count.get();
    v.edit(BlockAddr(start + total - 1), |b| b[100] ^= 1);
    assert_eq!(names(&v.device).as_deref(), Ok("older"));
    let report = lab::verify_f2fs(&v.device).expect("checked");
    assert!(report.is_clean(), "{}", lab::show(&report));
}
