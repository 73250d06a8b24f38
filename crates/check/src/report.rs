//! What a check found and did.

use std::fmt;

/// How bad an issue is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// Worth saying, but no damage to the volume's structure, which is as good as clean.
    Note,
    /// A count, flag or bitmap that disagrees with what it sums up; no data depends on it.
    Minor,
    /// A structure is wrong; data or names may be affected.
    Damage,
    /// The rest of the volume could not be checked because of it.
    Fatal,
}

impl Severity {
    /// Its name, which is stable: `note`, `minor`, `damage` or `fatal`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Minor => "minor",
            Severity::Damage => "damage",
            Severity::Fatal => "fatal",
        }
    }
}

/// What became of an issue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It is still there.
    Left,
    /// It was repaired.
    Repaired,
    /// It is still there, and no mode repairs it.
    Unrepairable,
}

impl Outcome {
    /// Its name, which is stable: `left`, `repaired` or `unrepairable`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Left => "left",
            Outcome::Repaired => "repaired",
            Outcome::Unrepairable => "unrepairable",
        }
    }
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Issue<K> {
    /// What was found, and where.
    pub kind: K,
    /// How bad it is.
    pub severity: Severity,
    /// What became of it.
    pub outcome: Outcome,
}

impl<K: fmt::Debug> Issue<K> {
    /// The name of its kind, which is stable: the variant's.
    #[must_use]
    pub fn kind_name(&self) -> String {
        // `Debug` begins with it.
        let mut text = format!("{:?}", self.kind);
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        text.truncate(end.unwrap_or(text.len()));
        text
    }
}

impl<K: fmt::Display> fmt::Display for Issue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.severity, self.outcome) {
            (_, Outcome::Repaired) => " (repaired)",
            (Severity::Note, _) => "",
            (_, Outcome::Left) => " (left)",
            (_, Outcome::Unrepairable) => " (cannot be repaired)",
        };
        write!(f, "{}{what}", self.kind)
    }
}

/// What was on the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Inodes of the volume.
    pub inodes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// Directories.
    pub directories: u64,
    /// Names in directories, "." and ".." not counted.
    pub names: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, fifos and sockets.
    pub specials: u64,
    /// Transactions replayed from the journal (in memory, or to the device).
    pub transactions_replayed: u64,
    /// Blocks written by the repair, the journal's replay not counted.
    pub blocks_written: u64,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report<K> {
    /// The findings, in the order found, each once.
    pub issues: Vec<Issue<K>>,
    /// Findings beyond the limit of the options, which are counted but not kept.
    pub suppressed: u64,
    /// Whether one of the suppressed findings is still there.
    pub suppressed_left: bool,
    /// What was on the volume.
    pub stats: Stats,
    /// Whether anything was written to the device.
    pub changed: bool,
}

impl<K> Report<K> {
    /// Whether nothing worse than a note was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.suppressed == 0 && self.issues.iter().all(|i| i.severity == Severity::Note)
    }

    /// Whether something worse than a note is still there.
    #[must_use]
    pub fn has_uncorrected(&self) -> bool {
        self.suppressed_left
            || self
                .issues
                .iter()
                .any(|i| i.severity > Severity::Note && i.outcome != Outcome::Repaired)
    }
}

/// The exit code `fsck` programs use: 0 clean, 1 corrected, 4 left uncorrected. (8, an operational
/// error, is what a check that returned an error instead of a report stands for.)
#[must_use]
pub fn fsck_exit_code<K>(report: &Report<K>) -> u8 {
    if report.has_uncorrected() {
        4
    } else if report.changed || !report.is_clean() {
        1
    } else {
        0
    }
}
