//! Preening a volume whose journal's head contradicts itself. Either the log is replayed and the head is sound afterwards, or nothing changes.

use blockwright_check::ext4::IssueKind;
use blockwright_check::{Mode, Outcome, fsck_exit_code};
use blockwright_ondisk::ext4::jbd2::{JournalIncompat, RawJournalSuperblock};
use blockwright_ondisk::ext4::{BlockNo, Incompat, Ino};

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, tools, verify};
use crate::journals::{SECOND, edit_journal, logged, move_log, revoke_block};

/// The volume after preening, where that mended it. `None`: nothing was changed, and the report says what a person has to look at.
fn preen(lab: &Lab, what: &str, v: &Volume) -> Option<Volume> {
    let (report, ours) = repair(&v.image, Mode::Preen);
    let report = report.unwrap();
    let text = show(&report);
    if report.has_uncorrected() {
        assert_eq!(fsck_exit_code(&report), 4, "{what}: {text}");
        assert!(!report.changed && ours == v.image, "{what}: {text}");
        let named = report.issues.iter().any(|i| {
            let journal = matches!(
                i.kind,
                IssueKind::JournalField { .. }
                    | IssueKind::JournalSuperblock { .. }
                    | IssueKind::JournalTransaction { .. }
            );
            journal && i.outcome == Outcome::Left
        });
        assert!(named, "{what}: {text}");
        return None;
    }
    assert_eq!(fsck_exit_code(&report), 1, "{what}: {text}");
    let again = verify(&ours).unwrap();
    assert!(
        again.issues.is_empty(),
        "{what}: {text}then {}",
        show(&again)
    );
    let (code, said) = lab.e2fsck(&ours);
    assert_eq!(code, 0, "{what}: {text}{said}");
    Some(Volume::new(ours))
}

/// A field of the journal's head, and what it is set to.
type Fault = (&'static str, fn(&mut RawJournalSuperblock, u32));

const FAULTS: &[Fault] = &[
    ("no room beside fast commits", |raw, _| {
        raw.num_fc_blks.set(u32::MAX)
    }),
    ("fast commits from block 3 on", |raw, len| {
        raw.num_fc_blks.set(len - 3)
    }),
    ("a log of 1000 blocks", |raw, len| {
        raw.num_fc_blks.set(len - 1000)
    }),
    ("1000 blocks", |raw, _| raw.maxlen.set(1000)),
    ("3 blocks", |raw, _| raw.maxlen.set(3)),
    ("more blocks than the file", |raw, len| {
        raw.maxlen.set(len + 5)
    }),
    ("a log from block 1100 on", |raw, _| raw.first.set(1100)),
    ("a log from block 0 on", |raw, _| raw.first.set(0)),
];

/// Blocks of fast commits.
const AREA: u32 = 16;

fn with_fast_commits(raw: &mut RawJournalSuperblock) {
    let flag = raw.feature_incompat.get() | JournalIncompat::FAST_COMMIT.bits();
    raw.feature_incompat.set(flag);
    raw.num_fc_blks.set(AREA);
}

fn volume(lab: &Lab, sums: bool) -> (Volume, BlockNo, Vec<u8>) {
    let (features, open) = match sums {
        true => ("fast_commit,metadata_csum", "jo -c"),
        false => ("fast_commit,^metadata_csum", "jo"),
    };
    let args = ["-t", "ext4", "-b", "1024", "-O", features, "-J", "size=2"];
    logged(lab, &args, open)
}

/// The log's own blocks leave no doubt: everything is replayed, where e2fsck replays it and where it drops it.
#[test]
fn a_log_that_leaves_no_doubt_is_replayed() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for sums in [false, true] {
        let (v, target, new) = volume(&lab, sums);
        let len = v.blocks(Ino::JOURNAL).len() as u32;
        let end = len - AREA;
        for (n, start) in [1, 2, 1200].into_iter().chain(end - 8..end).enumerate() {
            let fast = (n % 2 == 0) == sums;
            let mut v = v.clone();
            if start > 1 || fast {
                move_log(&mut v, start, end, fast);
            }
            let mut faults = FAULTS.to_vec();
            if start == 1 {
                faults.push(("a log behind its beginning", |raw, _| raw.first.set(2)));
            }
            if !fast {
                faults.push(("one block of fast commits", |raw, _| raw.num_fc_blks.set(1)));
            }
            for (what, fault) in faults {
                let what = format!("{sums}, log from {start}, {fast}: {what}");
                let mut v = v.clone();
                edit_journal(&mut v, |raw| {
                    with_fast_commits(raw);
                    fault(raw, len);
                });
                assert!(!verify(&v.image).unwrap().is_clean(), "{what}");
                let mut ours = preen(&lab, &what, &v).expect(&what);
                assert_eq!(ours.block(target), new, "{what}");
                if fast {
                    assert_eq!(ours.lookup(SECOND), ours.lookup("dir/big"), "{what}");
                }
            }
        }
    }
}

