//! dm-verity: a tree of hashes over a volume. The kernel then refuses every block that was changed since the build.
//!
//! The tree lies behind the volume in the same image, or in a file of its own. Only the root hash must come from a trusted
//! place. A volume that is written to afterwards no longer matches its tree.
//!
//! # Layout
//! The layout is that of `veritysetup`. The first block is a superblock. The levels of the tree follow, from the root to the hashes
//! of the data. A hash block has 128 digests of 32 bytes. A digest is the SHA-256 of the salt and a block. The unused end of a
//! level's last block is zero.
//!
//! References: Linux, Documentation/admin-guide/device-mapper/verity.rst; cryptsetup wiki, "DMVerity", on-disk format 1.

use crate::{Error, ErrorKind, Result};
use blockwright_device::positional;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a data block and of a hash block.
const BLOCK: usize = 4096;
/// Bytes of a digest.
const DIGEST: usize = 32;
/// Digests in a hash block.
const PER_BLOCK: u64 = (BLOCK / DIGEST) as u64;
/// The longest salt that the superblock has room for.
const SALT_BYTES_MAX: usize = 256;
/// Threads that hash; more are slower than the disk.
const THREADS_MAX: usize = 8;

/// How a tree is made.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct VerityOptions {
    /// At most 256 bytes. Without it 32 bytes that follow from the UUID.
    pub salt: Option<Vec<u8>>,
    /// The UUID of the tree's superblock; that of the volume is a good choice.
    pub uuid: [u8; 16],
    /// The file that the tree goes to. Without it the tree follows the volume in the image.
    pub tree: Option<PathBuf>,
}

/// A tree that was made: what `veritysetup open` and the kernel's command line need.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Verity {
    /// The one thing that must come from elsewhere than the image.
    pub root_hash: [u8; DIGEST],
    /// The salt, also in the superblock.
    pub salt: Vec<u8>,
    /// Blocks of 4096 bytes that are covered.
    pub data_blocks: u64,
    /// Where the superblock is in the image or in the tree's own file, in bytes.
    pub hash_offset: u64,
    /// Bytes of superblock and tree.
    pub tree_bytes: u64,
}

/// Makes the tree over the first `bytes` of an image, which is not in use.
///
/// # Errors
/// `Invalid` when `bytes` is no multiple of 4096 or less than two blocks, and for a salt that is too long; `NoSpace` on a
/// device that ends before the tree would; `Io`.
pub fn seal(image: &Path, bytes: u64, options: &VerityOptions) -> Result<Verity> {
    let invalid = |what: String| Error::new(ErrorKind::Invalid, what).at(image);
    let data_blocks = bytes / BLOCK as u64;
    if !bytes.is_multiple_of(BLOCK as u64) || data_blocks < 2 {
        return Err(invalid(format!(
            "dm-verity needs a volume of whole blocks of 4096 bytes; this one has {bytes} bytes"
        )));
    }
    let salt = match &options.salt {
        Some(salt) if salt.len() > SALT_BYTES_MAX => {
            return Err(invalid(format!(
                "a salt of {} bytes; at most {SALT_BYTES_MAX} have room",
                salt.len()
            )));
        }
        Some(salt) => salt.clone(),
        None => Sha256::new()
            .chain_update(b"blockwright dm-verity salt, 1")
            .chain_update(options.uuid)
            .finalize()
            .to_vec(),
    };
    let at_image = |e: io::Error| Error::from(e).at(image);
    let data = OpenOptions::new()
        .read(true)
        .write(options.tree.is_none())
        .open(image)
        .map_err(at_image)?;
    let (own, place, offset);
    let hashes = match &options.tree {
        Some(path) => {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(path);
            own = file.map_err(|e| Error::from(e).at(path))?;
            (place, offset) = (path.as_path(), 0);
            &own
        }
        None => {
            (place, offset) = (image, bytes);
            &data
        }
    };
    let at_tree = |e: io::Error| Error::from(e).at(place);
    let levels = levels(data_blocks);
    let tree_bytes = (1 + levels.iter().sum::<u64>()) * BLOCK as u64;
    make_room(hashes, offset, tree_bytes).map_err(at_tree)?;
    let hasher = Sha256::new().chain_update(&salt);
    // Where each level begins, the one over the data first; the root is stored first.
    let mut starts = vec![0; levels.len()];
    let mut next = offset + BLOCK as u64;
    for (start, count) in starts.iter_mut().zip(&levels).rev() {
        *start = next;
        next += count * BLOCK as u64;
    }
    let mut below = (&data, 0, data_blocks);
    for (start, count) in starts.iter().zip(&levels) {
        hash_level(&hasher, below, hashes, *start, *count).map_err(at_tree)?;
        below = (hashes, *start, *count);
    }
    let mut root = vec![0; BLOCK];
    positional::read_exact_at(hashes, &mut root, offset + BLOCK as u64).map_err(at_tree)?;
    let superblock = superblock(&salt, &options.uuid, data_blocks);
    positional::write_all_at(hashes, &superblock, offset).map_err(at_tree)?;
    hashes.sync_all().map_err(at_tree)?;
    Ok(Verity {
        root_hash: hasher.chain_update(&root).finalize().into(),
        salt,
        data_blocks,
        hash_offset: offset,
        tree_bytes,
    })
}

