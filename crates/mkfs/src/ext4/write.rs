//! Puts a plan on a device: file data by several threads in large pieces, then metadata in order,
//! the primary superblock last.

use super::groups;
use super::plan::Planner;
use super::planned::{Content, Plan, PlannedInode};
use super::special;
use super::xattrs::{self, Stored};
use crate::options::Before;
use crate::output::{
    BlockWriter, Chunk, Chunks, DataSource, Progress, ProgressFn, ask, check_device, copy_data,
    tell, zero,
};
use crate::tree::{NodeId, Tree};
use crate::{MkfsError, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags, IoSlice, SharedDevice};
use blockwright_ondisk::ext4::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use blockwright_ondisk::ext4::xattr::{INDEX_SYSTEM, INLINE_DATA_NAME};
use blockwright_ondisk::ext4::{
    BlockNo, ChecksumKind, GroupNo, Ino, RawSuperblock, dir_layout, orphan_file, xattr,
};
use std::sync::Arc;

/// Writes a planned volume.
///
/// # Errors
/// Failures of the device and of the source; the device holds no volume then.
pub fn write(
    device: &SharedDevice,
    plan: &Plan,
    tree: &Tree,
    source: &dyn DataSource,
    progress: ProgressFn<'_>,
) -> Result<()> {
    let geo = &plan.shape.geo;
    let bytes = geo.blocks_count << geo.block_bits;
    check_device(device, bytes, geo.block_size)?;
    if plan.before == Before::Unknown {
        prepare(device, plan, progress)?;
    }
    let chunks = chunks(plan);
    copy_data(device, geo.block_bits, &chunks, tree, source, progress)?;
    tell(progress, Progress::Metadata)?;
    write_metadata(device, plan, tree, source)?;
    device.flush()?;
    write_primary(device, plan)?;
    device.flush()?;
    Ok(())
}

/// Wipes old contents that programs could mistake for valid: signatures at both ends, an old
/// journal's log, and inode tables that no checksum marks as unused.
fn prepare(device: &SharedDevice, plan: &Plan, progress: ProgressFn<'_>) -> Result<()> {
    const WIPE: u64 = 128 << 10;
    let geo = &plan.shape.geo;
    let bytes = geo.blocks_count << geo.block_bits;
    device.write_zeroes(DevOffset(0), WIPE.min(bytes))?;
    let end = device.geometry().bytes;
    let tail = WIPE.min(end) / 65_536 * 65_536;
    let from = (end - tail) / 65_536 * 65_536;
    let logical = u64::from(device.geometry().logical_block_bytes);
    device.write_zeroes(DevOffset(from), (end - from) / logical * logical)?;
    device.flush()?;
    let goes_on: &dyn Fn(u64) -> Result<()> = &|_| ask(progress);
    for i in &plan.inodes {
        if matches!(i.content, Content::Journal) {
            for run in &i.runs {
                let start = run.physical.0 << geo.block_bits;
                zero(device, start, run.len << geo.block_bits, goes_on)?;
            }
        }
    }
    if geo.checksums == ChecksumKind::None {
        for place in &plan.places {
            let start = place.inode_table.0 << geo.block_bits;
            let bytes = u64::from(geo.inode_table_blocks) << geo.block_bits;
            zero(device, start, bytes, goes_on)?;
        }
    }
    Ok(())
}

fn chunks(plan: &Plan) -> Vec<Chunk> {
    let mut out = Chunks::new(plan.shape.geo.block_bits);
    for i in &plan.inodes {
        let Content::Data(node) = i.content else {
            continue;
        };
        for (n, run) in i.runs.iter().enumerate() {
            let last = n + 1 == i.runs.len();
            out.push(node, run.logical, run.physical.0, run.len, last);
        }
    }
    out.finish()
}

fn write_metadata(
    device: &SharedDevice,
    plan: &Plan,
    tree: &Tree,
    source: &dyn DataSource,
) -> Result<()> {
    let geo = &plan.shape.geo;
    let mut out = BlockWriter::new(device, geo.block_bits);
    for i in &plan.inodes {
        write_content(&mut out, plan, tree, i)?;
    }
    let attribute_magic = xattr::MAGIC.to_le_bytes();
    let attribute_blocks: std::collections::HashSet<BlockNo> = plan
        .inodes
        .iter()
        .map(|i| i.inode.file_acl)
        .filter(|b| b.0 != 0)
        .collect();
    for (block, bytes) in &plan.meta {
        if attribute_blocks.contains(block) && bytes.starts_with(&attribute_magic) {
            let mut bytes = bytes.clone();
            xattr::set_block_checksum(&mut bytes, *block, geo)?;
            out.put(*block, &bytes)?;
        } else {
            out.put(*block, bytes)?;
        }
    }
    out.flush()?;
    write_inode_tables(&mut out, plan, tree, source)?;
    write_groups(device, plan)
}

