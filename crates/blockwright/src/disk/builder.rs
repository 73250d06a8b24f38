//! Disks made whole, and partitions added to disks.
//!
//! All parts are planned first: their contents, and so their sizes. Then the disk has a size, and each part is written in its place, the table last.
//! A disk in a container is made as a nameless raw file beside it and converted. Otherwise the order of several threads' writes would decide the
//! order of the container's clusters.

use super::part::{Part, Ready};
use super::progress::DiskProgress;
use super::stoppable::{Stoppable, WriteWatch};
use crate::build::output::{building_mode, folder, removed_on_failure};
use crate::build::part::{Place, derived};
use crate::build::progress::{ProgressFn, Tell, stopped, unheard};
use crate::build::{BuildProgress, BuildReport};
use crate::setters::setters;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, HostDevice, OffsetDevice, SharedDevice};
use blockwright_disk::container::Format;
use blockwright_disk::table::{
    ALIGNMENT, Architecture, MBR_PARTITIONS_MAX, NewPartition, NewTable, PartitionType, Purpose,
};
use blockwright_disk::{Disk, Scheme, Table};
use blockwright_mkfs::Before;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Makes a disk with partitions. See the [module's](super) head.
///
/// Partitions begin at multiples of [`ALIGNMENT`], in the order in which they were added. An MBR with more than four has three primary ones; the others are
/// logical partitions, numbered from 5, of the extended partition 4.
pub struct DiskBuilder {
    scheme: Scheme,
    parts: Vec<Part>,
    size: Option<u64>,
    epoch: Option<u64>,
    architecture: Option<Architecture>,
    progress: ProgressFn,
}

/// Properties of a disk that was made.
#[derive(Clone, Debug)]
pub struct DiskReport {
    /// Bytes of the disk.
    pub bytes: u64,
    /// The disk's id, in the order of the bytes on the disk.
    pub id: [u8; 16],
    /// The partitions, by number.
    pub partitions: Vec<PartReport>,
}

/// Properties of a partition that was made.
#[derive(Clone, Debug)]
pub struct PartReport {
    /// Its number, from 1. Logical partitions of an MBR begin at 5.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its first byte on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// What the table says that it holds.
    pub kind: PartitionType,
    /// What it holds: `volume`, `fat32`, `swap`, `raw`.
    pub format: &'static str,
    /// The volume, where it is one of ext2, ext3, ext4 or f2fs.
    pub volume: Option<BuildReport>,
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

fn of_disk(e: blockwright_disk::Error) -> Error {
    Error::from(blockwright_device::DeviceError::from(e))
}

/// Has a part that is built tell its progress as a part of the disk's.
fn join_progress(part: &mut Part, progress: &Arc<DiskProgress>) {
    let (super::part::Contents::Volume(builder) | super::part::Contents::Fat32(builder)) =
        &mut part.contents
    else {
        return;
    };
    let progress = Arc::clone(progress);
    builder.set_progress(Box::new(move |step| progress.tell_of_part(step)));
}

impl DiskBuilder {
    /// A builder of a disk without partitions.
    #[must_use]
    pub fn new(scheme: Scheme) -> Self {
        DiskBuilder {
            scheme,
            parts: Vec::new(),
            size: None,
            epoch: None,
            architecture: Architecture::host(),
            progress: Box::new(unheard),
        }
    }

    /// Adds a partition behind those that were added before.
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.parts.push(part);
        self
    }

    setters! {
        /// Bytes of the disk; without it, as large as the partitions need.
        size(bytes: u64) { size = Some(bytes); }
        /// Makes the disk depend on its sources and options alone, as
        /// [`VolumeBuilder::source_date_epoch`](crate::VolumeBuilder::source_date_epoch) does for a volume: ids of the disk and of partitions follow from
        /// what they hold.
        source_date_epoch(secs: u64) { epoch = Some(secs); }
        /// The processor that a partition with the name `root` is for; this machine's when not given.
        architecture(architecture: Architecture) { architecture = Some(architecture); }
    }

    /// Whom to tell how far it is, in place of the functions that the builders of its volumes were given.
    #[must_use]
    pub fn progress(self, tell: impl Fn(&BuildProgress) + Send + Sync + 'static) -> Self {
        self.watch(move |step| {
            tell(step);
            ControlFlow::Continue(())
        })
    }

    setters! {
        /// As [`DiskBuilder::progress`], and the making of the disk stops when the function breaks. It then fails with `Interrupted`, and the new file is removed.
        ///
        /// [`BuildProgress::Finishing`] is told at the end of each volume, and then for each piece that is copied into the container; it can stop the disk as
        /// well. The function is not asked again after it broke.
        watch(tell: impl Fn(&BuildProgress) -> ControlFlow<()> + Send + Sync + 'static) { progress = Box::new(tell); }
    }

    /// Makes the disk in a new file.
    ///
    /// # Errors
    /// `Exists`; `Invalid` for partitions that cannot be together, and as [`VolumeBuilder::create`](crate::VolumeBuilder::create) for what is in
    /// them; `NoSpace` when they do not fit the size; `Interrupted` when the function of [`DiskBuilder::watch`] breaks. The file is removed again then.
    pub fn create(self, path: impl AsRef<Path>, format: Format) -> Result<DiskReport> {
        let path = path.as_ref();
        let at = |e: Error| e.at(path);
        if std::fs::symlink_metadata(path).is_ok() {
            return Err(at(Error::new(ErrorKind::Exists, "it exists already")));
        }
        if format == Format::Vmdk {
            return Err(at(Error::new(ErrorKind::Unsupported, "VMDK is only read")));
        }
        let plan = self.plan(folder(path))?;
        let raw_path: PathBuf = match format {
            Format::Raw => path.to_owned(),
            _ => {
                let id: String = blockwright_reshape::random_uuid()
                    .iter()
                    .map(|b| format!("{b:02x}"))
                    .collect();
                folder(path).join(format!(".blockwright-{id}"))
            }
        };
        let device = HostDevice::create_with(&raw_path, plan.bytes, building_mode())
            .map_err(|e| at(e.into()))?;
        if format != Format::Raw {
            // It lives as long as it is open.
            std::fs::remove_file(&raw_path).map_err(|e| at(e.into()))?;
        }
        let progress = Arc::clone(&plan.progress);
        let made = plan.write(&device).and_then(|report| {
            if format != Format::Raw {
                into_container(&device, path, format, progress)?;
            }
            Ok(report)
        });
        drop(device);
        match format {
            Format::Raw => removed_on_failure(made, path),
            _ => made,
        }
        .map_err(at)
    }

    /// Decides about all parts, and where they lie.
    ///
    /// # Errors
    /// Those of [`DiskBuilder::create`].
    fn plan(self, spool: &Path) -> Result<DiskPlan> {
        check_names(
            self.parts.iter().map(|part| part.name.as_str()),
            self.scheme,
        )?;
        let count = self.parts.len();
        let most = match self.scheme {
            Scheme::Gpt => 128,
            Scheme::Mbr => MBR_PARTITIONS_MAX,
        };
        if count > most {
            return Err(invalid(format!(
                "a GPT that is made here has at most 128 partitions, an MBR {MBR_PARTITIONS_MAX}"
            )));
        }
        let filling = self.parts.iter().filter(|part| part.fills()).count();
        match (filling, self.size) {
            (0, _) | (1, Some(_)) => {}
            (1, None) => {
                let part = self.parts.iter().find(|part| part.fills());
                let name = part.map_or("", |part| &part.name);
                return Err(invalid(format!(
                    "partition {name}: it has no contents, so it needs a size, or the disk does"
                )));
            }
            _ => {
                return Err(invalid(
                    "one partition can take the rest of the disk, and several have no size",
                ));
            }
        }
        let mut planned: Vec<Option<PlannedPart>> = Vec::new();
        let mut waiting = None;
        let progress = Arc::new(DiskProgress::new(self.progress));
        let tell = |step: &BuildProgress| progress.tell(step);
        for (index, mut part) in self.parts.into_iter().enumerate() {
            progress.go_on()?;
            join_progress(&mut part, &progress);
            let made = match part.fills() {
                true => {
                    waiting = Some((index, part));
                    None
                }
                false => {
                    let place = place_of(&part.name, index, self.epoch, None, spool);
                    Some(PlannedPart::new(
                        part,
                        self.scheme,
                        self.architecture,
                        &place,
                        &tell,
                    )?)
                }
            };
            planned.push(made);
        }
        let aligned = |bytes: u64| {
            bytes
                .checked_next_multiple_of(ALIGNMENT)
                .ok_or_else(|| invalid("the disk would be too large"))
        };
        // In front of the first partition: the table. Behind the last one: a GPT's backup.
        let tail = if self.scheme == Scheme::Gpt {
            ALIGNMENT
        } else {
            0
        };
        let records = |index| NewTable::bytes_before(self.scheme, count, index);
        let mut needed = ALIGNMENT + tail + (0..count).map(records).sum::<u64>();
        for part in planned.iter().flatten() {
            needed = aligned(needed.saturating_add(part.ready.bytes()))?;
        }
        if let (Some((index, part)), Some(size)) = (waiting, self.size) {
            let fill = size.saturating_sub(needed) / ALIGNMENT * ALIGNMENT;
            if fill == 0 {
                return Err(no_room(size, needed + ALIGNMENT));
            }
            let place = place_of(&part.name, index, self.epoch, Some(fill), spool);
            planned[index] = Some(PlannedPart::new(
                part,
                self.scheme,
                self.architecture,
                &place,
                &tell,
            )?);
            needed += fill;
        }
        let bytes = self.size.unwrap_or(needed);
        if bytes < needed {
            return Err(no_room(bytes, needed));
        }
        if !bytes.is_multiple_of(512) {
            return Err(invalid(format!(
                "a disk of {bytes} bytes: whole sectors of 512 bytes are needed"
            )));
        }
        let parts: Vec<PlannedPart> = planned.into_iter().flatten().collect();
        let mut seed: Vec<Vec<u8>> =
            vec![format!("disk {} {bytes}", self.scheme.name()).into_bytes()];
        for part in &parts {
            seed.push(format!("{} {:?} {}", part.name, part.kind, part.ready.bytes()).into_bytes());
            seed.push(part.ready.uuid().to_vec());
        }
        let id = match self.epoch {
            Some(_) => derived(&seed.iter().map(Vec::as_slice).collect::<Vec<_>>()),
            None => blockwright_reshape::random_uuid(),
        };
        Ok(DiskPlan {
            scheme: self.scheme,
            bytes,
            id: guid(id),
            parts,
            derived: self.epoch.is_some(),
            progress,
        })
    }
}

/// Copies the disk into a new container, which is removed when that fails.
fn into_container(
    disk: &SharedDevice,
    path: &Path,
    format: Format,
    progress: Arc<DiskProgress>,
) -> Result<()> {
    let watch: WriteWatch = Arc::new(move |_, _| progress.tell(&BuildProgress::Finishing));
    let stoppable = Arc::new(Stoppable::of_reads(Arc::clone(disk), watch));
    let source: SharedDevice = Arc::clone(&stoppable) as SharedDevice;
    let done = blockwright_disk::convert(&source, path, format, &|_| ());
    match stoppable.is_stopped() {
        true => Err(stopped()),
        false => done.map_err(of_disk),
    }
}

fn no_room(bytes: u64, needed: u64) -> Error {
    let mib = needed.div_ceil(1 << 20);
    let what = format!(
        "a disk of {bytes} bytes is too small for its partitions; at least {mib} MiB are needed"
    );
    Error::new(ErrorKind::NoSpace, what)
}

/// A UUID in the order of a GUID's bytes on a disk.
fn guid(mut uuid: [u8; 16]) -> [u8; 16] {
    uuid[..4].reverse();
    uuid[4..6].reverse();
    uuid[6..8].reverse();
    uuid
}

fn place_of<'a>(
    name: &str,
    index: usize,
    epoch: Option<u64>,
    fill: Option<u64>,
    spool: &'a Path,
) -> Place<'a> {
    Place {
        salt: format!("; partition {} {name}", index + 1),
        epoch,
        fill,
        spool,
        before: Before::Zeroes,
        image: None,
    }
}

