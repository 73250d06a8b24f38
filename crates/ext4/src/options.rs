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

/// How to mount. Fields are public: start from `Options::default()` and set what differs.
#[derive(Clone)]
pub struct Options {
    /// Refuse all changes; write nothing to the device, not even a journal replay.
    pub read_only: bool,
    /// Mount read-only, rather than fail, when the volume has read-only-compatible features that
    /// are not known for writing.
    pub downgrade_to_read_only: bool,
    /// Read this block (in units of 1 KiB, as `mount -o sb=` has it) as the superblock.
    pub superblock_1k: Option<u64>,
    /// Age at which the running transaction is committed.
    pub commit_interval: Duration,
    /// Flush the device's volatile cache around commit records. Off: a power failure may corrupt.
    pub barrier: bool,
    /// What is done about damage. Without it the volume turns read-only, unless its superblock asks for
    /// `panic`.
    pub errors: Option<ErrorBehaviour>,
    /// Told what was met when that is [`ErrorBehaviour::Panic`], after the volume was given up: a program ends itself here, which a
    /// library must not do by itself. Called in the thread that met it, with locks held: it must not use the volume.
    pub on_panic: Option<OnPanic>,
    /// Budget of the metadata cache in bytes. With a vfs above, it is part of that one's `cache_bytes`.
    pub metadata_cache_bytes: u64,
    /// Device of an external journal.
    pub journal_device: Option<SharedDevice>,
    /// Do not load the journal; only with `read_only`, and the volume may look inconsistent.
    pub no_journal_replay: bool,
    /// Check pointers to data blocks against known metadata (ext4's `block_validity`).
    pub block_validity: bool,
    /// Where the volume is mounted, for `s_last_mounted`.
    pub mount_point: Option<String>,
    /// Variants to measure the engine against.
    #[cfg(feature = "comparison")]
    pub comparison: crate::comparison::Comparison,
    /// What this host is called, for `mmp`; found out when it is needed otherwise.
    pub host_name: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            downgrade_to_read_only: true,
            superblock_1k: None,
            commit_interval: Duration::from_secs(5),
            barrier: true,
            errors: None,
            on_panic: None,
            metadata_cache_bytes: 64 << 20,
            journal_device: None,
            no_journal_replay: false,
            block_validity: true,
            mount_point: None,
            #[cfg(feature = "comparison")]
            comparison: crate::comparison::Comparison::default(),
            host_name: None,
        }
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