/// Contents of everything but regular files.
fn write_content(
    out: &mut BlockWriter<'_>,
    plan: &Plan,
    tree: &Tree,
    i: &PlannedInode,
) -> Result<()> {
    let geo = &plan.shape.geo;
    let seed = geo.inode_seed(i.ino, i.inode.generation);
    let blocks: Vec<Vec<u8>> = match &i.content {
        Content::Nothing | Content::Data(_) | Content::Inline(..) => return Ok(()),
        Content::Dir(id, shape) => {
            let mut entries = Planner::entries(tree, &plan.ino_of, tree.node(*id));
            if *id == NodeId::ROOT && plan.lost_found.is_none() {
                super::files::insert_lost_found(&mut entries);
            }
            let parent = plan.parent_of.get(id).copied().unwrap_or(Ino::ROOT);
            dir_layout::build(i.ino, parent, &entries, &plan.rules, seed, shape.blocks)?
        }
        Content::EmptyDir(blocks) => {
            dir_layout::build(i.ino, Ino::ROOT, &[], &plan.rules, seed, *blocks)?
        }
        Content::Bytes(bytes) => bytes
            .chunks(geo.block_len())
            .map(|c| {
                let mut block = vec![0u8; geo.block_len()];
                block[..c.len()].copy_from_slice(c);
                block
            })
            .collect(),
        // Only the first block means anything; the log is empty.
        Content::Journal => vec![special::journal_superblock(&plan.shape)],
        Content::Orphans => {
            for run in &i.runs {
                for block in (run.physical.0..run.physical.0 + run.len).map(BlockNo) {
                    let mut bytes = vec![0u8; geo.block_len()];
                    orphan_file::write_tail(&mut bytes, block, geo, seed)
                        .ok_or_else(|| MkfsError::features("no room for the orphan file's tail"))?;
                    out.put(block, &bytes)?;
                }
            }
            return Ok(());
        }
    };
    let places = i
        .runs
        .iter()
        .flat_map(|r| (r.physical.0..r.physical.0 + r.len).map(BlockNo));
    for (place, bytes) in places.zip(&blocks) {
        out.put(place, bytes)?;
    }
    Ok(())
}

/// An inode whose data is in it: the rest of the data becomes an attribute.
fn inline_inode(
    plan: &Plan,
    tree: &Tree,
    i: &PlannedInode,
    id: NodeId,
    body: &[Stored],
    source: &dyn DataSource,
) -> Result<([u8; 60], Vec<u8>)> {
    let mut data = vec![0u8; tree.node(id).size as usize];
    source
        .read_at(id, 0, &mut data)
        .map_err(|e| MkfsError::Source(Arc::from(e)))?;
    let mut block = i.inode.block;
    let head = data.len().min(block.len());
    block[..head].copy_from_slice(&data[..head]);
    let mut list = body.to_vec();
    list.push(Stored {
        index: INDEX_SYSTEM,
        name: INLINE_DATA_NAME.to_vec(),
        value: data[head..].to_vec(),
        in_inode: false,
    });
    list.sort_by(|a, b| (a.index, a.name.len(), &a.name).cmp(&(b.index, b.name.len(), &b.name)));
    Ok((block, xattrs::body(&list, plan.body_room, &plan.values)?))
}

