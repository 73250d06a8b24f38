//! fs-verity: the Merkle tree over a file, and the descriptor whose digest is the file's; files of a tree that are protected
//! by it.
//!
//! SHA-256, blocks of 4096 bytes, no salt: what `fsverity enable` takes by default. The tree's topmost level comes first. A file
//! of one block has no tree, its root hash is the block's; that of an empty file is zero.
//!
//! Reference: the kernel's documentation, `Documentation/filesystems/fsverity.rst`.

use super::archive;
use super::data::{DataRef, TreeData};
use super::policy::Patterns;
use super::progress::{Meter, Tell};
use super::tree::LayerTree;
use crate::{Error, ErrorKind, Format, Result as BuildResult};
use blockwright_device::positional;
use blockwright_mkfs::DataSource;
use blockwright_mkfs::flags::Flags;
use blockwright_mkfs::tree::{NodeId, VerityMetadata};
use blockwright_ondisk::ext4::FileKind;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// How many times its data, with [`SPARSE_FREE`] beside, a file may be large: its holes are hashed too, and a few bytes of an
/// archive can claim any number.
const SPARSE_TIMES: u64 = 16;
const SPARSE_FREE: u64 = 64 << 20;
/// The metadata of a file begins at a multiple of this.
const METADATA_ALIGN: u64 = 64 << 10;

/// Bytes of a block of data and of the tree.
pub(crate) const BLOCK_BYTES: u64 = 4096;
const HASH_BYTES: usize = 32;
const HASHES: u64 = BLOCK_BYTES / HASH_BYTES as u64;
/// Bytes of the descriptor.
pub(crate) const DESCRIPTOR_BYTES: usize = 256;

/// Where the levels of a tree are, lowest first: first block and blocks.
fn levels(size: u64) -> Vec<(u64, u64)> {
    let mut blocks = size.div_ceil(BLOCK_BYTES);
    let mut out = Vec::new();
    while blocks > 1 {
        blocks = blocks.div_ceil(HASHES);
        out.push((0, blocks));
    }
    let mut first = 0;
    for level in out.iter_mut().rev() {
        level.0 = first;
        first += level.1;
    }
    out
}

/// Bytes of the tree over a file of this many bytes.
pub(crate) fn tree_bytes(size: u64) -> u64 {
    let blocks: u64 = levels(size).iter().map(|level| level.1).sum();
    blocks * BLOCK_BYTES
}

/// A descriptor's digest, which stands for the file.
pub(crate) fn digest(descriptor: &[u8; DESCRIPTOR_BYTES]) -> [u8; HASH_BYTES] {
    Sha256::digest(descriptor).into()
}

/// A tree that grows from its leaves.
struct Builder<'a> {
    levels: Vec<(u64, u64)>,
    /// Per level: hashes of the block that is not full yet, and how many blocks are.
    open: Vec<(Vec<u8>, u64)>,
    root: [u8; HASH_BYTES],
    keep: &'a mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
}

impl Builder<'_> {
    /// The next hash of a level's blocks; above the topmost one it is the root.
    fn add(&mut self, level: usize, hash: [u8; HASH_BYTES]) -> io::Result<()> {
        let Some((open, _)) = self.open.get_mut(level) else {
            self.root = hash;
            return Ok(());
        };
        open.extend(hash);
        if open.len() as u64 == BLOCK_BYTES {
            return self.close(level);
        }
        Ok(())
    }

    fn close(&mut self, level: usize) -> io::Result<()> {
        let (open, done) = &mut self.open[level];
        open.resize(BLOCK_BYTES as usize, 0);
        let at = (self.levels[level].0 + *done) * BLOCK_BYTES;
        (self.keep)(at, open)?;
        let hash = Sha256::digest(&*open).into();
        open.clear();
        *done += 1;
        self.add(level + 1, hash)
    }
}

