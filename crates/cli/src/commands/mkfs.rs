//! The command `mkfs`: reads the arguments into a `VolumeBuilder`, shows the progress, and prints a summary.

use crate::args::{Format, MkfsArgs, parse_size};
use crate::commands::change::named_journal;
use crate::commands::entries::policy;
use crate::commands::mode::Owner;
use crate::exit;
use crate::failure::{At, Failure, Result};
use crate::image_file::refuse_among_devices;
use crate::interrupt::{NewOutput, remove_output};
use crate::output::{Out, from_hex, hex, human};
use crate::source::MkfsSource;
use blockwright::VolumeBuilder;
use blockwright::build::{BuildDetails, BuildProgress, BuildReport};
use blockwright::verity::{self, Verity, VerityOptions};
use blockwright_chunks::ChunkAddress;
use blockwright_device::{DevOffset, DeviceError, DirectIo, NbdAddress, OpenMode, SharedDevice};
use blockwright_disk::container::{self, detect_file};
use blockwright_disk::{Disk, Place};
use blockwright_mkfs::ext4::FsType;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How much of an image is looked at for signs of a file system: all formats have theirs in here.
const HEAD_BYTES: u64 = 0x1_1000;

#[derive(Serialize)]
struct MkfsJson {
    image: String,
    format: &'static str,
    label: String,
    uuid: String,
    size: u64,
    block_bytes: u32,
    blocks: u64,
    blocks_free: u64,
    blocks_reserved: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode_bytes: Option<u16>,
    inodes: u32,
    inodes_free: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal_blocks: Option<u32>,
    /// Of f2fs.
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments_free: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments_overprovisioned: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments_reserved: Option<u32>,
    features: Vec<String>,
    /// Files of every kind that came from the sources, without directories.
    files_copied: u64,
    /// Those of them that fs-verity protects.
    files_protected: u64,
    directories_copied: u64,
    bytes_copied: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    verity: Option<VerityJson>,
    /// Flags and projects of the sources that the volume does not keep.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOutJson>,
}

/// What `veritysetup open` needs.
#[derive(Serialize)]
struct VerityJson {
    root_hash: String,
    salt: String,
    algorithm: &'static str,
    data_blocks: u64,
    block_bytes: u32,
    hash_offset: u64,
    tree_bytes: u64,
    /// The tree's own file.
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<String>,
}

#[derive(Serialize)]
struct LeftOutJson {
    what: String,
    files: u64,
}

/// `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*uuid).to_string()
}

/// A UUID from its text, with or without dashes.
pub(super) fn parse_uuid(text: &str) -> Result<[u8; 16]> {
    uuid::Uuid::try_parse(&text.replace('-', ""))
        .map(uuid::Uuid::into_bytes)
        .map_err(|_| Failure::usage(format_args!("`{text}` is not a UUID")))
}

/// The salt of `--verity=SALT`; `None` for the one that follows from the UUID.
fn parse_salt(text: &str) -> Result<Option<Vec<u8>>> {
    if text == "auto" {
        return Ok(None);
    }
    let salt = from_hex(text.as_bytes()).filter(|salt| salt.len() <= 256);
    salt.map(Some).ok_or_else(|| {
        Failure::usage(format_args!(
            "--verity: `{text}` is not a salt (at most 256 bytes in hexadecimal)"
        ))
    })
}

/// Whether the volume will be on something that keeps its size: an export, a partition, or the disk in a container.
fn is_device(image: &Path) -> bool {
    NbdAddress::parse(image).is_some()
        || ChunkAddress::parse(image).is_some()
        || Place::of(image).part.is_some()
        || detect_file(image) != container::Format::Raw
}

/// Opens what [`is_device`], with the other files that the user allows.
fn open_device(image: &Path, mode: OpenMode) -> std::result::Result<SharedDevice, DeviceError> {
    let place = Place::of(image);
    let disk = Disk::open_with(&place.file, mode, crate::wall::allow_backing())?;
    Ok(disk.select(place.part.as_ref())?)
}

/// What is made in a container, where the user allows its other files.
pub(super) fn allowed_device(image: &Path) -> Option<blockwright::Result<SharedDevice>> {
    let mode = OpenMode {
        direct: DirectIo::Auto,
        ..OpenMode::default()
    };
    let allowed = crate::wall::allow_backing() && is_device(image);
    allowed.then(|| open_device(image, mode).map_err(|e| blockwright::Error::from(e).at(image)))
}

