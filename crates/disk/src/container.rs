//! Container formats: detects the format of a file, and opens the disk in it.
//!
//! # Other files
//! A qcow2 file can name a backing file, and a file that has its data. The author of the image chose these names, so they may be any file that the user
//! can read, or write. [`resolve`] accepts only names of files in the image's own folder, and only for reading, unless the caller allows more. A data
//! file's bytes are data, whatever they look like.

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

    /// Whether the disk in it can be written. The others are only read, and made by converting.
    #[must_use]
    pub fn is_writable(self) -> bool {
        match self {
            Format::Raw | Format::Qcow2 | Format::VhdFixed => true,
            Format::Simg | Format::Vhd | Format::Vmdk => false,
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

/// What an image needs another file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Contents that the image does not have. Only read.
    Backing,
    /// The image's data; written when the image is.
    Data,
}

impl Role {
    fn noun(self) -> &'static str {
        match self {
            Role::Backing => "backing file",
            Role::Data => "external data file",
        }
    }
}

/// Another file that an image names.
#[derive(Clone, Debug)]
pub struct Other<'a> {
    /// The image.
    pub image: &'a Path,
    /// The name as it is written there.
    pub name: &'a [u8],
    /// What the file is for.
    pub role: Role,
    /// Whether it is only read.
    pub read_only: bool,
}

/// Opens the other files of an image.
pub type Opener<'a> = dyn FnMut(&Other<'_>) -> Result<(PathBuf, SharedDevice)> + 'a;

/// Opens other files of the host: those that [`resolve`] accepts.
pub fn open_others(
    mode: OpenMode,
    allow_any: bool,
) -> impl FnMut(&Other<'_>) -> Result<(PathBuf, SharedDevice)> {
    move |other| {
        let path = resolve(other, allow_any)?;
        let mode = OpenMode {
            read_only: other.read_only,
            ..mode
        };
        let device = blockwright_device::open(&path, mode)?;
        Ok((path, device))
    }
}

/// The path of another file, from its name in an image.
///
/// # Errors
/// [`Error::Denied`], unless `allow_any`, when it is no regular file in the image's folder, and when it is to be written; [`Error::Unsupported`] for
/// names that are not those of files; [`Error::NotFound`].
pub fn resolve(other: &Other<'_>, allow_any: bool) -> Result<PathBuf> {
    let Other { image, name, .. } = *other;
    let shown = String::from_utf8_lossy(name).into_owned();
    let noun = other.role.noun();
    if name.contains(&0) || name.starts_with(b"json:") {
        return Err(Error::Unsupported(format!(
            "the {noun} is given as {shown:?}, and not as a path"
        )));
    }
    let name = name.strip_prefix(b"file:").unwrap_or(name);
    let folder = match image.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let path = folder.join(blockwright_device::os_name::of(name));
    let missing = |e: std::io::Error| Error::NotFound(format!("the {noun} {shown:?}: {e}"));
    let real = std::fs::canonicalize(&path).map_err(missing)?;
    if !allow_any {
        let folder = std::fs::canonicalize(folder).map_err(missing)?;
        if !real.starts_with(&folder) {
            return Err(Error::Denied(format!(
                "the {noun} {shown:?} is outside of the image's folder; allow_backing (--allow-backing) opens it"
            )));
        }
        if !real.is_file() {
            return Err(Error::Denied(format!(
                "the {noun} {shown:?} is not a regular file; allow_backing (--allow-backing) opens it"
            )));
        }
        // The image may name any file of its folder, one that was not made for it, too.
        if !other.read_only {
            return Err(Error::Denied(format!(
                "the {noun} {shown:?} would be written to, and only the image names it; allow_backing (--allow-backing) opens it for writing"
            )));
        }
    }
    Ok(real)
}

/// A file that an image names, found by [`chain`].
#[derive(Clone, Debug)]
pub struct Named {
    /// The image that names it.
    pub image: PathBuf,
    /// The name as it is written there.
    pub name: Vec<u8>,
    /// What it is for.
    pub role: Role,
    /// Whether it is only read: all but the data file of an image that is written.
    pub read_only: bool,
    /// Where it is, as [`resolve`] found it.
    pub path: Result<PathBuf>,
}

