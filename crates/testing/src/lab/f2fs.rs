//! f2fs images: made by f2fs-tools, edited structure by structure, judged by fsck.f2fs.
#![allow(dead_code)] // each test file uses its part

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use blockwright_check::Mode;
use blockwright_check::f2fs::{CheckError, CheckOptions, IssueKind, Report, check};
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::dir::{DentryLayout, DentryView, NameBytes};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::inode::{self, RawInodeHead};
use blockwright_ondisk::f2fs::node::PER_NODE;
use blockwright_ondisk::f2fs::pack::{self, Pack, PackLayout};
use blockwright_ondisk::f2fs::summary::{CompactSummaries, NatJournal, SitJournal, SummaryBlock};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, Checkpoint, Footer, FormatError, Geometry, InlineFlags, Ino, Inode, Log,
    NatEntry, Nid, NodeOffset, SegNo, SitEntry, Superblock, nat, node, sit,
};
use zerocopy::FromBytes;

/// Whether f2fs-tools are there; missing, it fails under CI and skips loudly elsewhere.
pub fn f2fs_tools() -> bool {
    blockwright_oracles::have(&["mkfs.f2fs", "sload.f2fs", "fsck.f2fs"])
}

/// Runs a tool with a hard limit: exit code and what it said.
pub fn tool(program: &str, args: &[&str]) -> (i32, String) {
    let out = Command::new("timeout")
        .args(["-k", "2", "20", program])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap_or(-1), text)
}

/// A place for images.
pub struct F2Lab {
    pub dir: tempfile::TempDir,
    pub tree: PathBuf,
}

/// All features of Android's that sload.f2fs can fill, and quotas and a lost+found.
pub const FULL: &str = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,\
flexible_inline_xattr,verity,compression,quota,lost_found";

impl F2Lab {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("dir/sub")).unwrap();
        std::fs::create_dir_all(tree.join("many")).unwrap();
        for n in 0..320 {
            let name = format!("many/a-file-with-a-long-name-{n:04}");
            std::fs::write(tree.join(name), vec![b'x'; n]).unwrap();
        }
        std::fs::write(tree.join("dir/small"), b"hello\n").unwrap();
        std::fs::write(tree.join("dir/sub/middle"), vec![7; 9000]).unwrap();
        // Direct, and indirect nodes.
        std::fs::write(tree.join("big"), vec![0; 3100 * BLOCK_SIZE]).unwrap();
        std::os::unix::fs::symlink("dir/small", tree.join("link")).unwrap();
        std::fs::hard_link(tree.join("dir/small"), tree.join("hard")).unwrap();
        Self { dir, tree }
    }

    /// Makes a volume with the tree (or an empty one).
    pub fn make(&self, name: &str, size: &str, args: &[&str], fill: bool) -> PathBuf {
        let path = self.dir.path().join(name);
        let _ = std::fs::remove_file(&path);
        let place = path.to_str().unwrap();
        assert_eq!(tool("truncate", &["-s", size, place]).0, 0);
        let mut all = vec!["-q", "-f"];
        all.extend(args);
        all.push(place);
        let (code, text) = tool("mkfs.f2fs", &all);
        assert_eq!(code, 0, "mkfs.f2fs {args:?}: {text}");
        if fill {
            let tree = self.tree.to_str().unwrap();
            let (code, text) = tool("sload.f2fs", &["-f", tree, place]);
            // It checks what it made, and says 1 when it corrected itself.
            assert!(matches!(code, 0 | 1), "sload.f2fs {args:?}: {code} {text}");
        }
        path
    }

    /// A volume in memory.
    pub fn volume(&self, args: &[&str]) -> F2Volume {
        let path = self.make("make.img", "100M", args, true);
        F2Volume::new(MemoryDevice::load(&path).unwrap())
    }

    /// fsck.f2fs's read-only verdict: whether it is clean, and what it said.
    pub fn fsck(&self, device: &MemoryDevice) -> (bool, String) {
        let path = self.dir.path().join("fsck.img");
        device.save(&path).unwrap();
        fsck_path(&path)
    }
}

/// fsck.f2fs's read-only verdict.
pub fn fsck_path(path: &Path) -> (bool, String) {
    let (code, text) = tool("fsck.f2fs", &["--dry-run", "-f", path.to_str().unwrap()]);
    (clean(code, &text), text)
}

/// Whether it found nothing.
pub fn clean(code: i32, text: &str) -> bool {
    let bad = ["[Fail]", "[ASSERT]", "[FIX]", "Reconnect "];
    code == 0 && !bad.iter().any(|word| text.contains(word))
}