/// Blocks of each level, from the one over the data to the root.
fn levels(data_blocks: u64) -> Vec<u64> {
    let mut levels = Vec::new();
    let mut count = data_blocks;
    while count > 1 || levels.is_empty() {
        count = count.div_ceil(PER_BLOCK);
        levels.push(count);
    }
    levels
}

/// A file grows to exactly the tree's end, so that nothing of an older one is left; a device must be large enough.
fn make_room(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    let metadata = file.metadata()?;
    if metadata.is_file() {
        file.set_len(offset)?;
        return file.set_len(offset + bytes);
    }
    if !blockwright_device::is_block_device(&metadata) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "neither a file nor a block device",
        ));
    }
    let end = crate::host::end(file)?;
    match offset.checked_add(bytes) {
        Some(needed) if needed <= end => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("the tree needs {bytes} bytes behind the volume, and the device ends before"),
        )),
    }
}

/// Hashes `below` (a file, the first byte, the number of blocks) into `count` blocks at `start`.
fn hash_level(
    hasher: &Sha256,
    below: (&File, u64, u64),
    hashes: &File,
    start: u64,
    count: u64,
) -> io::Result<()> {
    let (from, from_start, blocks) = below;
    let of_zeroes: [u8; DIGEST] = hasher.clone().chain_update([0; BLOCK]).finalize().into();
    let next = AtomicU64::new(0);
    let failed = Mutex::new(None);
    let work = || -> io::Result<()> {
        let mut input = vec![0u8; BLOCK * PER_BLOCK as usize];
        let mut output = vec![0u8; BLOCK];
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return Ok(());
            }
            let first = index * PER_BLOCK;
            let many = PER_BLOCK.min(blocks - first) as usize;
            let input = &mut input[..many * BLOCK];
            positional::read_exact_at(from, input, from_start + first * BLOCK as u64)?;
            output.fill(0);
            for (block, digest) in input
                .chunks_exact(BLOCK)
                .zip(output.chunks_exact_mut(DIGEST))
            {
                if block.iter().all(|b| *b == 0) {
                    digest.copy_from_slice(&of_zeroes);
                } else {
                    digest.copy_from_slice(&hasher.clone().chain_update(block).finalize());
                }
            }
            positional::write_all_at(hashes, &output, start + index * BLOCK as u64)?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
    let threads = threads.min(usize::try_from(count).unwrap_or(usize::MAX));
    let run = || {
        if let Err(e) = work() {
            // The others find nothing left to do.
            next.store(count, Ordering::Relaxed);
            let mut failed = failed
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            failed.get_or_insert(e);
        }
    };
    std::thread::scope(|scope| {
        let started = (0..threads)
            .map_while(|_| std::thread::Builder::new().spawn_scoped(scope, run).ok())
            .count();
        // A host without threads: the caller does it.
        if started == 0 {
            run();
        }
    });
    let failed = failed
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    failed.map_or(Ok(()), Err)
}

/// The block with the superblock; its fields are little-endian.
fn superblock(salt: &[u8], uuid: &[u8; 16], data_blocks: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"verity\0\0");
    // Version 1; hash type 1: the salt comes first.
    put(8, &1u32.to_le_bytes());
    put(12, &1u32.to_le_bytes());
    put(16, uuid);
    put(32, b"sha256");
    put(64, &(BLOCK as u32).to_le_bytes());
    put(68, &(BLOCK as u32).to_le_bytes());
    put(72, &data_blocks.to_le_bytes());
    put(80, &(salt.len() as u16).to_le_bytes());
    put(88, salt);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_end_with_one_block() {
        for (blocks, wanted) in [
            (2, &[1][..]),
            (128, &[1]),
            (129, &[2, 1]),
            (128 * 128, &[128, 1]),
            (128 * 128 + 1, &[129, 2, 1]),
        ] {
            assert_eq!(levels(blocks), wanted, "{blocks}");
        }
    }

    #[test]
    fn what_is_no_volume_of_blocks_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for bytes in [0, 4096, 4097, 10_000] {
            let error = seal(file.path(), bytes, &VerityOptions::default()).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bytes}");
        }
        let options = VerityOptions {
            salt: Some(vec![0; 257]),
            ..VerityOptions::default()
        };
        let error = seal(file.path(), 8192, &options).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
