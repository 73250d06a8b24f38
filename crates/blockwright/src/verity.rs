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
use blockwright_device::{DirectIo, Engine, HostDevice, OpenMode, SharedDevice, positional};
use blockwright_disk::container;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
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
    /// The file that the tree goes to, which is replaced. Without it the tree follows the volume in the image.
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

/// Makes the tree over the first `bytes` of an image, which is locked meanwhile: for writing, or for reading when the tree goes to a file of its own.
///
/// Behind these bytes an image file has nothing, zeroes, or an earlier tree over as many bytes, which is replaced. What a block device has there is
/// overwritten.
///
/// # Errors
/// `Busy` when the image or the tree's file is in use. `Invalid` when `bytes` is no multiple of 4096, less than two blocks, more than the image has, or less than
/// the volume in it; when an image file has something else behind them; when the tree's file is the image, or holds a volume; for a salt that is too
/// long. `Unsupported` for an image in a container, such as qcow2. `NoSpace` on a device that ends before the tree would; `Io`.
pub fn seal(image: &Path, bytes: u64, options: &VerityOptions) -> Result<Verity> {
    seal_watched(image, bytes, options, &|| ControlFlow::Continue(()))
}

/// As [`seal`]; `goes_on` is asked before each half MiB that is hashed, from several threads. When it breaks, no tree is left behind the volume, and a
/// file of the tree's own is empty.
///
/// # Errors
/// Those of [`seal`]; `Interrupted` when `goes_on` breaks.
pub fn seal_watched(
    image: &Path,
    bytes: u64,
    options: &VerityOptions,
    goes_on: &(dyn Fn() -> ControlFlow<()> + Sync),
) -> Result<Verity> {
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
    let levels = levels(data_blocks);
    let tree_bytes = (1 + levels.iter().sum::<u64>()) * BLOCK as u64;
    let superblock = superblock(&salt, &options.uuid, data_blocks);
    let (data, _image_lock) = open_image(image, bytes, options.tree.is_none())?;
    let (own, place, offset);
    let hashes = match &options.tree {
        Some(path) => {
            own = open_tree(path, image)?;
            (place, offset) = (path.as_path(), 0);
            &own.0
        }
        None => {
            let at_image = |e: io::Error| Error::from(e).at(image);
            let is_file = data.metadata().map_err(at_image)?.is_file();
            if is_file && !is_free(&data, bytes, tree_bytes, &superblock).map_err(at_image)? {
                return Err(invalid(format!(
                    "behind the first {bytes} bytes there is something else than a tree over them"
                )));
            }
            (place, offset) = (image, bytes);
            &data
        }
    };
    let at_tree = |e: io::Error| Error::from(e).at(place);
    make_room(hashes, offset, tree_bytes).map_err(at_tree)?;
    let hasher = Sha256::new().chain_update(&salt);
    let make = || -> io::Result<[u8; DIGEST]> {
        // First: after a crash, the next call recognises what is there. Nothing trusts it without the root hash.
        positional::write_all_at(hashes, &superblock, offset)?;
        // Where each level begins, the one over the data first; the root is stored first.
        let mut starts = vec![0; levels.len()];
        let mut next = offset + BLOCK as u64;
        for (start, count) in starts.iter_mut().zip(&levels).rev() {
            *start = next;
            next += count * BLOCK as u64;
        }
        let mut below = (&data, 0, data_blocks);
        for (start, count) in starts.iter().zip(&levels) {
            hash_level(&hasher, below, (hashes, *start, *count), goes_on)?;
            below = (hashes, *start, *count);
        }
        let mut root = vec![0; BLOCK];
        positional::read_exact_at(hashes, &mut root, offset + BLOCK as u64)?;
        hashes.sync_all()?;
        Ok(hasher.clone().chain_update(&root).finalize().into())
    };
    let root_hash = match make() {
        Ok(root_hash) => root_hash,
        Err(e) => {
            if hashes.metadata().is_ok_and(|m| m.is_file()) {
                // The first error is the one to tell.
                let _already_failing = hashes.set_len(offset);
            }
            return Err(at_tree(e));
        }
    };
    Ok(Verity {
        root_hash,
        salt,
        data_blocks,
        hash_offset: offset,
        tree_bytes,
    })
}

/// Keeps a file locked. `None` on hosts whose locks would refuse a second opening by this process, too.
type Lock = Option<SharedDevice>;

/// Opens a file or block device, without a ring of its own, and locks it.
fn lock(path: &Path, read_only: bool) -> Result<SharedDevice> {
    let mode = OpenMode {
        read_only,
        lock: true,
        engine: Engine::Plain,
        direct: DirectIo::Never,
    };
    HostDevice::open(path, mode).map_err(|e| Error::from(e).at(path))
}

