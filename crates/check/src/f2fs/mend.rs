//! Fields of an inode that cannot be, put right by what the format implies.

use blockwright_ondisk::f2fs::inode::{
    self, EXTRA_BYTES, INLINE_XATTR_WORDS, NIDS_OFFSET, RawInodeHead, WORDS_OFFSET,
};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, Features, FileKind, FormatError, Geometry, InlineFlags, Ino, Inode,
};
use zerocopy::FromBytes;

/// An inode whose fields may be wrong: with those that can be guessed put right, and what was wrong
/// with them. `None` when it is no inode at all.
pub(super) fn decode(block: &[u8], ino: Ino, geo: &Geometry) -> Option<(Inode, Vec<FormatError>)> {
    let mut copy = block.to_vec();
    restore_extra_size(&mut copy, ino, geo);
    mend(&mut copy, ino, geo).ok()
}

/// Restores the length of the extra attributes where the inode's checksum says what it was: everything behind them depends on it. The wrong length
/// and the right one.
pub(super) fn restore_extra_size(block: &mut [u8], ino: Ino, geo: &Geometry) -> Option<(u16, u16)> {
    let expected = inode::extra_size_by_checksum(block, ino, geo)?;
    let place = block.get_mut(WORDS_OFFSET..WORDS_OFFSET + 2)?;
    let found = u16::from_le_bytes([place[0], place[1]]);
    place.copy_from_slice(&expected.to_le_bytes());
    Some((found, expected))
}

/// Puts the fields of an inode's block right.
pub(super) fn mend(
    block: &mut [u8],
    ino: Ino,
    geo: &Geometry,
) -> Result<(Inode, Vec<FormatError>), FormatError> {
    let mut errors = Vec::new();
    loop {
        match Inode::parse_unverified(block, ino, geo) {
            Ok(inode) => return Ok((inode, errors)),
            // Each repair removes one cause; the number of node numbers bounds the repeats.
            Err(error) if errors.len() < 16 && mend_one(block, &error, geo).is_some() => {
                errors.push(error);
            }
            Err(error) => return Err(error),
        }
    }
}

fn mend_one(block: &mut [u8], error: &FormatError, geo: &Geometry) -> Option<()> {
    let (head, words) = RawInodeHead::mut_from_prefix(block.get_mut(..BLOCK_SIZE)?).ok()?;
    match error {
        FormatError::InodeExtraSize { .. } => {
            if geo.features.contains(Features::EXTRA_ATTR) {
                words[..2].copy_from_slice(&(EXTRA_BYTES as u16).to_le_bytes());
            } else {
                head.inline &= !InlineFlags::EXTRA_ATTR.bits();
            }
        }
        FormatError::InodeXattrSize { .. } => {
            words[2..4].copy_from_slice(&(INLINE_XATTR_WORDS as u16).to_le_bytes());
        }
        FormatError::InodeInline { kind, .. } => {
            if *kind != FileKind::Directory {
                head.inline &= !InlineFlags::DENTRY.bits();
            }
            if !matches!(kind, FileKind::Regular | FileKind::Symlink) {
                head.inline &= !InlineFlags::DATA.bits();
            }
        }
        FormatError::InodeNameLength { .. } => head.namelen.set(0),
        FormatError::InodeDepth { .. } => head.current_depth.set(1),
        FormatError::InodeSize { max, .. } => head.size.set(*max),
        FormatError::InodeBlocks { .. } => head.blocks.set(1),
        FormatError::InodeExtent { .. } => head.ext.len.set(0),
        FormatError::InodeNode { nid, .. } => {
            if head.xattr_nid.get() == nid.0 {
                head.xattr_nid.set(0);
            }
            let nids = block.get_mut(NIDS_OFFSET..NIDS_OFFSET + 20)?;
            for word in nids.chunks_exact_mut(4) {
                if word == nid.0.to_le_bytes() {
                    word.fill(0);
                }
            }
        }
        _ => return None,
    }
    Some(())
}
