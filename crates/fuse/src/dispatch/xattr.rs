//! Requests about extended attributes.
//!
//! A caller without room asks for the size first (`sized`), as with getxattr(2). Setting an ACL may take the set-group-id bit with it, when the kernel says so.

use super::Dispatcher;
use super::answer::{Answer, Outcome};
use crate::protocol::flags::{InitFlags, SetXattrFlags};
use crate::protocol::reply::GetXattrOut;
use crate::protocol::request::{GetXattrIn, Request, SetXattrIn, SetXattrInCompat};
use blockwright_vfs::{SetAttr, XattrMode};
use rustix::io::Errno;

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const SET_GID: u32 = 0o2000;

impl Dispatcher {
    pub(super) fn set_xattr(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let head = if self.agreed(InitFlags::SETXATTR_EXT) {
            args.take::<SetXattrIn>()?
        } else {
            let short = args.take::<SetXattrInCompat>()?;
            SetXattrIn {
                size: short.size,
                flags: short.flags,
                ..SetXattrIn::default()
            }
        };
        let name = args.name()?;
        let value = args.bytes(head.size)?;
        let mode = match head.flags {
            0 => XattrMode::Any,
            XATTR_CREATE => XattrMode::Create,
            XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL.into()),
        };
        let inode = self.node(request.header.nodeid)?;
        let cred = self.cred(request)?;
        self.vfs.set_xattr(&cred, &inode, name, value, mode)?;
        let flags = SetXattrFlags::from_bits_retain(head.setxattr_flags);
        if flags.contains(SetXattrFlags::ACL_KILL_SGID) {
            // A caller outside the file's group that sets an ACL must not keep a set-gid program.
            let perm = self.vfs.stat(&inode).perm;
            if perm & SET_GID != 0 {
                let change = SetAttr {
                    mode: Some(perm & !SET_GID),
                    ..SetAttr::default()
                };
                self.vfs.set_attr(&cred, &inode, &change)?;
            }
        }
        Ok(Answer::Empty)
    }

    pub(super) fn get_xattr(&self, request: &Request<'_>) -> Outcome {
        let mut args = request.args();
        let room = args.take::<GetXattrIn>()?.size;
        let name = args.name()?;
        let inode = self.node(request.header.nodeid)?;
        let value = self.vfs.get_xattr(&self.cred(request)?, &inode, name)?;
        sized(value, room)
    }

    pub(super) fn list_xattr(&self, request: &Request<'_>) -> Outcome {
        let room = request.args().take::<GetXattrIn>()?.size;
        let inode = self.node(request.header.nodeid)?;
        let mut list = Vec::new();
        for name in self.vfs.list_xattr(&self.cred(request)?, &inode)? {
            list.extend_from_slice(&name);
            list.push(0);
        }
        sized(list, room)
    }

    pub(super) fn remove_xattr(&self, request: &Request<'_>) -> Outcome {
        let name = request.args().name()?;
        let inode = self.node(request.header.nodeid)?;
        self.vfs.remove_xattr(&self.cred(request)?, &inode, name)?;
        Ok(Answer::Empty)
    }
}

/// The bytes when there is room for them, their number when no room was offered.
fn sized(bytes: Vec<u8>, room: u32) -> Outcome {
    let size = u32::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
    if room == 0 {
        return Ok(Answer::of(&GetXattrOut { size, padding: 0 }));
    }
    if size > room {
        return Err(Errno::RANGE.into());
    }
    Ok(Answer::Bytes(bytes))
}
