//! A journal on a device of its own (`mke2fs -O journal_dev`): a superblock like a volume's in its usual place, and the journal in the blocks of the device.
//!
//! Block numbers of the journal are the device's. The journal's own superblock is in the block behind the ext4 superblock's, and the log begins behind it. The journal has
//! the UUID of its device. A volume names its journal by that UUID, and the journal lists the UUIDs of its volumes: its users. The format has room for 48 of
//! them; the kernel mounts no volume whose journal has more than one.
//!
//! Not responsible for: I/O, the log.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Journal (jbd2)", external journal.

use zerocopy::IntoBytes;

use super::error::FormatError;
use super::features::Incompat;
use super::jbd2::{
    self, JournalBlockType, JournalSuperblock, RawJournalSuperblock, SUPERBLOCK_SIZE as HEAD_SIZE,
};
use super::superblock::{
    CHECKSUM_TYPE_CRC32C, MAGIC, RawSuperblock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State,
};

/// Bytes from the start of a device in which both superblocks are, whatever its block size.
pub const HEAD_BYTES: usize = 65_536 + HEAD_SIZE;
/// Users that the list has room for.
pub const USERS_MAX: usize = 48;
/// Bytes of a UUID.
const UUID: usize = 16;

/// A validated journal device.
#[derive(Clone, Debug)]
pub struct JournalDevice {
    /// The superblock like a volume's.
    pub raw: RawSuperblock,
    /// The journal's own.
    pub journal: JournalSuperblock,
}

/// Byte offset of the journal's superblock on a device with blocks of this size.
#[must_use]
pub const fn head_offset(block_size: u32) -> u64 {
    if block_size == 1024 {
        2 * SUPERBLOCK_OFFSET
    } else {
        block_size as u64
    }
}

impl JournalDevice {
    /// Validates a device by its first bytes, of which [`HEAD_BYTES`] are enough.
    ///
    /// # Errors
    /// [`FormatError::SuperNotJournalDevice`] for what is no journal device; else one variant per check.
    pub fn parse(bytes: &[u8], device_bytes: u64) -> Result<Self, FormatError> {
        let raw = RawSuperblock::read(bytes.get(SUPERBLOCK_OFFSET as usize..).unwrap_or(&[]))?;
        if raw.magic.get() != MAGIC || !raw.features().has_incompat(Incompat::JOURNAL_DEV) {
            return Err(FormatError::SuperNotJournalDevice);
        }
        // A checksum that is there counts, as for the kernel.
        if raw.features().metadata_csum() {
            raw.verify_checksum()?;
        }
        let log = raw.log_block_size.get();
        if log > 6 {
            return Err(FormatError::SuperBlockSize { log });
        }
        let block_size = 1024u32 << log;
        let at = head_offset(block_size) as usize;
        let blocks = raw.blocks_count().min(device_bytes >> (10 + log));
        let journal = JournalSuperblock::parse(bytes.get(at..).unwrap_or(&[]), Some(blocks))?;
        if journal.block_size != block_size {
            return Err(FormatError::JournalBlockSize {
                found: journal.block_size,
            });
        }
        // The log does not hold the superblocks.
        if u64::from(journal.first) <= head_offset(block_size) / u64::from(block_size) {
            return Err(FormatError::JournalFirst {
                found: journal.first,
                end: journal.log_end,
            });
        }
        let users = journal.raw.nr_users.get();
        if users as usize > USERS_MAX {
            return Err(FormatError::JournalUsers {
                users,
                max: USERS_MAX,
            });
        }
        Ok(Self { raw, journal })
    }

    /// A new journal device without a user, whose log is empty.
    ///
    /// # Errors
    /// [`FormatError::JournalLength`] and others for sizes that the format does not have.
    pub fn new(
        block_size: u32,
        blocks: u32,
        uuid: [u8; 16],
        label: [u8; 16],
        now: u64,
    ) -> Result<Self, FormatError> {
        let mut raw = RawSuperblock::zeroed();
        raw.magic.set(MAGIC);
        raw.rev_level.set(1);
        let log = block_size.trailing_zeros().saturating_sub(10);
        raw.log_block_size.set(log);
        raw.log_cluster_size.set(log);
        raw.set_blocks_count(u64::from(blocks));
        raw.first_data_block.set(u32::from(block_size == 1024));
        // Of no meaning here, but readers may divide by them.
        raw.blocks_per_group.set(block_size.saturating_mul(8));
        raw.clusters_per_group.set(block_size.saturating_mul(8));
        raw.inode_size.set(256);
        raw.first_ino.set(11);
        raw.state.set(State::CLEAN.bits());
        raw.errors.set(1);
        raw.max_mnt_count.set(u16::MAX);
        raw.set_mkfs_time(now);
        raw.set_write_time(now);
        raw.set_check_time(now);
        raw.uuid = uuid;
        raw.volume_name = label;
        let mut features = raw.features();
        features.incompat |= Incompat::JOURNAL_DEV;
        raw.set_features(features);
        debug_assert_ne!(raw.checksum_type, CHECKSUM_TYPE_CRC32C);

        let mut head = RawJournalSuperblock::zeroed();
        head.header.magic.set(jbd2::MAGIC);
        head.header
            .blocktype
            .set(JournalBlockType::SuperblockV2.to_raw());
        head.blocksize.set(block_size);
        head.maxlen.set(blocks);
        let place = head_offset(block_size) / u64::from(block_size.max(1));
        head.first.set(place as u32 + 1);
        head.sequence.set(1);
        head.uuid = uuid;
        let journal = JournalSuperblock::parse(head.as_bytes(), Some(u64::from(blocks)))?;
        Ok(Self { raw, journal })
    }

