//! Codes and messages.

use blockwright::{Error, ErrorKind};
use blockwright_ffi::{errno_of, errno_of_sync};
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// How a call went. Numbers keep their meaning over versions; new ones are added at the end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum bw_status {
    /// It was done.
    BW_OK = 0,
    /// The device failed.
    BW_IO = 1,
    /// The volume's structures contradict the format or themselves.
    BW_CORRUPT = 2,
    /// The image holds no known format, or uses a feature that the library does not have.
    BW_UNSUPPORTED_FEATURE = 3,
    /// The operation is not possible on this format or kind of file.
    BW_UNSUPPORTED = 4,
    /// No such name.
    BW_NOT_FOUND = 5,
    /// The name exists already.
    BW_EXISTS = 6,
    /// A directory was needed.
    BW_NOT_DIRECTORY = 7,
    /// A directory was given where none may be.
    BW_IS_DIRECTORY = 8,
    /// The directory has entries.
    BW_NOT_EMPTY = 9,
    /// The volume is full.
    BW_NO_SPACE = 10,
    /// A quota is used up.
    BW_QUOTA_EXCEEDED = 11,
    /// The volume is open for reading only.
    BW_READ_ONLY = 12,
    /// Not permitted, whatever the mode bits say.
    BW_NOT_PERMITTED = 13,
    /// The mode bits or the ACL forbid it, or the file was not opened for it.
    BW_ACCESS_DENIED = 14,
    /// The name is longer than the format takes.
    BW_NAME_TOO_LONG = 15,
    /// The inode can have no more names.
    BW_TOO_MANY_LINKS = 16,
    /// The file would grow past the format's limit.
    BW_FILE_TOO_LARGE = 17,
    /// An argument makes no sense.
    BW_INVALID = 18,
    /// In use, for example by another process.
    BW_BUSY = 19,
    /// The two names are on different volumes or projects.
    BW_CROSS_DEVICE = 20,
    /// No such extended attribute.
    BW_NO_ATTRIBUTE = 21,
    /// The caller's buffer is too small. The needed size was returned.
    BW_RANGE = 22,
    /// The value is larger than the format can hold.
    BW_TOO_BIG = 23,
    /// No data or hole at or after this offset.
    BW_NO_DATA = 24,
    /// The inode is gone, or the volume was closed.
    BW_STALE = 25,
    /// Too many symbolic links.
    BW_TOO_MANY_SYMLINKS = 26,
    /// The encryption key is needed.
    BW_KEY_REQUIRED = 27,
    /// A value does not fit its type.
    BW_OVERFLOW = 28,
    /// A lock could not be had without waiting.
    BW_WOULD_BLOCK = 29,
    /// The wait was interrupted.
    BW_INTERRUPTED = 30,
    /// A write of metadata failed earlier, or a fault of the library left the volume in doubt. It refuses all changes.
    BW_POISONED = 31,
    /// There is no further entry.
    BW_END = 100,
    /// A pointer that must not be null is null.
    BW_NULL = 101,
    /// The handle is null, closed, or was never opened.
    BW_BAD_HANDLE = 102,
    /// An argument is misused: an unknown flag, a structure of another size, an index behind the end.
    BW_MISUSE = 103,
    /// The call came from inside a callback of the library.
    BW_REENTRANT = 104,
    /// A fault of the library. The volume refuses everything but closing.
    BW_PANIC = 105,
}

use bw_status::{
    BW_BAD_HANDLE, BW_END, BW_MISUSE, BW_NULL, BW_OK, BW_PANIC, BW_POISONED, BW_RANGE, BW_REENTRANT,
};

/// Bytes of a message, with its NUL. A longer one is shortened in its middle.
pub const BW_MESSAGE_BYTES: usize = 1016;

/// What went wrong. The caller owns it; it needs no initialisation and is not freed. Every call that takes one writes it, also on success.
#[repr(C)]
pub struct bw_error {
    /// The status that the call returned.
    pub status: bw_status,
    /// The closest errno; 0 on success.
    pub os_errno: i32,
    /// A sentence for people, UTF-8, with the path concerned; empty on success.
    pub message: [c_char; BW_MESSAGE_BYTES],
}

