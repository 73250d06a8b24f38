//! Damaged journals.

use std::process::Command;

use blockwright_check::Mode;
use blockwright_check::ext4::IssueKind;
use blockwright_ondisk::ext4::fast_commit::running_checksum;
use blockwright_ondisk::ext4::jbd2::{JournalIncompat, RawJournalSuperblock};
use blockwright_ondisk::ext4::{BlockNo, Compat, Ino};
use zerocopy::{FromBytes, IntoBytes};

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, tools, verify};
use crate::judge::{Damage, judge, listing};

/// A volume with three transactions in its journal: the root directory's block as something else
/// was logged in the first, was revoked by the second, and the third logs a block of data. Also
/// that block, and what it is to hold.
pub fn logged(lab: &Lab, args: &[&str], open: &str) -> (Volume, BlockNo, Vec<u8>) {
    let clean = Volume::new(lab.make("8M", args).unwrap());
    let root = clean.blocks(Ino::ROOT)[0];
    let target = clean.blocks(clean.lookup("dir/big"))[3];
    let file = |name: &str, byte: u8| {
        let path = lab.dir.path().join(name);
        std::fs::write(&path, [byte; 1024]).unwrap();
        path.display().to_string()
    };
    let (stale, new) = (file("stale", 0x53), file("new", 0x5A));
    let image = lab.debugfs(
        &clean.image,
        &[
            open,
            &format!("jw -b {root} {stale}"),
            "jc",
            open,
            &format!("jw -r {root}"),
            "jc",
            open,
            &format!("jw -b {target} {new}"),
            "jc",
        ],
    );
    (Volume::new(image), target, vec![0x5A; 1024])
}

/// The block of the journal with the list of revoked blocks.
pub fn revoke_block(v: &mut Volume) -> BlockNo {
    let log = v.blocks(Ino::JOURNAL);
    log.into_iter()
        .take(20)
        .find(|b| v.block(*b)[..8] == [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 5])
        .unwrap()
}

const PLAIN: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"];
const SUMS: &[&str] = &["-t", "ext4", "-b", "1024"];