/// Refuses to overwrite data that may still be wanted.
pub(super) fn check_overwrite(image: &Path) -> Result<()> {
    let head = if is_device(image) {
        let device = open_device(image, OpenMode::read_only()).at(image.display())?;
        let mut head = vec![0; device.geometry().bytes.min(HEAD_BYTES) as usize];
        device
            .read_at(DevOffset(0), &mut head)
            .at(image.display())?;
        head
    } else {
        let what = |what: &str| Err(Failure::new(what).at(image.display()));
        // Before it is opened: that waits, for a pipe.
        let kind = match std::fs::metadata(image) {
            Ok(meta) => meta.file_type(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return match image.is_symlink() {
                    true => what("is a link to what does not exist"),
                    false => Ok(()),
                };
            }
            Err(e) => return Err(Failure::from(e).at(image.display())),
        };
        if kind.is_dir() {
            return what("is a directory");
        }
        if !kind.is_file() && !kind.is_block_device() {
            return what("neither a file nor a block device");
        }
        let mut file = std::fs::File::open(image).at(image.display())?;
        let mut head = Vec::new();
        Read::by_ref(&mut file)
            .take(HEAD_BYTES)
            .read_to_end(&mut head)
            .at(image.display())?;
        head
    };
    let what = if head.get(0x438..0x43A) == Some(&[0x53, 0xEF]) {
        "holds an ext2, ext3 or ext4 file system"
    } else if head.get(0x400..0x404) == Some(&[0x10, 0x20, 0xF5, 0xF2]) {
        "holds an f2fs file system"
    } else if head.iter().any(|&b| b != 0) {
        "holds data"
    } else {
        return Ok(());
    };
    Err(Failure::new(format_args!("{what}; -F overwrites it")).at(image.display()))
}

/// A journal's size: ours in bytes, or mke2fs's `size=` in MiB.
fn journal_bytes(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("size=") {
        Some(mib) => parse_size(mib).and_then(|n| {
            if mib.bytes().all(|b| b.is_ascii_digit()) {
                n.checked_mul(1 << 20)
                    .ok_or_else(|| format!("`{text}` is larger than any volume"))
            } else {
                Ok(n)
            }
        }),
        None => parse_size(text),
    };
    parsed.map_err(|e| Failure::usage(format_args!("-J: {e}")))
}

fn builder(args: &MkfsArgs) -> Result<VolumeBuilder> {
    let builder = VolumeBuilder::new();
    let mut builder = match args.format {
        Format::Ext2 => builder.fs_type(FsType::Ext2),
        Format::Ext3 => builder.fs_type(FsType::Ext3),
        Format::Ext4 => builder.fs_type(FsType::Ext4),
        Format::F2fs => builder.format(blockwright::Format::F2fs),
    }
    .features(args.features.join(","));
    let narrow = |what: &str, value: u64| {
        u32::try_from(value).map_err(|_| Failure::usage(format_args!("{what} of {value} bytes")))
    };
    if let Some(bytes) = args.block_size {
        builder = builder.block_size(narrow("a block", bytes)?);
    }
    if let Some(bytes) = args.inode_size {
        let bytes = u16::try_from(bytes)
            .map_err(|_| Failure::usage(format_args!("an inode of {bytes} bytes")))?;
        builder = builder.inode_size(bytes);
    }
    if let Some(bytes) = args.bytes_per_inode {
        builder = builder.inode_ratio(bytes);
    }
    if let Some(count) = args.inodes {
        builder = builder.inodes(count);
    }
    if let Some(percent) = args.reserved_percent {
        if !(0.0..=50.0).contains(&percent) {
            return Err(Failure::usage("-m: 0 to 50 percent can be reserved"));
        }
        builder = builder.reserved_percent(percent);
    }
    if let Some(label) = &args.label {
        if args.format != Format::F2fs && label.len() > 16 {
            return Err(Failure::usage("-L: a label has at most 16 bytes"));
        }
        builder = builder.label(label);
    }
    if let Some(uuid) = &args.uuid {
        builder = builder.uuid(parse_uuid(uuid)?);
    }
    if let Some(journal) = named_journal(OpenMode::default())? {
        builder = builder.journal_device(journal);
    }
    let names_device = args.journal_path().is_some();
    if let Some(size) = args.journal_size.as_ref().filter(|_| !names_device) {
        builder = builder.journal_bytes(journal_bytes(size)?);
    }
    if let Some(owner) = &args.owner {
        let (uid, gid) = Owner::parse_pair(owner)?;
        builder = builder.owner(uid, gid);
    }
    if let Some(secs) = source_date_epoch()? {
        builder = builder.source_date_epoch(secs);
    }
    // An export is there, or opening it will say that it is not.
    let there = args.image.exists() || is_device(&args.image);
    if !there {
        refuse_among_devices(&args.image)?;
    }
    builder = match args.size.as_deref().or(args.fs_size.as_deref()) {
        Some("auto") => builder.size_auto(args.free),
        Some(_) if args.free > 0 => {
            return Err(Failure::usage("--free goes with --size auto"));
        }
        Some(size) => {
            let bytes =
                parse_size(size).map_err(|e| Failure::usage(format_args!("--size: {e}")))?;
            builder.size(bytes)
        }
        // The space that the sources need, unless an option fixes the size.
        None if !there && args.has_sources() => builder.size_auto(args.free),
        None if args.free > 0 => {
            return Err(Failure::usage("--free goes with --size auto"));
        }
        None if !there => {
            return Err(Failure::usage("a new image needs a --size").at(args.image.display()));
        }
        None => builder,
    };
    for option in &args.extended {
        builder = extended(builder, option)?;
    }
    if let Some(platform) = &args.platform {
        builder = builder.platform(platform).map_err(Failure::usage)?;
    }
    if let Some(base) = &args.base {
        builder = builder.base(base_device(base)?);
    }
    builder = builder
        .keep_image_config(args.keep_config)
        .entries(policy(&args.entries)?);
    for source in args.sources() {
        builder = source.put_into(builder);
    }
    Ok(builder)
}

