//! Random changes of the tree, checked against a tree in memory, by e2fsck, and after a remount; over a
//! matrix of features. Skipped loudly where mke2fs is missing.

mod support;
#[path = "support/volume.rs"]
mod volume;

use blockwright_device::SharedDevice;
use blockwright_ext4::ErrorKind;
use blockwright_vfs::engine::{Attributes, Names, Rename, Volume as _};
use blockwright_vfs::types::{FileKind, NewInode, RenameMode, XattrMode};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use support::{Image, fsck, have, save};
use volume::Volume;

#[derive(Clone, Debug)]
struct Node {
    kind: FileKind,
    ino: u64,
    nlink: u32,
    children: BTreeMap<Vec<u8>, usize>,
    parent: usize,
    target: Vec<u8>,
    rdev: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct Model {
    nodes: Vec<Node>,
    /// Nodes that have names.
    live: Vec<usize>,
}

impl Model {
    fn dirs(&self) -> Vec<usize> {
        self.live
            .iter()
            .copied()
            .filter(|n| self.nodes[*n].kind == FileKind::Directory)
            .collect()
    }

    fn is_ancestor(&self, a: usize, mut of: usize) -> bool {
        loop {
            if a == of {
                return true;
            }
            if of == 0 {
                return false;
            }
            of = self.nodes[of].parent;
        }
    }

