//! What e2fsck's words amount to, and where our verdict differs from its on purpose.

use blockwright_check::Severity;
use blockwright_check::ext4::{IssueKind, Owner, Report};
use blockwright_ondisk::ext4::FormatError;

use super::f2fs;

/// Whether e2fsck found something: it exits with 0 although it asked a question about what it
/// looks at before its first pass, and about the superblock's free counts, which every mount
/// computes anew (and which are a note here).
pub fn e2fsck_clean(code: i32, text: &str) -> bool {
    let mut asked_about_counts = false;
    let asked = text.lines().any(|line| {
        let counts = line.starts_with("Free blocks count wrong (")
            || line.starts_with("Free inodes count wrong (");
        let question = line.ends_with("? no") && !std::mem::take(&mut asked_about_counts);
        asked_about_counts |= counts;
        question
    });
    code == 0 && !asked
}

/// Whether e2fsck found nothing while it repaired: it asked no question. (It takes an error number out of a journal without a word. With
/// `-n` it tries that, too, and asks about what it could not write, and about inodes that it then reads wrong.)
pub fn e2fsck_repaired_nothing(code: i32, text: &str) -> bool {
    code == 0 && !text.lines().any(|line| line.ends_with("? yes"))
}

/// Why e2fsck is silent about a volume that we call damaged: the reason of the first issue, when every issue has one.
pub fn e2fsck_silent(report: &Report) -> Option<&'static str> {
    let mut reason = None;
    let shares = |kind: &IssueKind| matches!(kind, IssueKind::BlocksSharedByFeature { .. });
    let may_share = report.issues.iter().any(|issue| shares(&issue.kind));
    for issue in &report.issues {
        if issue.severity > Severity::Note {
            let over_metadata = matches!(
                issue.kind,
                IssueKind::BlocksShared {
                    other: Owner::Metadata,
                    ..
                }
            );
            let why = if may_share && over_metadata {
                "with shared_blocks it minds no block that has several users"
            } else {
                why_silent(&issue.kind)?
            };
            reason.get_or_insert(why);
        }
    }
    reason
}

/// Why e2fsck may be silent about an issue. The kernel's behaviour was tried on Linux 6.18, and with quota on Linux
/// 6.1. docs/TESTING.md has the same list.
fn why_silent(kind: &IssueKind) -> Option<&'static str> {
    match kind {
        IssueKind::OrphanList { what, .. }
            if what.contains("no inode") || what.contains("no such inode") =>
        {
            Some("it reads the list with a journal only; a mount for writing finds an error")
        }
        IssueKind::QuotaFile { what, .. } if what.contains("no such file") => {
            Some("the kernel does not mount a volume whose quota inode has no links")
        }
        IssueKind::InodeReserved { what, .. } if what.starts_with("hidden file") => {
            Some("the kernel does not mount a volume whose quota inode has no links")
        }
        IssueKind::QuotaFile { what, .. } if what.starts_with("size") => {
            Some("it rounds the size up; the kernel mounts no volume with a shorter quota file")
        }
        IssueKind::QuotaFile { what, .. } if what.contains("loop") => {
            Some("it reads leaves; our engine changes no quota file that contains itself")
        }
        IssueKind::ExtentNode { error, .. }
            if matches!(*error.0, FormatError::ExtentDepth { .. }) =>
        {
            Some("the kernel reads no file with an extent block of another depth")
        }
        IssueKind::XattrEntry { what, .. } if what.contains("zero byte") => {
            Some("the kernel refuses such attributes, and files with one in their inode")
        }
        IssueKind::InlineData { what, .. } if what.contains("missing") => {
            Some("the kernel reads no file with inline data and without the attribute")
        }
        IssueKind::HtreeHash { name, .. } if name.contains(char::REPLACEMENT_CHARACTER) => Some(
            "it computes no hash of a name that is not UTF-8; the kernel neither lists nor finds it",
        ),
        IssueKind::JournalSuperblock { error }
            if matches!(*error.0, FormatError::JournalFirst { .. }) =>
        {
            Some("it looks at where the log begins only to replay it")
        }
        IssueKind::JournalSuperblock { error } if matches!(*error.0, FormatError::JournalLength { found, .. } if found < 1024) => {
            Some("it takes any shorter length; the kernel uses no log of less than 1024 blocks")
        }
        IssueKind::JournalField { field, .. } if field.starts_with("first block") => Some(
            "it looks at where the log begins only to replay it; the kernel mounts no such volume",
        ),
        IssueKind::JournalField { field, .. } if field.starts_with("length") => {
            Some("it takes any shorter length; the kernel uses no log of less than 1024 blocks")
        }
        IssueKind::JournalField { field, .. } if field.ends_with("fast commits") => {
            Some("it does not mind more than the journal has; the kernel mounts no such volume")
        }
        IssueKind::JournalInode { what, .. } if what.starts_with("its size is not") => {
            Some("it looks at the low half of the size")
        }
        IssueKind::HashFlavourMissing => {
            Some("it adds the flag, and tells of it only then; the kernel adds one by its own kind")
        }
        IssueKind::InodeExtraSize { .. } => {
            Some("it looks at inodes with a name; the kernel reads no inode with such a size")
        }
        IssueKind::XattrBlockOutside { .. } => Some(
            "it looks at inodes with a name; the kernel reads no inode whose attribute block is outside of the volume",
        ),
        IssueKind::FeatureContradiction { what } if what.starts_with("a journal device") => {
            Some("the kernel mounts no volume with two journals")
        }
        IssueKind::FeatureContradiction { what } if what.starts_with("fast_commit") => {
            Some("the kernel mounts no volume with fast_commit and a journal without room for it")
        }
        IssueKind::TimeInFuture { found, .. } if *found > u64::from(u32::MAX) => {
            Some("it reads the low 32 bits of the time, of 40")
        }
        IssueKind::InodeFlags { what, .. } if what.starts_with("marked as an attribute value") => {
            Some("the kernel looks up no file with this flag")
        }
        _ => None,
    }
}

