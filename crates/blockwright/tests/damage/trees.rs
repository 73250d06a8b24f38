//! What a volume holds, and what one of two repairs lost of it.

use blockwright::{Error, ErrorKind, FileType, Volume};
use blockwright_device::{MemoryDevice, SharedDevice};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files are compared in pieces of this size.
const PIECE: usize = 1024;
/// A damaged size may be absurd: no more than this much of a file is looked at.
const PIECES_MAX: usize = 8192;
/// More pieces of a file are not read, zeroes or not: a damaged size may claim terabytes of data.
const READ_MAX: usize = 65_536;
/// The volumes are small: a walk that does not end is in a loop.
const ENTRIES_MAX: usize = 20_000;

/// One name and what it leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    pub ino: u64,
    pub kind: FileType,
    /// Hashes of the pieces that are not zero, by their number.
    pub pieces: BTreeMap<u64, u64>,
    pub target: Option<PathBuf>,
    pub attributes: BTreeMap<Vec<u8>, u64>,
}

/// All names of a volume.
#[derive(Default, Debug)]
pub struct Tree {
    pub nodes: BTreeMap<PathBuf, Node>,
    /// What the engine could not read, with its reason.
    pub errors: Vec<String>,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut state = DefaultHasher::new();
    bytes.hash(&mut state);
    state.finish()
}

/// Reads everything. `Err`: the engine refuses the volume.
pub fn read(device: &MemoryDevice) -> Result<Tree, String> {
    let device: SharedDevice = Arc::new(device.snapshot());
    let v = Volume::options()
        .read_only(true)
        .open_device(device)
        .map_err(|e| e.to_string())?;
    let mut refused = Vec::new();
    let mut tree = names(&v, &mut refused);
    // A file whose key is missing, for one, is as good as before.
    let damage = (refused.iter())
        .filter(|(e, of_name)| *of_name || matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io));
    tree.errors.extend(damage.map(|(e, _)| e.to_string()));
    let _ = v.close();
    Ok(tree)
}

/// Reads everything of an open volume. What was refused goes to `refused`, and whether it was a name rather than what
/// the name leads to.
pub fn names(v: &Volume, refused: &mut Vec<(Error, bool)>) -> Tree {
    let mut tree = Tree::default();
    for (n, entry) in v.walk("/").enumerate() {
        if n > ENTRIES_MAX {
            tree.errors.push("the walk does not end".to_owned());
            break;
        }
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                refused.push((e, true));
                continue;
            }
        };
        let mut node = Node {
            ino: entry.metadata.ino(),
            kind: entry.metadata.file_type(),
            pieces: BTreeMap::new(),
            target: None,
            attributes: BTreeMap::new(),
        };
        let path = &entry.path;
        let mut failed = Vec::new();
        match v.list_xattr(path) {
            Ok(names) => {
                for name in names {
                    match v.get_xattr(path, &name) {
                        Ok(value) => {
                            let name = name.as_encoded_bytes().to_vec();
                            node.attributes.insert(name, hash(&value));
                        }
                        Err(e) => failed.push(e),
                    }
                }
            }
            Err(e) => failed.push(e),
        }
        if entry.metadata.is_symlink() {
            match v.read_link(path) {
                Ok(target) => node.target = Some(target),
                Err(e) => failed.push(e),
            }
        } else if entry.metadata.is_file() {
            failed.extend(pieces_of(v, path, &mut node.pieces).err());
        }
        refused.extend(failed.into_iter().map(|e| (e, false)));
        tree.nodes.insert(entry.path.clone(), node);
    }
    tree
}

