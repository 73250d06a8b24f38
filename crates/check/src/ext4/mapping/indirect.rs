//! Walking block maps: twelve direct blocks, then trees of one, two and three levels.

use blockwright_ondisk::ext4::{BlockNo, FileBlock};

use super::{MapSink, Piece, Walk};
use crate::ext4::CheckError;
use crate::ext4::issue::IssueKind;

/// Direct blocks in the inode.
pub(in crate::ext4) const DIRECT: u64 = 12;

fn word(bytes: &[u8], n: usize) -> u32 {
    bytes
        .get(n * 4..n * 4 + 4)
        .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Walks the block map of an inode.
pub(super) fn walk(walk: &Walk<'_>, sink: &mut dyn MapSink) -> Result<(), CheckError> {
    let area = &walk.inode.block;
    for n in 0..DIRECT {
        data(walk, sink, n, word(area, n as usize));
    }
    let per_block = u64::from(walk.geo.block_size / 4);
    let mut logical = DIRECT;
    let mut span = 1;
    for level in 1..=3u32 {
        span *= per_block;
        let block = word(area, 11 + level as usize);
        if block != 0 {
            tree(walk, sink, block, level, logical, span)?;
        }
        logical += span;
    }
    Ok(())
}

fn outside(walk: &Walk<'_>, block: u32) -> bool {
    !walk.geo.contains_run(BlockNo(u64::from(block)), 1)
}

fn data(walk: &Walk<'_>, sink: &mut dyn MapSink, logical: u64, block: u32) {
    if block == 0 {
        return;
    }
    if outside(walk, block) {
        sink.problem(IssueKind::BlockOutside {
            ino: walk.ino,
            logical: FileBlock(logical),
            block: BlockNo(u64::from(block)),
        });
        return;
    }
    sink.piece(Piece {
        logical,
        physical: BlockNo(u64::from(block)),
        len: 1,
        unwritten: false,
    });
}

/// `span` is how many file blocks the whole tree covers.
fn tree(
    walk: &Walk<'_>,
    sink: &mut dyn MapSink,
    block: u32,
    level: u32,
    logical: u64,
    span: u64,
) -> Result<(), CheckError> {
    let place = BlockNo(u64::from(block));
    if outside(walk, block) {
        sink.problem(IssueKind::BlockOutside {
            ino: walk.ino,
            logical: FileBlock(logical),
            block: place,
        });
        return Ok(());
    }
    if !sink.tree(place) {
        return Ok(());
    }
    let bytes = walk.store.read(place, "indirect block")?;
    let per_block = u64::from(walk.geo.block_size / 4);
    let step = span / per_block;
    for n in 0..per_block {
        let child = word(&bytes, n as usize);
        let at = logical + n * step;
        if child == 0 {
            continue;
        }
        if level == 1 {
            data(walk, sink, at, child);
        } else {
            tree(walk, sink, child, level - 1, at, step)?;
        }
    }
    Ok(())
}
