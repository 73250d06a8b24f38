//! Container formats: detects the format of a file, and opens the disk in it.
//!
//! # Other files
//! A qcow2 file can name a backing file. The author of the image chose that name, so it may be any file that the user can read.
//! [`resolve`] accepts only names of files in the image's own folder, unless the caller allows others.

use crate::file::{head, read_any};
use crate::qcow2::{self, Qcow2};
use crate::{Error, Result, simg, vhd, vmdk};
use blockwright_device::{DirectIo, Engine, OpenMode, SharedDevice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest chain of backing files.
pub const CHAIN_MAX: usize = 32;

/// Bytes from a file's beginning that [`detect`] looks at.
pub const DETECT_BYTES: usize = 512;

/// A container format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// None: the file's bytes are the disk's.
    Raw,
    /// qcow2, version 2 or 3.
    Qcow2,
    /// Android sparse image. Read, and made by converting.
    Simg,
    /// Dynamic VHD. Read, and made by converting.
    Vhd,
    /// Fixed VHD: the disk's bytes, and a footer behind them. Read and written, and made by converting.
    VhdFixed,
    /// VMDK in one file. Only read.
    Vmdk,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 6] = [
        Format::Raw,
        Format::Qcow2,
        Format::Simg,
        Format::Vhd,
        Format::VhdFixed,
        Format::Vmdk,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Simg => "simg",
            Format::Vhd => "vhd",
            Format::VhdFixed => "vhd-fixed",
            Format::Vmdk => "vmdk",
        }
    }
}

/// Which format a file has that begins with these bytes. A fixed VHD begins as the disk in it does: see [`detect_on`].
#[must_use]
pub fn detect(head: &[u8]) -> Format {
    const STARTS: [(&[u8], Format); 5] = [
        (&qcow2::MAGIC, Format::Qcow2),
        (&simg::MAGIC, Format::Simg),
        (vhd::COOKIE, Format::Vhd),
        (&vmdk::MAGIC, Format::Vmdk),
        (vmdk::DESCRIPTOR, Format::Vmdk),
    ];
    let found = STARTS.iter().find(|(start, _)| head.starts_with(start));
    found.map_or(Format::Raw, |(_, format)| *format)
}

/// Which format a file has.
///
/// # Errors
/// As reading it.
pub fn detect_on(file: &SharedDevice) -> Result<Format> {
    match detect(&read_any(file, 0, DETECT_BYTES)?) {
        Format::Raw if vhd::is_fixed(file)? => Ok(Format::VhdFixed),
        format => Ok(format),
    }
}

/// Which format the file at a path has; raw if it cannot be read, and if it is no regular file.
#[must_use]
pub fn detect_file(path: &Path) -> Format {
    let is_file = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    let mode = OpenMode {
        lock: false,
        engine: Engine::Plain,
        direct: DirectIo::Never,
        read_only: true,
    };
    let file = is_file
        .then(|| blockwright_device::open(path, mode).ok())
        .flatten();
    file.and_then(|file| detect_on(&file).ok())
        .unwrap_or(Format::Raw)
}

/// Opens the backing file of an image. Arguments: the image's path, and the name as it is written
/// there.
pub type BackingOpener<'a> = dyn FnMut(&Path, &[u8]) -> Result<(PathBuf, SharedDevice)> + 'a;

/// Opens backing files of the host for reading, those in the image's folder, or any.
pub fn open_backing(
    mode: OpenMode,
    allow_any: bool,
) -> impl FnMut(&Path, &[u8]) -> Result<(PathBuf, SharedDevice)> {
    move |image, name| {
        let path = resolve(image, name, allow_any)?;
        let mode = OpenMode {
            read_only: true,
            ..mode
        };
        let device = blockwright_device::open(&path, mode)?;
        Ok((path, device))
    }
}

