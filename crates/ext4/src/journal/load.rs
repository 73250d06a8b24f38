//! Opening a volume's journal: find it, recover what it holds, take it over.
//!
//! # Crash order
//! copies written home → flush → log marked empty. A crash in between replays again, which is
//! harmless: the log is not written to before it is marked empty.
//!
//! On a read-only mount the device is an overlay, and nothing of this reaches the volume.

use super::fast_commit::{self, FastCommits, Operations};
use super::location::LogBlock;
use super::location::{LogMap, locate};
use super::log::{Log, LogFeatures, write_super_block};
use super::replay::{LogReader, Recovery, scan};
use crate::options::Options;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, DeviceExt, Flags, IoPriority, SharedDevice, WriteBatch};
use blockwright_ondisk::ext4::jbd2::{JournalIncompat, JournalSuperblock};
use blockwright_ondisk::ext4::superblock::{JournalLocation, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use blockwright_ondisk::ext4::{BlockNo, Incompat, RawSuperblock, Superblock};
use std::sync::Arc;

const OP: &str = "journal";

/// A journal that was found.
pub struct Found {
    device: SharedDevice,
    external: bool,
    map: LogMap,
    /// Where the journal's superblock is: on a device of its own it is not the first block.
    super_at: LogBlock,
    superblock: JournalSuperblock,
}

/// What recovery did.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Complete transactions in the log.
    pub transactions: u32,
    /// Blocks written home.
    pub blocks: u64,
    /// Copies that were revoked or superseded.
    pub skipped: u64,
    /// Fast commits to apply after the blocks, through the engine (see [`Found::operations`]).
    pub fast_commits: FastCommits,
    /// Sequence number the next transaction may have.
    pub next_sequence: u32,
    /// The journal's last user aborted it.
    pub errno: i32,
}

impl Found {
    /// The journal's blocks on the volume itself; nothing for an external one.
    pub fn runs(&self) -> impl Iterator<Item = (BlockNo, u32)> + '_ {
        self.map.runs().filter(|_| !self.external)
    }

    /// Whether its log holds something.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.superblock.start.is_some()
    }
}

/// Finds the volume's journal and validates its superblock. `None` for a volume without one.
///
/// # Errors
/// `Corrupt`, `UnsupportedFeature` naming the feature, `Io`.
pub fn find(
    device: &SharedDevice,
    superblock: &Superblock,
    options: &Options,
) -> Result<Option<Found>> {
    let location = superblock.journal();
    let elsewhere = matches!(location, Some(JournalLocation::External { .. }));
    if options.journal_device.is_some() && !elsewhere {
        return Err(Error::new(ErrorKind::Invalid, OP).detail(
            "a journal device is named, but the volume's journal is not on another device",
        ));
    }
    let (log_device, external, map) = match location {
        None => return Ok(None),
        Some(JournalLocation::Internal(ino)) => {
            (Arc::clone(device), false, locate(device, superblock, ino)?)
        }
        Some(JournalLocation::External { uuid, .. }) => {
            let Some(other) = &options.journal_device else {
                let id: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
                return Err(
                    Error::new(ErrorKind::UnsupportedFeature, OP).detail(format!(
                        "the journal is on another device, with UUID {id}; name it (--journal)"
                    )),
                );
            };
            (
                Arc::clone(other),
                true,
                locate_external(other, superblock, uuid)?,
            )
        }
    };
    let block_size = superblock.geo.block_size;
    let super_at = match external {
        false => LogBlock(0),
        true => LogBlock(superblock.geo.super_block().0 as u32 + 1),
    };
    let offset = map.offset(super_at, block_size)?;
    let bytes = log_device
        .read_buf(offset, superblock.geo.block_len())
        .map_err(|e| Error::io(OP, e))?;
    let parsed = JournalSuperblock::parse(&bytes, Some(u64::from(map.len())))
        .map_err(|e| Error::corrupt(OP, e.to_string()))?;
    let known = JournalIncompat::REVOKE
        | JournalIncompat::BIT64
        | JournalIncompat::ASYNC_COMMIT
        | JournalIncompat::CSUM_V2
        | JournalIncompat::CSUM_V3
        | JournalIncompat::FAST_COMMIT;
    let unknown = (parsed.incompat - known).bits();
    if unknown != 0 || parsed.ro_compat != 0 {
        return Err(
            Error::new(ErrorKind::UnsupportedFeature, OP).detail(format!(
                "the journal has unknown features: incompat {unknown:#x}, ro_compat {:#x}",
                parsed.ro_compat
            )),
        );
    }
    if parsed.block_size != block_size {
        return Err(Error::corrupt(
            OP,
            format!(
                "journal blocks of {} bytes, the volume's have {block_size}",
                parsed.block_size
            ),
        ));
    }
    Ok(Some(Found {
        device: log_device,
        external,
        map,
        super_at,
        superblock: parsed,
    }))
}

