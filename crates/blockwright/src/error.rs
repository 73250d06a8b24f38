//! The library's error: a kind, a description, and the file.

use blockwright_device::{DeviceError, DeviceErrorKind};
#[cfg(feature = "build")]
use blockwright_mkfs::MkfsError;
use blockwright_vfs::{self as vfs, ErrorKind};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error with the path it concerns: in the volume, or of the host for sources and images.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    path: Option<PathBuf>,
    cause: Cause,
    /// Nothing was written before.
    changed_nothing: bool,
}

#[derive(Clone)]
enum Cause {
    Volume(vfs::Error),
    Device(DeviceError),
    #[cfg(feature = "build")]
    Making(MkfsError),
    Host(Arc<io::Error>),
    Other(ErrorKind, String),
}

impl Error {
    fn of(cause: Cause) -> Self {
        Error(Box::new(Inner {
            path: None,
            cause,
            changed_nothing: false,
        }))
    }

    /// An error of this kind, with a sentence for people.
    #[must_use]
    pub fn new(kind: ErrorKind, what: impl Into<String>) -> Self {
        Self::of(Cause::Other(kind, what.into()))
    }

    /// Adds the path concerned, unless one is there already.
    #[must_use]
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.0.path.get_or_insert_with(|| path.as_ref().to_owned());
        self
    }

    /// Says that nothing was written before it.
    #[cfg(feature = "resize")]
    pub(crate) fn before_any_change(mut self) -> Self {
        self.0.changed_nothing = true;
        self
    }

    /// Adds something to the sentence for people.
    #[cfg(feature = "resize")]
    pub(crate) fn and(mut self, more: &str) -> Self {
        let what = match &self.0.cause {
            Cause::Other(_, what) => format!("{what}{more}"),
            _ => return self,
        };
        self.0.cause = Cause::Other(self.kind(), what);
        self
    }

    /// Whether it is known that nothing was written before this ended a change of a volume. `false` does not say the opposite.
    #[must_use]
    pub fn changed_nothing(&self) -> bool {
        self.0.changed_nothing
    }

    /// What went wrong, for programs.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match &self.0.cause {
            Cause::Volume(e) => e.kind(),
            Cause::Device(e) => match e.kind {
                DeviceErrorKind::ReadOnly => ErrorKind::ReadOnly,
                DeviceErrorKind::InUse { .. } => ErrorKind::Busy,
                DeviceErrorKind::Unsupported => ErrorKind::Unsupported,
                DeviceErrorKind::BadDisk { .. } => ErrorKind::Corrupt,
                DeviceErrorKind::Os(errno) => host_kind(io::Error::from_raw_os_error(errno).kind()),
                DeviceErrorKind::Short { .. }
                | DeviceErrorKind::OutOfRange { .. }
                | DeviceErrorKind::Refused { .. }
                | DeviceErrorKind::Gone => ErrorKind::Io,
            },
            #[cfg(feature = "build")]
            Cause::Making(e) => match e {
                MkfsError::NoSpace { .. } | MkfsError::NoInodes { .. } => ErrorKind::NoSpace,
                MkfsError::Stopped => ErrorKind::Interrupted,
                MkfsError::Device(e) => Error::from(e.clone()).kind(),
                MkfsError::Source(e) => match e.downcast_ref::<Error>() {
                    Some(e) => e.kind(),
                    None => ErrorKind::Io,
                },
                _ => ErrorKind::Invalid,
            },
            Cause::Host(e) => host_kind(e.kind()),
            Cause::Other(kind, _) => *kind,
        }
    }

    /// The path concerned, when known.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// The error of the volume's own layers, when that is what this is.
    #[must_use]
    pub fn as_volume(&self) -> Option<&vfs::Error> {
        match &self.0.cause {
            Cause::Volume(e) => Some(e),
            _ => None,
        }
    }
}

/// Building a volume on an external journal changes that journal, without the feature `resize` as well.
#[cfg(any(feature = "build", feature = "resize"))]
impl From<blockwright_reshape::ReshapeError> for Error {
    fn from(e: blockwright_reshape::ReshapeError) -> Self {
        use blockwright_reshape::ReshapeError;
        let kind = match &e {
            ReshapeError::Device { source, .. } => return Error::from(source.clone()),
            ReshapeError::Format(_) | ReshapeError::F2fs(_) | ReshapeError::Damaged(_) => {
                ErrorKind::Corrupt
            }
            ReshapeError::NotClean(_) | ReshapeError::Undecided(_) => ErrorKind::Busy,
            ReshapeError::Unsupported(_) => ErrorKind::Unsupported,
            ReshapeError::Invalid(_) => ErrorKind::Invalid,
            ReshapeError::NoSpace(_) => ErrorKind::NoSpace,
            ReshapeError::Interrupted => ErrorKind::Interrupted,
        };
        Error::new(kind, e.to_string())
    }
}

