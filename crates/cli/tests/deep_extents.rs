//! Extent trees of depth 5, the format's limit: read, changed in the middle, cut and removed; our checker, e2fsck and the kernel have the
//! same file after each step.
//!
//! Files grow such trees from some millions of pieces on. Here nodes with few entries make them of some hundred: the volume is edited,
//! with the nodes in blocks of another file, which is empty afterwards.

mod common;

use blockwright::{ErrorKind, File, OpenOptions, Volume};
use blockwright_check::ext4::{CheckOptions, check};
use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_ondisk::ext4::extent::{
    self, Extent, ExtentIndex, ExtentNode, MAX_DEPTH, NodePlace, NodeRules,
};
use blockwright_ondisk::ext4::{BlockNo, FileBlock, Ino};
use blockwright_test_support::lab::volume as edited;
use common::populate::Rng;
use common::run::good;
use common::{KernelMount, Scratch, check_clean, have, our_mkfs, output};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const BLOCK: usize = 1024;
/// Entries of a full node in a block, and in the inode.
const FULL: usize = 84;
const ROOT: usize = 4;
/// Every so manieth block of the file has a place, so that neighbours stay extents of their own.
const STRIDE: u64 = 3;
const NAME: &str = "deep";

/// The shape of a tree: extents are handed out from left to right.
enum Shape {
    /// So many extents.
    Leaf(usize),
    Inner(Vec<Shape>),
}

impl Shape {
    /// The least that reaches so deep: one entry everywhere.
    fn chain(depth: u16) -> Shape {
        match depth {
            0 => Shape::Leaf(1),
            _ => Shape::Inner(vec![Shape::chain(depth - 1)]),
        }
    }

    /// Of `root` entries; all nodes on the way to one leaf in the middle are full, beside chains.
    fn full_on_one_path(depth: u16, entries: usize) -> Shape {
        if depth == 0 {
            return Shape::Leaf(entries);
        }
        let children = (0..entries).map(|n| match n == entries / 2 {
            true => Shape::full_on_one_path(depth - 1, FULL),
            false => Shape::chain(depth - 1),
        });
        Shape::Inner(children.collect())
    }

    /// All nodes have this many entries, leaves of `leaf`.
    fn even(depth: u16, entries: usize, leaf: usize) -> Shape {
        match depth {
            0 => Shape::Leaf(leaf),
            _ => Shape::Inner(
                (0..entries)
                    .map(|_| Shape::even(depth - 1, entries, leaf))
                    .collect(),
            ),
        }
    }

    fn extents(&self) -> usize {
        match self {
            Shape::Leaf(n) => *n,
            Shape::Inner(children) => children.iter().map(Shape::extents).sum(),
        }
    }

    /// Nodes that are in blocks: all but the root.
    fn nodes(&self) -> usize {
        match self {
            Shape::Leaf(_) => 0,
            Shape::Inner(children) => children.iter().map(|c| 1 + c.nodes()).sum(),
        }
    }
}

/// Where a tree is made of a shape.
struct Planting<'a> {
    volume: &'a mut edited::Volume,
    ino: Ino,
    extents: std::vec::IntoIter<Extent>,
    blocks: Vec<BlockNo>,
}

impl Planting<'_> {
    /// Makes `bytes` the node of this shape, and all below. The first block that it maps.
    fn node(&mut self, bytes: &mut [u8], shape: &Shape) -> (u16, FileBlock) {
        match shape {
            Shape::Leaf(n) => {
                let extents: Vec<Extent> = self.extents.by_ref().take(*n).collect();
                extent::write_leaf(bytes, &extents).expect("a leaf's room");
                (0, extents[0].logical)
            }
            Shape::Inner(children) => {
                let mut below = 0;
                let indexes: Vec<ExtentIndex> = children
                    .iter()
                    .map(|shape| {
                        let child = self.blocks.pop().expect("blocks for all nodes");
                        let mut node = vec![0; BLOCK];
                        let (depth, logical) = self.node(&mut node, shape);
                        self.volume
                            .edit_extent_block(self.ino, child, |b| b.copy_from_slice(&node));
                        below = depth;
                        ExtentIndex { logical, child }
                    })
                    .collect();
                extent::write_inner(bytes, below + 1, &indexes).expect("a node's room");
                (below + 1, indexes[0].logical)
            }
        }
    }
}