/// The other files of an image, down the chain of backing files. Reads the first bytes of each image, and nothing else. For processes that open all that
/// they need before they confine themselves. `read_only` says that the image is only read.
///
/// # Errors
/// Those of [`resolve`] for a backing file end the list: they are reported when the image is opened.
#[must_use]
pub fn chain(image: &Path, read_only: bool, allow_any: bool) -> Vec<Named> {
    use std::io::Read;
    let mut found: Vec<Named> = Vec::new();
    let mut at = image.to_owned();
    for depth in 0..CHAIN_MAX {
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
        let Some(references) = references else {
            break;
        };
        let mut note = |name: Vec<u8>, role: Role, read_only: bool| {
            let other = Other {
                image: &at,
                name: &name,
                role,
                read_only,
            };
            let path = resolve(&other, allow_any);
            found.push(Named {
                image: at.clone(),
                name,
                role,
                read_only,
                path: path.clone(),
            });
            path
        };
        if let Some(name) = references.data_file.filter(|_| references.external_data) {
            let _told_when_opened = note(name, Role::Data, read_only || depth > 0);
        }
        let Some(name) = references.backing else {
            break;
        };
        match note(name, Role::Backing, true) {
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
    opener: &mut Opener<'_>,
) -> Result<(Format, SharedDevice)> {
    let mut chain = Chain {
        opener,
        depth: 0,
        seen: Vec::new(),
    };
    chain.layer(path, device)
}

/// An image that is being opened, and what is below it.
struct Chain<'a, 'b> {
    opener: &'a mut Opener<'b>,
    /// Images so far.
    depth: usize,
    /// Their files, and those of their data.
    seen: Vec<PathBuf>,
}

impl Chain<'_, '_> {
    fn layer(&mut self, path: &Path, device: SharedDevice) -> Result<(Format, SharedDevice)> {
        let format = detect_on(&device)?;
        let device = match format {
            Format::Raw => device,
            Format::Simg => simg::open(device)?,
            Format::Vhd | Format::VhdFixed => vhd::open(device)?,
            Format::Vmdk => vmdk::open(device)?,
            Format::Qcow2 => self.qcow2(path, device)?,
        };
        Ok((format, device))
    }

    fn qcow2(&mut self, path: &Path, device: SharedDevice) -> Result<SharedDevice> {
        let start = head(&device, qcow2::HEAD_BYTES)?;
        let references = qcow2::references(&start)?.unwrap_or_default();
        self.depth += 1;
        // As the names of other files are resolved. A confined process cannot, and has resolved them before.
        self.seen
            .push(std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()));
        let data = match (references.external_data, references.data_file) {
            (false, _) => None,
            (true, None) => {
                return Err(Error::Unsupported(
                    "qcow2: its data is in an external data file, whose name it does not have"
                        .to_owned(),
                ));
            }
            (true, Some(name)) => {
                let read_only = device.geometry().read_only;
                let (path, data) = self.other(path, &name, Role::Data, read_only)?;
                self.seen.push(path);
                Some(data)
            }
        };
        let backing = match references.backing {
            None => None,
            Some(_) if self.depth > CHAIN_MAX => {
                return Err(Error::Corrupt(format!(
                    "the chain of backing files has more than {CHAIN_MAX}"
                )));
            }
            Some(name) => {
                let (path, file) = self.other(path, &name, Role::Backing, true)?;
                // A raw backing file can hold anything, also what looks like a container.
                let is_raw = references.backing_format.as_deref() == Some(b"raw");
                match is_raw {
                    true => Some(file),
                    false => Some(self.layer(&path, file)?.1),
                }
            }
        };
        Ok(Arc::new(Qcow2::open_with_data(device, backing, data)?))
    }

    fn other(
        &mut self,
        image: &Path,
        name: &[u8],
        role: Role,
        read_only: bool,
    ) -> Result<(PathBuf, SharedDevice)> {
        let (path, device) = (self.opener)(&Other {
            image,
            name,
            role,
            read_only,
        })?;
        match self.seen.contains(&path) {
            true => Err(Error::Corrupt(format!(
                "the {} comes back to {}",
                match role {
                    Role::Backing => "chain of backing files",
                    Role::Data => "external data file",
                },
                path.display()
            ))),
            false => Ok((path, device)),
        }
    }
}
