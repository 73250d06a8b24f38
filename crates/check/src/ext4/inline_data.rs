//! Repairs of inline data whose attribute is damaged.

use blockwright_ondisk::ext4::Incompat;
use blockwright_ondisk::ext4::extent;
use blockwright_ondisk::ext4::inode::{BLOCK_AREA, InodeFlags};
use blockwright_ondisk::ext4::xattr::{
    self, INDEX_SYSTEM, INLINE_DATA_NAME, XattrList, XattrValue,
};

use super::context::Checker;
use super::inode_fields::Fields;

impl Checker {
    /// Finds the attribute that continues inline data where damage hid it: behind a wrong extra
    /// size, or under a wrong name. Whether it is in place now.
    pub fn find_inline_attribute(&self, fields: &mut Fields) -> bool {
        let max = self.geo.inode_size.saturating_sub(128);
        let old = fields.inode.extra_isize;
        for size in (4..max).step_by(4) {
            if size == old || fields.word(128 + usize::from(size)) != xattr::MAGIC {
                continue;
            }
            fields.inode.extra_isize = size;
            if self.inline_rest(fields).is_some() {
                fields.edit().put16(0x80, size);
                return true;
            }
        }
        fields.inode.extra_isize = old;
        let Some(at) = fields.inode.attributes_offset(&self.geo) else {
            return false;
        };
        let area = fields.raw.get(at..).unwrap_or(&[]);
        let Ok(Some(list)) = XattrList::parse_ibody(area, &self.geo) else {
            return false;
        };
        // Inline data is the only attribute that kernels store without a hash.
        let renamed = list.iter().find(|e| {
            e.hash == 0
                && matches!(e.value, XattrValue::Local(_))
                && e.name.len() == INLINE_DATA_NAME.len()
                && (e.name_index == INDEX_SYSTEM || e.name == INLINE_DATA_NAME)
        });
        let Some(offset) = renamed.map(|e| at + e.offset) else {
            return false;
        };
        fields.edited = true;
        fields.raw[offset + 1] = INDEX_SYSTEM;
        fields.raw[offset + 16..][..INLINE_DATA_NAME.len()].copy_from_slice(INLINE_DATA_NAME);
        true
    }

    /// Gives a large inode without extra fields the usual ones: attributes lie behind them.
    pub fn make_room_for_attributes(&self, fields: &mut Fields) {
        let want = self.geo.want_extra_isize.max(32);
        if fields.inode.attributes_offset(&self.geo).is_none()
            && self.geo.inode_size >= 128 + want + 16
        {
            let end = usize::from(self.geo.inode_size);
            fields.raw[128..end].fill(0);
            fields.edit().put16(0x80, want);
            fields.inode.extra_isize = want;
        }
    }

    /// Makes a file empty whose inline data cannot be read: its name, owner and rights are kept.
    pub fn truncate_inline(&self, fields: &mut Fields) {
        let mut area = [0; BLOCK_AREA];
        let mut flags = InodeFlags::empty();
        if self.geo.features.has_incompat(Incompat::EXTENT)
            && extent::write_leaf(&mut area, &[]).is_some()
        {
            flags = InodeFlags::EXTENTS;
        }
        fields.inode.block = area;
        fields.inode.size = 0;
        fields.edit().block_area(&area);
        fields.edit().size(0, true);
        fields.set_flags(InodeFlags::INLINE_DATA, flags);
    }
}
