//! Directories: which block each name goes to, and the blocks.
//!
//! Names are added in order, each to the first level whose bucket has room: as if a kernel had made
//! them one after another, so the same lookups find them. As nothing is ever removed, each block
//! is filled from its begin, and a count of used slots is all that planning keeps.

use crate::{MkfsError, Result};
use blockwright_ondisk::f2fs::dir::{DentryLayout, DentrySlots, SLOTS_PER_BLOCK, slots_of};
use blockwright_ondisk::f2fs::dir_geometry::{LEVELS_MAX, bucket, level_start};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, FileKind, Ino, hash};

/// An entry to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub name: &'a [u8],
    pub ino: Ino,
    pub kind: FileKind,
}

/// A directory's shape.
#[derive(Clone, Debug)]
pub(crate) struct DirShape {
    /// Levels of hash tables.
    pub depth: u32,
    /// File blocks that hold names, in order.
    pub blocks: Vec<u64>,
}

/// Slots that `.` and `..` take.
const DOTS: usize = 2;

/// Whether entries fit inline.
pub(crate) fn fits_inline<'a>(
    names: impl Iterator<Item = &'a [u8]>,
    layout: &DentryLayout,
) -> bool {
    DOTS + names.map(|n| slots_of(n.len())).sum::<usize>() <= layout.slots
}

/// Where each name goes.
struct Placement {
    /// Slots in use of each block, level by level.
    used: Vec<Vec<u8>>,
}

impl Placement {
    fn new() -> Self {
        // The first block of the first level has `.` and `..`.
        Placement {
            used: vec![vec![DOTS as u8, 0]],
        }
    }

    /// File block and slot for a name; `None` when all levels are full.
    fn place(&mut self, hash: u32, slots: usize) -> Option<(u64, usize)> {
        for level in 0..LEVELS_MAX {
            let start = level_start(level, 0);
            let (first, blocks) = bucket(level, 0, hash);
            if self.used.len() <= level as usize {
                let all = level_start(level + 1, 0) - start;
                self.used.push(vec![0; usize::try_from(all).ok()?]);
            }
            let table = self.used.get_mut(level as usize)?;
            for block in first..first + blocks {
                let used = table.get_mut((block - start) as usize)?;
                let slot = usize::from(*used);
                if slot + slots <= SLOTS_PER_BLOCK {
                    *used = (slot + slots) as u8;
                    return Some((block, slot));
                }
            }
        }
        None
    }

    fn shape(&self) -> DirShape {
        let mut blocks = Vec::new();
        for (level, table) in self.used.iter().enumerate() {
            let start = level_start(level as u32, 0);
            let used = table.iter().enumerate().filter(|(_, n)| **n > 0);
            blocks.extend(used.map(|(at, _)| start + at as u64));
        }
        DirShape {
            depth: self.used.len() as u32,
            blocks,
        }
    }
}

fn full() -> MkfsError {
    MkfsError::Tree {
        name: "a directory".into(),
        reason: "it has more names than its hash tables hold".into(),
    }
}

/// The shape of a directory with these names.
pub(crate) fn shape<'a>(names: impl Iterator<Item = &'a [u8]>) -> Result<DirShape> {
    let mut placement = Placement::new();
    for name in names {
        let hash = hash::name_hash(name);
        placement
            .place(hash, slots_of(name.len()))
            .ok_or_else(full)?;
    }
    Ok(placement.shape())
}

fn insert(slots: &mut DentrySlots<'_>, at: usize, entry: &Entry<'_>) -> Result<()> {
    let hash = hash::name_hash(entry.name);
    slots
        .insert(at, entry.name, hash, entry.ino, entry.kind)
        .ok_or_else(full)
}

fn dots(ino: Ino, parent: Ino) -> [Entry<'static>; DOTS] {
    [(&b"."[..], ino), (b"..", parent)].map(|(name, ino)| Entry {
        name,
        ino,
        kind: FileKind::Directory,
    })
}

/// The blocks of a directory, in the order of its shape's.
pub(crate) fn build(
    ino: Ino,
    parent: Ino,
    entries: &[Entry<'_>],
    shape: &DirShape,
) -> Result<Vec<Vec<u8>>> {
    let mut out = vec![vec![0u8; BLOCK_SIZE]; shape.blocks.len()];
    let mut put = |block: u64, slot: usize, entry: &Entry<'_>| {
        let index = shape.blocks.binary_search(&block).map_err(|_| full())?;
        let mut slots = DentrySlots::new(&mut out[index], DentryLayout::BLOCK)
            .map_err(|e| MkfsError::features(e.to_string()))?;
        insert(&mut slots, slot, entry)
    };
    for (slot, entry) in dots(ino, parent).iter().enumerate() {
        put(0, slot, entry)?;
    }
    let mut placement = Placement::new();
    for entry in entries {
        let hash = hash::name_hash(entry.name);
        let slots = slots_of(entry.name.len());
        let (block, slot) = placement.place(hash, slots).ok_or_else(full)?;
        put(block, slot, entry)?;
    }
    Ok(out)
}

/// Puts entries inline.
pub(crate) fn build_inline(
    bytes: &mut [u8],
    layout: DentryLayout,
    ino: Ino,
    parent: Ino,
    entries: &[Entry<'_>],
) -> Result<()> {
    let mut slots =
        DentrySlots::new(bytes, layout).map_err(|e| MkfsError::features(e.to_string()))?;
    let mut at = 0;
    for entry in dots(ino, parent).iter().chain(entries) {
        insert(&mut slots, at, entry)?;
        at += slots_of(entry.name.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::f2fs::dir::{DentryView, NameBytes};
    use blockwright_ondisk::f2fs::dir_geometry::locate;

    #[test]
    fn every_name_is_where_its_hash_says() {
        let names: Vec<String> = (0..20_000)
            .map(|n| format!("{}{n}", "n".repeat(n % 200)))
            .collect();
        let entries: Vec<Entry<'_>> = names
            .iter()
            .enumerate()
            .map(|(n, name)| Entry {
                name: name.as_bytes(),
                ino: Ino(10 + n as u32),
                kind: FileKind::Regular,
            })
            .collect();
        let shape = shape(entries.iter().map(|e| e.name)).unwrap();
        assert!(shape.depth > 6);
        let blocks = build(Ino(4), Ino(3), &entries, &shape).unwrap();
        let mut found = 0;
        for (at, block) in shape.blocks.iter().zip(&blocks) {
            let view =
                DentryView::parse(block, DentryLayout::BLOCK, NameBytes::Plain, 1 << 20).unwrap();
            let (level, index, _) = locate(*at, 0).unwrap();
            for e in view.iter().filter(|e| e.hash != 0) {
                let (first, blocks) = bucket(level, 0, e.hash);
                assert!((first..first + blocks).contains(at), "{index}");
                assert_eq!(names[e.ino.0 as usize - 10].as_bytes(), e.name);
                found += 1;
            }
        }
        assert_eq!(found, names.len());
    }

    #[test]
    fn inline_until_it_is_full() {
        let layout = DentryLayout::inline(3488);
        let names = vec![&b"12345678"[..]; layout.slots - 2];
        assert!(fits_inline(names.iter().copied(), &layout));
        let more = names.iter().copied().chain([&b"x"[..]]);
        assert!(!fits_inline(more, &layout));
    }
}
