//! Puts a plan on a device: file data and nodes by several threads in large pieces, then the tables,
//! the checkpoints, and the superblocks last.

use super::inodes::{Blocks, Body, NodeContent, PlannedInode, PlannedNode};
use super::logs::Place;
use super::plan::Plan;
use super::{dirs, tables};
use crate::options::Before;
use crate::output::{
    BlockWriter, DataSource, Progress, ProgressFn, ask, check_device, copy_data, in_parallel, tell,
    zero,
};
use crate::tree::Tree;
use crate::{MkfsError, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags, SharedDevice};
use blockwright_ondisk::f2fs::node::Footer;
use blockwright_ondisk::f2fs::types::BLOCK_BITS;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, FileKind, Ino, Log, NodeOffset, inode};
use std::sync::Arc;

/// Nodes of one write.
const NODES_PER_WRITE: usize = 256;
/// Version in the footers of nodes: that of a checkpoint before the first, so that recovery never
/// takes them for newer than it.
const FOOTER_VERSION: u64 = 1;

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
    let bytes = plan.shape.geo.blocks_count << BLOCK_BITS;
    check_device(device, bytes, BLOCK_SIZE as u32)?;
    if plan.before == Before::Unknown {
        prepare(device, plan, progress)?;
    }
    let chunks = plan.chunks();
    copy_data(device, BLOCK_BITS, &chunks, tree, source, progress)?;
    write_nodes(device, plan, tree, source, progress)?;
    tell(progress, Progress::Metadata)?;
    let mut out = BlockWriter::new(device, BLOCK_BITS);
    write_blocks(&mut out, plan, tree)?;
    write_tables(&mut out, plan)?;
    out.flush()?;
    device.flush()?;
    // Both copies at once: the second begins in block 1.
    let superblock = plan.shape.raw.to_block();
    let mut both = superblock.clone();
    both.extend_from_slice(&superblock);
    device.write_at(DevOffset(0), &both, Flags::empty())?;
    device.flush()?;
    Ok(())
}

/// Wipes what would be mistaken for something: signatures at both ends, the checkpoints, and the
/// tables, of which only blocks in use are written.
fn prepare(device: &SharedDevice, plan: &Plan, progress: ProgressFn<'_>) -> Result<()> {
    const WIPE: u64 = 128 << 10;
    let geo = &plan.shape.geo;
    let end = device.geometry().bytes;
    let logical = u64::from(device.geometry().logical_block_bytes);
    device.write_zeroes(DevOffset(0), WIPE.min(end) / logical * logical)?;
    let from = end.saturating_sub(WIPE) / 65_536 * 65_536;
    device.write_zeroes(DevOffset(from), (end - from) / logical * logical)?;
    device.flush()?;
    // Checkpoint, SIT and NAT lie behind one another.
    let start = u64::from(geo.cp.0) << BLOCK_BITS;
    let bytes = (u64::from(geo.ssa.0) << BLOCK_BITS) - start;
    zero(device, start, bytes, &|_| ask(progress))
}

/// Writes all nodes, in large pieces; small files are read meanwhile.
fn write_nodes(
    device: &SharedDevice,
    plan: &Plan,
    tree: &Tree,
    source: &dyn DataSource,
    progress: ProgressFn<'_>,
) -> Result<()> {
    let mut jobs = Vec::new();
    for (log, nodes) in Log::NODE.into_iter().zip(&plan.nodes) {
        for (n, piece) in nodes.chunks(NODES_PER_WRITE).enumerate() {
            jobs.push((log, (n * NODES_PER_WRITE) as u64, piece));
        }
    }
    in_parallel(jobs.len(), &|job, buf| {
        let Some((log, first, piece)) = jobs.get(job) else {
            return Ok(());
        };
        let bytes = piece.len() * BLOCK_SIZE;
        if buf.len() == bytes {
            buf.fill(0);
        } else {
            *buf = AlignedBuf::zeroed(bytes);
        }
        let mut files = 0;
        for (n, (node, block)) in piece.iter().zip(buf.chunks_mut(BLOCK_SIZE)).enumerate() {
            let place = Place {
                log: *log,
                index: first + n as u64,
            };
            files += encode(plan, tree, source, node, place, block)?;
        }
        let place = Place {
            log: *log,
            index: *first,
        };
        let at = u64::from(plan.places.address(place).0) << BLOCK_BITS;
        device.write_at(DevOffset(at), buf, Flags::META)?;
        tell(progress, Progress::Copied { bytes: 0, files })
    })
}

