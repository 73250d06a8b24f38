//! From requests to calls of the vfs, and back to replies.
//!
//! Purpose: decode, call, reply. There is no file-system logic here; what looks like it is a rule
//! of the FUSE protocol (which side keeps the size, strips set-id bits, and resolves `O_APPEND`).
//!
//! Not responsible for: how requests arrive and replies leave (`transport`), the errno of an
//! error ([`blockwright_vfs::errno`]).
//!
//! # Invariants
//! Every request that has a reply gets exactly one, also when its handler panics. A node
//! that the kernel knows stays in `nodes` until the kernel forgets it; when a reply is not taken, its
//! nodes and files are taken back.
//!
//! # Locks
//! The tables' shards are leaves: nothing is called under them. Handlers hold nothing else.
//! `deferred_release`, not this module, releases the last references that the kernel gives back.
//!
//! # Ownership with the writeback cache
//! The kernel owns size, mtime and ctime of regular files it has open for writing; it tells us by
//! SETATTR. It resolves `O_APPEND` itself and reads through handles opened for writing only, so
//! handles are never opened appending or write-only here. `O_SYNC` comes as FSYNC after the
//! WRITEs, so handles are not opened synchronous either.

mod answer;
mod attr;
mod coherence;
mod control;
mod deferred_release;
mod dir;
mod fast_path;
mod file;
mod files;
mod gate;
mod init;
mod ioctl;
mod names;
mod nodes;
mod read_ahead;
mod room;
mod xattr;

pub use fast_path::{Call, Later};

use crate::connection::{Notifier, ReplySink, TransportStats};
use crate::ids::IdMap;
use crate::options::{FuseOptions, PermissionChecks};
use crate::process;
use crate::protocol::flags::InitFlags;
use crate::protocol::reply::{AttrOut, EntryOut, OutHeader};
use crate::protocol::{Opcode, Request, WireAttr};
use crate::scheduling::cpu_latency::LatencyRequest;
use crate::threads::Threads;
use answer::{Answer, Failure, Outcome, Undo, is_worth_logging};
use blockwright_device::IoPriority;
use blockwright_vfs::{AccessCheck, Attr, Caps, Cred, InodeRef, Result, Vfs};
use coherence::Drops;
use deferred_release::DeferredReleases;
use fast_path::Subject;
use files::Files;
use init::Agreed;
use nodes::Nodes;
use parking_lot::{Condvar, Mutex};
use read_ahead::FileReadahead;
use room::Room;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use zerocopy::IntoBytes;

/// How many file-system failures are logged in detail; a dying device would fill the log otherwise.
const LOGGED_FAILURES_MAX: u32 = 1000;

/// How long a request that found no space waits for space that is about to be freed.
const NO_SPACE_WAIT: Duration = Duration::from_secs(1);
/// How long the end waits for files that are being closed.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// One more than the highest opcode.
const OPCODES: usize = Opcode::CopyFileRange64 as usize + 1;

/// The fewest background requests that are kept in flight, however small the budget is. They hide the device's latency.
const BACKGROUND_LEAST: u16 = 16;
/// Requests of at most this size are not counted.
const UNCOUNTED_BYTES: usize = 16 << 10;

/// Memory of a transport's that is part of the volume's budget.
pub(crate) struct Held {
    vfs: Arc<Vfs>,
    bytes: u64,
}

impl Held {
    /// This number of bytes is in use, or was and stays resident.
    pub(crate) fn grow(&mut self, bytes: usize) {
        if bytes > UNCOUNTED_BYTES && bytes as u64 > self.bytes {
            self.vfs.note_front_end_memory(self.bytes, bytes as u64);
            self.bytes = bytes as u64;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.vfs.note_front_end_memory(self.bytes, 0);
        }
    }
}

/// A request that was handled and has to be replied to.
pub struct Processed {
    opcode: Option<Opcode>,
    unique: u64,
    outcome: Outcome,
}