/// Our verdict.
pub fn verify_f2fs(device: &MemoryDevice) -> Result<Report, CheckError> {
    let device: SharedDevice = Arc::new(device.snapshot().into_read_only());
    check(device, &CheckOptions::default())
}

/// Our verdict on an image file.
pub fn verify_path(path: &Path) -> Report {
    verify_f2fs(&MemoryDevice::load(path).unwrap()).unwrap()
}

/// Repairs a copy: the report, and the copy.
pub fn repair_f2fs(
    device: &MemoryDevice,
    mode: Mode,
) -> (Result<Report, CheckError>, MemoryDevice) {
    let copy = Arc::new(device.snapshot());
    let options = CheckOptions {
        mode,
        ..CheckOptions::default()
    };
    let report = check(copy.clone(), &options);
    let copy = copy.snapshot();
    (report, copy)
}

/// The names of the issues of a report, each once, sorted.
pub fn names(report: &Report) -> Vec<String> {
    let mut out: Vec<String> = report.issues.iter().map(|i| name(&i.kind)).collect();
    out.sort();
    out.dedup();
    out
}

/// The name of a kind of issue.
pub fn name(kind: &IssueKind) -> String {
    let text = format!("{kind:?}");
    let end = text.find([' ', '{', '(']).unwrap_or(text.len());
    text[..end].to_owned()
}

/// The issues of a report, one a line.
pub fn show(report: &Report) -> String {
    let lines = report.issues.iter().take(30);
    lines
        .map(|i| format!("    {:?}: {i}\n", i.severity))
        .collect()
}

/// A volume in memory, to be edited.
pub struct F2Volume {
    pub device: MemoryDevice,
    pub geo: Geometry,
    pub pack: Pack,
    pub nat: NatJournal,
    pub sit: SitJournal,
}

impl F2Volume {
    pub fn new(device: MemoryDevice) -> Self {
        let read = |first: u32, count: usize| {
            let mut out = vec![0; count * BLOCK_SIZE];
            let at = DevOffset(u64::from(first) * BLOCK_SIZE as u64);
            device.read_at(at, &mut out).unwrap();
            out
        };
        let geo = Superblock::parse(&read(0, 1), None).unwrap().geo;
        let head = |which| -> Result<Checkpoint, FormatError> {
            let start = geo.pack_start(which).0;
            let head = read(start, 1 + geo.cp_payload as usize);
            let cp = Checkpoint::parse(&head, &geo)?;
            let tail = start + cp.raw.cp_pack_total_block_count.get() - 1;
            pack::verify_pair(&head, &read(tail, 1))?;
            Ok(cp)
        };
        let pack = pack::newer(head(Copy2::First), head(Copy2::Second)).unwrap();
        let layout = PackLayout::new(&pack.checkpoint, &geo).unwrap();
        let start = geo.pack_start(pack.which).0 + layout.data_summaries;
        let data = read(start, 3);
        let compact = pack
            .checkpoint
            .flags()
            .contains(CheckpointFlags::COMPACT_SUM);
        let (nat, sit) = if compact {
            let all = CompactSummaries::parse(&data, &pack.checkpoint.raw, &geo).unwrap();
            (all.nat, all.sit)
        } else {
            let one =
                |n: usize| SummaryBlock::parse(&data[n * BLOCK_SIZE..][..BLOCK_SIZE]).unwrap();
            (
                NatJournal::parse(&one(0).journal, &geo).unwrap(),
                SitJournal::parse(&one(2).journal, &geo).unwrap(),
            )
        };
        Self {
            device,
            geo,
            pack,
            nat,
            sit,
        }
    }

    /// A copy to be damaged.
    pub fn copy(&self) -> Self {
        Self {
            device: self.device.snapshot(),
            geo: self.geo.clone(),
            pack: self.pack.clone(),
            nat: self.nat.clone(),
            sit: self.sit.clone(),
        }
    }

    pub fn block(&self, block: BlockAddr) -> Vec<u8> {
        let mut out = vec![0; BLOCK_SIZE];
        let at = DevOffset(u64::from(block.0) * BLOCK_SIZE as u64);
        self.device.read_at(at, &mut out).unwrap();
        out
    }

    pub fn put(&self, block: BlockAddr, bytes: &[u8]) {
        let at = DevOffset(u64::from(block.0) * BLOCK_SIZE as u64);
        self.device.write_at(at, bytes, Flags::empty()).unwrap();
    }

    pub fn edit(&self, block: BlockAddr, edit: impl FnOnce(&mut [u8])) {
        let mut bytes = self.block(block);
        edit(&mut bytes);
        self.put(block, &bytes);
    }

