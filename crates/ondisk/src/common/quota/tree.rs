//! Finding and changing entries of a quota file, wherever its blocks are kept.
//!
//! Not responsible for: reading, writing and locking blocks ([`Blocks`] does), transactions, choosing the owner to charge.
//!
//! # Invariants
//! * Nothing is found by way of a block twice: a tree that contains itself is refused.
//! * The tree never names a block that is not ready: changes go from the leaves up.
//! * No block is used that is behind the file's number of blocks: the file would give it out again.
//! * An entry is never all zeroes, which would make it a free one.

use std::collections::{BTreeMap, HashSet};

use zerocopy::{FromBytes, IntoBytes};

use super::layout::QuotaKind;
use super::{
    ENTRIES_PER_BLOCK, RawQuotaBlockHeader, RawQuotaEntry, TREE_DEPTH, TREE_ROOT, VERSION,
};

const HEADER_BYTES: usize = size_of::<RawQuotaBlockHeader>();
const ENTRY_BYTES: usize = size_of::<RawQuotaEntry>();
/// Offsets in the file's first block.
const HEAD_VERSION: usize = 4;
const HEAD_BGRACE: usize = 8;
const HEAD_IGRACE: usize = 12;
const HEAD_BLOCKS: usize = 20;
const HEAD_FREE_BLK: usize = 24;
const HEAD_FREE_ENTRY: usize = 28;
/// Offsets in a data block's header.
const DATA_NEXT: usize = 0;
const DATA_PREV: usize = 4;
const DATA_COUNT: usize = 8;

/// The blocks of one quota file.
pub trait Blocks {
    /// What its operations fail with.
    type Error;
    /// Shows a block of [`BLOCK_SIZE`](super::BLOCK_SIZE) bytes.
    ///
    /// # Errors
    /// A block that the file does not have; a device error.
    fn look<R>(&self, block: u32, f: impl FnOnce(&[u8]) -> R) -> Result<R, Self::Error>;
    /// Changes a block.
    ///
    /// # Errors
    /// As [`Blocks::look`].
    fn change<R>(&self, block: u32, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, Self::Error>;
    /// Gives the file the block behind its last one, `block`, with zeroes in it.
    ///
    /// # Errors
    /// No space; a device error.
    fn grow(&self, block: u32) -> Result<(), Self::Error>;
    /// The error for a file that is invalid.
    fn bad(&self, what: String) -> Self::Error;
}

/// Where an entry is: block of the file, and slot.
pub type Place = (u32, usize);

/// Places of entries that were found, by id.
pub type Places = std::collections::HashMap<u32, Place>;

/// Space and inodes in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Number of inodes.
    pub inodes: u64,
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    let mut le = [0; 4];
    le.copy_from_slice(b.get(at..at + 4).unwrap_or(&[0; 4]));
    u32::from_le_bytes(le)
}

fn put_u32(b: &mut [u8], at: usize, v: u32) {
    if let Some(to) = b.get_mut(at..at + 4) {
        to.copy_from_slice(&v.to_le_bytes());
    }
}

/// Which reference of a tree block at `depth` leads to an id.
fn tree_slot(id: u32, depth: usize) -> usize {
    (id >> (8 * (TREE_DEPTH - 1 - depth))) as usize & 0xFF
}

fn entry_at(slot: usize) -> std::ops::Range<usize> {
    let start = HEADER_BYTES + slot * ENTRY_BYTES;
    start..start + ENTRY_BYTES
}

fn read_entry(block: &[u8], slot: usize) -> RawQuotaEntry {
    let bytes = block.get(entry_at(slot)).unwrap_or(&[]);
    RawQuotaEntry::read_from_bytes(bytes).unwrap_or(super::layout::usage_entry(0, 0, 0))
}

fn is_free(entry: &RawQuotaEntry) -> bool {
    entry.as_bytes().iter().all(|b| *b == 0)
}

