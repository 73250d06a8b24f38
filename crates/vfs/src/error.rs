//! The error every engine and the data path report. No errno here: the FUSE front end maps kinds.

use crate::types::Ino;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

crate::named! {
    /// What went wrong, for programs; its name is a text for people. Not `non_exhaustive`: front ends map every kind, and must fail to
    /// build when one is added.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum ErrorKind {
        /// The device failed.
        Io => "input/output error",
        /// The volume's structures contradict the format or themselves.
        Corrupt => "the file system is damaged",
        /// The image holds no known format, or the volume or this file uses a feature that this program does not have.
        UnsupportedFeature => "an unsupported feature is in use",
        /// The operation is not possible on this format or kind of file (`EOPNOTSUPP`).
        Unsupported => "the operation is not supported",
        /// No such name.
        NotFound => "no such file or directory",
        /// The name exists already.
        Exists => "already exists",
        /// A directory was needed.
        NotDirectory => "not a directory",
        /// A directory was given where none may be.
        IsDirectory => "is a directory",
        /// The directory has entries.
        NotEmpty => "the directory is not empty",
        /// The volume is full.
        NoSpace => "no space left on the volume",
        /// A quota is used up.
        QuotaExceeded => "the quota is exceeded",
        /// The volume is mounted read-only.
        ReadOnly => "the volume is read-only",
        /// Not permitted whatever the mode bits say (`EPERM`).
        NotPermitted => "the operation is not permitted",
        /// The mode bits or the ACL forbid it (`EACCES`).
        AccessDenied => "permission denied",
        /// The name is longer than the format takes.
        NameTooLong => "the name is too long",
        /// The inode can have no more names.
        TooManyLinks => "too many links",
        /// The file would grow past the format's limit.
        FileTooLarge => "the file is too large",
        /// An argument is invalid.
        Invalid => "invalid argument",
        /// In use.
        Busy => "in use",
        /// The two names are on different volumes or projects.
        CrossDevice => "not on the same volume",
        /// No such extended attribute.
        NoAttribute => "no such attribute",
        /// The caller's buffer is too small, or a value out of range (`ERANGE`).
        Range => "out of range",
        /// The value is larger than the format can hold (`E2BIG` / `ENOSPC` for attributes).
        TooBig => "the value is too big",
        /// No data or hole at or after this offset (`ENXIO`).
        NoData => "no data at or after this offset",
        /// The handle's or entry's inode is gone.
        Stale => "stale file handle",
        /// Too many symlinks.
        TooManySymlinks => "too many levels of symbolic links",
        /// The encryption key is needed.
        KeyRequired => "the encryption key is required",
        /// A value does not fit its type (`EOVERFLOW`).
        Overflow => "the value is too large for its type",
        /// A lock could not be had without waiting.
        WouldBlock => "would have to wait",
        /// The wait was interrupted.
        Interrupted => "interrupted",
        /// A write of metadata failed earlier; the volume refuses all changes since.
        Poisoned => "the volume refuses changes since an earlier failure",
    }
}

/// An error with its place.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    op: &'static str,
    ino: Option<Ino>,
    block: Option<u64>,
    detail: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// Shorthand for results of this crate and of the engines.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` met while doing `op` (`"lookup"`, `"journal commit"`).
    #[must_use]
    pub fn new(kind: ErrorKind, op: &'static str) -> Self {
        Error(Box::new(Inner {
            kind,
            op,
            ino: None,
            block: None,
            detail: String::new(),
            source: None,
        }))
    }

    /// Corrupt metadata: `detail` names the structure, what it held and what was expected.
    #[must_use]
    pub fn corrupt(op: &'static str, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, op).detail(detail)
    }

    /// The error of a call after unmount.
    pub(crate) fn unmounted(op: &'static str) -> Self {
        Self::new(ErrorKind::Stale, op).detail("the volume is unmounted")
    }

    /// A device error met while doing `op`.
    #[must_use]
    pub fn io(op: &'static str, source: blockwright_device::DeviceError) -> Self {
        let kind = match source.kind {
            blockwright_device::DeviceErrorKind::ReadOnly => ErrorKind::ReadOnly,
            _ => ErrorKind::Io,
        };
        Self::new(kind, op).source(source)
    }

    /// Adds the inode concerned.
    #[must_use]
    pub fn ino(mut self, ino: Ino) -> Self {
        self.0.ino = Some(ino);
        self
    }

    /// Adds the file-system block concerned.
    #[must_use]
    pub fn block(mut self, block: u64) -> Self {
        self.0.block = Some(block);
        self
    }

    /// Adds a sentence for people.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = detail.into();
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the cause is a host that has no room for what the device was to store. The volume is then as after a crash, and not
    /// damaged.
    #[must_use]
    pub fn host_is_full(&self) -> bool {
        let mut cause: Option<&(dyn StdError + 'static)> = StdError::source(self);
        while let Some(error) = cause {
            if let Some(device) = error.downcast_ref::<blockwright_device::DeviceError>() {
                return device.is_out_of_room();
            }
            cause = error.source();
        }
        false
    }

    /// The inode concerned, when known.
    #[must_use]
    pub fn inode(&self) -> Option<Ino> {
        self.0.ino
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.0;
        write!(f, "{}: ", e.op)?;
        if let Some(ino) = e.ino {
            write!(f, "{ino}: ")?;
        }
        if let Some(block) = e.block {
            write!(f, "block {block}: ")?;
        }
        if e.detail.is_empty() {
            write!(f, "{}", e.kind)?;
        } else {
            write!(f, "{}", e.detail)?;
        }
        if let Some(source) = &e.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.0.kind)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_ref()
            .map(|s| &**s as &(dyn StdError + 'static))
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Error::new(kind, "file system")
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
