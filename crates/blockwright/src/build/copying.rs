//! Writing what was planned: its progress is told, and the progress function may stop it.

use super::data::TreeData;
use super::progress::{BuildProgress, Tell, stopped, told};
use super::tree::LayerTree;
use crate::Result;
use blockwright_mkfs::tree::NodeId;
use blockwright_mkfs::{DataSource, Progress};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The data of a tree, until it is told to stop.
struct StoppableData<'a> {
    data: TreeData<'a>,
    stop: &'a AtomicBool,
}

impl DataSource for StoppableData<'_> {
    fn read_at(
        &self,
        node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Box::new(stopped()));
        }
        self.data.read_at(node, offset, buf)
    }
}

/// Writes a volume with the data of a tree. `planned`: bytes of data to copy, and those of the volume.
///
/// # Errors
/// Those of `write`; `Interrupted` when the progress function breaks.
pub(super) fn copied(
    tree: &LayerTree,
    tell: Tell<'_>,
    planned: (u64, u64),
    write: impl FnOnce(&dyn DataSource, &(dyn Fn(Progress) + Sync)) -> Result<()>,
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
    // Data is refused after that, which ends the writing.
    let stop = AtomicBool::new(false);
    let progress = |p: Progress| match p {
        Progress::Copied { bytes, files } => {
            let step = BuildProgress::Copied {
                bytes: bytes_done.fetch_add(bytes, Ordering::Relaxed) + bytes,
                files: files_done.fetch_add(files, Ordering::Relaxed) + files,
            };
            if tell(&step).is_break() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        Progress::Metadata => {
            let _too_late = tell(&BuildProgress::Finishing);
        }
    };
    let data = StoppableData {
        data: TreeData(&tree.data),
        stop: &stop,
    };
    match write(&data, &progress) {
        // The refusal of data is only how it ended.
        Err(_) if stop.load(Ordering::Relaxed) => Err(stopped()),
        done => done,
    }
}
