//! Reading at mount: the superblock and the checkpoint pack that count, and the pack's summaries and journals.
//!
//! Nothing is written here. The superblock is the first of two that is valid. The checkpoint
//! is the newer of two whose head and tail agree. A pack that was being written when the power
//! failed has no tail of its version, so the other one counts. A newest pack that was written whole
//! and has impossible fields is damage, and the mount fails: the other one lacks all that was synced since.
//!
//! Refused by name: features that are not known, zoned devices, volumes of several devices of which some are missing.

use crate::options::Options;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, SharedDevice};
use blockwright_ondisk::common::casefold;
use blockwright_ondisk::f2fs::checkpoint::{CheckpointFlags, verify_block};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::node::Footer;
use blockwright_ondisk::f2fs::pack::{self, NatBits, Pack, PackLayout};
use blockwright_ondisk::f2fs::summary::{
    CompactSummaries, Lifetime, NatJournal, SitJournal, Summary, SummaryBlock,
};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Checkpoint, Features, FormatError, Geometry, Ino, Log,
    Superblock,
};

const OP: &str = "mount";

/// Features that reading knows. Encrypted files are refused one by one, because there are no keys.
const KNOWN: Features = Features::KNOWN.difference(Features::ZONED);

/// What a mount found.
pub(crate) struct Found {
    pub(crate) sb: Superblock,
    pub(crate) pack: Pack,
    pub(crate) nat: NatJournal,
    pub(crate) sit: SitJournal,
    /// Summaries of the hot, warm and cold data logs' segments.
    pub(crate) data_summaries: [Vec<Summary>; 3],
    /// The node logs', when the pack has them.
    pub(crate) node_summaries: Option<[Vec<Summary>; 3]>,
    /// How much was written in the volume's life, as far as the pack says.
    pub(crate) lifetime: Lifetime,
    pub(crate) orphans: Vec<Ino>,
    pub(crate) nat_bits: NatBits,
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

fn check_features(device: &SharedDevice, sb: &Superblock) -> Result<()> {
    let refuse = |what: String| Err(Error::new(ErrorKind::UnsupportedFeature, OP).detail(what));
    let unknown = sb.geo.features.unsupported(KNOWN);
    if !unknown.is_empty() {
        return refuse(format!("unsupported features: {}", unknown.join(" ")));
    }
    let devices = sb.raw.devs.iter().take_while(|d| d.path[0] != 0).count();
    // Joined to one they are as long as the volume.
    if devices > 1 && device.geometry().bytes >> 12 < sb.geo.main_end() {
        return refuse(format!(
            "the volume is on {devices} devices, and the others are not given"
        ));
    }
    Ok(())
}

/// The head of a pack, and its version, when it was written whole.
fn read_pack(
    device: &SharedDevice,
    geo: &Geometry,
    which: Copy2,
) -> Result<std::result::Result<(u64, AlignedBuf), FormatError>> {
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
    Ok(pack::verify_pair(&head, &tail).map(|version| (version, head)))
}

/// The pack that counts. If it was written whole and is invalid, the volume is damaged.
fn read_newest(device: &SharedDevice, geo: &Geometry) -> Result<Pack> {
    let first = read_pack(device, geo, Copy2::First)?;
    let second = read_pack(device, geo, Copy2::Second)?;
    let version = |pack: &std::result::Result<(u64, AlignedBuf), FormatError>| {
        pack.as_ref().map(|(v, _)| *v).map_err(Clone::clone)
    };
    let which = pack::newest(version(&first), version(&second)).map_err(bad)?;
    let (_, head) = match which {
        Copy2::First => first,
        Copy2::Second => second,
    }
    .map_err(bad)?;
    let checkpoint = Checkpoint::parse(&head, geo).map_err(bad)?;
    Ok(Pack { which, checkpoint })
}

/// Reads all that a mount needs.
pub(crate) fn read_all(device: &SharedDevice) -> Result<Found> {
    let sb = read_superblock(device)?;
    check_features(device, &sb)?;
    let geo = &sb.geo;
    let pack = read_newest(device, geo)?;
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
    let whole = |first: u32| -> Result<[SummaryBlock; 3]> {
        let blocks = part(first, 3)?;
        let one = |n: usize| {
            SummaryBlock::parse(&blocks[n * BLOCK_SIZE..(n + 1) * BLOCK_SIZE]).map_err(bad)
        };
        Ok([one(0)?, one(1)?, one(2)?])
    };
    let (nat, sit, data_summaries);
    if cp.flags().contains(CheckpointFlags::COMPACT_SUM) {
        let end = layout.node_summaries.unwrap_or(layout.tail);
        let blocks = part(layout.data_summaries, end - layout.data_summaries)?;
        let compact = CompactSummaries::parse(&blocks, &cp.raw, geo).map_err(bad)?;
        (nat, sit, data_summaries) = (compact.nat, compact.sit, compact.entries);
    } else {
        let blocks = whole(layout.data_summaries)?;
        nat = NatJournal::parse(&blocks[0].journal, geo).map_err(bad)?;
        sit = SitJournal::parse(&blocks[2].journal, geo).map_err(bad)?;
        data_summaries = blocks.map(|b| b.entries);
    }
    let mut lifetime = Lifetime::default();
    let node_summaries = match layout.node_summaries {
        Some(first) => {
            let blocks = whole(first)?;
            lifetime = Lifetime::parse(&blocks[0].journal);
            Some(blocks.map(|b| b.entries))
        }
        None => None,
    };
    // They are a hint: bits of another checkpoint, or none, only cost reads.
    let mut nat_bits = NatBits::unknown(geo);
    if let Some((first, count)) = layout.nat_bits
        && let Ok(found) = NatBits::parse(&part(first, count)?, cp, geo)
    {
        nat_bits = found;
    }
    Ok(Found {
        nat_bits,
        sb,
        pack,
        nat,
        sit,
        data_summaries,
        node_summaries,
        lifetime,
        orphans,
    })
}

/// Why a volume cannot be written, when it cannot.
///
/// # Errors
/// A device error.
pub(crate) fn why_not_written(
    device: &SharedDevice,
    found: &Found,
    options: &Options,
) -> Result<Option<String>> {
    let sb = &found.sb;
    let geo = &sb.geo;
    let flags = found.pack.checkpoint.flags();
    let because = |why: &str| Ok(Some(why.to_owned()));
    if options.read_only {
        return because("the volume is mounted read-only");
    }
    if sb.raw.devs[1].path[0] != 0 {
        return because("volumes on several devices are only read");
    }
    if device.geometry().read_only {
        return because("the device cannot be written");
    }
    if geo.features.contains(Features::READ_ONLY) {
        return because("the volume has the feature \"ro\"");
    }
    let encoding = sb.raw.s_encoding.get();
    if geo.features.contains(Features::CASEFOLD) && !casefold::is_known(encoding) {
        let why = format!("its name encoding {encoding} is not known");
        return Ok(Some(why));
    }
    if flags.intersects(CheckpointFlags::ERROR | CheckpointFlags::FSCK) {
        return because("damage was found in it: it must be checked first");
    }
    if flags.contains(CheckpointFlags::RESIZEFS) {
        return because("a change of its size was interrupted");
    }
    Ok(None)
}

/// Summaries of the node logs' segments, from the nodes themselves: a pack that was not written at unmount
/// does not have them.
///
/// # Errors
/// A device error.
pub(crate) fn collect_node_summaries(
    device: &SharedDevice,
    geo: &Geometry,
    cp: &Checkpoint,
) -> Result<[Vec<Summary>; 3]> {
    let one = |log: Log| -> Result<Vec<Summary>> {
        let start = geo
            .segment_start(cp.raw.log(log).segment)
            .ok_or_else(|| Error::corrupt(OP, "a log outside of the main area"))?;
        let blocks = read(device, start, BLOCKS_PER_SEG)?;
        let nid = |block: &[u8]| Footer::read(block).map_or(Default::default(), |f| f.nid);
        Ok(blocks
            .chunks_exact(BLOCK_SIZE)
            .map(|block| Summary {
                nid: nid(block),
                ..Summary::default()
            })
            .collect())
    };
    let [hot, warm, cold] = Log::NODE;
    Ok([one(hot)?, one(warm)?, one(cold)?])
}
