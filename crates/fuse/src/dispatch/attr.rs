//! Requests about attributes: GETATTR, STATX, SETATTR, ACCESS, STATFS.
//!
//! The kernel caches attributes for a time that the reply states (`attr_lifetime`). STATFS waits a moment for files that are about to be freed, because programs
//! look right after they delete.

use super::Dispatcher;
use super::answer::{Answer, Outcome};
use super::files::OpenFile;
use crate::protocol::flags::SetAttrValid;
use crate::protocol::reply::{StatFsOut, StatxAttr, StatxOut, StatxTime};
use crate::protocol::request::{AccessIn, Request, SetAttrIn, StatxIn};
use blockwright_vfs::{Access, FileKind, InodeFlags, InodeRef, SetAttr, SetTime, Timestamp};
use std::time::Duration;

/// `statx` mask and attribute bits.
const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;
const STATX_ATTR_IMMUTABLE: u64 = 0x10;
const STATX_ATTR_APPEND: u64 = 0x20;
const STATX_ATTR_NODUMP: u64 = 0x40;
const STATX_ATTR_ENCRYPTED: u64 = 0x800;
const STATX_ATTR_VERITY: u64 = 0x10_0000;

/// For how long STATFS waits for what is about to be freed.
const STATFS_WAIT: Duration = Duration::from_millis(20);

impl Dispatcher {
    /// `gate`: the open file that it names, on a volume that is nearly full.
    pub(super) fn get_attr(&self, request: &Request<'_>, gate: Option<&OpenFile>) -> Outcome {
        let inode = self.node(request.header.nodeid)?;
        if let Some(file) = gate {
            self.pass_gate(request.header.nodeid, &inode, file)?;
        }
        Ok(Answer::of(
            &self.attr_out(request.header.nodeid, &self.vfs.stat(&inode)),
        ))
    }

    /// Sent instead of GETATTR when a program asks for the time of birth.
    pub(super) fn statx(&self, request: &Request<'_>) -> Outcome {
        request.args().take::<StatxIn>()?;
        let inode = self.node(request.header.nodeid)?;
        let attr = self.vfs.stat(&inode);
        let time = |t: Timestamp| StatxTime {
            secs: t.secs,
            nanos: t.nanos,
            reserved: 0,
        };
        let mut attributes = 0;
        let mut attributes_mask = 0;
        for (flag, bit) in [
            (InodeFlags::IMMUTABLE, STATX_ATTR_IMMUTABLE),
            (InodeFlags::APPEND, STATX_ATTR_APPEND),
            (InodeFlags::NODUMP, STATX_ATTR_NODUMP),
            (InodeFlags::ENCRYPT, STATX_ATTR_ENCRYPTED),
            (InodeFlags::VERITY, STATX_ATTR_VERITY),
        ] {
            attributes_mask |= bit;
            if attr.flags.contains(flag) {
                attributes |= bit;
            }
        }
        let wire = self.wire_attr(&attr);
        let lifetime = self.attr_lifetime(request.header.nodeid, attr.kind);
        Ok(Answer::of(&StatxOut {
            attr_valid: lifetime.as_secs(),
            attr_valid_nsec: lifetime.subsec_nanos(),
            stat: StatxAttr {
                mask: STATX_BASIC_STATS
                    | if attr.crtime.is_some() {
                        STATX_BTIME
                    } else {
                        0
                    },
                blksize: wire.blksize,
                attributes,
                attributes_mask,
                nlink: wire.nlink,
                uid: wire.uid,
                gid: wire.gid,
                // Type and permissions take 16 bits.
                mode: wire.mode as u16,
                ino: wire.ino,
                size: wire.size,
                blocks: wire.blocks,
                atime: time(attr.atime),
                btime: time(attr.crtime.unwrap_or_default()),
                ctime: time(attr.ctime),
                mtime: time(attr.mtime),
                rdev_major: libc::major(attr.rdev),
                rdev_minor: libc::minor(attr.rdev),
                ..StatxAttr::default()
            },
            ..StatxOut::default()
        }))
    }

