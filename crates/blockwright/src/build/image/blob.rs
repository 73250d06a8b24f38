//! Blobs of container images: where the bytes of one are, and its digest. A blob is a stretch of a file: of the archive, or of the layout.

use super::{at, invalid};
use crate::build::archive::{Input, Section};
use crate::build::data::{DataRef, Segment};
use crate::build::progress::{Meter, Tell};
use crate::build::tar::{End, EntryKind, TarReader};
use crate::{Error, ErrorKind, Result};
use blockwright_device::os_name;
use blockwright_ondisk::ext4::FileKind;
use sha2::{Digest as _, Sha256, Sha512};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Largest manifest, index or configuration: the specification asks registries for 4 MiB.
const JSON_BYTES_MAX: u64 = 4 << 20;
/// Most members of an image's archive.
const MEMBERS_MAX: usize = 1 << 16;
/// Most links from one member to its data.
const LINKS_MAX: usize = 8;

/// Bytes of an image: a stretch of a file.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    file: Arc<File>,
    at: u64,
    bytes: u64,
}

impl Blob {
    /// The blob as the data of a file of the volume.
    pub fn data(&self) -> DataRef {
        DataRef::Archive {
            file: Arc::clone(&self.file),
            segments: vec![Segment {
                logical: 0,
                bytes: self.bytes,
                at: self.at,
            }],
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// A reader with a position of its own.
    pub fn reader(&self) -> Section {
        Section::new(Arc::clone(&self.file), self.at, self.bytes)
    }

    /// The whole blob, for JSON.
    ///
    /// # Errors
    /// `Invalid` for more than 4 MiB; as reading.
    pub fn small(&self, name: &str) -> Result<Vec<u8>> {
        if self.bytes > JSON_BYTES_MAX {
            let what = format!(
                "{} bytes are too many for JSON that describes an image (at most 4 MiB)",
                self.bytes
            );
            return Err(at(invalid(what), name));
        }
        let mut out = Vec::with_capacity(self.bytes as usize);
        self.reader()
            .read_to_end(&mut out)
            .map_err(|e| at(Error::from(e), name))?;
        Ok(out)
    }
}

/// `sha256:…` or `sha512:…`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Digest {
    algorithm: Algorithm,
    value: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Algorithm {
    Sha256,
    Sha512,
}

/// A sum that grows while bytes pass by; shared with the reader that they pass.
#[derive(Clone)]
pub(crate) struct Sum(Arc<Mutex<State>>);

enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Sum {
    pub fn update(&self, bytes: &[u8]) {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Sha256(sum) => sum.update(bytes),
            State::Sha512(sum) => sum.update(bytes),
        }
    }

    fn value(&self) -> Vec<u8> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Sha256(sum) => sum.clone().finalize().to_vec(),
            State::Sha512(sum) => sum.clone().finalize().to_vec(),
        }
    }
}

impl Digest {
    /// From its text. Only the registered algorithms, and the exact number of lower-case digits: the text becomes a file's
    /// name.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || invalid(format!("`{text}` is not a digest (sha256:… or sha512:…)"));
        let (algorithm, digits) = text.split_once(':').ok_or_else(bad)?;
        let (algorithm, bytes) = match algorithm {
            "sha256" => (Algorithm::Sha256, 32),
            "sha512" => (Algorithm::Sha512, 64),
            _ => return Err(bad()),
        };
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        let value: Option<Vec<u8>> = digits
            .as_bytes()
            .chunks(2)
            .map(|pair| match pair {
                [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
                _ => None,
            })
            .collect();
        match value {
            Some(value) if value.len() == bytes => Ok(Digest { algorithm, value }),
            _ => Err(bad()),
        }
    }

