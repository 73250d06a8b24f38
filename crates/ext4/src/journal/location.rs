//! Finding the journal: the mapping of its inode, read without the engine.
//!
//! The journal must be found before anything else may be trusted, so this walks the inode's extents
//! or block pointers by itself, straight from the device. The journal's own mapping never changes while
//! a volume is mounted, and is therefore never in the log.
//!
//! When the inode is damaged, the superblock has a copy of its mapping (`s_jnl_blocks`).

use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, SharedDevice};
use blockwright_ondisk::ext4::extent::{ExtentNode, NodePlace, NodeRules, verify_checksum};
use blockwright_ondisk::ext4::{
    BlockNo, FileKind, Geometry, GroupDesc, Ino, Inode, InodeFlags, InodeSeed, Superblock,
};
use hashbrown::HashSet;

/// A place in the log: an index of a block of the journal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LogBlock(pub u32);

const OP: &str = "journal location";

/// One stretch of the journal on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    log: u32,
    block: BlockNo,
    len: u32,
}

/// Where the journal's blocks lie.
#[derive(Clone, Debug, Default)]
pub struct LogMap {
    runs: Vec<Run>,
    len: u32,
}

impl LogMap {
    /// A journal of `len` blocks that starts at `block` and is contiguous: an external one.
    #[must_use]
    pub fn contiguous(block: BlockNo, len: u32) -> Self {
        LogMap {
            runs: vec![Run { log: 0, block, len }],
            len,
        }
    }

    /// Blocks mapped.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The runs, as blocks of the device.
    pub fn runs(&self) -> impl Iterator<Item = (BlockNo, u32)> + '_ {
        self.runs.iter().map(|r| (r.block, r.len))
    }

    /// Byte offset of a block of the journal.
    ///
    /// # Errors
    /// `Corrupt` past the end.
    pub fn offset(&self, at: LogBlock, block_size: u32) -> Result<DevOffset> {
        let after = self.runs.partition_point(|r| r.log <= at.0);
        let run = after.checked_sub(1).and_then(|i| self.runs.get(i));
        let block = run.and_then(|r| {
            let n = at.0 - r.log;
            (n < r.len).then(|| r.block.0 + u64::from(n))
        });
        match block {
            Some(block) => Ok(DevOffset(block.saturating_mul(u64::from(block_size)))),
            None => Err(Error::corrupt(
                OP,
                format!("the journal has no block {}", at.0),
            )),
        }
    }

    /// A block that the journal has twice holds one of the two at most. Without such blocks a journal is no longer than what is there.
    fn check_distinct(&self) -> Result<()> {
        let mut runs: Vec<(u64, u64)> = self
            .runs()
            .map(|(first, len)| (first.0, first.0 + u64::from(len)))
            .collect();
        runs.sort_unstable();
        match runs.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            Some(pair) => Err(Error::corrupt(OP, "the journal has a block twice").block(pair[1].0)),
            None => Ok(()),
        }
    }

    /// Appends a stretch of the file; holes are not allowed.
    fn push(&mut self, logical: u64, block: BlockNo, len: u32) -> Result<()> {
        if logical != u64::from(self.len) {
            let detail = format!("the journal's inode has a hole before block {logical}");
            return Err(Error::corrupt(OP, detail));
        }
        let end = self.len.checked_add(len);
        self.len = end.ok_or_else(|| Error::corrupt(OP, "the journal is too long"))?;
        match self.runs.last_mut() {
            Some(last) if last.block.0 + u64::from(last.len) == block.0 => last.len += len,
            _ => self.runs.push(Run {
                log: self.len - len,
                block,
                len,
            }),
        }
        Ok(())
    }
}

struct Walker<'a> {
    device: &'a SharedDevice,
    geo: &'a Geometry,
    /// Blocks of the file that are wanted.
    blocks: u64,
    /// Blocks of mapping that may still be read: a loop ends here.
    budget: u32,
    /// Blocks of pointers that were read. One that came again would give the journal the same blocks again, more than the volume has.
    met: HashSet<BlockNo>,
}

