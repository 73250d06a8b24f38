//! Makes f2fs volumes.
//!
//! [`plan`] decides everything (sizes, the node number and the blocks of each file) in memory; [`write()`]
//! puts a plan on a device. [`format()`] does both for an empty volume, [`smallest`] finds the smallest
//! volume that a tree fits.
//!
//! Each of the six logs gets one stretch of segments, filled from its begin: so every file lies in one
//! piece, a directory's inodes lie beside one another, and logs go on where they would after an
//! unmount. Without a tree, sizes and places are those that mkfs.f2fs chooses.
//!
//! # Crash order
//! The superblocks are wiped first and written last, each behind a flush: a volume that was being made
//! when the power failed is not taken for one.
//!
//! # Determinism
//! A plan is a function of options and tree alone. With `uuid` and `now` given, the same input makes
//! the same bytes; nothing else is random, and no clock is read.

mod dirs;
mod files;
mod inodes;
mod logs;
mod options;
mod plan;
mod shape;
mod size;
mod tables;
mod write;

pub use options::FormatOptions;
pub use plan::{FormatReport, Plan, plan};
pub use size::smallest;
pub use write::write;

use crate::Result;
use crate::output::NoData;
use crate::tree::{NodeId, Tree};
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

/// The name of a node for messages: there is none in the tree itself.
fn describe(id: NodeId) -> String {
    format!("file {} of the sources", id.0)
}
