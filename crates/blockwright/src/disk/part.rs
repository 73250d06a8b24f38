//! What becomes a partition.

use crate::build::BuildProgress;
use crate::build::part::{Place, Planned, derived};
use crate::build::progress::{Tell, told};
use crate::{Error, ErrorKind, Result, VolumeBuilder};
use blockwright_device::{DevOffset, DeviceExt, Flags, SharedDevice};
use blockwright_disk::table::{PartitionType, Purpose};
use blockwright_mkfs::Before;
use sha2::{Digest, Sha256};

/// Bytes that are copied at once.
const STEP_BYTES: u64 = 1 << 20;
/// Bytes of a page of swap space, on every processor that has a type of partition here.
const PAGE_BYTES: u64 = 4096;

/// A partition to be made, and what it is to hold.
pub struct Part {
    pub(super) name: String,
    pub(super) kind: Option<PartitionType>,
    pub(super) contents: Contents,
    /// It takes what the others leave, whatever it holds.
    filling: bool,
}

pub(super) enum Contents {
    Volume(Box<VolumeBuilder>),
    Fat32(Box<VolumeBuilder>),
    Swap(Option<u64>),
    Raw(SharedDevice, Option<u64>),
}

impl Part {
    fn new(name: impl Into<String>, contents: Contents) -> Self {
        Part {
            name: name.into(),
            kind: None,
            contents,
            filling: false,
        }
    }

    /// A partition with the volume that `builder` describes. A builder without a size makes one as small as its sources allow; without sources,
    /// one that takes the rest of a disk whose size is given.
    #[must_use]
    pub fn volume(name: impl Into<String>, builder: VolumeBuilder) -> Self {
        Self::new(name, Contents::Volume(Box::new(builder)))
    }

    /// A partition with a FAT32 volume. Of the builder's options, sources, size and label count.
    #[must_use]
    pub fn fat32(name: impl Into<String>, builder: VolumeBuilder) -> Self {
        Self::new(name, Contents::Fat32(Box::new(builder)))
    }

    /// Swap space of this many bytes, the pages that hold no data included; without a size, the rest of the disk.
    #[must_use]
    pub fn swap(name: impl Into<String>, bytes: impl Into<Option<u64>>) -> Self {
        Self::new(name, Contents::Swap(bytes.into()))
    }

    /// The bytes of a device. The partition may be larger than that.
    #[must_use]
    pub fn raw(
        name: impl Into<String>,
        device: SharedDevice,
        bytes: impl Into<Option<u64>>,
    ) -> Self {
        Self::new(name, Contents::Raw(device, bytes.into()))
    }

    /// The type that the table says. Without it, the type follows from the name (`esp`, `root`, `home`, `srv`, `swap`, `boot`, `bios`) and the contents.
    #[must_use]
    pub fn kind(mut self, kind: PartitionType) -> Self {
        self.kind = Some(kind);
        self
    }

    /// Makes the partition take what the others leave of the disk, also where its sources need less. The disk needs a size then.
    #[must_use]
    pub fn filling(mut self) -> Self {
        self.filling = true;
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it takes what the others leave.
    pub(super) fn fills(&self) -> bool {
        match &self.contents {
            Contents::Volume(builder) | Contents::Fat32(builder) => {
                builder.is_unsized() || (self.filling && builder.fills())
            }
            Contents::Swap(bytes) => bytes.is_none(),
            Contents::Raw(..) => false,
        }
    }

    /// The purpose of a partition whose name does not tell it.
    pub(super) fn purpose(&self) -> Purpose {
        match self.contents {
            Contents::Fat32(_) => Purpose::BasicData,
            Contents::Swap(_) => Purpose::Swap,
            _ => Purpose::Linux,
        }
    }

    /// The name of its format.
    pub(super) fn format(&self) -> &'static str {
        match &self.contents {
            Contents::Volume(_) => "volume",
            Contents::Fat32(_) => "fat32",
            Contents::Swap(_) => "swap",
            Contents::Raw(..) => "raw",
        }
    }

    /// Decides how large the partition is, and all that will be written.
    ///
    /// # Errors
    /// Those of the contents; `Interrupted` when `tell` or the function of a volume's builder breaks.
    pub(super) fn plan(self, place: &Place<'_>, tell: Tell<'_>) -> Result<Ready> {
        let at = |e: Error| {
            let kind = e.kind();
            Error::new(kind, format!("partition {}: {e}", self.name))
        };
        let known = |bytes: Option<u64>| {
            bytes
                .or(place.fill)
                .ok_or_else(|| Error::new(ErrorKind::Invalid, "a size is needed"))
        };
        let identity = |what: &[u8], bytes: u64| match place.epoch {
            Some(_) => derived(&[what, &bytes.to_le_bytes(), place.salt.as_bytes()]),
            None => blockwright_reshape::random_uuid(),
        };
        match self.contents {
            Contents::Volume(mut builder) => {
                if !self.filling {
                    builder.default_size();
                }
                Ok(Ready::Volume(Box::new(
                    Planned::volume(*builder, place).map_err(at)?,
                )))
            }
            Contents::Fat32(mut builder) => {
                if !self.filling {
                    builder.default_size();
                }
                Ok(Ready::Volume(Box::new(
                    Planned::fat32(*builder, place).map_err(at)?,
                )))
            }
            Contents::Swap(bytes) => {
                let bytes = known(bytes).map_err(at)? / PAGE_BYTES * PAGE_BYTES;
                if !(10..=u64::from(u32::MAX)).contains(&(bytes / PAGE_BYTES)) {
                    let what = format!("swap space of {bytes} bytes: 40 KiB to 16 TiB can be");
                    return Err(at(Error::new(ErrorKind::Invalid, what)));
                }
                Ok(Ready::Swap(bytes, identity(b"swap", bytes)))
            }
            Contents::Raw(device, bytes) => {
                let has = device.geometry().bytes;
                let bytes = bytes.unwrap_or(has);
                if bytes < has || bytes == 0 {
                    let what = format!(
                        "its source has {has} bytes, more than the {bytes} of the partition, or none"
                    );
                    return Err(at(Error::new(ErrorKind::NoSpace, what)));
                }
                let uuid = match place.epoch {
                    Some(_) => identity(&digest(&device, tell).map_err(at)?, bytes),
                    None => identity(b"raw", bytes),
                };
                Ok(Ready::Raw {
                    device,
                    bytes,
                    uuid,
                    before: place.before,
                })
            }
        }
    }
}

