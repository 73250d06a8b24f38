//! [`FormatErrorBox`]: the errors of both formats as parts of issues.

use std::fmt;
use std::hash::{Hash, Hasher};

/// An error of a format's structures that can be hashed, so that issues which have it are known again in the next round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatErrorBox<E>(pub Box<E>);

impl<E: fmt::Display> Hash for FormatErrorBox<E> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_string().hash(state);
    }
}

impl<E: fmt::Display> fmt::Display for FormatErrorBox<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E> From<E> for FormatErrorBox<E> {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}