    /// Where a NAT entry is: block, byte; journal entries are not.
    pub fn nat_place(&self, nid: Nid) -> (BlockAddr, usize) {
        let (index, position) = self.geo.nat_position(nid);
        let copy = self.pack.checkpoint.nat_bitmap.get(index);
        let block = self.geo.nat_block(index, copy).unwrap();
        (block, position)
    }

    pub fn nat_entry(&self, nid: Nid) -> NatEntry {
        if let Some((_, e)) = self.nat.0.iter().find(|(n, _)| *n == nid) {
            return *e;
        }
        let (block, position) = self.nat_place(nid);
        let bytes = self.block(block);
        nat::NatBlock::parse(&bytes).unwrap().get(position).unwrap()
    }

    /// Changes a NAT entry, in its block or in the journal.
    pub fn set_nat(&mut self, nid: Nid, entry: NatEntry) {
        if let Some(slot) = self.nat.0.iter_mut().find(|(n, _)| *n == nid) {
            slot.1 = entry;
            let journal = self.nat.encode().unwrap();
            self.edit_journal(0, &journal);
            return;
        }
        let (block, position) = self.nat_place(nid);
        self.edit(block, |b| {
            nat::set_entry(b, position, entry).unwrap();
        });
    }

    /// Where the journals are: `n` 0 for the NAT's, 2 for the SIT's.
    pub fn journal_place(&self, n: u32) -> (BlockAddr, usize) {
        let layout = PackLayout::new(&self.pack.checkpoint, &self.geo).unwrap();
        let start = self.geo.pack_start(self.pack.which).0 + layout.data_summaries;
        let flags = self.pack.checkpoint.flags();
        if flags.contains(CheckpointFlags::COMPACT_SUM) {
            return (BlockAddr(start), if n == 0 { 0 } else { 507 });
        }
        (BlockAddr(start + n), 3584)
    }

    pub fn edit_journal(&self, n: u32, journal: &[u8]) {
        let (block, at) = self.journal_place(n);
        self.edit(block, |b| {
            b[at..at + journal.len()].copy_from_slice(journal)
        });
    }

    pub fn sit_entry(&self, seg: SegNo) -> SitEntry {
        if let Some((_, e)) = self.sit.0.iter().find(|(s, _)| *s == seg) {
            return *e;
        }
        let (index, position) = self.geo.sit_position(seg);
        let copy = self.pack.checkpoint.sit_bitmap.get(index);
        let bytes = self.block(self.geo.sit_block(index, copy).unwrap());
        SitEntry::parse(sit::entry_at(&bytes, position).unwrap(), seg).unwrap()
    }

    pub fn set_sit(&mut self, seg: SegNo, entry: SitEntry) {
        if let Some(slot) = self.sit.0.iter_mut().find(|(s, _)| *s == seg) {
            slot.1 = entry;
            let journal = self.sit.encode().unwrap();
            self.edit_journal(2, &journal);
            return;
        }
        let (index, position) = self.geo.sit_position(seg);
        let copy = self.pack.checkpoint.sit_bitmap.get(index);
        self.edit(self.geo.sit_block(index, copy).unwrap(), |b| {
            sit::set_entry(b, position, &entry).unwrap();
        });
    }

    pub fn node(&self, nid: Nid) -> (BlockAddr, Vec<u8>) {
        let block = self.nat_entry(nid).block;
        (block, self.block(block))
    }

    pub fn edit_node(&self, nid: Nid, edit: impl FnOnce(&mut [u8])) {
        let entry = self.nat_entry(nid);
        self.edit(entry.block, |b| {
            edit(b);
            if entry.ino.0 == nid.0 {
                inode::set_checksum(b, entry.ino, &self.geo);
            }
        });
    }

    pub fn edit_inode(&self, ino: Ino, edit: impl FnOnce(&mut RawInodeHead)) {
        self.edit_node(ino.nid(), |b| {
            edit(RawInodeHead::mut_from_prefix(b).unwrap().0);
        });
    }

    pub fn inode(&self, ino: Ino) -> (Inode, Vec<u8>) {
        let (_, block) = self.node(ino.nid());
        (Inode::parse(&block, ino, &self.geo).unwrap(), block)
    }

    /// Addresses of the blocks that the inode maps itself.
    pub fn addresses(&self, ino: Ino) -> Vec<BlockAddr> {
        let (inode, block) = self.inode(ino);
        let range = inode.layout(self.geo.features).address_bytes();
        block[range]
            .chunks_exact(4)
            .map(|w| BlockAddr(u32::from_le_bytes(w.try_into().unwrap())))
            .collect()
    }

    /// Byte of an address in the inode's block.
    pub fn address_at(&self, ino: Ino, n: usize) -> usize {
        let (inode, _) = self.inode(ino);
        inode.layout(self.geo.features).address_bytes().start + n * 4
    }

