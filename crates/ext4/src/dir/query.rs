//! Which entry a name means: by its bytes, folded, or as an encrypted entry is shown without its key.
//!
//! A query is made once for an operation; linear and indexed search compare entries with it and hash by it, so that both find the same entry.

use super::block::Entry;
use super::{Dir, Directories, casefold};
use crate::{ErrorKind, Result};
use blockwright_ondisk::ext4::hash::{HashVersion, name_hash};
use blockwright_ondisk::nokey;
use std::borrow::Cow;

/// A name to look for, prepared for comparing and hashing.
pub(crate) struct Query<'a> {
    pub(super) name: &'a [u8],
    folded: Option<Cow<'a, [u8]>>,
    pub(super) nokey: Option<(u32, u32)>,
    /// By which hash encrypted entries are shown.
    shown_by: Option<HashVersion>,
}

impl Query<'_> {
    /// The name, when only just that will do.
    pub(super) fn exact(&self) -> Option<&[u8]> {
        (self.nokey.is_none() && self.folded.is_none()).then_some(self.name)
    }

    pub(super) fn matches(&self, dirs: &Directories, entry: &Entry<'_>) -> bool {
        if !entry.is_used() {
            return false;
        }
        if let Some(hash) = self.nokey {
            if entry.name == b"." || entry.name == b".." {
                return false;
            }
            let stored = entry.stored_hash().filter(|h| *h == hash);
            let hash = stored
                .or_else(|| dirs.nokey_hash(self.shown_by, entry.name))
                .unwrap_or(hash);
            return nokey::encode(hash, entry.name) == self.name;
        }
        if entry.name == self.name {
            return true;
        }
        match &self.folded {
            Some(folded) => casefold::folds_to(entry.name, folded),
            None => false,
        }
    }
}

impl Directories {
    /// Prepares a name for being looked for.
    ///
    /// # Errors
    /// A device error.
    pub(super) fn query<'a>(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        name: &'a [u8],
    ) -> Result<Query<'a>> {
        let mut query = Query {
            name,
            folded: None,
            nokey: None,
            shown_by: None,
        };
        if dir.is_encrypted() {
            query.nokey = nokey::hash_of(name);
            if query.nokey.is_some() {
                query.shown_by = self.shown_by(op, dir)?;
            }
        } else if dir.is_casefolded() && self.knows_encoding() {
            // By rules that are not known here, a name is found by its bytes alone.
            query.folded = Some(self.fold_name(name)?);
        }
        Ok(query)
    }

    /// By which hash the encrypted entries of a directory are shown: the one by which an index finds them, whatever the superblock has for new
    /// directories. Where the index is damaged, the superblock's. An operation finds it once, because the root of the index is read for it.
    ///
    /// # Errors
    /// A device error. With another hash, every name would be another.
    pub(super) fn shown_by(&self, op: &'static str, dir: &Dir<'_>) -> Result<Option<HashVersion>> {
        if self.is_indexed(dir) {
            match self.index_version(op, dir) {
                Err(e) if e.kind() == ErrorKind::Corrupt => {}
                version => return version.map(Some),
            }
        }
        Ok(self.volume.superblock().default_hash().ok())
    }

    /// The hash that goes into the name an encrypted entry is shown by.
    pub(super) fn nokey_hash(
        &self,
        version: Option<HashVersion>,
        cipher: &[u8],
    ) -> Option<(u32, u32)> {
        let seed = self.volume.superblock().raw.hash_seed();
        let hash = name_hash(version?, seed, None, cipher).ok()?;
        Some((hash.hash, hash.minor))
    }
}