    fn name(&self) -> &'static str {
        match self.algorithm {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    fn digits(&self) -> String {
        self.value.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Where a layout has the blob of this digest.
    pub fn path(&self) -> String {
        format!("blobs/{}/{}", self.name(), self.digits())
    }

    /// A sum of its algorithm over nothing yet.
    pub fn hasher(&self) -> Sum {
        Sum(Arc::new(Mutex::new(match self.algorithm {
            Algorithm::Sha256 => State::Sha256(Sha256::new()),
            Algorithm::Sha512 => State::Sha512(Sha512::new()),
        })))
    }

    /// # Errors
    /// `Corrupt` when the sum is another.
    pub fn compare(&self, sum: &Sum) -> Result<()> {
        let found = Digest {
            algorithm: self.algorithm,
            value: sum.value(),
        };
        if found == *self {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!("the digest is {found}, and the image says {self}"),
        ))
    }

    /// Reads a blob and compares.
    ///
    /// # Errors
    /// `Corrupt` when the sum is another; as reading; `Interrupted` when `tell` breaks.
    pub fn verify(&self, blob: &Blob, tell: Tell<'_>) -> Result<()> {
        let mut meter = Meter::new(tell);
        let sum = self.hasher();
        let mut reader = blob.reader();
        let mut buffer = vec![0; 256 << 10];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return self.compare(&sum),
                Ok(n) => {
                    sum.update(&buffer[..n]);
                    meter.read(n as u64)?;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::from(e)),
            }
        }
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name(), self.digits())
    }
}

/// What blobs are found in by name.
pub(crate) trait Store {
    /// The file of this name, `/` between its components.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for what is no regular file.
    fn find(&self, name: &str) -> Result<Blob>;
}

/// An image layout in a directory. Links in it are not followed.
#[cfg(unix)]
pub(crate) struct Directory {
    root: std::os::fd::OwnedFd,
}

#[cfg(unix)]
impl Directory {
    pub fn open(path: &Path) -> Result<Self> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
            rustix::io::Errno::NOENT => absent(),
            e => Error::from(io::Error::from(e)),
        })?;
        Ok(Directory { root })
    }
}

#[cfg(unix)]
impl Store for Directory {
    fn find(&self, name: &str) -> Result<Blob> {
        use rustix::fs::{Mode, OFlags};
        use std::os::fd::OwnedFd;
        let failed = |e: rustix::io::Errno| match e {
            rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
                at(invalid("a link in an image layout is not followed"), name)
            }
            rustix::io::Errno::NOENT => at(absent(), name),
            e => at(Error::from(io::Error::from(e)), name),
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let (dirs, last) = name.rsplit_once('/').unwrap_or(("", name));
        let mut dir: Option<OwnedFd> = None;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            let from = dir.as_ref().unwrap_or(&self.root);
            let next = rustix::fs::openat(from, part, flags | OFlags::DIRECTORY, Mode::empty());
            dir = Some(next.map_err(failed)?);
        }
        let from = dir.as_ref().unwrap_or(&self.root);
        let file = rustix::fs::openat(from, last, flags, Mode::empty()).map_err(failed)?;
        let file = File::from(file);
        let metadata = file.metadata().map_err(|e| at(Error::from(e), name))?;
        if !metadata.is_file() {
            return Err(at(invalid("not a regular file"), name));
        }
        Ok(Blob {
            file: Arc::new(file),
            at: 0,
            bytes: metadata.len(),
        })
    }
}

/// An image layout in a directory. Links in it are not followed, as far as looking at each component before it is opened can tell: the host opens nothing
/// relative to a directory.
#[cfg(not(unix))]
pub(crate) struct Directory {
    root: std::path::PathBuf,
}

#[cfg(not(unix))]
impl Directory {
    pub fn open(path: &Path) -> Result<Self> {
        match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Ok(Directory {
                root: path.to_owned(),
            }),
            Ok(_) => Err(Error::new(ErrorKind::NotDirectory, "not a directory")),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(absent()),
            Err(e) => Err(Error::from(e)),
        }
    }
}

#[cfg(not(unix))]
impl Store for Directory {
    fn find(&self, name: &str) -> Result<Blob> {
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => at(absent(), name),
            _ => at(Error::from(e), name),
        };
        let mut path = self.root.clone();
        for part in name.split('/').filter(|part| !part.is_empty()) {
            path.push(part);
            if std::fs::symlink_metadata(&path)
                .map_err(failed)?
                .is_symlink()
            {
                return Err(at(
                    invalid("a link in an image layout is not followed"),
                    name,
                ));
            }
        }
        let file = File::open(&path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(at(invalid("not a regular file"), name));
        }
        Ok(Blob {
            file: Arc::new(file),
            at: 0,
            bytes: metadata.len(),
        })
    }
}

fn absent() -> Error {
    Error::new(ErrorKind::NotFound, "no such file or directory")
}

/// An archive's members by name. Their bytes stay where they are, or in the spool.
pub(crate) struct Members {
    found: HashMap<Vec<u8>, Member>,
}

enum Member {
    File(Blob),
    /// To another member, from the archive's root.
    Link(Vec<u8>),
}

