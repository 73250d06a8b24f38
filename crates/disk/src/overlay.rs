//! Changes of a disk in a file of their own, over a disk that is only read.
//!
//! The file is a qcow2 file whose backing file is that disk, so qemu's tools know it: they show, commit and rebase it. Any number of overlays lie over
//! one disk. An overlay belongs to the disk whose name is written in it: over another one its clusters would mean nothing.
//!
//! Making one writes its first block last. A file that has the length of a new overlay and no first block yet is one whose making a crash interrupted: it
//! is made again.
//!
//! Not responsible for: what keeps the disk below from being changed (callers open it for reading, locked).

use crate::container::{self, Format};
use crate::qcow2::{self, CreateOptions, HEAD_BYTES, Qcow2};
use crate::{Disk, Error, Result};
#[cfg(feature = "chunks")]
use blockwright_chunks::ChunkAddress;
use blockwright_device::{
    DevOffset, DeviceError, DeviceErrorKind, Held, NbdAddress, OpenMode, SharedDevice, os_name,
};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// log2 of the bytes of clusters. The first write to a cluster copies the rest of it from the disk below.
const CLUSTER_BITS: u32 = 16;

/// Opens the file of an overlay; for writing, a file that is not there is made, without contents.
///
/// # Errors
/// As [`blockwright_device::hold`], with the file named.
pub fn hold(path: &Path, mode: OpenMode) -> std::result::Result<Held, DeviceError> {
    let named = |why: String| DeviceError {
        op: "open",
        offset: blockwright_device::DevOffset(0),
        bytes: 0,
        kind: DeviceErrorKind::Refused {
            why: format!("the overlay {}: {why}", path.display()),
        },
    };
    if !mode.read_only
        && let Err(e) = File::create_new(path)
        && e.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(named(blockwright_device::host_reason(&e)));
    }
    blockwright_device::hold(path, mode).map_err(|e| match &e.kind {
        DeviceErrorKind::InUse { .. } => e,
        DeviceErrorKind::Os(errno) => named(blockwright_device::host_reason(
            &io::Error::from_raw_os_error(*errno),
        )),
        _ => named(e.to_string()),
    })
}

/// The name of an image that is the same in every working directory: a path without symbolic links, or an address whose paths are absolute.
///
/// # Errors
/// Those of looking at the path; [`io::ErrorKind::InvalidInput`] for an address that is wrong.
pub fn stable_name(file: &Path) -> io::Result<PathBuf> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    if let Some(address) = NbdAddress::parse(file) {
        let address = address.map_err(wrong)?.absolute()?;
        return Ok(PathBuf::from(address.to_string()));
    }
    #[cfg(feature = "chunks")]
    if let Some(address) = ChunkAddress::parse(file) {
        let address = address.map_err(|e| wrong(e.to_string()))?;
        return Ok(address.absolute()?.path());
    }
    std::fs::canonicalize(file)
}

/// The name of the disk in `file` as an overlay over it holds it: [`stable_name`], without what only concerns the way to it: an image in chunks is named
/// by its index, wherever its chunks come from and are cached, and an export without its parameters.
///
/// # Errors
/// As [`stable_name`].
pub fn base_name(file: &Path) -> std::result::Result<Vec<u8>, DeviceError> {
    let name = match index_of(file) {
        Some(index) => index,
        None => match NbdAddress::parse(file) {
            Some(Ok(address)) => {
                let address = address.identity().absolute();
                address.map(|address| PathBuf::from(address.to_string()))
            }
            _ => stable_name(file),
        },
    };
    let named = name.map_err(|e| DeviceError {
        op: "open",
        offset: DevOffset(0),
        bytes: 0,
        kind: match e.raw_os_error() {
            Some(errno) => DeviceErrorKind::Os(errno),
            None => DeviceErrorKind::Refused { why: e.to_string() },
        },
    })?;
    Ok(os_name::into_bytes(named.into_os_string()))
}

