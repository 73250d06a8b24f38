//! Checking and repairing ext2, ext3 and ext4.
//!
//! A check is a sequence of rounds over the whole volume; each looks at the superblock and the
//! groups, the inodes and what they map, blocks used twice, directories, connectivity, link
//! counts, and at last the bitmaps and counts that sum everything up. Repairs change an overlay of
//! blocks in memory, so the next round sees them; rounds go on until one changes nothing. Only
//! then is the overlay written. A read-only check is one round without repairs.
//!
//! The journal comes first: read-only, its transactions become part of the overlay and what is
//! checked is the volume as a mount would find it; otherwise they are written to their places
//! before anything else is looked at.
//!
//! Not responsible for: the meaning of files' contents, encrypted names.
//!
//! Invariants: work is bounded by what the volume holds (every tree block is followed once, every
//! list is cut at its possible length), memory by used inodes, directory blocks and groups in use.

mod attributes;
mod bitmaps;
mod blockmap;
mod connectivity;
mod context;
mod dir_rebuild;
mod dir_repair;
mod directories;
mod fast_commit;
mod fast_commit_apply;
mod first_table;
mod groups;
mod htree;
mod inline_data;
mod inode_fields;
mod inodes;
mod issue;
mod journal;
mod journal_rebuild;
mod layout_features;
mod links;
mod log_area;
mod log_end;
mod lost_features;
mod map_repair;
mod mapping;
mod marks;
mod orphans;
mod place;
mod quota;
mod replay;
mod resize_inode;
mod shared;
mod special;
mod state;
mod store;
mod superblock;
mod usage;
mod value_inodes;

use std::fmt;

use blockwright_device::{DeviceError, SharedDevice};
use blockwright_ondisk::ext4::{BlockNo, FormatError};
use thiserror::Error;

pub use crate::progress::{Phase, Progress, ProgressFn};
pub use issue::{FormatErrorBox, IssueKind, Metadata, Owner};
pub use usage::usage;

use crate::Mode;
use context::Checker;

/// What an ext4 check found and did.
pub type Report = crate::report::Report<IssueKind>;
/// What each block of an ext4 volume holds.
pub type Usage = crate::usage::Usage<IssueKind>;
/// One finding of an ext4 check.
pub type Issue = crate::report::Issue<IssueKind>;

/// Rounds after which repairing is given up: damage that repairs keep uncovering.
const ROUNDS_MAX: usize = 16;
/// Rounds that began anew because inodes in use were found where there should be none; they change
/// nothing else. Each finds at least a group's.
const RESTARTS_MAX: usize = 64;

blockwright_device::with_defaults! {
/// What to check and what may be changed.
#[derive(Clone)]
pub struct CheckOptions {
    /// What may be changed.
    pub mode: Mode = Mode::ReadOnly,
    /// Use the superblock in this block instead of the primary one.
    pub superblock: Option<u64> = None,
    /// Keep at most this many issues; the rest is counted.
    pub max_issues: usize = 10_000,
    /// The device that the journal is on, when it is not on the volume.
    pub journal: Option<SharedDevice> = None,
    /// Called with the progress; stops the check when it breaks.
    pub progress: Option<ProgressFn> = None,
}
}

impl fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckOptions")
            .field("mode", &self.mode)
            .field("superblock", &self.superblock)
            .field("max_issues", &self.max_issues)
            .finish_non_exhaustive()
    }
}

/// Why a volume could not be checked at all.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The device failed.
    #[error("{what}: {source}")]
    Device {
        /// What was being read or written.
        what: &'static str,
        /// The device's error.
        source: DeviceError,
    },
    /// There is no superblock anywhere it could be.
    #[error("no usable superblock, and no usable copy of it ({source})")]
    NoSuperblock {
        /// What is wrong with the primary one.
        source: FormatError,
    },
    /// The device ends before a superblock would.
    #[error("no file system: {bytes} bytes are too small for a superblock (it ends at 2 KiB)")]
    TooSmall {
        /// Whole sectors of the device, in bytes.
        bytes: u64,
    },
    /// The block that was named holds no usable copy of the superblock, for no block size.
    #[error("no usable superblock copy at block {block} ({source})")]
    NoSuperblockCopy {
        /// The block, as it was named.
        block: u64,
        /// The fault of a structure that is present.
        source: FormatError,
    },
    /// The log to be replayed is on another device, which was not named.
    #[error(
        "the journal is on another device, with UUID {}, and holds what was not written to the volume yet: name it (--journal)",
        show_uuid(uuid)
    )]
    JournalElsewhere {
        /// The journal's UUID.
        uuid: [u8; 16],
    },
    /// The named device cannot be the journal's.
    #[error("journal device: {what}")]
    JournalDevice {
        /// What is wrong with it.
        what: String,
    },
    /// The superblock claims groups of which nothing is there.
    #[error(
        "the superblock claims {groups} groups, and the metadata of {missing} or more of them is missing: no volume of that size was ever made here"
    )]
    GroupsMissing {
        /// Groups of the volume.
        groups: u32,
        /// How many were looked at and missing.
        missing: u32,
    },
    /// The device ends before the volume does.
    #[error("{source}")]
    DeviceTooSmall {
        /// The sizes.
        source: FormatError,
    },
    /// The volume uses features that this check does not know.
    #[error("unsupported features: {}", names.join(", "))]
    Unsupported {
        /// Their names.
        names: Vec<String>,
    },
    /// Repair was asked for, but the device cannot be written.
    #[error("the device is read-only")]
    ReadOnlyDevice,
    /// A structure led outside of the volume.
    #[error("{what}: block {block} is outside of the volume")]
    OutsideVolume {
        /// What was being read.
        what: &'static str,
        /// The block.
        block: BlockNo,
    },
    /// The function that is told the progress stopped the check.
    #[error("interrupted; {}", match journal_recovered {
        true => "the journal was recovered, and nothing else was changed",
        false => "nothing was changed",
    })]
    Interrupted {
        /// The journal was replayed or emptied on the device before. Repairs were not written.
        journal_recovered: bool,
    },
    /// Multiple-mount protection says that the volume is mounted elsewhere.
    #[error("in use by host \"{host}\" (multiple-mount protection)")]
    InUse {
        /// The host.
        host: String,
    },
}

