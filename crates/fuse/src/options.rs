//! How a volume is mounted through FUSE.
//!
//! Options of the connection and of its server. What concerns the volume is in the vfs's `MountOptions`, and constants that no user sets are in
//! `scheduling::limits`.

use crate::keeper::Keeper;
use crate::scheduling::limits::DIRECT_PARTS_MAX;
use std::sync::Arc;
use std::time::Duration;

/// Where messages for people go: one line each, without a newline.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&str) + Send + Sync>);

impl Log {
    /// Calls `sink` with every message, from any thread.
    #[must_use]
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Log(Arc::new(sink))
    }

    /// Throws messages away.
    #[must_use]
    pub fn none() -> Self {
        Log::new(|_| {})
    }

    /// Writes messages to standard error.
    #[must_use]
    pub fn stderr() -> Self {
        Log::new(|message| eprintln!("blockwright: {message}"))
    }

    pub(crate) fn line(&self, message: &str) {
        (self.0)(message);
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Log")
    }
}

/// Which users, apart from the mounting one, may reach the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Visibility {
    /// None, not even root. The kernel's default for FUSE.
    #[default]
    Owner,
    /// All, as far as permissions go (`allow_other`; for an unprivileged user it must be
    /// allowed in `/etc/fuse.conf`).
    Everyone,
}

/// Which side checks mode bits and ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PermissionChecks {
    /// The kernel, from the attributes and ACLs it caches (`default_permissions`).
    #[default]
    Kernel,
    /// The volume's own code. Slower, and ACLs are kept but enforced only there.
    Volume,
}

/// How requests travel between the kernel and us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// Over io_uring where that works, else over `/dev/fuse`, with a hint.
    #[default]
    Auto,
    /// Over io_uring (Linux 6.14, module parameter `enable_uring`), or not at all.
    IoUring,
    /// Over `/dev/fuse`.
    DevFuse,
}

/// Whether idle CPUs are kept from sleeping while many requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CpuLatency {
    /// Yes, where that may be asked for (`/dev/cpu_dma_latency`; root as a rule). Programs that wait for every reply
    /// are faster then; the CPUs that wait for work use power meanwhile. Over io_uring the threads that serve requests poll for
    /// the next one, too, while the machine has CPUs to spare.
    #[default]
    Auto,
    /// No.
    Off,
}

/// Which ring carries the device's I/O of direct reads and writes, over io_uring. Shows what the queue's own ring is worth.
#[cfg(feature = "comparison")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DirectRing {
    /// The ring of the thread that takes the request and answers it: no other thread is woken.
    #[default]
    On,
    /// The device's own ring, served by its thread.
    Off,
}

/// How requests travel in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// Over io_uring.
    IoUring,
    /// Over `/dev/fuse`.
    DevFuse,
}

impl std::fmt::Display for TransportKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TransportKind::IoUring => "io_uring",
            TransportKind::DevFuse => "dev_fuse",
        })
    }
}

blockwright_device::with_defaults! {
/// How a volume is mounted through FUSE. `FuseOptions::default()` is what measured best.
#[derive(Clone, Debug)]
pub struct FuseOptions {
    /// What `mount` and `df` show as the source: usually the image's path.
    pub fsname: String = "blockwright".to_owned(),
    /// Mount read-only.
    pub read_only: bool = false,
    /// Which users may reach the files.
    pub visibility: Visibility = Visibility::Owner,
    /// Which side checks permissions.
    pub permissions: PermissionChecks = PermissionChecks::Kernel,
    /// Set-id bits of programs work (default: no; root only).
    pub allow_suid: bool = false,
    /// Device files work (default: no; root only).
    pub allow_dev: bool = false,
    /// Programs can be executed (default: yes).
    pub allow_exec: bool = true,
    /// The kernel never asks for access-time updates.
    pub no_atime: bool = false,
    /// Present every file as owned by this user. What is created is stored as owned by its creator.
    pub uid: Option<u32> = None,
    /// The same for the group.
    pub gid: Option<u32> = None,
    /// Largest READ in bytes; `None`: as large as a WRITE.
    pub max_read: Option<u32> = None,
    /// Largest WRITE, and READ, in bytes, 4096 ..= 1 MiB, rounded down to whole pages. Each io_uring queue has up to 64 payloads of this size.
    pub max_write: u32 = 256 << 10,
    /// How many background requests (readahead, writeback, direct I/O) the kernel keeps going.
    pub max_background: u16 = 256,
    /// Extended attributes and ACLs are there (default: yes). Without them the kernel does not ask for `security.capability` before the
    /// first write to a file, nor for ACLs; stored ones stay as they are and are not enforced.
    pub xattrs: bool = true,
    /// Dirty pages stay in the kernel's page cache until written back.
    pub writeback_cache: bool = true,
    /// The kernel caches no file contents: every read and write comes here, and goes to the device directly
    /// where it is aligned. Turns `writeback_cache` off, because on that path the kernel would not
    /// keep the modification time that it is then responsible for.
    pub direct_io: bool = false,
    /// For how long the kernel may rely on a name it looked up. The volume changes through this mount only, so
    /// this only bounds the kernel's memory of the past.
    pub entry_timeout: Duration = Duration::from_secs(3600),
    /// The same for attributes.
    pub attr_timeout: Duration = Duration::from_secs(3600),
    /// The same for names that are not there.
    pub negative_timeout: Duration = Duration::from_secs(3600),
    /// The kernel's readahead in KiB, set after mounting when that is permitted (root).
    pub read_ahead_kib: u32 = 2048,
    /// How requests travel.
    pub transport: TransportChoice = TransportChoice::Auto,
    /// Whether idle CPUs are kept from sleeping while many requests come.
    pub cpu_latency: CpuLatency = CpuLatency::Auto,
    /// Which ring carries direct reads and writes to the device.
    #[cfg(feature = "comparison")]
    pub direct_ring: DirectRing = DirectRing::On,
    /// Threads that are kept when they have nothing to do; also the most that wait in `/dev/fuse` for requests.
    pub threads_min: usize = 4,
    /// The most threads that serve requests which wait. Each fsync that waits occupies one: with more of them, more share a
    /// commit.
    pub threads_max: usize = 40,
    /// How long a shutdown by signal waits for open files to be closed before it cuts the
    /// connection.
    pub shutdown_grace: Duration = Duration::from_secs(5),
    /// Where the volume begins in its image: statistics report it, for programs that look at the image from outside.
    pub image_offset: u64 = 0,
    /// Where messages go.
    pub log: Log = Log::stderr(),
    /// Mounts, unmounts and opens files for this process, which is confined.
    pub keeper: Option<Arc<Keeper>> = None,
}
}

/// The kernel's page size as FUSE counts `max_pages`.
pub(crate) const PAGE_BYTES: u32 = 4096;

impl FuseOptions {
    /// Parts of device requests that a queue's own ring carries; 0 leaves all to the device's thread.
    pub(crate) fn direct_parts(&self) -> usize {
        #[cfg(feature = "comparison")]
        if self.direct_ring == DirectRing::Off {
            return 0;
        }
        DIRECT_PARTS_MAX
    }

    /// `max_write` within what the protocol and our buffers take.
    pub(crate) fn max_write_clamped(&self) -> u32 {
        let pages = (self.max_write / PAGE_BYTES).clamp(1, 256);
        pages * PAGE_BYTES
    }
}