/// The name of the index of an image in chunks; `None` for other images.
#[cfg(feature = "chunks")]
fn index_of(file: &Path) -> Option<io::Result<PathBuf>> {
    let address = ChunkAddress::parse(file)?.ok()?;
    let index = ChunkAddress::new(address.index, Vec::new()).absolute();
    Some(index.map(|address| address.path()))
}

#[cfg(not(feature = "chunks"))]
fn index_of(_: &Path) -> Option<io::Result<PathBuf>> {
    None
}

/// The mode in which the disk below an overlay is opened.
#[must_use]
pub fn base_mode(mode: OpenMode) -> OpenMode {
    OpenMode {
        read_only: true,
        ..mode
    }
}

impl Disk {
    /// Opens the disk in a file, on a block device, or behind an address, as [`Disk::open_with`] does, for reading, with the changes in the file `overlay`.
    /// When `mode` is for writing, changes go there, and an overlay that is not there is made.
    ///
    /// # Errors
    /// As [`Disk::open_with`], [`hold`] and [`Disk::with_overlay`].
    pub fn open_over(
        path: impl AsRef<Path>,
        mode: OpenMode,
        allow_backing: bool,
        overlay: &Path,
    ) -> Result<Self> {
        let file = crate::Place::of(path).file;
        let below = Self::open_with(&file, base_mode(mode), allow_backing)?;
        let name = base_name(&file)?;
        below.with_overlay(&name, hold(overlay, mode)?.start()?)
    }

    /// The disk with changes in the overlay `file`, which is made if it is empty. `name` is the disk's, independent of the working directory.
    ///
    /// # Errors
    /// [`Error::Denied`] when the overlay is over a disk of another name or size, and when it is no overlay; [`Error::Unsupported`] when the name is too
    /// long; as [`Qcow2::open`].
    pub fn with_overlay(&self, name: &[u8], file: SharedDevice) -> Result<Self> {
        let base = self.device();
        let bytes = base.geometry().bytes.next_multiple_of(512);
        let options = CreateOptions {
            bytes,
            cluster_bits: CLUSTER_BITS,
            backing: Some((name.to_vec(), backing_format(self.format()))),
            data_file: None,
        };
        if !file.geometry().read_only && is_unmade(&file, &options)? {
            if file.geometry().bytes == 0 {
                file.grow(qcow2::file_bytes(&options))?;
            }
            qcow2::create(&file, &options)?;
        }
        let head = crate::file::head(&file, HEAD_BYTES)?;
        let below = qcow2::references(&head)?.and_then(|found| found.backing);
        let overlay = file.name();
        match below {
            Some(found) if found == name => {}
            Some(found) => {
                return Err(Error::Denied(format!(
                    "the overlay {overlay} is over {}, not over this image",
                    String::from_utf8_lossy(&found)
                )));
            }
            None => {
                return Err(Error::Denied(format!(
                    "{overlay} is there, and is no overlay (a qcow2 file with a backing file)"
                )));
            }
        }
        let device = Qcow2::open(file, Some(Arc::clone(base)))?;
        let found = blockwright_device::BlockDevice::geometry(&device).bytes;
        if found.next_multiple_of(512) != bytes {
            return Err(Error::Denied(format!(
                "the overlay {overlay} has {found} bytes, and the image below it {bytes}"
            )));
        }
        Ok(Disk::in_format(Arc::new(device), self.format()))
    }
}

/// Whether the file of an overlay is new, or was left by a crash before it was made.
fn is_unmade(file: &SharedDevice, options: &CreateOptions) -> Result<bool> {
    let bytes = file.geometry().bytes;
    if bytes == 0 {
        return Ok(true);
    }
    let first = crate::file::head(file, container::DETECT_BYTES)?;
    Ok(bytes == qcow2::file_bytes(options) && first.iter().all(|&b| b == 0))
}

