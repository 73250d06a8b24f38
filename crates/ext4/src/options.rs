//! Mount options of the engine.
//!
//! Names are those of the kernel's ext4, where it has the option. What all formats have is in the vfs's `MountOptions`.

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::superblock::ErrorBehaviour;
use blockwright_vfs::Error;
use std::sync::Arc;
use std::time::Duration;

/// The report of damage that ends the use of a volume.
pub type OnPanic = Arc<dyn Fn(&Error) + Send + Sync>;

blockwright_device::with_defaults! {
/// How to mount. Fields are public: start from `Options::default()` and set what differs.
#[derive(Clone)]
pub struct Options {
    /// Refuse all changes; write nothing to the device, not even a journal replay.
    pub read_only: bool = false,
    /// Mount read-only, rather than fail, when the volume has read-only-compatible features that
    /// are not known for writing.
    pub downgrade_to_read_only: bool = true,
    /// Read this block (in units of 1 KiB, as `mount -o sb=` has it) as the superblock.
    pub superblock_1k: Option<u64> = None,
    /// Age at which the running transaction is committed.
    pub commit_interval: Duration = Duration::from_secs(5),
    /// Flush the device's volatile cache around commit records. Off: a power failure may corrupt.
    pub barrier: bool = true,
    /// What is done about damage. Without it the volume turns read-only, unless its superblock asks for
    /// `panic`.
    pub errors: Option<ErrorBehaviour> = None,
    /// Told what was met when that is [`ErrorBehaviour::Panic`], after the volume was given up: a program ends itself here, which a
    /// library must not do by itself. Called in the thread that met it, with locks held: it must not use the volume.
    pub on_panic: Option<OnPanic> = None,
    /// Budget of the metadata cache in bytes. With a vfs above, it is part of that one's `cache_bytes`.
    pub metadata_cache_bytes: u64 = 64 << 20,
    /// Device of an external journal.
    pub journal_device: Option<SharedDevice> = None,
    /// Do not load the journal; only with `read_only`, and the volume may look inconsistent.
    pub no_journal_replay: bool = false,
    /// Check pointers to data blocks against known metadata (ext4's `block_validity`).
    pub block_validity: bool = true,
    /// Where the volume is mounted, for `s_last_mounted`.
    pub mount_point: Option<String> = None,
    /// Variants to measure the engine against.
    #[cfg(feature = "comparison")]
    pub comparison: crate::comparison::Comparison = crate::comparison::Comparison::default(),
    /// What this host is called, for `mmp`; found out when it is needed otherwise.
    pub host_name: Option<String> = None,
}
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("read_only", &self.read_only)
            .field("commit_interval", &self.commit_interval)
            .field("barrier", &self.barrier)
            .finish_non_exhaustive()
    }
}