/// The planned contents of a partition.
pub(super) enum Ready {
    Volume(Box<Planned>),
    Swap(u64, [u8; 16]),
    Raw {
        device: SharedDevice,
        bytes: u64,
        uuid: [u8; 16],
        before: Before,
    },
}

impl Ready {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Ready::Volume(planned) => planned.bytes(),
            Ready::Swap(bytes, _) | Ready::Raw { bytes, .. } => *bytes,
        }
    }

    /// Distinguishes these contents from others.
    pub(super) fn uuid(&self) -> [u8; 16] {
        match self {
            Ready::Volume(planned) => planned.uuid(),
            Ready::Swap(_, uuid) | Ready::Raw { uuid, .. } => *uuid,
        }
    }

    /// Bytes of data that will be copied.
    pub(super) fn data_bytes(&self) -> u64 {
        match self {
            Ready::Volume(planned) => planned.data_bytes(),
            Ready::Swap(..) => 0,
            Ready::Raw { device, .. } => device.geometry().bytes,
        }
    }

    /// Writes the contents onto the partition, which begins at byte `start` of its disk. `copied` gets the position in bytes behind each piece of a raw
    /// source; a volume's builder tells its own function.
    ///
    /// # Errors
    /// The device's, and those of `copied`.
    pub(super) fn write(
        self,
        device: &SharedDevice,
        start: u64,
        copied: &dyn Fn(u64) -> Result<()>,
    ) -> Result<Option<crate::build::BuildReport>> {
        match self {
            Ready::Volume(planned) => planned.write(device, start),
            Ready::Swap(bytes, uuid) => {
                let header = swap_header(bytes, &uuid);
                device.write_at(DevOffset(0), &header, Flags::empty())?;
                device.flush()?;
                Ok(None)
            }
            Ready::Raw {
                device: source,
                before,
                ..
            } => {
                // Only what is not copied is zeroed, so that each byte is written once.
                let (mut done, is_old) = (0, before == Before::Unknown);
                let zero = |from: u64, to: u64| match is_old && from < to {
                    true => device.write_zeroes(DevOffset(from), to - from),
                    false => Ok(()),
                };
                each_step(&source, copied, |at, bytes| {
                    zero(done, at)?;
                    done = at + bytes.len() as u64;
                    Ok(device.write_at(DevOffset(at), bytes, Flags::empty())?)
                })?;
                zero(done, device.geometry().bytes)?;
                device.flush()?;
                Ok(None)
            }
        }
    }
}

/// The first page of swap space: version 1, little-endian. Source: mkswap(8) and `struct swap_header` of Linux's user interface.
fn swap_header(bytes: u64, uuid: &[u8; 16]) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES as usize];
    // The last page's number; planning has bounded it.
    let last = (bytes / PAGE_BYTES - 1) as u32;
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last.to_le_bytes());
    page[1036..1052].copy_from_slice(uuid);
    page[4086..4096].copy_from_slice(b"SWAPSPACE2");
    page
}

/// Gives all parts of a device that are not zero to a function, in order. `passed` gets the position in bytes behind each piece that was read.
fn each_step(
    device: &SharedDevice,
    passed: &dyn Fn(u64) -> Result<()>,
    mut take: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let end = device.geometry().bytes;
    let mut at = 0;
    while at < end {
        let data = device.next_data(DevOffset(at)).0.max(at);
        at = (data / STEP_BYTES * STEP_BYTES).max(at);
        if at >= end || data >= end {
            break;
        }
        let len = STEP_BYTES.min(end - at);
        let bytes = device.read_buf(DevOffset(at), len as usize)?;
        if bytes.iter().any(|&b| b != 0) {
            take(at, &bytes)?;
        }
        at += len;
        passed(at)?;
    }
    Ok(())
}

/// A digest of a device's bytes, which does not depend on where its holes are.
///
/// # Errors
/// The device's; `Interrupted` when `tell` breaks, which is told that sources are read.
fn digest(device: &SharedDevice, tell: Tell<'_>) -> Result<[u8; 32]> {
    let mut hash = Sha256::new();
    let reading = |_| told(tell, &BuildProgress::Reading { files: 0 });
    each_step(device, &reading, |at, bytes| {
        hash.update(at.to_le_bytes());
        hash.update(bytes);
        Ok(())
    })?;
    Ok(hash.finalize().into())
}