/// The name that qemu's tools have for a format.
fn backing_format(format: Format) -> &'static str {
    match format {
        Format::Raw | Format::Simg => "raw",
        Format::Qcow2 => "qcow2",
        Format::Vhd | Format::VhdFixed => "vpc",
        Format::Vmdk => "vmdk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_device::{DeviceExt, Flags, MemoryDevice};

    fn base(bytes: u64) -> Disk {
        let image: Vec<u8> = (0..bytes).map(|n| (n / 512) as u8 ^ n as u8).collect();
        Disk::of(Arc::new(MemoryDevice::from_image(&image).into_read_only()))
    }

    fn open(path: &Path) -> SharedDevice {
        hold(path, OpenMode::default()).unwrap().start().unwrap()
    }

    #[test]
    fn overlays_of_one_disk_differ_and_the_disk_stays() {
        let scratch = tempfile::tempdir().unwrap();
        let disk = base(5 << 20);
        let before = disk.device().read_buf(DevOffset(0), 5 << 20).unwrap();
        let paths: Vec<_> = (0..4)
            .map(|n| scratch.path().join(format!("o{n}")))
            .collect();
        let change = |n: usize, disk: &Disk| {
            let at = DevOffset((n as u64) * 70_144);
            disk.device()
                .write_at(at, &[n as u8 + 1; 1024], Flags::empty())
                .unwrap();
            disk.device().flush().unwrap();
        };
        for (n, path) in paths.iter().enumerate() {
            change(n, &disk.with_overlay(b"/base", open(path)).unwrap());
        }
        for (n, path) in paths.iter().enumerate() {
            let over = disk.with_overlay(b"/base", open(path)).unwrap();
            let mut expected = before.to_vec();
            expected[n * 70_144..n * 70_144 + 1024].fill(n as u8 + 1);
            let found = over.device().read_buf(DevOffset(0), 5 << 20).unwrap();
            assert!(found[..] == expected[..], "overlay {n}");
            assert!(path.metadata().unwrap().len() < 1 << 20);
        }
        assert!(disk.device().read_buf(DevOffset(0), 5 << 20).unwrap()[..] == before[..]);
    }

    /// The making of an overlay, cut at each write: what is left is an overlay without changes, or is made again.
    #[test]
    fn an_interrupted_making_is_made_again() {
        use blockwright_device::{CrashPolicy, RecordingDevice};
        let disk = base(1 << 20);
        let options = CreateOptions {
            bytes: 1 << 20,
            cluster_bits: CLUSTER_BITS,
            backing: Some((b"/base".to_vec(), "raw")),
            data_file: None,
        };
        let empty = MemoryDevice::new(qcow2::file_bytes(&options));
        let recording = Arc::new(RecordingDevice::new(&empty));
        let file: SharedDevice = recording.clone();
        drop(disk.with_overlay(b"/base", file).unwrap());
        let before = disk.device().read_buf(DevOffset(0), 1 << 20).unwrap();
        let (mut whole, mut again) = (0, 0);
        for cut in 0..=recording.log_len() {
            for seed in 0..8 {
                let policy = CrashPolicy::Random { seed };
                let left: SharedDevice = Arc::new(recording.image_at(cut, policy));
                match is_unmade(&left, &options).unwrap() {
                    true => again += 1,
                    false => whole += 1,
                }
                let over = disk.with_overlay(b"/base", left).unwrap();
                let found = over.device().read_buf(DevOffset(0), 1 << 20).unwrap();
                assert!(found[..] == before[..], "cut {cut}, seed {seed}");
            }
        }
        assert!(whole > 0 && again > 0, "{whole} {again}");
    }

    #[test]
    fn an_overlay_of_another_disk_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("o");
        let disk = base(1 << 20);
        drop(disk.with_overlay(b"/base", open(&path)).unwrap());
        let told = |disk: &Disk, name: &[u8]| {
            disk.with_overlay(name, open(&path))
                .err()
                .unwrap()
                .to_string()
        };
        assert!(told(&disk, b"/other").contains("is over /base, not over this image"));
        assert!(told(&base(2 << 20), b"/base").contains("and the image below it 2097152"));
        std::fs::write(&path, vec![1; 8192]).unwrap();
        assert!(told(&disk, b"/base").contains("is no overlay"));
        let read_only = hold(&scratch.path().join("absent"), OpenMode::read_only());
        let error = read_only.err().unwrap().to_string();
        assert!(
            error.contains("absent") && error.contains("no such file"),
            "{error}"
        );
    }
}
