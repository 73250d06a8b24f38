//! The state of every segment, in memory for segments in use only.
//!
//! The table on the device has a block for 55 segments, of which a new volume of 16 TiB has 150 000, nearly
//! all zeroes: nothing in them was ever written. Blocks are read many at a time, with several requests in
//! flight, and one of zeroes is not stored; its segments look like [`Segment::FREE`] until one is changed.
//! So memory, and the work of a mount beyond reading, follow what was written.
//!
//! Tables of more than [`LOOSE_MAX`] segments are kept *packed*, except blocks in which something changed since the last
//! checkpoint: 16 bytes for a segment, and 64 for the map of one that is neither full nor empty.
//!
//! Not responsible for: handing out blocks, writing the table (the parent).
//!
//! # References
//! kernel documentation, "Flash-Friendly File System (F2FS)": Segment Information Table.

use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, Op, Request, SharedDevice};
use blockwright_ondisk::f2fs::checkpoint::VersionBitmap;
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::sit::{self, ENTRIES_PER_BLOCK, SitEntry, ValidMap};
use blockwright_ondisk::f2fs::summary::SitJournal;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Geometry, Log, SegNo};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, channel};

const OP: &str = "read segment table";
/// Blocks of the table that one request reads.
const BLOCKS_PER_READ: u32 = 256;
/// Requests in flight.
const READS_MAX: usize = 8;
/// Segments of a table that is never packed: 128 GiB, of which all take 10 MB. Fewer in debug builds, so that tests meet
/// packed ones.
const LOOSE_MAX: u32 = if cfg!(debug_assertions) { 16 } else { 1 << 16 };

/// A segment's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    /// The log that fills or filled it.
    pub(crate) log: Log,
    /// The blocks that the next checkpoint will call valid.
    pub(crate) now: ValidMap,
    /// What the last one did.
    pub(crate) then: ValidMap,
    /// When it was last written, in seconds of the volume's mounted time.
    pub(crate) mtime: u64,
}

impl Segment {
    /// One that was never written.
    pub(crate) const FREE: Segment = Segment {
        log: Log::HotData,
        now: ValidMap([0; sit::MAP_BYTES]),
        then: ValidMap([0; sit::MAP_BYTES]),
        mtime: 0,
    };

    fn of(entry: &SitEntry) -> Self {
        Segment {
            log: entry.log,
            now: entry.valid,
            then: entry.valid,
            mtime: entry.mtime,
        }
    }
}

/// A packed segment: what the next checkpoint will call valid is what the last one did.
#[derive(Clone, Copy)]
struct PackedHead {
    mtime: u64,
    log: Log,
    map: PackedMap,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PackedMap {
    Empty,
    Full,
    /// One of the block's maps.
    Kept(u8),
}

/// The segments of a block of the table, packed.
struct Packed {
    heads: Box<[PackedHead]>,
    maps: Box<[ValidMap]>,
}

const EMPTY: ValidMap = ValidMap([0; sit::MAP_BYTES]);
const FULL: ValidMap = ValidMap([0xFF; sit::MAP_BYTES]);

impl Packed {
    /// Packs segments; `None` when one has changed since the last checkpoint.
    fn new(segments: &[Segment]) -> Option<Self> {
        if segments.iter().any(|s| s.now != s.then) {
            return None;
        }
        let mut maps = Vec::new();
        let head = |s: &Segment| PackedHead {
            mtime: s.mtime,
            log: s.log,
            map: match s.now {
                EMPTY => PackedMap::Empty,
                FULL => PackedMap::Full,
                map => {
                    maps.push(map);
                    PackedMap::Kept((maps.len() - 1) as u8)
                }
            },
        };
        let heads = segments.iter().map(head).collect();
        Some(Packed {
            heads,
            maps: maps.into(),
        })
    }

