//! Makes a planned volume: in a new image, over one that exists, or on a device.

use super::{Size, VolumeBuilder};
use crate::build::output::{building_mode, folder, removed_on_failure};
use crate::build::target::{BuildReport, TargetPlan};
use crate::build::tree::LayerTree;
use crate::build::{copying, journal};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{HostDevice, NbdAddress, SharedDevice};
use blockwright_disk::Place;
use blockwright_disk::container::{self, detect_file};
use blockwright_mkfs::Before;
use blockwright_mkfs::tree::NodeId;
use blockwright_ondisk::ext4::FileKind;
use std::path::Path;

impl VolumeBuilder {
    pub(super) fn write(
        &self,
        device: &SharedDevice,
        plan: &TargetPlan,
        tree: &LayerTree,
    ) -> Result<BuildReport> {
        let mut report = plan.report();
        report.left_out = plan.left_out(&tree.tree);
        for (id, _) in tree.tree.reachable() {
            report.protected += u64::from(tree.tree.node(id).verity.is_some());
            if tree.tree.node(id).kind != FileKind::Directory {
                report.files += 1;
            } else if id != NodeId::ROOT {
                report.directories += 1;
            }
        }
        let planned = (plan.data_bytes(), report.bytes);
        journal::listing(self.journal.as_ref(), report.uuid, || {
            copying::copied(tree, &*self.progress, planned, |data, tell| {
                plan.write(device, &tree.tree, data, tell)
            })
        })?;
        Ok(report)
    }

    /// Makes the volume in the image or on the block device at `path`, or on the NBD export whose address it is.
    /// A missing image is made; one that is there is replaced, unless it is in use. The disk in a container (qcow2), and a partition, get the
    /// volume in their place.
    ///
    /// # Errors
    /// `Busy`, `NoSpace` when the sources do not fit the size, `Invalid` for contradictory options and
    /// for archives that are damaged or hostile, `Io`. A new image is removed again; one that was there
    /// is no volume any more once writing began.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<BuildReport> {
        let path = path.as_ref();
        if NbdAddress::parse(path).is_some()
            || is_in_chunks(path)
            || Place::of(path).part.is_some()
            || detect_file(path) != container::Format::Raw
        {
            let device = blockwright_disk::open_with(path, building_mode(), self.allow_backing)
                .map_err(|e| Error::from(e).at(path))?;
            return self.create_on(&device).map_err(|e| e.at(path));
        }
        match std::fs::metadata(path) {
            Ok(m) if m.is_file() || blockwright_device::is_block_device(&m) => {
                self.replace(path, &m)
            }
            Ok(_) => Err(
                Error::new(ErrorKind::Unsupported, "neither a file nor a block device").at(path),
            ),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => self.create_new(path),
            Err(e) => Err(Error::from(e).at(path)),
        }
    }

    /// Makes the volume in a new image at `path`.
    ///
    /// # Errors
    /// `Exists`; otherwise as [`VolumeBuilder::create`].
    pub fn create_new(&self, path: impl AsRef<Path>) -> Result<BuildReport> {
        let path = path.as_ref();
        let tree = self.gather(None, folder(path), None)?;
        let options = self.target(Before::Zeroes, &tree)?;
        let plan = self.plan(&tree.tree, &options, None)?;
        let bytes = match self.size {
            Size::Bytes(bytes) => bytes,
            _ => plan.report().bytes,
        };
        let device = HostDevice::create_with(path, bytes, building_mode())
            .map_err(|e| Error::from(e).at(path))?;
        let made = self.write(&device, &plan, &tree);
        drop(device);
        removed_on_failure(made, path).map_err(|e| e.at(path))
    }

    /// Makes the volume on a device.
    ///
    /// # Errors
    /// As [`VolumeBuilder::create`].
    pub fn create_on(&self, device: &SharedDevice) -> Result<BuildReport> {
        let device_bytes = Some(device.geometry().bytes);
        let tree = self.gather(None, &crate::host::temp_dir(), device_bytes)?;
        let options = self.target(Before::Unknown, &tree)?;
        let plan = self.plan(&tree.tree, &options, Some(device.geometry().bytes))?;
        self.write(device, &plan, &tree)
    }

    /// Makes the volume over something that exists.
    fn replace(&self, path: &Path, metadata: &std::fs::Metadata) -> Result<BuildReport> {
        let at = |e: Error| e.at(path);
        // Whether it is in use is found out before any work is done.
        let device = HostDevice::open(path, building_mode()).map_err(|e| at(e.into()))?;
        let image = metadata.is_file();
        let spool = if image {
            folder(path).to_owned()
        } else {
            crate::host::temp_dir()
        };
        let device_bytes = device.geometry().bytes;
        let own = crate::host::HostFile::of(metadata)
            .identity
            .filter(|_| image);
        let tree = self.gather(own, &spool, Some(device_bytes))?;
        let before = if image {
            Before::Zeroes
        } else {
            Before::Unknown
        };
        let options = self.target(before, &tree)?;
        let plan = self
            .plan(&tree.tree, &options, Some(device_bytes))
            .map_err(at)?;
        if !image {
            return self.write(&device, &plan, &tree).map_err(at);
        }
        let bytes = match self.size {
            Size::Bytes(bytes) => bytes,
            Size::Auto(_) => plan.report().bytes,
            Size::AsDevice => metadata.len(),
        };
        // Cut to nothing first: what is not written is a hole then, and reads as zeroes.
        let file = std::fs::OpenOptions::new().write(true).open(path);
        file.and_then(|f| f.set_len(0).and_then(|()| f.set_len(bytes)))
            .map_err(|e| Error::from(e).at(path))?;
        if bytes <= device_bytes {
            // The lock is never let go of.
            return self.write(&device, &plan, &tree).map_err(at);
        }
        // A device knows the size it was opened with.
        drop(device);
        let device = HostDevice::open(path, building_mode()).map_err(|e| at(e.into()))?;
        self.write(&device, &plan, &tree).map_err(at)
    }
}

/// Whether a path names an image in chunks, which is only read.
#[cfg(feature = "chunks")]
fn is_in_chunks(path: &Path) -> bool {
    blockwright_chunks::ChunkAddress::parse(path).is_some()
}

/// Without the feature, every path is that of a file.
#[cfg(not(feature = "chunks"))]
fn is_in_chunks(_path: &Path) -> bool {
    false
}