/// The earlier build that `--base` names.
fn base_device(base: &Path) -> Result<SharedDevice> {
    let is_index = base.extension().is_some_and(|e| e == "caibx");
    if is_index && ChunkAddress::parse(base).is_none() {
        return Err(Failure::usage(format_args!(
            "--base {0}: an index of chunks needs a store: 'chunks:{0}?store=STORE'",
            base.display()
        )));
    }
    crate::wall::device(base, OpenMode::read_only()).at(base.display())
}

/// The time that makes what is built reproducible.
///
/// # Errors
/// A value that is no number.
pub fn source_date_epoch() -> Result<Option<u64>> {
    let Some(epoch) = std::env::var_os("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let secs = epoch.to_str().and_then(|text| text.parse().ok());
    match secs {
        Some(secs) => Ok(Some(secs)),
        None => Err(Failure::usage(
            "SOURCE_DATE_EPOCH is not a number of seconds since 1970",
        )),
    }
}

impl MkfsArgs {
    /// The sources in order, lowest first.
    pub fn sources(&self) -> impl Iterator<Item = MkfsSource<'_>> {
        let directories = self.directory.iter().map(|path| MkfsSource::Path(path));
        let listings = self.entries.dumpfile.iter();
        let listings = listings.map(|listing| MkfsSource::Dumpfile {
            listing,
            objects: self.entries.objects.as_deref(),
        });
        let others = self.from.iter().map(|path| MkfsSource::of(path));
        directories.chain(listings).chain(others)
    }

    fn has_sources(&self) -> bool {
        self.sources().next().is_some()
    }
}

/// An extended option, as mke2fs has them.
fn extended(builder: VolumeBuilder, option: &str) -> Result<VolumeBuilder> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    Ok(match (name, value) {
        ("root_owner", Some(owner)) => {
            let (uid, gid) = Owner::parse_pair(owner)?;
            builder.root_owner(uid, gid)
        }
        ("root_owner", None) => builder.root_owner(
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
        ),
        ("hash_seed", Some(seed)) => builder.hash_seed(parse_uuid(seed)?),
        (
            "lazy_itable_init"
            | "lazy_journal_init"
            | "discard"
            | "nodiscard"
            | "assume_storage_prezeroed",
            _,
        ) => builder,
        _ => {
            return Err(Failure::usage(format_args!(
                "-E {option}: not known here (root_owner, hash_seed, lazy_itable_init, lazy_journal_init, discard, \
                 nodiscard, assume_storage_prezeroed are)"
            )));
        }
    })
}

/// What a build counts, for the bar and the summary.
#[derive(Default)]
pub(super) struct Counts {
    bytes: AtomicU64,
    read: AtomicU64,
}

