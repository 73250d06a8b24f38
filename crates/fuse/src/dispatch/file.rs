//! Requests on open files: opening, data, space, synchronisation.
//!
//! See the head of `dispatch` for what the kernel does itself with the writeback cache.

use super::Dispatcher;
use super::answer::{Answer, Failure, Outcome, Undo};
use super::deferred_release::Release;
use super::fast_path::{DataRequest, What};
use super::files::OpenFile;
use crate::protocol::flags::{FSYNC_FDATASYNC, InitFlags, OpenReply, OpenRequest};
use crate::protocol::reply::{CopyFileRangeOut, EntryOut, LseekOut, OpenOut, WriteOut};
use crate::protocol::request::{
    CopyFileRangeIn, CreateIn, FallocateIn, FsyncIn, LseekIn, OpenIn, ReleaseIn, Request,
};
use blockwright_vfs::{
    Access, AccessCheck, CreateRequest, Cred, FallocMode, FileKind, FrontEnd, InodeFlags, InodeRef,
    OpenFlags, ReadOp, SetAttr, SetTime, SyncScope, WriteAt, WriteOp,
};
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// How much data one COPY_FILE_RANGE copies at most, holes not counted, so that a thread is not away for long. Short
/// copies are continued by the caller.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// The scope that the flags of FSYNC ask for.
pub(super) fn scope(fsync_flags: u32) -> SyncScope {
    if fsync_flags & FSYNC_FDATASYNC != 0 {
        SyncScope::Data
    } else {
        SyncScope::All
    }
}

/// Whether a file that is being opened has just been made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It is empty, and its mode bits do not bind its creator yet.
    New,
    Existing,
}

/// CREATE's reply.
#[derive(Clone, Copy, IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct CreateOut {
    entry: EntryOut,
    open: OpenOut,
}

const _: () = assert!(size_of::<CreateOut>() == 144);

impl Dispatcher {
    /// The open file a request is about.
    fn file(&self, fh: u64) -> std::result::Result<Arc<OpenFile>, Failure> {
        self.files.get(fh).ok_or(Failure::Errno(Errno::BADF))
    }

    /// Takes off what a caller that changes the contents of a file may not keep. The kernel leaves that to us.
    fn strip(
        &self,
        request: &Request<'_>,
        nodeid: u64,
        file: &OpenFile,
    ) -> std::result::Result<(), Failure> {
        let inode = file.handle.inode();
        let before = inode.attr().perm;
        file.handle.strip_privileges(self.group_test(request))?;
        self.tell_of_mode(nodeid, inode, before);
        Ok(())
    }

    /// Makes the kernel forget the mode that it remembers, if it is another one now: it would go on showing, and running, a program
    /// with set-id bits.
    fn tell_of_mode(&self, nodeid: u64, inode: &InodeRef, before: u32) {
        if inode.attr().perm != before
            && let Some(notifier) = self.notifier.get()
        {
            // Fails when the connection has ended.
            let _ = notifier.forget_attributes(nodeid);
        }
    }

