//! Pointers from C as types. Their invariant is what the manual asks of C programs; each method relies on it and says so.
//!
//! No value of these types is made in Rust, except null ones.

use crate::error::{Fault, Result};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A text that ends with a NUL, or null. C keeps it unchanged until the call returns.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// The bytes before the NUL, or `None` for null.
    pub(crate) fn optional(&self) -> Option<&[u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not null, so by the type's invariant it points to bytes that end with a NUL and stay unchanged during the call. The borrow of `self`
        // does not outlive the call, because no `Text` is stored.
        Some(unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }

    /// The bytes before the NUL; `name` is the argument's.
    pub(crate) fn bytes(&self, name: &'static str) -> Result<&[u8]> {
        self.optional().ok_or(Fault::Null(name))
    }

    /// The same as a path.
    pub(crate) fn path(&self, name: &'static str) -> Result<&Path> {
        Ok(Path::new(OsStr::from_bytes(self.bytes(name)?)))
    }

    /// UTF-8 text; empty for null.
    pub(crate) fn utf8(&self, name: &'static str) -> Result<&str> {
        std::str::from_utf8(self.optional().unwrap_or_default())
            .map_err(|_| Fault::Misuse(format!("{name} is not UTF-8")))
    }
}

/// Refuses lengths that no object in memory has, and null unless nothing is to be read or written.
fn checked(null: bool, bytes: usize, name: &'static str) -> Result<()> {
    if null && bytes > 0 {
        return Err(Fault::Null(name));
    }
    if isize::try_from(bytes).is_err() {
        return Err(Fault::Misuse(format!(
            "{name}: {bytes} bytes are no buffer"
        )));
    }
    Ok(())
}

/// Bytes that are read, or null. C says how many; they are readable, and unchanged until the call returns.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Input(*const c_void);

impl Input {
    /// The first `bytes` bytes.
    pub(crate) fn slice(&self, bytes: usize, name: &'static str) -> Result<&[u8]> {
        checked(self.0.is_null(), bytes, name)?;
        if bytes == 0 {
            return Ok(&[]);
        }
        // SAFETY: not null, and the length fits an object. By the type's invariant so many bytes are readable and unchanged during the call, which the
        // borrow of `self` does not outlive. Any byte is a `u8`, at any alignment.
        Ok(unsafe { std::slice::from_raw_parts(self.0.cast(), bytes) })
    }
}

/// Bytes that are written, or null. C says how many; nothing else uses them until the call returns.
#[repr(transparent)]
pub struct Output(*mut c_void);

impl Output {
    /// The first `bytes` bytes.
    pub(crate) fn slice(&mut self, bytes: usize, name: &'static str) -> Result<&mut [u8]> {
        checked(self.0.is_null(), bytes, name)?;
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: not null, and the length fits an object. By the type's invariant so many bytes are writable and no one else's during the call, which
        // the borrow of `self` does not outlive. Memory that C hands over counts as initialised: Rust cannot see how C made it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.cast(), bytes) })
    }
}

/// A structure that C fills in, and whose first field is its size.
///
/// # Safety
/// The type is `repr(C)`, its first field is a `usize`, and all bit patterns are values of its other fields, but for pointers to functions, which are
/// those of C.
pub(crate) unsafe trait Versioned {}

/// The structure at `from`, or `None` for null. The size is read first: a structure of another version may be shorter than `T`, and is refused.
pub(crate) fn sized<'a, T: Versioned>(from: *const T, name: &'static str) -> Result<Option<&'a T>> {
    if from.is_null() {
        return Ok(None);
    }
    if !from.is_aligned() {
        return Err(Fault::Misuse(format!("{name} is not aligned")));
    }
    // SAFETY: not null and aligned. C says that it points to a structure that begins with its size, which is the first field of `T`.
    let said = unsafe { from.cast::<usize>().read() };
    let is = size_of::<T>();
    if said != is {
        let what = format!("{name}.struct_size is {said}, and the structure has {is} bytes");
        return Err(Fault::Misuse(what));
    }
    // SAFETY: as above, and by C's word so many bytes are there, initialised and unchanged until the call returns. The reference is not kept longer:
    // what outlives the call is copied. All bit patterns are values, by the trait.
    Ok(Some(unsafe { &*from }))
}