/// Runs `mkfs`.
///
/// # Errors
/// When the volume could not be made.
pub fn mkfs(args: &MkfsArgs) -> Result<()> {
    if !args.force {
        check_overwrite(&args.image)?;
    }
    let from_standard_input = |source: &MkfsSource<'_>| source.path().is_none();
    if args.sources().filter(from_standard_input).count() > 1 {
        return Err(Failure::usage("standard input is read once"));
    }
    let bar = progress_bar(args.quiet || args.json);
    let counts = Arc::new(Counts::default());
    let builder = {
        let (bar, counts) = (bar.clone(), counts.clone());
        builder(args)?.progress(move |step| show(step, bar.as_ref(), &counts))
    };
    let start = Instant::now();
    // The former volume is destroyed, but the file belongs to its owner; a new image is nothing
    // yet.
    let made = if !args.image.exists() && !is_device(&args.image) {
        remove_output(&args.image)?
    } else {
        NewOutput::default()
    };
    let salt = args.verity.as_deref().map(parse_salt).transpose()?;
    if salt.is_some() && is_device(&args.image) {
        let what = "--verity needs an image file or a block device of its own";
        return Err(Failure::usage(what).at(args.image.display()));
    }
    let report = match allowed_device(&args.image) {
        Some(device) => device.and_then(|device| {
            let made = builder.create_on(&device);
            made.map_err(|e| e.at(&args.image))
        }),
        None => builder.create(&args.image),
    };
    let sealed = match (&report, salt) {
        (Ok(report), Some(salt)) => {
            let mut options = VerityOptions::default();
            (options.salt, options.uuid) = (salt, report.uuid);
            options.tree.clone_from(&args.verity_tree);
            let sealed = verity::seal(&args.image, report.bytes, &options);
            if sealed.is_err() && made.is_new() {
                // The first error is the one to tell.
                let _already_failing = std::fs::remove_file(&args.image);
            }
            Some(sealed)
        }
        _ => None,
    };
    made.keep();
    let took = start.elapsed();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let report = report.map_err(|e| {
        use blockwright_mkfs::MkfsError as M;
        let cause = std::error::Error::source(&e).and_then(|cause| cause.downcast_ref());
        let code = match cause {
            Some(M::Option { .. } | M::Features { .. }) => exit::USAGE,
            _ => exit::FAILURE,
        };
        Failure::from(e).at(args.image.display()).code(code)
    })?;
    let sealed = sealed
        .transpose()
        .map_err(|e| Failure::from(e).at(args.image.display()))?;
    summarize(args, &report, sealed.as_ref(), &counts, took)
}