    /// Opens an inode. The kernel knows it under `nodeid`.
    fn open_inode(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        nodeid: u64,
        flags: u32,
        how: OpenRequest,
        origin: Origin,
    ) -> std::result::Result<OpenOut, Failure> {
        let flags = flags.cast_signed();
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        let truncates = flags & libc::O_TRUNC != 0 && origin == Origin::Existing;
        let appends = flags & libc::O_APPEND != 0;
        let bypass = self.options.direct_io && inode.kind() == FileKind::Regular;
        let direct = bypass || flags & libc::O_DIRECT != 0;
        if origin == Origin::Existing && cred.check == AccessCheck::Here {
            let mut want = Access::empty();
            want.set(Access::READ, flags & libc::O_ACCMODE != libc::O_WRONLY);
            want.set(Access::WRITE, writes || truncates);
            self.vfs.access(cred, inode, want)?;
        }
        if truncates && inode.attr().flags.contains(InodeFlags::APPEND) {
            return Err(Errno::PERM.into());
        }
        // Checked above or by the kernel, which also says when set-id bits go: the handle itself has
        // every right. It reads in any case, because the kernel fills pages through it.
        let handle = self.vfs.open(
            &Cred::unchecked(),
            inode,
            OpenFlags {
                read: true,
                write: writes,
                append: appends,
                direct,
                front_end: match flags & libc::O_DIRECT != 0 {
                    true => FrontEnd::FuseClientDirect,
                    false => FrontEnd::FuseClient,
                },
                noatime: flags & libc::O_NOATIME != 0,
                ..OpenFlags::default()
            },
        )?;
        if truncates {
            let cut = SetAttr {
                size: Some(0),
                mtime: Some(SetTime::Now),
                ctime: Some(SetTime::Now),
                kill_priv: how.contains(OpenRequest::KILL_SUIDGID),
                ..SetAttr::default()
            };
            let cutter = Cred {
                check: AccessCheck::ByKernel,
                ..cred.clone()
            };
            let before = inode.attr().perm;
            self.vfs.set_attr(&cutter, inode, &cut)?;
            self.tell_of_mode(nodeid, inode, before);
        }
        // A file whose writes come to us one by one learns of a full volume by its write. For a file that begins empty, the kernel's
        // modification time is still right, although the kernel does not advance it then.
        let empty = truncates || origin == Origin::New;
        let write_only = flags & libc::O_ACCMODE == libc::O_WRONLY;
        let may_be_mapped = write_only || self.agreed(InitFlags::DIRECT_IO_ALLOW_MMAP);
        if writes && !direct {
            self.look_before_writer();
        }
        let past = bypass || writes && empty && may_be_mapped && self.is_short_of_room();
        // A handle with O_DIRECT leaves nothing dirty in the kernel, either.
        let cached = writes && !past && !direct;
        let fh = self.files.insert(OpenFile {
            handle,
            writes,
            write_only,
            gate: cached.then(Arc::default),
        });
        if cached {
            self.room.add_writer();
            // After it was put in: either this sees that the volume is tight, or the watch, which has just said so, finds the file.
            if self.is_tight()
                && let Some(notifier) = self.notifier.get()
            {
                let _ = notifier.forget_attributes(nodeid);
            }
        }
        if writes {
            self.nodes.add_writer(nodeid, inode, cached);
        }
        // The file changes through this mount only, so pages stay valid between opens. Not DIRECT_IO, also for
        // O_DIRECT, which the kernel does directly anyway: with the writeback cache it keeps mtime
        // itself, and on the DIRECT_IO path it forgets to. Without DIRECT_IO, newer kernels ignore
        // PARALLEL_DIRECT_WRITES; older ones may not.
        let mut reply = OpenReply::KEEP_CACHE | OpenReply::NOFLUSH;
        reply.set(OpenReply::PARALLEL_DIRECT_WRITES, direct);
        reply.set(OpenReply::DIRECT_IO, past);
        Ok(OpenOut {
            fh,
            open_flags: reply.bits(),
            backing_id: 0,
        })
    }

    /// Closes a file. `nodeid`: what the kernel knows its inode under, if the caller knows it.
    pub(super) fn close_file(&self, fh: u64, nodeid: Option<u64>) {
        let Some(file) = self.files.remove(fh) else {
            return;
        };
        if file.gate.is_some() {
            self.room.remove_writer();
        }
        if file.writes {
            let nodeid =
                nodeid.unwrap_or_else(|| self.nodes.swap_root(file.handle.inode().ino().0));
            self.nodes.remove_writer(nodeid, file.gate.is_some());
        }
        self.releases.add(Release::File(file));
    }

    pub(super) fn open(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<OpenIn>()?;
        let nodeid = request.header.nodeid;
        let inode = self.node(nodeid)?;
        let how = OpenRequest::from_bits_retain(args.open_flags);
        let mut cred = self.cred(request)?;
        if how.contains(OpenRequest::KILL_SUIDGID) {
            self.add_groups(&mut cred, request, &inode);
        }
        let open = self.open_inode(&cred, &inode, nodeid, args.flags, how, Origin::Existing)?;
        Ok(Answer::undoable(
            &open,
            Undo {
                node: None,
                file: Some(open.fh),
            },
        ))
    }

    pub(super) fn create(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let head = args.take::<CreateIn>()?;
        let name = args.name()?;
        let dir = self.node(request.header.nodeid)?;
        let cred = self.cred(request)?;
        let mut new = CreateRequest::new(FileKind::Regular, head.mode & 0o7777);
        new.umask = head.umask;
        new.exclusive = head.flags.cast_signed() & libc::O_EXCL != 0;
        let (inode, created) = self.vfs.create(&cred, &dir, name, &new)?;
        let origin = if created {
            Origin::New
        } else {
            Origin::Existing
        };
        self.enter_and_open(&cred, &inode, &head, origin)
    }