/// Refuses names by which a partition could not be found.
fn check_names<'a>(names: impl Iterator<Item = &'a str>, scheme: Scheme) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if name.encode_utf16().count() > 36
            || name.chars().any(|c| c.is_control() || c == '/' || c == ':')
        {
            return Err(invalid(format!(
                "{name:?}: a partition's name has at most 36 characters, and no `/` and no `:`"
            )));
        }
        if !name.is_empty() && !seen.insert(name) && scheme == Scheme::Gpt {
            return Err(invalid(format!("two partitions have the name {name}")));
        }
    }
    Ok(())
}

struct PlannedPart {
    name: String,
    kind: PartitionType,
    format: &'static str,
    ready: Ready,
}

impl PlannedPart {
    fn new(
        part: Part,
        scheme: Scheme,
        architecture: Option<Architecture>,
        place: &Place<'_>,
        tell: Tell<'_>,
    ) -> Result<Self> {
        let purpose = Purpose::of_name(&part.name, architecture).unwrap_or(part.purpose());
        Ok(PlannedPart {
            name: part.name.clone(),
            kind: part.kind.unwrap_or(purpose.kind(scheme)),
            format: part.format(),
            ready: part.plan(place, tell)?,
        })
    }
}

/// A planned disk.
struct DiskPlan {
    scheme: Scheme,
    bytes: u64,
    id: [u8; 16],
    parts: Vec<PlannedPart>,
    /// Ids follow from the contents.
    derived: bool,
    progress: Arc<DiskProgress>,
}

