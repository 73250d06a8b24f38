//! The folios of a file, ordered by place.
//!
//! They are kept by stretches of the largest folio's size, in which every folio lies as a whole because it is naturally aligned: so
//! a folio's neighbours, as far as they matter to it, are beside it in one short list, and files whose pages are scattered
//! have far fewer stretches than folios.

use super::{FOLIO_BYTES_MAX, Folio};
use std::collections::BTreeMap;
use std::ops::Range;

/// A folio in its stretch: where it starts and ends, so that a search does not read a folio's own memory to find another.
struct Slot {
    start: u64,
    bytes: u32,
    folio: Box<Folio>,
}

impl Slot {
    fn end(&self) -> u64 {
        self.start + u64::from(self.bytes)
    }
}

type Stretch = Vec<Slot>;

#[derive(Default)]
pub(super) struct Folios {
    /// By place divided by [`FOLIO_BYTES_MAX`]; each sorted by start, none empty.
    stretches: BTreeMap<u64, Stretch>,
}

/// Where in a stretch the first folio is that starts at or behind `start`.
fn behind(stretch: &Stretch, start: u64) -> usize {
    stretch.partition_point(|slot| slot.start < start)
}

fn find(stretch: &Stretch, start: u64) -> Option<usize> {
    let at = behind(stretch, start);
    (stretch.get(at)?.start == start).then_some(at)
}

impl Folios {
    /// The folio over `pos`, and where it starts.
    pub(super) fn over(&self, pos: u64) -> Option<(u64, &Folio)> {
        let stretch = self.stretches.get(&(pos / FOLIO_BYTES_MAX))?;
        let at = stretch.partition_point(|slot| slot.start <= pos);
        let slot = stretch.get(at.checked_sub(1)?)?;
        (slot.end() > pos).then_some((slot.start, &*slot.folio))
    }

    /// The folio over `pos`, or else the room between the folios on both sides of it, within its stretch.
    pub(super) fn over_or_room(&self, pos: u64) -> Result<u64, Range<u64>> {
        let low = pos / FOLIO_BYTES_MAX * FOLIO_BYTES_MAX;
        let mut room = low..low.saturating_add(FOLIO_BYTES_MAX);
        let Some(stretch) = self.stretches.get(&(pos / FOLIO_BYTES_MAX)) else {
            return Err(room);
        };
        let next = stretch.partition_point(|slot| slot.start <= pos);
        if let Some(slot) = next.checked_sub(1).and_then(|at| stretch.get(at)) {
            if slot.end() > pos {
                return Ok(slot.start);
            }
            room.start = slot.end();
        }
        if let Some(slot) = stretch.get(next) {
            room.end = slot.start;
        }
        Err(room)
    }

    pub(super) fn get(&self, start: u64) -> Option<&Folio> {
        let stretch = self.stretches.get(&(start / FOLIO_BYTES_MAX))?;
        Some(&stretch[find(stretch, start)?].folio)
    }

    pub(super) fn get_mut(&mut self, start: u64) -> Option<&mut Folio> {
        let stretch = self.stretches.get_mut(&(start / FOLIO_BYTES_MAX))?;
        let at = find(stretch, start)?;
        Some(&mut stretch[at].folio)
    }

    /// Adds a folio where none is.
    pub(super) fn insert(&mut self, start: u64, folio: Folio) -> &mut Folio {
        debug_assert!(start.is_multiple_of(folio.bytes) && folio.bytes <= FOLIO_BYTES_MAX);
        let stretch = self.stretches.entry(start / FOLIO_BYTES_MAX).or_default();
        let slot = Slot {
            start,
            bytes: folio.bytes as u32,
            folio: Box::new(folio),
        };
        let at = behind(stretch, start);
        stretch.insert(at, slot);
        &mut stretch[at].folio
    }

    pub(super) fn remove(&mut self, start: u64) -> Option<Box<Folio>> {
        let number = start / FOLIO_BYTES_MAX;
        let stretch = self.stretches.get_mut(&number)?;
        let Slot { folio, .. } = stretch.remove(find(stretch, start)?);
        if stretch.is_empty() {
            self.stretches.remove(&number);
        }
        Some(folio)
    }

    /// The folios that start in the range, in order.
    pub(super) fn starting_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Folio)> {
        let Range { start, end } = range;
        let last = end.div_ceil(FOLIO_BYTES_MAX).max(start / FOLIO_BYTES_MAX);
        let stretches = self.stretches.range(start / FOLIO_BYTES_MAX..last);
        stretches
            .flat_map(move |(_, stretch)| &stretch[behind(stretch, start)..])
            .take_while(move |slot| slot.start < end)
            .map(|slot| (slot.start, &*slot.folio))
    }
}