/// Extents and nodes of a file, and the depth of its tree.
fn tree_of(volume: &edited::Volume, ino: Ino) -> (Vec<Extent>, Vec<BlockNo>, u16) {
    let (mut extents, mut blocks, mut depth) = (Vec::new(), Vec::new(), 0);
    let mut nodes = vec![(volume.inode(ino).block.to_vec(), NodePlace::Inode)];
    while let Some((bytes, place)) = nodes.pop() {
        let node = ExtentNode::parse(&bytes, place, NodeRules::ROOT, &volume.geo).expect("a node");
        depth = depth.max(node.depth());
        extents.extend(node.extents());
        for index in node.indexes() {
            blocks.push(index.child);
            let at = volume.at(index.child);
            let bytes = volume.image[at..at + BLOCK].to_vec();
            nodes.push((bytes, NodePlace::Block(index.child)));
        }
    }
    extents.sort_by_key(|e| e.logical);
    (extents, blocks, depth)
}

fn piece(n: u64) -> Vec<u8> {
    (0..BLOCK as u64)
        .map(|k| (n * 7 + k / 64 + 1) as u8)
        .collect()
}

/// A volume with a deep file, what the file must hold, and what is free without it.
struct Deep {
    scratch: Scratch,
    image: PathBuf,
    model: Vec<u8>,
    free: u64,
}

impl Deep {
    fn open(image: &Path) -> Volume {
        Volume::open(image).expect("opens")
    }

    fn new(features: &str, shape: &Shape) -> Deep {
        let scratch = Scratch::new();
        let image = scratch.path("disk.img");
        our_mkfs(&image, &["-b", "1024", "-O", features], "16M");
        let volume = Self::open(&image);
        let free = volume.statfs().expect("statfs").blocks_free;
        let mut model = Vec::new();
        let file = volume.create_file(NAME).expect("a file");
        for n in 0..shape.extents() as u64 {
            let at = n * STRIDE * BLOCK as u64;
            file.write_all_at(&piece(n), at).expect("written");
            model.resize(at as usize, 0);
            model.extend_from_slice(&piece(n));
        }
        drop(file);
        volume.close().expect("closed");
        let load = || edited::Volume::new(std::fs::read(&image).expect("read"));
        let (_, used, _) = tree_of(&load(), load().lookup(NAME));
        let volume = Self::open(&image);
        let donor = vec![1; (shape.nodes() - used.len()) * BLOCK];
        volume.write("donor", donor).expect("written");
        volume.close().expect("closed");

        let mut volume = load();
        let (ino, donor) = (volume.lookup(NAME), volume.lookup("donor"));
        let (extents, mut blocks, _) = tree_of(&volume, ino);
        assert_eq!(extents.len(), shape.extents());
        blocks.extend(volume.blocks(donor));
        assert_eq!(
            blocks.len(),
            shape.nodes(),
            "the donor's own tree is in its inode"
        );
        let all = extents.len() + blocks.len();
        let mut root = [0; 60];
        let mut planting = Planting {
            volume: &mut volume,
            ino,
            extents: extents.into_iter(),
            blocks,
        };
        let (depth, _) = planting.node(&mut root, shape);
        assert_eq!(depth, MAX_DEPTH);
        volume.edit_inode(ino, |i| {
            i.block = root;
            i.sectors = (all * BLOCK / 512) as u64;
        });
        volume.edit_inode(donor, |i| {
            extent::write_leaf(&mut i.block, &[]).expect("an empty tree");
            (i.sectors, i.size) = (0, 0);
        });
        std::fs::write(&image, &volume.image).expect("written");
        let deep = Deep {
            scratch,
            image,
            model,
            free,
        };
        assert_eq!(deep.agreed("planted"), MAX_DEPTH);
        deep
    }

