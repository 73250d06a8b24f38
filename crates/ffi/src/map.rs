//! A map of a volume: a picture of what each block holds.

use crate::check::{of_ext4, of_f2fs};
use crate::image::Image;
use blockwright::{Error, ErrorKind, Result};
use blockwright_check::usage::UsageOptions;
use blockwright_device::OpenMode;

/// Width of a picture in pixels.
const WIDTH: u32 = 1000;

/// The form of a map. Each is text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapForm {
    /// A picture.
    Svg,
    /// A page of its own, to zoom in.
    Html,
}

/// Draws a map of the volume in an image. Damage is drawn; it is no error.
///
/// # Errors
/// When nothing can be said about the volume: as [`crate::check`].
pub fn map(image: &Image, form: MapForm) -> Result<String> {
    let at = |e: Error| e.at(&image.path);
    let open = OpenMode::read_only();
    let device = image.open_device(open)?;
    let options = UsageOptions {
        journal: image.open_journal(open)?.map(|journal| journal.device),
        ..UsageOptions::default()
    };
    let (format, usage) = blockwright_map::survey(device, &options).map_err(|e| at(told(e)))?;
    let about = blockwright_map::about(&usage, format);
    let name = image.path.display().to_string();
    match form {
        MapForm::Svg => {
            let title = format!("{name}: {about}");
            Ok(blockwright_map::picture(&usage, &title, WIDTH).draw().svg())
        }
        MapForm::Html => blockwright_map::page(&usage, &name, &about)
            .map_err(|e| at(Error::new(ErrorKind::Io, e.to_string()))),
    }
}

fn told(e: blockwright_map::Error) -> Error {
    match e {
        blockwright_map::Error::Ext4(e) => of_ext4(e),
        blockwright_map::Error::F2fs(e) => of_f2fs(e),
    }
}