/// Whether a file is a disk in a container, such as qcow2.
fn is_container(path: &Path, device: &SharedDevice) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file())
        && container::detect_on(device).is_ok_and(|format| format != container::Format::Raw)
}

/// The image, locked. Nothing was written.
fn open_image(image: &Path, bytes: u64, write: bool) -> Result<(File, Lock)> {
    let refused = |kind, what: String| Error::new(kind, what).at(image);
    let device = lock(image, !write)?;
    if is_container(image, &device) {
        let what = "a tree of dm-verity is made over a plain image, not over one in a container";
        return Err(refused(ErrorKind::Unsupported, what.to_owned()));
    }
    #[cfg(feature = "resize")]
    if let Ok(volume) = crate::reshape::volume_bytes(&device)
        && volume > bytes
    {
        let what = format!("the volume has {volume} bytes, more than the {bytes} to be hashed");
        return Err(refused(ErrorKind::Invalid, what));
    }
    let held = cfg!(unix).then_some(device);
    let at_image = |e: io::Error| Error::from(e).at(image);
    let data = OpenOptions::new().read(true).write(write).open(image);
    let data = data.map_err(at_image)?;
    let all = crate::host::end(&data).map_err(at_image)?;
    if all < bytes {
        let what = format!("the image has {all} bytes, fewer than the {bytes} to be hashed");
        return Err(refused(ErrorKind::Invalid, what));
    }
    Ok((data, held))
}

/// The file of a tree that is apart from the image, locked. It is made if it is missing; otherwise nothing was written.
fn open_tree(path: &Path, image: &Path) -> Result<(File, Lock)> {
    let at_tree = |e: io::Error| Error::from(e).at(path);
    let refused = |what: &str| Err(Error::new(ErrorKind::Invalid, what).at(path));
    if crate::host::is_same(path, image) {
        return refused("the tree's file is the image itself");
    }
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).map_err(at_tree)
    };
    // Missing ones are made, and locked as others are.
    drop(open()?);
    let device = lock(path, false)?;
    if is_container(path, &device)
        || crate::format::detect(&device).is_ok()
        || crate::format::foreign_contents(&device).is_ok_and(|found| found.is_some())
    {
        return refused("the tree's file holds a volume or a disk");
    }
    let held = cfg!(unix).then_some(device);
    Ok((open()?, held))
}

/// Whether a file has nothing behind `from` that could be wanted: an earlier tree of `tree_bytes` bytes whose superblock is as `superblock` but for salt and
/// UUID, and zeroes.
fn is_free(file: &File, from: u64, tree_bytes: u64, superblock: &[u8]) -> io::Result<bool> {
    let end = file.metadata()?.len();
    let mut buffer = vec![0; BLOCK * PER_BLOCK as usize];
    let mut at = from;
    if end - from >= BLOCK as u64 {
        let found = &mut buffer[..BLOCK];
        positional::read_exact_at(file, found, from)?;
        // Versions; algorithm, sizes of blocks, their number.
        if [0..16, 32..80]
            .into_iter()
            .all(|of| found[of.clone()] == superblock[of])
        {
            at = end.min(from + tree_bytes);
        }
    }
    while at < end {
        let part = (end - at).min(buffer.len() as u64) as usize;
        positional::read_exact_at(file, &mut buffer[..part], at)?;
        if buffer[..part].iter().any(|b| *b != 0) {
            return Ok(false);
        }
        at += part as u64;
    }
    Ok(true)
}

