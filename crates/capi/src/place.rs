//! Where a volume is, and what belongs to it beside its image.

use crate::call::known;
use crate::error::{Fault, Result};
use crate::raw::{Text, Texts};
use blockwright_ffi::{Image, Window};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Backing files and external data files of qcow2 images are opened wherever they are, and external data files for writing. Without it only regular files in the
/// image's folder are opened, and only for reading: the image names them, and the program does not.
pub const BW_ALLOW_BACKING: u32 = 1;

/// Where a volume is in its image, and what belongs to it. Zeroes: all of the image, and nothing else.
#[repr(C)]
pub struct bw_place {
    /// The first byte of the volume in the image.
    pub offset: u64,
    /// Bytes of the image from `offset` on; 0: all.
    pub bytes: u64,
    /// The device or image of an ext4 journal that is not on the volume, or null.
    pub journal: Text,
    /// A file that keeps all changes, so that the image is only read, or null. For writing it is made when it is not there.
    pub overlay: Text,
    /// Paths of the other devices of an f2fs volume on several, in the order of its superblock, or null. Such volumes are only read.
    pub devices: Texts,
    /// How many.
    pub device_count: usize,
    /// `BW_ALLOW_BACKING`, or 0.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

/// Whether flags that may have [`BW_ALLOW_BACKING`] alone have it.
pub(crate) fn allow_backing(flags: u32, name: &'static str) -> Result<bool> {
    known(flags, BW_ALLOW_BACKING, name)?;
    Ok(flags != 0)
}

fn path(text: Text) -> Option<PathBuf> {
    let bytes = text.optional()?;
    Some(OsStr::from_bytes(bytes).into())
}

impl bw_place {
    fn allow_backing(&self) -> Result<bool> {
        if self.reserved != 0 {
            return Err(Fault::Misuse("place.reserved is not 0".to_owned()));
        }
        allow_backing(self.flags, "place.flags")
    }

    /// The image at a path with this place.
    pub(crate) fn image(&self, image: Text) -> Result<Image> {
        let devices = self.devices.slice(self.device_count, "place.devices")?;
        let devices = devices.iter().map(|device| device.path("place.devices"));
        let devices: Result<Vec<_>> = devices.map(|device| Ok(device?.to_owned())).collect();
        Ok(Image {
            path: image.path("path")?.to_owned(),
            window: Window {
                offset: self.offset,
                bytes: (self.bytes != 0).then_some(self.bytes),
            },
            more_devices: devices?,
            journal: path(self.journal),
            overlay: path(self.overlay),
            allow_backing: self.allow_backing()?,
        })
    }

    /// The journal alone, for a volume on a device of the program.
    pub(crate) fn only_journal(&self) -> Result<Image> {
        if self.offset != 0 || self.bytes != 0 {
            return Err(Fault::Misuse(
                "options.place.offset and bytes are for images that are opened by path".to_owned(),
            ));
        }
        if self.overlay.optional().is_some() || self.device_count != 0 {
            return Err(Fault::Misuse(
                "options.place.overlay and devices are for images that are opened by path"
                    .to_owned(),
            ));
        }
        Ok(Image {
            journal: path(self.journal),
            allow_backing: self.allow_backing()?,
            ..Image::default()
        })
    }
}

/// The image at a path, in the place that options name, if there are any.
pub(crate) fn image_at(path: Text, place: Option<&bw_place>) -> Result<Image> {
    match place {
        Some(place) => place.image(path),
        None => Ok(Image::new(path.path("path")?)),
    }
}

/// What belongs to a volume on a device of the program.
pub(crate) fn beside_device(place: Option<&bw_place>) -> Result<Image> {
    place.map_or_else(|| Ok(Image::default()), bw_place::only_journal)
}
