//! Damage of kinds that the runs cannot make: what the engine refuses, the checker names; volumes of other systems.

use super::image::{self, Image};
use super::lab::f2fs::{F2Volume, clean, repair_f2fs, show as show_f2fs, verify_f2fs};
use super::lab::{Lab, repair, show, verify};
use super::{f2fs, tools, trees};
use blockwright::{ErrorKind, Volume, VolumeBuilder};
use blockwright_check::Mode;
use blockwright_check::f2fs::IssueKind;
use blockwright_device::MemoryDevice;
use blockwright_ondisk::f2fs::inode::{Advise, RawExtra, RawInodeHead, WORDS_OFFSET};
use blockwright_ondisk::f2fs::superblock::RawSuperblock;
use blockwright_ondisk::f2fs::{BlockAddr, Ino, InodeFlags, Nid};
use std::mem::offset_of;
use std::sync::Arc;

const JOURNAL_MAGIC: u32 = 0xC03B_3998;
/// Descriptors, commit blocks, blocks of revocations.
pub const LOG_BLOCKS: [u32; 3] = [1, 2, 5];

/// A volume whose journal holds several transactions, one with revocations.
pub fn with_a_journal_to_replay(features: &str) -> Image {
    to_replay(&image::make(features))
}

/// The same with a journal that has room for blocks of fast commits beside the log.
pub fn with_fast_commits_to_replay() -> Image {
    let builder = VolumeBuilder::new().features("fast_commit");
    to_replay(&image::make_of(builder.journal_bytes(2 << 20)))
}

fn to_replay(good: &Image) -> Image {
    let device = good.device();
    let v = Volume::open_device(device.clone()).expect("opens");
    for round in 0..4 {
        let dir = format!("/in-the-journal-{round}");
        v.create_dir(&dir).expect("made");
        v.sync().expect("durable");
        v.remove_dir(&dir).expect("removed");
        v.sync().expect("durable");
    }
    let copy = Image(device.to_vec());
    v.close().expect("closed");
    copy
}

/// The journal's blocks of a kind, by their heads.
pub fn journal_blocks(image: &Image, kind: u32) -> Vec<usize> {
    let start = image.journal();
    (1..200)
        .map(|n| start + n * image::BLOCK)
        .filter(|at| image.u32(*at).swap_bytes() == JOURNAL_MAGIC)
        .filter(|at| image.u32(*at + 4).swap_bytes() == kind)
        .collect()
}

/// Whatever the engine says of the journal, the checker says, too; and repairs it.
fn judged_alike(what: &str, image: &Image) -> bool {
    let opened = Volume::options()
        .read_only(true)
        .open_device(image.device());
    let refused = opened
        .as_ref()
        .is_err_and(|e| e.kind() == ErrorKind::Corrupt);
    drop(opened);
    let report = verify(&image.0).expect("checked");
    assert!(
        !refused || !report.is_clean(),
        "{what}: the engine refuses it\n{}",
        show(&report)
    );
    let (report, after) = repair(&image.0, Mode::Yes);
    let report = report.expect("repaired");
    assert!(!report.has_uncorrected(), "{what}: {}", show(&report));
    let tree = trees::read(&MemoryDevice::from_image(&after));
    assert!(tree.is_ok_and(|t| t.errors.is_empty()), "{what}");
    refused
}

#[test]
fn damaged_transactions_are_named() {
    let mut refused = 0;
    for features in ["", "^metadata_csum"] {
        let good = with_a_journal_to_replay(features);
        assert!(!judged_alike(features, &good));
        for (kind, at, name) in [
            (2, 0x10, "checksum of a commit block"),
            (2, 0x38, "time of a commit block"),
            (5, 0x0C, "count of revocations"),
            (5, 0x14, "revoked block"),
            (1, 0x0C, "block of a tag"),
            (1, 0x12, "flags of a tag"),
        ] {
            let blocks = journal_blocks(&good, kind);
            for (n, block) in blocks.iter().enumerate() {
                let mut bad = good.clone();
                bad.put32(block + at, 0xFFFF_FFF0u32.swap_bytes());
                let what = format!("{features:?}, {name}, the one at {n} of {}", blocks.len());
                refused += u32::from(judged_alike(&what, &bad));
            }
        }
    }
    assert!(refused > 8, "{refused}");
}

