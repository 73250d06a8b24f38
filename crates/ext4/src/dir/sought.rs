//! A directory's last looked-up name.

use super::Found;
use parking_lot::Mutex;
use smallvec::SmallVec;

/// The name that was last looked for in a directory, and what was found: a caller that makes or removes a name has looked for
/// it just before, under the same lock of the directory, and the engine looks again to be sure.
///
/// Only a holder of the directory's lock looks at it: shared, to look for names, or exclusively, to change the
/// directory, which forgets it.
#[derive(Default)]
pub(crate) struct LastSought(Mutex<Option<Sought>>);

/// A name, and where it is.
type Sought = (SmallVec<[u8; 40]>, Option<Found>);

impl LastSought {
    pub(super) fn get(&self, name: &[u8]) -> Option<Option<Found>> {
        let last = self.0.lock();
        let (sought, found) = last.as_ref()?;
        (sought.as_slice() == name).then_some(*found)
    }

    pub(super) fn set(&self, name: &[u8], found: Option<Found>) {
        *self.0.lock() = Some((SmallVec::from_slice(name), found));
    }

    /// The directory is about to change.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}