fn write_entry(block: &mut [u8], slot: usize, entry: &RawQuotaEntry) {
    if let Some(to) = block.get_mut(entry_at(slot)) {
        to.copy_from_slice(entry.as_bytes());
    }
}

/// Checks that a file is a quota file of this kind.
///
/// # Errors
/// What was found, in words; errors of the blocks.
pub fn check_head<B: Blocks>(b: &B, kind: QuotaKind) -> Result<Result<(), String>, B::Error> {
    let (magic, version) = b.look(0, |data| (u32_at(data, 0), u32_at(data, HEAD_VERSION)))?;
    if magic != kind.magic() || version != VERSION {
        return Ok(Err(format!("has magic {magic:#x} and version {version}")));
    }
    Ok(Ok(()))
}

/// Refuses a block behind the file's number of blocks.
fn within<B: Blocks>(b: &B, block: u32) -> Result<u32, B::Error> {
    let blocks = b.look(0, |data| u32_at(data, HEAD_BLOCKS))?;
    if block < blocks {
        return Ok(block);
    }
    Err(b.bad(format!(
        "quota block {block} is in use, but there are {blocks}"
    )))
}

/// Finds an id's entry: `Err` holds the blocks of the tree that exist on the way.
///
/// # Errors
/// Damage; errors of the blocks.
pub fn find<B: Blocks>(
    b: &B,
    id: u32,
    places: &mut Places,
) -> Result<Result<Place, Vec<u32>>, B::Error> {
    if let Some(place) = places.get(&id) {
        return Ok(Ok(*place));
    }
    let mut path = vec![TREE_ROOT];
    let mut block = TREE_ROOT;
    for depth in 0..TREE_DEPTH {
        block = b.look(block, |data| u32_at(data, tree_slot(id, depth) * 4))?;
        if block == 0 {
            return Ok(Err(path));
        }
        if path.contains(&block) {
            return Err(b.bad(format!("quota block {block} contains itself")));
        }
        path.push(within(b, block)?);
    }
    let slot = b.look(block, |data| {
        (0..ENTRIES_PER_BLOCK).find(|slot| {
            let entry = read_entry(data, *slot);
            entry.id.get() == id && !is_free(&entry)
        })
    })?;
    match slot {
        Some(slot) => {
            places.insert(id, (block, slot));
            Ok(Ok((block, slot)))
        }
        None => Err(b.bad(format!("quota block {block} has no entry for {id}"))),
    }
}

/// All entries, by id.
///
/// # Errors
/// Damage; errors of the blocks.
pub fn entries<B: Blocks>(b: &B) -> Result<BTreeMap<u32, RawQuotaEntry>, B::Error> {
    readable_entries(b, Err)
}

/// The entries that can be read, by id: of a block that cannot be read `tolerate` says whether that is the end.
///
/// # Errors
/// Those of `tolerate`.
pub fn readable_entries<B: Blocks>(
    b: &B,
    mut tolerate: impl FnMut(B::Error) -> Result<(), B::Error>,
) -> Result<BTreeMap<u32, RawQuotaEntry>, B::Error> {
    let mut seen = HashSet::from([0, TREE_ROOT]);
    let mut level = vec![TREE_ROOT];
    for _ in 0..TREE_DEPTH {
        let mut below = Vec::new();
        for block in level {
            let read = b.look(block, |data| {
                let children = data.chunks_exact(4).map(|c| u32_at(c, 0));
                // Several ids share a data block; it is read once.
                below.extend(children.filter(|child| seen.insert(*child)));
            });
            read.or_else(&mut tolerate)?;
        }
        level = below;
    }
    let mut out = BTreeMap::new();
    for block in level {
        let read = b.look(block, |data| {
            let all = (0..ENTRIES_PER_BLOCK).map(|slot| read_entry(data, slot));
            out.extend(all.filter(|e| !is_free(e)).map(|e| (e.id.get(), e)));
        });
        read.or_else(&mut tolerate)?;
    }
    Ok(out)
}

