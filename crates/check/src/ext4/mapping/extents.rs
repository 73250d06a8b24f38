//! Walking extent trees.

use std::ops::Range;

use blockwright_ondisk::ext4::extent::{
    self, Extent, ExtentIndex, MAX_DEPTH, NodePlace, RawExtent, RawExtentHeader, RawExtentIndex,
};
use blockwright_ondisk::ext4::{FileBlock, FormatError, Geometry};
use zerocopy::FromBytes;

use super::{MapSink, Piece, Walk};
use crate::ext4::CheckError;
use crate::ext4::issue::IssueKind;

/// What a node's place in the tree says about it.
#[derive(Clone, Copy)]
struct Rules {
    depth: Option<u16>,
    /// First file block behind what the node may hold.
    end: u64,
    /// What its index claims it starts with.
    index: Option<u64>,
}

/// Walks the tree of an inode.
pub(super) fn walk(walk: &Walk<'_>, sink: &mut dyn MapSink) -> Result<(), CheckError> {
    let rules = Rules {
        depth: None,
        end: u64::from(u32::MAX),
        index: None,
    };
    // First file block behind all that was found so far.
    let mut done = 0;
    node(
        walk,
        sink,
        &walk.inode.block,
        NodePlace::Inode,
        rules,
        &mut done,
    )
}

fn header_problem(
    bytes: &[u8],
    place: NodePlace,
    rules: Rules,
) -> Result<&RawExtentHeader, FormatError> {
    let (header, _) =
        RawExtentHeader::ref_from_prefix(bytes).map_err(|_| FormatError::Truncated {
            structure: "extent node",
            needed: extent::ENTRY_SIZE,
            found: bytes.len(),
        })?;
    let found = header.magic.get();
    if found != extent::MAGIC {
        return Err(FormatError::ExtentMagic { place, found });
    }
    let (max, room) = (header.max.get(), extent::max_entries(bytes.len()));
    // Some writers leave out up to two entries at the end of a block.
    if max > room || max < room.saturating_sub(2) {
        return Err(FormatError::ExtentMax {
            place,
            found: max,
            room,
        });
    }
    let entries = header.entries.get();
    if entries > max {
        return Err(FormatError::ExtentEntries {
            place,
            found: entries,
            max,
        });
    }
    let depth = header.depth.get();
    if depth > MAX_DEPTH || rules.depth.is_some_and(|d| d != depth) {
        return Err(FormatError::ExtentDepth {
            place,
            found: depth,
            expected: rules.depth.unwrap_or(MAX_DEPTH),
        });
    }
    if entries == 0 && (depth > 0 || rules.depth.is_some()) {
        return Err(FormatError::ExtentEmptyNode { place });
    }
    Ok(header)
}

/// The entries of a node, if all of them are extents in the volume.
fn extents_of<'a>(bytes: &'a [u8], geo: &Geometry) -> Option<&'a [RawExtent]> {
    let (header, rest) = RawExtentHeader::ref_from_prefix(bytes).ok()?;
    let count = usize::from(header.entries.get());
    let (entries, _) = <[RawExtent]>::ref_from_prefix_with_elems(rest, count).ok()?;
    let sound = entries
        .iter()
        .map(Extent::from_raw)
        .all(|e| e.len > 0 && e.physical.0 > 0 && geo.contains_run(e.physical, u64::from(e.len)));
    sound.then_some(entries)
}

fn node(
    walk: &Walk<'_>,
    sink: &mut dyn MapSink,
    bytes: &[u8],
    place: NodePlace,
    rules: Rules,
    done: &mut u64,
) -> Result<(), CheckError> {
    let ino = walk.ino;
    let header = match header_problem(bytes, place, rules) {
        Ok(header) => header,
        Err(error) => {
            let wrong_depth = matches!(error, FormatError::ExtentDepth { .. });
            sink.problem(IssueKind::ExtentNode {
                ino,
                error: error.into(),
            });
            // e2fsck does not look at the depth below the root. What the entries are tells it, too.
            let depth = match wrong_depth {
                true => likely_depth(walk, bytes, rules)?,
                false => None,
            };
            return match depth {
                Some(depth) => entries_of(walk, sink, bytes, place, rules, depth, done),
                None => Ok(()),
            };
        }
    };
    let depth = header.depth.get();
    entries_of(walk, sink, bytes, place, rules, depth, done)
}

