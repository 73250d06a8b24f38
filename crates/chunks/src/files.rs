//! Files of the host: read up to a bound, and written whole.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Reads a file of at most `most` bytes; `None` when there is none.
pub(crate) fn read_file(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let length = file.metadata()?.len().min(most + 1);
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(most + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// How the name of a file begins that is being written.
pub(crate) const PARTIAL: &str = ".partial-";

/// Writes a file that appears whole, or not at all.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new()
        .prefix(PARTIAL)
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}