/// Nothing waits: there is nothing to lose.
#[test]
fn the_head_of_an_empty_log_is_mended() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for sums in [false, true] {
        let (v, ..) = volume(&lab, sums);
        let len = v.blocks(Ino::JOURNAL).len() as u32;
        let empty = Volume::new(repair(&v.image, Mode::Yes).1);
        for (what, fault) in FAULTS {
            let what = format!("{sums}, empty: {what}");
            let mut v = empty.clone();
            edit_journal(&mut v, |raw| {
                with_fast_commits(raw);
                fault(raw, len);
            });
            assert!(!verify(&v.image).unwrap().is_clean(), "{what}");
            preen(&lab, &what, &v).expect(&what);
            // The superblock does not agree that it is empty.
            v.edit_sb(|sb| {
                let mut features = sb.features();
                features.incompat |= Incompat::NEEDS_RECOVERY;
                sb.set_features(features);
            });
            assert!(preen(&lab, &what, &v).is_none(), "{what}");
        }
    }
}

/// Another end of the log would replay something else, or it is not known what waits: a person decides.
#[test]
fn a_log_in_doubt_is_left() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for sums in [false, true] {
        let (v, ..) = volume(&lab, sums);
        let places = v.blocks(Ino::JOURNAL);
        let end = places.len() as u32 - AREA;
        let moved = |start| {
            let mut v = v.clone();
            move_log(&mut v, start, end, false);
            edit_journal(&mut v, |raw| {
                with_fast_commits(raw);
                raw.num_fc_blks.set(u32::MAX);
            });
            v
        };
        // In front of the end: the descriptor of the last transaction. Behind its turn: the block, and the commit block.
        let mut torn = moved(end - 6);
        torn.block(places[2]).fill(0);
        // The list of revoked blocks is behind the turn.
        let mut damaged = moved(end - 3);
        let block = revoke_block(&mut damaged);
        damaged.block(block)[12..16].fill(0xFF);
        // Its transaction never happened, or a disk has torn the block: fast commits that count have another number then.
        let mut uncommitted = moved(2);
        uncommitted.block(places[9])[17] ^= 1;
        let mut elsewhere = moved(2);
        edit_journal(&mut elsewhere, |raw| raw.start.set(1000));
        let mut unflagged = moved(2);
        unflagged.edit_sb(|sb| {
            let mut features = sb.features();
            features.incompat -= Incompat::NEEDS_RECOVERY;
            sb.set_features(features);
        });
        if sums {
            let what = "the last commit block is torn";
            assert!(preen(&lab, what, &uncommitted).is_none(), "{what}");
        }
        for (what, v) in [
            ("its end is lost", torn),
            ("a list is damaged", damaged),
            ("nothing is where it begins", elsewhere),
            ("the superblock does not ask for it", unflagged),
        ] {
            assert!(preen(&lab, what, &v).is_none(), "{sums}: {what}");
        }
    }
}

/// A damaged transaction under a sound head: what its loss means is for a person to see, and nothing is replayed before.
#[test]
fn a_damaged_transaction_is_left() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let (mut v, ..) = volume(&lab, true);
    let places = v.blocks(Ino::JOURNAL);
    // The block of data that the last transaction logs.
    v.block(places[7])[100] ^= 1;
    assert!(preen(&lab, "damaged", &v).is_none());
}

/// A damaged block of multiple-mount protection says nothing of the log. As with e2fsck, the log is home before a person looks at the rest.
#[test]
fn a_sound_log_beside_other_damage_is_replayed() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let (mut v, target, new) = volume(&lab, true);
    edit_journal(&mut v, with_fast_commits);
    let nowhere = v.geo.blocks_count - 1;
    v.edit_sb(|sb| {
        let mut features = sb.features();
        features.incompat |= Incompat::MMP;
        sb.set_features(features);
        sb.mmp_block.set(nowhere);
    });
    let (report, ours) = repair(&v.image, Mode::Preen);
    let report = report.unwrap();
    assert_eq!(fsck_exit_code(&report) & 4, 4, "{}", show(&report));
    let mut ours = Volume::new(ours);
    assert_eq!(ours.block(target), new, "{}", show(&report));
    let waits = |v: &Volume| v.sb().features().has_incompat(Incompat::NEEDS_RECOVERY);
    assert!(waits(&v) && !waits(&ours), "{}", show(&report));
}

/// The superblock was mended before a log that waits was replayed, and the replay must not bring the fault back: all files were below the first inode.
#[test]
fn a_replay_keeps_what_was_mended_before_it() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let (mut v, target, new) = volume(&lab, true);
    edit_journal(&mut v, with_fast_commits);
    v.edit_sb(|sb| sb.first_ino.set(2000));
    let (report, ours) = repair(&v.image, Mode::Yes);
    let report = report.unwrap();
    let mut ours = Volume::new(ours);
    assert_eq!(
        ours.lookup("dir/big"),
        v.lookup("dir/big"),
        "{}",
        show(&report)
    );
    assert_eq!(ours.block(target), new, "{}", show(&report));
    let again = verify(&ours.image).unwrap();
    assert!(again.issues.is_empty(), "{}", show(&again));
    assert_eq!(lab.e2fsck(&ours.image).0, 0, "{}", show(&report));
}