    pub(super) fn set_attr(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<SetAttrIn>()?;
        let valid = SetAttrValid::from_bits_retain(args.valid);
        let inode = self.node(request.header.nodeid)?;
        let given = |flag| valid.contains(flag);
        let time = |set, now, secs, nanos| {
            given(set).then(|| {
                if given(now) {
                    SetTime::Now
                } else {
                    SetTime::At(Timestamp { secs, nanos })
                }
            })
        };
        let modified = Timestamp {
            secs: args.mtime,
            nanos: args.mtimensec,
        };
        let mtime = given(SetAttrValid::MTIME).then(|| {
            if given(SetAttrValid::MTIME_NOW) {
                SetTime::Now
            } else if self.kernel_reads_clock(valid, &args) {
                SetTime::NowAs(modified)
            } else {
                SetTime::At(modified)
            }
        });
        let times = SetAttrValid::MTIME | SetAttrValid::CTIME;
        let bookkeeping = SetAttrValid::FH | SetAttrValid::LOCKOWNER;
        if !valid.intersects(!(times | bookkeeping)) && valid.contains(times) {
            // The kernel writes back its times after every unlink. A file without a name needs them in
            // memory only; a name given later writes the whole inode.
            let set = inode.update_attr(|attr| {
                let nameless = attr.nlink == 0;
                if nameless {
                    attr.mtime = Timestamp {
                        secs: args.mtime,
                        nanos: args.mtimensec,
                    };
                    attr.ctime = Timestamp {
                        secs: args.ctime,
                        nanos: args.ctimensec,
                    };
                }
                nameless
            });
            if set {
                return Ok(Answer::of(
                    &self.attr_out(request.header.nodeid, &self.vfs.stat(&inode)),
                ));
            }
        }
        let times_kept = self.kept_times(request.header.nodeid, valid, &args, &inode);
        // A change of owner always strips set-id bits and capabilities of a file, for every caller; a
        // truncation only when the kernel says so, which depends on the caller's capabilities.
        let owner_changes = given(SetAttrValid::UID) || given(SetAttrValid::GID);
        let change = SetAttr {
            mode: given(SetAttrValid::MODE).then_some(args.mode & 0o7777),
            uid: given(SetAttrValid::UID).then_some(args.uid),
            gid: given(SetAttrValid::GID).then_some(args.gid),
            size: given(SetAttrValid::SIZE).then_some(args.size),
            atime: time(
                SetAttrValid::ATIME,
                SetAttrValid::ATIME_NOW,
                args.atime,
                args.atimensec,
            ),
            mtime,
            ctime: given(SetAttrValid::CTIME).then_some(SetTime::At(Timestamp {
                secs: args.ctime,
                nanos: args.ctimensec,
            })),
            kill_priv: given(SetAttrValid::KILL_SUIDGID)
                || owner_changes && inode.kind() != FileKind::Directory,
            kept_times: times_kept,
            ..SetAttr::default()
        };
        let mut cred = self.cred(request)?;
        if change.kill_priv {
            self.add_groups(&mut cred, request, &inode);
        }
        let attr = self.vfs.set_attr(&cred, &inode, &change)?;
        Ok(Answer::of(&self.attr_out(request.header.nodeid, &attr)))
    }

    /// Whether the modification time of a SETATTR is the current one. A kernel that keeps the times does not say so: it reads the clock
    /// itself, once for both times.
    fn kernel_reads_clock(&self, valid: SetAttrValid, args: &SetAttrIn) -> bool {
        self.kernel_keeps_times()
            && valid.contains(SetAttrValid::MTIME | SetAttrValid::CTIME)
            && (args.mtime, args.mtimensec) == (args.ctime, args.ctimensec)
    }

    /// Whether a SETATTR brings times that the kernel has kept for earlier changes, rather than times that a caller sets. Both look
    /// the same, and rules of protected files are for callers only: what the kernel keeps belongs to a file that is open for
    /// writing, or leaves the modification time as it is (a name was added or removed).
    fn kept_times(
        &self,
        nodeid: u64,
        valid: SetAttrValid,
        args: &SetAttrIn,
        inode: &InodeRef,
    ) -> bool {
        let times = SetAttrValid::MTIME | SetAttrValid::CTIME;
        let bookkeeping = SetAttrValid::FH | SetAttrValid::LOCKOWNER;
        let attr = inode.attr();
        self.kernel_keeps_times()
            && inode.kind() == FileKind::Regular
            && valid.contains(times)
            && !valid.intersects(!(times | bookkeeping))
            && ((attr.mtime.secs, attr.mtime.nanos) == (args.mtime, args.mtimensec)
                || self.nodes.has_writers(nodeid))
    }

    /// Sent only when the volume checks permissions.
    pub(super) fn access(&self, request: &Request<'_>) -> Outcome {
        let mask = request.args().take::<AccessIn>()?.mask;
        let inode = self.node(request.header.nodeid)?;
        // The low three bits are `access(2)`'s, in the order of mode bits.
        let want = Access::from_bits_truncate((mask & 7) as u8);
        self.vfs.access(&self.cred(request)?, &inode, want)?;
        Ok(Answer::Empty)
    }

    pub(super) fn statfs(&self) -> Outcome {
        // A program that removes files and calls statfs at once expects to see the space.
        self.releases.drain(STATFS_WAIT);
        let st = self.vfs.statfs()?;
        Ok(Answer::of(&StatFsOut {
            blocks: st.blocks,
            bfree: st.blocks_free,
            bavail: st.blocks_available,
            files: st.files,
            ffree: st.files_free,
            bsize: st.block_bytes,
            namelen: st.name_bytes_max,
            frsize: st.block_bytes,
            ..StatFsOut::default()
        }))
    }
}