/// Why a call fails.
#[derive(Debug)]
pub(crate) enum Fault {
    Library(Error),
    /// Of a call that makes data durable.
    Sync(Error),
    Null(&'static str),
    BadHandle(&'static str),
    Misuse(String),
    Reentrant,
    Poisoned,
    Panic(String),
    /// The caller's buffer is too small for so many bytes.
    Range(usize),
    End,
}

/// Shorthand.
pub(crate) type Result<T> = std::result::Result<T, Fault>;

impl<E: Into<Error>> From<E> for Fault {
    fn from(e: E) -> Self {
        Fault::Library(e.into())
    }
}

impl Fault {
    fn status(&self) -> bw_status {
        match self {
            Fault::Library(e) | Fault::Sync(e) => status_of(e.kind()),
            Fault::Null(_) => BW_NULL,
            Fault::BadHandle(_) => BW_BAD_HANDLE,
            Fault::Misuse(_) => BW_MISUSE,
            Fault::Reentrant => BW_REENTRANT,
            Fault::Poisoned => BW_POISONED,
            Fault::Panic(_) => BW_PANIC,
            Fault::Range(_) => BW_RANGE,
            Fault::End => BW_END,
        }
    }

    fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Fault::Library(e) => return errno_of(e),
            Fault::Sync(e) => return errno_of_sync(e),
            Fault::Null(_) | Fault::Misuse(_) => Errno::INVAL,
            Fault::BadHandle(_) => Errno::BADF,
            Fault::Reentrant => Errno::DEADLK,
            Fault::Poisoned | Fault::Panic(_) => Errno::IO,
            Fault::Range(_) => Errno::RANGE,
            Fault::End => return 0,
        };
        errno.raw_os_error()
    }

    fn message(&self) -> String {
        match self {
            Fault::Library(e) | Fault::Sync(e) => e.to_string(),
            Fault::Null(name) => format!("{name} is null"),
            Fault::BadHandle(kind) => format!("the {kind} handle is null, closed, or was never opened"),
            Fault::Misuse(what) => what.clone(),
            Fault::Reentrant => "the library is called from inside a callback of its own".to_owned(),
            Fault::Poisoned => "an earlier call on this volume failed by a fault of the library: only closing is possible".to_owned(),
            Fault::Panic(what) => format!("fault of the library: {what}"),
            Fault::Range(bytes) => format!("the buffer is too small: {bytes} bytes are needed"),
            Fault::End => "there is no further entry".to_owned(),
        }
    }
}

fn status_of(kind: ErrorKind) -> bw_status {
    // Exhaustive: a new kind does not build before it has its code here.
    match kind {
        ErrorKind::Io => bw_status::BW_IO,
        ErrorKind::Corrupt => bw_status::BW_CORRUPT,
        ErrorKind::UnsupportedFeature => bw_status::BW_UNSUPPORTED_FEATURE,
        ErrorKind::Unsupported => bw_status::BW_UNSUPPORTED,
        ErrorKind::NotFound => bw_status::BW_NOT_FOUND,
        ErrorKind::Exists => bw_status::BW_EXISTS,
        ErrorKind::NotDirectory => bw_status::BW_NOT_DIRECTORY,
        ErrorKind::IsDirectory => bw_status::BW_IS_DIRECTORY,
        ErrorKind::NotEmpty => bw_status::BW_NOT_EMPTY,
        ErrorKind::NoSpace => bw_status::BW_NO_SPACE,
        ErrorKind::QuotaExceeded => bw_status::BW_QUOTA_EXCEEDED,
        ErrorKind::ReadOnly => bw_status::BW_READ_ONLY,
        ErrorKind::NotPermitted => bw_status::BW_NOT_PERMITTED,
        ErrorKind::AccessDenied => bw_status::BW_ACCESS_DENIED,
        ErrorKind::NameTooLong => bw_status::BW_NAME_TOO_LONG,
        ErrorKind::TooManyLinks => bw_status::BW_TOO_MANY_LINKS,
        ErrorKind::FileTooLarge => bw_status::BW_FILE_TOO_LARGE,
        ErrorKind::Invalid => bw_status::BW_INVALID,
        ErrorKind::Busy => bw_status::BW_BUSY,
        ErrorKind::CrossDevice => bw_status::BW_CROSS_DEVICE,
        ErrorKind::NoAttribute => bw_status::BW_NO_ATTRIBUTE,
        ErrorKind::Range => bw_status::BW_RANGE,
        ErrorKind::TooBig => bw_status::BW_TOO_BIG,
        ErrorKind::NoData => bw_status::BW_NO_DATA,
        ErrorKind::Stale => bw_status::BW_STALE,
        ErrorKind::TooManySymlinks => bw_status::BW_TOO_MANY_SYMLINKS,
        ErrorKind::KeyRequired => bw_status::BW_KEY_REQUIRED,
        ErrorKind::Overflow => bw_status::BW_OVERFLOW,
        ErrorKind::WouldBlock => bw_status::BW_WOULD_BLOCK,
        ErrorKind::Interrupted => bw_status::BW_INTERRUPTED,
        ErrorKind::Poisoned => bw_status::BW_POISONED,
    }
}