    fn drop_name(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        n.nlink = if n.kind == FileKind::Directory {
            0
        } else {
            n.nlink - 1
        };
        if n.nlink == 0 {
            self.live.retain(|l| *l != node);
        }
    }
}

fn check(volume: &mut Volume, model: &Model, rng: &mut StdRng) {
    for &n in &model.live {
        let node = &model.nodes[n];
        let inode = volume.get(node.ino);
        let attr = inode.attr();
        assert_eq!(attr.kind, node.kind);
        let subdirs = node
            .children
            .values()
            .filter(|c| model.nodes[**c].kind == FileKind::Directory)
            .count() as u32;
        match node.kind {
            FileKind::Directory => {
                // lost+found is not in the model.
                let extra = u32::from(n == 0);
                assert_eq!(attr.nlink, 2 + subdirs + extra, "links of {n}");
                let mut listed = volume.list(&inode, rng.random_range(1..200));
                assert_eq!(listed.remove(&b"."[..]), Some(node.ino));
                assert_eq!(
                    listed.remove(&b".."[..]),
                    Some(model.nodes[node.parent].ino)
                );
                listed.remove(&b"lost+found"[..]);
                let want: BTreeMap<_, _> = node
                    .children
                    .iter()
                    .map(|(name, c)| (name.clone(), model.nodes[*c].ino))
                    .collect();
                assert_eq!(listed, want);
            }
            _ => assert_eq!(attr.nlink, node.nlink),
        }
        if node.kind == FileKind::Symlink {
            assert_eq!(volume.engine.read_link(&inode).unwrap(), node.target);
        }
        assert_eq!(attr.rdev, node.rdev);
        let mut names = volume.engine.list_xattr(&inode).unwrap();
        names.sort();
        let want: Vec<_> = node.xattrs.keys().cloned().collect();
        assert_eq!(names, want);
        for (name, value) in &node.xattrs {
            assert_eq!(&volume.engine.get_xattr(&inode, name).unwrap(), value);
        }
    }
}

fn run(what: &str, mkfs: &[&str], seed: u64, steps: usize) {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let image = Image::make(48 << 10, &[&["-t", "ext4"], mkfs].concat());
    let scratch = tempfile::tempdir().unwrap();
    let memory = Arc::new(image.load());
    let e2fsck = |what: &str| {
        if let Err(e) = fsck(&save(&memory, scratch.path(), "image")) {
            panic!("{what}: {e}");
        }
    };
    let device: SharedDevice = memory.clone();
    let mut rng = StdRng::seed_from_u64(seed);
    eprintln!("{what}: seed {seed}");
    let mut v = Volume::mount(&device);
    assert!(!v.engine.is_read_only(), "{what}: mounted read-only");
    let big_values = mkfs.iter().any(|a| a.contains("ea_inode"));
    let mut m = Model {
        nodes: vec![Node {
            kind: FileKind::Directory,
            ino: 2,
            nlink: 2,
            children: BTreeMap::new(),
            parent: 0,
            target: Vec::new(),
            rdev: 0,
            xattrs: BTreeMap::new(),
        }],
        live: vec![0],
    };
    for step in 0..steps {
        let dirs = m.dirs();
        // The first directories are the large ones.
        let pick = |rng: &mut StdRng| {
            dirs[rng
                .random_range(0..dirs.len())
                .min(rng.random_range(0..dirs.len()))]
        };
        let d = pick(&mut rng);
        let dir = v.get(m.nodes[d].ino);
        let now = v.now();
        let fresh = {
            let len = if rng.random_bool(0.1) {
                rng.random_range(60..255)
            } else {
                rng.random_range(3..30)
            };
            let mut name = format!("{step}-").into_bytes();
            while name.len() < len {
                name.push(rng.random_range(b'a'..=b'z'));
            }
            name
        };
        let some_child = |m: &Model, rng: &mut StdRng, d: usize| {
            let n = m.nodes[d].children.len();
            (n > 0).then(|| {
                let (name, c) = m.nodes[d]
                    .children
                    .iter()
                    .nth(rng.random_range(0..n))
                    .unwrap();
                (name.clone(), *c)
            })
        };
        match rng.random_range(0..100) {
            0..45 => {
                let kind = match rng.random_range(0..10) {
                    0 | 1 if dirs.len() < 40 => FileKind::Directory,
                    2 => FileKind::Symlink,
                    3 => FileKind::CharDevice,
                    4 => FileKind::Fifo,
                    _ => FileKind::Regular,
                };
                let target = match kind {
                    FileKind::Symlink => vec![b't'; rng.random_range(1..300)],
                    _ => Vec::new(),
                };
                let rdev = if kind == FileKind::CharDevice {
                    0x1_0305
                } else {
                    0
                };
                let new = NewInode {
                    kind,
                    perm: 0o755,
                    uid: rng.random_range(0..3),
                    gid: 1000 + rng.random_range(0..3),
                    rdev,
                    symlink: target.clone(),
                    now,
                    xattrs: Vec::new(),
                };
                let inode = v.engine.create(&dir, &fresh, &new).unwrap();
                let ino = inode.ino().0;
                v.inodes.insert(ino, inode);
                let again = v.engine.create(&dir, &fresh, &new).unwrap_err();
                assert_eq!(again.kind(), ErrorKind::Exists);
                m.nodes.push(Node {
                    kind,
                    ino,
                    nlink: 1,
                    children: BTreeMap::new(),
                    parent: d,
                    target,
                    rdev,
                    xattrs: BTreeMap::new(),
                });
                let id = m.nodes.len() - 1;
                m.live.push(id);
                m.nodes[d].children.insert(fresh, id);
            }
            45..55 => {
                let from = pick(&mut rng);
                let Some((_, c)) = some_child(&m, &mut rng, from) else {
                    continue;
                };
                if m.nodes[c].kind == FileKind::Directory {
                    continue;
                }
                let inode = v.get(m.nodes[c].ino);
                v.engine.link(&dir, &fresh, &inode, now).unwrap();
                m.nodes[c].nlink += 1;
                m.nodes[d].children.insert(fresh, c);
            }
            55..68 => {
                let Some((name, c)) = some_child(&m, &mut rng, d) else {
                    continue;
                };
                let inode = v.get(m.nodes[c].ino);
                if m.nodes[c].kind == FileKind::Directory {
                    let done = v.engine.rmdir(&dir, &name, &inode, now);
                    if m.nodes[c].children.is_empty() {
                        done.unwrap();
                    } else {
                        assert_eq!(done.unwrap_err().kind(), ErrorKind::NotEmpty);
                        continue;
                    }
                } else {
                    v.engine.unlink(&dir, &name, &inode, now).unwrap();
                }
                m.nodes[d].children.remove(&name);
                m.drop_name(c);
                v.settle(&inode);
            }
            68..88 => {
                let to = pick(&mut rng);
                let Some((name, c)) = some_child(&m, &mut rng, d) else {
                    continue;
                };
                let existing = if rng.random_bool(0.5) {
                    some_child(&m, &mut rng, to)
                } else {
                    None
                };
                let (new_name, target) = match existing {
                    Some((n, t)) => (n, Some(t)),
                    None => (fresh, None),
                };
                let is_dir = |n: usize| m.nodes[n].kind == FileKind::Directory;
                let mode = match rng.random_range(0..6) {
                    0 => RenameMode::NoReplace,
                    1 if target.is_some() => RenameMode::Exchange,
                    2 => RenameMode::Whiteout,
                    _ => RenameMode::Replace,
                };
                if is_dir(c) && m.is_ancestor(c, to) {
                    continue;
                }
                if mode == RenameMode::Exchange
                    && target.is_some_and(|t| is_dir(t) && m.is_ancestor(t, d))
                {
                    continue;
                }
                if target.is_some_and(|t| m.is_ancestor(t, d) && is_dir(t)) {
                    continue;
                }
                let new_dir = v.get(m.nodes[to].ino);
                let inode = v.get(m.nodes[c].ino);
                let target_inode = target.map(|t| v.get(m.nodes[t].ino));
                // The vfs never asks for these: one file's two names, kinds that do not suit, a name that must be free.
                if let Some(t) = target
                    && (t == c
                        || mode == RenameMode::NoReplace
                        || (mode != RenameMode::Exchange && is_dir(c) != is_dir(t)))
                {
                    continue;
                }
                let done = v.engine.rename(&Rename {
                    old_dir: &dir,
                    old_name: &name,
                    inode: &inode,
                    new_dir: &new_dir,
                    new_name: &new_name,
                    target: target_inode.as_ref(),
                    mode,
                    now,
                });
                let want = match (mode, target) {
                    (RenameMode::Exchange, _) => None,
                    (_, Some(t)) if is_dir(t) && !m.nodes[t].children.is_empty() => {
                        Some(ErrorKind::NotEmpty)
                    }
                    _ => None,
                };
                assert_eq!(done.as_ref().err().map(|e| e.kind()), want, "{done:?}");
                if want.is_some() {
                    continue;
                }
                if mode == RenameMode::Exchange {
                    let t = target.unwrap();
                    m.nodes[d].children.insert(name, t);
                    m.nodes[to].children.insert(new_name, c);
                    for (n, p) in [(c, to), (t, d)] {
                        m.nodes[n].parent = p;
                    }
                    continue;
                }
                m.nodes[d].children.remove(&name);
                if mode == RenameMode::Whiteout {
                    let (ino, _) = v.engine.lookup(&dir, &name).unwrap().unwrap();
                    m.nodes.push(Node {
                        kind: FileKind::CharDevice,
                        ino: ino.0,
                        nlink: 1,
                        children: BTreeMap::new(),
                        parent: d,
                        target: Vec::new(),
                        rdev: 0,
                        xattrs: BTreeMap::new(),
                    });
                    let id = m.nodes.len() - 1;
                    m.live.push(id);
                    m.nodes[d].children.insert(name, id);
                }
                m.nodes[to].children.insert(new_name, c);
                m.nodes[c].parent = to;
                if let Some(t) = target {
                    m.drop_name(t);
                    v.settle(&target_inode.unwrap());
                }
            }
            _ => {
                let n = m.live[rng.random_range(0..m.live.len())];
                let inode = v.get(m.nodes[n].ino);
                let prefix = ["user.", "trusted.", "security."][rng.random_range(0..3)];
                let name = format!("{prefix}{}", rng.random_range(0..6)).into_bytes();
                if rng.random_bool(0.3) {
                    let done = v.engine.remove_xattr(&inode, &name);
                    let had = m.nodes[n].xattrs.remove(&name).is_some();
                    assert_eq!(done.is_ok(), had, "{done:?}");
                } else {
                    let max = match rng.random_range(0..10) {
                        0 if big_values => 20_000,
                        1..4 => 600,
                        _ => 40,
                    };
                    let mut value = vec![0u8; rng.random_range(0..max)];
                    rng.fill(&mut value[..]);
                    match v.engine.set_xattr(&inode, &name, &value, XattrMode::Any) {
                        Ok(()) => {
                            m.nodes[n].xattrs.insert(name, value);
                        }
                        Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}"),
                    }
                }
            }
        }
    }
    check(&mut v, &m, &mut rng);
    v.unmount();
    e2fsck(what);
    let mut v = Volume::mount(&device);
    check(&mut v, &m, &mut rng);
    v.unmount();
    // Everything goes again.
    let mut v = Volume::mount(&device);
    let mut order: Vec<usize> = m.dirs();
    let depth = |mut n: usize| {
        let mut depth = 0;
        while n != 0 {
            n = m.nodes[n].parent;
            depth += 1;
        }
        depth
    };
    order.sort_by_key(|n| std::cmp::Reverse(depth(*n)));
    for d in order {
        let dir = v.get(m.nodes[d].ino);
        for (name, c) in &m.nodes[d].children {
            let inode = v.get(m.nodes[*c].ino);
            let now = v.now();
            match m.nodes[*c].kind {
                FileKind::Directory => v.engine.rmdir(&dir, name, &inode, now).unwrap(),
                _ => v.engine.unlink(&dir, name, &inode, now).unwrap(),
            }
            v.settle(&inode);
        }
    }
    v.unmount();
    e2fsck(&format!("{what}, emptied"));
}