/// Whether an id may use this much more; `now` is in seconds since the epoch. The super-user is accounted,
/// not limited; so is what belongs to no project.
///
/// # Errors
/// Damage; errors of the blocks.
pub fn allows<B: Blocks>(
    b: &B,
    id: u32,
    more: Usage,
    now: u64,
    places: &mut Places,
) -> Result<bool, B::Error> {
    if id == 0 || more == Usage::default() {
        return Ok(true);
    }
    let Ok((block, slot)) = find(b, id, places)? else {
        return Ok(true);
    };
    let e = b.look(block, |data| read_entry(data, slot))?;
    let over = |used: u64, more: u64, hard: u64, soft: u64, until: u64| {
        let total = used.saturating_add(more);
        more > 0
            && ((hard > 0 && total > hard)
                || (soft > 0 && total > soft && until > 0 && now > until))
    };
    let kib = |v: u64| v.saturating_mul(1024);
    let (hard, soft) = (kib(e.bhardlimit.get()), kib(e.bsoftlimit.get()));
    let space = over(e.curspace.get(), more.bytes, hard, soft, e.btime.get());
    let (hard, soft) = (e.ihardlimit.get(), e.isoftlimit.get());
    let inodes = over(e.curinodes.get(), more.inodes, hard, soft, e.itime.get());
    Ok(!space && !inodes)
}

/// Adds to what an id uses; makes its entry when there is none. Grace periods begin and end here.
///
/// # Errors
/// Damage; errors of the blocks, `grow`'s only for an id that has no entry.
pub fn add<B: Blocks>(
    b: &B,
    id: u32,
    bytes: i64,
    inodes: i64,
    now: u64,
    places: &mut Places,
) -> Result<(), B::Error> {
    let (block, slot) = ensure(b, id, places)?;
    let grace = b.look(0, |d| (u32_at(d, HEAD_BGRACE), u32_at(d, HEAD_IGRACE)))?;
    b.change(block, |data| {
        let mut e = read_entry(data, slot);
        let space = e.curspace.get().saturating_add_signed(bytes);
        let count = e.curinodes.get().saturating_add_signed(inodes);
        e.curspace.set(space);
        e.curinodes.set(count);
        let soft = e.bsoftlimit.get().saturating_mul(1024);
        e.btime.set(until(e.btime.get(), soft, space, grace.0, now));
        let soft = e.isoftlimit.get();
        e.itime.set(until(e.itime.get(), soft, count, grace.1, now));
        if is_free(&e) {
            e.itime.set(1);
        }
        write_entry(data, slot, &e);
    })
}

/// The limits of an id, as they are stored: space in KiB; 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredLimits {
    /// KiB that may be exceeded for a grace period.
    pub kib_soft: u64,
    /// KiB that are never exceeded.
    pub kib_hard: u64,
    /// Inodes that may be exceeded for a grace period.
    pub inodes_soft: u64,
    /// Inodes that are never exceeded.
    pub inodes_hard: u64,
}

/// Sets what an id may have; makes its entry when there is none. Grace periods begin anew with a limit that is exceeded
/// already.
///
/// # Errors
/// Damage; errors of the blocks.
pub fn set_limits<B: Blocks>(
    b: &B,
    id: u32,
    limits: &StoredLimits,
    now: u64,
    places: &mut Places,
) -> Result<(), B::Error> {
    let (block, slot) = ensure(b, id, places)?;
    let grace = b.look(0, |d| (u32_at(d, HEAD_BGRACE), u32_at(d, HEAD_IGRACE)))?;
    b.change(block, |data| {
        let mut e = read_entry(data, slot);
        e.bsoftlimit.set(limits.kib_soft);
        e.bhardlimit.set(limits.kib_hard);
        e.isoftlimit.set(limits.inodes_soft);
        e.ihardlimit.set(limits.inodes_hard);
        let soft = limits.kib_soft.saturating_mul(1024);
        e.btime.set(until(0, soft, e.curspace.get(), grace.0, now));
        let (soft, count) = (limits.inodes_soft, e.curinodes.get());
        e.itime.set(until(0, soft, count, grace.1, now));
        if is_free(&e) {
            e.itime.set(1);
        }
        write_entry(data, slot, &e);
    })
}

