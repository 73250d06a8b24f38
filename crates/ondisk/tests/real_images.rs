//! Every structure this crate parses, compared with volumes made by e2fsprogs.
//!
//! Skipped (loudly) where the tools are missing; under `CI` that is a failure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use blockwright_ondisk::ext4::dir::{self, DirBlock, DirFormat};
use blockwright_ondisk::ext4::extent::{self, ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::htree::{self, DxNode, DxPlace, DxRootInfo};
use blockwright_ondisk::ext4::jbd2::{self, JournalBlockType, JournalChecksums, JournalSuperblock};
use blockwright_ondisk::ext4::xattr::{self, XattrList, XattrValue};
use blockwright_ondisk::ext4::{
    BlockNo, FormatError, GroupDesc, GroupFlags, GroupNo, Ino, Inode, InodeFlags, Superblock,
    group_desc, hash, inode, mmp, orphan_file,
};

/// Whether the tools are there; a missing tool fails under CI.
fn tools() -> bool {
    blockwright_oracles::have(&["mke2fs", "debugfs", "dumpe2fs"])
}

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(
        out.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A volume in memory.
struct Image {
    bytes: Vec<u8>,
    sb: Superblock,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Image {
    /// Makes a volume of `size` with a tree in it.
    fn make(size: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        sample_tree(&tree);
        let path = dir.path().join("image");
        let mut all = vec!["-q", "-F", "-t", "ext4", "-d", tree.to_str().unwrap()];
        all.extend(args);
        all.extend([path.to_str().unwrap(), size]);
        run("mke2fs", &all);
        Self::load(path, dir)
    }

    fn load(path: PathBuf, dir: tempfile::TempDir) -> Self {
        let bytes = std::fs::read(&path).unwrap();
        let sb = Superblock::parse(&bytes[1024..], Some(bytes.len() as u64)).unwrap();
        Self {
            bytes,
            sb,
            path,
            _dir: dir,
        }
    }

    fn block(&self, block: BlockNo) -> &[u8] {
        let at = self.sb.geo.block_offset(block) as usize;
        &self.bytes[at..at + self.sb.geo.block_len()]
    }

    fn debugfs(&self, command: &str) -> String {
        run("debugfs", &["-R", command, self.path.to_str().unwrap()])
    }

    /// dumpe2fs's header as a map.
    fn header(&self) -> BTreeMap<String, String> {
        run("dumpe2fs", &["-h", self.path.to_str().unwrap()])
            .lines()
            .filter_map(|l| l.split_once(':'))
            .map(|(k, v)| (k.to_owned(), v.trim().to_owned()))
            .collect()
    }

    fn desc_bytes(&self, group: GroupNo) -> &[u8] {
        let (index, at) = self.sb.geo.desc_position(group);
        let block = self.block(self.sb.geo.desc_block(index).unwrap());
        &block[at..at + usize::from(self.sb.geo.desc_size)]
    }

    fn desc(&self, group: GroupNo) -> GroupDesc {
        GroupDesc::parse(self.desc_bytes(group), &self.sb.geo, group).unwrap()
    }

    fn raw_inode(&self, ino: Ino) -> &[u8] {
        let (group, _) = self.sb.geo.split_ino(ino).unwrap();
        let table = self.desc(group).inode_table;
        let (block, at) = self.sb.geo.inode_location(ino, table).unwrap();
        &self.block(block)[at..at + usize::from(self.sb.geo.inode_size)]
    }

    fn inode(&self, ino: Ino) -> Inode {
        Inode::parse(self.raw_inode(ino), &self.sb.geo, ino).unwrap()
    }

    /// Physical blocks of a file, in order, by extents or by block map.
    fn blocks(&self, ino: Ino) -> Vec<(u64, BlockNo)> {
        let inode = self.inode(ino);
        let mut out = Vec::new();
        if inode.flags.contains(InodeFlags::EXTENTS) {
            let seed = self.sb.geo.inode_seed(ino, inode.generation);
            self.walk(
                &inode.block,
                NodePlace::Inode,
                NodeRules::ROOT,
                seed,
                &mut out,
            );
        } else {
            self.walk_map(&inode, &mut out);
        }
        out
    }

    fn walk(
        &self,
        bytes: &[u8],
        place: NodePlace,
        rules: NodeRules,
        seed: blockwright_ondisk::ext4::InodeSeed,
        out: &mut Vec<(u64, BlockNo)>,
    ) {
        let node = ExtentNode::parse(bytes, place, rules, &self.sb.geo).unwrap();
        for e in node.extents() {
            for n in 0..u64::from(e.len) {
                out.push((e.logical.0 + n, BlockNo(e.physical.0 + n)));
            }
        }
        for (position, ix) in node.indexes().enumerate() {
            let child = self.block(ix.child);
            extent::verify_checksum(child, ix.child, &self.sb.geo, seed).unwrap();
            let rules = node.child_rules(position, rules).unwrap();
            self.walk(child, NodePlace::Block(ix.child), rules, seed, out);
        }
    }

    fn walk_map(&self, inode: &Inode, out: &mut Vec<(u64, BlockNo)>) {
        let word = |b: &[u8], i: usize| {
            u64::from(u32::from_le_bytes([
                b[i * 4],
                b[i * 4 + 1],
                b[i * 4 + 2],
                b[i * 4 + 3],
            ]))
        };
        for i in 0..12 {
            if word(&inode.block, i) != 0 {
                out.push((i as u64, BlockNo(word(&inode.block, i))));
            }
        }
        let per = self.sb.geo.block_len() / 4;
        let mut leaf = |block: u64, first: usize| {
            let indirect = self.block(BlockNo(block));
            for i in (0..per).filter(|i| word(indirect, *i) != 0) {
                out.push(((first + i) as u64, BlockNo(word(indirect, i))));
            }
        };
        if word(&inode.block, 12) != 0 {
            leaf(word(&inode.block, 12), 12);
        }
        if word(&inode.block, 13) != 0 {
            let double = self.block(BlockNo(word(&inode.block, 13)));
            for i in (0..per).filter(|i| word(double, *i) != 0) {
                leaf(word(double, i), 12 + per + i * per);
            }
        }
    }

    fn lookup(&self, dir: Ino, name: &str) -> Ino {
        self.list(dir)
            .remove(name)
            .unwrap_or_else(|| panic!("{name} not in {dir:?}"))
    }

    /// Names of a directory, with every block's checksum and, for indexed directories, the index
    /// and every name's hash verified.
    fn list(&self, dir: Ino) -> BTreeMap<String, Ino> {
        let inode = self.inode(dir);
        let format = DirFormat::new(&self.sb.geo);
        let seed = self.sb.geo.inode_seed(dir, inode.generation);
        let mut out = BTreeMap::new();
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            let pieces = DirBlock::entries_of(&inode.block[4..], format);
            collect(&pieces, &mut out);
            return out;
        }
        let indexed = inode.flags.contains(InodeFlags::INDEX);
        let blocks: BTreeMap<u64, BlockNo> = self.blocks(dir).into_iter().collect();
        let mut nodes = vec![];
        if indexed {
            let root = self.block(blocks[&0]);
            let info = DxRootInfo::parse(root, &format, 2).unwrap();
            assert_eq!(info.dot, dir);
            htree::verify_checksum(root, DxPlace::Root, &format, seed).unwrap();
            let version = self.sb.hash_version(info.hash_version).unwrap();
            let top = DxNode::parse(root, DxPlace::Root, &format).unwrap();
            let mut leaves: Vec<(u32, u32)> = Vec::new();
            nodes.push(0);
            for e in top.iter() {
                if info.indirect_levels == 0 {
                    leaves.push((e.hash, e.block));
                    continue;
                }
                let child = self.block(blocks[&u64::from(e.block)]);
                htree::verify_checksum(child, DxPlace::Node, &format, seed).unwrap();
                nodes.push(u64::from(e.block));
                let child = DxNode::parse(child, DxPlace::Node, &format).unwrap();
                leaves.extend(child.iter().map(|c| (c.hash.max(e.hash), c.block)));
            }
            for (n, (from, block)) in leaves.iter().enumerate() {
                let to = leaves.get(n + 1).map_or(u32::MAX, |l| l.0);
                let leaf = self.block(blocks[&u64::from(*block)]);
                for e in DirBlock::leaf(leaf, format).unwrap().iter() {
                    let e = e.unwrap();
                    if e.is_used() {
                        let h = hash::name_hash(version, self.sb.raw.hash_seed(), None, e.name)
                            .unwrap();
                        assert!((from & !1..=to).contains(&h.hash), "{:?}", e.name);
                    }
                }
            }
        }
        for (n, block) in &blocks {
            let bytes = self.block(*block);
            if nodes.contains(n) {
                collect(&DirBlock::entries_of(bytes, format), &mut out);
                continue;
            }
            dir::verify_leaf_checksum(bytes, &format, seed).unwrap();
            collect(&DirBlock::leaf(bytes, format).unwrap(), &mut out);
        }
        out
    }
}

fn collect(block: &DirBlock<'_>, out: &mut BTreeMap<String, Ino>) {
    for e in block.iter() {
        let e = e.unwrap();
        if e.is_used() {
            out.insert(String::from_utf8(e.name.to_vec()).unwrap(), e.ino);
        }
    }
}

fn sample_tree(tree: &Path) {
    std::fs::create_dir_all(tree.join("small")).unwrap();
    std::fs::create_dir_all(tree.join("many")).unwrap();
    for n in 0..800 {
        std::fs::write(
            tree.join(format!("many/file-with-a-longer-name-{n:05}")),
            "",
        )
        .unwrap();
    }
    std::fs::write(tree.join("small/hello"), "hello, world\n").unwrap();
    std::fs::write(tree.join("big"), vec![7u8; 300_000]).unwrap();
    std::os::unix::fs::symlink("small/hello", tree.join("fast")).unwrap();
    std::os::unix::fs::symlink("x".repeat(100), tree.join("slow")).unwrap();
}

const VARIANTS: &[(&str, &[&str])] = &[
    ("32M", &[]),
    ("32M", &["-b", "1024"]),
    ("32M", &["-b", "2048", "-I", "512"]),
    ("160M", &["-b", "65536"]),
    ("32M", &["-b", "1024", "-O", "^64bit", "-I", "128"]),
    ("32M", &["-O", "^metadata_csum,uninit_bg"]),
    (
        "32M",
        &["-b", "1024", "-O", "^metadata_csum,uninit_bg,^64bit"],
    ),
    (
        "32M",
        &["-O", "^metadata_csum,^uninit_bg,^extent,^64bit,^flex_bg"],
    ),
    (
        "32M",
        &["-b", "1024", "-g", "2048", "-O", "meta_bg,^resize_inode"],
    ),
    (
        "32M",
        &[
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "sparse_super2,^resize_inode",
        ],
    ),
    (
        "32M",
        &[
            "-b",
            "1024",
            "-g",
            "1024",
            "-O",
            "^sparse_super,^flex_bg,^resize_inode",
        ],
    ),
    ("64M", &["-O", "bigalloc", "-C", "16384"]),
    ("64M", &["-b", "1024", "-O", "bigalloc", "-C", "8192"]),
    (
        "32M",
        &[
            "-O",
            "metadata_csum_seed,quota,project,ea_inode,large_dir,casefold",
            "-I",
            "1024",
        ],
    ),
    (
        "32M",
        &[
            "-O",
            "inline_data,mmp,orphan_file,verity,encrypt,stable_inodes",
        ],
    ),
    ("64M", &["-b", "1024", "-O", "fast_commit", "-J", "size=16"]),
];

#[test]
fn every_variant_parses_with_all_checksums() {
    if !tools() {
        return;
    }
    for (size, args) in VARIANTS {
        eprintln!("{size} {args:?}");
        let image = Image::make(size, args);
        check_superblock(&image);
        check_groups(&image);
        check_inodes(&image);
        check_tree(&image);
        check_special(&image);
        check_quota(&image);
    }
}

fn check_superblock(image: &Image) {
    let header = image.header();
    let geo = &image.sb.geo;
    let number = |key: &str| {
        header[key]
            .split_whitespace()
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert_eq!(geo.blocks_count, number("Block count"));
    assert_eq!(u64::from(geo.inodes_count), number("Inode count"));
    assert_eq!(image.sb.raw.free_blocks_count(), number("Free blocks"));
    assert_eq!(
        image.sb.raw.reserved_blocks_count(),
        number("Reserved block count")
    );
    assert_eq!(geo.first_data_block.0, number("First block"));
    assert_eq!(u64::from(geo.block_size), number("Block size"));
    assert_eq!(u64::from(geo.blocks_per_group), number("Blocks per group"));
    assert_eq!(u64::from(geo.inodes_per_group), number("Inodes per group"));
    assert_eq!(
        u64::from(geo.inode_table_blocks),
        number("Inode blocks per group")
    );
    assert_eq!(u64::from(geo.inode_size), number("Inode size"));
    if let Some(size) = header.get("Group descriptor size") {
        assert_eq!(geo.desc_size.to_string(), *size);
    }
    if let Some(flex) = header.get("Flex block group size") {
        assert_eq!(geo.groups_per_flex.to_string(), *flex);
    }
    let mut features: Vec<String> = header["Filesystem features"]
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let mut ours = image.sb.features().names();
    features.sort();
    ours.sort();
    assert_eq!(ours, features);
    assert_eq!(
        header.get("Journal inode").map(String::as_str),
        image.sb.journal().map(|_| "8")
    );

    let mut edited = image.sb.raw;
    edited.free_inodes_count.set(1);
    if geo.metadata_csum() {
        assert!(matches!(
            edited.verify_checksum(),
            Err(FormatError::SuperChecksum { .. })
        ));
    }
    edited.set_checksum();
    edited.verify_checksum().unwrap();
}

fn check_groups(image: &Image) {
    let geo = &image.sb.geo;
    let mut free = 0u64;
    for group in geo.groups() {
        let desc = image.desc(group);
        free += u64::from(desc.free_clusters) * u64::from(geo.cluster_ratio);
        if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            desc.verify_block_bitmap(image.block(desc.block_bitmap), geo, group)
                .unwrap();
            // The group's own first blocks must be in use.
            let bitmap = image.block(desc.block_bitmap);
            for b in 0..geo.base_meta_blocks(group) {
                let bit = (b / geo.cluster_ratio) as usize;
                assert!(bitmap[bit / 8] & 1 << (bit % 8) != 0, "{group:?} block {b}");
            }
            let mut again = desc;
            again.set_block_bitmap_csum(bitmap, geo);
            assert_eq!(again.block_bitmap_csum, desc.block_bitmap_csum);
        }
        if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
            desc.verify_inode_bitmap(image.block(desc.inode_bitmap), geo, group)
                .unwrap();
        }
        let mut raw = image.desc_bytes(group).to_vec();
        desc.encode_into(&mut raw, geo, group).unwrap();
        assert_eq!(raw, image.desc_bytes(group), "{group:?}");
        raw[0x0C] ^= 1;
        if geo.checksums != blockwright_ondisk::ext4::ChecksumKind::None {
            assert!(matches!(
                group_desc::verify_checksum(&raw, geo, group),
                Err(FormatError::GroupDescChecksum { .. })
            ));
        }
        // Backups hold the same superblock and descriptors.
        if let Some(block) = geo.group_super_block(group).filter(|_| group.0 > 0) {
            let copy = Superblock::parse(image.block(block), None).unwrap();
            assert_eq!(u32::from(copy.raw.block_group_nr.get()), group.0);
            assert_eq!(copy.geo, *geo);
        }
        for index in 0..geo.desc_blocks {
            if let Some(copy) = geo.desc_block_copy(group, index) {
                let (first, _) = (GroupNo(index * geo.descs_per_block), 0);
                let theirs = GroupDesc::decode(image.block(copy), geo).unwrap();
                assert_eq!(
                    theirs.inode_table,
                    image.desc(first).inode_table,
                    "{group:?}"
                );
            }
        }
    }
    assert_eq!(free, image.sb.raw.free_blocks_count());
    // dumpe2fs agrees on where superblocks and descriptors are.
    let dump = run("dumpe2fs", &[image.path.to_str().unwrap()]);
    let supers = dump.lines().filter(|l| l.contains("superblock at")).count();
    assert_eq!(
        supers,
        geo.groups().filter(|g| geo.group_has_super(*g)).count()
    );
}

fn check_inodes(image: &Image) {
    let geo = &image.sb.geo;
    for n in 1..=geo.inodes_count {
        let ino = Ino(n);
        let (group, _) = geo.split_ino(ino).unwrap();
        if image.desc(group).flags.contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        let raw = image.raw_inode(ino);
        let parsed = Inode::parse(raw, geo, ino).unwrap();
        let mut again = raw.to_vec();
        parsed.encode_into(&mut again, geo, ino).unwrap();
        if raw.iter().any(|b| *b != 0) {
            assert_eq!(again, raw, "{ino:?}");
            if geo.metadata_csum() {
                again[0x10] ^= 1;
                assert!(matches!(
                    inode::verify_checksum(&again, geo, ino),
                    Err(FormatError::InodeChecksum { .. })
                ));
            }
        }
    }
}

fn check_tree(image: &Image) {
    let geo = &image.sb.geo;
    let root = image.list(Ino::ROOT);
    let want = [
        ".",
        "..",
        "big",
        "fast",
        "lost+found",
        "many",
        "slow",
        "small",
    ];
    assert_eq!(root.keys().map(String::as_str).collect::<Vec<_>>(), want);
    assert_eq!(image.list(root["many"]).len(), 802);
    assert_eq!(
        image.lookup(root["small"], "hello"),
        image.list(root["small"])["hello"]
    );

    let big = image.inode(root["big"]);
    assert_eq!(big.size, 300_000);
    let blocks = image.blocks(root["big"]);
    assert_eq!(
        blocks.len() as u64,
        300_000u64.div_ceil(u64::from(geo.block_size))
    );
    let data: Vec<u8> = blocks
        .iter()
        .flat_map(|(_, b)| image.block(*b))
        .copied()
        .collect();
    assert!(data[..300_000].iter().all(|b| *b == 7));

    let fast = image.inode(root["fast"]);
    if !fast.flags.contains(InodeFlags::INLINE_DATA) {
        assert!(fast.is_fast_symlink(geo));
        assert_eq!(&fast.block[..fast.size as usize], b"small/hello");
    }
    let slow = image.inode(root["slow"]);
    assert!(!slow.is_fast_symlink(geo));
    assert_eq!(slow.size, 100);
}

fn check_special(image: &Image) {
    let geo = &image.sb.geo;
    if image.sb.journal().is_some() {
        let blocks = image.blocks(Ino::JOURNAL);
        let journal =
            JournalSuperblock::parse(image.block(blocks[0].1), Some(blocks.len() as u64)).unwrap();
        assert_eq!(journal.block_size, geo.block_size);
        assert_eq!(u64::from(journal.len), blocks.len() as u64);
        assert_eq!(journal.start, None);
    }
    if let Some(block) = image.sb.mmp_block().unwrap() {
        let mut raw = mmp::RawMmp::parse(image.block(block), geo).unwrap();
        assert_eq!(raw.seq.get(), mmp::SEQ_CLEAN);
        raw.seq.set(7);
        raw.set_checksum(geo);
        mmp::RawMmp::parse(zerocopy_bytes(&raw), geo).unwrap();
    }
    if image.sb.raw.orphan_file_inum.get() != 0 {
        let ino = Ino(image.sb.raw.orphan_file_inum.get());
        let seed = geo.inode_seed(ino, image.inode(ino).generation);
        for (_, block) in image.blocks(ino) {
            let bytes = image.block(block);
            orphan_file::verify(bytes, block, geo, seed).unwrap();
            assert_eq!(orphan_file::orphans(bytes).count(), 0);
            let mut again = bytes.to_vec();
            orphan_file::write_tail(&mut again, block, geo, seed).unwrap();
            assert_eq!(again, bytes);
        }
    }
}

fn check_quota(image: &Image) {
    use blockwright_ondisk::ext4::quota;
    use zerocopy::FromBytes;
    for (inum, magic) in [
        (image.sb.raw.usr_quota_inum.get(), quota::USER_MAGIC),
        (image.sb.raw.grp_quota_inum.get(), quota::GROUP_MAGIC),
        (image.sb.raw.prj_quota_inum.get(), quota::PROJECT_MAGIC),
    ] {
        let Some(ino) = Ino(inum).non_zero() else {
            continue;
        };
        let data: Vec<u8> = image
            .blocks(ino)
            .iter()
            .flat_map(|(_, b)| image.block(*b))
            .copied()
            .collect();
        let (header, rest) = quota::RawQuotaHeader::ref_from_prefix(&data).unwrap();
        assert_eq!(
            (header.magic.get(), header.version.get()),
            (magic, quota::VERSION)
        );
        let (info, _) = quota::RawQuotaInfo::ref_from_prefix(rest).unwrap();
        // The entry of id 0 is the first of all: follow the first references down.
        let mut block = quota::TREE_ROOT as usize;
        for _ in 0..quota::TREE_DEPTH {
            let at = block * quota::BLOCK_SIZE;
            block = u32::from_le_bytes(data[at..at + 4].try_into().unwrap()) as usize;
        }
        assert!(block != 0 && block < info.blocks.get() as usize);
        let entries = &data[block * quota::BLOCK_SIZE + 16..];
        let (entry, _) = quota::RawQuotaEntry::ref_from_prefix(entries).unwrap();
        assert_eq!(entry.id.get(), 0);
        let name = match magic {
            quota::USER_MAGIC => "user",
            quota::GROUP_MAGIC => "group",
            _ => "project",
        };
        let listed = image.debugfs(&format!("get_quota {name} 0"));
        let words: Vec<&str> = listed.lines().last().unwrap().split_whitespace().collect();
        let ours = [entry.curspace.get(), entry.curinodes.get()].map(|n| n.to_string());
        assert!(
            ours.iter().all(|n| words.contains(&n.as_str())),
            "{ours:?} in {listed}"
        );
        assert!(entry.curinodes.get() > 0);
    }
}

fn zerocopy_bytes(raw: &mmp::RawMmp) -> &[u8] {
    use zerocopy::IntoBytes;
    raw.as_bytes()
}

#[test]
fn attributes_match_debugfs() {
    if !tools() {
        return;
    }
    for extra in [
        &["-I", "256"][..],
        &["-I", "512", "-O", "metadata_csum_seed,ea_inode"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let p = path.to_str().unwrap();
        let mut args = vec!["-q", "-F", "-t", "ext4"];
        args.extend(extra);
        args.extend([p, "16M"]);
        run("mke2fs", &args);
        let value = dir.path().join("value");
        std::fs::write(&value, vec![b'v'; 700]).unwrap();
        let file = format!("ea_set -f {} / user.large", value.display());
        for command in [
            "ea_set / user.short abc",
            "ea_set / security.x 12345",
            file.as_str(),
            "ea_set / trusted.t t",
        ] {
            run("debugfs", &["-w", "-R", command, p]);
        }
        let image = Image::load(path, dir);
        let geo = &image.sb.geo;
        let raw = image.raw_inode(Ino::ROOT).to_vec();
        let root = image.inode(Ino::ROOT);
        let mut found = BTreeMap::new();
        let mut take = |list: &XattrList<'_>| {
            for e in list.iter() {
                e.verify_hash(None).unwrap();
                let name = xattr::full_name(e.name_index, e.name).unwrap();
                let XattrValue::Local(value) = e.value else {
                    panic!("in an inode")
                };
                found.insert(String::from_utf8(name).unwrap(), value.to_vec());
            }
        };
        let area = &raw[root.attributes_offset(geo).unwrap()..];
        if let Some(list) = XattrList::parse_ibody(area, geo).unwrap() {
            take(&list);
        }
        assert_ne!(root.file_acl, BlockNo(0));
        let block = image.block(root.file_acl);
        xattr::verify_block_checksum(block, root.file_acl, geo).unwrap();
        let (head, list) = XattrList::parse_block(block, geo).unwrap();
        // e2fsprogs leaves the block's hash at 0, which means "none computed".
        let hash = xattr::block_hash(list.iter().map(|e| e.hash));
        assert!([0, hash].contains(&head.hash.get()));
        take(&list);
        assert_eq!(found["user.short"], b"abc");
        assert_eq!(found["security.x"], b"12345");
        assert_eq!(found["user.large"], vec![b'v'; 700]);
        assert_eq!(found["trusted.t"], b"t");

        // A block laid out by us is read by debugfs.
        let attributes: Vec<xattr::NewXattr<'_>> = list
            .iter()
            .map(|e| xattr::NewXattr {
                name_index: e.name_index,
                name: e.name,
                value: e.value,
                value_inode_hash: 0,
            })
            .collect();
        let mut ours = block.to_vec();
        xattr::write_block(&mut ours, &attributes).unwrap();
        xattr::set_block_checksum(&mut ours, root.file_acl, geo).unwrap();
        let mut bytes = image.bytes.clone();
        let at = geo.block_offset(root.file_acl) as usize;
        bytes[at..at + ours.len()].copy_from_slice(&ours);
        std::fs::write(&image.path, bytes).unwrap();
        let listed = image.debugfs("ea_list /");
        assert!(listed.contains("user.large (700)"), "{listed}");
        assert!(listed.contains("user.short (3) = \"abc\""), "{listed}");
    }
}

/// Transactions written by debugfs, with every kind of checksums it can write.
#[test]
fn journals_written_by_debugfs() {
    if !tools() {
        return;
    }
    for (features, open, kind) in [
        ("^64bit,^metadata_csum", "jo", JournalChecksums::None),
        ("64bit,^metadata_csum", "jo", JournalChecksums::None),
        ("^64bit,metadata_csum", "jo -c -v 2", JournalChecksums::V2),
        ("64bit,metadata_csum", "jo -c -v 2", JournalChecksums::V2),
        ("^64bit,metadata_csum", "jo -c -v 3", JournalChecksums::V3),
        ("64bit,metadata_csum", "jo -c -v 3", JournalChecksums::V3),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let p = path.to_str().unwrap();
        run(
            "mke2fs",
            &[
                "-q", "-F", "-t", "ext4", "-b", "1024", "-O", features, p, "32M",
            ],
        );
        // One block that must be escaped, one that need not, both logged over free blocks.
        let data = dir.path().join("data");
        let mut bytes = vec![0x5A; 2048];
        bytes[..4].copy_from_slice(&jbd2::MAGIC_BYTES);
        std::fs::write(&data, &bytes).unwrap();
        let commands = dir.path().join("commands");
        let script = format!(
            "{open}\njw -b 20001,20002 {}\njw -r 20005,20007\njc\n",
            data.display()
        );
        std::fs::write(&commands, script).unwrap();
        run("debugfs", &["-w", "-f", commands.to_str().unwrap(), p]);

        let image = Image::load(path, dir);
        let log: Vec<&[u8]> = image
            .blocks(Ino::JOURNAL)
            .iter()
            .map(|(_, b)| image.block(*b))
            .collect();
        let sb = JournalSuperblock::parse(log[0], Some(log.len() as u64)).unwrap();
        assert_eq!(sb.format.checksums, kind, "{features} {open}");
        assert_eq!(sb.format.wide, features.starts_with("64bit"));
        let (mut logged, mut revoked, mut commits) = (vec![], vec![], 0);
        let mut at = sb.start.unwrap() as usize;
        while let Some((kind, sequence)) = jbd2::block_header(log[at]) {
            match kind {
                JournalBlockType::Descriptor => {
                    sb.format.verify_tail(log[at]).unwrap();
                    let tags: Vec<_> = jbd2::DescriptorTags::new(log[at], &sb.format)
                        .map(|t| t.unwrap())
                        .collect();
                    for tag in tags {
                        at += 1;
                        assert_eq!(tag.checksum, sb.format.tag_checksum(sequence, log[at]));
                        let mut data = log[at].to_vec();
                        if tag.flags.contains(jbd2::TagFlags::ESCAPE) {
                            data[..4].copy_from_slice(&jbd2::MAGIC_BYTES);
                        }
                        logged.push((tag.block, data));
                    }
                }
                JournalBlockType::Revoke => {
                    sb.format.verify_tail(log[at]).unwrap();
                    revoked.extend(jbd2::RevokedBlocks::parse(log[at], &sb.format).unwrap());
                }
                JournalBlockType::Commit => {
                    sb.format.verify_commit(log[at]).unwrap();
                    commits += 1;
                }
                other => panic!("{other:?} in the log"),
            }
            at += 1;
        }
        let want = [
            (BlockNo(20001), bytes[..1024].to_vec()),
            (BlockNo(20002), bytes[1024..].to_vec()),
        ];
        assert_eq!(logged, want);
        revoked.sort();
        assert_eq!(revoked, [BlockNo(20005), BlockNo(20007)]);
        assert!(commits >= 1);
    }
}
