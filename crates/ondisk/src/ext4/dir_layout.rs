//! A whole directory's blocks from its entries: one leaf, or leaves under a hash index.
//!
//! Entries come in hash order under an index and in the caller's order otherwise. Used where a
//! directory is written at once: by the builder of volumes, and by the checker for a damaged index.
//!
//! Not responsible for: adding to a directory that exists, allocating blocks.

use super::dir::{self, DirFormat};
use super::hash::{HashVersion, NameHash, name_hash};
use super::htree::{
    self, DxEntry, DxPlace, DxRootInfo, MAX_INDIRECT_LEVELS, MAX_INDIRECT_LEVELS_LARGE,
};
use super::{Compat, FileKind, FormatError, Geometry, Incompat, Ino, InodeSeed};

type Result<T> = std::result::Result<T, FormatError>;

/// What a directory's blocks depend on besides its entries.
#[derive(Clone, Copy)]
pub struct DirRules {
    /// The form of entries and blocks.
    pub format: DirFormat,
    /// How names are hashed, and what the root of an index says about it.
    pub hash: HashVersion,
    /// The superblock's seed of hashes.
    pub hash_seed: [u32; 4],
    /// Index levels allowed between root and leaves; `None` for no index at all.
    pub levels: Option<u8>,
    /// Bytes of a leaf under an index that are filled; the rest is room for names to come.
    pub leaf_fill: usize,
}

impl DirRules {
    /// What a volume's features say; leaves are packed full.
    #[must_use]
    pub fn new(geo: &Geometry, hash: HashVersion, hash_seed: [u32; 4]) -> Self {
        let f = &geo.features;
        let levels = if f.has_incompat(Incompat::LARGE_DIR) {
            MAX_INDIRECT_LEVELS_LARGE
        } else {
            MAX_INDIRECT_LEVELS
        };
        DirRules {
            format: DirFormat::new(geo),
            leaf_fill: DirFormat::new(geo).leaf_space(),
            hash,
            hash_seed,
            levels: f.has_compat(Compat::DIR_INDEX).then_some(levels),
        }
    }
}

/// An entry to be.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// What it names.
    pub ino: Ino,
    /// The type the entry records.
    pub kind: FileKind,
    /// The name's hash where it is not that of its bytes (folded names), or is stored with the entry
    /// (encrypted folded names).
    pub hash: Option<NameHash>,
}

/// How a directory is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirShape {
    /// Blocks of the directory.
    pub blocks: u64,
    /// Whether they begin with the root of an index.
    pub indexed: bool,
}

/// A packed leaf: its entries' range in the sorted list, and the hash its index entry has.
struct Leaf {
    range: std::ops::Range<usize>,
    hash: u32,
}

/// Index levels between root and leaves that this many leaves need, with the blocks of each level
/// from the one above the leaves upwards.
fn index_levels(leaves: usize, format: &DirFormat) -> Vec<usize> {
    let (root, node) = (DxPlace::Root.limit(format), DxPlace::Node.limit(format));
    let mut levels = Vec::new();
    let mut count = leaves;
    while count > root {
        count = count.div_ceil(node);
        levels.push(count);
    }
    levels
}

