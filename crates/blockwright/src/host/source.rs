//! Files of the host that go into a volume: what is known of each.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

/// A time of the host: seconds since the epoch and nanoseconds.
pub(crate) type Time = (i64, i64);

/// What a host tells of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFile {
    /// Type and permissions, as `st_mode` has them.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device and inode, where names of one file can be told by them.
    pub identity: Option<(u64, u64)>,
    pub names: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    pub mtime: Time,
    pub atime: Time,
    pub ctime: Time,
    /// Bytes that the file takes on the host, where it tells.
    pub allocated: Option<u64>,
}

#[cfg(unix)]
impl HostFile {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        #[cfg(target_os = "linux")]
        let device = (super::major(metadata.rdev()), super::minor(metadata.rdev()));
        #[cfg(not(target_os = "linux"))]
        let device = {
            let number = metadata.rdev() as rustix::fs::Dev;
            (
                rustix::fs::major(number) as u32,
                rustix::fs::minor(number) as u32,
            )
        };
        HostFile {
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            identity: Some((metadata.dev(), metadata.ino())),
            names: metadata.nlink(),
            device,
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            atime: (metadata.atime(), metadata.atime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
            allocated: Some(metadata.blocks().saturating_mul(512)),
        }
    }
}

#[cfg(not(unix))]
impl HostFile {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        let kind = metadata.file_type();
        let mode = match () {
            () if kind.is_dir() => 0o040_755,
            () if kind.is_symlink() => 0o120_777,
            () if kind.is_file() => 0o100_644,
            // No type that is known.
            () => 0,
        };
        let time = |time: io::Result<std::time::SystemTime>| {
            let epoch = std::time::SystemTime::UNIX_EPOCH;
            let since = time.ok().and_then(|t| t.duration_since(epoch).ok());
            let since = since.unwrap_or_default();
            (since.as_secs() as i64, i64::from(since.subsec_nanos()))
        };
        let mtime = time(metadata.modified());
        HostFile {
            mode,
            uid: 0,
            gid: 0,
            identity: None,
            names: 1,
            device: (0, 0),
            mtime,
            atime: time(metadata.accessed()),
            ctime: mtime,
            allocated: None,
        }
    }
}

/// A folder for files that are needed for a moment. WASI names none.
pub(crate) fn temp_dir() -> std::path::PathBuf {
    match cfg!(target_os = "wasi") {
        true => "/".into(),
        false => std::env::temp_dir(),
    }
}

/// Opens a host's file for reading, without following a link at its end where the host can, and without leaving a trace in its access time if that is
/// permitted.
#[cfg(unix)]
pub(crate) fn open(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    #[cfg(target_os = "linux")]
    let quietly = open(flags | OFlags::NOATIME);
    #[cfg(not(target_os = "linux"))]
    let quietly = open(flags);
    let fd = match quietly {
        Err(rustix::io::Errno::PERM) => open(flags)?,
        other => other?,
    };
    Ok(File::from(fd))
}

#[cfg(not(unix))]
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// The names of a file's extended attributes, each with its value, without following a link. `keep` chooses among the names.
#[cfg(target_os = "linux")]
pub(crate) fn xattrs(
    path: &Path,
    space: &mut Vec<u8>,
    keep: impl Fn(&[u8]) -> bool,
) -> io::Result<std::collections::BTreeMap<Vec<u8>, Vec<u8>>> {
    use rustix::io::Errno;
    use std::ffi::CStr;
    let mut out = std::collections::BTreeMap::new();
    let used = loop {
        match rustix::fs::llistxattr(path, &mut space[..]) {
            Ok(0) => return Ok(out),
            Ok(n) => break n,
            Err(Errno::RANGE) => space.resize(space.len() * 2, 0),
            Err(Errno::NOTSUP) => return Ok(out),
            Err(e) => return Err(e.into()),
        }
    };
    for name in space[..used].split_inclusive(|b| *b == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        if !keep(name.to_bytes()) {
            continue;
        }
        let mut value = vec![0u8; 256];
        let got = loop {
            match rustix::fs::lgetxattr(path, name, &mut value[..]) {
                Ok(n) => break Some(n),
                Err(Errno::RANGE) if value.len() < 1 << 17 => {
                    value.resize(value.len() * 4, 0);
                }
                // Gone meanwhile, or not for us to see.
                Err(Errno::NODATA | Errno::ACCESS | Errno::PERM) => break None,
                Err(e) => return Err(e.into()),
            }
        };
        if let Some(n) = got {
            value.truncate(n);
            out.insert(name.to_bytes().to_vec(), value);
        }
    }
    Ok(out)
}

/// Attributes of other hosts have other names and meanings.
#[cfg(not(target_os = "linux"))]
pub(crate) fn xattrs(
    _: &Path,
    _: &mut Vec<u8>,
    _: impl Fn(&[u8]) -> bool,
) -> io::Result<std::collections::BTreeMap<Vec<u8>, Vec<u8>>> {
    Ok(std::collections::BTreeMap::new())
}

/// Inode flags and project of a file; `None` where the host or its file system has no such thing.
pub(crate) fn flags(file: &File) -> io::Result<Option<(u32, u32)>> {
    #[cfg(target_os = "linux")]
    {
        let found = blockwright_device::host::file_flags(file)?;
        Ok(found.map(|found| (found.flags, found.project)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _unknown = file;
        Ok(None)
    }
}
