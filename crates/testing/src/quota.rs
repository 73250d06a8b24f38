//! What tests of quota share, whatever the format.

use blockwright::{ErrorKind, Result, Volume};
use blockwright_vfs::{Cred, SetAttr};
use std::path::Path;

/// Opens a volume as a user and group without privileges, except those that the library's callers have.
pub fn open_as(image: &Path, id: u32) -> Volume {
    let options = Volume::options().credentials(Cred {
        uid: id,
        gid: id,
        ..Cred::unchecked()
    });
    let volume = options.open(image).expect("opens");
    assert_eq!(volume.read_only_reason(), None);
    volume
}

/// Gives a file to a project.
pub fn set_project(v: &Volume, path: &str, project: u32) -> Result<()> {
    let file = v.open_file(path)?;
    let req = SetAttr {
        project: Some(project),
        ..SetAttr::default()
    };
    v.vfs().set_attr(v.cred(), file.handle().inode(), &req)?;
    Ok(())
}

/// Whether a limit refused this; nothing else may.
pub fn exceeded<T>(result: Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::QuotaExceeded, "{e}");
            true
        }
    }
}
