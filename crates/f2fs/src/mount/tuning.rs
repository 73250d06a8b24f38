//! Tunables that can be changed while a volume is mounted, and the mount's options in force.
//!
//! Names follow the kernel's: of `/sys/fs/f2fs/DEVICE` and of the mount options.

use crate::checkpoint::merge::Merger;
use crate::mount::{Fs, FsRef};
use crate::options::FsyncMode;
use crate::{Error, ErrorKind, Result};
use blockwright_vfs::Tunable;

impl Fs {
    /// [`blockwright_vfs::engine::Volume::tunables`].
    pub(crate) fn tunables(&self) -> Vec<Tunable> {
        let Some(w) = &self.access.writer else {
            return Vec::new();
        };
        let merger = &self.checkpoints.merger;
        blockwright_vfs::tunables! {
            "checkpoint", Switch, 0..=1, (!w.segments.is_pinned()).into(),
                "checkpoints are written; 0 is for mounting (checkpoint=disable), 1 ends that and keeps all that was done";
            "checkpoint_merge", Switch, 0..=1, merger.is_on().into(),
                "a daemon writes one checkpoint for all concurrent requests; 0: each caller writes its own";
            "ckpt_thread_ioprio", Count, 0..=7, merger.priority().0.into(), "I/O priority of that daemon: class best-effort, 0 (first) to 7";
            "checkpoint_nodes_left", Blocks, 0..=1 << 20, self.checkpoints.preflush.left(),
                "dirty nodes that a checkpoint writes itself; more are written before it, while operations go on";
            "serialized_dio_pages", Count, 1..=1 << 20, w.sharing.serialized_dio_pages(),
                "smallest direct write that is serialized where blocks are handed out one at a time, in pages of 4 KiB; runs reserved in one step are not serialized";
        }
    }

    /// [`blockwright_vfs::engine::Volume::set_tunable`].
    pub(crate) fn set_tunable(fs: &FsRef, name: &str, value: u64) -> Result<()> {
        let w = fs.access.writer("tune")?;
        match name {
            "checkpoint" if value != 0 => fs.checkpoints.enable_checkpoints()?,
            "checkpoint" if w.segments.is_pinned() => {}
            "checkpoint" => {
                return Err(Error::new(ErrorKind::Unsupported, "tune")
                    .detail("checkpoints can be disabled when the volume is mounted only"));
            }
            "checkpoint_merge" if value != 0 && w.segments.is_pinned() => {
                return Err(Error::new(ErrorKind::Invalid, "tune")
                    .detail("checkpoint_merge cannot be used while checkpoints are disabled"));
            }
            "checkpoint_merge" if value != 0 => Merger::start(&fs.checkpoints)?,
            "checkpoint_merge" => fs.checkpoints.merger.stop(),
            "ckpt_thread_ioprio" => fs.checkpoints.merger.set_priority(value as u8),
            "checkpoint_nodes_left" => fs.checkpoints.preflush.set_left(value),
            "serialized_dio_pages" => w.sharing.set_serialized_dio_pages(value),
            _ => {
                return Err(
                    Error::new(ErrorKind::NotFound, "tune").detail(format!("no tunable {name}"))
                );
            }
        }
        Ok(())
    }

    /// The options in force, as they would be given to mount.
    pub(crate) fn mount_options(&self) -> String {
        let options = &self.volume.options;
        let mut list = vec![format!("commit={}", options.commit_interval.as_secs())];
        if let Some(w) = &self.access.writer {
            let no = |on| if on { "" } else { "no" };
            let checkpoint = if w.segments.is_pinned() {
                "disable"
            } else {
                "enable"
            };
            let fsync_mode = match options.fsync_mode {
                FsyncMode::Posix => "posix",
                FsyncMode::Strict => "strict",
                FsyncMode::NoBarrier => "nobarrier",
            };
            list.push(format!("active_logs={}", w.logs.count()));
            list.push(format!(
                "{}checkpoint_merge",
                no(self.checkpoints.merger.is_on())
            ));
            list.push(format!("checkpoint={checkpoint}"));
            list.push(format!(
                "serialized_dio_pages={}",
                w.sharing.serialized_dio_pages()
            ));
            list.push(format!("fsync_mode={fsync_mode}"));
        }
        list.push(
            if options.discard {
                "discard"
            } else {
                "nodiscard"
            }
            .to_owned(),
        );
        list.join(",")
    }
}
