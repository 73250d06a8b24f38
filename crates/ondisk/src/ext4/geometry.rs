//! Where things lie: every number derived from a validated superblock, and the arithmetic on it.
//!
//! Invariants (established by [`Geometry::from_superblock`], relied upon everywhere): block and
//! inode sizes are powers of two within their limits; `groups_count` groups of
//! `blocks_per_group` blocks cover exactly `first_data_block..blocks_count`;
//! `inodes_count == groups_count * inodes_per_group`; bitmaps fit in one block; block numbers fit
//! in 48 bits. So products such as `group * blocks_per_group` cannot overflow 64 bits.
//!
//! Not responsible for: where bitmaps and inode tables are (group descriptors say).

use super::checksum::{ChecksumKind, InodeSeed, MetaSeed};
use super::error::FormatError;
use super::features::{Compat, Features, Incompat, RoCompat};
use super::superblock::raw::{CHECKSUM_TYPE_CRC32C, GOOD_OLD_INODE_SIZE, MAGIC, RawSuperblock};
use super::types::{BlockNo, GroupNo, Ino};

/// Smallest block size in bytes.
pub const MIN_BLOCK_SIZE: u32 = 1024;
/// Largest block size in bytes.
pub const MAX_BLOCK_SIZE: u32 = 65536;
/// Largest cluster size in bytes (bigalloc).
const MAX_CLUSTER_LOG: u32 = 30;
/// Largest group descriptor in bytes.
const MAX_DESC_SIZE: u16 = 1024;
/// Block numbers in extents have 48 bits.
const MAX_BLOCKS: u64 = 1 << 48;

/// The shape of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes per block.
    pub block_size: u32,
    /// log2 of `block_size`.
    pub block_bits: u32,
    /// Blocks per cluster; 1 without bigalloc.
    pub cluster_ratio: u32,
    /// log2 of `cluster_ratio`.
    pub cluster_bits: u32,
    /// Blocks of the volume, including the unused one before `first_data_block`.
    pub blocks_count: u64,
    /// First block of group 0.
    pub first_data_block: BlockNo,
    /// Number of groups.
    pub groups_count: u32,
    /// Blocks per group (the last group may be shorter).
    pub blocks_per_group: u32,
    /// Clusters per group: bits in a block bitmap.
    pub clusters_per_group: u32,
    /// Inodes of the volume.
    pub inodes_count: u32,
    /// Inodes per group: bits in an inode bitmap.
    pub inodes_per_group: u32,
    /// Bytes per inode.
    pub inode_size: u16,
    /// Inodes per block of an inode table.
    pub inodes_per_block: u32,
    /// Blocks of each group's inode table.
    pub inode_table_blocks: u32,
    /// First inode that is not reserved.
    pub first_ino: Ino,
    /// Bytes per group descriptor.
    pub desc_size: u16,
    /// Group descriptors per block.
    pub descs_per_block: u32,
    /// Blocks of group descriptors in one full copy.
    pub desc_blocks: u32,
    /// Blocks kept free behind each copy of the descriptors for growth.
    pub reserved_gdt_blocks: u32,
    /// First descriptor block laid out by meta_bg.
    pub first_meta_bg: u32,
    /// Groups per flexible group; 1 without flex_bg.
    pub groups_per_flex: u32,
    /// Groups of the backup superblocks with sparse_super2 (0: none).
    pub backup_bgs: [u32; 2],
    /// Extra inode bytes new inodes should have.
    pub want_extra_isize: u16,
    /// Features.
    pub features: Features,
    /// Which checksums metadata carries.
    pub checksums: ChecksumKind,
    /// Seed of the metadata checksums; meaningful with [`ChecksumKind::Crc32c`] (and for hashes of
    /// attribute values in inodes).
    pub seed: MetaSeed,
    /// Volume UUID.
    pub uuid: [u8; 16],
}

