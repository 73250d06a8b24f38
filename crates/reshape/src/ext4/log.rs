//! The volume's journal as a place for one transaction.
//!
//! Owns: where the journal's blocks are, and its superblock. A transaction begins at the first block of the log, because the
//! log is empty whenever a change starts.
//!
//! Crash order: see `commit`; this part only writes, and flushes nothing.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Journal (jbd2)".

use std::time::{SystemTime, UNIX_EPOCH};

use blockwright_ondisk::ext4::jbd2::{
    DescriptorBuilder, JournalChecksums, JournalIncompat, JournalSuperblock, MAGIC_BYTES,
    SUPERBLOCK_SIZE, needs_escape, v1_checksum,
};
use blockwright_ondisk::ext4::superblock::JournalLocation;
use blockwright_ondisk::ext4::{BlockNo, Ino};
use zerocopy::IntoBytes;

use super::disk::Disk;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};

const WHAT: &str = "journal";

/// Where a journal is.
enum Home {
    /// In these blocks of the volume.
    Blocks(Vec<u64>),
    /// On another device, whose blocks are its blocks. Its superblock is in this one.
    Device { disk: Box<Disk>, head: u64 },
}

/// An empty journal.
pub(crate) struct Log {
    home: Home,
    pub sb: JournalSuperblock,
}

impl Log {
    /// The journal of a volume; `None` without one.
    ///
    /// # Errors
    /// `NotClean` when it holds transactions; `Unsupported` when it is on another device that the caller has not named; `Invalid` for a device that is not its.
    pub fn open(volume: &Volume) -> Result<Option<Self>> {
        let log = Self::find(volume)?;
        if let Some(log) = &log {
            Self::check(volume, &log.sb)?;
        }
        Ok(log)
    }

    /// The journal of a volume, which may hold transactions.
    ///
    /// # Errors
    /// As [`Log::open`], for a journal that is not named or not found.
    pub fn find(volume: &Volume) -> Result<Option<Self>> {
        match volume.sb.journal() {
            None => Ok(None),
            Some(JournalLocation::External { uuid, .. }) => {
                Self::find_elsewhere(volume, uuid).map(Some)
            }
            Some(JournalLocation::Internal(ino)) => Self::find_inode(volume, ino).map(Some),
        }
    }

    fn find_inode(volume: &Volume, ino: Ino) -> Result<Self> {
        let inode = volume.inode(ino)?;
        let mut blocks = Vec::new();
        for run in volume.runs(ino, &inode)?.runs {
            if run.file != blocks.len() as u64 {
                return Err(ReshapeError::Damaged("the journal has holes".into()));
            }
            blocks.extend(run.start..run.start + run.len);
        }
        let first = *blocks
            .first()
            .ok_or_else(|| ReshapeError::Damaged("the journal is empty".into()))?;
        let bytes = volume.disk.read(first, WHAT)?;
        let sb = JournalSuperblock::parse(&bytes, Some(blocks.len() as u64))?;
        Ok(Self {
            home: Home::Blocks(blocks),
            sb,
        })
    }

    fn find_elsewhere(volume: &Volume, uuid: [u8; 16]) -> Result<Self> {
        let journal = volume.journal.as_ref().ok_or_else(|| {
            ReshapeError::Unsupported(format!(
                "the volume's journal is on another device, with UUID {}; name it (--journal), or take it away when it is lost (`set --force IMAGE features=^has_journal`)",
                uuid::Uuid::from_bytes(uuid)
            ))
        })?;
        let found = journal.read()?;
        if found.uuid() != uuid {
            return Err(ReshapeError::Invalid(format!(
                "{} is not the volume's journal, which has the UUID {}",
                journal.device.name(),
                uuid::Uuid::from_bytes(uuid)
            )));
        }
        Ok(Self {
            home: Home::Device {
                disk: Box::new(Disk::new(journal.device.clone(), found.journal.block_size)),
                head: u64::from(found.head_block()),
            },
            sb: found.journal,
        })
    }

    /// Whether a journal can take a transaction.
    pub fn check(volume: &Volume, sb: &JournalSuperblock) -> Result<()> {
        if sb.block_size as usize != volume.disk.block_len() {
            return Err(ReshapeError::Unsupported(format!(
                "the journal has blocks of {} bytes, and the volume blocks of {}",
                sb.block_size,
                volume.disk.block_len()
            )));
        }
        let known = JournalIncompat::all() & JournalIncompat::from_bits_retain(0x3F);
        if !known.contains(sb.incompat) {
            return Err(ReshapeError::Unsupported(
                "the journal has features that are not known".into(),
            ));
        }
        if sb.start.is_some() {
            return Err(ReshapeError::Undecided(
                "the journal holds transactions, and the superblock does not say that they must be replayed: `blockwright check -y IMAGE` replays them, and a mount drops them",
            ));
        }
        if sb.errno != 0 {
            return Err(ReshapeError::NotClean("the journal records an error"));
        }
        Ok(())
    }

    /// A journal at these blocks with this superblock, which need not be on the device.
    pub fn new(blocks: Vec<u64>, sb: JournalSuperblock) -> Self {
        Self {
            home: Home::Blocks(blocks),
            sb,
        }
    }