/// Inodes of the Hurd have a translator's block where others have half of the version.
#[test]
fn volumes_of_the_hurd_are_only_read() {
    if !super::lab::tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab
        .make("4M", &["-t", "ext2", "-b", "1024", "-o", "hurd"])
        .expect("made");
    let report = verify(&image).expect("checked");
    assert!(report.is_clean(), "{}", show(&report));
    let device = || Arc::new(MemoryDevice::from_image(&image));
    let v = Volume::open_device(device()).expect("opens");
    assert!(v.is_read_only());
    let e = v.write("/new", b"x").expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::ReadOnly);
    drop(v);
    let v = Volume::options()
        .read_only(true)
        .open_device(device())
        .expect("opens");
    assert_eq!(v.read("/a").expect("read"), b"hello\n");
}

/// The compressed files of a volume that Linux filled.
fn compressed() -> (F2Volume, Vec<Ino>) {
    let v = f2fs::by_linux(0);
    let files = (4..455).filter(|nid| {
        let entry = v.nat_entry(Nid(*nid));
        let is_inode = !entry.is_free() && entry.ino.0 == *nid;
        is_inode && v.inode(Ino(*nid)).0.flags.contains(InodeFlags::COMPRESS)
    });
    let files = files.map(Ino).collect();
    (v, files)
}

/// What cannot be unpacked is told of, and stays as it is: it is damage of one file's contents, not of the volume.
#[test]
fn compressed_contents_are_looked_at() {
    if !super::lab::f2fs::f2fs_tools() {
        return;
    }
    let (base, files) = compressed();
    let contents = |report: &blockwright_check::f2fs::Report| {
        let of = |kind: &IssueKind| match kind {
            IssueKind::CompressContents { ino, count, .. } => Some((*ino, *count)),
            _ => None,
        };
        let all: Vec<_> = report.issues.iter().filter_map(|i| of(&i.kind)).collect();
        all
    };
    let mut tried = 0;
    for ino in files {
        let addresses = base.addresses(ino);
        let mark = addresses.iter().position(|a| *a == BlockAddr::COMPRESSED);
        let Some(mark) = mark else { continue };
        tried += 1;
        let first = addresses[mark + 1];
        type Damage<'a> = (&'a str, &'a dyn Fn(&F2Volume));
        let damages: [Damage<'_>; 3] = [
            ("a length beyond the blocks", &|v| {
                v.edit(first, |b| b[..4].copy_from_slice(&u32::MAX.to_le_bytes()));
            }),
            ("data of zeroes", &|v| v.edit(first, |b| b[24..].fill(0))),
            ("another algorithm", &|v| {
                v.edit_node(ino.nid(), |b| {
                    let at = WORDS_OFFSET + offset_of!(RawExtra, compress_algorithm);
                    // LZ4 for LZO, Zstandard for LZ4, and so on.
                    b[at] = (b[at] + 1) % 4;
                });
            }),
        ];
        for (what, damage) in damages {
            let v = base.copy();
            damage(&v);
            let tree = trees::read(&v.device).expect("opens");
            let report = verify_f2fs(&v.device).expect("checked");
            let text = show_f2fs(&report);
            assert!(report.is_clean(), "{what}: {text}");
            assert_eq!(
                !tree.errors.is_empty(),
                contents(&report).iter().any(|(i, n)| *i == ino && *n > 0),
                "{what}: {:?}\n{text}",
                tree.errors
            );
            let (report, after) = repair_f2fs(&v.device, Mode::Yes);
            let report = report.expect("checked");
            assert!(!report.changed, "{what}");
            assert_eq!(
                contents(&report).len(),
                usize::from(!tree.errors.is_empty())
            );
            assert!(after.to_vec() == v.device.to_vec(), "{what}");
        }
        let v = base.copy();
        v.edit(first, |b| b[24..].fill(0));
        assert!(!contents(&verify_f2fs(&v.device).expect("checked")).is_empty());
    }
    assert!(tried > 0);
    assert!(contents(&verify_f2fs(&base.device).expect("checked")).is_empty());
}