pub(super) fn progress_bar(quiet: bool) -> Option<ProgressBar> {
    if quiet || !std::io::stderr().is_terminal() {
        return None;
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{spinner} {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    bar.set_style(style);
    Some(bar)
}

pub(super) fn show(step: &BuildProgress, bar: Option<&ProgressBar>, counts: &Counts) {
    match *step {
        BuildProgress::Reading { files } => {
            let files = counts.read.fetch_add(files, Ordering::Relaxed) + files;
            if let Some(bar) = bar {
                bar.set_message(format!("reading the sources: {files} files"));
                bar.tick();
            }
        }
        BuildProgress::Planned { bytes, .. } => {
            if let Some(bar) = bar {
                let style = ProgressStyle::with_template(
                    "[{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta} {msg}",
                );
                if let Ok(style) = style {
                    bar.set_style(style.progress_chars("=> "));
                }
                bar.set_length(bytes);
                bar.set_message("");
                bar.reset_elapsed();
            }
        }
        BuildProgress::Copied { bytes, .. } => {
            counts.bytes.fetch_max(bytes, Ordering::Relaxed);
            if let Some(bar) = bar {
                bar.set_position(counts.bytes.load(Ordering::Relaxed));
            }
        }
        BuildProgress::Finishing => {
            if let Some(bar) = bar {
                bar.set_message("writing metadata");
            }
        }
        _ => {}
    }
}

fn summarize(
    args: &MkfsArgs,
    report: &BuildReport,
    sealed: Option<&Verity>,
    counts: &Counts,
    took: Duration,
) -> Result<()> {
    if args.quiet && !args.json {
        // It is known to nothing else.
        if let Some(sealed) = sealed {
            let mut out = Out::new();
            writeln!(out, "{}", hex(&sealed.root_hash))?;
            return out.finish();
        }
        return Ok(());
    }
    let format = match args.format {
        Format::Ext2 => "ext2",
        Format::Ext3 => "ext3",
        Format::Ext4 => "ext4",
        Format::F2fs => "f2fs",
    };
    let bytes = counts.bytes.load(Ordering::Relaxed);
    let (mut ext4, mut f2fs) = (None, None);
    match report.details {
        BuildDetails::Ext4 {
            inode_bytes,
            groups,
            journal_blocks,
        } => ext4 = Some((inode_bytes, groups, journal_blocks)),
        BuildDetails::F2fs {
            segments,
            free_segments,
            overprovisioned_segments,
            reserved_segments,
        } => {
            f2fs = Some([
                segments,
                free_segments,
                overprovisioned_segments,
                reserved_segments,
            ]);
        }
        _ => {}
    }
    let mut out = Out::new();
    if args.json {
        out.json(&MkfsJson {
            image: args.image.display().to_string(),
            format,
            label: args.label.clone().unwrap_or_default(),
            uuid: uuid_text(&report.uuid),
            size: report.bytes,
            block_bytes: report.block_bytes,
            blocks: report.blocks,
            blocks_free: report.free_blocks,
            blocks_reserved: report.reserved_blocks,
            inode_bytes: ext4.map(|e| e.0),
            inodes: report.inodes,
            inodes_free: report.free_inodes,
            groups: ext4.map(|e| e.1),
            journal_blocks: ext4.map(|e| e.2),
            segments: f2fs.map(|s| s[0]),
            segments_free: f2fs.map(|s| s[1]),
            segments_overprovisioned: f2fs.map(|s| s[2]),
            segments_reserved: f2fs.map(|s| s[3]),
            features: report.features.clone(),
            files_copied: report.files,
            files_protected: report.protected,
            directories_copied: report.directories,
            bytes_copied: bytes,
            seconds: took.as_secs_f64(),
            verity: sealed.map(|v| VerityJson {
                root_hash: hex(&v.root_hash),
                salt: hex(&v.salt),
                algorithm: "sha256",
                data_blocks: v.data_blocks,
                block_bytes: 4096,
                hash_offset: v.hash_offset,
                tree_bytes: v.tree_bytes,
                tree: args
                    .verity_tree
                    .as_ref()
                    .map(|path| path.display().to_string()),
            }),
            left_out: report
                .left_out
                .iter()
                .map(|l| LeftOutJson {
                    what: l.what.clone(),
                    files: l.files,
                })
                .collect(),
        })?;
        return out.finish();
    }
    for left in &report.left_out {
        eprintln!(
            "blockwright: {}: note: {} of {} file{} not kept: this volume has no place for it",
            args.image.display(),
            left.what,
            left.files,
            if left.files == 1 { " is" } else { "s is" },
        );
    }
    let block = u64::from(report.block_bytes);
    writeln!(
        out,
        "{}: {format}, {}, {} blocks of {} bytes ({} free), {} inodes, UUID {}",
        args.image.display(),
        human(report.bytes),
        report.blocks,
        report.block_bytes,
        human(report.free_blocks.saturating_mul(block)),
        report.inodes,
        uuid_text(&report.uuid),
    )?;
    let counted =
        |n: u64, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
    if args.has_sources() {
        let seconds = took.as_secs_f64().max(1e-9);
        // Contents that are in inodes take no block.
        let copied = match bytes {
            0 => format!("in {seconds:.2} s"),
            _ => format!(
                "{} copied in {seconds:.2} s ({}/s)",
                human(bytes),
                human((bytes as f64 / seconds) as u64)
            ),
        };
        writeln!(
            out,
            "{}, {}, {copied}",
            counted(report.files, "file", "files"),
            counted(report.directories, "directory", "directories"),
        )?;
    }
    if report.protected > 0 || !args.entries.fsverity.is_empty() {
        writeln!(
            out,
            "fs-verity: {}",
            counted(report.protected, "file", "files")
        )?;
    }
    if let Some(v) = sealed {
        writeln!(
            out,
            "dm-verity: root hash {}, hash offset {}, tree of {}",
            hex(&v.root_hash),
            v.hash_offset,
            human(v.tree_bytes),
        )?;
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids() {
        let text = "01234567-89ab-cdef-0123-456789abcdef";
        let uuid = parse_uuid(text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(uuid_text(&uuid), text);
        for bad in ["", "0123", "zz234567-89ab-cdef-0123-456789abcdef"] {
            assert!(parse_uuid(bad).is_err());
        }
    }

    #[test]
    fn journal_sizes() {
        let bytes = |text| journal_bytes(text).ok();
        assert_eq!(bytes("4M"), Some(4 << 20));
        assert_eq!(bytes("size=4"), Some(4 << 20));
        assert_eq!(bytes("size=4M"), Some(4 << 20));
        assert_eq!(bytes("device=x"), None);
    }

    #[test]
    fn salts() {
        let salt = |text| parse_salt(text).ok();
        assert_eq!(salt("auto"), Some(None));
        assert_eq!(salt("00fF"), Some(Some(vec![0, 255])));
        assert_eq!(salt(""), Some(Some(Vec::new())));
        for bad in ["0", "0g", "-1", "00 0", &"00".repeat(257)] {
            assert_eq!(salt(bad), None, "{bad}");
        }
    }
}
