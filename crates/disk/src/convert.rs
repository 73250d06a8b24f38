//! Copies a disk into a new file of any format that this crate writes. Ranges that read as zeroes take no space in it.
//!
//! One thread reads ahead, and the caller's thread writes in order of the offsets. So the same disk always gives the same file.

use crate::container::Format;
use crate::qcow2::{self, CreateOptions, Qcow2};
use crate::{Error, Result, simg, vhd};
use blockwright_device::{
    AlignedBuf, DevOffset, DeviceError, DeviceExt, DirectIo, Flags, HostDevice, IoSlice, OpenMode,
    SharedDevice,
};
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Bytes that are read at once.
const STEP_BYTES: u64 = 2 << 20;
/// How many of these wait to be written.
const AHEAD: usize = 8;
/// log2 of the bytes of clusters of qcow2 files that are made.
const CLUSTER_BITS: u32 = 16;

/// Writes what `disk` holds into a new file. `progress` gets the position in bytes of the disk. A file that could not be finished is removed.
///
/// # Errors
/// [`Error::Device`], with `EEXIST` when there is something at `path`; [`Error::Unsupported`] for formats that are only read, and disks that are
/// too large for a format.
pub fn convert(
    disk: &SharedDevice,
    path: &Path,
    format: Format,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let bytes = disk.geometry().bytes;
    let mode = OpenMode {
        direct: DirectIo::Auto,
        ..OpenMode::default()
    };
    let done = match format {
        Format::Raw => {
            let out = HostDevice::create_with(path, bytes, mode)?;
            copy(disk, &out, 16 << 10, progress).and_then(|()| Ok(out.flush()?))
        }
        Format::Qcow2 => {
            let options = CreateOptions {
                bytes: bytes.next_multiple_of(512),
                cluster_bits: CLUSTER_BITS,
                backing: None,
                data_file: None,
            };
            let file = HostDevice::create_with(path, qcow2::file_bytes(&options), mode)?;
            into_qcow2(disk, file, &options, progress)
        }
        Format::Simg => into_stream(new_file(path)?, |out| simg::write(disk, out, progress)),
        Format::Vhd => {
            vhd::check_size(bytes)?;
            into_stream(new_file(path)?, |out| vhd::write(disk, out, progress))
        }
        Format::VhdFixed => {
            vhd::check_size(bytes)?;
            let bytes = bytes.next_multiple_of(512);
            let footer = vhd::fixed_footer(bytes);
            let out = HostDevice::create_with(path, bytes + footer.len() as u64, mode)?;
            let copied = copy(disk, &out, 16 << 10, progress).and_then(|()| Ok(out.flush()?));
            drop(out);
            copied.and_then(|()| append(path, bytes, &footer))
        }
        Format::Vmdk => {
            return Err(Error::Unsupported("VMDK is only read".to_owned()));
        }
    };
    if done.is_err() {
        // Half of a disk must not look like one. The first error is the one to tell.
        let _already_failing = std::fs::remove_file(path);
    }
    done
}

fn into_qcow2(
    disk: &SharedDevice,
    file: SharedDevice,
    options: &CreateOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    qcow2::create(&file, options)?;
    let out: SharedDevice = Arc::new(Qcow2::open(file, None)?);
    copy(disk, &out, 1 << CLUSTER_BITS, progress)?;
    Ok(out.flush()?)
}

fn host(e: std::io::Error) -> Error {
    // An error of the disk that went through a writer comes out whole.
    if let Some(own) = e
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<DeviceError>())
    {
        return Error::Device(own.clone());
    }
    match e.raw_os_error() {
        Some(errno) => Error::Device(DeviceError {
            op: "open",
            offset: DevOffset(0),
            bytes: 0,
            kind: blockwright_device::DeviceErrorKind::Os(errno),
        }),
        None => Error::Unsupported(e.to_string()),
    }
}

/// A new file. A file that existed before does not belong to this conversion, and stays.
fn new_file(path: &Path) -> Result<std::fs::File> {
    std::fs::File::create_new(path).map_err(host)
}

/// Writes behind the disk. The file is this conversion's, and its device is closed.
fn append(path: &Path, at: u64, bytes: &[u8]) -> Result<()> {
    let file = std::fs::File::options().write(true).open(path);
    let file = file.map_err(host)?;
    blockwright_device::positional::write_all_at(&file, bytes, at).map_err(host)?;
    file.sync_all().map_err(host)
}

fn into_stream(
    file: std::fs::File,
    write: impl FnOnce(&mut BufWriter<std::fs::File>) -> std::io::Result<()>,
) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    write(&mut out).map_err(host)?;
    let file = out.into_inner().map_err(|e| host(e.into_error()))?;
    file.sync_all().map_err(host)
}

/// Parts of a buffer, in units, that have anything but zeroes.
fn parts(buf: &[u8], unit: usize) -> Vec<std::ops::Range<usize>> {
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    for start in (0..buf.len()).step_by(unit) {
        let end = (start + unit).min(buf.len());
        let bytes = &buf[start..end];
        // Compared with itself, one byte on: one pass that the C library does fast.
        let is_zero = bytes[0] == 0 && bytes[..bytes.len() - 1] == bytes[1..];
        match found.last_mut() {
            _ if is_zero => {}
            Some(last) if last.end == start => last.end = end,
            _ => found.push(start..end),
        }
    }
    found
}

/// What was read where.
type Step = blockwright_device::Result<(u64, AlignedBuf)>;

/// Copies what is not zero onto a device that reads as zeroes.
fn copy(
    from: &SharedDevice,
    to: &SharedDevice,
    unit: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let bytes = from.geometry().bytes;
    let block = u64::from(from.geometry().logical_block_bytes);
    let pad = to.geometry().logical_block_bytes as usize;
    std::thread::scope(|scope| {
        let (send, steps) = sync_channel::<Step>(AHEAD);
        let mut next = 0;
        let read = move || {
            let data = from.next_data(DevOffset(next)).0.max(next);
            // Back to where a unit begins.
            let at = (data / unit as u64 * unit as u64).max(next);
            if at >= bytes || data >= bytes {
                return None;
            }
            let len = STEP_BYTES.min(bytes - at).next_multiple_of(block);
            let read = from.read_buf(DevOffset(at), len as usize);
            // Nothing is read behind a failure.
            next = match &read {
                Ok(_) => at + len,
                Err(_) => bytes,
            };
            Some(read.map(|buf| (at, buf)))
        };
        let mut ahead = read;
        let reader = std::thread::Builder::new().spawn_scoped(scope, move || {
            // The other side may give up.
            while let Some(step) = ahead()
                && send.send(step).is_ok()
            {}
        });
        // A host without threads: the caller reads.
        let steps: Box<dyn Iterator<Item = Step> + '_> = match reader {
            Ok(_) => Box::new(steps.into_iter()),
            Err(_) => Box::new(std::iter::from_fn(read)),
        };
        for step in steps {
            let (at, buf) = step?;
            let found = parts(&buf, unit);
            let whole = IoSlice::from(buf);
            for part in found {
                let place = DevOffset(at + part.start as u64);
                let slice = whole.slice(part.clone());
                if part.len().is_multiple_of(pad) {
                    to.write_vectored_at(place, &[slice], Flags::empty())?;
                } else {
                    // The end of a disk that is no multiple of the sectors below.
                    let mut padded = slice.to_vec();
                    padded.resize(part.len().next_multiple_of(pad), 0);
                    to.write_at(place, &padded, Flags::empty())?;
                }
            }
            progress(at);
        }
        Ok(())
    })
}
