//! Which entry a name means: by its bytes, folded, or as an encrypted entry is shown without its key.

use super::block::Entry;
use super::{Dir, Directories, casefold};
use crate::Result;
use blockwright_ondisk::ext4::hash::name_hash;
use blockwright_ondisk::nokey;
use std::borrow::Cow;

/// A name to look for, prepared for comparing and hashing.
pub(crate) struct Query<'a> {
    pub(super) name: &'a [u8],
    folded: Option<Cow<'a, [u8]>>,
    pub(super) nokey: Option<(u32, u32)>,
}

impl Query<'_> {
    /// The name, when only just that will do.
    pub(super) fn exact(&self) -> Option<&[u8]> {
        (self.nokey.is_none() && self.folded.is_none()).then_some(self.name)
    }

    pub(super) fn matches(&self, dirs: &Directories, dir: &Dir<'_>, entry: &Entry<'_>) -> bool {
        if !entry.is_used() {
            return false;
        }
        if let Some(hash) = self.nokey {
            if entry.name == b"." || entry.name == b".." {
                return false;
            }
            let stored = entry.stored_hash().filter(|h| *h == hash);
            let hash = stored
                .or_else(|| dirs.nokey_hash(dir, entry.name))
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
    pub(super) fn query<'a>(&self, dir: &Dir<'_>, name: &'a [u8]) -> Result<Query<'a>> {
        let mut query = Query {
            name,
            folded: None,
            nokey: None,
        };
        if dir.is_encrypted() {
            query.nokey = nokey::hash_of(name);
        } else if dir.is_casefolded() && self.knows_encoding() {
            // By rules that are not known here, a name is found by its bytes alone.
            query.folded = Some(self.fold_name(name)?);
        }
        Ok(query)
    }

    /// The hash that goes into the name an encrypted entry is shown by: the one by which an index finds the entry, whatever the superblock
    /// has for new directories.
    pub(super) fn nokey_hash(&self, dir: &Dir<'_>, cipher: &[u8]) -> Option<(u32, u32)> {
        let superblock = self.volume.superblock();
        let indexed = self.is_indexed(dir);
        let version = indexed.then(|| self.index_version("name an entry", dir).ok());
        let version = match version.flatten() {
            Some(version) => version,
            None => superblock.default_hash().ok()?,
        };
        let hash = name_hash(version, superblock.raw.hash_seed(), None, cipher).ok()?;
        Some((hash.hash, hash.minor))
    }
}