/// What C wants back in its callbacks. It is never followed here.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct User(*mut c_void);

// SAFETY: the pointer is only handed back to C, which says of each callback that takes one from which threads it is called.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

/// The first `count` elements of an array of C's.
///
/// # Safety
/// Not null unless `count` is 0: so many elements are there, initialised and unchanged as long as the result is used, and all bit patterns are values of `T`, or C says that these
/// are.
unsafe fn elements<'a, T>(from: *const T, count: usize, name: &'static str) -> Result<&'a [T]> {
    let bytes = count.saturating_mul(size_of::<T>());
    checked(from.is_null(), bytes, name)?;
    if count == 0 {
        return Ok(&[]);
    }
    if !from.is_aligned() {
        return Err(Fault::Misuse(format!("{name} is not aligned")));
    }
    // SAFETY: not null, aligned, and the size fits an object; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// An array of sources, or null. C says how many; they are readable, and unchanged until the call returns.
#[repr(transparent)]
pub struct Sources(*const bw_source);

impl Sources {
    /// The first `count` elements.
    pub(crate) fn slice(&self, count: usize, name: &'static str) -> Result<&[bw_source]> {
        // SAFETY: by the type's invariant, during the call, which the borrow of `self` does not outlive. All bit patterns are values of the structure's
        // numbers and pointers.
        unsafe { elements(self.0, count, name) }
    }
}

/// An array of rules, or null. C says how many; they are readable, and unchanged until the call returns.
#[repr(transparent)]
pub struct Rules(*const bw_rule);

impl Rules {
    /// The first `count` elements.
    pub(crate) fn slice(&self, count: usize, name: &'static str) -> Result<&[bw_rule]> {
        // SAFETY: as of `Sources`.
        unsafe { elements(self.0, count, name) }
    }
}

/// An array of texts, or null. C says how many; they and what they lead to are readable, and unchanged until the call returns.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Texts(*const Text);

impl Texts {
    /// The first `count` elements.
    pub(crate) fn slice(&self, count: usize, name: &'static str) -> Result<&[Text]> {
        // SAFETY: as of `Sources`. Each element is a pointer, whose invariant is that of `Text`.
        unsafe { elements(self.0, count, name) }
    }
}

/// Something to put into a volume. Later sources lie over earlier ones.
#[repr(C)]
pub struct bw_source {
    /// A `BW_SOURCE_`.
    pub kind: u32,
    /// For `BW_SOURCE_TAR_FD`, `BW_SOURCE_IMAGE_FD` and `BW_SOURCE_DUMPFILE_FD`. The descriptor stays the caller's. Otherwise 0 or -1.
    pub fd: Descriptor,
    /// For `BW_SOURCE_PATH`, `BW_SOURCE_IMAGE` and `BW_SOURCE_DUMPFILE`; the image's name for `BW_SOURCE_IMAGE_FD`; otherwise a name for messages, or null.
    pub path: Text,
    /// For `BW_SOURCE_DUMPFILE` and `BW_SOURCE_DUMPFILE_FD`: the folder of the listing's objects, or null. Otherwise null.
    pub objects: Text,
    /// 0.
    pub reserved: [u64; 2],
}

/// A rule for the entries of all sources.
#[repr(C)]
pub struct bw_rule {
    /// A `BW_RULE_`.
    pub kind: u32,
    /// 0.
    pub reserved: u32,
    /// For the rules of times.
    pub number: i64,
    /// For the other ones.
    pub text: Text,
}

/// A file descriptor that is open, by C's word.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Descriptor(pub(crate) i32);

impl Descriptor {
    /// A descriptor of the library's own for the same open file.
    pub(crate) fn duplicate(self, name: &'static str) -> Result<std::os::fd::OwnedFd> {
        if self.0 < 0 {
            return Err(Fault::Misuse(format!(
                "{name}: {} is no descriptor",
                self.0
            )));
        }
        // SAFETY: not -1. C says that it is open and stays so during the call. If it is not, the only call that is made with it fails with EBADF.
        let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.0) };
        rustix::io::fcntl_dupfd_cloexec(borrowed, 3)
            .map_err(|e| Fault::Library(std::io::Error::from(e).into()))
    }
}
