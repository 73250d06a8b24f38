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

/// An empty journal.
pub(crate) struct Log {
    /// Where each of its blocks is.
    blocks: Vec<u64>,
    pub sb: JournalSuperblock,
}

impl Log {
    /// The journal of a volume; `None` without one.
    ///
    /// # Errors
    /// `NotClean` when it holds transactions; `Unsupported` when it is on another device.
    pub fn open(volume: &Volume) -> Result<Option<Self>> {
        match volume.sb.journal() {
            None => Ok(None),
            Some(JournalLocation::External { .. }) => Err(ReshapeError::Unsupported(
                "the volume's journal is on another device: only settings of the superblock can be changed".into(),
            )),
            Some(JournalLocation::Internal(ino)) => Self::open_inode(volume, ino).map(Some),
        }
    }

    fn open_inode(volume: &Volume, ino: Ino) -> Result<Self> {
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
        let known = JournalIncompat::all() & JournalIncompat::from_bits_retain(0x3F);
        if sb.block_size as usize != volume.disk.block_len() || !known.contains(sb.incompat) {
            return Err(ReshapeError::Unsupported(
                "the journal has features that are not known".into(),
            ));
        }
        if sb.start.is_some() {
            return Err(ReshapeError::NotClean("the journal must be replayed"));
        }
        if sb.errno != 0 {
            return Err(ReshapeError::NotClean("the journal records an error"));
        }
        Ok(Self { blocks, sb })
    }

    /// A journal at these blocks with this superblock, which need not be on the device.
    pub fn new(blocks: Vec<u64>, sb: JournalSuperblock) -> Self {
        Self { blocks, sb }
    }

    /// Blocks of the journal.
    pub fn len(&self) -> usize {
        self.blocks.len()
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
            return Err(ReshapeError::NoSpace(format!(
                "the journal of {} blocks is too small for a transaction of {} blocks",
                self.len(),
                self.needed(images.len())
            )));
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
        let places = &self.blocks[self.sb.first as usize..];
        disk.write_all(
            places.iter().copied().zip(log.iter().map(Vec::as_slice)),
            WHAT,
        )
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
        let at = self.blocks[0] * disk.block_len() as u64;
        let bytes = self.sb.raw.as_bytes();
        debug_assert_eq!(bytes.len(), SUPERBLOCK_SIZE);
        disk.write_bytes(at, bytes, WHAT)
    }
}
