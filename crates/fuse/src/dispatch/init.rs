//! INIT: agreeing on version, features and sizes.
//!
//! It is the first request of a connection. The kernel offers, [`WANTED`] and the options choose, and the reply is what holds for the
//! connection.

use super::Dispatcher;
use super::answer::{Answer, Outcome};
use crate::options::{PAGE_BYTES, PermissionChecks};
use crate::protocol::flags::InitFlags;
use crate::protocol::reply::InitOut;
use crate::protocol::request::{InitIn, InitInCompat, Request};
use crate::protocol::{MAJOR, MINOR, MINOR_MIN};
use rustix::io::Errno;
use std::sync::atomic::Ordering;

/// The result of INIT.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// Features in use.
    pub(super) flags: InitFlags,
}

/// The features that are used whenever the kernel has them. The flags' own documentation has their meaning; the reasons:
///
/// - `WRITEBACK_CACHE`, `ASYNC_READ`, `ASYNC_DIO`, `BIG_WRITES`, `MAX_PAGES`: throughput.
/// - `DONT_MASK`: a default ACL replaces the umask, and only the volume knows whether there is one.
/// - `EXPORT_SUPPORT`: node numbers are inode numbers, which can always be looked up again.
/// - `HANDLE_KILLPRIV_V2`: spares the kernel a GETXATTR of `security.capability` per write.
/// - Not `POSIX_LOCKS`, `FLOCK_LOCKS`: the kernel's own locks suffice: no other host uses the volume.
/// - Not `AUTO_INVAL_DATA`: files change through this mount only.
/// - Not `NO_OPENDIR_SUPPORT`: it makes the kernel cache whole directories, and an offset taken by
///   `telldir` before a change is not found in a cache filled after it: entries would be missed.
const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::ATOMIC_O_TRUNC)
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::HAS_IOCTL_DIR)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::ABORT_ERROR)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::INIT_EXT)
    .union(InitFlags::CREATE_SUPP_GROUP)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP);

impl Dispatcher {
    pub(super) fn init(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let asked = match args.take::<InitIn>() {
            Ok(full) => full,
            // Kernels before 7.36 send the short form.
            Err(_) => {
                let short = args.take::<InitInCompat>()?;
                InitIn {
                    major: short.major,
                    minor: short.minor,
                    max_readahead: short.max_readahead,
                    flags: short.flags,
                    ..InitIn::default()
                }
            }
        };
        if asked.major > MAJOR {
            // A newer protocol: tell ours, and the kernel asks again in it.
            return Ok(Answer::of(&InitOut {
                major: MAJOR,
                minor: MINOR,
                ..InitOut::default()
            }));
        }
        if asked.major < MAJOR || asked.minor < MINOR_MIN {
            self.options.log.line(&format!(
                "the kernel speaks FUSE {}.{}; {MAJOR}.{MINOR_MIN} or newer is needed",
                asked.major, asked.minor
            ));
            return Err(Errno::PROTO.into());
        }

        let offered = InitFlags::from_words(asked.flags, asked.flags2);
        let mut wanted = WANTED;
        let cached = self.kernel_keeps_times();
        wanted.set(InitFlags::WRITEBACK_CACHE, cached);
        wanted.set(
            InitFlags::OVER_IO_URING,
            self.offer_uring.load(Ordering::Acquire),
        );
        // With ACLs the kernel checks permissions whether it was mounted to or not.
        wanted.set(
            InitFlags::POSIX_ACL,
            self.options.permissions == PermissionChecks::Kernel && self.options.xattrs,
        );
        let flags = offered & wanted;
        let _ = self.agreed.set(Agreed { flags });

        let max_write = if flags.contains(InitFlags::MAX_PAGES) {
            self.options.max_write_clamped()
        } else {
            // 32 pages is what kernels without MAX_PAGES take.
            self.options.max_write_clamped().min(32 * PAGE_BYTES)
        };
        let background = self.background_max();
        let (low, high) = flags.words();
        Ok(Answer::of(&InitOut {
            major: MAJOR,
            minor: MINOR.min(asked.minor),
            max_readahead: asked.max_readahead,
            flags: low,
            max_background: background,
            congestion_threshold: (background / 4 * 3).max(1),
            max_write,
            time_gran: 1,
            max_pages: u16::try_from(max_write / PAGE_BYTES).unwrap_or(u16::MAX),
            flags2: high,
            ..InitOut::default()
        }))
    }

    /// Whether this was agreed on.
    pub(super) fn agreed(&self, flag: InitFlags) -> bool {
        self.agreed
            .get()
            .is_some_and(|agreed| agreed.flags.contains(flag))
    }
}
