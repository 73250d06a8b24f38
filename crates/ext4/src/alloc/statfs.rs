//! How full the volume is, in the numbers the kernel reports.
//!
//! Metadata of fixed size is left out of the total (`minixdf` is not offered). Blocks that are promised to cached data count as used, so that a
//! program which reads the numbers before it writes is not misled.

use super::Allocator;
use blockwright_ondisk::ext4::GroupNo;
use blockwright_ondisk::ext4::superblock::JournalLocation;
use blockwright_ondisk::ext4::types::NAME_MAX;
use blockwright_vfs::StatFs;

impl Allocator {
    /// Blocks that can never hold file data: superblocks, descriptors, bitmaps, inode tables, the journal.
    fn overhead(&self) -> u64 {
        let stored = u64::from(self.volume.superblock().raw.overhead_blocks.get());
        let geo = self.volume.geometry();
        if stored != 0 && stored < geo.blocks_count {
            return stored * u64::from(geo.cluster_ratio);
        }
        let per_group = u64::from(geo.inode_table_blocks) + 2;
        let mut blocks = geo.first_data_block.0 + per_group * u64::from(geo.groups_count);
        for g in geo.groups() {
            blocks += self.group_overhead(g);
        }
        if let Some(JournalLocation::Internal(_)) = self.volume.superblock().journal() {
            blocks += self.journal_blocks();
        }
        blocks
    }

    fn group_overhead(&self, group: GroupNo) -> u64 {
        u64::from(self.volume.geometry().base_meta_blocks(group))
    }

    /// The internal journal's length, from the superblock's backup of its inode.
    fn journal_blocks(&self) -> u64 {
        let raw = &self.volume.superblock().raw;
        let (hi, lo) = (raw.jnl_blocks[15].get(), raw.jnl_blocks[16].get());
        let bytes = u64::from(lo) | u64::from(hi) << 32;
        bytes >> self.volume.geometry().block_bits
    }

    /// [`blockwright_vfs::engine::Space::statfs`].
    #[must_use]
    pub fn statfs(&self) -> StatFs {
        let geo = self.volume.geometry();
        let (free, available) = self.shared.space.statfs(self.volume.sb.free_blocks());
        let half = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|i| geo.uuid[at + i]);
            u64::from_le_bytes(bytes)
        };
        StatFs {
            block_bytes: geo.block_size,
            blocks: geo.blocks_count.saturating_sub(self.overhead()),
            blocks_free: free,
            blocks_available: available,
            files: u64::from(geo.inodes_count),
            files_free: self.volume.sb.free_inodes(),
            name_bytes_max: NAME_MAX as u32,
            fsid: half(0) ^ half(8),
        }
    }
}