    /// The depth of the tree, on which all programs agree, as on the file's contents.
    fn agreed(&self, what: &str) -> u16 {
        check_clean(&self.image, what);
        // It says where trees could be shorter or narrower, which is no damage.
        let out = output(Command::new("e2fsck").arg("-fn").arg(&self.image));
        let said = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{what}: {}\n{said}", out.status);
        let copy = self.scratch.path("copy");
        let copy_text = copy.to_str().expect("UTF-8");
        good(&self.image, &["cp", "IMAGE:/deep", copy_text]);
        self.compare(what, &std::fs::read(&copy).expect("a copy"));
        if blockwright_oracles::is_root() {
            let kernel = KernelMount::new(&self.image, &self.scratch.dir("kernel"), "ro,noload");
            let seen = std::fs::read(kernel.mountpoint.join(NAME)).expect("the kernel reads it");
            self.compare(&format!("{what}, by the kernel"), &seen);
        }
        self.tree().2
    }

    fn tree(&self) -> (Vec<Extent>, Vec<BlockNo>, u16) {
        let volume = edited::Volume::new(std::fs::read(&self.image).expect("read"));
        tree_of(&volume, volume.lookup(NAME))
    }

    /// Nodes of the tree that are in blocks.
    fn nodes(&self) -> usize {
        self.tree().1.len()
    }

    fn compare(&self, what: &str, seen: &[u8]) {
        assert_eq!(seen.len(), self.model.len(), "{what}");
        if let Some(at) = (0..seen.len()).find(|&n| seen[n] != self.model[n]) {
            panic!("{what}: byte {at} is {}, not {}", seen[at], self.model[at]);
        }
    }

    /// Changes the file and closes the volume. The depth afterwards.
    fn change(&mut self, what: &str, change: impl FnOnce(&File, &mut Vec<u8>)) -> u16 {
        let volume = Self::open(&self.image);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&volume, NAME)
            .expect("opens");
        change(&file, &mut self.model);
        drop(file);
        volume.close().unwrap_or_else(|e| panic!("{what}: {e}"));
        self.agreed(what)
    }

    fn remove(self, what: &str) {
        let volume = Self::open(&self.image);
        volume.remove_file(NAME).expect("removed");
        volume.remove_file("donor").expect("removed");
        volume.sync().expect("synced");
        let free = volume.statfs().expect("statfs").blocks_free;
        assert_eq!(free, self.free, "{what}: blocks were lost");
        volume.close().expect("closed");
        check_clean(&self.image, what);
        let out = output(Command::new("e2fsck").arg("-fn").arg(&self.image));
        assert!(out.status.success(), "{what}: {}", out.status);
    }
}

fn possible() -> bool {
    have("e2fsck") && common::have_kernel()
}