/// Turns requests into calls of a [`Vfs`].
pub struct Dispatcher {
    vfs: Arc<Vfs>,
    options: FuseOptions,
    ids: IdMap,
    nodes: Nodes,
    files: Files,
    releases: DeferredReleases,
    agreed: OnceLock<Agreed>,
    ready: Mutex<bool>,
    became_ready: Condvar,
    closed: AtomicBool,
    notifier: OnceLock<Arc<dyn Notifier>>,
    threads: Arc<Threads>,
    drops: Drops,
    read_ahead: Arc<FileReadahead>,
    room: Arc<Room>,
    /// The transport, for statistics.
    transport: OnceLock<Weak<dyn TransportStats>>,
    /// Keeps idle CPUs awake while requests come.
    cpu_latency: OnceLock<LatencyRequest>,
    answers: control::Answers,
    logged: AtomicU32,
    /// Whether io_uring is agreed to when the kernel offers it.
    offer_uring: AtomicBool,
    /// Requests by opcode.
    requests: [AtomicU64; OPCODES],
}

/// A kind of request in messages.
fn name_of(opcode: Option<Opcode>) -> String {
    opcode.map_or_else(|| "an unknown request".to_owned(), |op| format!("{op:?}"))
}

impl Dispatcher {
    /// Whether the kernel caches what is written: then modification and change times are its own, and
    /// it sends them when they are worth storing.
    fn kernel_keeps_times(&self) -> bool {
        self.options.writeback_cache && !self.options.direct_io && !self.options.read_only
    }

    /// How many background requests the kernel keeps going: no more than fill half of the volume's budget with the largest payloads,
    /// since all of them may come at once. The others wait in the kernel.
    pub(crate) fn background_max(&self) -> u16 {
        let half = self.vfs.options().cache_bytes / 2;
        let fit = half / u64::from(self.options.max_write_clamped());
        let fit = u16::try_from(fit).unwrap_or(u16::MAX);
        let asked = self.options.max_background.max(1);
        asked.min(fit.max(BACKGROUND_LEAST))
    }

    /// A transport may hold this number of the largest requests at any moment. Three eighths of the budget are reserved for that at
    /// most; for more of them pages give way when they come.
    pub(crate) fn reserve_memory(&self, requests: usize) {
        let each = u64::from(self.options.max_write_clamped());
        let most = self.vfs.options().cache_bytes / 8 * 3;
        let bytes = (requests as u64 * each).min(most);
        self.vfs.reserve_front_end_memory(bytes);
    }

    /// Memory of a transport's, part of the volume's budget until it is dropped.
    pub(crate) fn hold(&self, bytes: usize) -> Held {
        let mut held = Held {
            vfs: Arc::clone(&self.vfs),
            bytes: 0,
        };
        held.grow(bytes);
        held
    }

    /// The memory that a transport holds for requests in progress has changed, in bytes.
    pub(crate) fn note_memory(&self, before: u64, after: u64) {
        self.vfs.note_front_end_memory(before, after);
    }