/// The entries sorted for the layout and packed into leaves; `first_room` is what `.` and `..`
/// leave of the first block when there is no index.
fn pack<'a>(
    entries: &[Entry<'a>],
    rules: &DirRules,
    indexed: bool,
) -> Result<(Vec<Entry<'a>>, Vec<Leaf>)> {
    let format = &rules.format;
    let space = if indexed {
        rules.leaf_fill.min(format.leaf_space())
    } else {
        format.leaf_space()
    };
    let mut sorted: Vec<(u64, Entry<'a>)> = Vec::with_capacity(entries.len());
    for e in entries {
        let key = if indexed {
            let h = match e.hash {
                Some(known) => known,
                None => name_hash(rules.hash, rules.hash_seed, None, e.name)?,
            };
            u64::from(h.hash) << 32 | u64::from(h.minor)
        } else {
            0
        };
        sorted.push((key, *e));
    }
    // Stable, and entries come in name order: the same entries, the same blocks.
    sorted.sort_by_key(|(key, _)| *key);
    let mut leaves = Vec::new();
    let mut start = 0;
    let mut used = if indexed { 0 } else { 24 };
    let hash_of = |i: usize, sorted: &[(u64, Entry<'_>)]| (sorted[i].0 >> 32) as u32;
    let leaf_hash = |start: usize, sorted: &[(u64, Entry<'_>)]| match start {
        0 => 0,
        _ => {
            let hash = hash_of(start, sorted);
            // The lowest bit says that the hash's run began in the leaf before.
            hash | u32::from(hash == hash_of(start - 1, sorted))
        }
    };
    for i in 0..sorted.len() {
        let len = format.entry_len(sorted[i].1.name);
        if used + len > space && i > start {
            leaves.push(Leaf {
                range: start..i,
                hash: leaf_hash(start, &sorted),
            });
            (start, used) = (i, 0);
        }
        used += len;
    }
    let hash = if start < sorted.len() {
        leaf_hash(start, &sorted)
    } else {
        0
    };
    leaves.push(Leaf {
        range: start..sorted.len(),
        hash,
    });
    Ok((sorted.into_iter().map(|(_, e)| e).collect(), leaves))
}

/// How many blocks a directory of these entries (without `.` and `..`) takes.
///
/// # Errors
/// [`FormatError::DxFull`] when they are more than the volume's indexes hold,
/// [`FormatError::HashKeyMissing`].
pub fn shape(entries: &[Entry<'_>], rules: &DirRules) -> Result<DirShape> {
    let (_, leaves) = pack(entries, rules, false)?;
    let Some(levels) = rules.levels.filter(|_| leaves.len() > 1) else {
        return Ok(DirShape {
            blocks: leaves.len() as u64,
            indexed: false,
        });
    };
    let (_, leaves) = pack(entries, rules, true)?;
    let nodes = index_levels(leaves.len(), &rules.format);
    if nodes.len() > usize::from(levels) {
        return Err(FormatError::DxFull {
            leaves: leaves.len(),
        });
    }
    let blocks = 1 + nodes.iter().sum::<usize>() + leaves.len();
    Ok(DirShape {
        blocks: blocks as u64,
        indexed: true,
    })
}

/// The blocks of a directory, in order; as many as [`shape`] said, or `blocks` when that is more
/// (the rest are empty leaves).
///
/// # Errors
/// As [`shape`].
pub fn build(
    dot: Ino,
    dotdot: Ino,
    entries: &[Entry<'_>],
    rules: &DirRules,
    seed: InodeSeed,
    blocks: u64,
) -> Result<Vec<Vec<u8>>> {
    let shape = shape(entries, rules)?;
    let format = &rules.format;
    let no_fit = || FormatError::DirTail;
    let mut out = Vec::with_capacity(blocks as usize);
    let (sorted, leaves) = pack(entries, rules, shape.indexed)?;
    if shape.indexed {
        write_index(&mut out, dot, dotdot, &leaves, rules, seed)?;
    }
    for leaf in &leaves {
        let mut block = vec![0u8; format.block_size];
        dir::write_empty_leaf(&mut block, format).ok_or_else(no_fit)?;
        let mut list: Vec<Entry<'_>> = Vec::with_capacity(leaf.range.len() + 2);
        if !shape.indexed && leaf.range.start == 0 {
            list.push(Entry {
                name: b".",
                ino: dot,
                kind: FileKind::Directory,
                hash: None,
            });
            list.push(Entry {
                name: b"..",
                ino: dotdot,
                kind: FileKind::Directory,
                hash: None,
            });
        }
        list.extend_from_slice(&sorted[leaf.range.clone()]);
        let mut at = 0;
        for (i, e) in list.iter().enumerate() {
            let min = format.entry_len(e.name);
            let len = if i + 1 == list.len() {
                format.leaf_space() - at
            } else {
                min
            };
            dir::write_entry(&mut block, at, len, e.ino, Some(e.kind), e.name, format)
                .ok_or_else(no_fit)?;
            if format.stored_hash && !matches!(e.name, b"." | b"..") {
                let h = e.hash.ok_or(FormatError::HashKeyMissing)?;
                dir::write_stored_hash(&mut block, at, e.name.len(), h.hash, h.minor)
                    .ok_or_else(no_fit)?;
            }
            at += len;
        }
        dir::set_leaf_checksum(&mut block, format, seed)?;
        out.push(block);
    }
    while (out.len() as u64) < blocks {
        let mut block = vec![0u8; format.block_size];
        dir::write_empty_leaf(&mut block, format).ok_or_else(no_fit)?;
        dir::set_leaf_checksum(&mut block, format, seed)?;
        out.push(block);
    }
    Ok(out)
}

/// Root, then the index levels from the top down; the leaves follow them.
fn write_index(
    out: &mut Vec<Vec<u8>>,
    dot: Ino,
    dotdot: Ino,
    leaves: &[Leaf],
    rules: &DirRules,
    seed: InodeSeed,
) -> Result<()> {
    let format = &rules.format;
    let no_fit = || FormatError::DxTail;
    let counts = index_levels(leaves.len(), format);
    let node_limit = DxPlace::Node.limit(format);
    let first_leaf = 1 + counts.iter().sum::<usize>();
    let mut level: Vec<DxEntry> = leaves
        .iter()
        .enumerate()
        .map(|(i, l)| DxEntry {
            hash: l.hash,
            block: (first_leaf + i) as u32,
        })
        .collect();
    let mut built: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut end = first_leaf;
    for count in counts {
        let first = end - count;
        let mut blocks = Vec::with_capacity(count);
        let mut above = Vec::with_capacity(count);
        for (i, chunk) in level.chunks(node_limit).enumerate() {
            let mut block = vec![0u8; format.block_size];
            htree::write_entries(&mut block, DxPlace::Node, chunk, format).ok_or_else(no_fit)?;
            htree::set_checksum(&mut block, DxPlace::Node, format, seed)?;
            blocks.push(block);
            above.push(DxEntry {
                hash: chunk[0].hash,
                block: (first + i) as u32,
            });
        }
        built.push(blocks);
        level = above;
        end = first;
    }
    let mut root = vec![0u8; format.block_size];
    let info = DxRootInfo {
        dot,
        dotdot,
        hash_version: rules.hash.to_raw(),
        indirect_levels: built.len() as u8,
    };
    htree::write_entries(&mut root, DxPlace::Root, &level, format).ok_or_else(no_fit)?;
    info.write(&mut root, format).ok_or_else(no_fit)?;
    htree::set_checksum(&mut root, DxPlace::Root, format, seed)?;
    out.push(root);
    for blocks in built.into_iter().rev() {
        out.extend(blocks);
    }
    Ok(())
}
