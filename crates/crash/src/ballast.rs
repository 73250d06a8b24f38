//! Files that no operation of a workload touches: cleaning moves them, and verification knows what they hold.

use crate::plan::{Rng, STALE};

/// Where a volume's ballast is: files that no operation touches, and cleaning moves.
pub(crate) const DIRECTORY: &str = "ballast";

/// How files there are called that come and go, and take room.
pub(crate) const USED_UP: &str = "used-up-";

/// What a file of the ballast holds.
pub(crate) fn contents(n: u64) -> Vec<u8> {
    let mut rng = Rng::new(n ^ 0xba11a57);
    // Most of them are a node and a block, so that segments of nodes have as many holes as those of data; some live in their inodes.
    let bytes = match n % 16 {
        0..13 => 4000,
        13 => 200,
        _ => 5000 + rng.below(60_000),
    };
    let word = rng.next();
    (0..bytes)
        .map(|at| {
            match (word ^ (at >> 12).wrapping_mul(0x9e37_79b9)).to_le_bytes()[at as usize % 8] {
                0 | STALE => 1,
                b => b,
            }
        })
        .collect()
}
