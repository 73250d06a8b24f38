//! A journal on another device is attached to a volume that has none, and detached.
//!
//! # Crash order
//! Attaching: the journal lists the volume; flush; the superblock names the journal, by one write. Detaching: the superblock without a journal; flush; the
//! journal lists the volume no more. So a volume never names a journal that does not list it. In between, the journal lists a volume that does not name it: the same
//! change, made again, ends it.
//!
//! Another UUID: the journal lists the new one; flush; the volume gets it. In between, the volume is not in the list, which neither the kernel nor e2fsck looks at. The journal
//! has one user at every moment, because the kernel mounts no volume whose journal has two. So the only user of a journal that the superblock names is this volume, whatever its
//! UUID is.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Journal (jbd2)", external journal.

use blockwright_ondisk::ext4::Compat;
use uuid::Uuid;

use super::journal_device::ExternalJournal;
use super::log::Log;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};

impl Volume {
    /// The journal that the caller has named.
    fn named_journal(&self) -> Result<ExternalJournal> {
        let journal = self.journal.clone();
        journal.ok_or_else(|| ReshapeError::Invalid("no journal device is named".into()))
    }

    /// Whether the journal that the caller has named can become the volume's. Nothing is written.
    ///
    /// # Errors
    /// `Invalid` for what is no journal device; `Unsupported` for one that another volume uses, or whose blocks have another size; `NotClean` for one that holds changes.
    pub fn check_attachable(&self) -> Result<()> {
        let journal = self.named_journal()?;
        let found = journal.read()?;
        let own = self.sb.raw.uuid;
        if let Some(other) = found.users().into_iter().find(|user| *user != own) {
            return Err(ReshapeError::Unsupported(format!(
                "{} is the journal of the volume with UUID {}",
                journal.device.name(),
                Uuid::from_bytes(other)
            )));
        }
        if found.uuid() == [0; 16] {
            return Err(ReshapeError::Unsupported(format!(
                "{} has no UUID by which a volume could name it",
                journal.device.name()
            )));
        }
        if found.journal.start.is_some() {
            return Err(ReshapeError::Unsupported(format!(
                "{} holds changes of a volume that were not replayed",
                journal.device.name()
            )));
        }
        Log::check(self, &found.journal)
    }

    /// Gives the volume, which has none, the journal that the caller has named.
    ///
    /// # Errors
    /// As [`Volume::check_attachable`].
    pub fn attach_journal(&mut self) -> Result<()> {
        self.check_attachable()?;
        let journal = self.named_journal()?;
        let found = journal.read()?;
        journal.list(self.sb.raw.uuid)?;
        self.name_journal(None);
        let raw = &mut self.sb.raw;
        let mut features = raw.features();
        features.compat |= Compat::HAS_JOURNAL;
        raw.set_features(features);
        raw.journal_uuid = found.uuid();
        raw.journal_dev.set(journal.number);
        self.follow()?;
        self.commit_super()
    }

    /// Takes the journal on another device, which must be empty, from the volume.
    ///
    /// # Errors
    /// Those of [`Log::open`].
    pub fn detach_journal(&mut self) -> Result<()> {
        // It is the one that the superblock names.
        Log::open(self)?;
        let journal = self.named_journal()?;
        let mut found = journal.read()?;
        self.forget_journal()?;
        match found.users().len() {
            1 => journal.write_users(&mut found, &[]),
            _ => self.forget_in_journal(self.sb.raw.uuid),
        }
    }

    /// Takes the journal on another device from the volume alone. Nothing waits in it; its device may be lost.
    ///
    /// # Errors
    /// `Device`.
    pub fn forget_journal(&mut self) -> Result<()> {
        self.name_journal(None);
        let mut features = self.sb.raw.features();
        features.compat.remove(Compat::FAST_COMMIT);
        self.sb.raw.set_features(features);
        self.follow()?;
        self.commit_super()
    }

    /// Takes a volume out of the list of the journal that the caller has named.
    ///
    /// # Errors
    /// As [`ExternalJournal::read`].
    pub fn forget_in_journal(&self, uuid: [u8; 16]) -> Result<()> {
        let journal = self.named_journal()?;
        let mut found = journal.read()?;
        let mut users = found.users();
        let before = users.len();
        users.retain(|user| *user != uuid);
        match users.len() == before {
            true => Ok(()),
            false => journal.write_users(&mut found, &users),
        }
    }

    /// Whether the journal that the caller has named lists the volume by its UUID, or will by this one. The only user of the journal that the superblock names is the
    /// volume.
    ///
    /// # Errors
    /// `Unsupported` when it lists another volume.
    pub fn check_listed(&self, uuid: [u8; 16]) -> Result<()> {
        let journal = self.named_journal()?;
        let own = self.committed.uuid;
        let found = journal.read()?;
        let users = found.users();
        if users.len() == 1 && found.uuid() == self.committed.journal_uuid {
            return Ok(());
        }
        match users.into_iter().find(|user| *user != own && *user != uuid) {
            None => Ok(()),
            Some(other) => Err(ReshapeError::Unsupported(format!(
                "{} lists the volume with UUID {} as its user",
                journal.device.name(),
                Uuid::from_bytes(other)
            ))),
        }
    }

    /// Has the journal list the volume by the UUID that it will have.
    ///
    /// # Errors
    /// As [`ExternalJournal::read`].
    pub fn list_in_journal(&self) -> Result<()> {
        self.named_journal()?.list(self.sb.raw.uuid)
    }
}
