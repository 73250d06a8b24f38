//! The lists of extensions that make files cold or hot.
//!
//! They lie in the superblock: cold ones first, then hot ones, each with a count of its own, 64 together. Linux changes them by sysfs (`extension_list`), one
//! name at a time; mkfs.f2fs by `-e` and `-E`.

use blockwright_ondisk::common::features::{Change, changes};
use blockwright_ondisk::f2fs::superblock::{EXTENSION_LEN, EXTENSIONS_MAX, RawSuperblock};

use crate::error::{ReshapeError, Result};

/// Which of the lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Cold,
    Hot,
}

impl List {
    fn name(self) -> &'static str {
        match self {
            List::Cold => "cold",
            List::Hot => "hot",
        }
    }
}

/// Changes both lists. Names that a change leaves keep their order, and new ones come last. The superblock's checksum is not made.
///
/// # Errors
/// `Invalid` for names that are too long, for one that would be in both lists, and for more than 64 names.
pub(super) fn change(raw: &mut RawSuperblock, cold: Option<&str>, hot: Option<&str>) -> Result<()> {
    let (old_cold, old_hot) = raw.extensions();
    let owned = |list: Vec<&[u8]>| list.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (mut colds, mut hots) = (owned(old_cold), owned(old_hot));
    for (list, names, changed) in [(List::Cold, &mut colds, cold), (List::Hot, &mut hots, hot)] {
        if let Some(changed) = changed {
            edit(list, names, changed)?;
        }
    }
    if let Some(both) = colds
        .iter()
        .find(|name| hots.iter().any(|other| other.eq_ignore_ascii_case(name)))
    {
        return Err(ReshapeError::Invalid(format!(
            "the extension `{}` would be cold and hot (`^` before a name removes it from a list)",
            String::from_utf8_lossy(both)
        )));
    }
    raw.set_extensions(&colds, &hots).ok_or_else(|| {
        ReshapeError::Invalid(format!(
            "there would be {} cold and {} hot extensions, and a volume has at most {EXTENSIONS_MAX} together",
            colds.len(),
            hots.len()
        ))
    })
}

fn edit(list: List, names: &mut Vec<Vec<u8>>, changed: &str) -> Result<()> {
    let which = list.name();
    for change in changes(changed, &['^', '!'], &['+']) {
        let (name, on) = match change {
            Change::ClearAll => {
                names.clear();
                continue;
            }
            Change::Set(name) => (name, true),
            Change::Clear(name) => (name, false),
        };
        if !on {
            names.retain(|known| !known.eq_ignore_ascii_case(name.as_bytes()));
            continue;
        }
        // A zero byte ends it, also for Linux.
        if name.is_empty() || name.len() >= EXTENSION_LEN || name.contains(['\0', '.', '/']) {
            return Err(ReshapeError::Invalid(format!(
                "`{name}` is no {which} extension: it has 1 to {} bytes, without a dot",
                EXTENSION_LEN - 1
            )));
        }
        if !names
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name.as_bytes()))
        {
            names.push(name.as_bytes().to_vec());
        }
    }
    Ok(())
}