    pub(super) fn tmpfile(&self, request: &Request<'_>) -> Outcome {
        let head = request.args().take::<CreateIn>()?;
        let dir = self.node(request.header.nodeid)?;
        let cred = self.cred(request)?;
        let mut new = CreateRequest::new(FileKind::Regular, head.mode & 0o7777);
        new.umask = head.umask;
        let inode = self.vfs.create_unnamed(&cred, &dir, &new)?;
        self.enter_and_open(&cred, &inode, &head, Origin::New)
    }

    fn enter_and_open(
        &self,
        cred: &Cred,
        inode: &InodeRef,
        head: &CreateIn,
        origin: Origin,
    ) -> Outcome {
        let mut entry = self.entry_out(inode);
        let how = OpenRequest::from_bits_retain(head.open_flags);
        match self.open_inode(cred, inode, entry.nodeid, head.flags, how, origin) {
            Ok(open) => {
                // Now it is open for writing.
                let lifetime = self.attr_lifetime(entry.nodeid, inode.kind());
                entry.attr_valid = lifetime.as_secs();
                entry.attr_valid_nsec = lifetime.subsec_nanos();
                let undo = Undo {
                    node: Some(entry.nodeid),
                    file: Some(open.fh),
                };
                Ok(Answer::undoable(&CreateOut { entry, open }, undo))
            }
            Err(failure) => {
                self.forget_node(entry.nodeid, 1);
                Err(failure)
            }
        }
    }

    pub(super) fn release(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<ReleaseIn>()?;
        self.close_file(args.fh, Some(request.header.nodeid));
        Ok(Answer::Empty)
    }

    pub(super) fn read(&self, data: &DataRequest) -> Outcome {
        let len = data.bytes();
        let _filling = matches!(data.what, What::Read { fills: true, .. })
            .then(|| data.file.fill(data.offset, len));
        let read = data.file.handle.run(ReadOp::new(data.offset, len))?;
        Ok(Answer::Slices(read))
    }

    pub(super) fn write(&self, request: &Request<'_>, data: &DataRequest) -> Outcome {
        let (file, bytes) = (&data.file, data.data(request));
        if data.strips {
            self.strip(request, data.nodeid, file)?;
        }
        let written = match data.what {
            What::WriteBack { .. } => {
                // The kernel keeps the times then, and sends them on its own.
                let op = WriteOp::borrowed(WriteAt::Offset(data.offset), bytes);
                let written = file.handle.run(op.written_back());
                let refused = match &written {
                    Ok(written) if *written < bytes.len() => Some(Errno::NOSPC),
                    Ok(_) => None,
                    Err(e) => Some(blockwright_vfs::errno::errno_of(e)),
                };
                self.note_write_back(file.gate.as_deref(), bytes.len() as u64, refused);
                let written = written?;
                // The kernel does not look at how much of its cached pages was taken. The rest would be
                // lost, and fsync would not tell.
                if written < bytes.len() {
                    return Err(Errno::NOSPC.into());
                }
                written
            }
            What::Read { .. } | What::Write { .. } => {
                let written = file.handle.write_at(bytes, data.offset);
                if let What::Write { past: true, .. } = data.what {
                    let range = data.offset..data.offset.saturating_add(bytes.len() as u64);
                    let inode = file.handle.inode();
                    self.drop_stale_pages(&Self::direct_write(inode, data.nodeid, range));
                }
                written?
            }
        };
        Ok(Answer::of(&WriteOut {
            // No more than was given, which was counted in 32 bits.
            size: written as u32,
            padding: 0,
        }))
    }

    pub(super) fn fsync(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<FsyncIn>()?;
        let file = self.file(args.fh)?;
        file.handle
            .sync(scope(args.fsync_flags))
            .map_err(Failure::Sync)?;
        Ok(Answer::Empty)
    }

    pub(super) fn sync_fs(&self) -> Outcome {
        self.vfs.sync().map_err(Failure::Sync)?;
        Ok(Answer::Empty)
    }