/// A journal device: an ext4-like superblock at its usual place, the journal in the blocks behind.
fn locate_external(
    device: &SharedDevice,
    superblock: &Superblock,
    uuid: [u8; 16],
) -> Result<LogMap> {
    let mut bytes = vec![0; (SUPERBLOCK_OFFSET as usize + SUPERBLOCK_SIZE).next_multiple_of(4096)];
    device
        .read_at(DevOffset(0), &mut bytes)
        .map_err(|e| Error::io(OP, e))?;
    let raw = RawSuperblock::read(&bytes[SUPERBLOCK_OFFSET as usize..])
        .map_err(|e| Error::corrupt(OP, e.to_string()))?;
    if !raw.features().has_incompat(Incompat::JOURNAL_DEV) {
        return Err(Error::new(ErrorKind::Invalid, OP)
            .detail(format!("{} is not a journal device", device.name())));
    }
    if raw.uuid != uuid {
        return Err(Error::new(ErrorKind::Invalid, OP).detail(format!(
            "{} is the journal of another volume",
            device.name()
        )));
    }
    let blocks = device.geometry().bytes >> superblock.geo.block_bits;
    let len = raw.blocks_count().min(blocks);
    // The journal's block numbers are the device's.
    Ok(LogMap::contiguous(
        BlockNo(0),
        u32::try_from(len).unwrap_or(u32::MAX),
    ))
}

/// Blocks of the volume once the log is home: it may have grown in the log.
fn blocks_after(
    recovery: &Recovery,
    reader: &mut LogReader<'_>,
    device: &SharedDevice,
    superblock: &Superblock,
) -> Result<u64> {
    let geo = &superblock.geo;
    let block = geo.super_block();
    let Some(copy) = recovery.copy_of(reader, block)? else {
        return Ok(geo.blocks_count);
    };
    let at = (SUPERBLOCK_OFFSET - geo.block_offset(block)) as usize;
    let logged = Superblock::parse(
        copy.get(at..).unwrap_or_default(),
        Some(device.geometry().bytes),
    );
    let logged = logged.map_or(0, |logged| logged.geo.blocks_count);
    Ok(logged.max(geo.blocks_count))
}

impl Found {
    /// The operations of the fast commits that a recovery found.
    #[must_use]
    pub fn operations<'a>(&'a self, recovered: &'a Recovered) -> Operations<'a> {
        Operations {
            device: &self.device,
            map: &self.map,
            superblock: &self.superblock,
            commits: &recovered.fast_commits,
        }
    }

    /// Recovers the log: writes what it holds home.
    ///
    /// # Errors
    /// `Corrupt` for a damaged transaction; `Io`.
    pub fn recover(&self, device: &SharedDevice, superblock: &Superblock) -> Result<Recovered> {
        let mut recovered = self.ignore();
        if !self.is_dirty() {
            return Ok(recovered);
        }
        let mut reader = LogReader::new(&self.device, &self.map, &self.superblock);
        let recovery = scan(&mut reader)?;
        let blocks_count = blocks_after(&recovery, &mut reader, device, superblock)?;
        recovered.fast_commits =
            fast_commit::scan(&mut reader, &self.superblock, recovery.end_sequence)?;
        // Checked before anything is written: a volume with a damaged log stays as it is.
        recovery.verify(&mut reader, blocks_count)?;
        let mut batch = WriteBatch::new(device, Flags::META, IoPriority::default());
        let geo = &superblock.geo;
        let unstored = |block| {
            let offset = geo.block_offset(block);
            device.next_data(DevOffset(offset)).0 >= offset + u64::from(geo.block_size)
        };
        recovery.copies(&mut reader, unstored, |block, data| {
            batch.push(DevOffset(geo.block_offset(block)), data.into());
            Ok(())
        })?;
        batch.finish().map_err(|e| Error::io("journal replay", e))?;
        device.flush().map_err(|e| Error::io("journal replay", e))?;
        recovered.transactions = recovery.transactions;
        recovered.blocks = recovery.len() as u64;
        recovered.skipped = recovery.skipped;
        // One number is left out: remnants of a torn transaction have it.
        recovered.next_sequence = recovery.end_sequence.wrapping_add(1);
        Ok(recovered)
    }

    /// The error of a recovery that must not look into the log.
    #[must_use]
    pub fn ignore(&self) -> Recovered {
        Recovered {
            errno: self.superblock.errno,
            next_sequence: self.superblock.sequence.wrapping_add(1),
            ..Recovered::default()
        }
    }

    /// Everything recovered is home: marks the log as empty.
    ///
    /// # Errors
    /// `Io`.
    pub fn mark_recovered(&mut self, recovered: &Recovered) -> Result<()> {
        let raw = &mut self.superblock.raw;
        raw.start.set(0);
        raw.sequence.set(recovered.next_sequence);
        raw.errno.set(0);
        raw.set_checksum();
        let offset = self.map.offset(self.super_at, self.superblock.block_size)?;
        write_super_block(&self.device, offset, self.superblock.block_size, raw)?;
        self.superblock.start = None;
        Ok(())
    }

    /// Takes the empty log over for writing.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn into_log(self, superblock: &Superblock, recovered: &Recovered) -> Result<Log> {
        let features = LogFeatures {
            wide: superblock.geo.features.has_incompat(Incompat::BIT64),
            metadata_csum: superblock.geo.metadata_csum(),
        };
        Log::open(
            self.device,
            self.external,
            self.map,
            self.super_at,
            &self.superblock,
            features,
            recovered.next_sequence,
        )
    }
}