    fn get(&self, at: usize) -> Option<Segment> {
        let head = self.heads.get(at)?;
        let map = match head.map {
            PackedMap::Empty => EMPTY,
            PackedMap::Full => FULL,
            PackedMap::Kept(n) => *self.maps.get(usize::from(n))?,
        };
        Some(Segment {
            log: head.log,
            now: map,
            then: map,
            mtime: head.mtime,
        })
    }
}

/// Segments of a block of the table that are kept one by one. With more, all are.
const FEW_MAX: usize = 6;

/// Segments of one block of the table.
enum Chunk {
    /// Nothing of it was ever in use.
    Free,
    /// Nothing but these, by their places in the block: all segments of a block take 8 KiB.
    Few(Vec<(u8, Segment)>),
    Packed(Packed),
    Open(Box<[Segment]>),
}

impl Chunk {
    /// One of its segments, to be changed.
    fn segment(&mut self, at: usize) -> &mut Segment {
        let of = |few: &[(u8, Segment)]| few.iter().position(|(n, _)| usize::from(*n) == at);
        let place = match self {
            Chunk::Free => {
                *self = Chunk::Few(vec![(at as u8, Segment::FREE)]);
                Some(0)
            }
            Chunk::Few(few) => of(few).or_else(|| {
                let fits = few.len() < FEW_MAX;
                fits.then(|| few.push((at as u8, Segment::FREE)));
                fits.then(|| few.len() - 1)
            }),
            Chunk::Packed(_) | Chunk::Open(_) => None,
        };
        match (self, place) {
            (Chunk::Few(few), Some(n)) => &mut few[n].1,
            (chunk, _) => &mut chunk.open()[at],
        }
    }

    /// Its segments, to be changed.
    fn open(&mut self) -> &mut [Segment] {
        let segments: Box<[Segment]> = match self {
            Chunk::Open(segments) => return segments,
            Chunk::Free => vec![Segment::FREE; ENTRIES_PER_BLOCK].into(),
            Chunk::Few(few) => {
                let mut segments = vec![Segment::FREE; ENTRIES_PER_BLOCK];
                for (at, segment) in few {
                    segments[usize::from(*at)] = segment.clone();
                }
                segments.into()
            }
            Chunk::Packed(packed) => (0..ENTRIES_PER_BLOCK)
                .map(|n| packed.get(n).unwrap_or(Segment::FREE))
                .collect(),
        };
        *self = Chunk::Open(segments);
        self.open()
    }
}

/// See the module's head.
pub(crate) struct SegTable {
    chunks: Vec<Chunk>,
    len: u32,
    /// Whether blocks are packed.
    packs: bool,
}

impl SegTable {
    /// All segments free.
    pub(crate) fn empty(segments: u32) -> Self {
        let blocks = (segments as usize).div_ceil(ENTRIES_PER_BLOCK);
        let mut chunks = Vec::new();
        chunks.resize_with(blocks, || Chunk::Free);
        SegTable {
            chunks,
            len: segments,
            packs: segments > LOOSE_MAX,
        }
    }

    /// A segment. A number past the last one is that of a free one.
    pub(crate) fn get(&self, seg: SegNo) -> Segment {
        let at = seg.0 as usize % ENTRIES_PER_BLOCK;
        let found = match self.chunks.get(seg.0 as usize / ENTRIES_PER_BLOCK) {
            None | Some(Chunk::Free) => None,
            Some(Chunk::Few(few)) => {
                let known = few.iter().find(|(n, _)| usize::from(*n) == at);
                known.map(|(_, segment)| segment.clone())
            }
            Some(Chunk::Packed(packed)) => packed.get(at),
            Some(Chunk::Open(segments)) => segments.get(at).cloned(),
        };
        found.unwrap_or(Segment::FREE)
    }

    /// A segment to be changed, which must be one of the table's.
    pub(crate) fn get_mut(&mut self, seg: SegNo) -> &mut Segment {
        let chunk = &mut self.chunks[seg.0 as usize / ENTRIES_PER_BLOCK];
        chunk.segment(seg.0 as usize % ENTRIES_PER_BLOCK)
    }

    /// Packs the block of a segment, where that is done and nothing in it has changed since the last checkpoint.
    pub(crate) fn pack(&mut self, seg: SegNo) {
        if self.packs
            && let Some(chunk) = self.chunks.get_mut(seg.0 as usize / ENTRIES_PER_BLOCK)
            && let Chunk::Open(segments) = chunk
            && let Some(packed) = Packed::new(segments)
        {
            *chunk = Chunk::Packed(packed);
        }
    }

