//! `info` of f2fs volumes: both superblocks and both checkpoint packs are looked at; nothing else is
//! read.

use super::{missing, write_line};
use crate::args::ImageArgs;
use crate::commands::mkfs::uuid_text;
use crate::failure::{At, Failure, Result};
use crate::output::{Out, human, text};
use blockwright_device::{DevOffset, SharedDevice};
use blockwright_ondisk::f2fs::checkpoint::{Checkpoint, CheckpointFlags};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::pack::{self, PackLayout};
use blockwright_ondisk::f2fs::summary::{Lifetime, SummaryBlock};
use blockwright_ondisk::f2fs::superblock::ENCODING_UTF8_12_1;
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, Features, FormatError, Geometry, Log, RawSuperblock, Superblock,
};
use serde::Serialize;

/// The superblock's magic as stored.
pub const MAGIC: [u8; 4] = [0x10, 0x20, 0xF5, 0xF2];

#[derive(Serialize)]
struct Area {
    name: &'static str,
    first_block: u32,
    segments: u32,
}

#[derive(Serialize)]
struct LogInfo {
    log: String,
    segment: u32,
    /// Next block in the segment.
    offset: u16,
}

#[derive(Serialize)]
struct CheckpointInfo {
    /// 1 or 2.
    pack: u8,
    version: u64,
    flags: Vec<&'static str>,
    blocks_user: u64,
    blocks_valid: u64,
    segments_free: u32,
    segments_overprovisioned: u32,
    segments_reserved: u32,
    nodes: u32,
    inodes: u32,
    next_free_node: u32,
    /// Seconds that the volume was mounted in all.
    mounted_seconds: u64,
    /// Bytes written to the volume in its life. Only a clean unmount notes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    lifetime_written: Option<u64>,
    logs: Vec<LogInfo>,
}

#[derive(Serialize)]
struct Info {
    image: String,
    format: &'static str,
    label: String,
    uuid: String,
    /// `clean`, `not clean`, `errors`, …; several are possible.
    state: Vec<&'static str>,
    features: Vec<String>,
    size: u64,
    device_size: u64,
    block_bytes: u32,
    blocks: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks_free: Option<u64>,
    segment_bytes: u64,
    segments_per_section: u32,
    sections_per_zone: u32,
    areas: Vec<Area>,
    node_numbers: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
    extensions_cold: Vec<String>,
    extensions_hot: Vec<String>,
    quota_inodes: Vec<u32>,
    made_by: String,
    written_by: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<CheckpointInfo>,
    /// What is wrong, with each of the two copies of each.
    problems: Vec<String>,
}

fn c_string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    text(&bytes[..end])
}

fn block(device: &SharedDevice, block: u64, count: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; count * BLOCK_SIZE];
    let at = block.checked_mul(BLOCK_SIZE as u64)?;
    let end = at.checked_add(bytes.len() as u64)?;
    if end > device.geometry().bytes {
        return None;
    }
    device.read_at(DevOffset(at), &mut bytes).ok()?;
    Some(bytes)
}

/// A pack's head, when both its ends are valid and belong together.
fn read_pack(
    device: &SharedDevice,
    geo: &Geometry,
    which: Copy2,
) -> std::result::Result<Checkpoint, String> {
    let start = u64::from(geo.pack_start(which).0);
    let past = || "it lies past the end of the image".to_owned();
    let said = |e: FormatError| e.to_string();
    let head = block(device, start, 1 + geo.cp_payload as usize).ok_or_else(past)?;
    let cp = Checkpoint::parse(&head, geo).map_err(said)?;
    let tail = u64::from(cp.raw.cp_pack_total_block_count.get()) - 1;
    let tail = block(device, start + tail, 1).ok_or_else(past)?;
    pack::verify_pair(&head, &tail).map_err(said)?;
    Ok(cp)
}

/// The newer valid pack, and what is wrong with either.
fn read_checkpoint(
    device: &SharedDevice,
    geo: &Geometry,
    problems: &mut Vec<String>,
) -> Option<(u8, Checkpoint)> {
    let mut best: Option<(u8, Checkpoint)> = None;
    for (number, which) in [(1, Copy2::First), (2, Copy2::Second)] {
        match read_pack(device, geo, which) {
            Ok(cp) => {
                let newer = best
                    .as_ref()
                    .is_none_or(|(_, old)| cp.version().wrapping_sub(old.version()) as i64 > 0);
                if newer {
                    best = Some((number, cp));
                }
            }
            Err(e) => problems.push(format!("checkpoint pack {number}: {e}")),
        }
    }
    best
}

