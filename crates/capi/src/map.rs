//! Maps: what each block of a volume holds, as a picture.

use crate::call::call;
use crate::error::{Fault, bw_error, bw_status};
use crate::place::{bw_place, image_at};
use crate::raw::{Descriptor, Text, Versioned, sized};
use blockwright_ffi::MapForm;
use std::fs::File;
use std::io::Write;
use std::mem::MaybeUninit;

/// A picture: SVG.
pub const BW_MAP_SVG: u32 = 0;
/// A page of its own, to zoom in: HTML.
pub const BW_MAP_HTML: u32 = 1;

/// How a map is drawn. A structure of zeroes with `struct_size` set has the defaults, as null has.
#[repr(C)]
pub struct bw_map_options {
    /// `sizeof(bw_map_options)`.
    pub struct_size: usize,
    /// A `BW_MAP_`.
    pub form: u32,
    /// 0.
    pub reserved: u32,
    /// Where the volume is.
    pub place: bw_place,
}

// SAFETY: numbers and texts after `struct_size`.
unsafe impl Versioned for bw_map_options {}

/// Draws a map of the volume at `path`, which must not be open for writing, and writes it to an open descriptor, which stays the caller's. Damage is drawn; it is
/// no error. `options` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn bw_map(
    path: Text,
    options: *const bw_map_options,
    fd: Descriptor,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let options = sized(options, "options")?;
        if options.is_some_and(|o| o.reserved != 0) {
            return Err(Fault::Misuse("options.reserved is not 0".to_owned()));
        }
        let form = match options.map_or(BW_MAP_SVG, |o| o.form) {
            BW_MAP_SVG => MapForm::Svg,
            BW_MAP_HTML => MapForm::Html,
            other => {
                return Err(Fault::Misuse(format!(
                    "options.form: {other} is no BW_MAP_"
                )));
            }
        };
        let mut to = File::from(fd.duplicate("fd")?);
        let text = blockwright_ffi::map(&image_at(path, options.map(|o| &o.place))?, form)?;
        to.write_all(text.as_bytes())
            .map_err(|e| Fault::Library(e.into()))
    })
}