    /// The segments that are or were in use, in ascending order; of the others nothing is stored, and all are
    /// [`Segment::FREE`].
    pub(crate) fn stored(&self) -> impl Iterator<Item = (SegNo, Segment)> {
        let known = |(n, chunk): (usize, &'_ Chunk)| (!matches!(chunk, Chunk::Free)).then_some(n);
        let blocks = self.chunks.iter().enumerate().filter_map(known);
        blocks.flat_map(|n| {
            let first = (n * ENTRIES_PER_BLOCK) as u32;
            let end = (first + ENTRIES_PER_BLOCK as u32).min(self.len);
            (first..end).map(|s| (SegNo(s), self.get(SegNo(s))))
        })
    }

    /// Reads the table: the blocks that the checkpoint calls valid, and the journal on top.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn read(
        device: &SharedDevice,
        geo: &Geometry,
        valid: &VersionBitmap,
        journal: &SitJournal,
    ) -> Result<Self> {
        let mut table = SegTable::empty(geo.main_segments);
        let mut flying: VecDeque<(u32, u32, Receiver<Result<AlignedBuf>>)> = VecDeque::new();
        let mut runs = runs(geo.sit_blocks_used(), valid);
        let mut next = runs.next();
        loop {
            while let (Some((first, count, copy)), true) = (next, flying.len() < READS_MAX) {
                flying.push_back((first, count, start_read(device, geo, (first, count), copy)?));
                next = runs.next();
            }
            let Some((first, _, answer)) = flying.pop_front() else {
                break;
            };
            let lost = |_| Error::corrupt(OP, "the device lost a request");
            let bytes = answer.recv().map_err(lost)??;
            for (block, n) in bytes.chunks_exact(BLOCK_SIZE).zip(first..) {
                table.take_block(n, block)?;
            }
        }
        for (seg, entry) in &journal.0 {
            if seg.0 < table.len {
                *table.get_mut(*seg) = Segment::of(entry);
                table.pack(*seg);
            }
        }
        Ok(table)
    }

    fn take_block(&mut self, index: u32, block: &[u8]) -> Result<()> {
        let bad = |e: blockwright_ondisk::f2fs::FormatError| Error::corrupt(OP, e.to_string());
        // Compares eight bytes at a time: most of a large volume's blocks end here.
        if block.chunks_exact(8).all(|word| word == [0; 8]) {
            return Ok(());
        }
        let first = index * ENTRIES_PER_BLOCK as u32;
        if let Some(chunk) = self.chunks.get_mut(index as usize) {
            chunk.open();
        }
        for position in 0..ENTRIES_PER_BLOCK {
            let seg = SegNo(first + position as u32);
            if seg.0 >= self.len {
                break;
            }
            let raw = sit::entry_at(block, position).map_err(bad)?;
            *self.get_mut(seg) = Segment::of(&SitEntry::parse(raw, seg).map_err(bad)?);
        }
        self.pack(SegNo(first));
        Ok(())
    }
}

/// Blocks that lie side by side: first, number, and which copy.
fn runs(blocks: u32, valid: &VersionBitmap) -> impl Iterator<Item = (u32, u32, Copy2)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= blocks {
            return None;
        }
        let (first, copy) = (at, valid.get(at));
        let max = (blocks - first).min(BLOCKS_PER_READ);
        let count = (1..max).find(|n| valid.get(first + n) != copy);
        let count = count.unwrap_or(max);
        at = first + count;
        Some((first, count, copy))
    })
}

fn start_read(
    device: &SharedDevice,
    geo: &Geometry,
    (first, count): (u32, u32),
    copy: Copy2,
) -> Result<Receiver<Result<AlignedBuf>>> {
    let short = || Error::corrupt(OP, "the SIT is too short");
    let at = geo.sit_block(first, copy).ok_or_else(short)?;
    geo.sit_block(first + count - 1, copy).ok_or_else(short)?;
    let (send, receive) = channel();
    let buf = AlignedBuf::for_overwrite(count as usize * BLOCK_SIZE);
    device.submit(Request::new(
        Op::Read(buf),
        DevOffset(u64::from(at.0) << 12),
        move |done| {
            let result = match (done.result, done.read) {
                (Ok(()), Some(buf)) => Ok(buf),
                (Ok(()), None) => Err(Error::corrupt(OP, "the device gave nothing")),
                (Err(e), _) => Err(Error::io(OP, e)),
            };
            // When an earlier read failed, no thread waits any more.
            let _ = send.send(result);
        },
    ));
    Ok(receive)
}