/// Makes the tree of a file of `size` bytes. `read` fills a buffer from an offset on; `keep` takes blocks of the tree, at their
/// offset in it, in no particular order. Returns the descriptor.
pub(crate) fn measure<E: From<io::Error>>(
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    mut keep: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> Result<[u8; DESCRIPTOR_BYTES], E> {
    const CHUNK: u64 = 64 * BLOCK_BYTES;
    let levels = levels(size);
    let mut tree = Builder {
        open: vec![(Vec::new(), 0); levels.len()],
        levels,
        root: [0; HASH_BYTES],
        keep: &mut keep,
    };
    let mut buffer = vec![0; CHUNK as usize];
    let mut at = 0;
    while at < size {
        let bytes = (size - at).min(CHUNK);
        let whole = bytes.next_multiple_of(BLOCK_BYTES) as usize;
        buffer[bytes as usize..whole].fill(0);
        read(at, &mut buffer[..bytes as usize])?;
        for block in buffer[..whole].chunks(BLOCK_BYTES as usize) {
            tree.add(0, Sha256::digest(block).into())?;
        }
        at += bytes;
    }
    for level in 0..tree.levels.len() {
        if !tree.open[level].0.is_empty() {
            tree.close(level)?;
        }
    }
    let mut descriptor = [0; DESCRIPTOR_BYTES];
    // Version 1, SHA-256, and the logarithm of the block size; no salt, no signature.
    descriptor[..3].copy_from_slice(&[1, 1, 12]);
    descriptor[8..16].copy_from_slice(&size.to_le_bytes());
    descriptor[16..16 + HASH_BYTES].copy_from_slice(&tree.root);
    Ok(descriptor)
}

/// Protects the regular files that a pattern matches, by any of their names: their data is read once, and their trees are kept
/// in a temporary file until they are written. Returns how many there are.
///
/// # Errors
/// Those of reading the sources and of the temporary file; `NoSpace` for a file that is nearly all holes; `Interrupted` when `tell` breaks.
pub(crate) fn protect(
    tree: &mut LayerTree,
    patterns: &Patterns,
    format: Format,
    spool_dir: &Path,
    tell: Tell<'_>,
) -> BuildResult<u64> {
    let mut files = Vec::new();
    let mut todo = vec![(Vec::new(), NodeId::ROOT)];
    while let Some((path, id)) = todo.pop() {
        let node = tree.tree.node(id);
        match node.kind {
            FileKind::Directory => {
                for (name, child) in node.children.iter().rev() {
                    let path = match &path[..] {
                        b"" => name.clone(),
                        dir => [dir, b"/", name].concat(),
                    };
                    todo.push((path, *child));
                }
            }
            FileKind::Regular if patterns.matches(&path, false) => files.push(id),
            _ => {}
        }
    }
    // A file with several names is protected once; the order is that of the walk.
    let mut seen = std::collections::HashSet::new();
    files.retain(|id| seen.insert(*id));
    if files.is_empty() {
        return Ok(0);
    }
    let spool = archive::spool_file(spool_dir)?;
    let mut spooled = 0;
    let mut meter = Meter::new(tell);
    for id in &files {
        let metadata = protect_one(tree, *id, format, (&spool, spooled), &mut meter)?;
        spooled += metadata.bytes;
    }
    Ok(files.len() as u64)
}

fn protect_one(
    tree: &mut LayerTree,
    id: NodeId,
    format: Format,
    spool: (&Arc<File>, u64),
    meter: &mut Meter<'_>,
) -> BuildResult<VerityMetadata> {
    let (spool, spooled) = spool;
    let node = tree.tree.node(id);
    let size = node.size;
    let data: u64 = node.data.iter().map(|range| range.end - range.start).sum();
    if size
        > data
            .saturating_mul(SPARSE_TIMES)
            .saturating_add(SPARSE_FREE)
    {
        let what = format!(
            "{}: {data} bytes of data in a file of {size} are too few to protect it by fs-verity",
            tree.tree.path_of(id)
        );
        return Err(Error::new(ErrorKind::NoSpace, what));
    }
    let source = TreeData(&tree.data);
    let read = |at, buf: &mut [u8]| -> BuildResult<()> {
        meter.read(buf.len() as u64)?;
        source
            .read_at(id, at, buf)
            .map_err(|e| match e.downcast::<Error>() {
                Ok(own) => *own,
                Err(e) => Error::from(io::Error::other(e)),
            })
    };
    let tree_bytes = tree_bytes(size);
    let descriptor = measure(size, read, |at, block| {
        positional::write_all_at(spool, block, spooled + at)
    })?;
    let mut block = [0; BLOCK_BYTES as usize];
    block[..DESCRIPTOR_BYTES].copy_from_slice(&descriptor);
    if format == Format::Ext4 {
        let length = (DESCRIPTOR_BYTES as u32).to_le_bytes();
        block[BLOCK_BYTES as usize - length.len()..].copy_from_slice(&length);
    }
    positional::write_all_at(spool, &block, spooled + tree_bytes)?;
    let metadata = VerityMetadata {
        at: size.next_multiple_of(METADATA_ALIGN),
        tree_bytes,
        descriptor_bytes: DESCRIPTOR_BYTES as u32,
        bytes: tree_bytes + BLOCK_BYTES,
    };
    let node = tree.tree.node_mut(id);
    node.flags &= !Flags::VERITY.bits();
    node.verity = Some(metadata);
    node.data.push(metadata.at..metadata.at + metadata.bytes);
    let data = tree.data.remove(&id).map(Box::new);
    let protected = DataRef::Protected {
        data,
        size,
        metadata_at: metadata.at,
        spool: Arc::clone(spool),
        spooled,
    };
    tree.data.insert(id, protected);
    Ok(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as it is defined: level by level over whole files.
    fn plainly(data: &[u8]) -> (Vec<u8>, [u8; 32]) {
        let hashes = |bytes: &[u8]| -> Vec<u8> {
            bytes
                .chunks(4096)
                .flat_map(|block| {
                    let mut block = block.to_vec();
                    block.resize(4096, 0);
                    <[u8; 32]>::from(Sha256::digest(block))
                })
                .collect()
        };
        let mut tree = Vec::new();
        let mut level = hashes(data);
        while level.len() > 32 {
            let mut padded = level.clone();
            padded.resize(level.len().next_multiple_of(4096), 0);
            level = hashes(&padded);
            tree.splice(0..0, padded);
        }
        let mut root = [0; 32];
        root[..level.len()].copy_from_slice(&level);
        (tree, root)
    }

    #[test]
    fn the_tree_is_the_one_that_is_defined() {
        for size in [
            0,
            1,
            4095,
            4096,
            4097,
            128 * 4096,
            128 * 4096 + 1,
            300 * 4096 - 5,
            128 * 128 * 4096 + 7,
        ] {
            let data: Vec<u8> = (0..size).map(|n: u32| (n / 7 + n / 4096) as u8).collect();
            let mut tree = vec![0xEE; tree_bytes(size.into()) as usize];
            let read = |at: u64, buf: &mut [u8]| -> io::Result<()> {
                buf.copy_from_slice(&data[at as usize..][..buf.len()]);
                Ok(())
            };
            let descriptor = measure(size.into(), read, |at, block| {
                tree[at as usize..][..block.len()].copy_from_slice(block);
                Ok(())
            })
            .expect("measured");
            let (expected, root) = plainly(&data);
            assert!(tree == expected, "{size}");
            assert_eq!(descriptor[16..48], root, "{size}");
            assert_eq!(descriptor[8..12], size.to_le_bytes());
        }
    }
}