/// The path of a backing file, from its name in an image.
///
/// # Errors
/// [`Error::Denied`] when it is not in the image's folder, unless `allow_any`; [`Error::Unsupported`] for names that are not those of files;
/// [`Error::NotFound`].
pub fn resolve(image: &Path, name: &[u8], allow_any: bool) -> Result<PathBuf> {
    let shown = String::from_utf8_lossy(name).into_owned();
    if name.contains(&0) || name.starts_with(b"json:") {
        return Err(Error::Unsupported(format!(
            "the backing file is given as {shown:?}, and not as a path"
        )));
    }
    let name = name.strip_prefix(b"file:").unwrap_or(name);
    let folder = match image.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let path = folder.join(blockwright_device::os_name::of(name));
    let missing = |e: std::io::Error| Error::NotFound(format!("the backing file {shown:?}: {e}"));
    let real = std::fs::canonicalize(&path).map_err(missing)?;
    if !allow_any {
        let folder = std::fs::canonicalize(folder).map_err(missing)?;
        if !real.starts_with(&folder) {
            return Err(Error::Denied(format!(
                "the backing file {shown:?} is outside of the image's folder; --allow-backing opens it"
            )));
        }
        if !real.is_file() {
            return Err(Error::Denied(format!(
                "the backing file {shown:?} is not a regular file; --allow-backing opens it"
            )));
        }
    }
    Ok(real)
}

/// The backing files of an image, down the chain: for each, the image that names it, its name there, and the path. Reads the first bytes of each
/// file, and nothing else. For processes that open all that they need before they confine themselves.
///
/// # Errors
/// Those of [`resolve`] end the list: they are reported when the image is opened.
#[must_use]
pub fn chain(image: &Path, allow_any: bool) -> Vec<(PathBuf, Vec<u8>, Result<PathBuf>)> {
    use std::io::Read;
    let mut found: Vec<(PathBuf, Vec<u8>, Result<PathBuf>)> = Vec::new();
    let mut at = image.to_owned();
    while found.len() < CHAIN_MAX {
        let mut head = Vec::new();
        // Opening anything else, a pipe for example, could wait.
        let is_file = std::fs::metadata(&at).is_ok_and(|meta| {
            meta.is_file() || (blockwright_device::is_block_device(&meta) && at == image)
        });
        let file = is_file.then(|| std::fs::File::open(&at).ok()).flatten();
        let read = file.and_then(|file| {
            let mut file = file.take(qcow2::HEAD_BYTES as u64);
            file.read_to_end(&mut head).ok()
        });
        let references = read.and_then(|_| qcow2::references(&head).ok().flatten());
        let Some(name) = references.and_then(|r| r.backing) else {
            break;
        };
        let path = resolve(&at, &name, allow_any);
        let next = path.clone();
        found.push((at, name, path));
        match next {
            Ok(next) => at = next,
            Err(_) => break,
        }
    }
    found
}

/// The disk in a file whose device is open: what its container holds, or the device itself.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::Unsupported`], [`Error::Denied`], [`Error::Device`].
pub fn open(
    path: &Path,
    device: SharedDevice,
    opener: &mut BackingOpener<'_>,
) -> Result<(Format, SharedDevice)> {
    layer(path, device, opener, &mut Vec::new())
}

fn layer(
    path: &Path,
    device: SharedDevice,
    opener: &mut BackingOpener<'_>,
    above: &mut Vec<PathBuf>,
) -> Result<(Format, SharedDevice)> {
    let format = detect_on(&device)?;
    let device = match format {
        Format::Raw => device,
        Format::Simg => simg::open(device)?,
        Format::Vhd | Format::VhdFixed => vhd::open(device)?,
        Format::Vmdk => vmdk::open(device)?,
        Format::Qcow2 => {
            let start = head(&device, qcow2::HEAD_BYTES)?;
            above.push(path.to_owned());
            let references = qcow2::references(&start)?.unwrap_or_default();
            let backing = match references.backing {
                None => None,
                Some(name) => {
                    if above.len() > CHAIN_MAX {
                        return Err(Error::Corrupt(format!(
                            "the chain of backing files has more than {CHAIN_MAX}"
                        )));
                    }
                    let (path, file) = opener(path, &name)?;
                    if above.contains(&path) {
                        return Err(Error::Corrupt(format!(
                            "the chain of backing files comes back to {}",
                            path.display()
                        )));
                    }
                    // A raw backing file can hold anything, also what looks like a container.
                    let is_raw = references.backing_format.as_deref() == Some(b"raw");
                    match is_raw {
                        true => Some(file),
                        false => Some(layer(&path, file, opener, above)?.1),
                    }
                }
            };
            Arc::new(Qcow2::open(device, backing)?)
        }
    };
    Ok((format, device))
}