/// The depth of a node that says a wrong one: what its parent implies, or its own if that is less, so that no tree becomes deeper. Extents are in the volume; of the blocks
/// that an index names, all are, and one is a node of the next depth.
fn likely_depth(walk: &Walk<'_>, bytes: &[u8], rules: Rules) -> Result<Option<u16>, CheckError> {
    let (Some(expected), Ok((header, rest))) =
        (rules.depth, RawExtentHeader::ref_from_prefix(bytes))
    else {
        return Ok(None);
    };
    let (count, own) = (usize::from(header.entries.get()), header.depth.get());
    let Ok((entries, _)) = <[RawExtentIndex]>::ref_from_prefix_with_elems(rest, count) else {
        return Ok(None);
    };
    for depth in [expected, own].into_iter().filter(|d| *d <= expected) {
        let Some(below) = depth.checked_sub(1) else {
            if extents_of(bytes, walk.geo).is_some() {
                return Ok(Some(depth));
            }
            continue;
        };
        let children = entries.iter().map(|e| ExtentIndex::from_raw(e).child);
        if children
            .clone()
            .any(|child| !walk.geo.contains_run(child, 1))
        {
            continue;
        }
        for child in children {
            if first_of(&walk.store.read(child, "extent block")?, below).is_some() {
                return Ok(Some(depth));
            }
        }
    }
    Ok(None)
}

/// Walks the entries of a node of this depth.
fn entries_of(
    walk: &Walk<'_>,
    sink: &mut dyn MapSink,
    bytes: &[u8],
    place: NodePlace,
    rules: Rules,
    depth: u16,
    done: &mut u64,
) -> Result<(), CheckError> {
    let ino = walk.ino;
    let Ok((header, _)) = RawExtentHeader::ref_from_prefix(bytes) else {
        return Ok(());
    };
    let count = usize::from(header.entries.get());
    let rest = bytes.get(extent::ENTRY_SIZE..).unwrap_or(&[]);
    if depth == 0 {
        if let Ok((entries, _)) = <[RawExtent]>::ref_from_prefix_with_elems(rest, count) {
            leaf(walk, sink, entries, place, rules, done);
        }
        return Ok(());
    }
    let Ok((entries, _)) = <[RawExtentIndex]>::ref_from_prefix_with_elems(rest, count) else {
        return Ok(());
    };
    check_index_start(
        walk,
        sink,
        entries.first().map(|e| e.block.get()),
        place,
        rules,
    );
    // Where a child begins the child knows best; the index may be damaged.
    let look = |n: usize| -> Result<Option<Child>, CheckError> {
        let Some(raw) = entries.get(n) else {
            return Ok(None);
        };
        let index = ExtentIndex::from_raw(raw);
        let inside = walk.geo.contains_run(index.child, 1);
        let bytes = if inside {
            walk.store.read(index.child, "extent block")?
        } else {
            Vec::new()
        };
        let start = first_of(&bytes, depth - 1).unwrap_or(index.logical.0);
        Ok(Some(Child {
            index,
            inside,
            bytes,
            start,
        }))
    };
    let mut next = look(0)?;
    let mut n = 0;
    while let Some(child) = next.take() {
        n += 1;
        next = look(n)?;
        let index = child.index;
        let what = if !child.inside {
            Some("a block outside of the volume")
        } else if child.start < *done || child.start >= rules.end {
            Some("a place out of order")
        } else {
            None
        };
        if let Some(what) = what {
            sink.problem(IssueKind::ExtentEntry {
                ino,
                logical: index.logical,
                physical: index.child,
                len: 1,
                what,
            });
            continue;
        }
        let end = next
            .as_ref()
            .filter(|next| next.inside && next.start > child.start)
            .map_or(rules.end, |next| next.start.min(rules.end));
        let rules = Rules {
            depth: Some(depth - 1),
            end,
            index: Some(index.logical.0),
        };
        descend(walk, sink, &child, rules, done)?;
    }
    Ok(())
}