impl DiskPlan {
    fn write(self, device: &SharedDevice) -> Result<DiskReport> {
        let total: u64 = self.parts.iter().map(|part| part.ready.data_bytes()).sum();
        self.progress.told(&BuildProgress::Planned {
            bytes: total,
            volume_bytes: self.bytes,
        })?;
        let mut table = NewTable {
            scheme: self.scheme,
            id: self.id,
            partitions: Vec::new(),
        };
        let mut reports = Vec::new();
        let mut start = ALIGNMENT;
        let count = self.parts.len();
        for (index, part) in self.parts.into_iter().enumerate() {
            let number = NewTable::number(self.scheme, count, index);
            start += NewTable::bytes_before(self.scheme, count, index);
            let bytes = part.ready.bytes().next_multiple_of(ALIGNMENT);
            let uuid = partition_uuid(self.derived, &self.id, number, &part.ready);
            let data = part.ready.data_bytes();
            let window = OffsetDevice::new(Arc::clone(device), DevOffset(start), Some(bytes))?;
            let window: SharedDevice = Arc::new(window);
            let at = |e: Error| Error::new(e.kind(), format!("partition {}: {e}", part.name));
            let copied = |bytes| self.progress.told_of_part(bytes);
            let written = part.ready.write(&window, start, &copied);
            let volume = written.map_err(at)?;
            self.progress.part_is_done(data)?;
            table.partitions.push(NewPartition {
                start,
                bytes,
                kind: part.kind,
                name: part.name.clone(),
                uuid,
            });
            reports.push(PartReport {
                number,
                name: part.name,
                start,
                bytes,
                kind: part.kind,
                format: part.format,
                volume,
            });
            start += bytes;
        }
        table.write(device).map_err(of_disk)?;
        Ok(DiskReport {
            bytes: self.bytes,
            id: self.id,
            partitions: reports,
        })
    }
}

