//! What e2fsck's words amount to, and where our verdict differs from its on purpose.

use blockwright_check::Severity;
use blockwright_check::ext4::{IssueKind, Report};
use blockwright_ondisk::ext4::{FormatError, Ino};

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

/// What we call damage and e2fsck does not mention:
/// - the head of an empty journal that says its log begins outside of it: the kernel refuses to
///   mount, e2fsck looks at the field only when there is something to replay;
/// - the resize inode's list, of which e2fsck compares the first quarter; the kernel compares all
///   of it before it grows a volume;
/// - a size no inline data can have, an extent block of another depth than its parent implies, a
///   file marked as holding an attribute value, an attribute's name with a zero byte in it: the kernel refuses each of
///   them;
/// - a block bitmap (its checksum wrong too) of a group that has no free block: e2fsck does not
///   seem to look at those; the kernel marks the group as corrupt;
/// - the head of the orphan list of a volume without a journal;
/// - a quota inode in the superblock of a volume without quota, if it has no name that e2fsck would take away;
/// - sectors, high halves and attribute blocks of reserved inodes, which e2fsck does not look at;
/// - a quota file whose tree leads to a block twice, of which e2fsck reads leaves only, or whose inode has no links:
///   the kernel does not turn quota on;
/// - a value whose size became smaller by less than its padding: e2fsck and the kernel hash the padding, too;
/// - an attribute block outside of the volume of an orphan file, which e2fsck does not look at;
/// - a journal device in the superblock of a volume whose journal is an inode: the kernel refuses to mount;
/// - a time after 2106 in the superblock: 1.47.0 looks at 32 bits.
pub fn stricter(report: &Report) -> bool {
    report
        .issues
        .iter()
        .filter(|i| i.severity > Severity::Note)
        .any(|i| match &i.kind {
            IssueKind::ResizeInode { .. }
            | IssueKind::InlineData { .. }
            | IssueKind::OrphanList { .. } => true,
            IssueKind::BlockBitmap { in_use: true, .. } => true,
            IssueKind::SuperblockField { field, .. } => field.ends_with("quota inode"),
            IssueKind::QuotaFile { what, .. } => {
                what.contains("loop") || what.contains("no such file")
            }
            IssueKind::FeatureContradiction { what } => what.starts_with("a journal device"),
            IssueKind::XattrBlockOutside { .. } => true,
            IssueKind::InodeReserved { what, .. } => what.starts_with("attributes"),
            IssueKind::InodeBlocks { ino, .. } | IssueKind::InodeFieldNotZero { ino, .. } => {
                *ino < Ino::FIRST_NON_RESERVED && *ino != Ino::ROOT
            }
            IssueKind::TimeInFuture { found, .. } => *found > u64::from(u32::MAX),
            IssueKind::ExtentNode { error, .. } => {
                matches!(*error.0, FormatError::ExtentDepth { .. })
            }
            IssueKind::InodeFlags { what, .. } => what.starts_with("attribute value"),
            IssueKind::XattrEntry { what, .. } => {
                what.contains("zero byte") || what.contains("hash does not match")
            }
            IssueKind::JournalSuperblock { error } => {
                matches!(*error.0, FormatError::JournalFirst { .. })
            }
            _ => false,
        })
}

/// Why fsck.f2fs may be silent about damage.
const MORE: [(&str, &str); 22] = [
    (
        "DirDepth",
        "it looks at every block, not where a lookup goes",
    ),
    ("DirEntry", "it repairs some slots without telling"),
    ("DirSize", "it looks at every block, not up to the size"),
    ("DirSlots", "it takes the length of a name for its slots"),
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

/// Why fsck.f2fs is silent about what we report, if that is known.
pub fn fsck_f2fs_silent(report: &blockwright_check::f2fs::Report) -> Option<&'static str> {
    let kinds = f2fs::names(report);
    MORE.iter()
        .find(|(name, _)| kinds.iter().any(|k| k == name))
        .map(|(_, reason)| *reason)
        .or_else(|| {
            f2fs::show(report)
                .contains(": 0 links, counted")
                .then_some("it compares counts of links, but not a count of 0")
        })
}
