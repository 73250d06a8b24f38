//! Every f2fs structure this crate parses, compared with volumes made by f2fs-tools.
//!
//! Skipped (loudly) where the tools are missing; under `CI` that is a failure.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use blockwright_ondisk::f2fs::checkpoint::{Checkpoint, CheckpointFlags};
use blockwright_ondisk::f2fs::dir::{DentryLayout, DentryView, NameBytes};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::node::{self, Footer, NodeOffset};
use blockwright_ondisk::f2fs::pack::{self, NatBits, Pack, PackLayout};
use blockwright_ondisk::f2fs::summary::{
    CompactSummaries, NatJournal, SitJournal, SummaryBlock, SummaryKind,
};
use blockwright_ondisk::f2fs::xattr::{self, XattrList};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, FileKind, Geometry, InlineFlags, Ino, Inode, Log, NatEntry, Nid, SegNo,
    SitEntry, Superblock, dir_geometry, hash, nat, sit,
};

/// Whether the tools are there; a missing tool fails under CI.
fn tools() -> bool {
    blockwright_oracles::have(&["mkfs.f2fs", "sload.f2fs", "fsck.f2fs"])
}

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new("timeout")
        .args(["-k", "5", "60", program])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    // sload.f2fs checks what it made, and says 1 when it corrected itself.
    let corrected = program == "sload.f2fs" && out.status.code() == Some(1);
    assert!(
        out.status.success() || corrected,
        "{program} {args:?}: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A volume in memory, with its tables put together.
struct Image {
    bytes: Vec<u8>,
    geo: Geometry,
    pack: Pack,
    nat: NatJournal,
    sit: SitJournal,
}

impl Image {
    fn load(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let sb = Superblock::parse(&bytes, Some(bytes.len() as u64)).unwrap();
        let second = Superblock::parse(&bytes[BLOCK_SIZE..], None).unwrap();
        assert_eq!(sb.geo, second.geo);
        let geo = sb.geo;
        let checkpoint = |which| {
            let at = geo.pack_start(which).0 as usize * BLOCK_SIZE;
            let cp = Checkpoint::parse(&bytes[at..], &geo)?;
            let tail = cp.raw.cp_pack_total_block_count.get() as usize - 1;
            pack::verify_pair(&bytes[at..], &bytes[at + tail * BLOCK_SIZE..])?;
            Ok(cp)
        };
        let pack = pack::newer(checkpoint(Copy2::First), checkpoint(Copy2::Second)).unwrap();
        let mut image = Self {
            bytes,
            geo,
            pack,
            nat: NatJournal::default(),
            sit: SitJournal::default(),
        };
        image.summaries();
        image
    }

    fn block(&self, block: BlockAddr) -> &[u8] {
        &self.bytes[block.0 as usize * BLOCK_SIZE..][..BLOCK_SIZE]
    }

    /// Reads journals, and checks the data logs' summaries against the SIT.
    fn summaries(&mut self) {
        let cp = self.pack.checkpoint.clone();
        let layout = PackLayout::new(&cp, &self.geo).unwrap();
        let start = self.geo.pack_start(self.pack.which).0;
        let at = |block: u32| (start + block) as usize * BLOCK_SIZE;
        let data = &self.bytes[at(layout.data_summaries)..at(layout.tail)];
        if cp.flags().contains(CheckpointFlags::COMPACT_SUM) {
            let all = CompactSummaries::parse(data, &cp.raw, &self.geo).unwrap();
            (self.nat, self.sit) = (all.nat, all.sit);
        } else {
            let hot = SummaryBlock::parse(&data[..BLOCK_SIZE]).unwrap();
            let cold = SummaryBlock::parse(&data[2 * BLOCK_SIZE..3 * BLOCK_SIZE]).unwrap();
            self.nat = NatJournal::parse(&hot.journal, &self.geo).unwrap();
            self.sit = SitJournal::parse(&cold.journal, &self.geo).unwrap();
        }
        let nodes = layout.node_summaries.expect("unmounted");
        for (n, log) in Log::NODE.into_iter().enumerate() {
            let at = at(nodes + n as u32);
            let block = SummaryBlock::parse(&self.bytes[at..at + BLOCK_SIZE]).unwrap();
            assert_eq!(block.kind, SummaryKind::of(log));
            let head = cp.raw.log(log);
            let first = self.geo.segment_start(head.segment).unwrap();
            for (n, s) in block.entries.iter().enumerate().take(head.offset.into()) {
                let footer = Footer::read(self.block(BlockAddr(first.0 + n as u32))).unwrap();
                assert_eq!(s.nid, footer.nid, "{log} {n}");
            }
        }
        if let Some((first, count)) = layout.nat_bits {
            let bits = &self.bytes[at(first)..at(first + count)];
            let bits = NatBits::parse(bits, &cp, &self.geo).unwrap();
            assert_eq!(bits.full[0] & bits.empty[0], 0);
        }
    }

    fn nat_entry(&self, nid: Nid) -> NatEntry {
        if let Some((_, e)) = self.nat.0.iter().find(|(n, _)| *n == nid) {
            return *e;
        }
        let (index, position) = self.geo.nat_position(nid);
        let copy = self.pack.checkpoint.nat_bitmap.get(index);
        let block = self.block(self.geo.nat_block(index, copy).unwrap());
        let entry = nat::NatBlock::parse(block).unwrap().get(position).unwrap();
        self.geo.check_nat_entry(nid, &entry).unwrap();
        entry
    }

    fn sit_entry(&self, seg: SegNo) -> SitEntry {
        if let Some((_, e)) = self.sit.0.iter().find(|(s, _)| *s == seg) {
            return *e;
        }
        let (index, position) = self.geo.sit_position(seg);
        let copy = self.pack.checkpoint.sit_bitmap.get(index);
        let block = self.block(self.geo.sit_block(index, copy).unwrap());
        SitEntry::parse(sit::entry_at(block, position).unwrap(), seg).unwrap()
    }

    fn node(&self, nid: Nid, ino: Ino) -> &[u8] {
        let entry = self.nat_entry(nid);
        assert_eq!(entry.ino, ino);
        let (seg, at) = self.geo.segment_of(entry.block).expect("in the main area");
        let sit = self.sit_entry(seg);
        assert!(sit.valid.get(at) && sit.log.is_node(), "{nid:?}");
        let block = self.block(entry.block);
        Footer::expect(block, nid, Some(ino)).unwrap();
        block
    }

    fn inode(&self, ino: Ino) -> (Inode, &[u8]) {
        let block = self.node(ino.nid(), ino);
        (Inode::parse(block, ino, &self.geo).unwrap(), block)
    }

    /// Address of a file's block, through all levels of nodes.
    fn address(&self, ino: Ino, inode: &Inode, block: &[u8], at: u64) -> BlockAddr {
        let layout = inode.layout(self.geo.features);
        let path = node::node_path(at, layout.addresses(), 1).unwrap();
        let word = |bytes: &[u8], n: usize| {
            BlockAddr(u32::from_le_bytes(
                bytes[n * 4..n * 4 + 4].try_into().unwrap(),
            ))
        };
        if path.depth == 0 {
            return word(&block[layout.address_bytes()], path.positions[0]);
        }
        let mut nid = inode.nids[path.positions[0]];
        for level in 1..=path.depth {
            if nid.0 == 0 {
                return BlockAddr::NULL;
            }
            let block = self.node(nid, ino);
            assert_eq!(Footer::read(block).unwrap().offset, path.offsets[level]);
            nid = Nid(node::words(block).unwrap()[path.positions[level]].get());
        }
        let found = BlockAddr(nid.0);
        node::check_address(found, nid, 0, &self.geo).unwrap();
        found
    }

    fn contents(&self, ino: Ino) -> Vec<u8> {
        let (inode, block) = self.inode(ino);
        let layout = inode.layout(self.geo.features);
        if inode.inline.contains(InlineFlags::DATA) {
            return block[layout.inline_bytes()][..inode.size as usize].to_vec();
        }
        let mut out = Vec::new();
        for at in 0..inode.size.div_ceil(BLOCK_SIZE as u64) {
            let found = self.address(ino, &inode, block, at);
            if found.is_stored() {
                out.extend_from_slice(self.block(found));
            } else {
                out.resize(out.len() + BLOCK_SIZE, 0);
            }
        }
        out.truncate(inode.size as usize);
        out
    }

    /// Names of a directory, each found where its hash says.
    fn list(&self, ino: Ino) -> BTreeMap<Vec<u8>, (Ino, FileKind)> {
        let (inode, block) = self.inode(ino);
        let mut out = BTreeMap::new();
        let max = self.geo.nids();
        if inode.inline.contains(InlineFlags::DENTRY) {
            let layout = inode.layout(self.geo.features);
            let bytes = &block[layout.inline_bytes()];
            let shape = layout.inline_dentries();
            let view = DentryView::parse(bytes, shape, NameBytes::Plain, max).unwrap();
            for e in view.iter() {
                assert_eq!(e.hash, hash::name_hash(e.name));
                out.insert(e.name.to_vec(), (e.ino, e.kind.unwrap()));
            }
            return out;
        }
        for at in 0..inode.size / BLOCK_SIZE as u64 {
            let found = self.address(ino, &inode, block, at);
            if !found.is_stored() {
                continue;
            }
            let bytes = self.block(found);
            let view =
                DentryView::parse(bytes, DentryLayout::BLOCK, NameBytes::Plain, max).unwrap();
            let (level, ..) = dir_geometry::locate(at, inode.dir_level).unwrap();
            assert!(level < inode.current_depth);
            for e in view.iter() {
                assert_eq!(e.hash, hash::name_hash(e.name), "{:?}", e.name);
                let (first, blocks) = dir_geometry::bucket(level, inode.dir_level, e.hash);
                assert!((first..first + blocks).contains(&at), "{:?}", e.name);
                out.insert(e.name.to_vec(), (e.ino, e.kind.unwrap()));
            }
        }
        out
    }
}

fn make(dir: &Path, size: u64, args: &[&str], tree: Option<&Path>) -> Image {
    let path = dir.join("image");
    let _fresh = std::fs::remove_file(&path);
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(size).unwrap();
    let name = path.to_str().unwrap();
    let mut all = vec!["-f", "-q"];
    all.extend(args);
    all.push(name);
    run("mkfs.f2fs", &all);
    if let Some(tree) = tree {
        run("sload.f2fs", &["-f", tree.to_str().unwrap(), name]);
    }
    Image::load(&path)
}

const ANDROID: &str = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,\
                       flexible_inline_xattr,verity,casefold,compression";

#[test]
fn empty_volumes_of_many_shapes() {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (size, args) in [
        (64 << 20, &[][..]),
        (100 << 20, &["-O", ANDROID]),
        (300 << 20, &["-i"]),
        (128 << 20, &["-s", "2", "-z", "2", "-l", "label"]),
        (
            200 << 20,
            &["-O", "extra_attr,quota,lost_found,inode_checksum"],
        ),
    ] {
        let image = make(dir.path(), size, args, None);
        let root = image.list(Ino::ROOT);
        assert!(root.contains_key(&b"."[..]) && root.contains_key(&b".."[..]));
        assert_eq!(
            root.len(),
            2 + usize::from(root.contains_key(&b"lost+found"[..]))
        );
        let cp = &image.pack.checkpoint;
        let free = (0..image.geo.main_segments)
            .filter(|s| image.sit_entry(SegNo(*s)).valid.count() == 0)
            .filter(|s| Log::ALL.iter().all(|l| cp.raw.log(*l).segment != SegNo(*s)))
            .count();
        assert_eq!(free as u32, cp.raw.free_segment_count.get());
        // Encoding is the inverse of parsing.
        let at = image.geo.pack_start(image.pack.which);
        let blocks = cp.clone().encode(&image.geo).unwrap();
        assert_eq!(blocks[..BLOCK_SIZE], *image.block(at));
    }
}

#[test]
fn trees_that_sload_copied() {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("many")).unwrap();
    for n in 0..1500 {
        let name = format!("many/{}-{n}", "x".repeat(n % 60));
        std::fs::write(tree.join(name), format!("{n}")).unwrap();
    }
    // Into the second direct node.
    let large: Vec<u8> = (0..9_000_000u32).map(|n| (n / 1000) as u8).collect();
    std::fs::write(tree.join("large"), &large).unwrap();
    std::fs::write(tree.join("small"), b"some bytes").unwrap();
    std::os::unix::fs::symlink("small", tree.join("link")).unwrap();
    // Without flexible_inline_xattr: sload.f2fs 1.15 lays its files out wrongly with it.
    let rest = ANDROID.replace("flexible_inline_xattr,", "");
    for args in [&[][..], &["-O", &rest]] {
        let image = make(dir.path(), 200 << 20, args, Some(&tree));
        let root = image.list(Ino::ROOT);
        assert_eq!(root.len(), 6, "{root:?}");
        let at = |name: &[u8]| root[name].0;
        assert!(image.contents(at(b"large")) == large);
        assert_eq!(image.contents(at(b"small")), b"some bytes");
        assert_eq!(root[&b"link"[..]].1, FileKind::Symlink);
        assert_eq!(&image.contents(at(b"link"))[..5], b"small");
        let many = image.list(at(b"many"));
        assert_eq!(many.len(), 1502);
        for n in [0usize, 700, 1499] {
            let name = format!("{}-{n}", "x".repeat(n % 60));
            let ino = many[name.as_bytes()].0;
            assert_eq!(image.contents(ino), format!("{n}").as_bytes());
        }
        let (inode, block) = image.inode(at(b"small"));
        let layout = inode.layout(image.geo.features);
        let list = xattr::assemble(&block[layout.xattr_bytes()], None).unwrap();
        XattrList::parse(&list).unwrap();
        let footer = Footer::read(block).unwrap();
        assert!(footer.cold && footer.offset == NodeOffset::INODE);
    }
}