/// A node that an index points at.
struct Child {
    index: ExtentIndex,
    inside: bool,
    bytes: Vec<u8>,
    /// The first file block that it holds.
    start: u64,
}

/// The first file block of a node, if it is one of this depth.
fn first_of(bytes: &[u8], depth: u16) -> Option<u64> {
    let (header, rest) = RawExtentHeader::ref_from_prefix(bytes).ok()?;
    let is_node = header.magic.get() == extent::MAGIC
        && header.depth.get() == depth
        && header.entries.get() > 0;
    // Extents and indexes both begin with it.
    let word = rest.first_chunk::<4>().filter(|_| is_node)?;
    Some(u64::from(u32::from_le_bytes(*word)))
}

fn descend(
    walk: &Walk<'_>,
    sink: &mut dyn MapSink,
    child: &Child,
    rules: Rules,
    done: &mut u64,
) -> Result<(), CheckError> {
    let block = child.index.child;
    if !sink.tree(block) {
        return Ok(());
    }
    let bytes = &child.bytes;
    let seed = walk.geo.inode_seed(walk.ino, walk.inode.generation);
    if let Err(FormatError::ExtentChecksum { .. }) =
        extent::verify_checksum(bytes, block, walk.geo, seed)
    {
        sink.problem(IssueKind::ExtentChecksum {
            ino: walk.ino,
            block,
        });
    }
    node(walk, sink, bytes, NodePlace::Block(block), rules, done)
}

/// An index must name the first file block of the node it points at.
fn check_index_start(
    walk: &Walk<'_>,
    sink: &mut dyn MapSink,
    first: Option<u32>,
    place: NodePlace,
    rules: Rules,
) {
    if let (Some(index), Some(first), NodePlace::Block(block)) = (rules.index, first, place)
        && index != u64::from(first)
    {
        sink.problem(IssueKind::ExtentIndexStart {
            ino: walk.ino,
            logical: FileBlock(index),
            block,
            found: FileBlock(u64::from(first)),
        });
    }
}

/// The length of an extent up to the next one, in the file and on the device, if two that follow in
/// order would begin within it: then its length is the damage, and not their places.
fn length_before_others(e: &Extent, others: &[RawExtent]) -> Option<u32> {
    let [next, second, ..] = others else {
        return None;
    };
    let (next, second) = (Extent::from_raw(next), Extent::from_raw(second));
    if next.logical <= e.logical || second.logical <= next.logical || e.end() <= second.logical {
        return None;
    }
    let in_file = next.logical.0 - e.logical.0;
    let on_device = next.physical.0.checked_sub(e.physical.0);
    let len = on_device.filter(|n| *n > 0).unwrap_or(in_file).min(in_file);
    u32::try_from(len).ok()
}

