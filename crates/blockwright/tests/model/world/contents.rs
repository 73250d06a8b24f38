//! Operations on files' contents.

use super::*;

impl World {
    pub(super) fn contents(&mut self, op: &Op) -> Step {
        let (n, what) = match op {
            Op::Write { file, .. } => (*file, "write"),
            Op::Append { file, .. } => (*file, "append"),
            Op::SetLen { file, .. } => (*file, "set_len"),
            Op::Allocate { file, .. } => (*file, "allocate"),
            Op::Punch { file, .. } => (*file, "punch"),
            Op::Zero { file, .. } => (*file, "zero"),
            Op::Collapse { file, .. } => (*file, "collapse"),
            Op::Insert { file, .. } => (*file, "insert"),
            Op::Fsync { file, .. } => (*file, "fsync"),
            Op::Segments { file } => (*file, "segments"),
            other => return Err(format!("not about contents: {other:?}")),
        };
        let Some(e) = self.file(n) else { return Ok(()) };
        let (id, file) = (e.id, self.open_rw(&e)?);
        let size = self.tree.node(id).bytes().len();
        let say = say(what);
        match *op {
            Op::Write { at, len, salt, .. } => {
                let data = data_of(salt, len);
                file.write_all_at(&data, at as u64).map_err(say)?;
                self.tree.write(id, at, &data);
            }
            Op::Append { len, salt, .. } if size + len < FILE_BYTES_MAX => {
                let data = data_of(salt, len);
                let at = file.append(&data).map_err(say)?;
                if at != size as u64 {
                    return Err(format!("appended at {at} to {size} bytes"));
                }
                self.tree.write(id, size, &data);
            }
            Op::SetLen { len, .. } => {
                file.set_len(len as u64).map_err(say)?;
                self.tree.bytes_mut(id).resize(len, 0);
            }
            Op::Allocate {
                at, len, keep_size, ..
            } => {
                let real = match keep_size {
                    true => file.allocate_keep_size(at as u64, len as u64),
                    false => file.allocate(at as u64, len as u64),
                };
                match real {
                    Err(e) if self.excused(&e) => return Ok(()),
                    real => real.map_err(say)?,
                }
                let bytes = self.tree.bytes_mut(id);
                if !keep_size && bytes.len() < at + len {
                    bytes.resize(at + len, 0);
                }
            }
            Op::Punch { at, len, .. } => match file.punch_hole(at as u64, len as u64) {
                Err(e) if self.excused(&e) => {}
                real => {
                    real.map_err(say)?;
                    self.tree.zero(id, at, at + len);
                }
            },
            Op::Zero { at, len, .. } => match file.zero_range(at as u64, len as u64) {
                Err(e) if self.excused(&e) => {}
                real => {
                    real.map_err(say)?;
                    let bytes = self.tree.bytes_mut(id);
                    if bytes.len() < at + len {
                        bytes.resize(at + len, 0);
                    }
                    self.tree.zero(id, at, at + len);
                }
            },
            Op::Collapse { at, len, .. } => {
                let (from, to) = (at * self.block, (at + len) * self.block);
                let want: Result<(), &[ErrorKind]> = match to < size {
                    true => Ok(()),
                    false => Err(&[ErrorKind::Invalid]),
                };
                match file.collapse_range(from as u64, (to - from) as u64) {
                    Err(e) if self.excused(&e) => {}
                    real => {
                        if agree(what, real, want)?.is_some() {
                            self.tree.bytes_mut(id).drain(from..to);
                        }
                    }
                }
            }
            Op::Insert { at, len, .. } if size + len * self.block < FILE_BYTES_MAX => {
                let (from, bytes) = (at * self.block, len * self.block);
                let want: Result<(), &[ErrorKind]> = match from < size {
                    true => Ok(()),
                    false => Err(&[ErrorKind::Invalid]),
                };
                match file.insert_range(from as u64, bytes as u64) {
                    Err(e) if self.excused(&e) => {}
                    real => {
                        if agree(what, real, want)?.is_some() {
                            let old = self.tree.bytes_mut(id);
                            old.splice(from..from, std::iter::repeat_n(0, bytes));
                        }
                    }
                }
            }
            Op::Fsync { data, .. } => match data {
                true => file.sync_data().map_err(say)?,
                false => file.sync_all().map_err(say)?,
            },
            Op::Segments { .. } => segments(&file, self.tree.node(id).bytes())?,
            _ => {}
        }
        compare_file(
            &format!("{what}: {}", e.path),
            &file,
            self.tree.node(id).bytes(),
        )
    }

    pub(super) fn copy_range(
        &mut self,
        from: usize,
        to: usize,
        at: usize,
        to_at: usize,
        len: usize,
    ) -> Step {
        let (Some(from), Some(to)) = (self.file(from), self.file(to)) else {
            return Ok(());
        };
        if from.id == to.id {
            return Ok(());
        }
        let source = self.open_rw(&from)?;
        let target = self.open_rw(&to)?;
        let n = source
            .copy_range(at as u64, &target, to_at as u64, len as u64)
            .map_err(say("copy range"))?;
        let bytes = self.tree.node(from.id).bytes();
        let part = bytes[at.min(bytes.len())..(at + len).min(bytes.len())].to_vec();
        if n != part.len() as u64 {
            return Err(format!("copied {n} bytes of {}", part.len()));
        }
        if n > 0 {
            self.tree.write(to.id, to_at, &part);
        }
        compare_file("copy range", &target, self.tree.node(to.id).bytes())
    }
}