impl Geometry {
    /// Validates every value that decides where something lies, and derives the rest.
    ///
    /// # Errors
    /// The first check that fails, as its own variant.
    pub fn from_superblock(
        raw: &RawSuperblock,
        device_bytes: Option<u64>,
    ) -> Result<Self, FormatError> {
        let found = raw.magic.get();
        if found != MAGIC {
            return Err(FormatError::SuperMagic { found });
        }
        let rev = raw.rev_level.get();
        if rev > 1 {
            return Err(FormatError::SuperRevision { found: rev });
        }
        // Revision 0 predates the fields after s_def_resgid; their contents are meaningless.
        let features = if rev == 0 {
            Features::default()
        } else {
            raw.features()
        };
        if features.has_incompat(Incompat::JOURNAL_DEV) {
            return Err(FormatError::SuperIsJournalDevice);
        }

        let log = raw.log_block_size.get();
        let block_size = 1024u32
            .checked_shl(log)
            .filter(|bs| log <= 6 && *bs <= MAX_BLOCK_SIZE)
            .ok_or(FormatError::SuperBlockSize { log })?;
        let block_bits = 10 + log;
        let block_bitmap_bits = block_size * 8;

        let bigalloc = features.has_ro_compat(RoCompat::BIGALLOC);
        let cluster_log = raw.log_cluster_size.get();
        let cluster_bits = cluster_log
            .checked_sub(log)
            .filter(|bits| cluster_log <= MAX_CLUSTER_LOG - 10 && (bigalloc || *bits == 0))
            .ok_or(FormatError::SuperClusterSize {
                log: cluster_log,
                block_log: log,
            })?;
        let cluster_ratio = 1u32 << cluster_bits;

        let (inode_size, first_ino) = if rev == 0 {
            (GOOD_OLD_INODE_SIZE, Ino::FIRST_NON_RESERVED)
        } else {
            (raw.inode_size.get(), Ino(raw.first_ino.get()))
        };
        if !inode_size.is_power_of_two()
            || inode_size < GOOD_OLD_INODE_SIZE
            || u32::from(inode_size) > block_size
        {
            return Err(FormatError::SuperInodeSize {
                found: inode_size,
                block_size,
            });
        }

        let blocks_per_group = raw.blocks_per_group.get();
        let clusters_per_group = if bigalloc {
            raw.clusters_per_group.get()
        } else {
            blocks_per_group
        };
        if clusters_per_group == 0
            || clusters_per_group > block_bitmap_bits
            || !clusters_per_group.is_multiple_of(8)
        {
            return Err(FormatError::SuperClustersPerGroup {
                found: clusters_per_group,
                max: block_bitmap_bits,
            });
        }
        if u64::from(clusters_per_group) * u64::from(cluster_ratio) != u64::from(blocks_per_group) {
            return Err(FormatError::SuperBlocksPerGroup {
                found: blocks_per_group,
                clusters: clusters_per_group,
                ratio: cluster_ratio,
            });
        }

        let inodes_per_block = block_size / u32::from(inode_size);
        let inodes_per_group = raw.inodes_per_group.get();
        if inodes_per_group == 0
            || inodes_per_group > block_bitmap_bits
            || !inodes_per_group.is_multiple_of(inodes_per_block)
            || !inodes_per_group.is_multiple_of(8)
        {
            return Err(FormatError::SuperInodesPerGroup {
                found: inodes_per_group,
                per_block: inodes_per_block,
                max: block_bitmap_bits,
            });
        }

        // The superblock is at byte 1024, so only 1 KiB blocks leave a block before group 0; a
        // cluster cannot start there, so bigalloc volumes begin at 0.
        let first_data_block = raw.first_data_block.get();
        let expected_first = u32::from(block_size == 1024 && cluster_ratio == 1);
        if first_data_block != expected_first {
            return Err(FormatError::SuperFirstDataBlock {
                found: first_data_block,
                expected: expected_first,
            });
        }

        let blocks_count = raw.blocks_count();
        if blocks_count <= u64::from(first_data_block) + 1 || blocks_count > MAX_BLOCKS {
            return Err(FormatError::SuperBlocksCount {
                found: blocks_count,
            });
        }
        if let Some(bytes) = device_bytes {
            let device_blocks = bytes >> block_bits;
            if blocks_count > device_blocks {
                return Err(FormatError::SuperPastDevice {
                    blocks: blocks_count,
                    device_blocks,
                });
            }
        }
        let groups =
            (blocks_count - u64::from(first_data_block)).div_ceil(u64::from(blocks_per_group));

        let desc_size = if features.has_incompat(Incompat::BIT64) {
            let size = raw.desc_size.get();
            if !size.is_power_of_two() || !(64..=MAX_DESC_SIZE).contains(&size) {
                return Err(FormatError::SuperDescSize { found: size });
            }
            size
        } else {
            32
        };
        let descs_per_block = block_size / u32::from(desc_size);
        let groups_count = u32::try_from(groups)
            .ok()
            .filter(|g| *g <= u32::MAX - descs_per_block)
            .ok_or(FormatError::SuperGroupsCount { found: groups })?;
        let desc_blocks = groups_count.div_ceil(descs_per_block);

        let inodes_count = raw.inodes_count.get();
        if groups_count.checked_mul(inodes_per_group) != Some(inodes_count) {
            return Err(FormatError::SuperInodesCount {
                found: inodes_count,
                expected: u64::from(groups_count) * u64::from(inodes_per_group),
            });
        }
        if first_ino < Ino::FIRST_NON_RESERVED || first_ino.0 > inodes_count {
            return Err(FormatError::SuperFirstInode { found: first_ino.0 });
        }

        let reserved_gdt_blocks = u32::from(raw.reserved_gdt_blocks.get());
        if reserved_gdt_blocks > block_size / 4 {
            return Err(FormatError::SuperReservedGdt {
                found: reserved_gdt_blocks,
                max: block_size / 4,
            });
        }
        let first_meta_bg = raw.first_meta_bg.get();
        if features.has_incompat(Incompat::META_BG) && first_meta_bg > desc_blocks {
            return Err(FormatError::SuperFirstMetaBg {
                found: first_meta_bg,
                desc_blocks,
            });
        }
        let flex_log = raw.log_groups_per_flex;
        let groups_per_flex = if features.has_incompat(Incompat::FLEX_BG) {
            1u32.checked_shl(u32::from(flex_log))
                .filter(|_| flex_log < 32)
                .ok_or(FormatError::SuperFlexSize { log: flex_log })?
        } else {
            1
        };

        let max_extra = inode_size.saturating_sub(GOOD_OLD_INODE_SIZE);
        let extra = (raw.min_extra_isize.get(), raw.want_extra_isize.get());
        if features.has_ro_compat(RoCompat::EXTRA_ISIZE) && extra.0.max(extra.1) > max_extra {
            return Err(FormatError::SuperExtraIsize {
                min: extra.0,
                want: extra.1,
                max: max_extra,
            });
        }

        let checksums = if features.metadata_csum() {
            if raw.checksum_type != CHECKSUM_TYPE_CRC32C {
                return Err(FormatError::SuperChecksumType {
                    found: raw.checksum_type,
                });
            }
            ChecksumKind::Crc32c
        } else if features.has_ro_compat(RoCompat::UNINIT_BG) {
            ChecksumKind::GroupDescCrc16
        } else {
            ChecksumKind::None
        };
        let seed = if features.has_incompat(Incompat::METADATA_CSUM_SEED) {
            MetaSeed(raw.checksum_seed.get())
        } else {
            MetaSeed::from_uuid(&raw.uuid)
        };

        let geo = Self {
            block_size,
            block_bits,
            cluster_ratio,
            cluster_bits,
            blocks_count,
            first_data_block: BlockNo(u64::from(first_data_block)),
            groups_count,
            blocks_per_group,
            clusters_per_group,
            inodes_count,
            inodes_per_group,
            inode_size,
            inodes_per_block,
            inode_table_blocks: inodes_per_group / inodes_per_block,
            first_ino,
            desc_size,
            descs_per_block,
            desc_blocks,
            reserved_gdt_blocks,
            first_meta_bg,
            groups_per_flex,
            backup_bgs: raw.backup_bgs.map(|b| b.get()),
            // Volumes older than the field leave it 0; 32 covers all fields there are.
            want_extra_isize: match extra.1 {
                0 => max_extra.min(32),
                n => n.min(max_extra),
            },
            features,
            checksums,
            seed,
            uuid: raw.uuid,
        };
        // Group 0 must hold the superblock, its descriptors and the rest of its own metadata.
        let base = u64::from(geo.base_meta_blocks(GroupNo(0)));
        if base >= u64::from(geo.blocks_per_group) || base >= blocks_count {
            return Err(FormatError::SuperDescriptorsDontFit {
                blocks: base,
                group_blocks: geo.blocks_per_group,
            });
        }
        Ok(geo)
    }

