//! A UUID that follows from the input: the same sources and options have the same one, others have another.
//!
//! SHA-256 over the options and, for every file in the order of its path, all that will be stored of it: metadata,
//! attributes, data. Times are those of the tree, which `SOURCE_DATE_EPOCH` has bounded before; so a checkout of the
//! same sources on another day has the same digest.

use super::data::TreeData;
use super::progress::{Meter, Tell};
use super::tree::LayerTree;
use crate::{Error, ErrorKind, Result};
use blockwright_mkfs::DataSource;
use blockwright_mkfs::tree::NodeId;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// Bytes of data read at once.
const CHUNK: usize = 1 << 20;

/// Appends bytes with their length, so that no two inputs look the same.
pub(crate) fn put(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_le_bytes());
    hash.update(bytes);
}

fn number(hash: &mut Sha256, n: impl Into<i128>) {
    hash.update(n.into().to_le_bytes());
}

/// The UUID for these sources and options. `size`: the requested size of the volume; `options`: all options of the format, as
/// text.
///
/// # Errors
/// Those of reading the data; `Interrupted` when `tell` breaks.
pub(crate) fn uuid(
    tree: &LayerTree,
    size: &str,
    options: &str,
    tell: Tell<'_>,
) -> Result<[u8; 16]> {
    let mut meter = Meter::new(tell);
    let mut hash = Sha256::new();
    put(&mut hash, b"blockwright volume, 1");
    put(&mut hash, size.as_bytes());
    // Every option is in there, those to come as well.
    put(&mut hash, options.as_bytes());
    let source = TreeData(&tree.data);
    let mut buffer = vec![0u8; CHUNK];
    // Files with several names are identified by the first one's number.
    let mut numbers: HashMap<NodeId, u64> = HashMap::new();
    let mut todo = vec![(Vec::new(), NodeId::ROOT)];
    while let Some((name, id)) = todo.pop() {
        put(&mut hash, &name);
        let next = numbers.len() as u64;
        let known = *numbers.entry(id).or_insert(next);
        number(&mut hash, known);
        if known != next {
            continue;
        }
        meter.entry()?;
        let node = tree.tree.node(id);
        number(&mut hash, node.kind.mode_bits());
        number(&mut hash, node.perm);
        for n in [
            node.uid,
            node.gid,
            node.project,
            node.device.0,
            node.device.1,
        ] {
            number(&mut hash, n);
        }
        put(&mut hash, format!("{:?}", node.flags).as_bytes());
        for t in [node.atime, node.mtime, node.ctime, node.crtime] {
            number(&mut hash, t.secs);
            number(&mut hash, t.nanos);
        }
        number(&mut hash, node.xattrs.len() as u64);
        for (name, value) in &node.xattrs {
            put(&mut hash, name);
            put(&mut hash, value);
        }
        put(&mut hash, &node.symlink);
        number(&mut hash, node.size);
        number(&mut hash, node.data.len() as u64);
        for range in &node.data {
            number(&mut hash, range.start);
            number(&mut hash, range.end);
            let mut at = range.start;
            let end = range.end.min(node.size);
            while at < end {
                let part = (end - at).min(CHUNK as u64) as usize;
                source.read_at(id, at, &mut buffer[..part]).map_err(|e| {
                    match e.downcast::<Error>() {
                        Ok(own) => *own,
                        Err(e) => Error::new(ErrorKind::Io, e.to_string()),
                    }
                })?;
                hash.update(&buffer[..part]);
                at += part as u64;
                meter.read(part as u64)?;
            }
        }
        number(&mut hash, node.children.len() as u64);
        for (name, child) in node.children.iter().rev() {
            todo.push((name.clone(), *child));
        }
    }
    Ok(as_uuid(hash))
}

/// The first bytes of a digest as a UUID.
pub(crate) fn as_uuid(hash: Sha256) -> [u8; 16] {
    let digest = hash.finalize();
    let mut uuid = [0u8; 16];
    uuid.copy_from_slice(&digest[..16]);
    // Version 8 (of the maker's own design) of RFC 9562.
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}
