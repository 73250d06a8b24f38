//! What takes io_uring's place in builds without it: hosts other than Linux, and those without the feature `uring`. There is no ring, so no value of
//! this type.

use super::file::HostFile;
use crate::Request;
use std::io;
use std::sync::Arc;

/// The back end that this build does not have.
pub(super) enum Uring {}

impl Uring {
    pub(super) fn start(_: &Arc<HostFile>) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn push(&self, _: Request) {
        match *self {}
    }
}

/// The request comes back: no ring takes it.
pub(super) fn offer(_: &Arc<HostFile>, request: Request) -> Result<(), Request> {
    Err(request)
}
