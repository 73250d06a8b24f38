//! Case-insensitive names: what the volume's encoding allows. How names are folded is the format's
//! (`ondisk`'s `casefold`).

use super::Directories;
use crate::inode::ext4;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::common::casefold::{self, STRICT};
use blockwright_ondisk::ext4::InodeFlags;
use blockwright_vfs as vfs;
use std::borrow::Cow;

/// Whether a name's folded form is `folded`.
pub(super) fn folds_to(name: &[u8], folded: &[u8]) -> bool {
    *casefold::fold_name(name) == *folded
}

impl Directories {
    /// Whether the rules by which the volume's names are folded are known here. Where they are not, the volume is only read.
    pub(super) fn knows_encoding(&self) -> bool {
        casefold::is_known(self.volume.superblock().raw.encoding.get())
    }

    /// The form of a name that is compared and hashed; the name itself when it is not UTF-8.
    ///
    /// # Errors
    /// `UnsupportedFeature` when the volume's encoding is not known.
    pub(crate) fn fold_name<'a>(&self, name: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        if !self.knows_encoding() {
            let encoding = self.volume.superblock().raw.encoding.get();
            return Err(
                Error::new(ErrorKind::UnsupportedFeature, "casefolded directory").detail(format!(
                    "the volume's name encoding {encoding} is not known"
                )),
            );
        }
        Ok(casefold::fold_name(name))
    }

    /// Whether names may be added to casefolded directories.
    ///
    /// # Errors
    /// `UnsupportedFeature` when the volume's encoding is not known.
    pub(crate) fn check_casefold_writable(&self, op: &'static str) -> Result<()> {
        self.fold_name(b"").map(drop).map_err(|_| {
            Error::new(ErrorKind::UnsupportedFeature, op)
                .detail("casefolded directories of an unknown encoding cannot be changed")
        })
    }

    /// Refuses a name that was looked for and is not there if none like it can be.
    ///
    /// # Errors
    /// `Invalid` for what is not UTF-8 in a casefolded directory of a strict volume, as Linux has it. Where damage put such a name, it is
    /// found, so that it can be read and removed.
    pub(crate) fn check_sought_name(&self, dir: &vfs::Inode, name: &[u8]) -> Result<()> {
        let flags = ext4(dir).flags();
        if flags.contains(InodeFlags::CASEFOLD) && !flags.contains(InodeFlags::ENCRYPT) {
            self.check_encoded("look up", name)?;
        }
        Ok(())
    }

    fn check_encoded(&self, op: &'static str, name: &[u8]) -> Result<()> {
        let strict = self.volume.superblock().raw.encoding_flags.get() & STRICT != 0;
        if strict && std::str::from_utf8(name).is_err() {
            return Err(Error::new(ErrorKind::Invalid, op)
                .detail("the volume takes only names in UTF-8 in casefolded directories"));
        }
        Ok(())
    }

    /// Whether a name may be added to a casefolded directory.
    ///
    /// # Errors
    /// `Invalid` for what is not UTF-8 on a strict volume; `Unsupported` for characters newer than the
    /// volume's encoding.
    pub(crate) fn check_strict_name(&self, op: &'static str, name: &[u8]) -> Result<()> {
        self.check_encoded(op, name)?;
        match std::str::from_utf8(name) {
            Ok(text) if casefold::is_newer(text) => Err(Error::new(ErrorKind::Unsupported, op)
                .detail("the name has characters that are newer than the volume's Unicode 12.1")),
            _ => Ok(()),
        }
    }
}
