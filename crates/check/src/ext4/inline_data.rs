//! Repairs of inline data: its attribute is damaged, or a directory has no room for another name.

use blockwright_ondisk::ext4::dir::{DirBlock, DirFormat};
use blockwright_ondisk::ext4::extent;
use blockwright_ondisk::ext4::inode::{BLOCK_AREA, InodeFlags};
use blockwright_ondisk::ext4::xattr::{
    self, INDEX_SYSTEM, INLINE_DATA_NAME, XattrList, XattrValue,
};
use blockwright_ondisk::ext4::{FileKind, Incompat, Ino};

use super::CheckError;
use super::context::{Checker, RawEdit};
use super::dir_rebuild::Name;
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
        let (area, flags) = self.empty_map();
        fields.inode.block = area;
        fields.inode.size = 0;
        fields.edit().block_area(&area);
        fields.edit().size(0, true);
        fields.set_flags(InodeFlags::INLINE_DATA, flags);
    }

    /// The mapping of a file without blocks, and the flag that goes with it.
    fn empty_map(&self) -> ([u8; BLOCK_AREA], InodeFlags) {
        let mut area = [0; BLOCK_AREA];
        let mut flags = InodeFlags::empty();
        if self.geo.features.has_incompat(Incompat::EXTENT)
            && extent::write_leaf(&mut area, &[]).is_some()
        {
            flags = InodeFlags::EXTENTS;
        }
        (area, flags)
    }

    /// Moves the names of an inline directory to blocks, with one more. Whether there was room; otherwise nothing was changed.
    pub fn move_names_to_blocks(&mut self, dir: Ino, more: Name) -> Result<bool, CheckError> {
        let (Some(inode), Some(mut raw)) = (self.read_inode(dir)?, self.read_raw_inode(dir)?)
        else {
            return Ok(false);
        };
        let parent = inode.block.first_chunk().copied().unwrap_or_default();
        let parent = Ino(u32::from_le_bytes(parent));
        let format = DirFormat::of(&self.geo, inode.flags);
        let mut names = Vec::new();
        for part in self.inline_parts(&inode, &raw) {
            let entries = DirBlock::entries_of(&raw[part], format);
            for entry in entries.iter().map_while(Result::ok) {
                if !entry.is_used() {
                    continue;
                }
                let kind = match entry.kind {
                    Some(kind) => Some(kind),
                    None => self.read_inode(entry.ino)?.and_then(|i| i.kind()),
                };
                names.push(Name {
                    name: entry.name.to_vec(),
                    ino: entry.ino,
                    kind: kind.unwrap_or(FileKind::Regular),
                    stored: entry.stored_hash,
                });
            }
        }
        names.push(more);
        if !self.remove_inline_attribute(&inode, &mut raw) {
            return Ok(false);
        }
        let (area, flags) = self.empty_map();
        let mut edit = RawEdit { raw: &mut raw };
        edit.block_area(&area);
        edit.size(0, true);
        edit.flags(InodeFlags::INLINE_DATA.bits(), flags.bits());
        if !self.rewrite_directory_as(dir, raw, parent, &names)? {
            return Ok(false);
        }
        if let Some(n) = self.scan.dir_position(dir) {
            self.scan.dirs[n].inline = false;
        }
        Ok(true)
    }
}