/// Why fsck.f2fs may be silent about damage.
const MORE: [(&str, &str); 29] = [
    (
        "CheckpointField",
        "it does not look at all fields, and at the low halves of some; the kernel refuses to mount",
    ),
    (
        "CheckpointImpossible",
        "it looks at fewer fields; the engine and the kernel refuse to mount",
    ),
    // Told of only in files that have compressed clusters.
    (
        "CompressAlgorithm",
        "it does not mind how files are compressed; the kernel refuses such inodes",
    ),
    (
        "CompressClusterSize",
        "it does not mind how files are compressed; the kernel refuses such inodes",
    ),
    (
        "CompressUnknown",
        "it does not mind how files are compressed; the kernel refuses such inodes",
    ),
    (
        "DirDepth",
        "it looks at every block, not where a lookup goes",
    ),
    ("DirEntry", "it repairs some slots without telling"),
    ("DirSize", "it looks at every block, not up to the size"),
    ("DirSlots", "it takes the length of a name for its slots"),
    (
        "EncodingMissing",
        "it does not mind; the kernel refuses to mount",
    ),
    (
        "InlineFlag",
        "it does not mind such flags; the kernel refuses such inodes",
    ),
    ("InlineNode", "it does not follow nodes of inline files"),
    ("InlineReserved", "it looks only at files' word"),
    (
        "InodeField",
        "it does not mind lengths of names, extents and depths",
    ),
    ("JournalCount", "it cuts the journal"),
    ("JournalEntry", "it skips the entry"),
    ("LogAllocation", "it does not look at it"),
    ("NameTwice", "it does not compare names"),
    ("NatBitsWrong", "it writes them anew"),
    ("NodeNext", "it does not follow logs"),
    ("NodeOffset", "it does not look at it"),
    ("PackSummary", "it does not look at it"),
    (
        "QuotaFile",
        "with -f it makes the file anew without telling",
    ),
    ("QuotaUsage", "with -f it counts anew without telling"),
    ("SummaryEntries", "it repairs some without telling"),
    (
        "SuperblockBad",
        "it takes the other superblock without telling, when only asked",
    ),
    (
        "SuperblockCopies",
        "it takes the other superblock without telling, when only asked",
    ),
    ("SymlinkEmpty", "it does not look at sizes of links"),
    ("Xattr", "it looks at shapes only"),
];

/// A level at which no directory's hash tables begin, so that no name can be added.
fn impossible_level(kind: &blockwright_check::f2fs::IssueKind) -> bool {
    use blockwright_check::f2fs::IssueKind;
    matches!(kind, IssueKind::DirLevel { found, .. } if *found >= 29)
}

/// Why fsck.f2fs is silent about a volume that we call damaged: the reason of the first issue, when every issue has
/// one.
pub fn fsck_f2fs_silent(report: &blockwright_check::f2fs::Report) -> Option<&'static str> {
    let mut reason = None;
    let mended = f2fs::names(report).iter().any(|n| n == "CheckpointField");
    for issue in &report.issues {
        if issue.severity > Severity::Note {
            let name = f2fs::name(&issue.kind);
            // A count that cannot be is dropped, and counted anew.
            if mended
                && ["ValidBlocks", "ValidNodes", "ValidInodes", "FreeSegments"].contains(&&*name)
            {
                continue;
            }
            let known = MORE.iter().find(|(n, _)| *n == name).map(|(_, why)| *why);
            let zero = issue.kind.to_string().contains(": 0 links, counted");
            let zero = zero.then_some("it compares counts of links, but not a count of 0");
            let level = impossible_level(&issue.kind).then_some(
                "it does not mind impossible levels of directories whose names are in their inodes",
            );
            reason.get_or_insert(known.or(zero).or(level)?);
        }
    }
    reason
}