fn states(cp: Option<&Checkpoint>) -> Vec<&'static str> {
    let Some(cp) = cp else {
        return vec!["no valid checkpoint"];
    };
    let flags = cp.flags();
    let mut out = vec![if flags.contains(CheckpointFlags::UMOUNT) {
        "clean"
    } else {
        "not clean"
    }];
    for (flag, name) in [
        (CheckpointFlags::ERROR, "errors"),
        (CheckpointFlags::FSCK, "check wanted"),
        (CheckpointFlags::ORPHAN_PRESENT, "orphans"),
        (CheckpointFlags::QUOTA_NEED_FSCK, "quota to be checked"),
        (CheckpointFlags::DISABLED, "checkpoints disabled"),
        (CheckpointFlags::RESIZEFS, "being resized"),
    ] {
        if flags.contains(flag) {
            out.push(name);
        }
    }
    out
}

/// KiB that the pack says were written.
fn lifetime(device: &SharedDevice, geo: &Geometry, pack: u8, cp: &Checkpoint) -> Option<u64> {
    let first = PackLayout::new(cp, geo).ok()?.node_summaries?;
    let which = if pack == 1 {
        Copy2::First
    } else {
        Copy2::Second
    };
    let at = u64::from(geo.pack_start(which).0) + u64::from(first);
    let summary = SummaryBlock::parse(&block(device, at, 1)?).ok()?;
    Some(Lifetime::parse(&summary.journal).kib)
}

/// The lines of one checkpoint pack (1 or 2) for the report.
fn checkpoint_info(
    pack: u8,
    cp: &Checkpoint,
    features: Features,
    lifetime_kib: Option<u64>,
) -> CheckpointInfo {
    let raw = &cp.raw;
    // Read-only volumes have two logs.
    let two = features.contains(Features::READ_ONLY);
    let logs = Log::ALL
        .into_iter()
        .filter(|log| !two || matches!(log, Log::HotData | Log::HotNode))
        .map(|log| {
            let head = raw.log(log);
            LogInfo {
                log: log.to_string(),
                segment: head.segment.0,
                offset: head.offset,
            }
        });
    CheckpointInfo {
        pack,
        version: cp.version(),
        flags: cp.flags().names(),
        blocks_user: raw.user_block_count.get(),
        blocks_valid: raw.valid_block_count.get(),
        segments_free: raw.free_segment_count.get(),
        segments_overprovisioned: raw.overprov_segment_count.get(),
        segments_reserved: raw.rsvd_segment_count.get(),
        nodes: raw.valid_node_count.get(),
        inodes: raw.valid_inode_count.get(),
        next_free_node: raw.next_free_nid.get(),
        mounted_seconds: raw.elapsed_time.get(),
        lifetime_written: lifetime_kib.map(|kib| kib.saturating_mul(1024)),
        logs: logs.collect(),
    }
}

fn areas(geo: &Geometry) -> Vec<Area> {
    [
        ("checkpoint", geo.cp, 2),
        ("SIT", geo.sit, geo.sit_segments),
        ("NAT", geo.nat, geo.nat_segments),
        ("SSA", geo.ssa, geo.ssa_segments),
        ("main", geo.main, geo.main_segments),
    ]
    .map(|(name, first, segments)| Area {
        name,
        first_block: first.0,
        segments,
    })
    .into()
}

fn gather(args: &ImageArgs, device: &SharedDevice) -> Result<Info> {
    let device_bytes = device.geometry().bytes;
    let mut problems = Vec::new();
    let mut sb = None;
    for number in 0..2u64 {
        let Some(bytes) = block(device, number, 1) else {
            problems.push(format!("superblock {}: cannot be read", number + 1));
            continue;
        };
        match Superblock::parse(&bytes, Some(device_bytes)) {
            Ok(good) => {
                sb.get_or_insert(good);
            }
            Err(e) => problems.push(format!("superblock {}: {e}", number + 1)),
        }
    }
    // Some fields of a bad superblock can still be shown.
    let raw = match &sb {
        Some(sb) => sb.raw,
        None => block(device, 0, 1)
            .and_then(|bytes| RawSuperblock::read(&bytes).ok())
            .ok_or_else(|| Failure::new("the superblock cannot be read"))
            .at(args.image.display())?,
    };
    let cp = sb
        .as_ref()
        .and_then(|sb| read_checkpoint(device, &sb.geo, &mut problems));
    let geo = sb.as_ref().map(|sb| &sb.geo);
    let (cold, hot) = raw.extensions();
    let names = |list: Vec<&[u8]>| list.into_iter().map(text).collect();
    let features = raw.features();
    Ok(Info {
        image: args.image.display().to_string(),
        format: "f2fs",
        label: raw.label(),
        uuid: uuid_text(&raw.uuid),
        state: states(cp.as_ref().map(|(_, cp)| cp)),
        features: features.names(),
        size: raw.block_count.get().saturating_mul(BLOCK_SIZE as u64),
        device_size: device_bytes,
        block_bytes: BLOCK_SIZE as u32,
        blocks: raw.block_count.get(),
        blocks_free: cp.as_ref().map(|(_, cp)| {
            let user = cp.raw.user_block_count.get();
            user.saturating_sub(cp.raw.valid_block_count.get())
        }),
        segment_bytes: 512 * BLOCK_SIZE as u64,
        segments_per_section: raw.segs_per_sec.get(),
        sections_per_zone: raw.secs_per_zone.get(),
        areas: geo.map(areas).unwrap_or_default(),
        node_numbers: geo.map_or(0, Geometry::nids),
        encoding: features
            .contains(Features::CASEFOLD)
            .then(|| match raw.s_encoding.get() {
                ENCODING_UTF8_12_1 => "UTF-8 (Unicode 12.1)",
                0 => "not set",
                _ => "unknown",
            }),
        extensions_cold: names(cold),
        extensions_hot: names(hot),
        quota_inodes: raw.qf_ino.iter().map(|i| i.get()).collect(),
        made_by: c_string(&raw.init_version),
        written_by: c_string(&raw.version),
        checkpoint: cp.map(|(pack, cp)| {
            let kib = geo.and_then(|geo| lifetime(device, geo, pack, &cp));
            checkpoint_info(pack, &cp, features, kib)
        }),
        problems,
    })
}

