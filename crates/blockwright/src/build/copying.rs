//! Writes a planned volume, reports its progress, and lets the progress function stop it.

use super::data::TreeData;
use super::progress::{BuildProgress, Tell, told};
use super::tree::LayerTree;
use crate::Result;
use blockwright_mkfs::{DataSource, Progress, ProgressFn};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a volume with the data of a tree. `planned`: bytes of data to copy, and those of the volume.
///
/// # Errors
/// Those of `write`; `Interrupted` when the progress function breaks, unless metadata is being written.
pub(super) fn copied(
    tree: &LayerTree,
    tell: Tell<'_>,
    planned: (u64, u64),
    write: impl FnOnce(&dyn DataSource, ProgressFn<'_>) -> Result<()>,
) -> Result<()> {
    let (bytes, volume_bytes) = planned;
    told(
        tell,
        &BuildProgress::Planned {
            bytes,
            volume_bytes,
        },
    )?;
    let (bytes_done, files_done) = (AtomicU64::new(0), AtomicU64::new(0));
    let progress = |p: Progress| match p {
        Progress::Copied { bytes, files } => tell(&BuildProgress::Copied {
            bytes: bytes_done.fetch_add(bytes, Ordering::Relaxed) + bytes,
            files: files_done.fetch_add(files, Ordering::Relaxed) + files,
        }),
        Progress::Metadata => {
            let _too_late = tell(&BuildProgress::Finishing);
            ControlFlow::Continue(())
        }
    };
    write(&TreeData(&tree.data), &progress)
}
