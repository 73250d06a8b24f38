//! One damaged volume per issue: it is found, it is repaired, and e2fsck agrees afterwards.

use blockwright_test_support::lab as common;
mod inodes;
mod names;
mod single;

use std::collections::{BTreeMap, BTreeSet};

use blockwright_check::ext4::IssueKind;
use blockwright_check::{Mode, Outcome, Severity, fsck_exit_code};
use blockwright_ondisk::ext4::dir::{DirBlock, TAIL_SIZE};
use blockwright_ondisk::ext4::extent::Extent;
use blockwright_ondisk::ext4::htree::DxPlace;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::superblock::State;
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileBlock, GroupFlags, Incompat, Ino, RoCompat, extent, jbd2, mmp, orphan_file,
};
use common::volume::Volume;
use common::{Lab, repair, show, tools, verify};
use inodes::{attribute_cases, inode_cases, mapping_cases};
use names::{directory_cases, tree_cases};
use single::{group_cases, journal_cases, superblock_cases};

const BASES: &[(&str, &str, &[&str])] = &[
    ("ext4", "8M", &["-t", "ext4", "-b", "1024"]),
    ("ext2", "8M", &["-t", "ext2", "-b", "1024", "-I", "256"]),
    (
        "groups",
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^has_journal",
            "-g",
            "1024",
        ],
    ),
    (
        "plain",
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^has_journal,^metadata_csum,^uninit_bg",
        ],
    ),
    (
        "inline",
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "512",
            "-O",
            "inline_data,^has_journal",
        ],
    ),
    (
        "bigalloc",
        "16M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-C",
            "4096",
            "-O",
            "bigalloc,^has_journal",
        ],
    ),
    (
        "more",
        "12M",
        &[
            "-t",
            "ext4",
            "-b",
            "2048",
            "-O",
            "orphan_file,ea_inode,quota",
        ],
    ),
    (
        "strict",
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "casefold",
            "-E",
            "encoding=utf8,encoding_flags=strict",
        ],
    ),
    (
        "mmp",
        "8M",
        &["-t", "ext4", "-b", "1024", "-O", "mmp,^has_journal"],
    ),
];

fn put16(bytes: &mut [u8], at: usize, n: u16) {
    bytes[at..at + 2].copy_from_slice(&n.to_le_bytes());
}

fn put32(bytes: &mut [u8], at: usize, n: u32) {
    bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
}

/// The variant's name.
fn name(kind: &IssueKind) -> String {
    let text = format!("{kind:?}");
    text.split([' ', '{', '(']).next().unwrap_or("").to_owned()
}

struct Case {
    issue: &'static str,
    base: &'static str,
    damage: fn(&mut Volume),
    /// Consequences that are found too.
    also: &'static [&'static str],
    more: &'static [&'static str],
}

const fn case(issue: &'static str, base: &'static str, damage: fn(&mut Volume)) -> Case {
    Case {
        issue,
        base,
        damage,
        also: &[],
        more: &[],
    }
}

impl Case {
    const fn also(mut self, also: &'static [&'static str]) -> Self {
        if self.also.is_empty() {
            self.also = also;
        } else {
            self.more = also;
        }
        self
    }
}

const COUNTS: &[&str] = &[
    "BlockBitmap",
    "InodeBitmap",
    "GroupFreeBlocks",
    "GroupFreeInodes",
    "GroupDirs",
];

/// Issues that are tested elsewhere (a journal with transactions in it), or that mean the volume
/// belongs to another file.
const ELSEWHERE: &[&str] = &[
    "JournalReplayed",
    "JournalTransaction",
    "JournalBlockOutside",
    "JournalRevoke",
    "FastCommitReplayed",
    "FastCommitUnknown",
    "FastCommitTooMany",
    "FastCommitRecord",
    "RecoveryFlagMissing",
    "JournalExternal",
    "MmpInUse",
    "XattrValueRefs",
    "BlocksSharedByFeature",
];