fn write_inode_tables(
    out: &mut BlockWriter<'_>,
    plan: &Plan,
    tree: &Tree,
    source: &dyn DataSource,
) -> Result<()> {
    let geo = &plan.shape.geo;
    let inode_bytes = usize::from(geo.inode_size);
    let mut planned = plan.inodes.iter().peekable();
    for group in geo.groups() {
        let first = group.0 * geo.inodes_per_group + 1;
        if first > plan.last_ino {
            break;
        }
        let used = (plan.last_ino - first + 1).min(geo.inodes_per_group);
        let table = plan.places[group.0 as usize].inode_table;
        for index in 0..used.div_ceil(geo.inodes_per_block) {
            let mut block = vec![0u8; geo.block_len()];
            let base = first + index * geo.inodes_per_block;
            for (slot, raw) in block.chunks_exact_mut(inode_bytes).enumerate() {
                let ino = Ino(base + slot as u32);
                let Some(i) = planned.next_if(|i| i.ino == ino) else {
                    continue;
                };
                let mut inode = i.inode.clone();
                let mut body = std::borrow::Cow::Borrowed(&i.body);
                if let Content::Inline(id, list) = &i.content {
                    let (data, area) = inline_inode(plan, tree, i, *id, list, source)?;
                    inode.block = data;
                    body = std::borrow::Cow::Owned(area);
                }
                if !body.is_empty() {
                    let at = inode_bytes - body.len();
                    raw[at..].copy_from_slice(&body);
                }
                inode.encode_into(raw, geo, ino)?;
            }
            out.put(BlockNo(table.0 + u64::from(index)), &block)?;
        }
    }
    out.flush()
}

/// Bitmaps, then all copies of the descriptors, then the backup superblocks.
fn write_groups(device: &SharedDevice, plan: &Plan) -> Result<()> {
    let geo = &plan.shape.geo;
    let desc_bytes = usize::from(geo.desc_size);
    let dirs = groups::directories(plan);
    let mut table = AlignedBuf::zeroed(geo.desc_blocks as usize * geo.block_len());
    let mut out = BlockWriter::new(device, geo.block_bits);
    let mut inode_bitmaps = Vec::new();
    for group in geo.groups() {
        let image = groups::image(plan, group, dirs[group.0 as usize])?;
        if let Some(map) = &image.block_bitmap {
            out.put(image.desc.block_bitmap, map)?;
        }
        if let Some(map) = image.inode_bitmap {
            inode_bitmaps.push((image.desc.inode_bitmap, map));
        }
        let (block, at) = geo.desc_position(group);
        let at = block as usize * geo.block_len() + at;
        image
            .desc
            .encode_into(&mut table[at..at + desc_bytes], geo, group)?;
    }
    // Apart from the block bitmaps, so that neighbours are written together.
    for (place, map) in &inode_bitmaps {
        out.put(*place, map)?;
    }
    out.send()?;
    let table = Arc::new(table);
    for group in geo.groups() {
        write_descriptor_copies(&out, plan, group, &table)?;
        if group.0 != 0
            && let Some(block) = geo.group_super_block(group)
        {
            let mut bytes = AlignedBuf::zeroed(geo.block_len());
            let raw = superblock(plan, group);
            bytes[..SUPERBLOCK_SIZE].copy_from_slice(&raw.to_bytes());
            out.submit(block, bytes.into())?;
        }
    }
    out.flush()
}

fn write_descriptor_copies(
    out: &BlockWriter<'_>,
    plan: &Plan,
    group: GroupNo,
    table: &Arc<AlignedBuf>,
) -> Result<()> {
    let geo = &plan.shape.geo;
    let held = geo.group_desc_blocks(group);
    if held == 0 {
        return Ok(());
    }
    let own = group.0 / geo.descs_per_block;
    let first = if geo.desc_block_copy(group, 0).is_some() {
        0
    } else {
        own
    };
    let Some(at) = geo.desc_block_copy(group, first) else {
        return Ok(());
    };
    let bytes = geo.block_len();
    let from = first as usize * bytes;
    let slice = IoSlice::new(Arc::clone(table), from..from + held as usize * bytes);
    out.submit(at, slice)
}

/// The superblock as `group` holds it.
fn superblock(plan: &Plan, group: GroupNo) -> RawSuperblock {
    let mut raw = plan.raw;
    raw.block_group_nr.set(group.0 as u16);
    raw.set_checksum();
    raw
}

/// Block 0 up to the end of the superblock, boot sector included.
fn write_primary(device: &SharedDevice, plan: &Plan) -> Result<()> {
    let geo = &plan.shape.geo;
    let end = (SUPERBLOCK_OFFSET as usize + SUPERBLOCK_SIZE).next_multiple_of(geo.block_len());
    let mut bytes = vec![0u8; end];
    let at = SUPERBLOCK_OFFSET as usize;
    bytes[at..at + SUPERBLOCK_SIZE].copy_from_slice(&superblock(plan, GroupNo(0)).to_bytes());
    device.write_at(DevOffset(0), &bytes, Flags::empty())?;
    Ok(())
}