#[test]
fn stale_blocks_are_not_replayed_without_their_revocation() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for (args, open) in [(PLAIN, "jo"), (SUMS, "jo -c")] {
        let (v, ..) = logged(&lab, args, open);
        let before = listing(&lab, &v.image);
        type BlockDamage = (&'static str, fn(&mut [u8]));
        let cases: &[BlockDamage] = &[
            ("longer than its block", |b| b[12..16].fill(0xFF)),
            ("shorter than its head", |b| {
                b[12..16].copy_from_slice(&[0, 0, 0, 4])
            }),
            ("without a length", |b| b[12..16].fill(0)),
        ];
        for (what, damage) in cases {
            let mut bad = v.clone();
            let block = revoke_block(&mut bad);
            damage(bad.block(block));
            let report = verify(&bad.image).unwrap();
            let said = |k: &IssueKind| matches!(k, IssueKind::JournalRevoke { .. });
            assert!(report.issues.iter().any(|i| said(&i.kind)), "{what}");
            let (mut found, ours) = judge(&lab, what, &bad.image);
            wrong.append(&mut found);
            if !listing(&lab, &ours).keys().eq(before.keys()) {
                wrong.push(format!("{args:?} {what}: paths are gone"));
            }
            // No old transaction can follow the next one that is written.
            let mut ours = Volume::new(ours);
            let head = ours.blocks(Ino::JOURNAL)[0];
            let head = ours.block(head);
            let sequence = u32::from_be_bytes(head[0x18..0x1C].try_into().unwrap());
            assert!(sequence > 1000 && head[0x1C..0x20] == [0; 4], "{what}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_superblock_knows_where_the_journal_is() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for (args, open) in [(PLAIN, "jo"), (SUMS, "jo -c")] {
        let (v, target, data) = logged(&lab, args, open);
        let cases: &[Damage] = &[
            ("inode that maps something else", |v| {
                v.edit_inode(Ino::JOURNAL, |i| {
                    i.block[20..24].copy_from_slice(&40u32.to_le_bytes());
                });
            }),
            ("inode of another type", |v| {
                v.edit_inode(Ino::JOURNAL, |i| i.mode = 0o040_755);
            }),
            ("inode that maps all blocks twice", |v| {
                v.edit_inode(Ino::JOURNAL, |i| {
                    let n = usize::from(i.block[2]);
                    assert!(n < 4, "{n} extents");
                    i.block[2] += 1;
                    i.block.copy_within(12..24, 12 + 12 * n);
                    i.block[12 + 12 * n..16 + 12 * n].copy_from_slice(&1024u32.to_le_bytes());
                    i.size *= 2;
                });
            }),
            ("no inode", |v| v.edit_raw(Ino::JOURNAL, |raw| raw.fill(0))),
        ];
        for (what, damage) in cases {
            let mut bad = v.clone();
            damage(&mut bad);
            assert!(!verify(&bad.image).unwrap().is_clean(), "{what}");
            let (mut found, ours) = judge(&lab, what, &bad.image);
            // e2fsck finds the journal, too, but replays it only now and then.
            wrong.extend(found.drain(..).filter(|w| !w.contains("\"dir/big\" was")));
            let mut ours = Volume::new(ours);
            if ours.block(target) != data {
                wrong.push(format!("{args:?} {what}: the log was not replayed"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_journal_that_leads_nowhere_is_made_anew() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for args in [
        SUMS,
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc"],
    ] {
        let clean = Volume::new(lab.make("16M", args).unwrap());
        // Nor does the superblock know better; the new place belongs to others.
        let before = listing(&lab, &clean.image);
        let table = clean.desc(0).inode_table;
        for place in [table.0 + 8, 1, clean.blocks(clean.lookup("dir/big"))[0].0] {
            let place =
                place / u64::from(clean.geo.cluster_ratio) * u64::from(clean.geo.cluster_ratio);
            let mut v = clean.clone();
            v.edit_sb(|sb| sb.jnl_backup_type = 0);
            let extents = args[1] == "ext4";
            v.edit_inode(Ino::JOURNAL, |i| {
                let at = if extents { 20 } else { 0 };
                i.block[at..at + 4].copy_from_slice(&(place as u32).to_le_bytes());
            });
            let what = format!("{args:?} journal at block {place}");
            let (found, ours) = judge(&lab, &what, &v.image);
            // e2fsck writes the head of a new journal over what belongs to others.
            wrong.extend(found.into_iter().filter(|w| !w.contains("\"dir/big\" was")));
            if listing(&lab, &ours) != before {
                wrong.push(format!("{what}: paths or bytes differ"));
            }
            let after = Volume::new(ours);
            if !after.sb().features().has_compat(Compat::HAS_JOURNAL) {
                wrong.push(format!("{what}: there is no journal"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The journal's inode and the superblock's copy of it, both damaged: whichever leads to the journal is believed, and nothing else is lost.
#[test]
fn the_journal_s_inode_and_its_copy_are_damaged_together() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(lab.make("8M", SUMS).unwrap());
    let before = listing(&lab, &clean.image);
    let inodes: &[Damage] = &[
        ("a sound inode", |_| {}),
        ("no inode", |v| v.edit_raw(Ino::JOURNAL, |raw| raw.fill(0))),
        ("an inode that maps block 40", |v| {
            v.edit_inode(Ino::JOURNAL, |i| {
                i.block[20..24].copy_from_slice(&40u32.to_le_bytes());
            });
        }),
    ];
    let mut wrong = Vec::new();
    for (inode, damage) in inodes {
        // The head of its extent tree, the first extent, and the size.
        for word in [0, 1, 3, 4, 5, 15, 16] {
            for change in [|_| 0, |_| u32::MAX, |old: u32| old.wrapping_add(1)] {
                let mut v = clean.clone();
                damage(&mut v);
                v.edit_sb(|sb| {
                    let old = sb.jnl_blocks[word].get();
                    sb.jnl_blocks[word].set(change(old));
                });
                if v.image == clean.image {
                    continue;
                }
                let now = v.sb().jnl_blocks[word].get();
                let what = format!("{inode}, and word {word} of the copy is {now:#x}");
                let (mut found, ours) = judge(&lab, &what, &v.image);
                // e2fsck writes the head of a new journal where the inode points.
                found.retain(|w| !w.contains("\" was"));
                wrong.append(&mut found);
                if listing(&lab, &ours) != before {
                    wrong.push(format!("{what}: paths or bytes differ"));
                }
                let after = Volume::new(ours);
                if !after.sb().features().has_compat(Compat::HAS_JOURNAL) {
                    wrong.push(format!("{what}: there is no journal"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The kernel mounts no volume with a log of less than 1024 blocks, whatever its journal's inode maps. The transactions in such a log are not lost.
#[test]
fn logs_get_their_length_back() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for (args, open) in [(PLAIN, "jo"), (SUMS, "jo -c")] {
        let empty = Volume::new(lab.make("8M", args).unwrap());
        let (waiting, target, new) = logged(&lab, args, open);
        for (what, base) in [("empty", &empty), ("to be replayed", &waiting)] {
            for (first, len) in [(1, 500), (1, 1023), (2, 1024)] {
                // Its first transaction is in front of the second block.
                if first > 1 && what != "empty" {
                    continue;
                }
                let mut v = base.clone();
                let head = v.blocks(Ino::JOURNAL)[0];
                let block = v.block(head);
                let (mut raw, _) = RawJournalSuperblock::read_from_prefix(block).unwrap();
                assert_eq!((raw.first.get(), raw.maxlen.get()), (1, 1024));
                raw.first.set(first);
                raw.maxlen.set(len);
                raw.set_checksum();
                block[..raw.as_bytes().len()].copy_from_slice(raw.as_bytes());
                let what = format!("{open}, {what}: {len} blocks from {first}");
                let report = verify(&v.image).unwrap();
                assert!(!report.is_clean(), "{what}");
                let (wrong, ours) = judge(&lab, &what, &v.image);
                assert!(wrong.is_empty(), "{}", wrong.join("\n"));
                let mut ours = Volume::new(ours);
                let (raw, _) = RawJournalSuperblock::read_from_prefix(ours.block(head)).unwrap();
                assert_eq!((raw.first.get(), raw.maxlen.get()), (1, 1024), "{what}");
                if what.contains("replayed") {
                    assert_eq!(ours.block(target), new, "{what}");
                }
            }
        }
    }
}

/// Whether Linux mounts a volume; `None` where nothing can be mounted.
fn mounts(lab: &Lab, image: &[u8]) -> Option<bool> {
    let run = |image: &[u8]| {
        let path = lab.dir.path().join("mounted.img");
        std::fs::write(&path, image).unwrap();
        let at = tempfile::tempdir().unwrap();
        let mut mount = Command::new("timeout");
        mount.args(["60", "mount", "-t", "ext4", "-o", "loop"]);
        let done = mount.arg(&path).arg(at.path()).output().unwrap();
        // Busy for a moment while another test starts a program.
        let gone = !done.status.success()
            || (0..50).any(|_| {
                let mut umount = Command::new("timeout");
                let umount = umount.args(["60", "umount"]).arg(at.path()).status();
                std::thread::sleep(std::time::Duration::from_millis(20));
                umount.is_ok_and(|s| s.success())
            });
        assert!(gone);
        done.status.success()
    };
    if run(image) {
        return Some(true);
    }
    if run(&lab.make("8M", SUMS).unwrap()) {
        return Some(false);
    }
    blockwright_oracles::skip("cannot mount ext4");
    None
}

/// Blocks of fast commits may leave no log shorter than the shortest journal: the kernel does not mount such a volume. The log is
/// replayed, and the number becomes one that leaves room.
#[test]
fn blocks_of_fast_commits_leave_a_log() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for size in ["size=1", "size=2", "size=1,fast_commit_size=1"] {
        for sums in ["^metadata_csum", "metadata_csum"] {
            let features = format!("fast_commit,{sums}");
            let args = ["-t", "ext4", "-b", "1024", "-O", &features, "-J", size];
            let open = if sums.starts_with('^') { "jo" } else { "jo -c" };
            let clean = Volume::new(lab.make("8M", &args).unwrap());
            let (waiting, target, new) = logged(&lab, &args, open);
            for (v, waits) in [(clean, false), (waiting, true)] {
                let at = v.at(v.blocks(Ino::JOURNAL)[0]);
                let head = |v: &Volume| {
                    let (raw, _) = RawJournalSuperblock::read_from_prefix(&v.image[at..]).unwrap();
                    raw
                };
                let len = head(&v).maxlen.get();
                let most = len - 1024;
                let expected = listing(&lab, &repair(&v.image, Mode::Yes).1);
                let numbers = [1, most, most + 1, len - 3, len, len + 7, u32::MAX];
                for n in numbers.into_iter().filter(|n| *n > 0) {
                    let mut v = v.clone();
                    let mut raw = head(&v);
                    let flag = raw.feature_incompat.get() | JournalIncompat::FAST_COMMIT.bits();
                    raw.feature_incompat.set(flag);
                    raw.num_fc_blks.set(n);
                    raw.set_checksum();
                    v.image[at..at + 1024].copy_from_slice(raw.as_bytes());
                    let what = format!("{features} {size}: {n} of {len}, waits: {waits}");
                    let report = verify(&v.image).unwrap();
                    // Linux does not replay a log in front of a single such block.
                    let sound = n <= most && !(waits && n == 1);
                    if report.is_clean() != sound {
                        wrong.push(format!("{what}: found\n{}", show(&report)));
                    }
                    // Where the number cannot be, or is 1, e2fsck drops these transactions.
                    let ours = match waits && !sound {
                        true => repair(&v.image, Mode::Yes).1,
                        false => {
                            let (mut bad, ours) = judge(&lab, &what, &v.image);
                            wrong.append(&mut bad);
                            ours
                        }
                    };
                    let again = verify(&ours).unwrap();
                    let (code, text) = lab.e2fsck(&ours);
                    if !again.is_clean() || code != 0 || listing(&lab, &ours) != expected {
                        wrong.push(format!("{what}: then {}-- e2fsck {text}", show(&again)));
                    }
                    let mut ours = Volume::new(ours);
                    let raw = head(&ours);
                    let incompat = JournalIncompat::from_bits_retain(raw.feature_incompat.get());
                    let fast = match incompat.contains(JournalIncompat::FAST_COMMIT) {
                        true => raw.num_fc_blks.get(),
                        false => 0,
                    };
                    if raw.maxlen.get() != len || fast > most || sound && fast != n {
                        wrong.push(format!("{what}: {fast} of {}", raw.maxlen.get()));
                    }
                    if waits && ours.block(target) != new {
                        wrong.push(format!("{what}: the log was not replayed"));
                    }
                    if n == u32::MAX && mounts(&lab, &ours.image) == Some(false) {
                        wrong.push(format!("{what}: Linux does not mount it"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The name that a fast commit gives.
pub const SECOND: &str = "another name";

/// Blocks of the three transactions of [`logged`]: descriptor, data and commit; a list of revoked blocks and commit; descriptor, data and commit.
const LOGGED: u32 = 8;

/// Has these transactions begin at block `start` of the journal, in a log that ends at `end`. With `fast`, a fast commit that gives a file a [`SECOND`] name follows them
/// behind the log.
pub fn move_log(v: &mut Volume, start: u32, end: u32, fast: bool) {
    let places = v.blocks(Ino::JOURNAL);
    let blocks: Vec<Vec<u8>> = (1..=LOGGED)
        .map(|n| v.block(places[n as usize]).to_vec())
        .collect();
    for n in 1..=LOGGED {
        v.block(places[n as usize]).fill(0);
    }
    for (n, block) in (0..).zip(&blocks) {
        let at = 1 + (start - 1 + n) % (end - 1);
        v.block(places[at as usize]).copy_from_slice(block);
    }
    let head = v.block(places[0]);
    let (mut raw, _) = RawJournalSuperblock::read_from_prefix(head).unwrap();
    raw.start.set(start);
    raw.set_checksum();
    head[..1024].copy_from_slice(raw.as_bytes());
    if !fast {
        return;
    }
    let tid = (raw.sequence.get() + 3).to_le_bytes();
    let ino = v.lookup("dir/big").0.to_le_bytes();
    let name = [&[2, 0, 0, 0], &ino[..], SECOND.as_bytes()].concat();
    let mut bytes = [&[9, 0, 8, 0, 0, 0, 0, 0], &tid[..]].concat();
    bytes.extend([4, 0, name.len() as u8, 0]);
    bytes.extend(name);
    bytes.extend([&[8, 0, 8, 0], &tid[..]].concat());
    bytes.extend(running_checksum(0, &bytes).to_le_bytes());
    v.block(places[end as usize + 1])[..bytes.len()].copy_from_slice(&bytes);
}

/// Changes the head of the journal.
pub fn edit_journal(v: &mut Volume, edit: impl FnOnce(&mut RawJournalSuperblock)) {
    let place = v.blocks(Ino::JOURNAL)[0];
    let head = v.block(place);
    let (mut raw, _) = RawJournalSuperblock::read_from_prefix(head).unwrap();
    edit(&mut raw);
    raw.set_checksum();
    head[..1024].copy_from_slice(raw.as_bytes());
}

/// Everything is replayed: three transactions, and the fast commit.
fn replays_all(lab: &Lab, what: &str, v: &Volume, target: (BlockNo, &[u8]), fast: bool) {
    let counts = |image: &[u8]| {
        let report = verify(image).unwrap();
        let issues = report.issues.iter();
        let found = issues.filter_map(|i| match i.kind {
            IssueKind::JournalReplayed { transactions } => Some((transactions, 0)),
            IssueKind::FastCommitReplayed { records } => Some((0, records)),
            _ => None,
        });
        let sum = found.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        (sum, show(&report))
    };
    let (found, text) = counts(&v.image);
    assert_eq!(found, (3, u64::from(fast)), "{what}: {text}");
    let (report, ours) = repair(&v.image, Mode::Yes);
    let text = show(&report.unwrap());
    assert!(text.contains("3 transactions"), "{what}: {text}");
    assert_eq!(text.contains("fast-commit records"), fast, "{what}: {text}");
    let again = verify(&ours).unwrap();
    assert!(again.is_clean(), "{what}: {}", show(&again));
    let (code, said) = lab.e2fsck(&ours);
    assert_eq!(code, 0, "{what}: {said}");
    let mut ours = Volume::new(ours);
    assert_eq!(ours.block(target.0), target.1, "{what}");
    if fast {
        assert_eq!(ours.lookup(SECOND), ours.lookup("dir/big"), "{what}");
    }
}

/// The journal's head does not tell how many blocks of fast commits there are. The log itself tells where it ends: nothing of it is lost.
#[test]
fn the_log_tells_where_it_ends() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for (kind, sums) in ["^metadata_csum", "metadata_csum"].into_iter().enumerate() {
        let features = format!("fast_commit,{sums}");
        let open = ["jo", "jo -c"][kind];
        let args = ["-t", "ext4", "-b", "1024", "-O", &features, "-J", "size=2"];
        let (v, target, new) = logged(&lab, &args, open);
        let len = v.blocks(Ino::JOURNAL).len() as u32;
        for area in [2, 16, 700] {
            let end = len - area;
            // In front of the end, up to it, and around it in each way.
            let last = if area == 16 { end - LOGGED } else { end - 4 };
            // Around what is the end with the usual number of blocks, as well.
            let plain = [2, 1200, len - 260].into_iter().filter(|at| *at < end);
            let starts = plain.chain(last..end);
            for (n, start) in starts.enumerate() {
                let fast = (n + kind) % 2 == 0;
                let mut v = v.clone();
                move_log(&mut v, start, end, fast);
                edit_journal(&mut v, |raw| {
                    let flag = raw.feature_incompat.get() | JournalIncompat::FAST_COMMIT.bits();
                    raw.feature_incompat.set(flag);
                    raw.num_fc_blks.set(area);
                });
                let all = |what: &str, v: &Volume| {
                    let what = format!("{sums}, {area} blocks, log from {start}, {fast}: {what}");
                    replays_all(&lab, &what, v, (target, &new), fast);
                };
                all("as it is", &v);
                // Numbers that leave a log, but begin in front of it.
                let number = 1040;
                if start >= len - number && number != area {
                    let mut v = v.clone();
                    edit_journal(&mut v, |raw| raw.num_fc_blks.set(number));
                    all(&format!("{number} of {len}"), &v);
                }
                for number in [len - 1000, len - 3, u32::MAX] {
                    let mut v = v.clone();
                    edit_journal(&mut v, |raw| raw.num_fc_blks.set(number));
                    all(&format!("{number} of {len}"), &v);
                }
                for number in [1000, 3] {
                    let mut v = v.clone();
                    edit_journal(&mut v, |raw| raw.maxlen.set(number));
                    all(&format!("a length of {number}"), &v);
                }
                edit_journal(&mut v, |raw| raw.first.set(1100));
                all("a log from block 1100 on", &v);
            }
        }
    }
}

/// A journal that has room for one block of fast commits gets none: Linux would replay no log in front of it.
#[test]
fn a_single_block_of_fast_commits_is_never_left() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "fast_commit",
        "-J",
        "size=2",
    ];
    let (v, target, new) = logged(&lab, &args, "jo -c");
    for (len, left) in [(1024, 0), (1025, 0), (1026, 2), (1300, 256)] {
        let mut v = v.clone();
        edit_journal(&mut v, |raw| {
            let flag = raw.feature_incompat.get() | JournalIncompat::FAST_COMMIT.bits();
            raw.feature_incompat.set(flag);
            raw.maxlen.set(len);
            raw.num_fc_blks.set(len);
        });
        let (report, ours) = repair(&v.image, Mode::Yes);
        let text = show(&report.unwrap());
        let mut ours = Volume::new(ours);
        let mut found = 0;
        edit_journal(&mut ours, |raw| {
            let incompat = JournalIncompat::from_bits_retain(raw.feature_incompat.get());
            if incompat.contains(JournalIncompat::FAST_COMMIT) {
                found = raw.num_fc_blks.get();
            }
        });
        assert_eq!(found, left, "{len}: {text}");
        assert_eq!(ours.block(target), new, "{len}: {text}");
    }
}

/// A log of 2048 blocks, with 16 of fast commits behind it, that goes around its end behind `before` blocks; its head says an impossible number of blocks of fast commits.
fn turned_log(lab: &Lab, sums: bool, before: u32) -> (Volume, BlockNo, Vec<u8>) {
    let (features, open) = match sums {
        true => ("fast_commit,metadata_csum", "jo -c"),
        false => ("fast_commit,^metadata_csum", "jo"),
    };
    let args = ["-t", "ext4", "-b", "1024", "-O", features, "-J", "size=2"];
    let (mut v, target, new) = logged(lab, &args, open);
    let end = v.blocks(Ino::JOURNAL).len() as u32 - 16;
    move_log(&mut v, end - before, end, false);
    edit_journal(&mut v, |raw| {
        let flag = raw.feature_incompat.get() | JournalIncompat::FAST_COMMIT.bits();
        raw.feature_incompat.set(flag);
        raw.num_fc_blks.set(u32::MAX);
    });
    (v, target, new)
}

/// The list of revoked blocks is behind the turn of the log, and damaged: an end of the log that does not lead to it is no better one.
#[test]
fn no_shorter_log_hides_a_damaged_list() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for sums in [false, true] {
        // In front of the list: descriptor, data and commit of the first transaction.
        let (mut v, target, new) = turned_log(&lab, sums, 3);
        let before = listing(&lab, &v.image);
        let block = revoke_block(&mut v);
        v.block(block)[12..16].fill(0xFF);
        let report = verify(&v.image).unwrap();
        let said = |k: &IssueKind| matches!(k, IssueKind::JournalRevoke { .. });
        let text = show(&report);
        assert!(report.issues.iter().any(|i| said(&i.kind)), "{text}");
        let (_, ours) = repair(&v.image, Mode::Yes);
        let again = verify(&ours).unwrap();
        assert!(again.is_clean(), "{}", show(&again));
        assert_eq!(lab.e2fsck(&ours).0, 0);
        assert_eq!(listing(&lab, &ours), before, "{text}");
        assert_ne!(Volume::new(ours).block(target), new);
    }
}

/// Each block of the area begins like a fast commit, and none is complete.
#[test]
fn heads_of_fast_commits_are_no_end() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let (mut v, target, new) = turned_log(&lab, true, 8);
    let places = v.blocks(Ino::JOURNAL);
    let mut tid = 0;
    edit_journal(&mut v, |raw| tid = raw.sequence.get() + 3);
    let head = [&[9, 0, 8, 0, 0, 0, 0, 0], &tid.to_le_bytes()[..]].concat();
    for place in &places[places.len() - 16..] {
        v.block(*place)[..head.len()].copy_from_slice(&head);
    }
    replays_all(&lab, "heads", &v, (target, &new), false);
}

/// The volume has the feature, and its journal no room for these blocks: Linux does not mount it.
#[test]
fn fast_commit_needs_room_in_the_journal() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut v = Volume::new(lab.make("8M", SUMS).unwrap());
    v.edit_sb(|sb| {
        let mut features = sb.features();
        features.compat |= Compat::FAST_COMMIT;
        sb.set_features(features);
    });
    assert_ne!(mounts(&lab, &v.image), Some(true));
    let report = verify(&v.image).unwrap();
    let said = |k: &IssueKind| matches!(k, IssueKind::FeatureContradiction { what } if what.starts_with("fast_commit"));
    assert!(report.issues.iter().any(|i| said(&i.kind)));
    let (wrong, ours) = judge(&lab, "no room", &v.image);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_ne!(mounts(&lab, &ours), Some(false));
}

/// The journal's file is shorter than its log was: what lies behind may revoke blocks of what is left, so nothing is replayed.
#[test]
fn a_log_that_lost_its_end_is_not_replayed() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for args in [PLAIN, SUMS] {
        let (v, ..) = logged(&lab, args, "jo");
        let root = v.blocks(Ino::ROOT)[0];
        let places = v.blocks(Ino::JOURNAL);
        let len = places.len() as u32;
        // The transaction with the old root directory is the last one in the file. The next one, which revokes it, is behind; or a part of it is.
        for behind in [1, 2] {
            let (start, end) = (len - 5 + behind, len + behind);
            let mut v = v.clone();
            let blocks: Vec<Vec<u8>> = (1..=LOGGED)
                .map(|n| v.block(places[n as usize]).to_vec())
                .collect();
            for n in 1..=LOGGED {
                v.block(places[n as usize]).fill(0);
            }
            for (n, block) in (0..).zip(&blocks) {
                let at = 1 + (start - 1 + n) % (end - 1);
                if let Some(place) = places.get(at as usize) {
                    v.block(*place).copy_from_slice(block);
                }
            }
            edit_journal(&mut v, |raw| {
                raw.start.set(start);
                raw.maxlen.set(end);
            });
            let old = v.block(root).to_vec();
            let (report, ours) = repair(&v.image, Mode::Yes);
            let text = show(&report.unwrap());
            let mut ours = Volume::new(ours);
            assert!(ours.block(root) == old, "{behind}: {text}");
            let (code, said) = lab.e2fsck(&ours.image);
            assert_eq!(code, 0, "{behind}: {text}{said}");
        }
    }
}
