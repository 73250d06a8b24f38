//! The smallest volume that a tree fits.

use super::base::{Base, INODES_TIMES_MAX};
use super::options::FormatOptions;
use super::plan::plan_over;
use super::planned::Plan;
use crate::options::SizeGoal;
use crate::tree::Tree;
use crate::{MkfsError, Result};

/// Bytes per block of a volume whose size is to be found, when not given.
const BLOCK_BYTES: u32 = 4096;

/// Inodes that the format has for itself, and a few that features may add.
const OWN_INODES: u64 = 18;

/// Plans the smallest volume that holds `tree` and has the room asked for. Options without a block
/// size get 4096-byte blocks; without a number or ratio of inodes, the volume has as many as the
/// tree and its free room need (one for 16 KiB of room).
///
/// The result is minimal within the unit that group and inode-table boundaries impose: a volume
/// one percent (and at least 64 blocks) smaller of the same options does not hold the tree.
///
/// # Errors
/// As [`super::plan`], but never for lack of space below the format's limits.
pub fn smallest(
    options: &FormatOptions,
    tree: &Tree,
    goal: SizeGoal,
) -> Result<(FormatOptions, Plan)> {
    smallest_over(options, tree, goal, None)
}

/// As [`smallest`], on top of an earlier build. Its number of inodes is kept if it is enough, and at most four times what the tree and its free room need.
///
/// # Errors
/// As [`smallest`] and [`plan_over`].
pub fn smallest_over(
    options: &FormatOptions,
    tree: &Tree,
    goal: SizeGoal,
    base: Option<&Base>,
) -> Result<(FormatOptions, Plan)> {
    let mut options = options.clone();
    let block = u64::from(*options.block_bytes.get_or_insert(BLOCK_BYTES));
    if options.inodes.is_none() && options.inode_ratio.is_none() {
        let own = tree.reachable().len() as u64 + OWN_INODES;
        let needed = own + goal.free_bytes / 16_384;
        let before = base.map(|base| u64::from(base.inodes)).filter(|before| {
            (needed..=needed.saturating_mul(u64::from(INODES_TIMES_MAX))).contains(before)
        });
        options.inodes = Some(before.unwrap_or(needed));
    }
    let goal_blocks = goal.free_bytes.div_ceil(block);
    // How many blocks a volume of this many lacks; negative when it has more than enough.
    let attempt = |blocks: u64| -> Result<(i128, Option<Plan>)> {
        match plan_over(&options, tree, blocks.saturating_mul(block), base) {
            Ok(p) => {
                let report = p.report();
                let room = report.free_blocks.saturating_sub(if goal_blocks > 0 {
                    report.reserved_blocks
                } else {
                    0
                });
                Ok((i128::from(goal_blocks) - i128::from(room), Some(p)))
            }
            Err(MkfsError::NoSpace { missing, .. }) => {
                Ok((i128::from(missing) + i128::from(goal_blocks), None))
            }
            Err(MkfsError::TooSmall { .. }) => Ok((i128::from(blocks / 4 + 16), None)),
            // Very many inodes in very few groups: more groups will do.
            Err(MkfsError::Option { option: "-N", .. })
                if options.inodes.unwrap_or(0) < 1 << 32 =>
            {
                Ok((i128::from(blocks / 2 + 64), None))
            }
            Err(e) => Err(e),
        }
    };
    // Up, by what is missing, until it fits.
    let data: u64 = tree
        .nodes
        .iter()
        .flat_map(|n| &n.data)
        .map(|r| (r.end - r.start).div_ceil(block))
        .sum();
    let mut blocks = data + goal_blocks + 64;
    let mut too_small = 0;
    let mut best = loop {
        match attempt(blocks)? {
            (lacking, Some(p)) if lacking <= 0 => break (blocks, lacking, p),
            (lacking, _) => {
                too_small = blocks;
                let step = u64::try_from(lacking.max(1)).unwrap_or(u64::MAX);
                blocks = blocks
                    .checked_add(step)
                    .filter(|b| *b < 1 << 48)
                    .ok_or_else(|| {
                        MkfsError::option("--size", "the contents need more than any volume has")
                    })?;
            }
        }
    };
    // Down: first by what is left over, then by halves, since steps of the journal's size and of
    // dropped last groups make the need uneven.
    for round in 0..24 {
        let gap = best.0 - too_small;
        if gap <= 1 {
            break;
        }
        let spare = u64::try_from(-best.1).unwrap_or(0);
        let step = if round % 2 == 0 && spare > 0 {
            spare
        } else {
            gap / 2
        };
        let try_blocks = best.0 - step.clamp(1, gap - 1);
        match attempt(try_blocks)? {
            (lacking, Some(p)) if lacking <= 0 => best = (try_blocks, lacking, p),
            _ => too_small = too_small.max(try_blocks),
        }
    }
    options.bytes = Some(best.2.report().bytes);
    Ok((options, best.2))
}