#[test]
fn every_issue_is_found_and_repaired() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let bases: BTreeMap<&str, Volume> = BASES
        .iter()
        .map(|(name, size, args)| (*name, Volume::new(lab.make(size, args).unwrap())))
        .collect();
    let cases: Vec<Case> = superblock_cases()
        .into_iter()
        .chain(journal_cases())
        .chain(group_cases())
        .chain(inode_cases())
        .chain(mapping_cases())
        .chain(attribute_cases())
        .chain(directory_cases())
        .chain(tree_cases())
        .collect();
    let mut failures = Vec::new();
    for case in &cases {
        let mut volume = bases[case.base].clone();
        (case.damage)(&mut volume);
        let what = format!("{} on {}", case.issue, case.base);
        let report = match verify(&volume.image) {
            Ok(report) => report,
            Err(error) => {
                failures.push(format!("{what}: {error}"));
                continue;
            }
        };
        let found: BTreeSet<String> = report.issues.iter().map(|i| name(&i.kind)).collect();
        let strange: Vec<&String> = report
            .issues
            .iter()
            .filter(|i| i.severity > Severity::Note)
            .map(|i| &i.kind)
            .zip(report.issues.iter().filter(|i| i.severity > Severity::Note))
            .filter_map(|(kind, _)| found.get(&name(kind)))
            .filter(|n| {
                **n != case.issue
                    && !case.also.contains(&n.as_str())
                    && !case.more.contains(&n.as_str())
            })
            .collect();
        if !found.contains(case.issue) || !strange.is_empty() {
            failures.push(format!("{what}: found\n{}", show(&report)));
        }
        let (report, after) = repair(&volume.image, Mode::Yes);
        let (code, text) = lab.e2fsck(&after);
        let again = verify(&after).map(|r| (r.is_clean(), show(&r)));
        let report = report.map_or_else(
            |e| e.to_string(),
            |r| {
                let bad = r.issues.iter().any(|i| i.outcome != Outcome::Repaired);
                format!("exit {} left {bad}\n{}", fsck_exit_code(&r), show(&r))
            },
        );
        if code != 0 || text.contains("? no") || !matches!(again, Ok((true, _))) {
            failures.push(format!(
                "{what}: after repair ({report}) e2fsck {code}:\n{text}\nours: {again:?}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let tested: BTreeSet<&str> = cases
        .iter()
        .map(|c| c.issue)
        .chain(ELSEWHERE.iter().copied())
        .collect();
    let source = include_str!("../../src/ext4/issue.rs");
    let body = source.split("pub enum IssueKind {").nth(1).unwrap();
    let body = body.split("\n}\n").next().unwrap();
    let missing: Vec<&str> = body
        .lines()
        .map(str::trim)
        .filter(|l| l.starts_with(|c: char| c.is_ascii_uppercase()))
        .map(|l| l.split([' ', ',', '{']).next().unwrap())
        .filter(|n| !tested.contains(n))
        .collect();
    assert!(missing.is_empty(), "issues without a test: {missing:?}");
}

#[test]
fn another_mount_is_left_alone() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make(
        "8M",
        &["-t", "ext4", "-b", "1024", "-O", "mmp,^has_journal"],
    );
    let mut volume = Volume::new(image.unwrap());
    let geo = volume.geo.clone();
    let block = BlockNo(volume.sb().mmp_block.get());
    let bytes = volume.block(block);
    put32(bytes, 4, 77);
    let sum = geo.seed.mmp(bytes);
    put32(bytes, 0x3FC, sum);
    let report = verify(&volume.image).unwrap();
    assert!(report.issues.iter().any(|i| name(&i.kind) == "MmpInUse"));
    assert_ne!(mmp::SEQ_CLEAN, 77);
    let (report, after) = repair(&volume.image, Mode::Yes);
    assert!(report.is_err());
    assert!(after == volume.image, "a volume in use was written");
}

#[test]
fn external_journal_is_said() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make("8M", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
    let mut volume = Volume::new(image.unwrap());
    volume.edit_sb(|sb| {
        let mut f = sb.features();
        f.compat |= Compat::HAS_JOURNAL;
        sb.set_features(f);
        sb.journal_uuid = [7; 16];
    });
    let report = verify(&volume.image).unwrap();
    assert!(
        report
            .issues
            .iter()
            .any(|i| i.kind == IssueKind::JournalExternal)
    );
    let _ = (jbd2::MAGIC, DirBlock::entries_of(&[], volume.format()));
}
