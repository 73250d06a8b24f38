//! Writing a whole directory anew from its names: with a new index, or after names came and went in
//! a replay.
//!
//! The new blocks come from free space, so the old directory stays whole until its inode points to them. Only on a full
//! volume are the old blocks overwritten in place.

use blockwright_ondisk::ext4::dir::{DirBlock, DirFormat};
use blockwright_ondisk::ext4::dir_layout::{self, DirRules, Entry};
use blockwright_ondisk::ext4::hash::HashVersion;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{BlockNo, FileKind, FormatError, Ino, Inode};

use super::CheckError;
use super::context::{Checker, decode_lenient};
use super::mapping::{Collect, MapSink, Piece, Walk};

/// A name of a directory, and what it names.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub name: Vec<u8>,
    pub ino: Ino,
    pub kind: FileKind,
    /// The hash stored behind it, in directories that store it.
    pub stored: Option<(u32, u32)>,
}

/// Part of a leaf that a new index fills, in percent: a full leaf is split by the next name.
const FILL_PERCENT: usize = 80;

impl Checker {
    /// The contents of a directory of blocks: the inode of "..", and all names that can be read.
    pub fn read_names(&self, dir: Ino, inode: &Inode) -> Result<(Ino, Vec<Name>), CheckError> {
        let format = DirFormat::of(&self.geo, inode.flags);
        let mut names = Vec::new();
        let mut dotdot = Ino(0);
        for (n, place) in self.blocks_of(dir, inode)?.into_iter().enumerate() {
            let bytes = self.store.read(place, "directory")?;
            if n == 0 && bytes.len() >= 24 && bytes[20..22] == *b".." {
                dotdot = Ino(u32::from_le_bytes([
                    bytes[12], bytes[13], bytes[14], bytes[15],
                ]));
            }
            let entries = DirBlock::entries_of(&bytes, format);
            for entry in entries.iter().map_while(Result::ok) {
                if !entry.is_used() || entry.is_dot_or_dotdot() {
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
        Ok((dotdot, names))
    }

    /// Lays a directory of these names out anew. Whether there was room for it; otherwise nothing
    /// was changed.
    pub fn rewrite_directory(
        &mut self,
        dir: Ino,
        dotdot: Ino,
        names: &[Name],
    ) -> Result<bool, CheckError> {
        match self.read_raw_inode(dir)? {
            Some(raw) => self.rewrite_directory_as(dir, raw, dotdot, names),
            None => Ok(false),
        }
    }

    /// The same, of a directory whose inode becomes one with these bytes.
    pub fn rewrite_directory_as(
        &mut self,
        dir: Ino,
        raw: Vec<u8>,
        dotdot: Ino,
        names: &[Name],
    ) -> Result<bool, CheckError> {
        let geo = self.geo.clone();
        let Some(inode) = decode_lenient(&raw, &geo, dir) else {
            return Ok(false);
        };
        let encrypted = inode.flags.contains(InodeFlags::ENCRYPT);
        let casefold = inode.flags.contains(InodeFlags::CASEFOLD);
        let hasher = self.new_hasher(encrypted, casefold);
        let version = hasher.map_or(HashVersion::from_raw(1).ok(), |h| Some(h.version));
        let Some(version) = version else {
            return Ok(false);
        };
        let mut rules = DirRules::new(&geo, version, self.sb.hash_seed());
        rules.format = DirFormat::of(&geo, inode.flags);
        rules.leaf_fill = rules.format.leaf_space() * FILL_PERCENT / 100;
        let mut entries = Vec::with_capacity(names.len());
        for name in names {
            let hash = hasher.and_then(|h| h.hash(&name.name, name.stored));
            if hash.is_none() {
                rules.levels = None;
            }
            entries.push(Entry {
                name: &name.name,
                ino: name.ino,
                kind: name.kind,
                hash,
            });
        }
        let Some(blocks) = self.directory_blocks(dir, dotdot, &inode, &entries, &mut rules) else {
            return Ok(false);
        };
        let indexed = blocks.1;
        let blocks = blocks.0;
        let Some((pieces, fresh)) = self.directory_room(dir, &inode, blocks.len() as u64)? else {
            return Ok(false);
        };
        let places = pieces
            .iter()
            .flat_map(|p| (0..u64::from(p.len)).map(|n| BlockNo(p.physical.0 + n)));
        for (place, bytes) in places.zip(blocks) {
            if fresh {
                self.write_fresh(place, bytes);
            } else {
                self.write(place, bytes);
            }
        }
        self.write_raw_inode(dir, raw)?;
        let flag = InodeFlags::INDEX.bits();
        self.edit_inode(dir, |edit| {
            edit.flags(flag, if indexed { flag } else { 0 });
        })?;
        let attribute = u64::from(inode.file_acl.0 != 0) << geo.cluster_bits;
        let extra = attribute << (geo.block_bits - 9);
        let Some(inode) = self.read_inode(dir)? else {
            return Ok(false);
        };
        self.store_mapping(dir, &inode, &pieces, extra)
    }

    /// The blocks of a directory, and whether they are indexed: without an index where there can be
    /// none.
    fn directory_blocks(
        &self,
        dir: Ino,
        dotdot: Ino,
        inode: &Inode,
        entries: &[Entry<'_>],
        rules: &mut DirRules,
    ) -> Option<(Vec<Vec<u8>>, bool)> {
        let seed = self.geo.inode_seed(dir, inode.generation);
        let mut shape = dir_layout::shape(entries, rules);
        if matches!(shape, Err(FormatError::DxFull { .. })) {
            rules.leaf_fill = rules.format.leaf_space();
            shape = dir_layout::shape(entries, rules);
        }
        if shape.is_err() {
            rules.levels = None;
            shape = dir_layout::shape(entries, rules);
        }
        let shape = shape.ok()?;
        let blocks = dir_layout::build(dir, dotdot, entries, rules, seed, shape.blocks).ok()?;
        Some((blocks, shape.indexed))
    }

    /// Where this many blocks of a directory may be written: `true` for free blocks, `false` for those that it has.
    fn directory_room(
        &mut self,
        dir: Ino,
        inode: &Inode,
        count: u64,
    ) -> Result<Option<(Vec<Piece>, bool)>, CheckError> {
        let ratio = u64::from(self.geo.cluster_ratio);
        let mut old = Collect::default();
        if inode.maps_blocks(&self.geo) {
            let walk = Walk {
                store: &self.store,
                geo: &self.geo,
                ino: dir,
                inode,
            };
            walk.run(&mut old)?;
        }
        let own_group = self
            .geo
            .split_ino(dir)
            .map_or(BlockNo(0), |(group, _)| self.geo.group_first_block(group));
        let mut near = old.pieces.first().map_or(own_group, |p| p.physical);
        let mut new = Collect::default();
        let mut taken = Vec::new();
        let mut logical = 0;
        while logical < count {
            let Some(block) = self.scan.used.find_free(near) else {
                for block in taken {
                    self.scan.used.remove_run(block, ratio);
                }
                return Ok(Self::in_place(old.pieces, count));
            };
            self.scan.used.insert_run(block, ratio, None);
            taken.push(block);
            let len = ratio.min(count - logical) as u32;
            new.piece(Piece {
                logical,
                physical: block,
                len,
                unwritten: false,
            });
            logical += u64::from(len);
            near = block;
        }
        Ok(Some((new.pieces, true)))
    }

    /// The blocks a directory has, where they are enough.
    fn in_place(pieces: Vec<Piece>, count: u64) -> Option<(Vec<Piece>, bool)> {
        let mut out = Vec::new();
        let mut next = 0;
        for mut piece in pieces {
            if next >= count {
                break;
            }
            piece.logical = next;
            piece.len = u64::from(piece.len).min(count - next) as u32;
            piece.unwritten = false;
            next = piece.end();
            out.push(piece);
        }
        (next == count).then_some((out, false))
    }

    /// Gives directories that lost a damaged index a new one. Called between rounds, when
    /// everything else is sound. Whether any was changed.
    pub fn rebuild_indexes(&mut self) -> Result<bool, CheckError> {
        let mut changed = false;
        for ino in std::mem::take(&mut self.reindex) {
            let ino = Ino(ino);
            let Some(dir) = self
                .scan
                .dir_position(ino)
                .map(|n| self.scan.dirs[n].clone())
            else {
                continue;
            };
            if dir.index || dir.inline {
                continue;
            }
            let Some(inode) = self.read_inode(ino)? else {
                continue;
            };
            let (dotdot, names) = self.read_names(ino, &inode)?;
            changed |= self.rewrite_directory(ino, dotdot, &names)?;
        }
        Ok(changed)
    }
}