/// Makes a node's block; how many files were completed by it.
fn encode(
    plan: &Plan,
    tree: &Tree,
    source: &dyn DataSource,
    node: &PlannedNode,
    place: Place,
    block: &mut [u8],
) -> Result<u64> {
    let mut files = 0;
    let mut addresses_at = 0;
    let mut is_inode = false;
    match &node.content {
        NodeContent::Direct => {}
        NodeContent::Indirect(list) => {
            for (position, nid) in list {
                let at = position * 4;
                block[at..at + 4].copy_from_slice(&nid.0.to_le_bytes());
            }
        }
        NodeContent::Xattr(bytes) => block[..bytes.len()].copy_from_slice(bytes),
        NodeContent::Inode(planned) => {
            is_inode = true;
            addresses_at = planned.layout.address_bytes().start;
            files = encode_inode(plan, tree, source, node.ino, planned, block)?;
        }
    }
    for run in &node.addresses {
        let first = plan.places.address(run.place).0;
        let words = block[addresses_at + run.position * 4..].chunks_exact_mut(4);
        for (word, address) in words.take(run.len).zip(first..) {
            word.copy_from_slice(&address.to_le_bytes());
        }
    }
    let next = Place {
        log: place.log,
        index: place.index + 1,
    };
    let footer = Footer {
        nid: node.nid,
        ino: node.ino,
        offset: node.offset,
        // Directories' nodes are hot; those of indirect ones have a log of their own.
        cold: place.log != Log::HotNode,
        fsync: false,
        dentry: false,
        version: FOOTER_VERSION,
        next: plan.places.address(next),
    };
    footer
        .write(block)
        .ok_or_else(|| MkfsError::features("a node's block is too short"))?;
    if is_inode && node.offset == NodeOffset::INODE {
        inode::set_checksum(block, node.ino, &plan.shape.geo);
    }
    Ok(files)
}

fn encode_inode(
    plan: &Plan,
    tree: &Tree,
    source: &dyn DataSource,
    ino: Ino,
    planned: &PlannedInode,
    block: &mut [u8],
) -> Result<u64> {
    planned
        .resolved(&plan.places)
        .encode_into(block)
        .ok_or_else(|| MkfsError::features(format!("inode {ino} cannot be stored")))?;
    block[planned.layout.xattr_bytes()].copy_from_slice(&planned.xattrs);
    let inline = planned.layout.inline_bytes();
    match &planned.body {
        Body::Addresses => Ok(0),
        Body::InlineData(id) => {
            let size = tree.node(*id).size as usize;
            source
                .read_at(*id, 0, &mut block[inline.start..inline.start + size])
                .map_err(|e| MkfsError::Source(Arc::from(e)))?;
            Ok(1)
        }
        Body::InlineBytes(bytes) => {
            block[inline.start..inline.start + bytes.len()].copy_from_slice(bytes);
            Ok(0)
        }
        Body::InlineDir(id) => {
            let entries = plan.entries(tree, *id);
            let parent = plan.parent_of.get(id).copied().unwrap_or(Ino::ROOT);
            let layout = planned.layout.inline_dentries();
            dirs::build_inline(&mut block[inline], layout, ino, parent, &entries)?;
            Ok(0)
        }
        Body::Device(words) => {
            let at = planned.layout.address_bytes().start;
            for (n, word) in words.iter().enumerate() {
                block[at + n * 4..at + n * 4 + 4].copy_from_slice(&word.to_le_bytes());
            }
            Ok(0)
        }
    }
}

/// Directories, links and quota files.
fn write_blocks(out: &mut BlockWriter<'_>, plan: &Plan, tree: &Tree) -> Result<()> {
    for (ino, what, place) in &plan.blocks {
        let mut at = u64::from(plan.places.address(*place).0);
        match what {
            Blocks::Dir(id, shape) => {
                debug_assert_eq!(tree.node(*id).kind, FileKind::Directory);
                let entries = plan.entries(tree, *id);
                let parent = plan.parent_of.get(id).copied().unwrap_or(Ino::ROOT);
                for block in dirs::build(*ino, parent, &entries, shape)? {
                    out.put(at, &block)?;
                    at += 1;
                }
            }
            Blocks::Bytes(bytes) => {
                for piece in bytes.chunks(BLOCK_SIZE) {
                    let mut block = vec![0u8; BLOCK_SIZE];
                    block[..piece.len()].copy_from_slice(piece);
                    out.put(at, &block)?;
                    at += 1;
                }
            }
        }
    }
    Ok(())
}

/// SSA, SIT, NAT and checkpoints.
fn write_tables(out: &mut BlockWriter<'_>, plan: &Plan) -> Result<()> {
    let (nat, bits) = tables::nat_blocks(plan);
    let all = tables::ssa_blocks(plan)
        .into_iter()
        .chain(tables::sit_blocks(plan))
        .chain(nat)
        .chain(tables::packs(plan, &bits)?);
    for (at, bytes) in all {
        out.put(at, &bytes)?;
    }
    Ok(())
}
