//! Features that say where metadata is and how it is read, when what is on the volume speaks against those of the superblock.
//!
//! One wrong bit of them costs everything: with `bigalloc` no file may have a block map, without `flex_bg` no table may be in another group. A mount
//! does not change these features. Tools do that make a volume, tune it or change its size: mke2fs, tune2fs, resize2fs, Linux when it grows a mounted
//! volume (`meta_bg`), and this project's mkfs and reshape. All of them write the superblock's copies as well, at the end. So where the copy's features
//! fit what is on the volume better than the superblock's own, they are the volume's; and after a change that was cut off before its end, they do not.
//!
//! What the device cannot read speaks neither for nor against features: the caller decides whether it may go on with those of the superblock.

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::dir::DirFormat;
use blockwright_ondisk::ext4::extent::{ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, Features, FileKind, Geometry, GroupDesc, GroupNo, Incompat, Ino, Inode,
    InodeFlags, RawSuperblock, RoCompat, Superblock,
};

use super::CheckError;
use super::groups::location_problem;
use super::store::Store;

/// Blocks of descriptors that are looked at: enough to tell, and no more work on a volume that claims many.
const DESC_BLOCKS_MAX: u32 = 16;

/// The superblock's features with those of the layout from another.
fn with_layout_of(mut features: Features, copy: Features) -> Features {
    let incompat = Incompat::FILETYPE | Incompat::META_BG | Incompat::BIT64 | Incompat::FLEX_BG;
    let ro_compat = RoCompat::SPARSE_SUPER | RoCompat::BIGALLOC;
    let compat = Compat::SPARSE_SUPER2;
    features.incompat = (features.incompat - incompat) | (copy.incompat & incompat);
    features.ro_compat = (features.ro_compat - ro_compat) | (copy.ro_compat & ro_compat);
    features.compat = (features.compat - compat) | (copy.compat & compat);
    features
}

/// A superblock whose features of the layout fit what is on the volume, when those of `sb` do not. `copy` looks for a copy of the superblock;
/// `lenient` makes a geometry.
///
/// # Errors
/// When the device fails.
pub(super) fn fitting(
    device: &SharedDevice,
    sb: &Superblock,
    copy: impl FnOnce() -> Option<Superblock>,
    lenient: impl Fn(&RawSuperblock) -> Option<Superblock>,
) -> Result<Option<Superblock>, CheckError> {
    let mut least = contradictions(device, &sb.geo)?;
    if least == 0 {
        return Ok(None);
    }
    let own = sb.raw.features();
    let mut candidates = Vec::new();
    if let Some(copy) = copy()
        && copy.raw.uuid == sb.raw.uuid
    {
        candidates.push(with_layout_of(own, copy.raw.features()));
    }
    let mut typed = own;
    typed.incompat |= Incompat::FILETYPE;
    candidates.push(typed);
    let mut best = None;
    for features in candidates.into_iter().filter(|f| *f != own) {
        let mut raw = sb.raw;
        raw.set_features(features);
        let Some(other) = lenient(&raw) else { continue };
        let against = contradictions(device, &other.geo)?;
        if against < least {
            least = against;
            best = Some(other);
        }
    }
    Ok(best)
}

/// Which features one superblock lacks that the other has, and the other way round.
pub(super) fn difference(found: &Superblock, fitting: &Superblock) -> String {
    let (found, fitting) = (found.raw.features().names(), fitting.raw.features().names());
    let missing = fitting.iter().filter(|name| !found.contains(name));
    let surplus = found.iter().filter(|name| !fitting.contains(name));
    let all: Vec<String> = (missing.map(|name| format!("{name} is not set")))
        .chain(surplus.map(|name| format!("{name} is set")))
        .collect();
    all.join(", ")
}

/// Whether a group has a copy of the superblock where it has structures of its own, as its descriptor says. They cannot be there.
fn covers_super_block(desc: &GroupDesc, geo: &Geometry, group: GroupNo) -> bool {
    let table = desc.inode_table.0;
    let end = table.saturating_add(u64::from(geo.inode_table_blocks));
    geo.group_super_block(group).is_some_and(|copy| {
        desc.block_bitmap == copy || desc.inode_bitmap == copy || (table..end).contains(&copy.0)
    })
}

/// How much of a volume contradicts its features.
///
/// # Errors
/// When the device fails.
fn contradictions(device: &SharedDevice, geo: &Geometry) -> Result<u64, CheckError> {
    let read = |block: BlockNo, what| {
        let at = block.0.saturating_mul(u64::from(geo.block_size));
        if !geo.contains_run(block, 1) {
            return Ok(None);
        }
        Store::read_bytes(&**device, at, geo.block_len(), what).map(Some)
    };
    let mut count = 0;
    let mut root = None;
    for index in 0..geo.desc_blocks.min(DESC_BLOCKS_MAX) {
        let Some(place) = geo.desc_block(index) else {
            break;
        };
        let first = index.saturating_mul(geo.descs_per_block);
        let last = first.saturating_add(geo.descs_per_block);
        let groups = first..last.min(geo.groups_count);
        let Some(bytes) = read(place, "group descriptors")? else {
            // They are nowhere.
            count += groups.len() as u64;
            continue;
        };
        for group in groups.map(GroupNo) {
            let (_, at) = geo.desc_position(group);
            let desc = bytes.get(at..).map(|raw| GroupDesc::decode(raw, geo));
            let Some(Ok(desc)) = desc else { continue };
            let against = location_problem(&desc, geo, group).is_some()
                || covers_super_block(&desc, geo, group);
            count += u64::from(against);
            if group.0 == 0 {
                root = Some(desc.inode_table);
            }
        }
    }
    let Some((block, at)) = root.and_then(|table| geo.inode_location(Ino::ROOT, table)) else {
        return Ok(count);
    };
    let Some(bytes) = read(block, "inode table")? else {
        return Ok(count);
    };
    let raw = bytes.get(at..at + usize::from(geo.inode_size));
    let Some(Ok(root)) = raw.map(|raw| Inode::decode(raw, geo, Ino::ROOT)) else {
        return Ok(count);
    };
    if root.kind() != Some(FileKind::Directory) || root.flags.contains(InodeFlags::INLINE_DATA) {
        return Ok(count);
    }
    let extents = root.flags.contains(InodeFlags::EXTENTS);
    count += u64::from(geo.features.has_ro_compat(RoCompat::BIGALLOC) && !extents);
    let first = if extents {
        ExtentNode::parse(&root.block, NodePlace::Inode, NodeRules::ROOT, geo)
            .ok()
            .and_then(|node| node.extents().next().map(|e| e.physical))
    } else {
        let word = root.block.first_chunk().copied().map(u32::from_le_bytes);
        word.map(|block| BlockNo(u64::from(block)))
    };
    if let Some(first) = first.filter(|b| b.0 != 0)
        && let Some(entries) = read(first, "root directory")?
    {
        count += u64::from(!DirFormat::new(geo).filetype && has_types(&entries));
    }
    Ok(count)
}

/// Whether the first block of the root directory names itself and its parent, and both names have a type. Where names have none, the byte is the
/// upper half of a length, and no name is that long.
fn has_types(entries: &[u8]) -> bool {
    let code = FileKind::Directory.dirent_code();
    let own = Ino::ROOT.0.to_le_bytes();
    entries.len() > 24
        && [(0, 1), (12, 2)].into_iter().all(|(at, len)| {
            let name = &entries[at + 8..at + 8 + len];
            entries[at..at + 4] == own
                && usize::from(entries[at + 6]) == len
                && entries[at + 7] == code
                && name.iter().all(|b| *b == b'.')
        })
}