impl Walker<'_> {
    fn read(&mut self, block: BlockNo) -> Result<AlignedBuf> {
        if !self.geo.contains_run(block, 1) {
            return Err(Error::corrupt(OP, "a pointer leaves the volume").block(block.0));
        }
        self.budget = self
            .budget
            .checked_sub(1)
            .ok_or_else(|| Error::corrupt(OP, "the journal's mapping is endless"))?;
        self.device
            .read_buf(
                DevOffset(self.geo.block_offset(block)),
                self.geo.block_len(),
            )
            .map_err(|e| Error::io(OP, e).block(block.0))
    }

    fn extents(
        &mut self,
        bytes: &[u8],
        place: NodePlace,
        rules: NodeRules,
        seed: Option<InodeSeed>,
        map: &mut LogMap,
    ) -> Result<()> {
        let bad = |e: blockwright_ondisk::ext4::FormatError| Error::corrupt(OP, e.to_string());
        let node = ExtentNode::parse(bytes, place, rules, self.geo).map_err(bad)?;
        for extent in node.extents() {
            let len = u64::from(extent.len).min(self.blocks.saturating_sub(extent.logical.0));
            if extent.unwritten {
                return Err(Error::corrupt(OP, "the journal has unwritten blocks"));
            }
            map.push(extent.logical.0, extent.physical, len as u32)?;
        }
        for (position, index) in node.indexes().enumerate() {
            let rules = node
                .child_rules(position, rules)
                .ok_or_else(|| Error::corrupt(OP, "an extent index without a child"))?;
            let child = self.read(index.child)?;
            if let Some(seed) = seed {
                verify_checksum(&child, index.child, self.geo, seed).map_err(bad)?;
            }
            self.extents(&child, NodePlace::Block(index.child), rules, seed, map)?;
        }
        Ok(())
    }

    fn pointers(&mut self, bytes: &[u8], depth: u32, map: &mut LogMap) -> Result<()> {
        for pointer in bytes.chunks_exact(4) {
            if u64::from(map.len) >= self.blocks {
                return Ok(());
            }
            let block = BlockNo(u64::from(u32::from_le_bytes([
                pointer[0], pointer[1], pointer[2], pointer[3],
            ])));
            if depth > 0 {
                if !self.met.insert(block) {
                    return Err(
                        Error::corrupt(OP, "the journal has a block of pointers twice")
                            .block(block.0),
                    );
                }
                let child = self.read(block)?;
                self.pointers(&child, depth - 1, map)?;
                continue;
            }
            if !self.geo.contains_run(block, 1) {
                return Err(Error::corrupt(OP, "a pointer leaves the volume").block(block.0));
            }
            map.push(u64::from(map.len), block, 1)?;
        }
        Ok(())
    }

    fn walk(&mut self, area: &[u8; 60], extents: bool, seed: Option<InodeSeed>) -> Result<LogMap> {
        let mut map = LogMap::default();
        if extents {
            self.extents(area, NodePlace::Inode, NodeRules::ROOT, seed, &mut map)?;
        } else {
            self.pointers(&area[..48], 0, &mut map)?;
            for depth in 1..=3u32 {
                let at = 48 + 4 * (depth as usize - 1);
                self.pointers(&area[at..at + 4], depth, &mut map)?;
            }
        }
        if u64::from(map.len) < self.blocks {
            let detail = format!(
                "{} of the journal's {} blocks are mapped",
                map.len, self.blocks
            );
            return Err(Error::corrupt(OP, detail));
        }
        map.check_distinct()?;
        Ok(map)
    }
}

fn read_inode(device: &SharedDevice, geo: &Geometry, ino: Ino) -> Result<Inode> {
    let bad = |e: blockwright_ondisk::ext4::FormatError| Error::corrupt(OP, e.to_string());
    let (group, _) = geo
        .split_ino(ino)
        .ok_or_else(|| Error::corrupt(OP, "no such inode number"))?;
    let read = |block: BlockNo| {
        device
            .read_buf(DevOffset(geo.block_offset(block)), geo.block_len())
            .map_err(|e| Error::io(OP, e).block(block.0))
    };
    let (index, at) = geo.desc_position(group);
    let block = geo
        .desc_block(index)
        .ok_or_else(|| Error::corrupt(OP, "no such group descriptor"))?;
    let descs = read(block)?;
    let desc = descs
        .get(at..at + usize::from(geo.desc_size))
        .ok_or_else(|| Error::corrupt(OP, "no such group descriptor"))?;
    // Decoded, not parsed: the descriptor may be newer in the log, with its checksum of before here;
    // where the inode table is does not change.
    let desc = GroupDesc::decode(desc, geo).map_err(bad)?;
    let (block, at) = geo
        .inode_location(ino, desc.inode_table)
        .filter(|(block, _)| geo.contains_run(*block, 1))
        .ok_or_else(|| Error::corrupt(OP, "the inode table lies outside of the volume"))?;
    let table = read(block)?;
    let raw = table
        .get(at..at + usize::from(geo.inode_size))
        .ok_or_else(|| Error::corrupt(OP, "the inode lies outside of its block"))?;
    Inode::parse(raw, geo, ino).map_err(bad)
}