    /// The bytes from the ext4 superblock's place to the end of the journal's superblock, and those between: for a new device.
    #[must_use]
    pub fn to_head(&self) -> Vec<u8> {
        let at = self.head_offset() as usize;
        let mut bytes = vec![0; at + HEAD_SIZE];
        let place = SUPERBLOCK_OFFSET as usize;
        bytes[place..place + SUPERBLOCK_SIZE].copy_from_slice(&self.raw.to_bytes());
        bytes[at..].copy_from_slice(self.journal.raw.as_bytes());
        bytes
    }

    /// Byte offset of the journal's superblock.
    #[must_use]
    pub fn head_offset(&self) -> u64 {
        head_offset(self.journal.block_size)
    }

    /// The journal's block that its superblock is in.
    #[must_use]
    pub fn head_block(&self) -> u32 {
        (self.head_offset() / u64::from(self.journal.block_size)) as u32
    }

    /// The UUID by which volumes name it.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.uuid
    }

    /// The UUIDs of the volumes that use it.
    #[must_use]
    pub fn users(&self) -> Vec<[u8; 16]> {
        let count = (self.journal.raw.nr_users.get() as usize).min(USERS_MAX);
        let list = self.journal.raw.users.as_chunks::<UUID>().0;
        list.iter().take(count).copied().collect()
    }

    /// Sets the list of users, with the checksum of the superblock.
    ///
    /// # Errors
    /// [`FormatError::JournalUsers`] for more than there is room for.
    pub fn set_users(&mut self, users: &[[u8; 16]]) -> Result<(), FormatError> {
        let raw = &mut self.journal.raw;
        if users.len() > USERS_MAX {
            return Err(FormatError::JournalUsers {
                users: u32::try_from(users.len()).unwrap_or(u32::MAX),
                max: USERS_MAX,
            });
        }
        raw.users = [0; USERS_MAX * UUID];
        for (place, uuid) in raw.users.chunks_exact_mut(UUID).zip(users) {
            place.copy_from_slice(uuid);
        }
        raw.nr_users.set(users.len() as u32);
        raw.set_checksum();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(block_size: u32) -> JournalDevice {
        JournalDevice::new(block_size, 2048, [3; 16], [0; 16], 7).expect("a journal")
    }

    #[test]
    fn a_new_one_is_parsed_back() {
        for block_size in [1024, 2048, 4096, 65_536] {
            let mut device = made(block_size);
            device.set_users(&[[9; 16], [8; 16]]).expect("room");
            let head = device.to_head();
            assert!(head.len() <= HEAD_BYTES);
            let bytes = u64::from(block_size) * 2048;
            let back = JournalDevice::parse(&head, bytes).expect("a journal");
            assert_eq!(back.users(), [[9; 16], [8; 16]]);
            assert_eq!(back.uuid(), [3; 16]);
            assert_eq!(back.journal.first, back.head_block() + 1);
            assert!(JournalDevice::parse(&head, bytes - 1).is_err());
            assert!(JournalDevice::parse(&head[..1500], bytes).is_err());
        }
    }

    #[test]
    fn others_are_refused() {
        let device = made(4096);
        let mut head = device.to_head();
        head[4096 + 0x43] = 49;
        let users = JournalDevice::parse(&head, 8 << 20);
        assert!(matches!(users, Err(FormatError::JournalUsers { .. })));
        for first in [0, 1] {
            let mut early = device.to_head();
            early[4096 + 0x14..4096 + 0x18].copy_from_slice(&u32::to_be_bytes(first));
            let early = JournalDevice::parse(&early, 8 << 20);
            assert!(matches!(early, Err(FormatError::JournalFirst { .. })));
        }
        head[1024 + 0x60] = 0;
        let none = JournalDevice::parse(&head, 8 << 20);
        assert!(matches!(none, Err(FormatError::SuperNotJournalDevice)));
        assert!(made(4096).set_users(&[[1; 16]; 49]).is_err());
        assert!(JournalDevice::new(4096, 2, [0; 16], [0; 16], 0).is_err());
    }
}