fn host_kind(kind: io::ErrorKind) -> ErrorKind {
    match kind {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied => ErrorKind::AccessDenied,
        io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        io::ErrorKind::NotADirectory => ErrorKind::NotDirectory,
        io::ErrorKind::IsADirectory => ErrorKind::IsDirectory,
        io::ErrorKind::DirectoryNotEmpty => ErrorKind::NotEmpty,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        io::ErrorKind::QuotaExceeded => ErrorKind::QuotaExceeded,
        io::ErrorKind::FileTooLarge => ErrorKind::FileTooLarge,
        io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        io::ErrorKind::ResourceBusy => ErrorKind::Busy,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => ErrorKind::Invalid,
        io::ErrorKind::Interrupted => ErrorKind::Interrupted,
        io::ErrorKind::WouldBlock => ErrorKind::WouldBlock,
        io::ErrorKind::Unsupported => ErrorKind::Unsupported,
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => ErrorKind::Corrupt,
        _ => ErrorKind::Io,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(f, "{}: ", path.display())?;
        }
        match &self.0.cause {
            Cause::Volume(e) => e.fmt(f),
            Cause::Device(e) => e.fmt(f),
            #[cfg(feature = "build")]
            Cause::Making(e) => e.fmt(f),
            Cause::Host(e) => e.fmt(f),
            Cause::Other(_, what) => f.write_str(what),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self})", self.kind())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.cause {
            Cause::Volume(e) => Some(e),
            Cause::Device(e) => Some(e),
            #[cfg(feature = "build")]
            Cause::Making(e) => Some(e),
            Cause::Host(e) => Some(&**e),
            Cause::Other(..) => None,
        }
    }
}

impl From<vfs::Error> for Error {
    fn from(e: vfs::Error) -> Self {
        Self::of(Cause::Volume(e))
    }
}

impl From<DeviceError> for Error {
    fn from(e: DeviceError) -> Self {
        Self::of(Cause::Device(e))
    }
}

#[cfg(feature = "build")]
impl From<MkfsError> for Error {
    fn from(e: MkfsError) -> Self {
        if let MkfsError::Source(inner) = &e
            && let Some(own) = inner.downcast_ref::<Error>()
        {
            return own.clone();
        }
        Self::of(Cause::Making(e))
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        // An error of ours that went through a caller's `Read` comes out whole.
        match e.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(own) => own.clone(),
            None => Self::of(Cause::Host(Arc::new(e))),
        }
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> Self {
        let kind = match e.kind() {
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Exists => io::ErrorKind::AlreadyExists,
            ErrorKind::NotDirectory => io::ErrorKind::NotADirectory,
            ErrorKind::IsDirectory => io::ErrorKind::IsADirectory,
            ErrorKind::NotEmpty => io::ErrorKind::DirectoryNotEmpty,
            ErrorKind::NoSpace => io::ErrorKind::StorageFull,
            ErrorKind::QuotaExceeded => io::ErrorKind::QuotaExceeded,
            ErrorKind::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            ErrorKind::NotPermitted | ErrorKind::AccessDenied => io::ErrorKind::PermissionDenied,
            ErrorKind::TooManyLinks => io::ErrorKind::TooManyLinks,
            ErrorKind::FileTooLarge => io::ErrorKind::FileTooLarge,
            ErrorKind::Invalid => io::ErrorKind::InvalidInput,
            ErrorKind::NameTooLong => io::ErrorKind::InvalidFilename,
            ErrorKind::Busy => io::ErrorKind::ResourceBusy,
            ErrorKind::CrossDevice => io::ErrorKind::CrossesDevices,
            ErrorKind::Corrupt => io::ErrorKind::InvalidData,
            ErrorKind::UnsupportedFeature | ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::WouldBlock => io::ErrorKind::WouldBlock,
            ErrorKind::Interrupted => io::ErrorKind::Interrupted,
            ErrorKind::Stale => io::ErrorKind::StaleNetworkFileHandle,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, e)
    }
}
