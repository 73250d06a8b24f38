//! Checking and repairing f2fs.
//!
//! A check reads both superblocks, both checkpoint packs, and with the newer valid pack the tables:
//! the NAT (which nodes exist) and the SIT (which blocks are in use). Then rounds go over the whole
//! volume: every node that the NAT names and every address in it, directories, connectivity and link
//! counts, and at last the SIT, the summaries and the counts that sum everything up. Repairs change
//! an overlay in memory, so the next round sees them; rounds go on until one changes nothing. Only
//! then is anything written: as a new checkpoint, so that a crash leaves the old one. A read-only
//! check is one round without repairs.
//!
//! Files written by fsync since the checkpoint are not part of what is checked: the next mount
//! recovers them. They are found and reported, and so is what a mount refuses to recover. As a new
//! checkpoint would lose them, nothing is repaired while they wait, unless a mount refuses them and the caller gives them up
//! ([`CheckOptions::discard_fsynced`]).
//!
//! Not responsible for: the meaning of files' contents (except that compressed files which cannot be unpacked are
//! reported), encrypted names.
//!
//! Invariants: work is bounded by what the volume holds (every node is followed once), memory by
//! nodes, directory blocks and segments in use.

mod clusters;
mod context;
mod directories;
mod dirents;
mod grow;
mod inodes;
mod issue;
mod links;
mod load;
mod mend;
mod nodes;
mod pack;
mod place;
mod quota;
mod recovery;
mod segments;
mod state;
mod store;
mod superblock;
mod tables;
mod usage;
mod write;
mod xattrs;

use blockwright_device::{DeviceError, SharedDevice};
use blockwright_ondisk::f2fs::{BlockAddr, FormatError};
use thiserror::Error;

pub use issue::{FormatErrorBox, IssueKind};
pub use usage::usage;

use crate::{Mode, ProgressFn};
use context::Checker;

/// What an f2fs check found and did.
pub type Report = crate::report::Report<IssueKind>;
/// What each block of an f2fs volume holds.
pub type Usage = crate::usage::Usage<IssueKind>;
/// One finding of an f2fs check.
pub type Issue = crate::report::Issue<IssueKind>;

/// Rounds after which repairing is given up: damage that repairs keep uncovering.
const ROUNDS_MAX: usize = 16;

blockwright_device::with_defaults! {
/// What to check and what may be changed.
#[derive(Clone)]
pub struct CheckOptions {
    /// What may be changed.
    pub mode: Mode = Mode::ReadOnly,
    /// Keep at most this many issues; the rest is counted.
    pub max_issues: usize = 10_000,
    /// Called with the progress; stops the check when it breaks.
    pub progress: Option<ProgressFn> = None,
    /// With [`Mode::Yes`]: gives up what fsync wrote since the last checkpoint, where a mount refuses to recover it, instead of leaving the whole
    /// volume as it is. Each file is reported, and then is as the checkpoint has it. What a mount recovers is never given up.
    pub discard_fsynced: bool = false,
}
}

impl std::fmt::Debug for CheckOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckOptions")
            .field("mode", &self.mode)
            .field("max_issues", &self.max_issues)
            .field("discard_fsynced", &self.discard_fsynced)
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
    /// Neither copy of the superblock can be used.
    #[error("no usable superblock ({source})")]
    NoSuperblock {
        /// What is wrong with the first copy.
        source: FormatError,
    },
    /// Neither checkpoint pack can be used: nothing says where the volume's nodes are.
    #[error("no usable checkpoint ({source})")]
    NoCheckpoint {
        /// What is wrong with the first pack.
        source: FormatError,
    },
    /// The volume uses features that this check does not know, or spans several devices.
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
        block: BlockAddr,
    },
    /// The function that is told the progress stopped the check.
    #[error("interrupted; nothing was changed")]
    Interrupted,
}

/// Checks a volume, and repairs it as `options.mode` allows.
///
/// # Errors
/// When nothing could be said about the volume: the device failed, it is no f2fs volume, it has no
/// usable checkpoint, or it uses unknown features. Damage is not an error but an issue of the report.
pub fn check(device: SharedDevice, options: &CheckOptions) -> Result<Report, CheckError> {
    if options.mode != Mode::ReadOnly && device.geometry().read_only {
        return Err(CheckError::ReadOnlyDevice);
    }
    let mut checker = Checker::open(device, options)?;
    for round in 0..ROUNDS_MAX {
        checker.begin_round(round);
        if !checker.run_round()? {
            // Without a root nothing has a name: repairs would lose everything.
            return Ok(checker.finish_left());
        }
        if checker.mode() == Mode::Preen && checker.log.unsafe_in_round() {
            return Ok(checker.finish_left());
        }
        if !checker.repairing() || !checker.changed_in_round() {
            break;
        }
    }
    checker.check_cluster_contents()?;
    checker.finish()
}

/// Whether a device holds an f2fs superblock, by the magic of either copy.
///
/// # Errors
/// When the device cannot be read.
pub fn is_f2fs(device: &SharedDevice) -> Result<bool, CheckError> {
    superblock::has_magic(device)
}

impl Checker {
    /// Looks at everything once. `false`: there is no root directory.
    fn run_round(&mut self) -> Result<bool, CheckError> {
        let rooted = self.check_nodes()?;
        self.check_directories()?;
        self.check_links()?;
        self.check_segments()?;
        self.check_logs()?;
        self.check_counts();
        self.check_quota()?;
        Ok(rooted)
    }
}