fn write(file: &File, model: &mut Vec<u8>, block: u64, bytes: &[u8]) {
    let at = block as usize * BLOCK;
    file.write_all_at(bytes, at as u64).expect("written");
    if model.len() < at + bytes.len() {
        model.resize(at + bytes.len(), 0);
    }
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A full leaf below full nodes is split, and so is everything above it but the root; then the tree is cut back.
fn split_and_cut(features: &str) {
    let shape = Shape::full_on_one_path(MAX_DEPTH, ROOT - 1);
    let mut deep = Deep::new(features, &shape);
    let pieces = shape.extents() as u64;
    // The full leaf is in the middle, and so is this hole.
    let middle = pieces / 2 * STRIDE + 1;
    let before = deep.nodes();
    let depth = deep.change("a hole in a full leaf is written to", |file, model| {
        // As it has no data yet, it joins no neighbour.
        let at = middle * BLOCK as u64;
        file.allocate(at, 2 * BLOCK as u64).expect("allocated");
        write(file, model, middle + 1, &[0xEE; 100]);
        write(file, model, middle - 1, &[0xEF; 100]);
    });
    assert_eq!(depth, MAX_DEPTH);
    // The leaf, and the node above it on each level but the root's.
    assert_eq!(deep.nodes(), before + usize::from(MAX_DEPTH));
    let depth = deep.change("written behind the end", |file, model| {
        let end = pieces * STRIDE + 50;
        write(file, model, end, &[0xED; 3000]);
    });
    assert_eq!(depth, MAX_DEPTH);
    let depth = deep.change(
        "half a leaf is punched, from the middle of a block on",
        |file, model| {
            let (at, len) = ((middle - 61) as usize * BLOCK + 100, 50 * BLOCK);
            file.punch_hole(at as u64, len as u64).expect("punched");
            model[at..at + len].fill(0);
        },
    );
    assert_eq!(depth, MAX_DEPTH);
    deep.change(
        "unwritten blocks fill holes of many leaves",
        |file, model| {
            let (at, len) = ((middle + 40) * BLOCK as u64, 300 * BLOCK as u64);
            file.allocate(at, len).expect("allocated");
            write(file, model, middle + 100, &[0xEC; 5000]);
        },
    );
    deep.change("what is behind moves", |file, model| {
        let (at, len) = (90 * BLOCK, 30 * BLOCK);
        file.collapse_range(at as u64, len as u64)
            .expect("collapsed");
        model.drain(at..at + len);
        let (at, len) = (20 * BLOCK, 7 * BLOCK);
        file.insert_range(at as u64, len as u64).expect("inserted");
        model.splice(at..at, std::iter::repeat_n(0, len));
    });
    deep.change("cut in the middle of a block", |file, model| {
        let to = middle as usize * BLOCK / 2 + 10;
        file.set_len(to as u64).expect("cut");
        model.truncate(to);
    });
    let depth = deep.change("cut to one piece", |file, model| {
        file.set_len(5).expect("cut");
        model.truncate(5);
    });
    assert_eq!(depth, 0, "what fits the inode is in the inode");
    deep.remove("a tree that was cut");
}

#[test]
fn split_cut_and_removed() {
    if possible() {
        split_and_cut("");
    }
}

#[test]
fn split_cut_and_removed_without_checksums() {
    if possible() {
        split_and_cut("^metadata_csum,^64bit");
    }
}

/// The power fails while such a tree is split, and while it is cut and its nodes are freed level by level: the file is as it was before the
/// step or after it, and no block is lost.
#[test]
fn cut_short_by_a_crash() {
    if !possible() {
        return;
    }
    let shape = Shape::full_on_one_path(MAX_DEPTH, ROOT - 1);
    let deep = Deep::new("", &shape);
    let base = MemoryDevice::load(&deep.image).expect("loaded");
    let recording = Arc::new(RecordingDevice::new(&base));
    let volume = Volume::open_device(recording.clone()).expect("opens");
    let mut states = vec![deep.model.clone()];
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&volume, NAME)
        .expect("opens");
    let (middle, block) = (shape.extents() / 2 * STRIDE as usize + 1, BLOCK as u64);
    let mut step = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut model = states.last().expect("a state").clone();
        change(&mut model);
        states.push(model);
        file.sync_all().expect("synced");
    };
    file.allocate(middle as u64 * block, 2 * block)
        .expect("allocated");
    step(&|_| {});
    let (at, len) = ((middle - 200) * BLOCK, 400 * BLOCK);
    file.punch_hole(at as u64, len as u64).expect("punched");
    step(&|model| model[at..at + len].fill(0));
    // At a block's end: the rest of a block is overwritten with zeroes before the size changes.
    file.set_len(block).expect("cut");
    step(&|model| model.truncate(BLOCK));
    drop(file);
    volume.close().expect("closed");

    let log = recording.log_len();
    let mut seen_states = vec![0; states.len()];
    for cut in 0..=log {
        for policy in [
            CrashPolicy::AllKept,
            CrashPolicy::NoneKept,
            CrashPolicy::Random { seed: cut as u64 },
        ] {
            let what = format!("cut {cut} of {log}, {policy:?}");
            let image: SharedDevice = Arc::new(recording.image_at(cut, policy));
            let volume =
                Volume::open_device(image.clone()).unwrap_or_else(|e| panic!("{what}: {e}"));
            let seen = volume.read(NAME).unwrap_or_else(|e| panic!("{what}: {e}"));
            // A punch, or a cut, of many nodes takes several transactions: what it has not come to may be there.
            let within = |n: usize| {
                let (before, after) = (&states[n.saturating_sub(1)], &states[n]);
                [before.len(), after.len()].contains(&seen.len())
                    && seen.iter().enumerate().all(|(at, byte)| {
                        *byte == before[at] || after.get(at).is_some_and(|b| b == byte)
                    })
            };
            let state = (0..states.len()).find(|n| within(*n));
            let Some(state) = state else {
                let wrong =
                    |n: &Vec<u8>| (0..seen.len().min(n.len())).find(|&at| seen[at] != n[at]);
                let wrong: Vec<_> = states.iter().map(|n| (n.len(), wrong(n))).collect();
                panic!(
                    "{what}: neither before nor after: {} bytes; of states, size and first difference: {wrong:?}",
                    seen.len()
                );
            };
            seen_states[state] += 1;
            volume.close().unwrap_or_else(|e| panic!("{what}: {e}"));
            let report = check(image, &CheckOptions::default()).expect("checked");
            assert!(report.is_clean(), "{what}: {:?}", report.issues);
        }
    }
    assert!(seen_states[0] > 0 && seen_states[states.len() - 1] > 0);
}

