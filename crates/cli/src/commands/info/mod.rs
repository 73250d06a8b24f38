//! `info`: what a volume is. Reads the superblock only (of f2fs also the checkpoint), so it also works on volumes that cannot be opened,
//! and on those that are in use. Faults that make a volume unusable are also on standard error and in the exit code.

mod f2fs;

use crate::args::{ImageArgs, InfoArgs};
use crate::commands::map::{Companion, page_name};
use crate::commands::mkfs::uuid_text;
use crate::failure::{At, Failure, Result};
use crate::output::{Out, base64_unless_text, human, text, time_json, time_short};
use crate::text::printable;
use blockwright_device::{DevOffset, OpenMode, SharedDevice};
use blockwright_ondisk::ext4::superblock::{
    ErrorBehaviour, MAGIC, MiscFlags, RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State,
    Superblock,
};
use blockwright_ondisk::ext4::{Compat, Incompat, RoCompat};
use blockwright_vfs::Timestamp;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

#[derive(Serialize)]
struct ErrorRecord {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<u64>,
    function: String,
    line: u32,
}

#[derive(Serialize)]
struct JournalInfo {
    /// `internal` or `device`.
    location: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    needs_recovery: bool,
}

#[derive(Serialize)]
struct Info {
    image: String,
    format: &'static str,
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    label_base64: Option<String>,
    uuid: String,
    /// `clean`, `not clean`, `errors`; several are possible.
    state: Vec<&'static str>,
    features: Vec<String>,
    size: u64,
    device_size: u64,
    block_bytes: u32,
    blocks: u64,
    blocks_free: u64,
    blocks_reserved: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_bytes: Option<u32>,
    inode_bytes: u16,
    inodes: u32,
    inodes_free: u32,
    groups: u64,
    blocks_per_group: u32,
    inodes_per_group: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups_per_flex: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<JournalInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory_hash: Option<&'static str>,
    checksums: &'static str,
    checksum_ok: bool,
    on_errors: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mounted: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checked: Option<String>,
    mounted_on: String,
    mount_count: u16,
    lifetime_written: u64,
    orphans: bool,
    errors: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<ErrorRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<ErrorRecord>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

fn stamp(secs: u64) -> Option<Timestamp> {
    (secs != 0).then(|| Timestamp {
        secs: i64::try_from(secs).unwrap_or(i64::MAX),
        nanos: 0,
    })
}

fn c_string(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    text(&bytes[..end])
}

fn open(args: &ImageArgs) -> Result<SharedDevice> {
    // Without the lock: looking does no harm, and what is mounted can be asked about.
    let mode = OpenMode {
        lock: false,
        ..OpenMode::read_only()
    };
    crate::wall::device(&args.image, mode).at(args.image.display())
}

/// Whether an f2fs superblock's magic is there, in either of its copies.
fn is_f2fs(device: &SharedDevice) -> bool {
    let mut head = vec![0u8; 8192];
    device.geometry().bytes >= head.len() as u64
        && device.read_at(DevOffset(0), &mut head).is_ok()
        && head.get(0x438..0x43A) != Some(&MAGIC.to_le_bytes())
        && [0x400..0x404, 0x1400..0x1404]
            .into_iter()
            .any(|at| head.get(at) == Some(&f2fs::MAGIC))
}

fn read(args: &ImageArgs) -> Result<(RawSuperblock, [u8; SUPERBLOCK_SIZE], u64)> {
    let place = args.image.display();
    let device = open(args)?;
    let geometry = device.geometry();
    let unit = u64::from(geometry.logical_block_bytes).max(512);
    let end = (SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64).next_multiple_of(unit);
    if geometry.bytes < end {
        let what = "no file system: too small for a superblock (it ends at 2 KiB)";
        return Err(Failure::new(what).at(place));
    }
    let mut head = vec![0u8; end as usize];
    device
        .read_at(DevOffset(0), &mut head)
        .at(place.to_string())?;
    let mut bytes = [0u8; SUPERBLOCK_SIZE];
    let start = SUPERBLOCK_OFFSET as usize;
    bytes.copy_from_slice(&head[start..start + SUPERBLOCK_SIZE]);
    let raw = RawSuperblock::read(&bytes).map_err(|e| Failure::new(e).at(place.to_string()))?;
    if raw.magic.get() != MAGIC {
        if let Ok(Some(what)) = blockwright::foreign_contents(&device) {
            return Err(Failure::new(what).at(place));
        }
        return Err(Failure::new(format_args!(
            "no ext2, ext3, ext4 or f2fs file system: superblock magic is {:#06x}, not {MAGIC:#06x}",
            raw.magic.get()
        ))
        .at(place));
    }
    Ok((raw, bytes, geometry.bytes))
}

fn gather(args: &ImageArgs) -> Result<Info> {
    let (raw, bytes, device_bytes) = read(args)?;
    let problem = Superblock::parse(&bytes, Some(device_bytes))
        .err()
        .map(|e| e.to_string());
    let features = raw.features();
    let format = if features.has_incompat(Incompat::EXTENT)
        || features.has_incompat(Incompat::BIT64)
        || features.has_incompat(Incompat::FLEX_BG)
    {
        "ext4"
    } else if features.has_compat(Compat::HAS_JOURNAL) {
        "ext3"
    } else {
        "ext2"
    };
    let recovery = features.has_incompat(Incompat::NEEDS_RECOVERY);
    let state = raw.state();
    let mut states = vec![if recovery {
        "needs recovery"
    } else if state.contains(State::CLEAN) {
        "clean"
    } else {
        "not clean"
    }];
    if state.contains(State::ERROR) {
        states.push("errors");
    }
    let shift = |log: u32| 1024u32.checked_shl(log.min(16)).unwrap_or(0);
    let block_bytes = shift(raw.log_block_size.get());
    let per_group = raw.blocks_per_group.get();
    let groups = raw
        .blocks_count()
        .saturating_sub(u64::from(raw.first_data_block.get()))
        .div_ceil(u64::from(per_group.max(1)));
    let journal = features.has_compat(Compat::HAS_JOURNAL).then(|| {
        let inum = raw.journal_inum.get();
        // The superblock keeps a copy of the journal inode's block map and size.
        let kept = raw.jnl_backup_type == 1 && inum != 0;
        let size = u64::from(raw.jnl_blocks[15].get()) << 32 | u64::from(raw.jnl_blocks[16].get());
        JournalInfo {
            location: if inum == 0 { "device" } else { "internal" },
            inode: (inum != 0).then_some(inum),
            uuid: (inum == 0).then(|| uuid_text(&raw.journal_uuid)),
            bytes: (kept && size > 0).then_some(size),
            needs_recovery: recovery,
        }
    });
    let error = |time: u64, inode: u32, block: u64, function: &[u8], line: u32| {
        stamp(time).map(|time| ErrorRecord {
            time: time_json(time),
            inode: (inode != 0).then_some(inode),
            block: (block != 0).then_some(block),
            function: c_string(function),
            line,
        })
    };
    let wide = |low: u32, high: u8| u64::from(low) | u64::from(high) << 32;
    let unsigned = raw.misc_flags().contains(MiscFlags::UNSIGNED_HASH);
    Ok(Info {
        image: args.image.display().to_string(),
        format,
        label: text(raw.label()),
        label_base64: base64_unless_text(raw.label()),
        uuid: uuid_text(&raw.uuid),
        state: states,
        features: features.names(),
        size: raw.blocks_count().saturating_mul(u64::from(block_bytes)),
        device_size: device_bytes,
        block_bytes,
        blocks: raw.blocks_count(),
        blocks_free: raw.free_blocks_count(),
        blocks_reserved: raw.reserved_blocks_count(),
        cluster_bytes: features
            .has_ro_compat(RoCompat::BIGALLOC)
            .then(|| shift(raw.log_cluster_size.get())),
        inode_bytes: if raw.rev_level.get() == 0 {
            128
        } else {
            raw.inode_size.get()
        },
        inodes: raw.inodes_count.get(),
        inodes_free: raw.free_inodes_count.get(),
        groups,
        blocks_per_group: per_group,
        inodes_per_group: raw.inodes_per_group.get(),
        groups_per_flex: features
            .has_incompat(Incompat::FLEX_BG)
            .then(|| 1u64 << raw.log_groups_per_flex.min(63)),
        journal,
        directory_hash: features.has_compat(Compat::DIR_INDEX).then_some(
            match (raw.def_hash_version, unsigned) {
                (0, false) => "legacy",
                (0, true) => "legacy, unsigned",
                (1, false) => "half MD4",
                (1, true) => "half MD4, unsigned",
                (2, false) => "TEA",
                (2, true) => "TEA, unsigned",
                (6, _) => "SipHash",
                _ => "unknown",
            },
        ),
        checksums: if features.has_ro_compat(RoCompat::METADATA_CSUM) {
            "all metadata (CRC-32C)"
        } else if features.has_ro_compat(RoCompat::UNINIT_BG) {
            "group descriptors (CRC-16)"
        } else {
            "none"
        },
        checksum_ok: raw.verify_checksum().is_ok(),
        on_errors: match ErrorBehaviour::from_raw(raw.errors.get()) {
            ErrorBehaviour::Continue => "continue",
            ErrorBehaviour::RemountReadOnly => "remount-ro",
            ErrorBehaviour::Panic => "panic",
        },
        created: stamp(raw.mkfs_time()).map(time_json),
        mounted: stamp(raw.mount_time()).map(time_json),
        written: stamp(raw.write_time()).map(time_json),
        checked: stamp(raw.check_time()).map(time_json),
        mounted_on: text(raw.last_mounted_on()),
        mount_count: raw.mnt_count.get(),
        lifetime_written: raw.kbytes_written.get().saturating_mul(1024),
        orphans: raw.last_orphan.get() != 0 || features.has_ro_compat(RoCompat::ORPHAN_PRESENT),
        errors: raw.error_count.get(),
        first_error: error(
            wide(raw.first_error_time.get(), raw.first_error_time_hi),
            raw.first_error_ino.get(),
            raw.first_error_block.get(),
            &raw.first_error_func,
            raw.first_error_line.get(),
        ),
        last_error: error(
            wide(raw.last_error_time.get(), raw.last_error_time_hi),
            raw.last_error_ino.get(),
            raw.last_error_block.get(),
            &raw.last_error_func,
            raw.last_error_line.get(),
        ),
        problem,
    })
}

/// Faults of a superblock that can be read; of a cut image, where it ends and what is not there.
fn said_of(info: &Info) -> Option<String> {
    let problem = info.problem.as_ref()?;
    Some(
        match missing(info.device_size, info.blocks, info.block_bytes) {
            Some(missing) => format!("{problem}; {missing}"),
            None => problem.clone(),
        },
    )
}

/// The part of a volume that lies past the end of its image.
pub fn missing(device_bytes: u64, blocks: u64, block_bytes: u32) -> Option<String> {
    let there = device_bytes.checked_div(u64::from(block_bytes))?;
    (there < blocks).then(|| {
        format!(
            "the image ends after {device_bytes} bytes: blocks {there} to {} are missing",
            blocks - 1
        )
    })
}

/// Runs `info`.
///
/// # Errors
/// When there is no superblock to read. When it is damaged or the image is shorter than the volume, after
/// everything known was printed.
pub fn info(args: &InfoArgs) -> Result<()> {
    if let Some(path) = &args.map {
        page_name(path)?;
    }
    let told = show(&args.of);
    match (&args.map, &told) {
        (Some(path), Ok(())) => map(&args.of, path),
        _ => told,
    }
}

/// Draws the map, and prints where it shows what.
fn map(args: &ImageArgs, path: &Path) -> Result<()> {
    let device = open(args)?;
    let map = Companion::new(path, device, None, args.json).at(args.image.display())?;
    if !args.json {
        let mut out = Out::new();
        writeln!(out, "Map:            {}", path.display())?;
        for (kind, link) in map.places() {
            writeln!(out, "  {kind:<24}{link}")?;
        }
        out.finish()?;
    }
    map.write(&args.image, None)
}

fn show(args: &ImageArgs) -> Result<()> {
    let device = open(args)?;
    if is_f2fs(&device) {
        return f2fs::info(args, &device);
    }
    drop(device);
    let info = gather(args)?;
    let mut out = Out::new();
    if args.json {
        out.json(&info)?;
    } else {
        print(&mut out, &info, &read(args)?.0)?;
    }
    out.finish()?;
    match said_of(&info) {
        Some(said) => Err(Failure::new(said).at(&info.image)),
        None => Ok(()),
    }
}

/// A line of the report.
fn write_line(out: &mut Out, name: &str, value: &str) -> std::io::Result<()> {
    let value = if value.is_empty() { "(none)" } else { value };
    // Labels and the like are whatever the image says.
    writeln!(out, "{name:<16}{}", printable(value))
}

fn print(out: &mut Out, info: &Info, raw: &RawSuperblock) -> Result<()> {
    let Info {
        blocks,
        block_bytes,
        blocks_free,
        inodes,
        inode_bytes,
        inodes_free,
        groups,
        blocks_per_group,
        inodes_per_group,
        ..
    } = info;
    let mut line = |name: &str, value: &str| write_line(out, name, value);
    let unit = u64::from(info.block_bytes);
    let when = |secs: u64| {
        stamp(secs).map_or_else(|| "never".to_owned(), |t| format!("{} UTC", time_short(t)))
    };
    line("Image:", &info.image)?;
    line("Format:", info.format)?;
    line("Label:", &info.label)?;
    line("UUID:", &info.uuid)?;
    line("State:", &info.state.join(", "))?;
    if let Some(problem) = &info.problem {
        line("Problem:", problem)?;
    }
    line("Features:", &info.features.join(" "))?;
    let size = human(info.size);
    line(
        "Size:",
        &format!("{size} ({blocks} blocks of {block_bytes} bytes)"),
    )?;
    if info.device_size < info.size {
        let found = human(info.device_size);
        line("Image size:", &format!("{found}: TRUNCATED"))?;
    }
    let free = human(blocks_free.saturating_mul(unit));
    let of_root = human(info.blocks_reserved.min(*blocks_free).saturating_mul(unit));
    line(
        "Free:",
        &format!("{free} ({blocks_free} blocks), {of_root} of them for root only"),
    )?;
    if let Some(bytes) = info.cluster_bytes {
        line("Clusters:", &format!("{} each", human(u64::from(bytes))))?;
    }
    line(
        "Inodes:",
        &format!("{inodes} of {inode_bytes} bytes, {inodes_free} free"),
    )?;
    let flex = match info.groups_per_flex {
        Some(n) => format!(", {n} to a flexible group"),
        None => String::new(),
    };
    line(
        "Groups:",
        &format!("{groups} of {blocks_per_group} blocks and {inodes_per_group} inodes{flex}"),
    )?;
    match &info.journal {
        None => line("Journal:", "none")?,
        Some(journal) => {
            let size = journal
                .bytes
                .map_or_else(String::new, |b| format!(", {}", human(b)));
            let place = match (journal.inode, &journal.uuid) {
                (Some(ino), _) => format!("inode {ino}"),
                (None, Some(uuid)) => format!("on the device with UUID {uuid}"),
                (None, None) => "on another device".to_owned(),
            };
            let recovery = if journal.needs_recovery {
                ", needs recovery"
            } else {
                ""
            };
            line("Journal:", &format!("{place}{size}{recovery}"))?;
        }
    }
    if let Some(hash) = info.directory_hash {
        line("Directory hash:", hash)?;
    }
    let wrong = if info.checksum_ok {
        ""
    } else {
        "; the superblock's is WRONG"
    };
    line("Checksums:", &format!("{}{wrong}", info.checksums))?;
    line("On errors:", info.on_errors)?;
    line("Created:", &when(raw.mkfs_time()))?;
    let on = match info.mounted_on.as_str() {
        "" => String::new(),
        path => format!(", on {path}"),
    };
    line("Mounted:", &format!("{}{on}", when(raw.mount_time())))?;
    let (written, all) = (when(raw.write_time()), human(info.lifetime_written));
    line("Written:", &format!("{written}, {all} in all"))?;
    let (checked, mounts) = (when(raw.check_time()), info.mount_count);
    line("Checked:", &format!("{checked}, {mounts} mounts since"))?;
    if info.orphans {
        line(
            "Orphans:",
            "there are files to be removed at the next mount",
        )?;
    }
    if info.errors > 0 {
        line("Errors:", &format!("{} were recorded", info.errors))?;
        for (name, record) in [
            ("First error:", &info.first_error),
            ("Last error:", &info.last_error),
        ] {
            if let Some(record) = record {
                let numbered = |what: &str, number: Option<u64>| {
                    number.map_or_else(String::new, |n| format!(", {what} {n}"))
                };
                let inode = numbered("inode", record.inode.map(u64::from));
                let block = numbered("block", record.block);
                let (time, function, at) = (&record.time, &record.function, record.line);
                line(name, &format!("{time} in {function}:{at}{inode}{block}"))?;
            }
        }
    }
    Ok(())
}
