//! Trees of dm-verity.

use crate::watch::Watched;
use blockwright::verity::VerityOptions;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Root hash, salt, blocks, and where the tree is.
type Sealed = (Vec<u8>, Vec<u8>, u64, u64, u64);

/// Makes a tree of hashes over the first `bytes` of an image.
#[pyfunction]
#[pyo3(signature = (path, bytes, *, salt, uuid, tree))]
pub(crate) fn seal(
    py: Python<'_>,
    path: PathBuf,
    bytes: u64,
    salt: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    tree: Option<PathBuf>,
) -> PyResult<Sealed> {
    let mut options = VerityOptions::default();
    (options.salt, options.tree) = (salt, tree);
    options.uuid = uuid.unwrap_or_default();
    let watched = Watched::new(None);
    let made = watched.run(py, || {
        let goes_on = || watched.goes_on();
        blockwright::verity::seal_watched(&path, bytes, &options, &goes_on)
    })?;
    Ok((
        made.root_hash.to_vec(),
        made.salt,
        made.data_blocks,
        made.hash_offset,
        made.tree_bytes,
    ))
}