    /// A block of the journal; `None` behind its end.
    pub fn read(&self, volume: &Disk, at: u32) -> Result<Option<Vec<u8>>> {
        if at >= self.sb.log_end {
            return Ok(None);
        }
        match &self.home {
            Home::Blocks(blocks) => match blocks.get(at as usize) {
                Some(block) => volume.read(*block, WHAT).map(Some),
                None => Ok(None),
            },
            Home::Device { disk, .. } => disk.read(u64::from(at), WHAT).map(Some),
        }
    }

    /// Blocks of the journal.
    pub fn len(&self) -> usize {
        match &self.home {
            Home::Blocks(blocks) => blocks.len(),
            Home::Device { .. } => self.sb.len as usize,
        }
    }

    /// Whether it is on another device.
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.home, Home::Device { .. })
    }

    /// Makes what was written to the journal durable; `volume` is the disk of its volume.
    pub fn flush(&self, volume: &Disk) -> Result<()> {
        match &self.home {
            Home::Blocks(_) => volume.flush(WHAT),
            Home::Device { disk, .. } => disk.flush(WHAT),
        }
    }

    /// As [`Log::flush`], where the journal is on another device than its volume.
    pub fn flush_elsewhere(&self) -> Result<()> {
        match &self.home {
            Home::Blocks(_) => Ok(()),
            Home::Device { disk, .. } => disk.flush(WHAT),
        }
    }

    /// Blocks of a transaction that changes this many.
    fn needed(&self, images: usize) -> usize {
        images + images.div_ceil(self.sb.format.tags_per_block()) + 1
    }

    /// Whether a transaction that changes this many blocks fits.
    pub fn fits(&self, images: usize) -> bool {
        self.needed(images) <= (self.sb.log_end - self.sb.first) as usize
    }

    /// Writes a transaction of these blocks. It takes effect when [`Log::set_live`] is on the device.
    pub fn write<'b>(
        &mut self,
        disk: &Disk,
        images: impl ExactSizeIterator<Item = (u64, &'b [u8])>,
    ) -> Result<()> {
        if !self.fits(images.len()) {
            let what = format!(
                "the journal of {} blocks is too small for a transaction of {} blocks",
                self.len(),
                self.needed(images.len())
            );
            // More room on the volume would not help.
            return Err(match self.is_elsewhere() {
                true => ReshapeError::Unsupported(what),
                false => ReshapeError::NoSpace(what),
            });
        }
        let too_high =
            || ReshapeError::Unsupported("block numbers do not fit into the journal".into());
        let format = self.sb.format;
        let (size, sequence) = (disk.block_len(), self.sb.sequence);
        let images: Vec<(u64, &[u8])> = images.collect();
        let mut log: Vec<Vec<u8>> = Vec::with_capacity(self.needed(images.len()));
        let mut sum = !0;
        for chunk in images.chunks(format.tags_per_block()) {
            let mut descriptor = vec![0; size];
            let mut data = Vec::with_capacity(chunk.len());
            let mut builder =
                DescriptorBuilder::new(&mut descriptor, &format, sequence).ok_or_else(too_high)?;
            for (block, bytes) in chunk {
                let escaped = needs_escape(bytes);
                let mut logged = bytes.to_vec();
                if escaped {
                    logged[..MAGIC_BYTES.len()].fill(0);
                }
                let checksum = format.tag_checksum(sequence, &logged);
                builder
                    .push(BlockNo(*block), escaped, checksum)
                    .ok_or_else(too_high)?;
                data.push(logged);
            }
            builder.finish();
            for block in std::iter::once(descriptor).chain(data) {
                if format.checksums == JournalChecksums::V1 {
                    sum = v1_checksum(sum, &block);
                }
                log.push(block);
            }
        }
        let mut commit = vec![0; size];
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        format
            .write_commit(
                &mut commit,
                sequence,
                now.as_secs(),
                now.subsec_nanos(),
                sum,
            )
            .ok_or_else(too_high)?;
        log.push(commit);
        let images = log.iter().map(Vec::as_slice);
        match &self.home {
            Home::Blocks(blocks) => {
                let places = &blocks[self.sb.first as usize..];
                disk.write_all(places.iter().copied().zip(images), WHAT)
            }
            Home::Device { disk, .. } => {
                disk.write_all((u64::from(self.sb.first)..).zip(images), WHAT)
            }
        }
    }

    /// Says that the log holds the transaction that was written.
    pub fn set_live(&mut self, disk: &Disk) -> Result<()> {
        self.sb.raw.start.set(self.sb.first);
        self.write_super(disk)
    }

    /// Says that the log is empty.
    pub fn set_empty(&mut self, disk: &Disk) -> Result<()> {
        self.sb.sequence = self.sb.sequence.wrapping_add(1);
        self.sb.raw.sequence.set(self.sb.sequence);
        self.sb.raw.start.set(0);
        self.write_super(disk)
    }

    fn write_super(&mut self, disk: &Disk) -> Result<()> {
        self.sb.raw.set_checksum();
        let (disk, block) = match &self.home {
            Home::Blocks(blocks) => (disk, blocks[0]),
            Home::Device { disk, head } => (&**disk, *head),
        };
        let at = block * disk.block_len() as u64;
        let bytes = self.sb.raw.as_bytes();
        debug_assert_eq!(bytes.len(), SUPERBLOCK_SIZE);
        disk.write_bytes(at, bytes, WHAT)
    }
}