/// The error when `goes_on` breaks.
fn stopped() -> io::Error {
    io::Error::other(Error::new(ErrorKind::Interrupted, "the seal was stopped"))
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

/// Hashes the level `below` into the next one; both are a file, the first byte in it, and the number of blocks.
fn hash_level(
    hasher: &Sha256,
    below: (&File, u64, u64),
    level: (&File, u64, u64),
    goes_on: &(dyn Fn() -> ControlFlow<()> + Sync),
) -> io::Result<()> {
    let (from, from_start, blocks) = below;
    let (hashes, start, count) = level;
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
            if goes_on().is_break() {
                return Err(stopped());
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

    /// An image of `bytes` bytes that are not zero, in a folder with room for others.
    fn image(bytes: usize) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("image");
        std::fs::write(&path, vec![7; bytes]).expect("written");
        (dir, path)
    }

    fn with_tree(path: &Path) -> VerityOptions {
        VerityOptions {
            tree: Some(path.to_owned()),
            ..VerityOptions::default()
        }
    }

    /// Refused, with the image as it was.
    fn refused(image: &Path, bytes: u64, options: &VerityOptions) -> ErrorKind {
        let before = std::fs::read(image).expect("read");
        let error = seal(image, bytes, options).expect_err("refused");
        assert!(std::fs::read(image).expect("read") == before, "{error}");
        error.kind()
    }

    #[test]
    fn lengths_that_are_not_those_of_the_volume_are_refused() {
        let (_dir, path) = image(64 << 10);
        let none = VerityOptions::default();
        assert_eq!(refused(&path, 256 << 10, &none), ErrorKind::Invalid);
        assert_eq!(refused(&path, 8192, &none), ErrorKind::Invalid);
        // An earlier tree is replaced, also below zeroes.
        let first = seal(&path, 64 << 10, &none).expect("sealed");
        let again = seal(&path, 64 << 10, &none).expect("sealed");
        assert_eq!(first, again);
        let length = (64 << 10) + first.tree_bytes;
        assert_eq!(std::fs::metadata(&path).expect("a file").len(), length);
        let file = OpenOptions::new().write(true).open(&path).expect("opened");
        file.set_len(length + 100_000).expect("longer");
        assert_eq!(seal(&path, 64 << 10, &none).expect("sealed"), first);
        // Not what follows it, nor a tree over something else.
        file.set_len(length + 100_000).expect("longer");
        positional::write_all_at(&file, b"x", length + 99_999).expect("written");
        assert_eq!(refused(&path, 64 << 10, &none), ErrorKind::Invalid);
        file.set_len(length).expect("cut");
        positional::write_all_at(&file, &[17], (64 << 10) + 72).expect("written");
        assert_eq!(refused(&path, 64 << 10, &none), ErrorKind::Invalid);
    }

    #[test]
    fn trees_in_an_image_and_images_in_use_are_refused() {
        let (dir, path) = image(64 << 10);
        assert_eq!(
            refused(&path, 64 << 10, &with_tree(&path)),
            ErrorKind::Invalid
        );
        #[cfg(unix)]
        for name in ["hard", "soft"] {
            let other = dir.path().join(name);
            match name {
                "hard" => std::fs::hard_link(&path, &other).expect("linked"),
                _ => std::os::unix::fs::symlink(&path, &other).expect("linked"),
            }
            let options = with_tree(&other);
            assert_eq!(
                refused(&path, 64 << 10, &options),
                ErrorKind::Invalid,
                "{name}"
            );
        }
        // Another volume, by its magic.
        let other = dir.path().join("other");
        let mut volume = vec![0; 8192];
        volume[0x438..0x43A].copy_from_slice(&[0x53, 0xEF]);
        std::fs::write(&other, &volume).expect("written");
        assert_eq!(
            refused(&path, 64 << 10, &with_tree(&other)),
            ErrorKind::Invalid
        );
        assert!(std::fs::read(&other).expect("read") == volume);
        // In use: the tree's file, and the image.
        let tree = dir.path().join("tree");
        std::fs::write(&tree, [1; 8192]).expect("written");
        let held = lock(&tree, true).expect("locked");
        assert_eq!(refused(&path, 64 << 10, &with_tree(&tree)), ErrorKind::Busy);
        assert!(std::fs::read(&tree).expect("read") == [1; 8192]);
        drop(held);
        let held = lock(&path, true).expect("locked");
        assert_eq!(
            refused(&path, 64 << 10, &VerityOptions::default()),
            ErrorKind::Busy
        );
        // Two that read do not disturb each other.
        seal(&path, 64 << 10, &with_tree(&tree)).expect("sealed");
        drop(held);
        let held = lock(&path, false).expect("locked");
        assert_eq!(refused(&path, 64 << 10, &with_tree(&tree)), ErrorKind::Busy);
        drop(held);
        seal(&path, 64 << 10, &VerityOptions::default()).expect("sealed");
    }

    #[test]
    fn a_container_is_refused() {
        let (_dir, path) = image(64 << 10);
        let mut bytes = std::fs::read(&path).expect("read");
        bytes[..4].copy_from_slice(b"QFI\xFB");
        std::fs::write(&path, bytes).expect("written");
        let none = VerityOptions::default();
        assert_eq!(refused(&path, 64 << 10, &none), ErrorKind::Unsupported);
    }

    #[test]
    fn a_seal_that_is_stopped_leaves_no_tree() {
        let (dir, path) = image(8 << 20);
        let tree = dir.path().join("tree");
        for options in [VerityOptions::default(), with_tree(&tree)] {
            let asked = AtomicU64::new(0);
            let stop_at_third = || match asked.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            };
            let error = seal_watched(&path, 8 << 20, &options, &stop_at_third);
            assert_eq!(error.expect_err("stopped").kind(), ErrorKind::Interrupted);
            assert!(std::fs::read(&path).expect("read") == [7; 8 << 20]);
        }
        assert_eq!(std::fs::metadata(&tree).expect("a file").len(), 0);
    }
}