    /// A dispatcher for this volume.
    ///
    /// # Errors
    /// When the root directory cannot be read.
    pub fn new(vfs: Arc<Vfs>, options: &FuseOptions) -> Result<Self> {
        let root = vfs.root()?;
        let ids = IdMap::new(options.uid, options.gid);
        let threads = Threads::new(options.threads_min, options.threads_max);
        Ok(Dispatcher {
            nodes: Nodes::new(&vfs, root),
            read_ahead: FileReadahead::new(&vfs, &threads),
            vfs,
            options: options.clone(),
            ids,
            files: Files::new(),
            releases: DeferredReleases::default(),
            agreed: OnceLock::new(),
            ready: Mutex::new(false),
            became_ready: Condvar::new(),
            closed: AtomicBool::new(false),
            notifier: OnceLock::new(),
            drops: Drops::new(&threads),
            threads,
            room: Arc::default(),
            transport: OnceLock::new(),
            cpu_latency: OnceLock::new(),
            answers: control::Answers::default(),
            logged: AtomicU32::new(0),
            offer_uring: AtomicBool::new(false),
            requests: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    /// Gives the dispatcher a way to tell the kernel things. Later calls change nothing.
    pub fn set_notifier(&self, notifier: Arc<dyn Notifier>) {
        let _ = self.notifier.set(notifier);
    }

    /// Sets the transport. Later calls change nothing.
    pub fn set_transport(&self, transport: Weak<dyn TransportStats>) {
        let _ = self.transport.set(transport);
    }

    /// The threads for requests that wait.
    pub(crate) fn threads(&self) -> &Arc<Threads> {
        &self.threads
    }

    /// Whether the connection has ended, so that requests are refused.
    fn has_ended(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Keeps idle CPUs awake while requests come. Later calls change nothing.
    pub(crate) fn set_cpu_latency(&self, cpu_latency: LatencyRequest) {
        let _ = self.cpu_latency.set(cpu_latency);
    }

    /// Whether idle CPUs are kept awake now.
    pub(crate) fn keeps_cpus_awake(&self) -> bool {
        self.cpu_latency.get().is_some_and(LatencyRequest::is_held)
    }

    /// There are queues for the kernel to use: agrees to its offer at INIT.
    pub(crate) fn offer_uring(&self) {
        self.offer_uring.store(true, Ordering::Release);
    }

    /// Whether the kernel was told that it may use queues.
    pub(crate) fn agreed_on_uring(&self) -> bool {
        self.agreed(InitFlags::OVER_IO_URING)
    }

    /// Waits until the kernel and we have agreed on a protocol, or for `limit`. Returns whether they
    /// have.
    pub fn wait_ready(&self, limit: Duration) -> bool {
        let mut ready = self.ready.lock();
        if !*ready {
            self.became_ready.wait_for(&mut ready, limit);
        }
        *ready
    }

    /// The connection has ended: closes all files and forgets all nodes. Requests that still come are
    /// refused.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.room.end();
        self.files.clear();
        self.nodes.clear();
        self.releases.end(CLOSE_WAIT);
    }

    /// Number of inodes that the kernel remembers, and number of files that it has open.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.nodes.len(), self.files.len())
    }

    /// Handles one request and replies to it.
    pub fn handle<S: ReplySink>(&self, request: Request<'_>, sink: S) {
        let call = self.decode(&request);
        self.serve(&call, &request, sink);
    }

    /// Serves one request, `call` when it was decoded, and replies to it.
    pub fn serve<S: ReplySink>(&self, call: &Call, request: &Request<'_>, sink: S) {
        let processed = self.process(call, request);
        self.finish(processed, sink);
    }

    /// Handles one request. Its bytes are not needed for the reply, which may take their place.
    pub fn process(&self, call: &Call, request: &Request<'_>) -> Processed {
        let opcode = call.opcode;
        self.count(opcode);
        let outcome = if self.has_ended() {
            Err(Errno::NODEV.into())
        } else {
            // Handlers keep their state consistent by guards; what a panic leaves behind is at worst
            // a leaked node or file.
            catch_unwind(AssertUnwindSafe(|| self.route_with_space(call, request))).unwrap_or_else(
                |panic| {
                    self.log_panic(&name_of(opcode), &*panic);
                    Err(Errno::IO.into())
                },
            )
        };
        Processed {
            opcode,
            unique: request.header.unique,
            outcome,
        }
    }

    /// Replies to a request that was handled.
    pub fn finish<S: ReplySink>(&self, processed: Processed, sink: S) {
        let Processed {
            opcode,
            unique,
            outcome,
        } = processed;
        if let Err(failure) = &outcome {
            self.log_failure(opcode, failure);
        }
        if opcode.is_some_and(|op| !op.has_reply()) {
            return;
        }
        self.reply(unique, outcome, sink);
        if opcode == Some(Opcode::Init) && self.agreed.get().is_some() {
            // Only now: the kernel has our flags, and what it caps by them can be raised.
            *self.ready.lock() = true;
            self.became_ready.notify_all();
        }
    }

    fn count(&self, opcode: Option<Opcode>) {
        if let Some(op) = opcode {
            self.requests[op as usize].fetch_add(1, Ordering::Relaxed);
        }
        if let Some(cpu_latency) = self.cpu_latency.get() {
            cpu_latency.request();
        }
    }

    fn log_panic(&self, what: &str, panic: &(dyn std::any::Any + Send)) {
        let text = panic_text(panic);
        self.options
            .log
            .line(&format!("internal error in {what}: {text}"));
    }

    /// A message for people.
    pub(crate) fn log(&self, line: &str) {
        self.options.log.line(line);
    }

    /// Handles a request; once more, when it found no space while some was about to be freed. Nothing was changed by
    /// then, or (WRITE) the same bytes go to the same place.
    fn route_with_space(&self, call: &Call, request: &Request<'_>) -> Outcome {
        let outcome = self.route(call, request);
        match &outcome {
            Err(failure)
                if failure.errno() == Errno::NOSPC && self.releases.drain(NO_SPACE_WAIT) =>
            {
                self.route(call, request)
            }
            _ => outcome,
        }
    }

    fn route(&self, call: &Call, request: &Request<'_>) -> Outcome {
        let Some(opcode) = call.opcode else {
            return Err(Errno::NOSYS.into());
        };
        match opcode {
            Opcode::Init => self.init(request),
            Opcode::Destroy => Ok(Answer::Empty),
            // Requests are short; none is worth the bookkeeping of being cut off.
            Opcode::Interrupt | Opcode::NotifyReply => Ok(Answer::Nothing),

            Opcode::Lookup => self.lookup(request),
            Opcode::Forget => self.forget(request),
            Opcode::BatchForget => self.batch_forget(request),
            Opcode::ReadLink => self.read_link(request),
            Opcode::Symlink => self.symlink(request),
            Opcode::MkNod => self.mknod(request),
            Opcode::MkDir => self.mkdir(request),
            Opcode::Unlink => self.unlink(request),
            Opcode::RmDir => self.rmdir(request),
            Opcode::Rename => self.rename(request),
            Opcode::Rename2 => self.rename2(request),
            Opcode::Link => self.link(request),

            Opcode::GetAttr => match &call.subject {
                Subject::Gate(file) => self.get_attr(request, Some(file)),
                _ => self.get_attr(request, None),
            },
            Opcode::Statx => self.statx(request),
            Opcode::SetAttr => self.set_attr(request),
            Opcode::Access => self.access(request),
            Opcode::StatFs => self.statfs(),

            Opcode::Open => self.open(request),
            Opcode::Create => self.create(request),
            Opcode::TmpFile => self.tmpfile(request),
            Opcode::Read | Opcode::Write => match &call.subject {
                Subject::Data(data) if opcode == Opcode::Read => self.read(data),
                Subject::Data(data) => self.write(request, data),
                Subject::Refused(failure) => Err(failure.again()),
                Subject::Gate(_) | Subject::Other => Err(Errno::IO.into()),
            },
            Opcode::Release => self.release(request),
            // At the caller's I/O priority, because this thread writes the data that the caller
            // waits for.
            Opcode::Fsync => IoPriority::acting_for(request.header.pid, || self.fsync(request)),
            Opcode::Fallocate => self.fallocate(request),
            Opcode::Lseek => self.lseek(request),
            Opcode::CopyFileRange => self.copy_file_range(request),
            Opcode::CopyFileRange64 => self.copy_file_range_64(request),
            Opcode::SyncFs => IoPriority::acting_for(request.header.pid, || self.sync_fs()),

            Opcode::OpenDir => self.open_dir(request),
            Opcode::ReadDir => self.read_dir(request),
            Opcode::ReadDirPlus => self.read_dir_plus(request),
            Opcode::ReleaseDir => Ok(Answer::Empty),
            Opcode::FsyncDir => {
                IoPriority::acting_for(request.header.pid, || self.fsync_dir(request))
            }

            // With ENOSYS the kernel stops asking.
            Opcode::SetXattr | Opcode::GetXattr | Opcode::ListXattr | Opcode::RemoveXattr
                if !self.options.xattrs =>
            {
                Err(Errno::NOSYS.into())
            }
            Opcode::SetXattr => self.set_xattr(request),
            Opcode::GetXattr => self.get_xattr(request),
            Opcode::ListXattr => self.list_xattr(request),
            Opcode::RemoveXattr => self.remove_xattr(request),

            Opcode::Ioctl => self.ioctl(request),

            // FLUSH: a close has nothing to do here; write errors reach fsync. With ENOSYS the kernel
            // stops asking. Locks: not asked for at INIT, so the kernel keeps them itself, which is right
            // as no other host uses the volume. BMAP: only for mounts of a block device. POLL: regular
            // files are always ready, which is what the kernel assumes after ENOSYS. Mappings: DAX.
            Opcode::Flush
            | Opcode::GetLk
            | Opcode::SetLk
            | Opcode::SetLkW
            | Opcode::Bmap
            | Opcode::Poll
            | Opcode::SetupMapping
            | Opcode::RemoveMapping => Err(Errno::NOSYS.into()),
        }
    }

    fn reply<S: ReplySink>(&self, unique: u64, outcome: Outcome, sink: S) {
        let mut undo = Undo::default();
        let sent = match &outcome {
            Ok(Answer::Nothing) => return,
            Ok(Answer::Empty) => send(sink, unique, 0, &[]),
            Ok(Answer::Small(bytes, on_failure)) => {
                undo = *on_failure;
                send(sink, unique, 0, &[bytes])
            }
            Ok(Answer::Bytes(bytes)) => send(sink, unique, 0, &[bytes]),
            Ok(Answer::Headed(head, bytes)) => send(sink, unique, 0, &[head, bytes]),
            Ok(Answer::Slices(slices)) => {
                let parts: SmallVec<[&[u8]; 32]> = slices.iter().map(|slice| &**slice).collect();
                send(sink, unique, 0, &parts)
            }
            Err(failure) => send(sink, unique, -failure.errno().raw_os_error(), &[]),
        };
        let Err(e) = sent else { return };
        if let Some(fh) = undo.file {
            self.close_file(fh, None);
        }
        if let Some(nodeid) = undo.node {
            self.forget_node(nodeid, 1);
        }
        // ENOENT: the client was killed meanwhile. ENODEV: unmounted. Both are normal.
        let errno = e.raw_os_error();
        if errno != Some(libc::ENOENT) && errno != Some(libc::ENODEV) {
            self.options
                .log
                .line(&format!("the kernel refused a FUSE reply: {e}"));
        }
    }

    fn log_failure(&self, opcode: Option<Opcode>, failure: &Failure) {
        let name = || name_of(opcode);
        let line = match failure {
            Failure::Fs(e) | Failure::Sync(e) if is_worth_logging(e.kind()) => {
                format!("{}: {e}", name())
            }
            Failure::Bad(bad) => format!("{}: {bad}", name()),
            _ => return,
        };
        match self.logged.fetch_add(1, Ordering::Relaxed) {
            n if n < LOGGED_FAILURES_MAX => self.options.log.line(&line),
            LOGGED_FAILURES_MAX => self.options.log.line("further failures are not logged"),
            _ => {}
        }
    }

    // ---- what handlers share ----

    /// On whose behalf the request is.
    fn cred(&self, request: &Request<'_>) -> std::result::Result<Cred, Failure> {
        let header = &request.header;
        let mut groups = request.groups()?;
        let check = match self.options.permissions {
            PermissionChecks::Kernel => AccessCheck::ByKernel,
            PermissionChecks::Volume => {
                // The protocol carries no supplementary groups but the one a new file may need.
                if header.uid != 0 && groups.is_empty() {
                    groups = self.groups_of(header.pid);
                }
                AccessCheck::Here
            }
        };
        Ok(Cred {
            uid: header.uid,
            gid: header.gid,
            groups,
            check,
            caps: if header.uid == 0 {
                Caps::all()
            } else {
                Caps::empty()
            },
        })
    }

    /// Tells whether the caller is in a group of the volume, for the one question that depends on it.
    fn group_test<'a>(&'a self, request: &'a Request<'_>) -> impl Fn(u32) -> bool + 'a {
        |gid| {
            let header = &request.header;
            gid == header.gid || self.groups_of(header.pid).contains(&gid)
        }
    }