/// A UUID as it is written.
fn show_uuid(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}

/// Checks a volume, and repairs it as `options.mode` allows.
///
/// # Errors
/// When nothing could be said about the volume: the device failed, it is no ext4 volume, or it
/// uses unknown features. Damage is not an error but an issue of the report.
pub fn check(device: SharedDevice, options: &CheckOptions) -> Result<Report, CheckError> {
    if options.mode != Mode::ReadOnly && device.geometry().read_only {
        return Err(CheckError::ReadOnlyDevice);
    }
    let mut checker = Checker::open(device, options)?;
    // The journal's inode is in the first table.
    checker.seek_first_table()?;
    checker.recover_journal()?;
    checker.check_room_for_fast_commits()?;
    let (mut rounds, mut restarts) = (0, 0);
    while rounds < ROUNDS_MAX {
        checker.begin_round(rounds + restarts);
        checker.run_round()?;
        if checker.mode() == Mode::Preen && checker.log.unsafe_in_round() {
            checker.store.discard_changes();
            return checker.finish_left();
        }
        if checker.scan.marks_raised && restarts < RESTARTS_MAX {
            restarts += 1;
            continue;
        }
        rounds += 1;
        if !checker.repairing() {
            break;
        }
        if !checker.changed_in_round()
            && !checker.rebuild_indexes()?
            && !checker.give_up_broken_journal()?
            && !checker.rebuild_journal()?
        {
            break;
        }
    }
    checker.finish()
}

impl Checker {
    /// Looks at everything once.
    fn run_round(&mut self) -> Result<(), CheckError> {
        self.check_superblock()?;
        self.check_groups()?;
        self.check_orphan_list()?;
        self.check_inodes()?;
        self.check_special_inodes()?;
        if self.raise_marks()? || self.mark_holders()? {
            return self.store_superblock();
        }
        self.check_shared_blocks()?;
        self.repair_mappings()?;
        if self.scan.restart {
            return self.store_superblock();
        }
        self.check_attribute_references()?;
        self.check_directories()?;
        if self.scan.restart {
            return self.store_superblock();
        }
        self.check_connectivity()?;
        self.reconnect_all()?;
        if self.scan.restart_links {
            return self.store_superblock();
        }
        self.check_links()?;
        self.reconnect_all()?;
        if self.scan.restart_links {
            return self.store_superblock();
        }
        self.check_bitmaps()?;
        self.check_quota()?;
        self.store_superblock()
    }

    /// Writes everything, and says what became of each issue.
    fn finish(mut self) -> Result<Report, CheckError> {
        let mut written = 0;
        let due = self.store.pending() > 0 || self.marks_are_outdated();
        if self.mode() != Mode::ReadOnly && due {
            if self.store.pending() > 0 {
                self.store_desc_copies()?;
            }
            self.mark_checked()?;
            let superblock = self.geo.super_block();
            written = self.store.write_back(superblock)?;
        }
        self.scan.stats.blocks_written = written;
        self.scan.stats.transactions_replayed = self.replayed;
        let changed = written > 0 || self.wrote_journal;
        Ok(self.log.into_report(self.scan.stats, changed, false))
    }

    /// Ends a check that found what its mode must not repair: nothing more is written.
    fn finish_left(self) -> Result<Report, CheckError> {
        let mut stats = self.scan.stats;
        stats.transactions_replayed = self.replayed;
        Ok(self.log.into_report(stats, self.wrote_journal, true))
    }
}
