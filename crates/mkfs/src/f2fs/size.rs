//! The smallest volume that a tree fits.

use super::options::FormatOptions;
use super::plan::{Plan, plan};
use crate::options::SizeGoal;
use crate::tree::Tree;
use crate::{MkfsError, Result};
use blockwright_ondisk::f2fs::types::{BLOCK_BITS, LOG_BLOCKS_PER_SEG};

/// Bytes of a segment.
const SEGMENT_BYTES: u64 = 1 << (BLOCK_BITS + LOG_BLOCKS_PER_SEG);
/// Most segments of a volume.
const SEGMENTS_MAX: u64 = 16 << 40 >> (BLOCK_BITS + LOG_BLOCKS_PER_SEG);

/// Plans the smallest volume that holds `tree` and has the room asked for, in whole segments.
///
/// The result is minimal: a volume one segment smaller of the same options does not hold the tree.
///
/// # Errors
/// As [`plan`], but never for lack of space below the format's limits.
pub fn smallest(
    options: &FormatOptions,
    tree: &Tree,
    goal: SizeGoal,
) -> Result<(FormatOptions, Plan)> {
    let goal_blocks = goal.free_bytes.div_ceil(1 << BLOCK_BITS);
    // The same UUID for all attempts.
    let mut options = options.clone();
    options
        .uuid
        .get_or_insert_with(|| *uuid::Uuid::new_v4().as_bytes());
    let attempt = |segments: u64| -> Result<Option<Plan>> {
        match plan(&options, tree, segments * SEGMENT_BYTES) {
            Ok(p) if p.report().free_blocks >= goal_blocks => Ok(Some(p)),
            Ok(_)
            | Err(
                MkfsError::NoSpace { .. } | MkfsError::TooSmall { .. } | MkfsError::NoInodes { .. },
            ) => Ok(None),
            Err(e) => Err(e),
        }
    };
    let data: u64 = tree
        .nodes
        .iter()
        .flat_map(|n| &n.data)
        .map(|r| r.end - r.start)
        .sum();
    // Up until it fits, then halve the gap.
    let mut fits = (data + goal.free_bytes) / SEGMENT_BYTES + 16;
    let mut too_small = 0;
    let mut best = loop {
        match attempt(fits.min(SEGMENTS_MAX))? {
            Some(p) => break p,
            None if fits >= SEGMENTS_MAX => {
                return Err(MkfsError::option(
                    "--size",
                    "the contents need more than any volume has",
                ));
            }
            None => {
                too_small = fits;
                fits += fits / 4 + 4;
            }
        }
    };
    fits = fits.min(SEGMENTS_MAX);
    while fits - too_small > 1 {
        let middle = too_small + (fits - too_small) / 2;
        match attempt(middle)? {
            Some(p) => (fits, best) = (middle, p),
            None => too_small = middle,
        }
    }
    options.bytes = Some(best.report().bytes);
    Ok((options, best))
}
