//! The C ABI of blockwright: `libblockwright` and `blockwright.h`. `docs/C-API.md` is the manual.
//!
//! # Rules of the boundary
//! - **Handles are numbers.** A table says for each number whether it is open (`table`). So a handle that is null, closed or invented is an error,
//!   never a wild pointer.
//! - **Pointers are types.** What C promises about a pointer is the invariant of a type in `raw`, and only there it is relied on. An argument that
//!   may be null is an `Option` of a reference, which has the ABI of a pointer.
//! - **A panic stays here.** `call` catches it, and the volume that it happened on refuses everything but closing.
//! - **Callbacks do not call back.** A call from inside a callback is refused, because it could wait for its own caller.
//!
//! All `unsafe` is in `raw`.
//!
//! Not responsible for: what the operations do (`blockwright`), and what all languages share (`blockwright-ffi`).
//!
//! Locks: a volume's lock is held shared by each call, and exclusively by `bw_volume_close`; the tables' locks are leaves.

// The names are those of the C API.
#![allow(non_camel_case_types)]
#![warn(missing_docs)]

mod attr;
mod build;
mod call;
mod check;
mod device;
mod dir;
mod error;
mod file;
mod handles;
mod map;
mod names;
mod open;
mod partitions;
mod place;
mod raw;
mod reshape;
mod table;
mod verity;
mod volume;

pub use attr::*;
pub use build::*;
pub use check::*;
pub use device::{BW_DEVICE_READ_ONLY, BW_DEVICE_SERIAL, bw_device};
pub use dir::*;
pub use error::{BW_MESSAGE_BYTES, bw_error, bw_status, bw_status_name};
pub use file::*;
pub use handles::{bw_dir, bw_file, bw_partitions, bw_report, bw_volume};
pub use map::*;
pub use names::*;
pub use open::*;
pub use partitions::*;
pub use place::{BW_ALLOW_BACKING, bw_place};
pub use raw::{bw_rule, bw_source};
pub use reshape::*;
pub use verity::*;
pub use volume::*;

use std::ffi::c_char;

/// The number of the ABI that this header describes. It changes when a function or a structure changes; see `bw_abi`.
pub const BW_ABI: u32 = 0;

/// The number of the ABI that the library has: `BW_ABI` of the header that it was built with.
#[unsafe(no_mangle)]
pub extern "C" fn bw_abi() -> u32 {
    BW_ABI
}

/// The version of the library, as `0.1.0`. The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn bw_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