impl Members {
    /// Reads the whole archive. An archive without an end mark is taken: what is needed of it has a digest.
    ///
    /// # Errors
    /// `Invalid` and `Corrupt` for what is no archive of an image; as reading; `Interrupted` when `tell` breaks.
    pub fn read(input: Input<'_>, tell: Tell<'_>) -> Result<Self> {
        let mut meter = Meter::new(tell);
        let mut found = HashMap::new();
        let mut reader = TarReader::new(input, End::Digest);
        while let Some(mut entry) = reader.next()? {
            meter.entry()?;
            let Some(name) = normal(b"", &entry.path) else {
                continue;
            };
            let member = match &entry.kind {
                EntryKind::File(FileKind::Regular) => match entry.data.take() {
                    Some(DataRef::Archive { file, segments }) => match segments[..] {
                        [
                            Segment {
                                logical: 0,
                                bytes,
                                at,
                            },
                        ] if bytes == entry.size => Member::File(Blob { file, at, bytes }),
                        _ => {
                            let what = "a sparse member is no part of an image";
                            let path = &*os_name::of(&entry.path);
                            return Err(invalid(what).at(Path::new(path)));
                        }
                    },
                    // Empty: nothing that an image has is.
                    _ => continue,
                },
                EntryKind::File(FileKind::Symlink) => {
                    let dir = match name.iter().rposition(|b| *b == b'/') {
                        Some(slash) => &name[..slash],
                        None => b"",
                    };
                    match normal(dir, &entry.symlink) {
                        Some(to) => Member::Link(to),
                        None => continue,
                    }
                }
                EntryKind::HardLink(to) => match normal(b"", to) {
                    Some(to) => Member::Link(to),
                    None => continue,
                },
                EntryKind::File(_) => continue,
            };
            found.insert(name, member);
            if found.len() > MEMBERS_MAX {
                return Err(invalid(format!(
                    "the archive has more than {MEMBERS_MAX} members: it holds no image"
                )));
            }
        }
        Ok(Members { found })
    }
}

/// A path from the archive's root without `.` and `..`; `None` for what leads out of it, and for the root itself.
fn normal(dir: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let from = if path.first() == Some(&b'/') {
        b""
    } else {
        dir
    };
    for part in from.split(|b| *b == b'/').chain(path.split(|b| *b == b'/')) {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    (!parts.is_empty()).then(|| parts.join(&b'/'))
}

impl Store for Members {
    fn find(&self, name: &str) -> Result<Blob> {
        let mut path = normal(b"", name.as_bytes())
            .ok_or_else(|| at(invalid("a name that leads out of the archive"), name))?;
        for _ in 0..LINKS_MAX {
            match self.found.get(&path) {
                None => {
                    let what = "no such member in the archive";
                    return Err(at(Error::new(ErrorKind::NotFound, what), name));
                }
                Some(Member::File(blob)) => return Ok(blob.clone()),
                Some(Member::Link(to)) => path.clone_from(to),
            }
        }
        Err(at(
            Error::new(ErrorKind::TooManySymlinks, "too many links"),
            name,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_names_no_path_but_a_blobs() {
        let digits = "0123456789abcdef".repeat(4);
        let good = Digest::parse(&format!("sha256:{digits}")).expect("a digest");
        assert_eq!(good.path(), format!("blobs/sha256/{digits}"));
        assert_eq!(good.to_string(), format!("sha256:{digits}"));
        assert!(Digest::parse(&format!("sha512:{digits}{digits}")).is_ok());
        for bad in [
            String::new(),
            "sha256".to_owned(),
            "sha256:".to_owned(),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:{digits}0"),
            format!("sha256:{}", digits.to_uppercase()),
            format!("sha512:{digits}"),
            format!("md5:{digits}"),
            format!("sha256:../../../../etc/passwd{}", &digits[27..]),
            format!("sha256:ä{}", &digits[2..]),
        ] {
            assert!(Digest::parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_lead_to_members_only() {
        for (dir, path, leads) in [
            ("", "./a/b", Some("a/b")),
            ("", "/a//b/", Some("a/b")),
            ("x", "../y/layer.tar", Some("y/layer.tar")),
            ("x", "/y", Some("y")),
            ("x", "../../y", None),
            ("", "..", None),
            ("", ".", None),
        ] {
            let found = normal(dir.as_bytes(), path.as_bytes());
            assert_eq!(found.as_deref(), leads.map(str::as_bytes), "{path}");
        }
    }
}