    /// Where a name is: the block (`None` when inline), the slot, the inode.
    pub fn find(&self, dir: Ino, name: &str) -> (Option<BlockAddr>, usize, Ino) {
        let (inode, block) = self.inode(dir);
        let max = self.geo.nids();
        let find = |bytes: &[u8], layout| {
            let view = DentryView::parse(bytes, layout, NameBytes::Plain, max).unwrap();
            let found = view.iter().find(|e| e.name == name.as_bytes());
            found.map(|e| (e.slot, e.ino))
        };
        if inode.inline.contains(InlineFlags::DENTRY) {
            let layout = inode.layout(self.geo.features);
            let (slot, ino) =
                find(&block[layout.inline_bytes()], layout.inline_dentries()).unwrap();
            return (None, slot, ino);
        }
        for block in self.addresses(dir).into_iter().filter(|b| b.is_stored()) {
            if let Some((slot, ino)) = find(&self.block(block), DentryLayout::BLOCK) {
                return (Some(block), slot, ino);
            }
        }
        panic!("no {name:?} in directory {dir}");
    }

    pub fn lookup(&self, path: &str) -> Ino {
        path.split('/')
            .filter(|n| !n.is_empty())
            .fold(Ino::ROOT, |dir, name| self.find(dir, name).2)
    }

    /// Changes the bytes that hold a directory's entries, where `name` is.
    pub fn edit_dir(
        &self,
        dir: Ino,
        name: &str,
        edit: impl FnOnce(&mut [u8], DentryLayout, usize),
    ) {
        let (block, slot, _) = self.find(dir, name);
        match block {
            Some(block) => self.edit(block, |b| edit(b, DentryLayout::BLOCK, slot)),
            None => {
                let (inode, _) = self.inode(dir);
                let layout = inode.layout(self.geo.features);
                self.edit_node(dir.nid(), |b| {
                    edit(
                        &mut b[layout.inline_bytes()],
                        layout.inline_dentries(),
                        slot,
                    );
                });
            }
        }
    }

    /// Changes the checkpoint that counts, at both its ends.
    pub fn edit_checkpoint(&mut self, edit: impl FnOnce(&mut Checkpoint)) {
        let start = self.geo.pack_start(self.pack.which).0;
        let cp = &mut self.pack.checkpoint;
        edit(cp);
        let blocks = cp.encode(&self.geo).unwrap();
        let tail = start + cp.raw.cp_pack_total_block_count.get() - 1;
        let head: Vec<Vec<u8>> = blocks.chunks(BLOCK_SIZE).map(<[u8]>::to_vec).collect();
        for (n, block) in head.iter().enumerate() {
            self.put(BlockAddr(start + n as u32), block);
        }
        self.put(BlockAddr(tail), &head[0]);
    }

    /// Where the chain of fsynced nodes begins.
    pub fn chain_start(&self) -> BlockAddr {
        let head = self.pack.checkpoint.raw.log(Log::WarmNode);
        let start = self.geo.segment_start(head.segment).unwrap();
        BlockAddr(start.0 + u32::from(head.offset))
    }

    /// Writes a chain of direct nodes of one file, each with an fsync mark: where each is, and the addresses in it.
    pub fn put_chain(&self, ino: Ino, nodes: &[(BlockAddr, Vec<BlockAddr>)]) {
        let cp = &self.pack.checkpoint;
        for (n, (at, addresses)) in nodes.iter().enumerate() {
            let mut block = vec![0; BLOCK_SIZE];
            for (word, address) in block.chunks_exact_mut(4).zip(addresses) {
                word.copy_from_slice(&address.0.to_le_bytes());
            }
            let footer = Footer {
                nid: Nid(ino.0 + 1 + n as u32),
                ino,
                offset: Self::direct_place(n as u32),
                cold: true,
                fsync: true,
                dentry: false,
                version: cp.footer_version(),
                next: nodes.get(n + 1).map_or(BlockAddr::NULL, |(at, _)| *at),
            };
            footer.write(&mut block).unwrap();
            self.put(*at, &block);
        }
    }

    /// The place of a file's `n`th direct node, up to those of its two indirect ones.
    fn direct_place(n: u32) -> NodeOffset {
        let per = PER_NODE as u32;
        let indirect = [3, 4 + per];
        NodeOffset(match n.checked_sub(2) {
            None => 1 + n,
            Some(n) => indirect[(n / per) as usize] + 1 + n % per,
        })
    }

    pub fn words(&self, nid: Nid) -> Vec<u32> {
        let (_, block) = self.node(nid);
        node::words(&block)
            .unwrap()
            .iter()
            .map(|w| w.get())
            .collect()
    }
}