/// Hashes of the pieces of a file that are not zero, by their number. The functions tell where data and holes begin,
/// and read.
pub fn pieces<E>(
    out: &mut BTreeMap<u64, u64>,
    seek_data: impl Fn(u64) -> Result<Option<u64>, E>,
    seek_hole: impl Fn(u64) -> Result<u64, E>,
    read: impl Fn(&mut [u8], u64) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = 0;
    let mut read_pieces = 0;
    let mut buf = vec![0; PIECE];
    loop {
        let Some(data) = seek_data(at)? else {
            return Ok(());
        };
        let hole = seek_hole(data)?;
        at = data / PIECE as u64 * PIECE as u64;
        while at < hole {
            buf.fill(0);
            read(&mut buf, at)?;
            if buf.iter().any(|b| *b != 0) {
                // Zeroes behind the end are as good as none.
                out.insert(at / PIECE as u64, hash(&buf));
            }
            read_pieces += 1;
            if out.len() > PIECES_MAX || read_pieces > READ_MAX {
                return Ok(());
            }
            at += PIECE as u64;
        }
    }
}

fn pieces_of(v: &Volume, path: &Path, out: &mut BTreeMap<u64, u64>) -> blockwright::Result<()> {
    let file = v.open_file(path)?;
    pieces(
        out,
        |at| match file.seek_data(at) {
            Ok(data) => Ok(Some(data)),
            Err(e) if e.kind() == ErrorKind::NoData => Ok(None),
            Err(e) => Err(e),
        },
        |data| file.seek_hole(data),
        |buf, at| file.read_at(buf, at).map(drop),
    )
}

impl Tree {
    fn find(&self, ino: u64) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(move |n| n.ino == ino)
    }
}

/// What the other repair kept of what was there, and ours lost.
pub fn lost(before: &Tree, ours: &Tree, theirs: &Tree) -> Vec<String> {
    let mut out = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, kept) in &theirs.nodes {
        let shown = path.display();
        // Either repair makes a new one when it is gone.
        if kept.kind == FileType::Directory && path.as_os_str() == "/lost+found" {
            continue;
        }
        // What was there under this name, or under another one.
        let was = match before.nodes.get(path) {
            Some(was) if was.kind == kept.kind => Some(was),
            _ => before.find(kept.ino).find(|n| n.kind == kept.kind),
        };
        let Some(was) = was else { continue };
        let place = ours.nodes.get(path).filter(|n| n.kind == kept.kind);
        if before.nodes.contains_key(path) && place.is_none() {
            out.push(format!("{shown}: the name is lost"));
            if ours.find(kept.ino).next().is_none() {
                out.push(format!("{shown}: inode {} is lost", kept.ino));
            }
            continue;
        }
        // Under another name the inode tells.
        let Some(have) = place.or_else(|| ours.find(kept.ino).find(|n| n.kind == kept.kind)) else {
            out.push(format!("{shown}: inode {} is lost", kept.ino));
            continue;
        };
        if !seen.insert((kept.ino, have.ino)) {
            continue;
        }
        let same = |n: &&u64| was.pieces.get(n) == kept.pieces.get(n);
        let gone: Vec<u64> = (kept.pieces.keys().filter(same))
            .filter(|n| have.pieces.get(n) != kept.pieces.get(n))
            .copied()
            .collect();
        if let (Some(first), Some(last)) = (gone.first(), gone.last()) {
            out.push(format!(
                "{shown}: {} KiB are lost, of {first}..={last}",
                gone.len()
            ));
        }
        if kept.target == was.target && have.target != kept.target {
            out.push(format!("{shown}: the link's target is lost"));
        }
        for (name, value) in &kept.attributes {
            if was.attributes.get(name) == Some(value) && have.attributes.get(name) != Some(value) {
                out.push(format!(
                    "{shown}: attribute {:?} is lost",
                    String::from_utf8_lossy(name)
                ));
            }
        }
    }
    out
}

#[test]
fn sizes_that_claim_terabytes_end() {
    let mut out = BTreeMap::new();
    let reads = std::cell::Cell::new(0);
    let read = |buf: &mut [u8], at: u64| {
        reads.set(reads.get() + 1);
        if at == 2048 {
            buf[7] = 1;
        }
        Ok::<_, ()>(())
    };
    let size = 16 << 40;
    let data = |at: u64| Ok((at < size).then_some(at));
    pieces(&mut out, data, |_| Ok(size), read).expect("read");
    assert_eq!(out.keys().collect::<Vec<_>>(), [&2]);
    assert_eq!(reads.get(), READ_MAX + 1);
}
