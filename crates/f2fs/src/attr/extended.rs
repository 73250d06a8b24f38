//! Extended attributes: one list that begins in the inode and continues in a node of its own.
//!
//! ACLs are stored in a form of their own, as in ext4, and shown in that of `getxattr(2)`.
//!
//! # Locks
//! The inode's `body`, shared.

use super::Attributes;
use crate::node::inode::f2fs;
use crate::volume::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::f2fs::acl::Acl;
use blockwright_ondisk::f2fs::node::NodeOffset;
use blockwright_ondisk::f2fs::xattr::{self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, XattrList};
use blockwright_vfs as vfs;

const OP: &str = "read attributes";

impl Attributes {
    /// The whole list of an inode's attributes, both parts joined.
    pub(crate) fn xattr_list_bytes(&self, inode: &vfs::Inode) -> Result<Vec<u8>> {
        let own = f2fs(inode);
        let body = own.body.read();
        let node = self.nodes.inode_node(own.ino)?;
        let inline = node.get(body.layout.xattr_bytes()).unwrap_or(&[]);
        let more = match body.inode.xattr_nid.non_zero() {
            Some(nid) => Some(self.nodes.node(nid, own.ino, NodeOffset::XATTR)?),
            None => None,
        };
        xattr::assemble(inline, more.as_ref().map(|b| &b[..]))
            .map_err(|e| self.volume.refused(OP, own.ino, &e))
    }

    /// An attribute's value.
    ///
    /// # Errors
    /// `NoAttribute`, `Unsupported` for a name of no known prefix, damage, or a device error.
    pub(crate) fn get_xattr(&self, inode: &vfs::Inode, name: &[u8]) -> Result<Vec<u8>> {
        let own = f2fs(inode);
        let Some((index, rest)) = xattr::split_name(name) else {
            return Err(Error::new(ErrorKind::Unsupported, OP).ino(vfs_ino(own.ino)));
        };
        let list = self.xattr_list_bytes(inode)?;
        let list = XattrList::parse(&list).map_err(|e| self.volume.refused(OP, own.ino, &e))?;
        let Some(found) = list.find(index, rest) else {
            return Err(Error::new(ErrorKind::NoAttribute, OP).ino(vfs_ino(own.ino)));
        };
        if index == INDEX_ACL_ACCESS || index == INDEX_ACL_DEFAULT {
            let acl = Acl::from_disk(found.value)
                .map_err(|e| self.volume.corrupt(OP, Some(own.ino), None, e.to_string()))?;
            return Ok(acl.to_xattr());
        }
        Ok(found.value.to_vec())
    }

    /// All names that users see.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn list_xattr(&self, inode: &vfs::Inode) -> Result<Vec<Vec<u8>>> {
        let list = self.xattr_list_bytes(inode)?;
        let list =
            XattrList::parse(&list).map_err(|e| self.volume.refused(OP, f2fs(inode).ino, &e))?;
        Ok(list
            .iter()
            .filter_map(|x| xattr::full_name(x.index, x.name))
            .collect())
    }
}
