//! Disks: partitions as devices, and disks made whole (feature `build`). A path like `disk.img:p2` also works wherever a volume is opened.
//!
//! ```
//! use blockwright::disk::{container::Format, DiskBuilder, Part, Scheme};
//! use blockwright::{Volume, VolumeBuilder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let (image, tree) = (dir.path().join("disk.qcow2"), dir.path().join("rootfs"));
//! # std::fs::create_dir(&tree)?;
//! # std::fs::write(tree.join("motd"), "hello")?;
//! let report = DiskBuilder::new(Scheme::Gpt)
//!     .part(Part::fat32("esp", VolumeBuilder::new().size(64 << 20)))
//!     .part(Part::volume("root", VolumeBuilder::new().from(&tree).size_auto(16 << 20)))
//!     .part(Part::swap("swap", 8 << 20))
//!     .create(&image, Format::Qcow2)?;
//! assert_eq!(report.partitions[1].number, 2);
//! let volume = Volume::open_read_only(dir.path().join("disk.qcow2:p=root"))?;
//! assert_eq!(volume.read("/motd")?, b"hello");
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "build")]
mod builder;
#[cfg(feature = "resize")]
mod growth;
#[cfg(feature = "build")]
mod part;
#[cfg(feature = "build")]
mod progress;
#[cfg(feature = "build")]
mod stoppable;

pub use blockwright_disk::table::{ALIGNMENT, Architecture, PartitionType, Purpose, parse_guid};
pub use blockwright_disk::{
    Disk, Error, Partition, Place, Result, Scheme, Selector, Table, container, convert, open,
    overlay, probe, qcow2,
};
#[cfg(feature = "build")]
pub use builder::{DiskBuilder, DiskReport, PartReport, add, add_watched};
#[cfg(feature = "resize")]
pub use growth::{PartitionSize, grow};
#[cfg(feature = "build")]
pub use part::Part;
#[cfg(feature = "build")]
pub use stoppable::WriteWatch;
