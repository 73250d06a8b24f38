//! How a file or block special is opened.

/// Whether to go around the host's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DirectIo {
    /// Direct where the file takes it at 512-byte granularity (or is a block special), otherwise
    /// buffered: a coarser granularity would make blocks of 1 KiB impossible.
    #[default]
    Auto,
    /// Through the host's page cache.
    Never,
    /// Direct, with the logical block that this needs, or an error.
    Always,
}

/// How submitted requests are performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    /// io_uring where the host permits it, otherwise threads.
    #[default]
    Auto,
    /// A pool of threads with ordinary system calls.
    Plain,
    /// io_uring, or an error.
    Uring,
}

crate::with_defaults! {
/// How to open a device. The default: for reading and writing, locked, direct where possible.
#[derive(Clone, Copy, Debug)]
pub struct OpenMode {
    /// Refuse writes, and open the file for reading only.
    pub read_only: bool = false,
    /// Whether to go around the host's page cache.
    pub direct: DirectIo = DirectIo::default(),
    /// Take the advisory lock, and claim a block special. Without it the caller answers for
    /// no other user of the device.
    pub lock: bool = true,
    /// How submitted requests are performed.
    pub engine: Engine = Engine::default(),
}
}

impl OpenMode {
    /// For reading only; otherwise the default.
    #[must_use]
    pub fn read_only() -> Self {
        OpenMode {
            read_only: true,
            ..OpenMode::default()
        }
    }
}