/// A set of segments: a bit each, and a bit for each 64 of those. 16 TiB take one MiB.
pub(crate) struct SegSet {
    bits: Vec<u64>,
    /// Whether any of a word's bits is set.
    some: Vec<u64>,
    len: usize,
}

impl SegSet {
    /// All segments below a number.
    pub(crate) fn full(segments: u32) -> Self {
        let ones = |n: usize| {
            let mut words = vec![u64::MAX; n.div_ceil(64)];
            if let (Some(last), rest @ 1..) = (words.last_mut(), n % 64) {
                *last = (1 << rest) - 1;
            }
            words
        };
        let bits = ones(segments as usize);
        SegSet {
            some: ones(bits.len()),
            bits,
            len: segments as usize,
        }
    }

    /// None of them.
    pub(crate) fn empty(segments: u32) -> Self {
        let words = (segments as usize).div_ceil(64);
        SegSet {
            some: vec![0; words.div_ceil(64)],
            bits: vec![0; words],
            len: 0,
        }
    }

    /// Those at or behind a number, in ascending order.
    pub(crate) fn iter_from(&self, seg: SegNo) -> impl Iterator<Item = SegNo> {
        let first = self.next_from(seg);
        std::iter::successors(first, |s| self.next_from(SegNo(s.0 + 1)))
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether a segment is one of them.
    pub(crate) fn contains(&self, seg: SegNo) -> bool {
        let word = self.bits.get(seg.0 as usize / 64).copied().unwrap_or(0);
        word >> (seg.0 % 64) & 1 != 0
    }

    /// Adds a segment; nothing past the last.
    pub(crate) fn insert(&mut self, seg: SegNo) {
        let at = seg.0 as usize / 64;
        let Some(word) = self.bits.get_mut(at) else {
            return;
        };
        let bit = 1 << (seg.0 % 64);
        self.len += usize::from(*word & bit == 0);
        *word |= bit;
        self.some[at / 64] |= 1 << (at % 64);
    }

    /// Takes a segment out.
    pub(crate) fn remove(&mut self, seg: SegNo) {
        let at = seg.0 as usize / 64;
        let Some(word) = self.bits.get_mut(at) else {
            return;
        };
        let bit = 1 << (seg.0 % 64);
        self.len -= usize::from(*word & bit != 0);
        *word &= !bit;
        if *word == 0 {
            self.some[at / 64] &= !(1 << (at % 64));
        }
    }

    /// The first one at or behind a number.
    pub(crate) fn next_from(&self, seg: SegNo) -> Option<SegNo> {
        let at = seg.0 as usize / 64;
        let rest = self.bits.get(at)? & (u64::MAX << (seg.0 % 64));
        if rest != 0 {
            return Some(SegNo((at * 64) as u32 + rest.trailing_zeros()));
        }
        let behind = at + 1;
        let mut group = behind / 64;
        let mut some = self.some.get(group)? & (u64::MAX << (behind % 64));
        while some == 0 {
            group += 1;
            some = *self.some.get(group)?;
        }
        let word = group * 64 + some.trailing_zeros() as usize;
        let bit = self.bits.get(word)?.trailing_zeros();
        Some(SegNo((word * 64) as u32 + bit))
    }

    /// The first of all.
    pub(crate) fn first(&self) -> Option<SegNo> {
        self.next_from(SegNo(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sets_answer_as_a_tree_does() {
        for size in [1u32, 63, 64, 65, 4095, 4096, 4097, 10_000] {
            let mut set = SegSet::full(size);
            let mut tree: BTreeSet<SegNo> = (0..size).map(SegNo).collect();
            let mut x = 12345u64;
            for _ in 0..20_000 {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
                let seg = SegNo((x >> 33) as u32 % size);
                if x >> 62 == 0 {
                    set.insert(seg);
                    tree.insert(seg);
                } else {
                    set.remove(seg);
                    tree.remove(&seg);
                }
                let ask = SegNo((x >> 13) as u32 % size);
                assert_eq!(set.contains(ask), tree.contains(&ask));
                assert_eq!(set.len(), tree.len());
                assert_eq!(set.next_from(ask), tree.range(ask..).next().copied());
                assert_eq!(set.first(), tree.first().copied());
            }
            assert_eq!(set.next_from(SegNo(size)), None);
        }
    }

    #[test]
    fn untouched_segments_take_no_memory() {
        let mut table = SegTable::empty(8 << 20);
        assert_eq!(table.len, 8 << 20);
        assert_eq!(table.stored().count(), 0);
        assert_eq!(table.get(SegNo(7)), Segment::FREE);
        table.get_mut(SegNo(60)).mtime = 5;
        assert_eq!(table.stored().count(), ENTRIES_PER_BLOCK);
        let known: Vec<u32> = table.stored().map(|(s, _)| s.0).collect();
        assert_eq!((known[0], known[54]), (55, 109));
        assert_eq!(table.get(SegNo(60)).mtime, 5);
        // One segment takes no block of them; many do.
        let few = |t: &SegTable| matches!(t.chunks[1], Chunk::Few(_));
        assert!(few(&table));
        for seg in 70..90 {
            table.get_mut(SegNo(seg)).mtime = u64::from(seg);
        }
        assert!(!few(&table));
        assert_eq!(table.get(SegNo(60)).mtime, 5);
        assert_eq!(table.get(SegNo(70)).mtime, 70);
        // The last block describes fewer segments.
        let mut table = SegTable::empty(56);
        table.get_mut(SegNo(55)).mtime = 1;
        assert_eq!(table.stored().count(), 1);
    }

    #[test]
    fn packed_segments_are_what_they_were() {
        let len = LOOSE_MAX + 500;
        let mut table = SegTable::empty(len);
        let mut plain = std::collections::BTreeMap::new();
        let mut x = 99u64;
        for _ in 0..60_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
            let seg = SegNo(len - 1 - (x >> 33) as u32 % 400);
            let known = plain.entry(seg).or_insert(Segment::FREE);
            assert_eq!(table.get(seg), *known);
            let change = |s: &mut Segment| match x >> 60 {
                0 => s.now = FULL,
                1 => s.now = EMPTY,
                2 => s.log = Log::ALL[(x >> 20) as usize % 6],
                3..8 => s.now.set((x >> 10) as u16 % 512, x & 1 << 50 != 0),
                8..14 => s.then = s.now,
                _ => s.mtime = x,
            };
            change(known);
            change(table.get_mut(seg));
            if x >> 59 & 1 == 0 {
                table.pack(seg);
            }
        }
        let packed = |c: &&Chunk| matches!(c, Chunk::Packed(_));
        for (seg, known) in &mut plain {
            assert_eq!(table.get(*seg), *known);
            known.then = known.now;
            table.get_mut(*seg).then = known.now;
        }
        (0..len).for_each(|seg| table.pack(SegNo(seg)));
        assert!(table.chunks.iter().filter(packed).count() > 7);
        let stored: Vec<_> = table
            .stored()
            .filter(|(_, s)| *s != Segment::FREE)
            .collect();
        plain.retain(|_, s| *s != Segment::FREE);
        assert_eq!(stored, plain.into_iter().collect::<Vec<_>>());
        assert!(size_of::<PackedHead>() <= 16);
        // A small table stays as it is.
        let mut table = SegTable::empty(LOOSE_MAX);
        table.get_mut(SegNo(1)).mtime = 1;
        table.pack(SegNo(1));
        assert_eq!(table.chunks.iter().filter(packed).count(), 0);
    }

    #[test]
    fn runs_end_where_the_other_copy_begins() {
        let mut valid = VersionBitmap::new(100);
        for n in 10..20 {
            valid.set(n, Copy2::Second);
        }
        let all: Vec<_> = runs(600, &valid).collect();
        assert_eq!(
            all,
            [
                (0, 10, Copy2::First),
                (10, 10, Copy2::Second),
                (20, 256, Copy2::First),
                (276, 256, Copy2::First),
                (532, 68, Copy2::First),
            ]
        );
    }
}