    /// Adds the caller's groups, which requests do not carry, when they decide about this inode's set-gid bit: where its group may
    /// not execute it, members keep the bit.
    fn add_groups(&self, cred: &mut Cred, request: &Request<'_>, inode: &InodeRef) {
        let attr = self.vfs.stat(inode);
        let group_decides = attr.perm & 0o2010 == 0o2000 && !cred.keeps_group_bit(attr.gid);
        if group_decides && cred.groups.is_empty() {
            cred.groups = self.groups_of(request.header.pid);
        }
    }

    /// The supplementary groups of a process, which requests do not carry. A confined server asks its keeper.
    fn groups_of(&self, pid: u32) -> SmallVec<[u32; 8]> {
        match &self.options.keeper {
            Some(keeper) => keeper.groups(pid),
            None => process::supplementary_groups(pid),
        }
    }

    /// The inode a request is about.
    fn node(&self, nodeid: u64) -> std::result::Result<InodeRef, Failure> {
        Ok(self.nodes.get(nodeid)?)
    }

    /// Attributes as the wire wants them.
    fn wire_attr(&self, attr: &Attr) -> WireAttr {
        WireAttr {
            ino: attr.ino.0,
            size: attr.size,
            blocks: attr.blocks512,
            atime: attr.atime.secs,
            mtime: attr.mtime.secs,
            ctime: attr.ctime.secs,
            atimensec: attr.atime.nanos,
            mtimensec: attr.mtime.nanos,
            ctimensec: attr.ctime.nanos,
            mode: attr.kind.mode_bits() | attr.perm,
            nlink: attr.nlink,
            uid: self.ids.shown_uid(attr.uid),
            gid: self.ids.shown_gid(attr.gid),
            // The kernel's 32-bit coding is the low half of the 64-bit one for every number it has.
            rdev: attr.rdev as u32,
            blksize: self.block_bytes(),
            flags: 0,
        }
    }