#[test]
fn impossible_compressed_clusters_are_named_and_repaired() {
    if !super::lab::f2fs::f2fs_tools() {
        return;
    }
    let (base, files) = compressed();
    assert!(!files.is_empty());
    let before = trees::read(&base.device).expect("opens");
    let mut tried = 0;
    for ino in files {
        let addresses = base.addresses(ino);
        let mark = addresses.iter().position(|a| *a == BlockAddr::COMPRESSED);
        let Some(mark) = mark else { continue };
        tried += 1;
        let stored = addresses[mark + 1];
        let last = mark + base.inode(ino).0.cluster_blocks() - 1;
        for (what, value, at) in [
            ("no block behind the mark", BlockAddr::NULL, mark + 1),
            ("a block behind the data's end", stored, mark + 3),
            ("an address outside of the volume", BlockAddr(1), last),
            ("a mark within a cluster", BlockAddr::COMPRESSED, last),
        ] {
            let behind = at > mark + 1;
            if behind && addresses[at - 1..=at].iter().any(|a| a.is_stored()) {
                continue;
            }
            let v = base.copy();
            let place = v.address_at(ino, at);
            v.edit_node(ino.nid(), |b| {
                b[place..place + 4].copy_from_slice(&value.0.to_le_bytes());
            });
            let tree = trees::read(&v.device).expect("opens");
            let report = verify_f2fs(&v.device).expect("checked");
            let text = show_f2fs(&report);
            assert_eq!(
                !tree.errors.is_empty(),
                ["cluster", "outside", "marked as compressed"]
                    .iter()
                    .any(|w| text.contains(w)),
                "{what}: {:?}\n{text}",
                tree.errors
            );
            let (report, after) = repair_f2fs(&v.device, Mode::Yes);
            let report = report.expect("repaired");
            assert!(!report.has_uncorrected(), "{what}: {}", show_f2fs(&report));
            let tree = trees::read(&after).expect("opens");
            assert!(tree.errors.is_empty(), "{what}: {:?}", tree.errors);
            let lost = trees::lost(&before, &tree, &before);
            assert!(lost.is_empty() == behind, "{what}: {lost:?}");
            let again = verify_f2fs(&after).expect("checked");
            assert!(again.is_clean(), "{what}: {}", show_f2fs(&again));
            let dir = tools::scratch();
            let path = dir.path().join("f2fs.img");
            after.save(&path).expect("saved");
            let (code, said) = tools::run("fsck.f2fs", &["--dry-run", "-f"], &path);
            assert!(clean(code, &said), "{what}: {code}: {said}");
        }
        let v = base.copy();
        v.edit_node(ino.nid(), |b| {
            b[WORDS_OFFSET + offset_of!(RawExtra, compress_algorithm)] = 200;
        });
        let report = verify_f2fs(&v.device).expect("checked");
        let text = show_f2fs(&report);
        assert!(!report.is_clean() && text.contains("200"), "{text}");
        // Where clusters begin is not known then: nothing of them is dropped.
        for log in [0, 1, 9, 255] {
            let v = base.copy();
            v.edit_node(ino.nid(), |b| {
                b[WORDS_OFFSET + offset_of!(RawExtra, log_cluster_size)] = log;
            });
            let named = |report: &blockwright_check::f2fs::Report| {
                let is = |kind: &IssueKind| matches!(kind, IssueKind::CompressClusterSize { .. });
                report.issues.iter().any(|i| is(&i.kind))
            };
            assert!(named(&verify_f2fs(&v.device).expect("checked")));
            let (report, after) = repair_f2fs(&v.device, Mode::Yes);
            let report = report.expect("checked");
            assert!(named(&report) && report.has_uncorrected());
            let after = F2Volume::new(after.snapshot());
            assert_eq!(
                after.addresses(ino),
                addresses,
                "{log}: {}",
                show_f2fs(&report)
            );
        }
    }
    assert!(tried > 0);
}