/// When a grace period ends; 0 while use is within the soft limit.
fn until(at: u64, soft: u64, used: u64, period: u32, now: u64) -> u64 {
    match (soft == 0 || used <= soft, at) {
        (true, _) => 0,
        (false, 0) => now.saturating_add(u64::from(period)),
        (false, at) => at,
    }
}

/// Sees to it that an id has an entry, so that [`add`] needs no room.
///
/// # Errors
/// Damage; errors of the blocks.
pub fn ensure<B: Blocks>(b: &B, id: u32, places: &mut Places) -> Result<Place, B::Error> {
    match find(b, id, places)? {
        Ok(place) => Ok(place),
        Err(path) => {
            let place = insert(b, id, &path)?;
            places.insert(id, place);
            Ok(place)
        }
    }
}

/// Takes a block of the file that is not in use, zeroed.
fn new_block<B: Blocks>(b: &B) -> Result<u32, B::Error> {
    let (free, blocks) = b.look(0, |d| (u32_at(d, HEAD_FREE_BLK), u32_at(d, HEAD_BLOCKS)))?;
    if free != 0 {
        within(b, free)?;
        let next = b.change(free, |data| {
            let next = u32_at(data, DATA_NEXT);
            data.fill(0);
            next
        })?;
        b.change(0, |data| put_u32(data, HEAD_FREE_BLK, next))?;
        return Ok(free);
    }
    b.grow(blocks)?;
    b.change(0, |data| put_u32(data, HEAD_BLOCKS, blocks + 1))?;
    Ok(blocks)
}

/// Makes an entry for an id. `path` holds the tree blocks that exist.
fn insert<B: Blocks>(b: &B, id: u32, path: &[u32]) -> Result<Place, B::Error> {
    let free_entry = b.look(0, |data| u32_at(data, HEAD_FREE_ENTRY))?;
    let data_block = if free_entry != 0 {
        within(b, free_entry)?
    } else {
        let block = new_block(b)?;
        b.change(0, |data| put_u32(data, HEAD_FREE_ENTRY, block))?;
        block
    };
    // From the bottom up, and the new blocks first: running out of room leaves no entry that nothing names.
    let mut fresh = Vec::new();
    for _ in path.len()..TREE_DEPTH {
        fresh.push(new_block(b)?);
    }
    let placed = b.change(data_block, |data| {
        let slot = (0..ENTRIES_PER_BLOCK).find(|slot| is_free(&read_entry(data, *slot)))?;
        let mut le = [0; 2];
        le.copy_from_slice(data.get(DATA_COUNT..DATA_COUNT + 2)?);
        let count = u16::from_le_bytes(le).saturating_add(1);
        data.get_mut(DATA_COUNT..DATA_COUNT + 2)?
            .copy_from_slice(&count.to_le_bytes());
        let mut entry = super::layout::usage_entry(id, 0, 0);
        // Keeps the entry from looking free until something is charged.
        entry.itime.set(1);
        write_entry(data, slot, &entry);
        Some((slot, usize::from(count)))
    })?;
    let Some((slot, count)) = placed else {
        return Err(b.bad(format!(
            "quota block {data_block} is listed as free and is not"
        )));
    };
    if count >= ENTRIES_PER_BLOCK {
        unlist(b, data_block)?;
    }
    let mut below = data_block;
    for (depth, block) in (path.len()..TREE_DEPTH).rev().zip(fresh) {
        b.change(block, |data| put_u32(data, tree_slot(id, depth) * 4, below))?;
        below = block;
    }
    let depth = path.len() - 1;
    b.change(path[depth], |data| {
        put_u32(data, tree_slot(id, depth) * 4, below);
    })?;
    Ok((data_block, slot))
}

