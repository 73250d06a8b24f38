//! What can go wrong around a mount. Requests' own failures never get here; they become errnos.
//!
//! A keeper sends kinds to its server by their place in `keeper::KINDS`. A new kind that a keeper can meet goes there, too.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FuseErrorKind {
    /// There is no `/dev/fuse`: the kernel module is not loaded, or a container hides it.
    NoDevice,
    /// `fusermount3` is not installed, and mounting without it needs root.
    NoHelper,
    /// The kernel or the helper refused for lack of privilege.
    NotPermitted,
    /// The mount point does not exist, or is not a directory.
    BadMountpoint,
    /// A FUSE file system whose server is gone is still mounted there.
    DeadMount,
    /// The mount point is in use (unmounting).
    Busy,
    /// An option is invalid.
    BadOption,
    /// The helper or the kernel failed in another way.
    Mount,
    /// The connection to the kernel broke.
    Transport,
    /// Signals could not be caught, threads not started.
    Os,
    /// The volume could not be opened or closed cleanly.
    Volume,
}

/// An error with its place.
#[derive(Debug)]
pub struct FuseError {
    kind: FuseErrorKind,
    path: Option<PathBuf>,
    detail: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, FuseError>;

impl FuseError {
    pub(crate) fn new(kind: FuseErrorKind, detail: impl Into<String>) -> Self {
        FuseError {
            kind,
            path: None,
            detail: detail.into(),
            source: None,
        }
    }

    pub(crate) fn path(mut self, path: &Path) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    pub(crate) fn source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn os(detail: &str, source: impl Into<io::Error>) -> Self {
        FuseError::new(FuseErrorKind::Os, detail).source(source.into())
    }

    /// What went wrong.
    #[must_use]
    pub fn kind(&self) -> FuseErrorKind {
        self.kind
    }
}

impl fmt::Display for FuseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.detail)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FuseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_ref()
            .map(|s| &**s as &(dyn std::error::Error + 'static))
    }
}