/// Linux refuses this inode. So does the engine where it writes the volume; where it only reads, it shows what is there.
fn refused_where_written(v: &F2Volume, path: &str, ino: Ino, why: &str) {
    let open = |read_only| {
        Volume::options()
            .read_only(read_only)
            .open_device(Arc::new(v.device.snapshot()))
            .expect("opens")
    };
    let written = open(false);
    let e = written.symlink_metadata(path).expect_err("refused");
    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
    let text = e.to_string();
    assert!(
        text.contains(why) && text.contains(&format!("inode {ino}:")),
        "{text}"
    );
    // The others are there, and the volume continues.
    written.write("/another", b"file").expect("written");
    written.close().expect("closed");
    open(true).symlink_metadata(path).expect("shown");
}

/// Inodes that are to be compressed, and nothing of them is yet. The kernel refuses one whose algorithm or cluster size is none.
#[test]
fn impossible_compression_is_named_where_nothing_is_compressed() {
    if !super::lab::f2fs::f2fs_tools() {
        return;
    }
    let lab = super::lab::f2fs::F2Lab::new();
    let base = lab.volume(&["-O", "extra_attr,compression"]);
    let tree = trees::read(&base.device).expect("opens");
    let extra = |at: usize| WORDS_OFFSET + at;
    let algorithm = extra(offset_of!(RawExtra, compress_algorithm));
    let log = extra(offset_of!(RawExtra, log_cluster_size));
    let flags = offset_of!(RawInodeHead, flags);
    for path in ["/dir", "/dir/sub/middle", "/link"] {
        let ino = Ino(tree.nodes[std::path::Path::new(path)].ino as u32);
        for (how, by, size) in [
            ("can be", 2, 2),
            ("algorithm", 200, 2),
            ("small", 2, 1),
            ("large", 2, 9),
        ] {
            let damage = |v: &F2Volume, ino: Ino| {
                v.edit_node(ino.nid(), |b| {
                    b[flags] |= InodeFlags::COMPRESS.bits() as u8;
                    (b[algorithm], b[log]) = (by, size);
                });
            };
            let v = base.copy();
            damage(&v, ino);
            let shown = trees::read(&v.device).expect("opens");
            assert_eq!(shown.nodes, tree.nodes, "{path}, {how}");
            match how {
                "can be" => {}
                "algorithm" => refused_where_written(&v, path, ino, "compression algorithm 200"),
                _ => refused_where_written(&v, path, ino, "compressed clusters of 2^"),
            }
            let report = verify_f2fs(&v.device).expect("checked");
            let text = show_f2fs(&report);
            assert_eq!(report.is_clean(), how == "can be", "{path}, {how}: {text}");
            let (report, after) = repair_f2fs(&v.device, Mode::Yes);
            let report = report.expect("repaired");
            assert!(
                !report.has_uncorrected(),
                "{path}, {how}: {}",
                show_f2fs(&report)
            );
            let again = verify_f2fs(&after).expect("checked");
            assert!(again.is_clean(), "{path}, {how}: {}", show_f2fs(&again));
            let found = trees::read(&after).expect("opens");
            assert!(
                found.errors.is_empty() && found.nodes == tree.nodes,
                "{path}, {how}"
            );
        }
    }
}

