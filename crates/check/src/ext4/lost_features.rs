//! Finds the features that a volume must have had although its superblock lists none that matter.
//!
//! Believing such a superblock would cost every file its extents, and the volume its names. No
//! volume that a tool made in this century has no features at all but by wish, and then nothing on
//! it speaks against it.

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::extent::{ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileKind, GroupDesc, GroupNo, Incompat, Ino, Inode, InodeFlags, RawSuperblock,
    RoCompat, Superblock,
};

use super::CheckError;
use super::store::Store;

/// The code of CRC-32C, stored in the superblock by every tool that enables metadata checksums.
const CHECKSUM_CRC32C: u8 = 1;

/// Whether a superblock that could have features has none that matter. (Compatible features may still be set: they change
/// nothing for a reader that ignores them.)
pub(super) fn suspected(sb: &Superblock) -> bool {
    let raw = &sb.raw;
    let words = [raw.feature_incompat.get(), raw.feature_ro_compat.get()];
    raw.rev_level.get() > 0 && words == [0; 2]
}

/// The superblock with the features that the root directory and other fields show; `None` when
/// they show none.
pub(super) fn evident(
    device: &SharedDevice,
    sb: &Superblock,
) -> Result<Option<RawSuperblock>, CheckError> {
    let geo = &sb.geo;
    let size = u64::from(geo.block_size);
    let read = |block: BlockNo, what| {
        let at = block.0.saturating_mul(size);
        if !geo.contains_run(block, 1) {
            return Ok(None);
        }
        Store::read_bytes(&**device, at, geo.block_len(), what).map(Some)
    };
    let Some(descs) = geo.desc_block(0) else {
        return Ok(None);
    };
    let Some(bytes) = read(descs, "group descriptors")? else {
        return Ok(None);
    };
    let (_, at) = geo.desc_position(GroupNo(0));
    let desc = bytes.get(at..).map(|raw| GroupDesc::decode(raw, geo));
    let Some(Ok(desc)) = desc else {
        return Ok(None);
    };
    let Some((block, at)) = geo.inode_location(Ino::ROOT, desc.inode_table) else {
        return Ok(None);
    };
    let Some(bytes) = read(block, "inode table")? else {
        return Ok(None);
    };
    let root = bytes
        .get(at..at + usize::from(geo.inode_size))
        .map(|raw| Inode::decode(raw, geo, Ino::ROOT));
    let Some(Ok(root)) = root else {
        return Ok(None);
    };
    if root.kind() != Some(FileKind::Directory) {
        return Ok(None);
    }
    let word = u32::from_le_bytes([root.block[0], root.block[1], root.block[2], root.block[3]]);
    let mut first = BlockNo(u64::from(word));
    let mut extents = false;
    if root.flags.contains(InodeFlags::EXTENTS)
        && let Ok(node) = ExtentNode::parse(&root.block, NodePlace::Inode, NodeRules::ROOT, geo)
    {
        extents = true;
        // A deeper tree is evidence enough.
        first = node.extents().next().map_or(BlockNo(0), |e| e.physical);
    }
    let mut typed = false;
    if first.0 != 0
        && let Some(entries) = read(first, "root directory")?
    {
        let dot =
            entries[..4] == Ino::ROOT.0.to_le_bytes() && entries[6] == 1 && entries[8] == b'.';
        typed = dot && entries[7] == FileKind::Directory.dirent_code();
    }
    if !extents && !typed {
        return Ok(None);
    }
    Ok(Some(with_features(sb.raw, extents)))
}

fn with_features(mut raw: RawSuperblock, extents: bool) -> RawSuperblock {
    let mut f = raw.features();
    f.incompat |= Incompat::FILETYPE;
    // Features that every mke2fs sets together with file types in directories.
    f.ro_compat |= RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE;
    if f.compat.is_empty() {
        f.compat |= Compat::EXT_ATTR | Compat::DIR_INDEX;
        f.compat
            .set(Compat::HAS_JOURNAL, raw.journal_inum.get() != 0);
        f.compat
            .set(Compat::RESIZE_INODE, raw.reserved_gdt_blocks.get() != 0);
    }
    if extents {
        f.incompat |= Incompat::EXTENT;
        f.ro_compat |= RoCompat::HUGE_FILE | RoCompat::DIR_NLINK;
        let extra = raw.min_extra_isize.get() != 0;
        f.ro_compat.set(RoCompat::EXTRA_ISIZE, extra);
        f.incompat
            .set(Incompat::FLEX_BG, raw.log_groups_per_flex != 0);
        f.incompat.set(Incompat::BIT64, raw.desc_size.get() > 32);
        f.ro_compat.set(
            RoCompat::METADATA_CSUM,
            raw.checksum_type == CHECKSUM_CRC32C,
        );
    }
    raw.set_features(f);
    raw
}
