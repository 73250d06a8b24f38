//! File systems in images and on block devices, from user space: open them, make them, read and
//! change what is in them, with an interface shaped like [`std::fs`].
//!
//! ```
//! use blockwright::{Volume, VolumeBuilder};
//! use std::io::Write;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("disk.img");
//! VolumeBuilder::new().size(16 << 20).label("demo").create(&image)?;
//! let volume = Volume::open(&image)?;
//! volume.create_dir_all("/srv/www")?;
//! volume.create_file("/srv/www/index.html")?.write_all(b"<h1>hello</h1>")?;
//! assert_eq!(volume.read("/srv/www/index.html")?, b"<h1>hello</h1>");
//! volume.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Volume`] and its [`File`]s are `Send + Sync`; any number of threads may use them at once.
//! Nothing is durable before [`Volume::sync`], [`File::sync_all`] or [`Volume::close`] returned.
//!
//! Paths are resolved inside the volume: they begin at its root whether or not they begin with
//! `/`, and symbolic links never lead out of it.
//!
//! `build` turns directories and tar streams into volumes, and `disk` whole disks; [`export`] does the reverse.
//!
//! # Features
//! All but `ruzstd` are in `default`. A program that only reads ext4 says `default-features = false, features = ["ext4"]`, and compiles a fifth of the crates.
//!
//! | feature | what it adds |
//! |---|---|
//! | `ext4`, `f2fs` | the engine of that format; without it, its volumes are refused by name ([`ErrorKind::UnsupportedFeature`]) |
//! | `build` | makes volumes and disks: `VolumeBuilder`, `build`, `disk::DiskBuilder` |
//! | `resize` | `reshape`; growth of a mounted ext4 volume |
//! | `disk` | partitions (`disk.img:p2`) and containers (qcow2, VHD, VMDK, Android sparse images); without it, an image is raw |
//! | `chunks` | images in content-addressed chunks; Unix |
//! | `verity` | hash trees of dm-verity |
//! | `casefold` | directories whose names are compared without case; without it, such volumes are only read, and those directories refused |
//! | `gzip`, `zstd`, `xz` | these compressions: of archives, `zstd` also of f2fs files and qcow2 clusters. The last two compile C |
//! | `ruzstd` | reads f2fs files and qcow2 clusters that are compressed by zstd, in Rust: for targets without a C compiler. Slower, so `zstd` takes precedence |
//! | `uring`, `nbd` | io_uring; NBD exports as devices. Linux, and nothing elsewhere |
//!
//! # Hosts
//! Linux. [`blockwright_device`] alone compiles for macOS, FreeBSD, Windows and WASI so far.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "build")]
pub mod build;
mod devices;
mod dir;
#[cfg(feature = "disk")]
pub mod disk;
mod error;
pub mod export;
mod file;
mod format;
mod fs;
mod host;
mod metadata;
mod open_options;
mod options;
mod pack;
#[cfg(feature = "resize")]
pub mod reshape;
mod setters;
#[cfg(feature = "verity")]
pub mod verity;
mod volume;
pub mod walk;

#[cfg(feature = "build")]
pub use build::VolumeBuilder;
pub use devices::{join_devices, join_devices_by};
pub use dir::{DirEntry, DirStream, ReadDir, StreamEntry};
pub use error::{Error, Result};
pub use file::{Extent, ExtentKind, File};
pub use format::Format;
#[cfg(feature = "disk")]
pub use format::foreign_contents;
pub use metadata::{FileType, Metadata, Times};
pub use open_options::OpenOptions;
pub use options::VolumeOptions;
pub use volume::Volume;
pub use walk::{Walk, WalkEntry};

pub use blockwright_vfs::{
    AtimeMode, Cred, ErrorKind, RenameMode, StatFs, SyncMode, Timestamp, XattrMode,
};
#[doc(hidden)]
pub use options::PartOptions;

/// Block devices: what a volume lies on. Implement [`BlockDevice`](device::BlockDevice) for storage of your own.
pub mod device {
    pub use blockwright_device::{
        AlignedBuf, BlockDevice, Completion, DevOffset, DeviceError, DeviceErrorKind, DeviceExt,
        DirectIo, Done, Flags, Geometry, HostDevice, IoSlice, MemoryDevice, Op, OpenMode,
        OverlayDevice, Request, SharedDevice, ZeroingDevice, open,
    };
}

#[cfg(feature = "chunks")]
/// Images in content-addressed chunks. A place like `chunks:INDEX?store=URL` works wherever a volume is opened for reading.
pub mod chunks {
    pub use blockwright_chunks::{
        ChunkAddress, ChunkDevice, ChunkId, ChunkSizes, Digest, Error, Folder, Index, Made,
        MakeOptions, Result, S3Keys, S3Place, S3Store, Sink, Site, Source, Stores, Verified,
        extract, make, make_into, open, open_sink, verify,
    };
}

/// Options that only ext2, ext3 and ext4 have.
pub mod ext4 {
    #[cfg(feature = "build")]
    pub use blockwright_mkfs::ext4::{FormatOptions, FsType};
    pub use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
}

/// Options that only f2fs has.
#[cfg(feature = "f2fs")]
pub mod f2fs {
    pub use blockwright_f2fs::options::{ActiveLogs, Checkpointing, Unusable};
    pub use blockwright_f2fs::{BackgroundCleaning, FsyncMode, Mode};
}

/// The README's example, compiled as a test.
#[cfg(all(doctest, feature = "build", feature = "resize"))]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;
