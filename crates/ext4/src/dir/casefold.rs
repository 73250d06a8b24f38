//! Case-insensitive names: what the volume's encoding allows. How names are folded is the format's
//! (`ondisk`'s `casefold`).

use super::Directories;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::common::casefold::{self, ENCODING_UTF8_12_1, STRICT};
use std::borrow::Cow;

/// Whether a name's folded form is `folded`.
pub(super) fn folds_to(name: &[u8], folded: &[u8]) -> bool {
    *casefold::fold_name(name) == *folded
}

impl Directories {
    /// The form of a name that is compared and hashed; the name itself when it is not UTF-8.
    ///
    /// # Errors
    /// `UnsupportedFeature` when the volume's encoding is not known.
    pub(crate) fn fold_name<'a>(&self, name: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        let encoding = self.volume.geo.raw.encoding.get();
        if encoding != ENCODING_UTF8_12_1 {
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

    /// Whether a name may be added to a casefolded directory.
    ///
    /// # Errors
    /// `Invalid` for what is not UTF-8 on a strict volume; `Unsupported` for characters newer than the
    /// volume's encoding.
    pub(crate) fn check_strict_name(&self, op: &'static str, name: &[u8]) -> Result<()> {
        match std::str::from_utf8(name) {
            Err(_) if self.volume.geo.raw.encoding_flags.get() & STRICT != 0 => {
                Err(Error::new(ErrorKind::Invalid, op)
                    .detail("the volume takes only names in UTF-8 in casefolded directories"))
            }
            Ok(text) if casefold::is_newer(text) => Err(Error::new(ErrorKind::Unsupported, op)
                .detail("the name has characters that are newer than the volume's Unicode 12.1")),
            _ => Ok(()),
        }
    }
}