fn partition_uuid(follows: bool, disk: &[u8], number: u32, contents: &Ready) -> [u8; 16] {
    guid(match follows {
        true => derived(&[b"partition", disk, &number.to_le_bytes(), &contents.uuid()]),
        false => blockwright_reshape::random_uuid(),
    })
}

/// Adds a partition to the table of a disk, in the first room that is large enough; a part without a size takes the largest room.
/// The partition is written first, the table afterwards: an interrupted call leaves the disk as it was. `epoch` makes ids follow from the contents.
///
/// # Errors
/// `Invalid`, `NoSpace`; `Corrupt` for a table that is damaged; as [`DiskBuilder::create`].
pub fn add(disk: &Disk, part: Part, epoch: Option<u64>, spool: &Path) -> Result<PartReport> {
    let never: WriteWatch = Arc::new(|_, _| ControlFlow::Continue(()));
    add_watched(disk, part, epoch, spool, never)
}

/// As [`add`]; `watch` is asked before each write of the partition's contents, and stops the call when it breaks. It is first asked when the sources were
/// read: before, nothing is written. It is not asked while the table is written.
///
/// # Errors
/// As [`add`]; `Interrupted` when `watch` breaks: the table is as it was, and the contents of the partition's place are undefined.
pub fn add_watched(
    disk: &Disk,
    part: Part,
    epoch: Option<u64>,
    spool: &Path,
    watch: WriteWatch,
) -> Result<PartReport> {
    let device = disk.device();
    let table: Table = disk
        .table()
        .map_err(of_disk)?
        .ok_or_else(|| invalid("there is no table of partitions (neither GPT nor MBR)"))?;
    let names = table.partitions.iter().map(|p| p.name.as_str());
    // Twice the same name among those that are there is not this partition's fault.
    if names
        .clone()
        .any(|name| name == part.name && !name.is_empty())
    {
        return Err(invalid(format!(
            "there is a partition with the name {} already",
            part.name
        )));
    }
    check_names([part.name.as_str()].into_iter(), table.scheme)?;
    let free = table.free();
    let largest = free
        .iter()
        .map(|room| room.end - room.start)
        .max()
        .unwrap_or(0);
    let usable = largest / ALIGNMENT * ALIGNMENT;
    let full = |needed: u64| {
        let what = format!(
            "the largest free range has {largest} bytes, and {needed} are needed, {} more",
            needed - largest.min(needed)
        );
        let how = match table.missing(needed) {
            Some(more) => format!("; a disk that is {more} bytes longer has it at its end"),
            None => String::new(),
        };
        Error::new(ErrorKind::NoSpace, what + &how)
    };
    if usable == 0 && part.fills() {
        return Err(full(ALIGNMENT));
    }
    let index = table.partitions.iter().map(|p| p.number).max().unwrap_or(0) as usize;
    let place = Place {
        before: Before::Unknown,
        ..place_of(&part.name, index, epoch, Some(usable), spool)
    };
    let planned = PlannedPart::new(part, table.scheme, Architecture::host(), &place, &unheard)?;
    let bytes = planned.ready.bytes().next_multiple_of(ALIGNMENT);
    let room = free.iter().find(|room| room.end - room.start >= bytes);
    let start = room.ok_or_else(|| full(bytes))?.start;
    let uuid = partition_uuid(
        epoch.is_some(),
        table.id.as_bytes(),
        index as u32 + 1,
        &planned.ready,
    );
    let new = NewPartition {
        start,
        bytes,
        kind: planned.kind,
        name: planned.name.clone(),
        uuid,
    };
    let window: SharedDevice = Arc::new(OffsetDevice::new(
        Arc::clone(device),
        DevOffset(start),
        Some(bytes),
    )?);
    let stoppable = Arc::new(Stoppable::new(window, watch));
    let window: SharedDevice = Arc::clone(&stoppable) as SharedDevice;
    let written = planned.ready.write(&window, start, &|_| Ok(()));
    if stoppable.is_stopped() {
        return Err(Error::new(
            ErrorKind::Interrupted,
            "interrupted; the table of partitions is as it was",
        ));
    }
    let volume = written?;
    let number = table.add(device, &new).map_err(of_disk)?;
    Ok(PartReport {
        number,
        name: planned.name,
        start,
        bytes,
        kind: planned.kind,
        format: planned.format,
        volume,
    })
}
