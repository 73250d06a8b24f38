//! What a volume-to-be has in common with an earlier build of it: see [`ext4::Base`].

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
/// `Unsupported` for another format; what is wrong with the volume.
pub(super) fn read(device: &SharedDevice, tree: &Tree) -> Result<Base> {
    read_on(device, tree)
        .map_err(|e| Error::new(e.kind(), format!("the base {}: {e}", device.name())))
}

fn read_on(device: &SharedDevice, tree: &Tree) -> Result<Base> {
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
        let node = tree.node(id);
        // A file with several names is where its first name is.
        if base.files.contains_key(&id) {
            continue;
        }
        let Some(inode) = find(&path)? else { continue };
        let Some(file) = place(&volume, &inode, node, geo.block_size)? else {
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
    // No more than the new file can use, whatever the base claims.
    let end = match attr.kind {
        FileKind::Regular => attr.size.min(node.stored_bytes()),
        FileKind::Directory => attr.size.min((node.children.len() as u64 + 64) * 1024),
        _ => 0,
    };
    let mut at = 0;
    while at < end {
        let mapping = volume.vfs().engine().map(inode, at, end - at)?;
        let next = mapping.offset.saturating_add(mapping.bytes);
        if next <= at {
            break;
        }
        if let Place::Mapped(start) | Place::Unwritten(start) = mapping.place {
            let physical = start.0.saturating_add(at - mapping.offset);
            let blocks = (next - at).div_ceil(unit);
            file.extents.push((at / unit, physical / unit, blocks));
        }
        at = next.next_multiple_of(unit);
    }
    Ok(Some(file))
}
