//! Extended attributes.

use blockwright_ondisk::f2fs::xattr::{self, NODE_BYTES, XattrList};
use blockwright_ondisk::f2fs::{FormatError, InlineFlags};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::nodes::Walk;

impl Checker {
    /// Looks at an inode's attributes, and follows their node.
    pub(super) fn check_xattrs(&mut self, w: &mut Walk, block: &[u8]) -> Result<(), CheckError> {
        let node = self.open_xattr_node(w)?;
        let range = if w.inode.inline.contains(InlineFlags::XATTR) {
            w.layout.xattr_bytes()
        } else {
            0..0
        };
        let inline = block.get(range.clone()).unwrap_or(&[]);
        let ino = w.ino;
        let Ok(mut list) = xattr::assemble(inline, node.as_deref()) else {
            return Ok(());
        };
        let Err(error) = XattrList::parse(&list) else {
            return Ok(());
        };
        let FormatError::XattrEntry { offset } = error else {
            return Ok(());
        };
        let error = error.into();
        if self.problem(IssueKind::Xattr { ino, error }) {
            // The list ends where its damage begins.
            if let Some(rest) = list.get_mut(offset..) {
                rest.fill(0);
            }
            let (first, second) = list.split_at(inline.len());
            self.edit_node(ino.nid(), |bytes| {
                if let Some(dest) = bytes.get_mut(range) {
                    dest.copy_from_slice(first);
                }
            })?;
            if node.is_some() {
                self.edit_node(w.inode.xattr_nid, |bytes| {
                    if let (Some(dest), Some(src)) =
                        (bytes.get_mut(..NODE_BYTES), second.get(..NODE_BYTES))
                    {
                        dest.copy_from_slice(src);
                    }
                })?;
            }
        }
        Ok(())
    }
}
