//! Makes ext2, ext3 and ext4 volumes.
//!
//! [`plan`] decides everything (sizes, places, the inode and the blocks of each file) in memory;
//! [`write()`] puts a plan on a device. [`format()`] does both for an empty volume, [`smallest`] finds
//! the smallest volume that a tree fits.
//!
//! # Crash order
//! The primary superblock is wiped first and written last, each behind a flush: a volume that was
//! being made when the power failed is not taken for one.
//!
//! # Determinism
//! A plan is a function of options and tree alone. With `uuid` and `now` given, the same input
//! makes the same bytes; nothing else is random, and no clock is read.

mod base;
mod files;
mod groups;
mod journal_device;
mod layout;
mod mapping;
mod options;
mod plan;
mod planned;
mod shape;
mod size;
mod space;
mod special;
mod write;
mod xattrs;

pub use crate::options::Before;
pub use crate::options::SizeGoal;
pub use crate::output::{DataSource, Progress, ProgressFn};
pub use base::{Base, BaseFile};
pub use journal_device::{JournalOptions, format_journal, format_journal_watched};
pub use options::{FormatOptions, FsType, JournalName};
pub use plan::{plan, plan_over};
pub use planned::{FormatReport, Plan};
pub use size::{smallest, smallest_over};
pub use write::write;

use crate::Result;
use crate::output::NoData;
use crate::tree::Tree;
use blockwright_device::SharedDevice;
use std::ops::ControlFlow;

/// Makes an empty volume on all of `device`, or on its first `options.bytes`.
///
/// # Errors
/// Options that are invalid or do not fit the device; failures of the device.
pub fn format(device: &SharedDevice, options: &FormatOptions) -> Result<FormatReport> {
    let tree = Tree::empty(options.now, options.root_owner);
    let bytes = options.bytes.unwrap_or_else(|| device.geometry().bytes);
    let plan = plan(options, &tree, bytes)?;
    write(
        device,
        &plan,
        &tree,
        &NoData,
        &|_| ControlFlow::Continue(()),
    )?;
    Ok(plan.report())
}