/// Takes a data block that has become full off the list of those with free entries.
fn unlist<B: Blocks>(b: &B, block: u32) -> Result<(), B::Error> {
    let (next, prev) = b.change(block, |data| {
        let links = (u32_at(data, DATA_NEXT), u32_at(data, DATA_PREV));
        put_u32(data, DATA_NEXT, 0);
        put_u32(data, DATA_PREV, 0);
        links
    })?;
    if next != 0 {
        b.change(next, |data| put_u32(data, DATA_PREV, prev))?;
    }
    if prev != 0 {
        b.change(prev, |data| put_u32(data, DATA_NEXT, next))
    } else {
        b.change(0, |data| put_u32(data, HEAD_FREE_ENTRY, next))
    }
}

#[cfg(test)]
mod tests {
    use super::super::BLOCK_SIZE;
    use super::super::layout::{Grace, quota_file, usage_entry};
    use super::*;
    use std::cell::RefCell;

    struct Memory(RefCell<Vec<u8>>, usize);

    impl Blocks for Memory {
        type Error = String;
        fn look<R>(&self, block: u32, f: impl FnOnce(&[u8]) -> R) -> Result<R, String> {
            let at = block as usize * BLOCK_SIZE;
            let bytes = self.0.borrow();
            let bytes = bytes.get(at..at + BLOCK_SIZE);
            bytes.map(f).ok_or(format!("no block {block}"))
        }
        fn change<R>(&self, block: u32, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, String> {
            let at = block as usize * BLOCK_SIZE;
            let mut bytes = self.0.borrow_mut();
            let bytes = bytes.get_mut(at..at + BLOCK_SIZE);
            bytes.map(f).ok_or(format!("no block {block}"))
        }
        fn grow(&self, block: u32) -> Result<(), String> {
            let bytes = (block as usize + 1) * BLOCK_SIZE;
            if bytes > self.1 {
                return Err("full".to_owned());
            }
            self.0.borrow_mut().resize(bytes, 0);
            Ok(())
        }
        fn bad(&self, what: String) -> String {
            what
        }
    }

    fn empty(max: usize) -> Memory {
        let file = quota_file(QuotaKind::User, Grace::default(), &BTreeMap::new());
        Memory(RefCell::new(file), max)
    }

    #[test]
    fn ids_split_into_bytes() {
        let slots: Vec<_> = (0..TREE_DEPTH).map(|d| tree_slot(0x0102_03FF, d)).collect();
        assert_eq!(slots, [1, 2, 3, 255]);
    }

    #[test]
    fn entries_are_found_again() {
        let m = empty(usize::MAX);
        assert_eq!(check_head(&m, QuotaKind::User).unwrap(), Ok(()));
        assert!(check_head(&m, QuotaKind::Group).unwrap().is_err());
        let mut places = Places::new();
        let mut x = 7u64;
        let mut wanted: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for n in 0..3000u64 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let id = match x >> 62 {
                0 => (x >> 30) as u32,
                1 => (x >> 33) as u32 % 20,
                _ => (x >> 33) as u32 % 1000 + 100_000,
            };
            if n % 10 == 0 {
                places.clear();
            }
            add(&m, id, 4096, 1, 0, &mut places).unwrap();
            let e = wanted.entry(id).or_default();
            *e = (e.0 + 4096, e.1 + 1);
        }
        let found = entries(&m).unwrap();
        let found: BTreeMap<u32, (u64, u64)> = found
            .iter()
            .map(|(id, e)| (*id, (e.curspace.get(), e.curinodes.get())))
            .collect();
        assert_eq!(found, wanted);
        // Down to nothing, the entries stay.
        for (id, (bytes, inodes)) in &wanted {
            add(&m, *id, -(*bytes as i64), -(*inodes as i64), 0, &mut places).unwrap();
        }
        assert_eq!(entries(&m).unwrap().len(), wanted.len());
    }

