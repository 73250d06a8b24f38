//! A tree as a list of everything users can see of it, for comparisons between two mounts.

use rustix::fs::{AtFlags, CWD};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What is compared of one inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: (u32, u32),
    pub size: u64,
    pub blocks: u64,
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    pub btime: (i64, u32),
    pub ino: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Hash of a file, target of a symlink.
    pub contents: String,
    pub data_map: Vec<(u64, u64)>,
}

/// Path (below the root) → entry.
pub type Tree = BTreeMap<String, Entry>;

/// Reads a whole tree.
pub fn snapshot(root: &Path) -> Tree {
    let mut tree = Tree::new();
    walk(root, "", &mut tree);
    tree
}

fn walk(path: &Path, name: &str, tree: &mut Tree) {
    tree.insert(name.to_owned(), entry(path));
    let meta = std::fs::symlink_metadata(path).unwrap();
    if !meta.is_dir() {
        return;
    }
    let mut names: Vec<_> = std::fs::read_dir(path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .map(|e| e.unwrap().file_name())
        .collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(
        count,
        names.len(),
        "{}: a name was listed twice",
        path.display()
    );
    for child in names {
        let shown = format!("{name}/{}", String::from_utf8_lossy(child.as_bytes()));
        walk(&path.join(&child), &shown, tree);
    }
}

fn entry(path: &Path) -> Entry {
    let st = rustix::fs::statx(
        CWD,
        path,
        AtFlags::SYMLINK_NOFOLLOW,
        rustix::fs::StatxFlags::BASIC_STATS | rustix::fs::StatxFlags::BTIME,
    )
    .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mode = u32::from(st.stx_mode);
    let contents = match mode & 0o170_000 {
        0o100_000 => hash(path, st.stx_size),
        0o120_000 => format!("-> {}", std::fs::read_link(path).unwrap().display()),
        _ => String::new(),
    };
    let directory = mode & 0o170_000 == 0o040_000;
    Entry {
        mode,
        nlink: st.stx_nlink,
        uid: st.stx_uid,
        gid: st.stx_gid,
        rdev: (st.stx_rdev_major, st.stx_rdev_minor),
        size: if directory { 0 } else { st.stx_size },
        blocks: st.stx_blocks,
        mtime: (st.stx_mtime.tv_sec, st.stx_mtime.tv_nsec),
        ctime: (st.stx_ctime.tv_sec, st.stx_ctime.tv_nsec),
        btime: (st.stx_btime.tv_sec, st.stx_btime.tv_nsec),
        ino: st.stx_ino,
        xattrs: xattrs(path),
        contents,
        data_map: Vec::new(),
    }
}

fn hash(path: &Path, bytes: u64) -> String {
    let mut file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut hasher = DefaultHasher::new();
    let mut buf = vec![0; bytes.clamp(1, 1 << 20) as usize];
    loop {
        match file.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => hasher.write(&buf[..n]),
            Err(e) => panic!("{}: {e}", path.display()),
        }
    }
    format!("{:016x}", hasher.finish())
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0u8; 1 << 16];
    let len = match rustix::fs::llistxattr(path, &mut names) {
        Ok(len) => len,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(e) => panic!("{}: llistxattr: {e}", path.display()),
    };
    let mut found = BTreeMap::new();
    for name in names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 1 << 16];
        let len =
            rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).unwrap_or_else(|e| {
                panic!("{}: {}: {e}", path.display(), String::from_utf8_lossy(name))
            });
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    found
}

/// Fails with the first differences.
pub fn assert_same(what: &str, a: &Tree, b: &Tree) {
    let mut differences = Vec::new();
    for (path, x) in a {
        match b.get(path) {
            None => differences.push(format!("{path:?}: only in the first")),
            Some(y) if x != y => differences.push(format!("{path:?}:\n  {x:?}\n  {y:?}")),
            Some(_) => {}
        }
    }
    for path in b.keys().filter(|p| !a.contains_key(*p)) {
        differences.push(format!("{path:?}: only in the second"));
    }
    assert!(
        differences.is_empty(),
        "{what}: {} differences\n{}",
        differences.len(),
        differences
            .iter()
            .take(10)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
}