    /// Bytes per block.
    #[must_use]
    pub fn block_len(&self) -> usize {
        self.block_size as usize
    }

    /// Byte offset of a block on the device.
    #[must_use]
    pub fn block_offset(&self, block: BlockNo) -> u64 {
        block.0.saturating_mul(u64::from(self.block_size))
    }

    /// The block that holds the primary superblock.
    #[must_use]
    pub fn super_block(&self) -> BlockNo {
        BlockNo(u64::from(self.block_size == 1024))
    }

    /// Whether all metadata carries CRC-32C checksums.
    #[must_use]
    pub fn metadata_csum(&self) -> bool {
        self.checksums == ChecksumKind::Crc32c
    }

    /// Seed of an inode's checksums.
    #[must_use]
    pub fn inode_seed(&self, ino: Ino, generation: u32) -> InodeSeed {
        self.seed.inode(ino, generation)
    }

    /// All groups, in order.
    pub fn groups(&self) -> impl DoubleEndedIterator<Item = GroupNo> + use<> {
        (0..self.groups_count).map(GroupNo)
    }

    /// First block of a group.
    #[must_use]
    pub fn group_first_block(&self, group: GroupNo) -> BlockNo {
        BlockNo(self.first_data_block.0 + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// Blocks in a group: all but the last group are full. 0 for a group that does not exist.
    #[must_use]
    pub fn group_blocks(&self, group: GroupNo) -> u32 {
        let left = self
            .blocks_count
            .saturating_sub(self.group_first_block(group).0);
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// Clusters in a group, a partial last one included.
    #[must_use]
    pub fn group_clusters(&self, group: GroupNo) -> u32 {
        self.group_blocks(group).div_ceil(self.cluster_ratio)
    }

    /// The group a block belongs to; `None` outside of the volume (or before group 0).
    #[must_use]
    pub fn group_of_block(&self, block: BlockNo) -> Option<GroupNo> {
        self.split_block(block).map(|(g, _)| g)
    }

    /// Group of a block and its offset in blocks within the group.
    #[must_use]
    pub fn split_block(&self, block: BlockNo) -> Option<(GroupNo, u32)> {
        if block.0 >= self.blocks_count {
            return None;
        }
        let rel = block.0.checked_sub(self.first_data_block.0)?;
        let bpg = u64::from(self.blocks_per_group);
        Some((GroupNo((rel / bpg) as u32), (rel % bpg) as u32))
    }

    /// Whether `count` blocks from `first` lie in the volume. An empty run does not.
    #[must_use]
    pub fn contains_run(&self, first: BlockNo, count: u64) -> bool {
        count > 0
            && first >= self.first_data_block
            && first.0 > 0
            && first
                .0
                .checked_add(count)
                .is_some_and(|end| end <= self.blocks_count)
    }

    /// Whether a group starts with a superblock copy.
    #[must_use]
    pub fn group_has_super(&self, group: GroupNo) -> bool {
        let g = group.0;
        if g == 0 {
            return true;
        }
        if self.features.has_compat(Compat::SPARSE_SUPER2) {
            return self.backup_bgs.contains(&g);
        }
        if g == 1 || !self.features.has_ro_compat(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(g, base))
    }

    /// The block of a group's superblock copy, when it has one.
    #[must_use]
    pub fn group_super_block(&self, group: GroupNo) -> Option<BlockNo> {
        if group.0 == 0 {
            return Some(self.super_block());
        }
        self.group_has_super(group)
            .then(|| self.group_first_block(group))
    }

    fn desc_block_in_meta_bg(&self, index: u32) -> bool {
        self.features.has_incompat(Incompat::META_BG) && index >= self.first_meta_bg
    }

    /// Where block `index` of the group descriptors lies (its primary copy). `None` past the end.
    #[must_use]
    pub fn desc_block(&self, index: u32) -> Option<BlockNo> {
        if index >= self.desc_blocks {
            return None;
        }
        if !self.desc_block_in_meta_bg(index) {
            return Some(BlockNo(self.super_block().0 + 1 + u64::from(index)));
        }
        self.meta_bg_desc_block(index.checked_mul(self.descs_per_block).map(GroupNo)?)
    }

    /// Block of a meta_bg descriptor copy held by `group`.
    fn meta_bg_desc_block(&self, group: GroupNo) -> Option<BlockNo> {
        if group.0 >= self.groups_count {
            return None;
        }
        let after = match self.group_super_block(group) {
            Some(sb) => sb.0 + 1,
            None => self.group_first_block(group).0,
        };
        Some(BlockNo(after))
    }

    /// Where `group`'s copy of descriptor block `index` lies; `None` when it keeps no such copy.
    #[must_use]
    pub fn desc_block_copy(&self, group: GroupNo, index: u32) -> Option<BlockNo> {
        if index >= self.desc_blocks || group.0 >= self.groups_count {
            return None;
        }
        if self.desc_block_in_meta_bg(index) {
            let first = index.checked_mul(self.descs_per_block)?;
            let in_bg = group
                .0
                .checked_sub(first)
                .filter(|n| *n < self.descs_per_block)?;
            let holds = in_bg <= 1 || in_bg == self.descs_per_block - 1;
            return if holds {
                self.meta_bg_desc_block(group)
            } else {
                None
            };
        }
        let sb = self.group_super_block(group)?;
        Some(BlockNo(sb.0 + 1 + u64::from(index)))
    }

    /// Which descriptor block holds a group's descriptor, and at which byte offset.
    #[must_use]
    pub fn desc_position(&self, group: GroupNo) -> (u32, usize) {
        let slot = group.0 % self.descs_per_block;
        (
            group.0 / self.descs_per_block,
            slot as usize * usize::from(self.desc_size),
        )
    }

    /// Descriptor blocks (reserved ones excluded) a group holds a copy of.
    #[must_use]
    pub fn group_desc_blocks(&self, group: GroupNo) -> u32 {
        let meta_bg = self.features.has_incompat(Incompat::META_BG);
        if meta_bg && group.0 / self.descs_per_block >= self.first_meta_bg {
            let in_bg = group.0 % self.descs_per_block;
            return u32::from(in_bg <= 1 || in_bg == self.descs_per_block - 1);
        }
        match (self.group_has_super(group), meta_bg) {
            (false, _) => 0,
            (true, true) => self.first_meta_bg.min(self.desc_blocks),
            (true, false) => self.desc_blocks,
        }
    }

    /// Blocks at the start of a group taken by the superblock copy, the descriptors and the
    /// blocks reserved for more of them, counted from the first block of the group (so with 1 KiB
    /// blocks and bigalloc the boot block of group 0 is included).
    #[must_use]
    pub fn base_meta_blocks(&self, group: GroupNo) -> u32 {
        let supers = match self.group_super_block(group) {
            Some(sb) => (sb.0 - self.group_first_block(group).0) as u32 + 1,
            None => 0,
        };
        let descs = self.group_desc_blocks(group);
        let meta_bg = self.features.has_incompat(Incompat::META_BG);
        let reserved = if supers > 0 && !meta_bg {
            self.reserved_gdt_blocks
        } else {
            0
        };
        supers + descs + reserved
    }

    /// The group of an inode and its index there; `None` for 0 and past the last inode.
    #[must_use]
    pub fn split_ino(&self, ino: Ino) -> Option<(GroupNo, u32)> {
        if ino.0 == 0 || ino.0 > self.inodes_count {
            return None;
        }
        let n = ino.0 - 1;
        Some((
            GroupNo(n / self.inodes_per_group),
            n % self.inodes_per_group,
        ))
    }

    /// The inode with index `index` in `group`; `None` when there is no such inode.
    #[must_use]
    pub fn ino_at(&self, group: GroupNo, index: u32) -> Option<Ino> {
        if group.0 >= self.groups_count || index >= self.inodes_per_group {
            return None;
        }
        Some(Ino(group.0 * self.inodes_per_group + index + 1))
    }

    /// Block and byte offset of an inode, given where its group's inode table starts.
    #[must_use]
    pub fn inode_location(&self, ino: Ino, table: BlockNo) -> Option<(BlockNo, usize)> {
        let (_, index) = self.split_ino(ino)?;
        let block = table.checked_add(u64::from(index / self.inodes_per_block))?;
        let slot = (index % self.inodes_per_block) as usize;
        Some((block, slot * usize::from(self.inode_size)))
    }

    /// First group of the flexible group a group belongs to.
    #[must_use]
    pub fn flex_first_group(&self, group: GroupNo) -> GroupNo {
        GroupNo(group.0 - group.0 % self.groups_per_flex)
    }

    /// Largest file in bytes for extent-mapped files (2^32 − 1 blocks).
    #[must_use]
    pub fn max_extent_file_size(&self) -> u64 {
        u64::from(u32::MAX) << self.block_bits
    }

    /// Bytes of a block bitmap that carry bits (and are covered by its checksum).
    #[must_use]
    pub fn block_bitmap_bytes(&self) -> usize {
        (self.clusters_per_group / 8) as usize
    }

    /// Bytes of an inode bitmap that carry bits (and are covered by its checksum).
    #[must_use]
    pub fn inode_bitmap_bytes(&self) -> usize {
        (self.inodes_per_group / 8) as usize
    }
}

fn is_power_of(mut n: u32, base: u32) -> bool {
    while n > 1 && n.is_multiple_of(base) {
        n /= base;
    }
    n == 1
}

#[cfg(test)]
mod tests {
    use super::is_power_of;

    #[test]
    fn sparse_groups() {
        let sparse: Vec<u32> = (2..150)
            .filter(|g| [3, 5, 7].iter().any(|b| is_power_of(*g, *b)))
            .collect();
        assert_eq!(sparse, [3, 5, 7, 9, 25, 27, 49, 81, 125]);
    }
}
