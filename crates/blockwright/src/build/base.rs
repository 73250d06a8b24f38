//! What a volume-to-be has in common with an earlier build of it: see [`ext4::Base`].

use super::progress::{Meter, Tell};
use crate::{Error, ErrorKind, Format, Result, Volume};
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};
use blockwright_mkfs::ext4::{Base, BaseFile};
use blockwright_mkfs::tree::{Node, NodeId, Tree};
use blockwright_ondisk::ext4::Superblock;
use blockwright_vfs::{FileKind, InodeRef, Place};
use std::collections::HashMap;
use std::sync::Arc;

/// Where the superblock is, and its length.
const SUPERBLOCK: (usize, usize) = (1024, 1024);

/// Reads where the files of `tree` are on an earlier build. Files that only one of both has are left out.
///
/// # Errors
/// `Unsupported` for another format; what is wrong with the volume; `Interrupted` when `tell` breaks.
pub(super) fn read(device: &SharedDevice, tree: &Tree, tell: Tell<'_>) -> Result<Base> {
    read_on(device, tree, &mut Meter::new(tell))
        .map_err(|e| Error::new(e.kind(), format!("the base {}: {e}", device.name())))
}

/// Opens the earlier build, and finds inode and blocks of each file that the tree has at the same path.
fn read_on(device: &SharedDevice, tree: &Tree, meter: &mut Meter<'_>) -> Result<Base> {
    let volume = Volume::options()
        .read_only(true)
        .open_device(Arc::clone(device))?;
    if volume.format() != Format::Ext4 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "a volume is laid over an earlier build of ext2, ext3 or ext4 only",
        ));
    }
    let (at, bytes) = SUPERBLOCK;
    let head = device.read_buf(DevOffset(0), 4096)?;
    let superblock = Superblock::parse(&head[at..at + bytes], None)
        .map_err(|e| Error::new(ErrorKind::Corrupt, e.to_string()))?;
    let geo = &superblock.geo;
    let mut base = Base {
        block_bytes: geo.block_size,
        inodes: geo.inodes_count,
        checksum_seed: geo.features.metadata_csum().then_some(geo.seed.0),
        hash_seed: [0; 16],
        files: HashMap::new(),
    };
    let words = superblock.raw.hash_seed();
    for (bytes, word) in base.hash_seed.chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    let find = |path: &[u8]| match volume.vfs().resolve(volume.cred(), path, false) {
        Ok(inode) => Ok(Some(inode)),
        Err(e) => match Error::from(e) {
            e if e.kind() == ErrorKind::NotFound => Ok(None),
            e => Err(e),
        },
    };
    let mut todo = vec![(NodeId::ROOT, b"/".to_vec())];
    while let Some((id, path)) = todo.pop() {
        meter.entry()?;
        let node = tree.node(id);
        // A file with several names is where its first name is.
        if base.files.contains_key(&id) {
            continue;
        }
        let Some(inode) = find(&path)? else { continue };
        let Some(file) = place(&volume, &inode, node, geo.block_size, meter)? else {
            continue;
        };
        base.files.insert(id, file);
        for (name, child) in node.children.iter().rev() {
            let mut path = path.clone();
            if id != NodeId::ROOT {
                path.push(b'/');
            }
            path.extend(name);
            todo.push((*child, path));
        }
    }
    Ok(base)
}

/// Where a file is; `None` for one of another kind.
fn place(
    volume: &Volume,
    inode: &InodeRef,
    node: &Node,
    block_bytes: u32,
    meter: &mut Meter<'_>,
) -> Result<Option<BaseFile>> {
    let attr = volume.vfs().stat(inode);
    // The two enums list the kinds in different orders.
    if attr.kind.mode_bits() != u32::from(node.kind.mode_bits()) {
        return Ok(None);
    }
    let mut file = BaseFile {
        ino: u32::try_from(attr.ino.0).unwrap_or(0),
        extents: Vec::new(),
    };
    let unit = u64::from(block_bytes);
    // No more than the new file can use, whatever the base claims: neither its holes nor what is behind the first block that is missing.
    let directory = 0..attr.size.min((node.children.len() as u64 + 64) * 1024);
    let ranges = match attr.kind {
        FileKind::Regular => node.data.as_slice(),
        FileKind::Directory => std::slice::from_ref(&directory),
        _ => &[],
    };
    let mut at = 0;
    for range in ranges {
        at = at.max(range.start / unit * unit);
        while at < range.end {
            meter.entry()?;
            let mapping = volume.vfs().engine().map(inode, at, range.end - at)?;
            let next = mapping.offset.saturating_add(mapping.bytes).min(range.end);
            let (Place::Mapped(start) | Place::Unwritten(start)) = mapping.place else {
                return Ok(Some(file));
            };
            if next <= at {
                return Ok(Some(file));
            }
            let physical = start.0.saturating_add(at - mapping.offset);
            let blocks = (next - at).div_ceil(unit);
            file.extents.push((at / unit, physical / unit, blocks));
            at = next.next_multiple_of(unit);
        }
    }
    Ok(Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VolumeBuilder;
    use crate::build::progress::unheard;
    use blockwright_device::MemoryDevice;
    use blockwright_ondisk::ext4::{FileKind as NodeKind, Timestamp};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const BLOCK: u64 = 4096;
    const MIB: u64 = 1 << 20;

    /// A base claims 2048 extents in a file that has two blocks of data now.
    #[test]
    fn a_sparse_file_takes_no_more_than_its_data_from_a_base() {
        let dir = tempfile::tempdir().unwrap();
        let old = File::create(dir.path().join("file")).unwrap();
        old.set_len(32 * MIB).unwrap();
        for block in (0..4096).filter(|block| block % 2 == 0) {
            old.write_all_at(b"old", block * BLOCK).unwrap();
        }
        let device: SharedDevice = Arc::new(MemoryDevice::new(64 * MIB));
        let builder = VolumeBuilder::new().block_size(4096).size(64 * MIB);
        builder.from(dir.path()).create_on(&device).unwrap();

        let now = Timestamp { secs: 0, nanos: 0 };
        let of = |data: &[u64]| {
            let mut tree = Tree::empty(0, (0, 0));
            let mut node = Node::new(NodeKind::Regular, 0o644, now);
            node.size = 32 * MIB;
            // The last byte of a block and the first one.
            let range = |block: &u64| block * BLOCK + 4095..block * BLOCK + 4096;
            node.data = data.iter().map(range).collect();
            let id = tree.add(node);
            let root = &mut tree.node_mut(NodeId::ROOT).children;
            root.insert(b"file".to_vec(), id);
            let base = read(&device, &tree, &unheard).unwrap();
            let extents = &base.files[&id].extents;
            let logical = extents.iter().map(|(at, _, blocks)| (*at, *blocks));
            logical.collect::<Vec<_>>()
        };
        assert_eq!(of(&[0, 4094]), [(0, 1), (4094, 1)]);
        // The base has a hole where the second one is.
        assert_eq!(of(&[0, 2, 5, 6, 8]), [(0, 1), (2, 1)]);
        assert_eq!(of(&[]), []);
    }
}
