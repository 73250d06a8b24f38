//! The protocol's numbers and messages (the NBD project's `doc/proto.md`). All are big-endian.

use crate::DeviceErrorKind;
use std::io;

/// Begins a server's greeting: `NBDMAGIC`.
pub(crate) const GREETING: u64 = 0x4e42_444d_4147_4943;
/// Follows in the newstyle greeting, and begins every option: `IHAVEOPT`.
pub(crate) const OPTION: u64 = 0x4948_4156_454f_5054;
/// Follows in the oldstyle greeting, which has no export names.
pub(crate) const OLDSTYLE: u64 = 0x0000_4202_8186_1253;
/// Begins the reply to an option.
pub(crate) const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// Begins a request.
pub(crate) const REQUEST: u32 = 0x2560_9513;
/// Begins a simple reply.
pub(crate) const REPLY: u32 = 0x6744_6698;
/// Begins a chunk of a structured reply.
pub(crate) const CHUNK: u32 = 0x668e_33ef;

bitflags::bitflags! {
    /// Of the greeting, and of the client's answer to it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Handshake: u16 {
        const FIXED_NEWSTYLE = 1;
        /// No 124 zeroes after the answer to `EXPORT_NAME`.
        const NO_ZEROES = 2;
    }
}

bitflags::bitflags! {
    /// The abilities of an export.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Transmission: u16 {
        const HAS_FLAGS = 1;
        const READ_ONLY = 1 << 1;
        const FLUSH = 1 << 2;
        const FUA = 1 << 3;
        const TRIM = 1 << 5;
        const WRITE_ZEROES = 1 << 6;
        /// A flush on one connection concerns what was answered on all.
        const CAN_MULTI_CONN = 1 << 8;
    }
}

/// Options.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options. Those that are errors have the highest bit.
pub(crate) mod answer {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERROR: u32 = 1 << 31;
    pub(crate) const UNSUPPORTED: u32 = ERROR + 1;
    pub(crate) const POLICY: u32 = ERROR + 2;
    pub(crate) const TLS_REQUIRED: u32 = ERROR + 5;
    pub(crate) const UNKNOWN: u32 = ERROR + 6;
    pub(crate) const SHUTDOWN: u32 = ERROR + 7;
    pub(crate) const BLOCK_SIZE_REQUIRED: u32 = ERROR + 8;
}

/// The reply to `GO` about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
    BlockStatus = 7,
}

/// `NBD_CMD_FLAG_FUA`.
pub(crate) const COMMAND_FUA: u16 = 1;
/// `NBD_CMD_FLAG_REQ_ONE`: one extent is answer enough.
pub(crate) const COMMAND_ONE: u16 = 8;

/// Chunks of structured replies. Those that are errors have the highest bit.
pub(crate) mod chunk {
    /// In the flags: the last one of its reply.
    pub(crate) const DONE: u16 = 1;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const DATA: u16 = 1;
    pub(crate) const HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = 1 << 15;
}

/// The context that says which ranges are allocated and which read as zeroes.
pub(crate) const ALLOCATION: &str = "base:allocation";
/// In an extent of [`ALLOCATION`]: it reads as zeroes.
pub(crate) const EXTENT_ZERO: u32 = 2;

/// Length of a request's header.
pub(crate) const REQUEST_BYTES: usize = 28;
/// Length of a simple reply's header.
pub(crate) const REPLY_BYTES: usize = 16;

/// A request's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHead {
    pub(crate) flags: u16,
    /// [`Command`], or what only others know.
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

impl RequestHead {
    pub(crate) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..4].copy_from_slice(&REQUEST.to_be_bytes());
        out[4..6].copy_from_slice(&self.flags.to_be_bytes());
        out[6..8].copy_from_slice(&self.command.to_be_bytes());
        out[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        out[16..24].copy_from_slice(&self.offset.to_be_bytes());
        out[24..].copy_from_slice(&self.bytes.to_be_bytes());
        out
    }
}

/// The big-endian number at the start of `bytes`, which are taken off; 0 when they are too few.
pub(crate) fn take<const N: usize>(bytes: &mut &[u8]) -> u64 {
    let Some((head, rest)) = bytes.split_first_chunk::<N>() else {
        *bytes = &[];
        return 0;
    };
    *bytes = rest;
    head.iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The beginning of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyHead {
    Simple {
        cookie: u64,
        error: u32,
    },
    /// A chunk of a structured reply. The length of what it carries follows, in four bytes.
    Chunk {
        cookie: u64,
        flags: u16,
        kind: u16,
    },
}

/// A reply's beginning. `None` when it is none.
pub(crate) fn decode_reply(bytes: &[u8; REPLY_BYTES]) -> Option<ReplyHead> {
    let mut rest = &bytes[..];
    let magic = take::<4>(&mut rest) as u32;
    let middle = take::<4>(&mut rest) as u32;
    let cookie = take::<8>(&mut rest);
    match magic {
        REPLY => Some(ReplyHead::Simple {
            cookie,
            error: middle,
        }),
        CHUNK => Some(ReplyHead::Chunk {
            cookie,
            flags: (middle >> 16) as u16,
            kind: middle as u16,
        }),
        _ => None,
    }
}

/// What a reply's error means. They are Linux's numbers on every host; those that the protocol does not
/// list are to be taken for `EINVAL`.
pub(crate) fn kind_of(error: u32) -> DeviceErrorKind {
    match error {
        1 => DeviceErrorKind::ReadOnly,
        5 => DeviceErrorKind::Os(libc::EIO),
        12 => DeviceErrorKind::Os(libc::ENOMEM),
        28 => DeviceErrorKind::Os(libc::ENOSPC),
        75 => DeviceErrorKind::Os(libc::EOVERFLOW),
        95 => DeviceErrorKind::Unsupported,
        108 => DeviceErrorKind::Gone,
        _ => DeviceErrorKind::Os(libc::EINVAL),
    }
}

/// Refusals and protocol errors of the server.
pub(crate) fn refused(why: impl Into<String>) -> DeviceErrorKind {
    DeviceErrorKind::Refused { why: why.into() }
}

/// What a failed transfer means.
pub(crate) fn lost(error: &io::Error) -> DeviceErrorKind {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut, _) => {
            DeviceErrorKind::Os(libc::ETIMEDOUT)
        }
        (_, Some(libc::EPIPE | libc::ECONNRESET)) | (io::ErrorKind::UnexpectedEof, _) => {
            DeviceErrorKind::Gone
        }
        (_, Some(errno)) => DeviceErrorKind::Os(errno),
        _ => DeviceErrorKind::Os(libc::EIO),
    }
}