fn blocks_of(size: u64, geo: &Geometry) -> Result<u64> {
    let blocks = size >> geo.block_bits;
    if blocks < 2 || u32::try_from(blocks).is_err() {
        return Err(Error::corrupt(OP, format!("a journal of {size} bytes")));
    }
    Ok(blocks)
}

/// Most blocks of mapping a journal of `blocks` can need, with room for wasteful trees.
fn budget(blocks: u64, geo: &Geometry) -> u32 {
    let per_block = u64::from(geo.block_size / 16);
    u32::try_from(blocks / per_block + 64)
        .unwrap_or(u32::MAX)
        .saturating_mul(2)
}

/// Where the journal in inode `ino` lies.
///
/// # Errors
/// `Corrupt` when neither the inode nor the superblock's copy of its mapping makes sense; `Io`.
pub fn locate(device: &SharedDevice, superblock: &Superblock, ino: Ino) -> Result<LogMap> {
    let from_inode = locate_by_inode(device, &superblock.geo, ino);
    from_inode.or_else(|error| locate_by_backup(device, superblock).ok_or(error))
}

fn locate_by_inode(device: &SharedDevice, geo: &Geometry, ino: Ino) -> Result<LogMap> {
    let inode = read_inode(device, geo, ino)?;
    if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
        return Err(Error::corrupt(
            OP,
            "the journal's inode is not a file in use",
        ));
    }
    let blocks = blocks_of(inode.size, geo)?;
    let mut walker = Walker {
        device,
        geo,
        blocks,
        budget: budget(blocks, geo),
        met: HashSet::new(),
    };
    let seed = geo.inode_seed(ino, inode.generation);
    walker.walk(
        &inode.block,
        inode.flags.contains(InodeFlags::EXTENTS),
        Some(seed),
    )
}

/// The mapping from `s_jnl_blocks`: `i_block`, then the size's high and low words.
fn locate_by_backup(device: &SharedDevice, superblock: &Superblock) -> Option<LogMap> {
    const BACKUP_BLOCKS: u8 = 1;
    let geo = &superblock.geo;
    if superblock.raw.jnl_backup_type != BACKUP_BLOCKS {
        return None;
    }
    let words = superblock.raw.jnl_blocks;
    let size = u64::from(words[15].get()) << 32 | u64::from(words[16].get());
    let mut area = [0u8; 60];
    for (place, word) in area.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.get().to_le_bytes());
    }
    let blocks = blocks_of(size, geo).ok()?;
    let mut walker = Walker {
        device,
        geo,
        blocks,
        budget: budget(blocks, geo),
        met: HashSet::new(),
    };
    // The copy does not say which it is; an extent root begins with its magic.
    let extents = area[..2] == [0x0A, 0xF3];
    walker.walk(&area, extents, None).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(runs: &[(u64, u32)]) -> LogMap {
        let mut map = LogMap::default();
        for (block, len) in runs {
            let at = u64::from(map.len);
            map.push(at, BlockNo(*block), *len).expect("no hole");
        }
        map
    }

    /// A block of pointers to itself stands for any number of blocks.
    #[test]
    fn a_block_of_pointers_counts_once() {
        use blockwright_device::{BlockDevice, CountingDevice, Flags, MemoryDevice};
        let parts = crate::testing::Parts::new();
        let geo = parts.volume.geometry();
        let memory = MemoryDevice::new(16 << 20);
        let block = 100u32.to_le_bytes().repeat(geo.block_len() / 4);
        let at = DevOffset(geo.block_offset(BlockNo(100)));
        memory
            .write_at(at, &block, Flags::empty())
            .expect("written");
        let counting = std::sync::Arc::new(CountingDevice::new(std::sync::Arc::new(memory)));
        let device: SharedDevice = counting.clone();
        let mut walker = Walker {
            device: &device,
            geo,
            blocks: 1 << 24,
            budget: budget(1 << 24, geo),
            met: HashSet::new(),
        };
        let mut map = LogMap::default();
        let walked = walker.pointers(&block[..4], 3, &mut map);
        let e = walked.expect_err("a loop");
        assert_eq!(e.kind(), crate::ErrorKind::Corrupt, "{e}");
        assert_eq!((counting.stats().reads.requests, map.len()), (1, 0));
    }

    #[test]
    fn no_journal_has_a_block_twice() {
        for sound in [&[][..], &[(7, 1)], &[(100, 50), (20, 80), (150, 3)]] {
            assert!(map(sound).check_distinct().is_ok(), "{sound:?}");
        }
        for bad in [
            &[(100, 50), (100, 50)][..],
            &[(100, 50), (20, 81)],
            &[(100, 50), (300, 9), (149, 1)],
        ] {
            assert!(map(bad).check_distinct().is_err(), "{bad:?}");
        }
    }
}