/// The kernel refuses contents that are inline of a file whose contents are encrypted, verified or compressed.
#[test]
fn inline_contents_that_cannot_be_are_named() {
    if !super::lab::f2fs::f2fs_tools() {
        return;
    }
    let lab = super::lab::f2fs::F2Lab::new();
    let base = lab.volume(&["-O", "extra_attr,compression,encrypt,verity"]);
    let tree = trees::read(&base.device).expect("opens");
    let flags = offset_of!(RawInodeHead, flags);
    let ino = |path: &str| Ino(tree.nodes[std::path::Path::new(path)].ino as u32);
    let compress = InodeFlags::COMPRESS.bits() as u8;
    for (advise, flag) in [
        (Advise::ENCRYPT, 0),
        (Advise::VERITY, 0),
        (Advise::empty(), compress),
    ] {
        let v = base.copy();
        v.edit_node(ino("/dir/small").nid(), |b| {
            b[offset_of!(RawInodeHead, advise)] |= advise.bits();
            b[flags] |= flag;
            b[WORDS_OFFSET + offset_of!(RawExtra, log_cluster_size)] = 2;
        });
        let what = format!("{advise:?} {flag}");
        refused_where_written(
            &v,
            "/dir/small",
            ino("/dir/small"),
            "its contents are inline",
        );
        if advise != Advise::ENCRYPT {
            let shown = trees::read(&v.device).expect("opens");
            assert_eq!(shown.nodes, tree.nodes, "{what}");
        }
        let report = verify_f2fs(&v.device).expect("checked");
        let text = show_f2fs(&report);
        assert!(
            !report.is_clean() && text.contains("inline, which"),
            "{what}: {text}"
        );
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        let report = report.expect("repaired");
        assert!(!report.has_uncorrected(), "{what}: {}", show_f2fs(&report));
        let again = verify_f2fs(&after).expect("checked");
        assert!(again.is_clean(), "{what}: {}", show_f2fs(&again));
        let found = trees::read(&after).expect("opens");
        assert!(
            found.errors.is_empty() && found.nodes == tree.nodes,
            "{what}"
        );
    }
    // A link's target may be inline whatever the flags say: nothing of it is read as a file's contents.
    let v = base.copy();
    v.edit_node(ino("/link").nid(), |b| {
        b[offset_of!(RawInodeHead, advise)] |= Advise::VERITY.bits();
    });
    let report = verify_f2fs(&v.device).expect("checked");
    assert!(report.is_clean(), "{}", show_f2fs(&report));
}

/// A target that begins with a zero byte is none. It is told of, and stays: nothing says what it was.
#[test]
fn targets_that_are_not_there_are_noted() {
    if !super::lab::f2fs::f2fs_tools() {
        return;
    }
    let lab = super::lab::f2fs::F2Lab::new();
    let base = lab.volume(&[]);
    let tree = trees::read(&base.device).expect("opens");
    let ino = Ino(tree.nodes[std::path::Path::new("/link")].ino as u32);
    let v = base.copy();
    let (inode, _) = v.inode(ino);
    let target = inode.layout(v.geo.features).inline_bytes().start;
    v.edit_node(ino.nid(), |b| b[target] = 0);
    let noted = |report: &blockwright_check::f2fs::Report| {
        let is = |kind: &IssueKind| *kind == IssueKind::SymlinkTarget { ino };
        report.is_clean() && report.issues.iter().any(|i| is(&i.kind))
    };
    let found = trees::read(&v.device).expect("opens");
    assert!(
        found.errors.len() == 1 && found.errors[0].contains("target is empty"),
        "{:?}",
        found.errors
    );
    let report = verify_f2fs(&v.device).expect("checked");
    assert!(noted(&report), "{}", show_f2fs(&report));
    let (report, after) = repair_f2fs(&v.device, Mode::Yes);
    assert!(noted(&report.expect("checked")));
    assert!(after.to_vec() == v.device.to_vec());
    assert!(!noted(&verify_f2fs(&base.device).expect("checked")));
}

/// Without the feature the superblock's numbers of quota files mean nothing, and the inodes may belong to
/// any file.
#[test]
fn numbers_of_quota_files_without_quota_are_not_used() {
    if !super::lab::f2fs::f2fs_tools() {
        return;
    }
    let v = super::lab::f2fs::F2Lab::new().volume(&[]);
    let before = trees::read(&v.device).expect("opens");
    let ino = before.nodes[std::path::Path::new("/big")].ino as u32;
    for copy in 0..2 {
        v.edit(BlockAddr(copy), |b| {
            let mut raw = RawSuperblock::read(b).expect("long enough");
            raw.qf_ino[2].set(ino);
            b[1024..1024 + 3072].copy_from_slice(&raw.to_bytes());
        });
    }
    let report = verify_f2fs(&v.device).expect("checked");
    assert!(report.is_clean(), "{}", show_f2fs(&report));
    let tree = trees::read(&v.device).expect("opens");
    assert!(tree.errors.is_empty() && tree.nodes == before.nodes);
    let written = Volume::open_device(Arc::new(v.device.snapshot())).expect("opens");
    assert!(!written.is_read_only());
    written.write("/big", b"shorter").expect("written");
    written.close().expect("closed");
}
