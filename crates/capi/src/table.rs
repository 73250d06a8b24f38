//! Handles as numbers: which object a number stands for, and whether it is still open.
//!
//! A number has three parts: 32 bits of generation, 8 bits of kind, 24 bits of place. A place that becomes free gets the next generation, so that the
//! numbers of closed handles stay invalid. A place whose generations are used up is not used again. 0 is no handle: generations begin at 1.

use crate::error::{Fault, Result};
use parking_lot::RwLock;
use std::sync::Arc;

const PLACE_BITS: u32 = 24;
const PLACES_MAX: usize = 1 << PLACE_BITS;

struct Place<T> {
    generation: u32,
    value: Option<Arc<T>>,
}

struct Places<T> {
    all: Vec<Place<T>>,
    free: Vec<usize>,
}

/// All open objects of one kind.
pub(crate) struct Table<T> {
    kind: u8,
    name: &'static str,
    places: RwLock<Places<T>>,
}

impl<T> Table<T> {
    /// An empty table. `kind` tells its numbers from those of other tables; `name` is for messages.
    pub(crate) const fn new(kind: u8, name: &'static str) -> Self {
        Table {
            kind,
            name,
            places: RwLock::new(Places {
                all: Vec::new(),
                free: Vec::new(),
            }),
        }
    }

    fn number(&self, generation: u32, place: usize) -> u64 {
        u64::from(generation) << 32 | u64::from(self.kind) << PLACE_BITS | place as u64
    }

    /// The place and generation of a number of this table.
    fn parts(&self, number: u64) -> Option<(usize, u32)> {
        let place = number as usize & (PLACES_MAX - 1);
        let kind = (number >> PLACE_BITS) as u8;
        (kind == self.kind).then_some((place, (number >> 32) as u32))
    }

    /// Gives an object a number.
    ///
    /// # Errors
    /// When 16 million handles are open.
    pub(crate) fn insert(&self, value: T) -> Result<u64> {
        let mut places = self.places.write();
        let place = match places.free.pop() {
            Some(place) => place,
            None if places.all.len() < PLACES_MAX => {
                places.all.push(Place {
                    generation: 1,
                    value: None,
                });
                places.all.len() - 1
            }
            None => {
                let what = format!("{PLACES_MAX} {} handles are open", self.name);
                return Err(Fault::Misuse(what));
            }
        };
        let slot = &mut places.all[place];
        slot.value = Some(Arc::new(value));
        Ok(self.number(slot.generation, place))
    }

    /// The object of a number.
    ///
    /// # Errors
    /// `BadHandle`.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>> {
        let bad = || Fault::BadHandle(self.name);
        let (place, generation) = self.parts(number).ok_or_else(bad)?;
        let places = self.places.read();
        let slot = places.all.get(place).ok_or_else(bad)?;
        match &slot.value {
            Some(value) if slot.generation == generation => Ok(Arc::clone(value)),
            _ => Err(bad()),
        }
    }

    /// Takes an object out. Its number is invalid from now on.
    ///
    /// # Errors
    /// `BadHandle`.
    pub(crate) fn remove(&self, number: u64) -> Result<Arc<T>> {
        let bad = || Fault::BadHandle(self.name);
        let (place, generation) = self.parts(number).ok_or_else(bad)?;
        let mut places = self.places.write();
        let slot = places.all.get_mut(place).ok_or_else(bad)?;
        if slot.generation != generation {
            return Err(bad());
        }
        let value = slot.value.take().ok_or_else(bad)?;
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            places.free.push(place);
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_and_invented_numbers_are_refused() {
        let table = Table::new(7, "test");
        let first = table.insert("first").expect("inserted");
        assert_eq!(*table.get(first).expect("open"), "first");
        table.remove(first).expect("removed");
        assert!(table.get(first).is_err() && table.remove(first).is_err());
        let second = table.insert("second").expect("inserted");
        assert_ne!(first, second);
        assert!(table.get(first).is_err());
        let other_kind = Table::new(8, "other");
        let theirs = other_kind.insert("x").expect("inserted");
        assert!(table.get(theirs).is_err());
        for number in [0, 1, u64::MAX, second + 1, second ^ 1 << 40] {
            assert!(table.get(number).is_err(), "{number:#x}");
        }
        assert_eq!(*table.get(second).expect("open"), "second");
    }

    #[test]
    fn a_place_without_further_generations_rests() {
        let table = Table::new(1, "test");
        let number = table.insert(1).expect("inserted");
        table.places.write().all[0].generation = u32::MAX;
        let last = u64::from(u32::MAX) << 32 | number & 0xFFFF_FFFF;
        table.remove(last).expect("removed");
        let next = table.insert(2).expect("inserted");
        assert_eq!(next & 0xFF_FFFF, 1);
        assert!(table.get(last).is_err());
    }
}
