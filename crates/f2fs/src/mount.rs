//! Mounting: which superblock, which checkpoint pack, and what the pack's summaries and journals say.
//!
//! Nothing is written here. The valid superblock is the first of two that makes sense; the valid
//! checkpoint the newer of two whose head and tail agree. A pack that was being written when the power
//! failed has no tail of its version, so the other one counts.
//!
//! Refused by name: features that are not known, zoned devices, volumes of several devices.

use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, SharedDevice};
use blockwright_ondisk::f2fs::checkpoint::{CheckpointFlags, verify_block};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::pack::{self, Pack, PackLayout};
use blockwright_ondisk::f2fs::summary::{CompactSummaries, NatJournal, SummaryBlock};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Checkpoint, Features, FormatError, Geometry, Ino,
    Superblock,
};

const OP: &str = "mount";

/// Features that reading knows. Encrypted files are refused one by one, for want of keys.
const KNOWN: Features = Features::ENCRYPT
    .union(Features::ATOMIC_WRITE)
    .union(Features::EXTRA_ATTR)
    .union(Features::PROJECT_QUOTA)
    .union(Features::INODE_CHECKSUM)
    .union(Features::FLEXIBLE_INLINE_XATTR)
    .union(Features::QUOTA)
    .union(Features::INODE_CRTIME)
    .union(Features::LOST_FOUND)
    .union(Features::VERITY)
    .union(Features::SB_CHECKSUM)
    .union(Features::CASEFOLD)
    .union(Features::COMPRESSION)
    .union(Features::READ_ONLY);

/// What a mount found.
pub(crate) struct Found {
    pub(crate) sb: Superblock,
    pub(crate) pack: Pack,
    pub(crate) nat: NatJournal,
    pub(crate) orphans: Vec<Ino>,
}

fn bad(e: FormatError) -> Error {
    Error::corrupt(OP, e.to_string())
}

fn read(device: &SharedDevice, at: BlockAddr, blocks: u32) -> Result<AlignedBuf> {
    device
        .read_buf(
            DevOffset(u64::from(at.0) << 12),
            blocks as usize * BLOCK_SIZE,
        )
        .map_err(|e| Error::io(OP, e))
}

fn read_superblock(device: &SharedDevice) -> Result<Superblock> {
    let bytes = device.geometry().bytes;
    let copy = |n: u32| {
        let block = read(device, BlockAddr(n), 1)?;
        Superblock::parse(&block, Some(bytes)).map_err(bad)
    };
    copy(0).or_else(|first| copy(1).map_err(|_| first))
}

fn check_features(sb: &Superblock) -> Result<()> {
    let refuse = |what: String| Err(Error::new(ErrorKind::Unsupported, OP).detail(what));
    let unknown = sb.geo.features.unsupported(KNOWN);
    if !unknown.is_empty() {
        return refuse(format!("unsupported features: {}", unknown.join(" ")));
    }
    let devices = sb.raw.devs.iter().take_while(|d| d.path[0] != 0).count();
    if devices > 1 {
        return refuse(format!("the volume spans {devices} devices"));
    }
    Ok(())
}

fn read_pack(
    device: &SharedDevice,
    geo: &Geometry,
    which: Copy2,
) -> Result<std::result::Result<Checkpoint, FormatError>> {
    let start = geo.pack_start(which);
    let head = read(device, start, 1 + geo.cp_payload)?;
    let raw = match verify_block(&head) {
        Ok((raw, _)) => raw,
        Err(e) => return Ok(Err(e)),
    };
    let total = raw.cp_pack_total_block_count.get();
    if !(2..=BLOCKS_PER_SEG).contains(&total) {
        return Ok(Err(FormatError::CpPackShape {
            start_sum: raw.cp_pack_start_sum.get(),
            total,
            payload: geo.cp_payload,
        }));
    }
    let tail = read(device, BlockAddr(start.0 + total - 1), 1)?;
    Ok(pack::verify_pair(&head, &tail).and_then(|_| Checkpoint::parse(&head, geo)))
}

/// Reads all that a mount needs.
pub(crate) fn read_all(device: &SharedDevice) -> Result<Found> {
    let sb = read_superblock(device)?;
    check_features(&sb)?;
    let geo = &sb.geo;
    let pack = pack::newer(
        read_pack(device, geo, Copy2::First)?,
        read_pack(device, geo, Copy2::Second)?,
    )
    .map_err(bad)?;
    let cp = &pack.checkpoint;
    let layout = PackLayout::new(cp, geo).map_err(bad)?;
    let start = geo.pack_start(pack.which);
    let part = |first: u32, count: u32| read(device, BlockAddr(start.0 + first), count);

    let mut orphans = Vec::new();
    if cp.flags().contains(CheckpointFlags::ORPHAN_PRESENT) {
        let (first, count) = layout.orphans;
        let blocks = part(first, count)?;
        for block in blocks.chunks_exact(BLOCK_SIZE) {
            orphans.extend(pack::parse_orphans(block, geo).map_err(bad)?);
        }
    }
    let nat = if cp.flags().contains(CheckpointFlags::COMPACT_SUM) {
        let end = layout.node_summaries.unwrap_or(layout.tail);
        let blocks = part(layout.data_summaries, end - layout.data_summaries)?;
        CompactSummaries::parse(&blocks, &cp.raw, geo)
            .map_err(bad)?
            .nat
    } else {
        let block = part(layout.data_summaries, 1)?;
        let first = SummaryBlock::parse(&block).map_err(bad)?;
        NatJournal::parse(&first.journal, geo).map_err(bad)?
    };
    Ok(Found {
        sb,
        pack,
        nat,
        orphans,
    })
}
