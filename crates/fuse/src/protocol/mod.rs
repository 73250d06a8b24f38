//! The kernel's FUSE protocol, version 7: plain structs in host byte order, opcodes, flags.
//!
//! Purpose: nothing but layout. Every struct has its size asserted, because a wrong size is a
//! protocol error that the kernel answers with `EINVAL` at run time, far from its cause.
//!
//! Not responsible for: what the values mean to a file system (`dispatch`), or how bytes travel
//! (`transport`).
//!
//! References: the public kernel interface `linux/fuse.h` (7.45), fuse(4).

pub mod control;
pub mod flags;
mod opcode;
pub mod reply;
pub mod request;

pub use opcode::Opcode;
pub use request::{BadRequest, InHeader, Request};

/// The major version of the protocol that this program speaks.
pub const MAJOR: u32 = 7;
/// The newest minor version whose structs this program knows.
pub const MINOR: u32 = 45;
/// The oldest minor version that is served: 7.31 (Linux 5.4) has every reply layout used here.
pub const MINOR_MIN: u32 = 31;
/// The root directory's node number, whatever its inode number is.
pub const ROOT_ID: u64 = 1;
/// Bytes in front of a WRITE's data: request header and write arguments.
pub const WRITE_HEADER_BYTES: usize = size_of::<InHeader>() + size_of::<request::WriteIn>();

/// Defines structs of the protocol: each with its size in bytes, which is asserted at compile time, and the derives they all need.
macro_rules! wire {
    ($($(#[$doc:meta])* pub struct $name:ident: $bytes:literal { $(pub $field:ident: $ty:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
        #[repr(C)]
        #[allow(missing_docs)] // Field names are the kernel's; the struct's head says what is special.
        pub struct $name { $(pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $bytes, stringify!($name));)*
    };
}
use wire;

wire! {
    /// Attributes of an inode, inside several replies. Field for field `struct stat`.
    pub struct WireAttr: 88 {
        pub ino: u64,
        pub size: u64,
        pub blocks: u64,
        pub atime: i64,
        pub mtime: i64,
        pub ctime: i64,
        pub atimensec: u32,
        pub mtimensec: u32,
        pub ctimensec: u32,
        pub mode: u32,
        pub nlink: u32,
        pub uid: u32,
        pub gid: u32,
        pub rdev: u32,
        pub blksize: u32,
        pub flags: u32,
    }
}
