//! What hosts have or lack: metadata of files, attributes, numbers of devices. How links in an image layout are refused is in
//! `build::image::blob`, and what a host without threads does where the threads are. Everything else of the library is the same everywhere.
//!
//! | | Linux | macOS, FreeBSD | Windows, WASI |
//! |---|---|---|---|
//! | owner, mode, device numbers, times of change | yes | yes | root, 0755 for directories and 0644 for files; no devices |
//! | hard links in a source directory | found | found | each name is a file |
//! | extended attributes, inode flags, project | yes | none are read | none are read |
//! | a link at the end of a path | not followed | not followed | followed |

#[cfg(feature = "build")]
mod source;

#[cfg(feature = "build")]
pub(crate) use source::{HostFile, Time, flags, open, temp_dir, xattrs};

/// The major number in Linux's 64-bit encoding of a device's number. Source: `makedev(3)` of the GNU C library.
pub(crate) fn major(device: u64) -> u32 {
    ((device >> 8) as u32 & 0xFFF) | ((device >> 32) as u32 & !0xFFF)
}

/// The minor number in Linux's 64-bit encoding.
pub(crate) fn minor(device: u64) -> u32 {
    (device as u32 & 0xFF) | ((device >> 12) as u32 & !0xFF)
}

/// The number of the block device at a path; `None` for what is none, and on hosts whose numbers are not Linux's.
#[cfg(feature = "resize")]
pub(crate) fn block_device_number(path: &std::path::Path) -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
        let metadata = std::fs::metadata(path).ok()?;
        (metadata.file_type().is_block_device()).then(|| metadata.rdev())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = path;
        None
    }
}

/// The end of a file, or of a block special.
#[cfg(feature = "verity")]
pub(crate) fn end(mut file: &std::fs::File) -> std::io::Result<u64> {
    use std::io::Seek as _;
    // I/O is positional: the position means nothing.
    file.seek(std::io::SeekFrom::End(0))
}

/// Whether two paths lead to one file, or to one block device. `false` when either leads nowhere.
#[cfg(all(feature = "verity", unix))]
pub(crate) fn is_same(a: &std::path::Path, b: &std::path::Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(a), Ok(b)) = (std::fs::metadata(a), std::fs::metadata(b)) else {
        return false;
    };
    let devices = [&a, &b].map(blockwright_device::is_block_device);
    (a.dev(), a.ino()) == (b.dev(), b.ino()) || devices == [true; 2] && a.rdev() == b.rdev()
}

/// Whether two paths are names of one file.
#[cfg(all(feature = "verity", not(unix)))]
pub(crate) fn is_same(a: &std::path::Path, b: &std::path::Path) -> bool {
    let whole = |path: &std::path::Path| std::fs::canonicalize(path).ok();
    whole(a).is_some_and(|a| Some(a) == whole(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_those_of_linux() {
        #[cfg(target_os = "linux")]
        for number in [0, 0x0801, 0x1_0300, 0x0FFF_0010_00AB, u64::MAX] {
            assert_eq!(
                (major(number), minor(number)),
                (rustix::fs::major(number), rustix::fs::minor(number))
            );
        }
        assert_eq!((major(0x0801), minor(0x0801)), (8, 1));
        assert_eq!((major(0x1_0300), minor(0x1_0300)), (3 + 0x100, 0));
    }
}
