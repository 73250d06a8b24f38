//! Reading directories.
//!
//! Directories have no handles: a position is the engine's cookie, which stays valid while entries
//! come and go, and says everything. The kernel is not allowed to cache listings, see `init`.

use super::Dispatcher;
use super::answer::{Answer, Failure, Outcome};
use crate::protocol::reply::{Dirent, DirentPlus, EntryOut, OpenOut};
use crate::protocol::request::{FsyncIn, ReadIn, Request};
use blockwright_vfs::{Cred, DirEntry, FileKind, Ino, OpenFlags};
use rustix::io::Errno;
use std::ops::{ControlFlow, Range};
use zerocopy::IntoBytes;

/// Names are padded to this.
const ALIGN: usize = 8;
/// The largest listing asked for that is believed; the kernel asks for a few pages.
const LISTING_BYTES_MAX: u32 = 1 << 20;

/// An entry as the directory has it, name aside.
struct Listed {
    ino: Ino,
    kind: Option<FileKind>,
    cookie: u64,
    name: Range<usize>,
}

/// `DT_*` of a kind.
fn wire_kind(kind: Option<FileKind>) -> u32 {
    kind.map_or(0, |kind| kind.mode_bits() >> 12)
}

impl Dispatcher {
    pub(super) fn open_dir(&self, request: &Request<'_>) -> Outcome {
        let dir = self.node(request.header.nodeid)?;
        if dir.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        Ok(Answer::of(&OpenOut::default()))
    }

    pub(super) fn read_dir(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<ReadIn>()?;
        let dir = self.node(request.header.nodeid)?;
        let room = args.size.min(LISTING_BYTES_MAX) as usize;
        let mut out = Vec::with_capacity(room);
        let mut listing = self.read_ahead.listing(dir.ino(), args.offset);
        self.vfs.readdir(
            &self.cred(request)?,
            &dir,
            args.offset,
            &mut |entry: DirEntry<'_>| {
                if out.len() + padded(size_of::<Dirent>(), entry.name.len()) > room {
                    return ControlFlow::Break(());
                }
                push(
                    &mut out,
                    &self.dirent(entry.ino, entry.kind, entry.cookie, entry.name),
                    entry.name,
                );
                listing.add(entry.ino, entry.kind, entry.name);
                ControlFlow::Continue(())
            },
        )?;
        self.read_ahead.listed(listing);
        Ok(Answer::Bytes(out))
    }

    pub(super) fn read_dir_plus(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<ReadIn>()?;
        let dir = self.node(request.header.nodeid)?;
        let room = args.size.min(LISTING_BYTES_MAX) as usize;

        // First the names, then the inodes: the directory is locked while it is listed, and
        // loading an inode may wait for the device.
        let mut names = Vec::with_capacity(room / 8);
        let mut listed = Vec::with_capacity(room / 192);
        let mut used = 0;
        let mut listing = self.read_ahead.listing(dir.ino(), args.offset);
        self.vfs.readdir(
            &self.cred(request)?,
            &dir,
            args.offset,
            &mut |entry: DirEntry<'_>| {
                let size = padded(size_of::<DirentPlus>(), entry.name.len());
                if used + size > room {
                    return ControlFlow::Break(());
                }
                used += size;
                let start = names.len();
                names.extend_from_slice(entry.name);
                listing.add(entry.ino, entry.kind, entry.name);
                listed.push(Listed {
                    ino: entry.ino,
                    kind: entry.kind,
                    cookie: entry.cookie,
                    name: start..names.len(),
                });
                ControlFlow::Continue(())
            },
        )?;

        // `.` and `..` carry no inode: the kernel has those, and would not give them back.
        let is_dots = |entry: &Listed| matches!(&names[entry.name.clone()], b"." | b"..");
        let wanted: Vec<Ino> = listed
            .iter()
            .filter(|entry| !is_dots(entry))
            .map(|entry| entry.ino)
            .collect();
        let mut inodes = self.vfs.inodes(&wanted).into_iter();
        let mut out = Vec::with_capacity(used);
        for entry in listed {
            let inode = match is_dots(&entry) {
                true => None,
                // A damaged or just removed inode must not hide the rest of the directory; the lookup
                // that follows reports it.
                false => inodes
                    .next()
                    .and_then(Result::ok)
                    .filter(|inode| inode.attr().nlink > 0),
            };
            let name = &names[entry.name];
            let kind = inode.as_ref().map(|inode| inode.kind()).or(entry.kind);
            let plus = DirentPlus {
                entry: inode.map_or(EntryOut::default(), |inode| self.entry_out(&inode)),
                dirent: self.dirent(entry.ino, kind, entry.cookie, name),
            };
            push(&mut out, &plus, name);
        }
        self.read_ahead.listed(listing);
        Ok(Answer::Bytes(out))
    }

    fn dirent(&self, ino: Ino, kind: Option<FileKind>, cookie: u64, name: &[u8]) -> Dirent {
        Dirent {
            ino: ino.0,
            off: cookie,
            namelen: name.len() as u32,
            kind: wire_kind(kind),
        }
    }

    pub(super) fn fsync_dir(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<FsyncIn>()?;
        let dir = self.node(request.header.nodeid)?;
        // Directories have no handles of the kernel's; one is made for the occasion.
        let handle = self
            .vfs
            .open(&Cred::unchecked(), &dir, OpenFlags::read_only())?;
        handle
            .sync(super::file::scope(args.fsync_flags))
            .map_err(Failure::Sync)?;
        Ok(Answer::Empty)
    }
}

/// Size of a record with a name of this length.
fn padded(head: usize, name: usize) -> usize {
    (head + name).next_multiple_of(ALIGN)
}

fn push<T: IntoBytes + zerocopy::Immutable>(out: &mut Vec<u8>, head: &T, name: &[u8]) {
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(name);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_those_of_readdir() {
        assert_eq!(wire_kind(Some(FileKind::Regular)), u32::from(libc::DT_REG));
        assert_eq!(
            wire_kind(Some(FileKind::Directory)),
            u32::from(libc::DT_DIR)
        );
        assert_eq!(wire_kind(Some(FileKind::Socket)), u32::from(libc::DT_SOCK));
        assert_eq!(wire_kind(None), u32::from(libc::DT_UNKNOWN));
    }
}
