//! [`Growing`]: a value that is replaced when the volume grows, while readers hold references to it.
//!
//! A reader pays one atomic load. Former values stay until the end: a volume grows a few times in the life of a mount.
//!
//! # Locks
//! None. Two threads that replace at once leave two values, of which one is found; the volume's growth has a lock.

use std::sync::OnceLock;

/// See the module's head.
pub(crate) struct Growing<T> {
    value: T,
    next: OnceLock<Box<Growing<T>>>,
}

impl<T> Growing<T> {
    /// With its first value.
    pub(crate) fn new(value: T) -> Self {
        Growing {
            value,
            next: OnceLock::new(),
        }
    }

    fn last(&self) -> &Self {
        let mut at = self;
        while let Some(next) = at.next.get() {
            at = next;
        }
        at
    }

    /// The value now.
    pub(crate) fn get(&self) -> &T {
        &self.last().value
    }

    /// Replaces the value. References to the former one stay valid.
    pub(crate) fn replace(&self, value: T) {
        let mut next = Box::new(Growing::new(value));
        while let Err(refused) = self.last().next.set(next) {
            next = refused;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_values_stay_valid() {
        let growing = Growing::new(1);
        let first = growing.get();
        growing.replace(2);
        growing.replace(3);
        assert_eq!((*first, *growing.get()), (1, 3));
    }
}