    /// The preferred unit of I/O that programs see: at least a page.
    fn block_bytes(&self) -> u32 {
        self.vfs
            .format()
            .block_bytes
            .max(crate::options::PAGE_BYTES)
    }

    fn attr_out(&self, nodeid: u64, attr: &Attr) -> AttrOut {
        let lifetime = self.attr_lifetime(nodeid, attr.kind);
        AttrOut {
            attr_valid: lifetime.as_secs(),
            attr_valid_nsec: lifetime.subsec_nanos(),
            dummy: 0,
            attr: self.wire_attr(attr),
        }
    }

    /// Hands an inode to the kernel: one more lookup to be given back.
    fn entry_out(&self, inode: &InodeRef) -> EntryOut {
        let attr = self.vfs.stat(inode);
        let nodeid = self.nodes.remember(inode);
        let lifetime = self.attr_lifetime(nodeid, attr.kind);
        EntryOut {
            nodeid,
            generation: u64::from(attr.generation),
            entry_valid: self.options.entry_timeout.as_secs(),
            attr_valid: lifetime.as_secs(),
            entry_valid_nsec: self.options.entry_timeout.subsec_nanos(),
            attr_valid_nsec: lifetime.subsec_nanos(),
            attr: self.wire_attr(&attr),
        }
    }

    fn entry(&self, inode: &InodeRef) -> Answer {
        let entry = self.entry_out(inode);
        Answer::undoable(
            &entry,
            Undo {
                node: Some(entry.nodeid),
                file: None,
            },
        )
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.threads.end();
    }
}

/// Sends a header and parts.
fn send<S: ReplySink>(sink: S, unique: u64, error: i32, parts: &[&[u8]]) -> std::io::Result<()> {
    let bytes = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let header = OutHeader {
        // Replies are bounded by the request's size, which is 32 bits on the wire.
        len: u32::try_from(bytes).unwrap_or(u32::MAX),
        error,
        unique,
    };
    let mut all: SmallVec<[IoSlice<'_>; 33]> = SmallVec::with_capacity(parts.len() + 1);
    all.push(IoSlice::new(header.as_bytes()));
    all.extend(parts.iter().map(|part| IoSlice::new(part)));
    sink.send(&all)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panic")
}
