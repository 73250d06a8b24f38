//! Operations on what files hold.

use super::{Run, Step};
use crate::model::NodeId;
use crate::plan::pattern;
use blockwright_device::AlignedBuf;
use blockwright_vfs::{
    Carrier, ErrorKind, FallocMode, OpenFlags, Patience, SyncMode, SyncScope, WriteDone, WriteOp,
};

/// What a write puts into a file.
fn written_bytes(fill: u8, at: usize, n: usize) -> Vec<u8> {
    (at..at + n).map(|at| pattern(fill, at)).collect()
}

impl Run {
    pub(super) fn write(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return self.create();
        };
        if self.plan.scattered && self.rng.below(2) == 0 {
            return self.write_scattered(&path, id);
        }
        let size = self.model.bytes(id).len();
        let most = match self.plan.small_writes {
            0 if self.rng.clone().below(3) == 0 => self.plan.write_bytes_max,
            0 => 3000,
            small => small,
        };
        let n = 1 + self.rng.below(most) as usize;
        let at = match self.rng.below(3) {
            0 => size,
            1 => self.rng.below(size as u64 + 1) as usize,
            _ => self.rng.below(self.plan.file_bytes_max) as usize,
        };
        let fill = self.rng.byte();
        let past = self.plan.direct && self.rng.below(2) == 0;
        // Mostly aligned, or it would go through the cache after all.
        let aligned = past && self.rng.below(4) > 0;
        let unit = match self.plan.whole_blocks {
            true => self.plan.block_bytes as usize,
            false => self.plan.format.logical_block_bytes() as usize,
        };
        let (at, n) = if aligned || self.plan.whole_blocks {
            (at / unit * unit, n.next_multiple_of(unit))
        } else {
            (at, n)
        };
        let durable = past && self.rng.below(3) == 0;
        self.write_at(&path, id, at, n, fill, past, durable)
    }

    /// This many bytes of a pattern at an offset, past the cache or through it, durable when it returns or not.
    #[allow(clippy::too_many_arguments)] // a place, bytes and the way there
    pub(super) fn write_at(
        &mut self,
        path: &str,
        id: NodeId,
        at: usize,
        n: usize,
        fill: u8,
        past: bool,
        durable: bool,
    ) -> Step {
        let handle = self.open(path)?;
        let mut bytes = (*self.model.bytes(id)).clone();
        if durable {
            // What this write promises is its own range; with the rest durable it is all of the file.
            self.sync_file(&handle, path, id, SyncScope::Data)?;
        }
        let began = self.log();
        self.model.begin(began);
        let outcome = if past {
            self.write_past(path, &written_bytes(fill, at, n), at as u64, durable)?
        } else {
            handle.write_at(&written_bytes(fill, at, n), at as u64)
        };
        let written = match outcome {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                self.model.note(id, format!("write {at}+{n} refused: {e}"));
                return Ok(());
            }
            Err(e) => return Err(format!("write {path}: {e}")),
        };
        if bytes.len() < at + written {
            bytes.resize(at + written, 0);
        }
        bytes[at..at + written].copy_from_slice(&written_bytes(fill, at, written));
        self.model.set_bytes(id, bytes);
        let how = if past { "direct write" } else { "write" };
        self.model
            .note(id, format!("{how} {at}+{written} {fill:02x}"));
        if durable {
            let log = self.recording.marker(format!("O_DSYNC write {path}")) + 1;
            self.model.promise_file(began, log, id, false);
        }
        Ok(())
    }

    /// Small writes at every second block or so, over a stretch of which a part is allocated first.
    fn write_scattered(&mut self, path: &str, id: NodeId) -> Step {
        let handle = self.open(path)?;
        let block = u64::from(self.plan.block_bytes);
        let blocks = self.plan.file_bytes_max / block;
        let first = self.rng.below(blocks.max(1));
        let count = 2 + self.rng.below(40);
        let mut bytes = (*self.model.bytes(id)).clone();
        if self.rng.below(3) == 0 {
            let (start, end) = (first * block, (first + count) * block);
            self.model.begin(self.log());
            match handle.fallocate(start..end, FallocMode::Allocate { keep_size: false }) {
                Ok(()) => bytes.resize(bytes.len().max(end as usize), 0),
                Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::NoSpace) => {
                    self.model
                        .note(id, format!("allocate {start}..{end} refused: {e}"));
                }
                Err(e) => return Err(format!("fallocate {path}: {e}")),
            }
            self.model.set_bytes(id, bytes.clone());
            self.model.note(id, format!("allocate {start}..{end}"));
        }
        for k in 0..count {
            let at = ((first + 2 * k) * block + self.rng.below(3) * block / 4) as usize;
            let n = 1 + self.rng.below(block) as usize;
            let fill = self.rng.byte();
            self.model.begin(self.log());
            match handle.write_at(&written_bytes(fill, at, n), at as u64) {
                Ok(written) => {
                    bytes.resize(bytes.len().max(at + written), 0);
                    bytes[at..at + written].copy_from_slice(&written_bytes(fill, at, written));
                }
                Err(e) if e.kind() == ErrorKind::NoSpace => {
                    self.model.note(id, format!("write {at}+{n} refused: {e}"));
                    return Ok(());
                }
                Err(e) => return Err(format!("write {path}: {e}")),
            }
            self.model.set_bytes(id, bytes.clone());
            self.model.note(id, format!("write {at}+{n} {fill:02x}"));
        }
        Ok(())
    }

    /// A direct write, submitted: block by block, so that the first takes blocks and the others find them preallocated. What lands in
    /// this thread is finished by it, where the engine allows that. Or one written back as by a front end with a cache of its own: past ours,
    /// too, or through it.
    fn write_past(
        &self,
        path: &str,
        bytes: &[u8],
        at: u64,
        durable: bool,
    ) -> Result<blockwright_vfs::Result<usize>, String> {
        let inode = self.inode(path)?;
        // Nothing is drawn for it: what a seed does else stays what it was.
        let back = bytes.first().is_some_and(|b| b % 2 == 1);
        let flags = OpenFlags {
            direct: !back,
            noatime: true,
            sync: if durable {
                SyncMode::Data
            } else {
                SyncMode::None
            },
            ..OpenFlags::read_write()
        };
        let handle = self
            .volume
            .open(&self.cred, &inode, flags)
            .map_err(|e| format!("open {path}: {e}"))?;
        let block = u64::from(self.volume.format().block_bytes);
        let mut written = 0;
        while written < bytes.len() {
            let from = at + written as u64;
            let left = &bytes[written..];
            let to_boundary = (block - from % block) as usize;
            let piece = match back {
                true => left,
                false => &left[..left.len().min(to_boundary)],
            };
            let slices = vec![AlignedBuf::copy_of(piece).into()];
            let (send, receive) = std::sync::mpsc::channel();
            // The receiver may have gone.
            let done: WriteDone = Box::new(move |r| drop(send.send(r)));
            let carrier = Carrier::new(None);
            let op = WriteOp::at(from, slices).carried_by(&carrier);
            let (op, otherwise) = match back {
                true => (op.written_back(), Patience::Wait),
                false => (op, Patience::Worker),
            };
            carrier.collect(|| {
                if let Some(back) = handle.start(op, done, Patience::Nowait) {
                    handle.start(back.op, back.done, otherwise);
                }
            });
            let outcome = receive
                .recv_timeout(std::time::Duration::from_secs(600))
                .map_err(|_| format!("a submitted write of {path} did not end"))?;
            match outcome {
                Ok(n) => written += n,
                Err(e) if written == 0 => return Ok(Err(e)),
                Err(_) => break,
            }
            // Short, for lack of space.
            if from + (piece.len() as u64) > at + written as u64 {
                break;
            }
        }
        Ok(Ok(written))
    }

    pub(super) fn truncate(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return Ok(());
        };
        let size = self.rng.below(self.plan.file_bytes_max) as usize;
        let size = if self.rng.below(2) == 0 {
            size
        } else {
            size.min(self.model.bytes(id).len())
        };
        self.truncate_at(&path, id, size)
    }

    pub(super) fn truncate_at(&mut self, path: &str, id: NodeId, size: usize) -> Step {
        let mut bytes = (*self.model.bytes(id)).clone();
        let handle = self.open(path)?;
        self.model.begin(self.log());
        match handle.set_len(size as u64) {
            Ok(()) => {}
            // The rest of the last block becomes zero, which takes another block where nothing is overwritten in place. A volume
            // without room may refuse that, and then nothing has changed. Whole blocks it must always give back.
            Err(e)
                if e.kind() == ErrorKind::NoSpace
                    && !size.is_multiple_of(self.plan.block_bytes as usize) =>
            {
                self.model.note(id, format!("truncate {size} refused: {e}"));
                return Ok(());
            }
            Err(e) => return Err(format!("truncate {path}: {e}")),
        }
        bytes.resize(size, 0);
        self.model.set_bytes(id, bytes);
        self.model.note(id, format!("truncate {size}"));
        Ok(())
    }

    pub(super) fn allocate_or_punch(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return Ok(());
        };
        let mut bytes = (*self.model.bytes(id)).clone();
        let start = self.rng.below(self.plan.file_bytes_max);
        let end = start + 1 + self.rng.below(12_000);
        let mode = match self.rng.below(3) {
            0 => FallocMode::PunchHole,
            1 => FallocMode::Allocate { keep_size: false },
            _ => FallocMode::ZeroRange { keep_size: true },
        };
        let handle = self.open(&path)?;
        self.model.begin(self.log());
        match handle.fallocate(start..end, mode) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::NoSpace) => {
                self.model
                    .note(id, format!("{mode:?} {start}..{end} refused: {e}"));
                // It may have been zeroed, or a part of it.
                let mut now = vec![0; bytes.len()];
                handle
                    .read_at(&mut now, 0)
                    .map_err(|e| format!("read {path}: {e}"))?;
                let zeroed = match mode {
                    FallocMode::ZeroRange { .. } => start..end,
                    _ => 0..0,
                };
                for (at, byte) in now.iter().enumerate() {
                    if *byte != bytes[at] && !(*byte == 0 && zeroed.contains(&(at as u64))) {
                        return Err(format!(
                            "{path}: {mode:?} {start}..{end}, refused, changed byte {at}"
                        ));
                    }
                }
                self.model.set_bytes(id, now);
                return Ok(());
            }
            Err(e) => return Err(format!("fallocate {path} {mode:?}: {e}")),
        }
        if mode == (FallocMode::Allocate { keep_size: false }) {
            if bytes.len() < end as usize {
                bytes.resize(end as usize, 0);
            }
        } else {
            let (a, b) = (
                (start as usize).min(bytes.len()),
                (end as usize).min(bytes.len()),
            );
            bytes[a..b].fill(0);
        }
        self.model.set_bytes(id, bytes);
        self.model.note(id, format!("{mode:?} {start}..{end}"));
        Ok(())
    }

    /// A range of a file goes into another, or elsewhere into itself.
    pub(super) fn copy(&mut self) -> Step {
        let (Some((from, source)), Some((to, target))) = (self.pick('f'), self.pick('f')) else {
            return Ok(());
        };
        let old = self.model.bytes(source);
        let mut bytes = (*self.model.bytes(target)).clone();
        let block = u64::from(self.plan.block_bytes);
        let mut start = self.rng.below(old.len() as u64 + 1);
        let mut at = self.rng.below(self.plan.file_bytes_max);
        // As programs copy: from the beginning, all of it; or at least so that blocks lie alike.
        match self.rng.below(4) {
            0 => (start, at) = (0, 0),
            1 => {}
            _ => (start, at) = (start / block * block, at / block * block),
        }
        let len = match self.rng.below(2) {
            0 => old.len() as u64,
            _ => 1 + self.rng.below(old.len() as u64 + 1),
        };
        if source == target && start < at + len && at < start + len {
            return Ok(());
        }
        let (reader, writer) = (self.open(&from)?, self.open(&to)?);
        self.model.begin(self.log());
        let copied = match reader.copy_range(start, &writer, at, len) {
            Ok(n) => n as usize,
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                self.model
                    .note(target, format!("copy of {start}+{len} to {at} refused"));
                return Ok(());
            }
            Err(e) => return Err(format!("copy {from} {start}+{len} to {to} {at}: {e}")),
        };
        let (start, at) = (start as usize, at as usize);
        let expected = (len as usize).min(old.len() - start);
        if copied != expected && !self.may_be_full() {
            return Err(format!(
                "copy {from} {start}+{len} to {to} {at}: {copied} of {expected}"
            ));
        }
        if copied > 0 {
            bytes.resize(bytes.len().max(at + copied), 0);
            bytes[at..at + copied].copy_from_slice(&old[start..start + copied]);
        }
        self.model.set_bytes(target, bytes);
        let what = format!("copy of {copied} from {start} of {from} to {at}");
        self.model.note(target, what);
        Ok(())
    }

    /// A range is taken out of a file, or a hole put in. Small files only: others are moved a part at a time. Made durable at once,
    /// or an overwrite in place that follows would show where its block was before.
    pub(super) fn shift(&mut self) -> Step {
        const BLOCKS_MAX: u64 = 80;
        let Some((path, id)) = self.pick('f') else {
            return Ok(());
        };
        let block = u64::from(self.plan.block_bytes);
        let mut bytes = (*self.model.bytes(id)).clone();
        let blocks = bytes.len() as u64 / block;
        if !(2..BLOCKS_MAX).contains(&blocks) {
            return Ok(());
        }
        let first = self.rng.below(blocks - 1);
        let count = 1 + self.rng.below(blocks - first - 1);
        let range = first * block..(first + count) * block;
        let mode = match self.rng.below(2) {
            0 => FallocMode::CollapseRange,
            _ => FallocMode::InsertRange,
        };
        let handle = self.open(&path)?;
        self.model.begin(self.log());
        match handle.fallocate(range.clone(), mode) {
            Ok(()) => {}
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Unsupported | ErrorKind::NoSpace | ErrorKind::Invalid
                ) =>
            {
                let what = format!("{mode:?} {range:?} refused: {e}");
                self.model.note(id, what);
                return Ok(());
            }
            Err(e) => return Err(format!("{mode:?} {range:?} of {path}: {e}")),
        }
        let (start, end) = (range.start as usize, range.end as usize);
        if mode == FallocMode::CollapseRange {
            bytes.drain(start..end);
        } else {
            bytes.splice(start..start, std::iter::repeat_n(0, end - start));
        }
        self.model.set_bytes(id, bytes);
        self.model.note(id, format!("{mode:?} {range:?}"));
        self.sync_file(&handle, &path, id, SyncScope::All)
    }
}