    pub(super) fn fallocate(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<FallocateIn>()?;
        let file = self.file(args.fh)?;
        let mode = falloc_mode(args.mode)?;
        let end = args.offset.checked_add(args.length).ok_or(Errno::FBIG)?;
        if args.length == 0 {
            return Err(Errno::INVAL.into());
        }
        // The kernel leaves this to us with HANDLE_KILLPRIV_V2, and has no flag for it here.
        if request.header.uid != 0 {
            self.strip(request, request.header.nodeid, &file)?;
        }
        if self.kernel_keeps_times() {
            file.handle
                .fallocate_keeping_times(args.offset..end, mode)?;
        } else {
            file.handle.fallocate(args.offset..end, mode)?;
        }
        Ok(Answer::Empty)
    }

    pub(super) fn lseek(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<LseekIn>()?;
        let file = self.file(args.fh)?;
        // The kernel does not write its dirty pages back before it asks, and where they are we would
        // still see a hole: a program that copies a file that is being written would lose data.
        if self.nodes.has_writers(request.header.nodeid)
            && let Some(notifier) = self.notifier.get()
        {
            self.threads
                .while_blocked(|| notifier.drop_cached_pages(request.header.nodeid))
                .map_err(|_| Errno::IO)?;
        }
        let offset = match args.whence.cast_signed() {
            libc::SEEK_DATA => file.handle.seek_data(args.offset)?,
            libc::SEEK_HOLE => file.handle.seek_hole(args.offset)?,
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(Answer::of(&LseekOut { offset }))
    }

    fn copy_range(&self, request: &Request<'_>, len_max: u64) -> std::result::Result<u64, Failure> {
        let args = request.args().take::<CopyFileRangeIn>()?;
        if args.flags != 0 {
            return Err(Errno::INVAL.into());
        }
        let from = self.file(args.fh_in)?;
        let to = self.file(args.fh_out)?;
        if request.header.uid != 0 {
            self.strip(request, args.nodeid_out, &to)?;
        }
        Ok(from.handle.copy_range_some(
            args.off_in,
            &to.handle,
            args.off_out,
            args.len.min(len_max),
            COPY_BYTES_MAX,
        )?)
    }

    pub(super) fn copy_file_range(&self, request: &Request<'_>) -> Outcome {
        // The reply has 32 bits.
        let copied = self.copy_range(request, 1 << 31)?;
        Ok(Answer::of(&WriteOut {
            size: u32::try_from(copied).unwrap_or(u32::MAX),
            padding: 0,
        }))
    }

    pub(super) fn copy_file_range_64(&self, request: &Request<'_>) -> Outcome {
        let bytes_copied = self.copy_range(request, u64::MAX)?;
        Ok(Answer::of(&CopyFileRangeOut { bytes_copied }))
    }
}

/// `fallocate(2)`'s mode. The kernel lets no more than allocation, punching and zeroing through to FUSE
/// today; the others work should it do so.
fn falloc_mode(mode: u32) -> std::result::Result<FallocMode, Errno> {
    const COLLAPSE: i32 = libc::FALLOC_FL_COLLAPSE_RANGE;
    const INSERT: i32 = libc::FALLOC_FL_INSERT_RANGE;
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    Ok(match mode.cast_signed() {
        0 => FallocMode::Allocate { keep_size: false },
        KEEP => FallocMode::Allocate { keep_size: true },
        PUNCH => FallocMode::PunchHole,
        ZERO => FallocMode::ZeroRange { keep_size: false },
        ZERO_KEEP => FallocMode::ZeroRange { keep_size: true },
        COLLAPSE => FallocMode::CollapseRange,
        INSERT => FallocMode::InsertRange,
        _ => return Err(Errno::OPNOTSUPP),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_fallocate() {
        assert_eq!(
            falloc_mode(0),
            Ok(FallocMode::Allocate { keep_size: false })
        );
        assert_eq!(falloc_mode(3), Ok(FallocMode::PunchHole));
        assert_eq!(
            falloc_mode(0x11),
            Ok(FallocMode::ZeroRange { keep_size: true })
        );
        assert_eq!(falloc_mode(8), Ok(FallocMode::CollapseRange));
        assert_eq!(falloc_mode(0x20), Ok(FallocMode::InsertRange));
        // Punching must keep the size; unsharing means nothing here.
        assert_eq!(falloc_mode(2), Err(Errno::OPNOTSUPP));
        assert_eq!(falloc_mode(0x40), Err(Errno::OPNOTSUPP));
    }
}
