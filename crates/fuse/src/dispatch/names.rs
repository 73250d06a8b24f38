//! Requests about names: finding, making, removing, renaming.
//!
//! Every entry that is sent adds a lookup to its node, and FORGET takes lookups back; the inode stays in memory meanwhile. A name that is not there is an
//! entry without a node, because the kernel may cache that.

use super::Dispatcher;
use super::answer::{Answer, Failure, Outcome};
use super::deferred_release::Release;
use crate::protocol::reply::EntryOut;
use crate::protocol::request::{
    BatchForgetIn, ForgetIn, ForgetOne, LinkIn, MkDirIn, MkNodIn, Rename2In, RenameIn, Request,
};
use blockwright_vfs::{CreateRequest, ErrorKind, FileKind, InodeRef, RenameMode};
use rustix::io::Errno;

/// `renameat2` flags as the protocol carries them.
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

impl Dispatcher {
    pub(super) fn lookup(&self, request: &Request<'_>) -> Outcome {
        let name = request.args().name()?;
        let dir = self.node(request.header.nodeid)?;
        // How a file handle of any kind of inode is turned back into an inode.
        if name == b"." {
            return Ok(self.entry(&dir));
        }
        match self.vfs.lookup(&self.cred(request)?, &dir, name) {
            Ok(inode) => Ok(self.entry(&inode)),
            // An entry without a node may be cached, an error may not.
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(Answer::of(&EntryOut {
                entry_valid: self.options.negative_timeout.as_secs(),
                entry_valid_nsec: self.options.negative_timeout.subsec_nanos(),
                ..EntryOut::default()
            })),
            Err(e) => Err(e.into()),
        }
    }

    /// The kernel gives back `lookups` lookups of a node.
    pub(super) fn forget_node(&self, nodeid: u64, lookups: u64) {
        if let Some(inode) = self.nodes.forget(nodeid, lookups) {
            self.releases.add(Release::Node(inode));
        }
    }

    pub(super) fn forget(&self, request: &Request<'_>) -> Outcome {
        let args = request.args().take::<ForgetIn>()?;
        self.forget_node(request.header.nodeid, args.nlookup);
        Ok(Answer::Nothing)
    }

    pub(super) fn batch_forget(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let count = args.take::<BatchForgetIn>()?.count;
        for _ in 0..count {
            let one = args.take::<ForgetOne>()?;
            self.forget_node(one.nodeid, one.nlookup);
        }
        Ok(Answer::Nothing)
    }

    pub(super) fn read_link(&self, request: &Request<'_>) -> Outcome {
        let inode = self.node(request.header.nodeid)?;
        Ok(Answer::Bytes(self.vfs.read_link(&inode)?))
    }

    /// Makes an inode other than a regular file being opened.
    fn make(&self, request: &Request<'_>, name: &[u8], new: &CreateRequest) -> Outcome {
        let dir = self.node(request.header.nodeid)?;
        let (inode, _) = self.vfs.create(&self.cred(request)?, &dir, name, new)?;
        Ok(self.entry(&inode))
    }

    pub(super) fn symlink(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let name = args.name()?;
        let target = args.name()?;
        let mut new = CreateRequest::new(FileKind::Symlink, 0o777);
        new.symlink = target.to_vec();
        self.make(request, name, &new)
    }

    pub(super) fn mknod(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let node = args.take::<MkNodIn>()?;
        let name = args.name()?;
        let kind = match FileKind::from_mode(node.mode) {
            // mknod(2): no type means a regular file.
            None if node.mode & libc::S_IFMT == 0 => FileKind::Regular,
            None | Some(FileKind::Directory | FileKind::Symlink) => return Err(Errno::INVAL.into()),
            Some(kind) => kind,
        };
        let mut new = CreateRequest::new(kind, node.mode & 0o7777);
        new.umask = node.umask;
        new.rdev = u64::from(node.rdev);
        self.make(request, name, &new)
    }

    pub(super) fn mkdir(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let dir = args.take::<MkDirIn>()?;
        let name = args.name()?;
        let mut new = CreateRequest::new(FileKind::Directory, dir.mode & 0o7777);
        new.umask = dir.umask;
        self.make(request, name, &new)
    }

    /// A name of this inode was removed. Without any name it lives until the kernel forgets it.
    fn let_nameless_live(&self, inode: InodeRef) {
        self.nodes.keep_nameless(&inode);
        // An inode without references is released here, which may free its blocks.
        drop(inode);
    }

    pub(super) fn unlink(&self, request: &Request<'_>) -> Outcome {
        let name = request.args().name()?;
        let dir = self.node(request.header.nodeid)?;
        let removed = self.vfs.unlink_held(&self.cred(request)?, &dir, name)?;
        self.let_nameless_live(removed);
        Ok(Answer::Empty)
    }

    pub(super) fn rmdir(&self, request: &Request<'_>) -> Outcome {
        let name = request.args().name()?;
        let dir = self.node(request.header.nodeid)?;
        let removed = self.vfs.rmdir_held(&self.cred(request)?, &dir, name)?;
        self.let_nameless_live(removed);
        Ok(Answer::Empty)
    }

    pub(super) fn rename(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let newdir = args.take::<RenameIn>()?.newdir;
        self.rename_to(
            request,
            newdir,
            args.name()?,
            args.name()?,
            RenameMode::Replace,
        )
    }

    pub(super) fn rename2(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let head = args.take::<Rename2In>()?;
        let (old, new) = (args.name()?, args.name()?);
        let mode = match head.flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::NoReplace,
            RENAME_EXCHANGE => RenameMode::Exchange,
            RENAME_WHITEOUT => RenameMode::Whiteout,
            // The kernel holds both directories' locks, so the name cannot appear in between.
            flags if flags == RENAME_WHITEOUT | RENAME_NOREPLACE => {
                self.refuse_existing(request, head.newdir, new)?;
                RenameMode::Whiteout
            }
            _ => return Err(Errno::INVAL.into()),
        };
        self.rename_to(request, head.newdir, old, new, mode)
    }

    fn refuse_existing(
        &self,
        request: &Request<'_>,
        dir: u64,
        name: &[u8],
    ) -> std::result::Result<(), Failure> {
        match self
            .vfs
            .lookup(&self.cred(request)?, &self.node(dir)?, name)
        {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn rename_to(
        &self,
        request: &Request<'_>,
        newdir: u64,
        old: &[u8],
        new: &[u8],
        mode: RenameMode,
    ) -> Outcome {
        let old_dir = self.node(request.header.nodeid)?;
        let new_dir = self.node(newdir)?;
        let cred = self.cred(request)?;
        let replaced = self
            .vfs
            .rename_held(&cred, &old_dir, old, &new_dir, new, mode)?;
        if let Some(replaced) = replaced {
            self.let_nameless_live(replaced);
        }
        Ok(Answer::Empty)
    }

    pub(super) fn link(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let old = args.take::<LinkIn>()?.oldnodeid;
        let name = args.name()?;
        let inode = self.node(old)?;
        let dir = self.node(request.header.nodeid)?;
        self.vfs.link(&self.cred(request)?, &inode, &dir, name)?;
        Ok(self.entry(&inode))
    }
}