    #[test]
    fn no_room_leaves_a_sound_file() {
        for blocks in 2..14 {
            let m = empty(blocks * BLOCK_SIZE);
            let mut places = Places::new();
            let made = [5, 70_000, 5_000_000, 0x8000_0000]
                .map(|id| (id, add(&m, id, 1024, 1, 0, &mut places).is_ok()));
            let m = Memory(m.0, usize::MAX);
            let found = entries(&m).unwrap();
            for (id, made) in made {
                assert_eq!(found.contains_key(&id), made, "{id} in {blocks} blocks");
            }
            for id in 0..40 {
                add(&m, id, 1, 1, 0, &mut Places::new()).unwrap();
            }
            assert!(entries(&m).unwrap().len() >= 40);
        }
    }

    #[test]
    fn limits() {
        let mut entry = usage_entry(9, 10 * 1024, 3);
        entry.bhardlimit.set(12);
        entry.bsoftlimit.set(11);
        entry.ihardlimit.set(4);
        let file = [(9, entry)].into();
        let file = quota_file(QuotaKind::Group, Grace::default(), &file);
        let m = Memory(RefCell::new(file), usize::MAX);
        let mut places = Places::new();
        let mut ask = |id, bytes, inodes, now| {
            let more = Usage { bytes, inodes };
            allows(&m, id, more, now, &mut places).unwrap()
        };
        assert!(ask(9, 2048, 1, 0));
        assert!(!ask(9, 2049, 0, 0));
        assert!(!ask(9, 0, 2, 0));
        assert!(ask(0, 1 << 40, 1, 0) && ask(10, 1 << 40, 1, 0));
        // Over the soft limit, for a time.
        add(&m, 9, 1536, 0, 1000, &mut Places::new()).unwrap();
        let end = 1000 + u64::from(super::super::DEFAULT_GRACE);
        assert!(ask(9, 1, 0, end));
        assert!(!ask(9, 1, 0, end + 1));
        add(&m, 9, -1536, 0, 2000, &mut Places::new()).unwrap();
        assert!(ask(9, 1, 0, end + 1));
    }

    #[test]
    fn trees_that_contain_themselves_are_refused() {
        let m = empty(usize::MAX);
        m.change(TREE_ROOT, |data| put_u32(data, 0, TREE_ROOT))
            .unwrap();
        assert!(find(&m, 1, &mut Places::new()).is_err());
        assert_eq!(entries(&m).unwrap().len(), 0);
        m.change(TREE_ROOT, |data| put_u32(data, 0, 99)).unwrap();
        assert!(find(&m, 1, &mut Places::new()).is_err());
        assert!(entries(&m).is_err());
    }

    #[test]
    fn blocks_behind_the_number_of_blocks_are_refused() {
        let m = empty(usize::MAX);
        for id in [5, 70_000, 5_000_000] {
            add(&m, id, 1024, 1, 0, &mut Places::new()).unwrap();
        }
        let blocks = m.look(0, |data| u32_at(data, HEAD_BLOCKS)).unwrap();
        let before = m.0.borrow().clone();
        for field in [HEAD_FREE_BLK, HEAD_FREE_ENTRY] {
            m.change(0, |data| put_u32(data, field, blocks)).unwrap();
            assert!(add(&m, 9_000_000, 1, 1, 0, &mut Places::new()).is_err());
            *m.0.borrow_mut() = before.clone();
        }
        for fewer in TREE_ROOT + 1..blocks {
            m.change(0, |data| put_u32(data, HEAD_BLOCKS, fewer))
                .unwrap();
            let found = [5, 70_000, 5_000_000].map(|id| find(&m, id, &mut Places::new()).is_err());
            assert!(found.contains(&true), "{fewer} of {blocks}");
        }
    }
}