/// Copies text into an array of `char`, with a NUL. Text that is too long loses its middle, because paths are in front and reasons behind.
pub(crate) fn copy_text(text: &str, to: &mut [c_char]) {
    let room = to.len().saturating_sub(1);
    let short;
    let text = match text.len() <= room {
        true => text,
        false => {
            const GAP: &str = " … ";
            let keep = room.saturating_sub(GAP.len());
            let boundary = |at: &usize| text.is_char_boundary(*at);
            let head = (0..=keep / 3).rev().find(boundary).unwrap_or(0);
            let tail = text.len() - (keep - keep / 3);
            let tail = (tail..text.len()).find(boundary).unwrap_or(text.len());
            short = format!("{}{GAP}{}", &text[..head], &text[tail..]);
            &short
        }
    };
    for (to, from) in to.iter_mut().zip(text.bytes().chain([0])) {
        // A NUL inside would hide the rest.
        *to = match from {
            0 => 0,
            byte => byte.cast_signed() as c_char,
        };
    }
    if let Some(last) = to.last_mut() {
        *last = 0;
    }
}

/// Writes how a call went to the caller's structure, and returns the code.
pub(crate) fn finish(result: Result<()>, error: Option<&mut MaybeUninit<bw_error>>) -> bw_status {
    let (status, errno, message) = match &result {
        Ok(()) => (BW_OK, 0, String::new()),
        Err(fault) => (fault.status(), fault.errno(), fault.message()),
    };
    if let Some(error) = error {
        let error = error.write(bw_error {
            status,
            os_errno: errno,
            message: [0; BW_MESSAGE_BYTES],
        });
        copy_text(&message, &mut error.message);
    }
    status
}

macro_rules! names {
    ($($name:ident),* $(,)?) => {
        /// Each status with its name.
        const NAMES: &[(i32, &str)] = &[$((bw_status::$name as i32, concat!(stringify!($name), "\0"))),*];
    };
}

names! {
    BW_OK, BW_IO, BW_CORRUPT, BW_UNSUPPORTED_FEATURE, BW_UNSUPPORTED, BW_NOT_FOUND, BW_EXISTS, BW_NOT_DIRECTORY,
    BW_IS_DIRECTORY, BW_NOT_EMPTY, BW_NO_SPACE, BW_QUOTA_EXCEEDED, BW_READ_ONLY, BW_NOT_PERMITTED, BW_ACCESS_DENIED,
    BW_NAME_TOO_LONG, BW_TOO_MANY_LINKS, BW_FILE_TOO_LARGE, BW_INVALID, BW_BUSY, BW_CROSS_DEVICE, BW_NO_ATTRIBUTE,
    BW_RANGE, BW_TOO_BIG, BW_NO_DATA, BW_STALE, BW_TOO_MANY_SYMLINKS, BW_KEY_REQUIRED, BW_OVERFLOW, BW_WOULD_BLOCK,
    BW_INTERRUPTED, BW_POISONED, BW_END, BW_NULL, BW_BAD_HANDLE, BW_MISUSE, BW_REENTRANT, BW_PANIC,
}

/// The name of a status, for example `BW_NOT_FOUND`; `BW_?` for a number that is none. The text is constant.
#[unsafe(no_mangle)]
pub extern "C" fn bw_status_name(status: i32) -> *const c_char {
    let found = NAMES.iter().find(|(number, _)| *number == status);
    found.map_or("BW_?\0", |(_, name)| name).as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(from: &[c_char]) -> String {
        let bytes: Vec<u8> = from
            .iter()
            .take_while(|c| **c != 0)
            .map(|c| *c as u8)
            .collect();
        String::from_utf8(bytes).expect("UTF-8")
    }

    #[test]
    fn long_messages_keep_both_ends_and_are_text() {
        for unit in ["x", "é", "漢"] {
            let long = format!("/path{}: the reason", unit.repeat(3000));
            let mut to = [1; 200];
            copy_text(&long, &mut to);
            let got = text(&to);
            assert!(
                got.starts_with("/path") && got.ends_with(": the reason"),
                "{got}"
            );
            assert!(got.len() < 200 && got.contains(" … "));
        }
        let mut to = [1; 8];
        copy_text("1234567", &mut to);
        assert_eq!(text(&to), "1234567");
        copy_text("", &mut to);
        assert_eq!(text(&to), "");
    }

    #[test]
    fn each_status_has_one_number_and_one_name() {
        let mut numbers: Vec<i32> = NAMES.iter().map(|(n, _)| *n).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), NAMES.len());
        assert!(numbers.is_sorted());
    }
}