/// `NAMES_SEED`, to look further than the usual run does.
fn seed() -> u64 {
    std::env::var("NAMES_SEED").map_or(1, |s| s.parse().unwrap())
}

macro_rules! matrix {
    ($($name:ident: [$($arg:literal),*] $steps:literal;)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), &[$($arg),*], seed(), $steps);
        })*
    };
}

matrix! {
    defaults: [] 3000;
    block_1k: ["-b", "1024"] 6000;
    block_2k_inode_512: ["-b", "2048", "-I", "512"] 3000;
    block_64k: ["-b", "65536"] 1500;
    inode_128: ["-I", "128"] 2000;
    inode_1024: ["-I", "1024", "-b", "4096"] 2000;
    inline_data: ["-O", "inline_data"] 3000;
    inline_data_1k: ["-O", "inline_data", "-b", "1024"] 4000;
    ea_inode: ["-O", "ea_inode"] 2000;
    ea_inode_inline: ["-O", "ea_inode,inline_data", "-I", "512", "-b", "1024"] 2000;
    large_dir: ["-O", "large_dir", "-b", "1024"] 3000;
    no_dir_index: ["-O", "^dir_index"] 2000;
    no_filetype: ["-O", "^filetype"] 2000;
    ext2: ["-O", "^has_journal,^extent,^64bit,^metadata_csum,^flex_bg,^huge_file,^extra_isize,^dir_nlink,uninit_bg"] 2500;
    ext3: ["-O", "^extent,^64bit,^metadata_csum,^flex_bg", "-b", "1024"] 3000;
    no_checksums: ["-O", "^metadata_csum"] 2500;
    quota: ["-O", "quota,project", "-E", "quotatype=usrquota:grpquota:prjquota"] 2500;
    quota_1k: ["-O", "quota", "-b", "1024"] 2500;
    orphan_file: ["-O", "orphan_file"] 2000;
    no_journal: ["-O", "^has_journal"] 2000;
    everything: ["-O", "inline_data,ea_inode,quota,project,large_dir,orphan_file", "-I", "512", "-b", "1024"] 4000;
}