fn leaf(
    walk: &Walk<'_>,
    sink: &mut dyn MapSink,
    entries: &[RawExtent],
    place: NodePlace,
    rules: Rules,
    done: &mut u64,
) {
    // What lies behind the end of the file and of the last extent has no place in another order, but a wrong place.
    let last = entries.last().map_or(0, |e| Extent::from_raw(e).end().0);
    let blocks = walk.inode.size.div_ceil(u64::from(walk.geo.block_size));
    let range = *done..rules.end.min(last.max(blocks));
    let sorted = in_another_order(entries, walk.geo, range);
    // The index names the lowest place, wherever in the node it is.
    let first = match &sorted {
        Some(_) => entries.iter().map(|e| e.block.get()).min(),
        None => entries.first().map(|e| e.block.get()),
    };
    check_index_start(walk, sink, first, place, rules);
    if let Some(sorted) = sorted {
        for pair in entries.windows(2) {
            let [e, next] = [Extent::from_raw(&pair[0]), Extent::from_raw(&pair[1])];
            if next.logical < e.logical {
                sink.problem(IssueKind::ExtentEntry {
                    ino: walk.ino,
                    logical: e.logical,
                    physical: e.physical,
                    len: e.len,
                    what: "a place behind the next one's",
                });
            }
        }
        sorted
            .iter()
            .for_each(|e| sound_extent(walk, sink, e, done));
        return;
    }
    for (n, raw) in entries.iter().enumerate() {
        let mut e = Extent::from_raw(raw);
        if let Some(len) = length_before_others(&e, &entries[n + 1..]) {
            sink.problem(IssueKind::ExtentEntry {
                ino: walk.ino,
                logical: e.logical,
                physical: e.physical,
                len: e.len,
                what: "a length that covers the next ones",
            });
            e.len = len;
        }
        // Of two extents out of order, the later one is right if it lies where it may.
        let next = entries.get(n + 1).map(Extent::from_raw).filter(|next| {
            next.len > 0 && walk.geo.contains_run(next.physical, u64::from(next.len))
        });
        let behind_next = next.is_some_and(|n| (*done..e.logical.0).contains(&n.logical.0));
        let what = if e.len == 0 {
            Some("no length")
        } else if e.logical.0 < *done {
            Some("a place out of order")
        } else if e.end().0 > rules.end {
            Some("an end past its node")
        } else if behind_next {
            Some("a place behind the next one's")
        } else if e.physical < walk.geo.first_data_block
            || e.physical.0 == 0
            || e.physical.0 >= walk.geo.blocks_count
        {
            Some("a first block outside of the volume")
        } else if e.physical.0 + u64::from(e.len) > walk.geo.blocks_count {
            Some("a last block outside of the volume")
        } else {
            None
        };
        if let Some(what) = what {
            sink.problem(IssueKind::ExtentEntry {
                ino: walk.ino,
                logical: e.logical,
                physical: e.physical,
                len: e.len,
                what,
            });
            continue;
        }
        sound_extent(walk, sink, &e, done);
    }
}

/// Extents of which each is sound, and only their order is wrong: in the right one, no two overlap, and all lie where they may.
fn in_another_order(
    entries: &[RawExtent],
    geo: &Geometry,
    range: Range<u64>,
) -> Option<Vec<Extent>> {
    if entries.is_sorted_by_key(|e| e.block.get()) {
        return None;
    }
    let mut all: Vec<Extent> = entries.iter().map(Extent::from_raw).collect();
    all.sort_by_key(|e| e.logical);
    let sound = all.iter().all(|e| {
        let whole = e.len > 0 && e.physical.0 > 0 && geo.contains_run(e.physical, u64::from(e.len));
        whole && e.logical.0 >= range.start && e.end().0 <= range.end
    });
    let apart = all.windows(2).all(|pair| pair[0].end() <= pair[1].logical);
    (sound && apart).then_some(all)
}

/// Passes an extent on that is where it may be.
fn sound_extent(walk: &Walk<'_>, sink: &mut dyn MapSink, e: &Extent, done: &mut u64) {
    let ratio = u64::from(walk.geo.cluster_ratio);
    if ratio > 1 && e.physical.0 % ratio != e.logical.0 % ratio {
        sink.problem(IssueKind::ClusterMisaligned {
            ino: walk.ino,
            logical: e.logical,
        });
    }
    *done = e.end().0;
    sink.piece(Piece {
        logical: e.logical.0,
        physical: e.physical,
        len: e.len,
        unwritten: e.unwritten,
    });
}