/// Tells about an f2fs volume.
///
/// # Errors
/// When its superblock cannot be read at all. When neither superblock or neither checkpoint pack is usable,
/// after everything known was printed.
pub fn info(args: &ImageArgs, device: &SharedDevice) -> Result<()> {
    let info = gather(args, device)?;
    let mut out = Out::new();
    if args.json {
        out.json(&info)?;
    } else {
        print(&mut out, &info)?;
    }
    out.finish()?;
    if info.checkpoint.is_some() {
        return Ok(());
    }
    let mut said = info.problems;
    said.extend(missing(info.device_size, info.blocks, info.block_bytes));
    Err(Failure::new(said.join("; ")).at(&info.image))
}

fn print(out: &mut Out, info: &Info) -> Result<()> {
    let mut line = |name: &str, value: &str| write_line(out, name, value);
    line("Image:", &info.image)?;
    line("Format:", info.format)?;
    line("Label:", &info.label)?;
    line("UUID:", &info.uuid)?;
    line("State:", &info.state.join(", "))?;
    for problem in &info.problems {
        line("Problem:", problem)?;
    }
    line("Features:", &info.features.join(" "))?;
    let blocks = format!("{} blocks of {} bytes", info.blocks, info.block_bytes);
    line("Size:", &format!("{} ({blocks})", human(info.size)))?;
    if info.device_size < info.size {
        let found = human(info.device_size);
        line("Image size:", &format!("{found}: TRUNCATED"))?;
    }
    if let Some(free) = info.blocks_free {
        let bytes = free.saturating_mul(u64::from(info.block_bytes));
        line("Free:", &format!("{} ({free} blocks)", human(bytes)))?;
    }
    line(
        "Segments:",
        &format!(
            "{} each, {} to a section, {} sections to a zone",
            human(info.segment_bytes),
            info.segments_per_section,
            info.sections_per_zone
        ),
    )?;
    for area in &info.areas {
        let value = format!("{} segments from block {}", area.segments, area.first_block);
        line(&format!("  {}:", area.name), &value)?;
    }
    if let Some(encoding) = info.encoding {
        line("Encoding:", encoding)?;
    }
    line("Cold files:", &info.extensions_cold.join(" "))?;
    line("Hot files:", &info.extensions_hot.join(" "))?;
    line("Made by:", &info.made_by)?;
    line("Written by:", &info.written_by)?;
    let Some(cp) = &info.checkpoint else {
        return Ok(());
    };
    let version = format!("pack {}, version {:#x}", cp.pack, cp.version);
    line("Checkpoint:", &version)?;
    line("  flags:", &cp.flags.join(" "))?;
    let blocks = format!("{} in use of {} for users", cp.blocks_valid, cp.blocks_user);
    line("  blocks:", &blocks)?;
    line(
        "  segments:",
        &format!(
            "{} free; {} over-provisioned, {} of them reserved for cleaning",
            cp.segments_free, cp.segments_overprovisioned, cp.segments_reserved
        ),
    )?;
    line(
        "  nodes:",
        &format!(
            "{} ({} inodes) of {}, next free {}",
            cp.nodes, cp.inodes, info.node_numbers, cp.next_free_node
        ),
    )?;
    if let Some(bytes) = cp.lifetime_written {
        let written = format!("{} in the volume's life", human(bytes));
        line("  written:", &written)?;
    }
    for log in &cp.logs {
        let value = format!("segment {}, block {}", log.segment, log.offset);
        line(&format!("  {}:", log.log), &value)?;
    }
    Ok(())
}
