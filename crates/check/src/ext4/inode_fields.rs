//! Fields of an inode in use: contradictions between them, independent of what the inode maps.

use blockwright_ondisk::ext4::extent;
use blockwright_ondisk::ext4::inode::{BLOCK_AREA, FAST_SYMLINK_MAX, InodeFlags};
use blockwright_ondisk::ext4::xattr::{
    self, INDEX_SYSTEM, INLINE_DATA_NAME, XattrList, XattrValue,
};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileKind, Geometry, Incompat, Ino, Inode, RoCompat,
};

use super::CheckError;
use super::context::{Checker, RawEdit};
use super::issue::IssueKind;
use super::state::Mapped;
use super::state::Values;

/// A fault of a symbolic link that is repaired without a loss.
const BLOCKS_BEHIND_TARGET: &str = "more than one block for its target";

/// An inode while its fields are checked, with the repairs made so far.
pub(super) struct Fields {
    pub ino: Ino,
    pub raw: Vec<u8>,
    pub inode: Inode,
    pub kind: FileKind,
    /// `raw` was changed.
    pub edited: bool,
    /// The inode cannot be kept.
    pub clear: bool,
    /// The deletion time is a link of the orphan list.
    pub dtime_is_link: bool,
    /// The inode has an attribute block that is in use.
    pub attribute_block: bool,
    /// What attribute values in inodes of their own add to the file.
    pub values: Values,
}

impl Fields {
    pub fn new(ino: Ino, raw: &[u8], inode: &Inode, kind: FileKind) -> Self {
        Self {
            ino,
            raw: raw.to_vec(),
            inode: inode.clone(),
            kind,
            edited: false,
            clear: false,
            dtime_is_link: false,
            attribute_block: false,
            values: Values::default(),
        }
    }

    pub fn edit(&mut self) -> RawEdit<'_> {
        self.edited = true;
        RawEdit { raw: &mut self.raw }
    }

    pub(super) fn set_flags(&mut self, clear: InodeFlags, set: InodeFlags) {
        self.inode.flags = (self.inode.flags - clear) | set;
        self.edit().flags(clear.bits(), set.bits());
    }

    fn half(&self, at: usize) -> u16 {
        self.raw
            .get(at..at + 2)
            .map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
    }

    pub(super) fn word(&self, at: usize) -> u32 {
        u32::from(self.half(at)) | u32::from(self.half(at + 2)) << 16
    }
}

/// Largest size of a regular file in bytes.
pub(super) fn max_file_size(geo: &Geometry, extents: bool) -> u64 {
    let block = u64::from(geo.block_size);
    if extents {
        return geo.max_extent_file_size();
    }
    let per = block / 4;
    let blocks = 12 + per + per * per + per * per * per;
    let by_map = blocks * block;
    if geo.features.has_ro_compat(RoCompat::HUGE_FILE) {
        by_map
    } else {
        // The count of sectors has 32 bits then.
        by_map.min((1 << 32) * 512)
    }
}