/// Where every node on the way is full, the root too, there is no place in the format for another extent: said, and nothing else is lost.
#[test]
fn full_to_the_root() {
    if !possible() {
        return;
    }
    let shape = Shape::full_on_one_path(MAX_DEPTH, ROOT);
    let mut deep = Deep::new("", &shape);
    let middle = shape.extents() as u64 / 2 * STRIDE + 1;
    let depth = deep.change("a hole in a full tree", |file, model| {
        let at = middle * BLOCK as u64;
        let refused = file.allocate(at, BLOCK as u64).expect_err("no room");
        assert_eq!(refused.kind(), ErrorKind::FileTooLarge);
        // Blocks that have a place can be written to, and other nodes have room.
        write(file, model, middle - 1, &[0xEF; 100]);
        write(file, model, 1, &[0xED; 100]);
        file.sync_all().expect("synced");
    });
    assert_eq!(depth, MAX_DEPTH);
    let depth = deep.change("with a piece gone there is room for one", |file, model| {
        let at = (middle - 1) as usize * BLOCK;
        file.punch_hole(at as u64, BLOCK as u64).expect("punched");
        model[at..at + BLOCK].fill(0);
        let at = middle * BLOCK as u64;
        file.allocate(at, BLOCK as u64).expect("allocated");
        write(file, model, middle, &[0xEC; BLOCK]);
    });
    assert_eq!(depth, MAX_DEPTH);
    deep.remove("a full tree");
}

/// Removed as it is, and changed at random.
#[test]
fn even_trees() {
    if !possible() {
        return;
    }
    let shape = Shape::even(MAX_DEPTH, 2, 9);
    Deep::new("", &shape).remove("an even tree");
    let mut deep = Deep::new("", &shape);
    let mut rng = Rng::new(5);
    for round in 0..4 {
        deep.change(&format!("round {round}"), |file, model| {
            for _ in 0..60 {
                let blocks = (model.len() / BLOCK) as u64;
                let block = rng.below(blocks);
                let len = (1 + rng.below(4000)).min((blocks - block) * BLOCK as u64);
                let at = block * BLOCK as u64;
                let range = at as usize..(at + len) as usize;
                match rng.below(6) {
                    0..3 => write(file, model, block, &rng.bytes(len as usize)),
                    3 => {
                        file.punch_hole(at, len).expect("punched");
                        model[range].fill(0);
                    }
                    4 => {
                        file.zero_range(at, len).expect("zeroed");
                        model[range].fill(0);
                    }
                    _ => file.allocate(at, len).expect("allocated"),
                }
            }
        });
    }
    deep.remove("an even tree, changed");
}
