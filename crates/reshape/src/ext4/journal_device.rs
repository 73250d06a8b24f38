//! A journal on another device: its superblocks, and the place of a volume that has one.
//!
//! # Not responsible for
//! Attaching it (`attachment`), replaying it (the library does that with the engine), formatting it (`mkfs`).

use std::sync::Arc;

use blockwright_device::{OverlayDevice, SharedDevice};
use blockwright_ondisk::ext4::FormatError;
use blockwright_ondisk::ext4::journal_device::{HEAD_BYTES, JournalDevice};
use zerocopy::IntoBytes;

use super::disk::Disk;
use crate::error::{ReshapeError, Result};

const WHAT: &str = "journal device";

/// A journal on another device than its volume.
#[derive(Clone)]
pub struct ExternalJournal {
    /// The device.
    pub device: SharedDevice,
    /// Its number as the kernel has it (`s_journal_dev`), by which it finds the journal when a mount does not name it. 0 for files.
    pub number: u32,
}

impl std::fmt::Debug for ExternalJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ExternalJournal")
            .field(&self.device.name())
            .finish()
    }
}

impl ExternalJournal {
    /// Its superblocks.
    ///
    /// # Errors
    /// `Invalid` for what is no journal device; damage.
    pub fn read(&self) -> Result<JournalDevice> {
        let bytes = self.device.geometry().bytes;
        let len = bytes.min(HEAD_BYTES as u64) as usize;
        let head = Disk::read_bytes(&self.device, 0, len, WHAT)?;
        let invalid = |e: FormatError| {
            ReshapeError::Invalid(format!("{} cannot be the journal: {e}", self.device.name()))
        };
        JournalDevice::parse(&head, bytes).map_err(invalid)
    }

    /// Has it list one user, the volume with this UUID.
    ///
    /// # Errors
    /// As [`ExternalJournal::read`]; `Device`.
    pub fn list(&self, volume: [u8; 16]) -> Result<()> {
        let mut found = self.read()?;
        self.write_users(&mut found, &[volume])
    }

    /// Has it list no user: the volume for which it was listed could not be made.
    ///
    /// # Errors
    /// As [`ExternalJournal::list`].
    pub fn unlist(&self) -> Result<()> {
        let mut found = self.read()?;
        self.write_users(&mut found, &[])
    }

    /// Stores the list of users. It lies, with its count, in one sector.
    pub(crate) fn write_users(&self, found: &mut JournalDevice, users: &[[u8; 16]]) -> Result<()> {
        found.set_users(users)?;
        let disk = Disk::new(self.device.clone(), found.journal.block_size);
        disk.write_bytes(found.head_offset(), found.journal.raw.as_bytes(), WHAT)?;
        disk.flush(WHAT)
    }
}

/// Where a volume is: its device, and that of its journal if it is another one.
#[derive(Clone)]
pub(crate) struct Place {
    pub device: SharedDevice,
    pub journal: Option<ExternalJournal>,
    /// Both are overlays in memory.
    pub rehearses: bool,
}

impl Place {
    pub fn new(device: &SharedDevice, journal: Option<&ExternalJournal>) -> Self {
        Self {
            device: device.clone(),
            journal: journal.cloned(),
            rehearses: false,
        }
    }

    /// The same place under overlays: what is written there is in memory and goes with them. A change is made there first, so that one that cannot be made ends
    /// before anything is written to the volume.
    pub fn rehearsal(&self) -> Self {
        let over = |device: &SharedDevice| -> SharedDevice {
            Arc::new(OverlayDevice::new(device.clone()))
        };
        Self {
            device: over(&self.device),
            journal: self.journal.as_ref().map(|journal| ExternalJournal {
                device: over(&journal.device),
                number: journal.number,
            }),
            rehearses: true,
        }
    }
}