impl Checker {
    /// Checks flags, times and the fields that must be zero.
    pub fn check_inode_fields(&mut self, fields: &mut Fields) -> Result<(), CheckError> {
        self.check_impossible_size(fields);
        self.check_inode_times(fields);
        self.check_extra_size(fields);
        self.check_zero_fields(fields);
        self.check_inode_flags(fields);
        match fields.kind {
            FileKind::Symlink => self.check_symlink(fields)?,
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                self.check_special_file(fields);
            }
            _ => {}
        }
        if fields.inode.flags.contains(InodeFlags::INLINE_DATA) && !fields.clear {
            self.check_inline_data(fields);
        }
        Ok(())
    }

    /// A size past 2^63 was not even decoded.
    fn check_impossible_size(&mut self, fields: &mut Fields) {
        let wide = match fields.kind {
            FileKind::Regular => true,
            FileKind::Directory => self.geo.features.has_incompat(Incompat::LARGE_DIR),
            _ => false,
        };
        let high = fields.word(0x6C);
        if wide
            && high & 0x8000_0000 != 0
            && self.problem(IssueKind::InodeSize {
                ino: fields.ino,
                found: u64::from(fields.word(0x04)) | u64::from(high) << 32,
                expected: fields.inode.size,
            })
        {
            fields.edit().put32(0x6C, 0);
        }
    }

    fn check_inode_times(&mut self, fields: &mut Fields) {
        let ino = fields.ino;
        let dtime = fields.inode.dtime;
        if dtime != 0 && !fields.dtime_is_link {
            let low = self.low_dtime(&fields.inode);
            let kind = if low {
                IssueKind::InodeDtimeLow { ino, dtime }
            } else {
                IssueKind::InodeDtimeSet { ino }
            };
            // Nothing reads the time of the volume's own files.
            if (low || !self.is_hidden(ino)) && self.problem(kind) {
                fields.edit().dtime(0);
            }
        }
        // Two epoch bits and a negative 32-bit time: written by kernels that extended the sign of
        // times before 1970. In 2310 the times become possible.
        let extra_size = fields.half(0x80);
        if self.geo.inode_size > 128 {
            let far = [(0x0C, 0x84), (0x10, 0x88), (0x08, 0x8C), (0x90, 0x94)]
                .into_iter()
                .filter(|(_, extra)| 0x80 + usize::from(extra_size) >= extra + 4)
                .filter(|(secs, extra)| {
                    fields.word(*secs) & 0x8000_0000 != 0 && fields.word(*extra) & 3 == 3
                })
                .map(|(_, extra)| extra)
                .collect::<Vec<_>>();
            if !far.is_empty() && self.problem(IssueKind::InodeTimeFar { ino }) {
                for at in far {
                    let word = fields.word(at) & !3;
                    fields.edit().put32(at, word);
                }
            }
        }
    }

    fn check_extra_size(&mut self, fields: &mut Fields) {
        if self.geo.inode_size <= 128 {
            return;
        }
        let found = fields.half(0x80);
        let max = self.geo.inode_size - 128;
        if found != 0
            && (found < 4 || found > max || !found.is_multiple_of(4))
            && self.problem(IssueKind::InodeExtraSize {
                ino: fields.ino,
                found,
            })
        {
            // Attributes follow the extra fields: where they are shows what the size was.
            let want = self.geo.want_extra_isize.max(4);
            let sizes = [want, 32, 28].into_iter().chain((4..max).step_by(4));
            let size = sizes
                .filter(|n| *n < max)
                .find(|n| fields.word(128 + usize::from(*n)) == xattr::MAGIC);
            let size = size.unwrap_or(want);
            fields.edit().put16(0x80, size);
            fields.inode.extra_isize = size;
        }
    }

    /// Fields that volumes without a feature leave at zero, and that the kernel does not read then. e2fsck looks at
    /// them in inodes that have a name.
    fn check_zero_fields(&mut self, fields: &mut Fields) {
        let geo = self.geo.clone();
        let ino = fields.ino;
        if fields.inode.links == 0 || self.is_hidden(ino) || ino == Ino::BOOT {
            return;
        }
        let f = geo.features;
        let large_dir = f.has_incompat(Incompat::LARGE_DIR);
        let checks: [(&'static str, usize, usize, bool); 4] = [
            ("fragment address", 0x70, 4, true),
            (
                "high half of the block count",
                0x74,
                2,
                !f.has_ro_compat(RoCompat::HUGE_FILE),
            ),
            (
                "high half of the attribute block",
                0x76,
                2,
                !f.has_incompat(Incompat::BIT64),
            ),
            (
                "high half of the size",
                0x6C,
                4,
                match fields.kind {
                    FileKind::Regular => false,
                    FileKind::Directory => !large_dir,
                    _ => true,
                },
            ),
        ];
        for (field, at, len, applies) in checks {
            let zero = fields
                .raw
                .get(at..at + len)
                .is_none_or(|b| b.iter().all(|b| *b == 0));
            if applies && !zero && self.problem(IssueKind::InodeFieldNotZero { ino, field }) {
                fields.edited = true;
                fields.raw[at..at + len].fill(0);
            }
        }
    }

    fn check_inode_flags(&mut self, fields: &mut Fields) {
        let geo = self.geo.clone();
        let (ino, kind) = (fields.ino, fields.kind);
        let f = geo.features;
        let flags = fields.inode.flags;
        let mapped = matches!(
            kind,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        let contradiction = |this: &mut Self, what: &'static str| {
            this.problem(IssueKind::InodeFlags {
                ino,
                flags: flags.bits(),
                what,
            })
        };
        if flags.contains(InodeFlags::INLINE_DATA) {
            self.check_inline_flag(fields);
        }
        if f.has_ro_compat(RoCompat::BIGALLOC)
            && !fields.inode.flags.contains(InodeFlags::EXTENTS)
            && fields.inode.maps_blocks(&geo)
            && !self.looks_like_extent_root(fields)
            && contradiction(self, "a block map on a volume of clusters")
        {
            // Block maps cannot express clusters; there is nothing to be kept of one.
            fields.inode.block = [0; BLOCK_AREA];
            let _ = extent::write_leaf(&mut fields.inode.block, &[]);
            let area = fields.inode.block;
            fields.edit().block_area(&area);
            fields.set_flags(InodeFlags::empty(), InodeFlags::EXTENTS);
        }
        let flags = fields.inode.flags;
        if flags.contains(InodeFlags::EXTENTS)
            && !f.has_incompat(Incompat::EXTENT)
            && contradiction(self, "extents without the feature")
        {
            if self.looks_like_extent_root(fields) {
                let mut features = self.sb.features();
                features.incompat |= Incompat::EXTENT;
                self.set_first_features(features);
            } else {
                // The flag is the damage, and what is there is a block map.
                fields.set_flags(InodeFlags::EXTENTS, InodeFlags::empty());
            }
        }
        // The other way round: an extent root without the flag.
        if mapped
            && f.has_incompat(Incompat::EXTENT)
            && !flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
            && (kind != FileKind::Symlink || fields.inode.sectors > 0)
            && self.looks_like_extent_root(fields)
            && contradiction(self, "an extent tree, but no extents flag")
        {
            fields.set_flags(InodeFlags::empty(), InodeFlags::EXTENTS);
        }
        if flags.contains(InodeFlags::INDEX) {
            let what = if kind != FileKind::Directory {
                Some("an index, but no directory")
            } else if !f.has_compat(Compat::DIR_INDEX) {
                Some("an index without the feature")
            } else if flags.contains(InodeFlags::INLINE_DATA) {
                Some("an index and inline data")
            } else {
                None
            };
            if let Some(what) = what
                && contradiction(self, what)
            {
                if kind == FileKind::Directory && !flags.contains(InodeFlags::INLINE_DATA) {
                    self.scan.unindex.insert(ino.0);
                } else {
                    fields.set_flags(InodeFlags::INDEX, InodeFlags::empty());
                }
            }
        }
        // Nothing looks at these flags of the volume's own files, except that no journal is encrypted.
        let quota = self.is_quota_file(ino);
        if flags.contains(InodeFlags::IMAGIC)
            && !f.has_compat(Compat::IMAGIC_INODES)
            && !quota
            && ino != Ino::JOURNAL
            && contradiction(self, "imagic without the feature")
        {
            fields.set_flags(InodeFlags::IMAGIC, InodeFlags::empty());
        }
        if flags.contains(InodeFlags::CASEFOLD)
            && (kind != FileKind::Directory || !f.has_incompat(Incompat::CASEFOLD))
            && contradiction(self, "casefold where it cannot be")
        {
            fields.set_flags(InodeFlags::CASEFOLD, InodeFlags::empty());
        }
        if flags.contains(InodeFlags::ENCRYPT)
            && !f.has_incompat(Incompat::ENCRYPT)
            && !quota
            && contradiction(self, "encrypted without the feature")
        {
            fields.set_flags(InodeFlags::ENCRYPT, InodeFlags::empty());
        }
        if flags.contains(InodeFlags::EA_INODE) {
            let what = if !f.has_incompat(Incompat::EA_INODE) {
                Some("marked as an attribute value, without the feature")
            } else if self.is_hidden(ino) {
                Some("marked as an attribute value, and a file of the volume itself")
            } else {
                None
            };
            if let Some(what) = what
                && contradiction(self, what)
            {
                fields.set_flags(InodeFlags::EA_INODE, InodeFlags::empty());
            }
        }
        if flags.contains(InodeFlags::HUGE_FILE)
            && !f.has_ro_compat(RoCompat::HUGE_FILE)
            && contradiction(self, "huge file without the feature")
        {
            fields.set_flags(InodeFlags::HUGE_FILE, InodeFlags::empty());
        }
    }

    /// Inline data beside another mapping, or on a volume without it. The contents of the inode
    /// decide which of them is true.
    fn check_inline_flag(&mut self, fields: &mut Fields) {
        let ino = fields.ino;
        let flags = fields.inode.flags;
        let both = flags.contains(InodeFlags::EXTENTS);
        let has_feature = self.geo.features.has_incompat(Incompat::INLINE_DATA);
        let root = self.looks_like_extent_root(fields);
        let attribute = self.inline_room(fields).is_some();
        let (what, clear, set) = if both {
            let clear = if root {
                InodeFlags::INLINE_DATA
            } else if has_feature || attribute {
                InodeFlags::EXTENTS
            } else {
                // A block map, and flags without a meaning.
                InodeFlags::EXTENTS | InodeFlags::INLINE_DATA
            };
            ("extents and inline data", clear, InodeFlags::empty())
        } else if root && !attribute && fields.kind != FileKind::Symlink {
            let what = "inline data, but an extent tree";
            (what, InodeFlags::INLINE_DATA, InodeFlags::EXTENTS)
        } else if has_feature || attribute {
            let none = InodeFlags::empty();
            ("inline data without the feature", none, none)
        } else {
            let what = "inline data without the feature and without the attribute";
            (what, InodeFlags::INLINE_DATA, InodeFlags::empty())
        };
        if !clear.is_empty() {
            let flags = flags.bits();
            if self.problem(IssueKind::InodeFlags { ino, flags, what }) {
                fields.set_flags(clear, set);
            } else {
                // Looked at as what it is, repaired or not.
                fields.inode.flags = (fields.inode.flags - clear) | set;
            }
        }
        let flags = fields.inode.flags;
        if flags.contains(InodeFlags::INLINE_DATA)
            && !has_feature
            && self.problem(IssueKind::InodeFlags {
                ino,
                flags: flags.bits(),
                what: "inline data without the feature",
            })
        {
            let mut features = self.sb.features();
            features.incompat |= Incompat::INLINE_DATA;
            self.set_first_features(features);
        }
    }

    fn looks_like_extent_root(&self, fields: &Fields) -> bool {
        let area = &fields.inode.block;
        let half = |at: usize| u16::from_le_bytes([area[at], area[at + 1]]);
        let (magic, entries, max, depth) = (half(0), half(2), half(4), half(6));
        magic == extent::MAGIC && entries <= max && max == 4 && depth <= 5
    }

    fn check_special_file(&mut self, fields: &mut Fields) {
        let ino = fields.ino;
        let block = &fields.inode.block;
        let device = matches!(fields.kind, FileKind::CharDevice | FileKind::BlockDevice);
        // The first words hold a device number in one of two forms. Nothing reads the next two, and nothing reads any of
        // a fifo or a socket.
        let what = if device && block[16..].iter().any(|b| *b != 0) {
            Some("it has block numbers")
        } else if fields
            .inode
            .flags
            .intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
        {
            Some("it has flags of a mapping")
        } else {
            None
        };
        if let Some(what) = what
            && self.problem(IssueKind::SpecialFile { ino, what })
        {
            fields.clear = true;
            return;
        }
        if fields.inode.size != 0
            && self.problem(IssueKind::InodeSize {
                ino,
                found: fields.inode.size,
                expected: 0,
            })
        {
            fields.inode.size = 0;
            fields.edit().size(0, false);
        }
        self.check_immutable(fields);
    }

    fn check_immutable(&mut self, fields: &mut Fields) {
        let both = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if fields.inode.flags.intersects(both)
            && self.problem(IssueKind::InodeFlags {
                ino: fields.ino,
                flags: fields.inode.flags.bits(),
                what: "immutable or append-only on a special file",
            })
        {
            fields.set_flags(both, InodeFlags::empty());
        }
    }

    fn check_symlink(&mut self, fields: &mut Fields) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let target = &fields.inode.block[..];
        let fast = target.iter().position(|b| *b == 0) == usize::try_from(fields.inode.size).ok();
        if fields.inode.flags.contains(InodeFlags::EXTENTS)
            && fields.inode.sectors == 0
            && fields.inode.size > 0
            && fast
            && !self.looks_like_extent_root(fields)
        {
            let flags = fields.inode.flags.bits();
            let what = "extents, but the target is in the inode";
            let ino = fields.ino;
            if self.problem(IssueKind::InodeFlags { ino, flags, what }) {
                fields.set_flags(InodeFlags::EXTENTS, InodeFlags::empty());
            } else {
                fields.inode.flags -= InodeFlags::EXTENTS;
            }
        }
        let mapped = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT;
        if fast
            && fields.inode.size > 0
            && !fields.inode.flags.intersects(mapped)
            && !fields.inode.is_fast_symlink(&geo)
        {
            // The target is in the inode; the count of sectors says otherwise.
            let attribute = u64::from(fields.inode.file_acl.0 != 0) << geo.cluster_bits;
            let counted = attribute << (geo.block_bits - 9);
            let (ino, found) = (fields.ino, fields.inode.sectors);
            if self.problem(IssueKind::InodeBlocks {
                ino,
                found,
                counted,
            }) {
                set_sectors(fields, &geo, counted);
            }
            fields.inode.sectors = counted;
        }
        let inode = &fields.inode;
        let size = inode.size;
        let encrypted = inode.flags.contains(InodeFlags::ENCRYPT);
        let what = if inode.flags.contains(InodeFlags::INLINE_DATA) {
            self.inline_symlink_problem(fields)
        } else if inode.is_fast_symlink(&geo) {
            let target = &inode.block[..];
            let len = target.iter().position(|b| *b == 0);
            if size == 0 || size > FAST_SYMLINK_MAX as u64 {
                Some("target length")
            } else if !encrypted && len != Some(size as usize) {
                Some("target and size disagree")
            } else {
                None
            }
        } else {
            self.slow_symlink_problem(fields)?
        };
        if let Some(what) = what
            && self.problem(IssueKind::Symlink {
                ino: fields.ino,
                what,
            })
        {
            if what == BLOCKS_BEHIND_TARGET {
                self.scan.truncate.insert(fields.ino.0);
                self.scan.remap.insert(fields.ino.0);
            } else {
                fields.clear = true;
                return Ok(());
            }
        }
        self.check_immutable(fields);
        Ok(())
    }

    /// A missing attribute is reported elsewhere.
    fn inline_symlink_problem(&self, fields: &Fields) -> Option<&'static str> {
        let size = fields.inode.size;
        if size == 0 {
            return Some("no target");
        }
        let room = self.inline_room(fields)?;
        (room != size).then_some("target and size disagree")
    }

    fn slow_symlink_problem(&self, fields: &Fields) -> Result<Option<&'static str>, CheckError> {
        let geo = &self.geo;
        let size = fields.inode.size;
        if size == 0 || size >= u64::from(geo.block_size) {
            return Ok(Some("target length"));
        }
        let map = self.mapping_of(fields.ino, &fields.inode)?;
        let Some(piece) = map.pieces.first() else {
            return Ok(Some("no block for its target"));
        };
        if piece.logical != 0 || piece.unwritten {
            return Ok(Some("its target is not in its first block"));
        }
        if !fields.inode.flags.contains(InodeFlags::ENCRYPT) {
            let block = self.store.read(piece.physical, "symbolic link")?;
            let len = block.iter().position(|b| *b == 0);
            if len != Some(size as usize) {
                return Ok(Some("target and size disagree"));
            }
        }
        let more = map.pieces.len() > 1 || piece.len != 1;
        Ok(more.then_some(BLOCKS_BEHIND_TARGET))
    }

    /// What the attribute that continues inline data holds; `None` when it is missing.
    pub(super) fn inline_rest(&self, fields: &Fields) -> Option<Vec<u8>> {
        let at = fields.inode.attributes_offset(&self.geo)?;
        let list = XattrList::parse_ibody(fields.raw.get(at..)?, &self.geo).ok()??;
        match list.find(INDEX_SYSTEM, INLINE_DATA_NAME)?.value {
            XattrValue::Local(value) => Some(value.to_vec()),
            XattrValue::Inode { .. } => None,
        }
    }

    /// Bytes inline data has room for in this inode; `None` when the attribute is missing.
    fn inline_room(&self, fields: &Fields) -> Option<u64> {
        Some((BLOCK_AREA + self.inline_rest(fields)?.len()) as u64)
    }

    fn check_inline_data(&mut self, fields: &mut Fields) {
        let ino = fields.ino;
        let size = fields.inode.size;
        let area = fields.inode.attributes_offset(&self.geo);
        let damaged = area
            .and_then(|at| fields.raw.get(at..))
            .is_some_and(|area| XattrList::parse_ibody(area, &self.geo).is_err());
        if damaged {
            // The attributes are repaired first: what is left of them decides.
            return;
        }
        let what = match self.inline_room(fields) {
            None => Some("the attribute that continues it is missing"),
            Some(room) if fields.kind == FileKind::Directory => {
                (size != room).then_some("size and room disagree")
            }
            // A file may be longer than what it has room for: the rest is a hole.
            Some(_) => None,
        };
        let Some(what) = what else {
            return;
        };
        if !self.problem(IssueKind::InlineData { ino, what }) {
            return;
        }
        if self.inline_room(fields).is_none() && !self.find_inline_attribute(fields) {
            self.make_room_for_attributes(fields);
        }
        let room = match self.inline_room(fields) {
            Some(room) => room,
            // Only the bytes in `i_block` can be kept, with an empty attribute behind them.
            None if self.give_inline_attribute(fields) => BLOCK_AREA as u64,
            None if fields.kind == FileKind::Regular => {
                self.truncate_inline(fields);
                return;
            }
            None => {
                fields.clear = true;
                return;
            }
        };
        let wide = fields.kind == FileKind::Regular;
        if fields.kind == FileKind::Directory || size <= room {
            let size = if wide { size } else { room };
            fields.inode.size = size;
            fields.edit().size(size, wide);
        }
    }

    /// Compares size and sector count with what is mapped.
    pub fn check_inode_size(
        &mut self,
        fields: &mut Fields,
        kind: FileKind,
        mapped: Mapped,
    ) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let ino = fields.ino;
        let inode = &fields.inode;
        let size = inode.size;
        let inline = inode.flags.contains(InodeFlags::INLINE_DATA);
        let block = u64::from(geo.block_size);
        // A mapping about to be laid out anew is measured afterwards.
        let pending = self.scan.remap.contains(&ino.0);
        if !pending {
            match kind {
                FileKind::Directory if !inline => {
                    let expected = mapped.end * block;
                    if (size != expected || expected == 0)
                        && self.problem(IssueKind::InodeSize {
                            ino,
                            found: size,
                            expected,
                        })
                    {
                        if expected == 0 {
                            fields.clear = true;
                            self.scan.dirs.pop();
                            return Ok(());
                        }
                        fields.inode.size = expected;
                        fields
                            .edit()
                            .size(expected, geo.features.has_incompat(Incompat::LARGE_DIR));
                        if let Some(dir) = self.scan.dirs.last_mut() {
                            dir.size = expected;
                        }
                    }
                }
                FileKind::Regular if !inline => {
                    let ratio = u64::from(geo.cluster_ratio);
                    let last = mapped.written_end.saturating_sub(1) / ratio * ratio;
                    let verity = inode.flags.contains(InodeFlags::VERITY);
                    let extents = inode.flags.contains(InodeFlags::EXTENTS);
                    let short = mapped.written_end > 0 && size < last * block && !verity;
                    if (short || size > max_file_size(&geo, extents))
                        && self.problem(IssueKind::InodeSize {
                            ino,
                            found: size,
                            expected: mapped.end * block,
                        })
                    {
                        let expected = mapped.end * block;
                        fields.inode.size = expected;
                        fields.edit().size(expected, true);
                    }
                }
                FileKind::Regular => {
                    // Longer than what is in the inode it may be, the rest is a hole; but not
                    // longer than a file without extents.
                    let most = max_file_size(&geo, false);
                    let expected = self.inline_room(fields).unwrap_or(BLOCK_AREA as u64);
                    if size > most
                        && self.problem(IssueKind::InodeSize {
                            ino,
                            found: size,
                            expected,
                        })
                    {
                        fields.inode.size = expected;
                        fields.edit().size(expected, true);
                    }
                }
                _ => {}
            }
        }
        if kind == FileKind::Regular && ino >= geo.first_ino {
            self.check_large_file(fields.inode.size);
        }
        let counted = mapped.sectors;
        if !pending
            && fields.inode.sectors != counted
            && self.problem(IssueKind::InodeBlocks {
                ino,
                found: fields.inode.sectors,
                counted,
            })
        {
            set_sectors(fields, &geo, counted);
        }
        Ok(())
    }

    /// A file of 2 GiB or more is a feature of the volume.
    pub fn check_large_file(&mut self, size: u64) {
        let features = self.sb.features();
        if size <= i32::MAX as u64
            || features.has_ro_compat(RoCompat::LARGE_FILE)
            || !self.problem(IssueKind::FeatureContradiction {
                what: "there are files of 2 GiB and more, but large_file is not set",
            })
        {
            return;
        }
        let mut features = features;
        features.ro_compat |= RoCompat::LARGE_FILE;
        self.set_first_features(features);
    }

    /// Whether a block number of an inode lies in the volume.
    pub fn inside(&self, block: BlockNo) -> bool {
        self.geo.contains_run(block, 1)
    }
}

/// Stores a sector count.
pub(super) fn set_sectors(fields: &mut Fields, geo: &Geometry, sectors: u64) {
    fields.inode.sectors = sectors;
    let huge = geo.features.has_ro_compat(RoCompat::HUGE_FILE);
    let (n, in_blocks) = if huge && sectors >= 1 << 48 {
        (sectors >> (geo.block_bits - 9), true)
    } else {
        (sectors, false)
    };
    let mut edit = fields.edit();
    edit.put32(0x1C, n as u32);
    if huge {
        edit.put16(0x74, (n >> 32) as u16);
        let flag = InodeFlags::HUGE_FILE.bits();
        edit.flags(flag, if in_blocks { flag } else { 0 });
    }
}
