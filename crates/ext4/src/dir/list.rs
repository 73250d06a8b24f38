//! Listing a directory in an order that survives changes.
//!
//! With `dir_index`, single-block, inline and indexed directories are listed by hash: a cookie is
//! the position in hash order, which no insertion, removal or split of others changes. Directories that
//! are larger but have no index are listed by offset; their entries never move.
//!
//! A hash cookie is `(hash >> 1) << 32 | minor`, below 2^63. The hash's lowest bit is always clear, so
//! nothing is lost. The lowest three bits of the minor hash number the names that agree in all else.

use super::block::{self, Entry};
use super::inline::FIRST_OFFSET;
use super::{Dir, Directories};
use crate::vfs_ino;
use crate::{ErrorKind, Result};
use blockwright_ondisk::ext4::checksum::crc32c;
use blockwright_ondisk::ext4::hash::{HashAlgorithm, HashVersion};
use blockwright_ondisk::ext4::{BlockNo, FileKind, Ino};
use blockwright_ondisk::nokey;
use blockwright_vfs as vfs;
use blockwright_vfs::types::DirEntry;
use std::ops::ControlFlow;
use std::sync::Arc;

const OP: &str = "list directory";
/// Cookies of `.` and `..`, the same in a listing by offset; those of names are larger.
const DOT: u64 = 8;
const DOT_DOT: u64 = 20;
const FIRST: u64 = 24;

/// Blocks of a directory that are read before it is listed.
const DIR_BLOCKS_AHEAD: u64 = 8;

type Sink<'s> = &'s mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>;

/// What an operation needs to show the entries of a directory.
#[derive(Clone, Copy)]
struct Shown {
    /// Orders them.
    version: HashVersion,
    /// Goes into the names of encrypted ones.
    by: Option<HashVersion>,
}

struct Item {
    key: u64,
    name: Vec<u8>,
    ino: Ino,
    file_type: u8,
}

impl Directories {
    /// Starts reading the first blocks of directories. Damage shows when a block is used.
    pub(crate) fn read_ahead(&self, dirs: &[Arc<vfs::Inode>]) {
        let mut blocks: Vec<u64> = Vec::new();
        for inode in dirs {
            let Ok(dir) = self.open(inode) else { continue };
            if dir.is_inline() {
                continue;
            }
            let count = inode.size() >> self.volume.geometry().block_bits;
            for lblk in 0..count.min(DIR_BLOCKS_AHEAD) as u32 {
                match self.physical("list ahead", &dir, lblk) {
                    Ok(Some(block)) => blocks.push(block.0),
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
        }
        blocks.sort_unstable();
        blocks.dedup();
        let mut runs: Vec<(BlockNo, u32)> = Vec::new();
        for block in blocks {
            match runs.last_mut() {
                Some((start, count)) if start.0 + u64::from(*count) == block => *count += 1,
                _ => runs.push((BlockNo(block), 1)),
            }
        }
        self.volume.cache.read_ahead(&runs);
    }

    /// See [`blockwright_vfs::engine::Names::readdir`].
    ///
    /// # Errors
    /// Damage on the way, or a device error.
    pub(crate) fn list(&self, inode: &vfs::Inode, cookie: u64, sink: Sink<'_>) -> Result<()> {
        let dir = self.open(inode)?;
        let one_block = dir.is_inline() || dir.blocks <= 1;
        if !self.is_hashed(&dir) || !(one_block || self.is_indexed(&dir)) {
            return self.list_by_offset(&dir, cookie, sink);
        }
        if self.is_indexed(&dir) {
            // A damaged root hides the order, not the names.
            match self.index_version(OP, &dir) {
                Ok(version) => self.list_index(&dir, version, cookie, sink),
                Err(e) if e.kind() == ErrorKind::Corrupt => self.list_by_offset(&dir, cookie, sink),
                Err(e) => Err(e),
            }
        } else {
            self.list_one_block(&dir, cookie, sink)
        }
    }

    /// Emits `.` and `..` as far as they come after `cookie`.
    fn list_dots(&self, dir: &Dir<'_>, cookie: u64, sink: Sink<'_>) -> Result<ControlFlow<()>> {
        let kind = Some(vfs::FileKind::Directory);
        if cookie < DOT {
            let dot = DirEntry {
                ino: vfs_ino(dir.ino),
                kind,
                name: b".",
                cookie: DOT,
            };
            if sink(dot).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if cookie < DOT_DOT {
            let parent = self.parent(dir.inode)?;
            let dot_dot = DirEntry {
                ino: vfs_ino(parent),
                kind,
                name: b"..",
                cookie: DOT_DOT,
            };
            return Ok(sink(dot_dot));
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The name an entry is shown under. `by` is what [`Directories::shown_by`] says of an encrypted directory.
    fn shown_name(&self, dir: &Dir<'_>, by: Option<HashVersion>, entry: &Entry<'_>) -> Vec<u8> {
        if !dir.is_encrypted() {
            return entry.name.to_vec();
        }
        let stored = dir
            .layout
            .stored_hash
            .then(|| entry.stored_hash())
            .flatten();
        let hash = stored
            .or_else(|| self.nokey_hash(by, entry.name))
            .unwrap_or_default();
        nokey::encode(hash, entry.name)
    }

    /// Of a directory that is not encrypted, nothing needs it.
    fn shown_by_of(&self, dir: &Dir<'_>) -> Result<Option<HashVersion>> {
        match dir.is_encrypted() {
            true => self.shown_by(OP, dir),
            false => Ok(None),
        }
    }

    fn kind_of(file_type: u8) -> Option<vfs::FileKind> {
        FileKind::from_dirent(file_type).map(crate::inode::vfs_kind)
    }

    fn key(&self, dir: &Dir<'_>, version: HashVersion, entry: &Entry<'_>) -> Result<u64> {
        let hash = self.entry_hash(dir, version, entry)?;
        // The oldest hash has no minor part; any fixed function of the name does.
        let minor = match version.algorithm {
            HashAlgorithm::Legacy => crc32c(!0, entry.name),
            _ => hash.minor,
        };
        let key = u64::from(hash.hash >> 1) << 32 | u64::from(minor & !7);
        Ok(key.max(FIRST))
    }

    /// Sorts items and numbers those of equal keys.
    fn number_equal_keys(items: &mut [Item]) {
        items.sort_by(|a, b| (a.key, &a.name).cmp(&(b.key, &b.name)));
        let mut same = 0;
        for i in 1..items.len() {
            let base = items[i - 1].key & !7;
            same = if items[i].key == base {
                (same + 1).min(7)
            } else {
                0
            };
            items[i].key |= same;
        }
    }

    fn emit(items: &[Item], cookie: u64, sink: Sink<'_>) -> ControlFlow<()> {
        let start = items.partition_point(|i| i.key <= cookie);
        for item in &items[start..] {
            sink(DirEntry {
                ino: vfs_ino(item.ino),
                kind: Self::kind_of(item.file_type),
                name: &item.name,
                cookie: item.key,
            })?;
        }
        ControlFlow::Continue(())
    }

    fn collect(
        &self,
        dir: &Dir<'_>,
        shown: Shown,
        lblk: u32,
        area: &[u8],
        items: &mut Vec<Item>,
    ) -> Result<()> {
        for entry in block::entries(area, &dir.layout) {
            let entry = entry.map_err(|b| self.bad_entry(OP, dir, lblk, &b))?;
            if !entry.is_used() || entry.name == b"." || entry.name == b".." {
                continue;
            }
            items.push(Item {
                key: self.key(dir, shown.version, &entry)?,
                name: self.shown_name(dir, shown.by, &entry),
                ino: entry.ino,
                file_type: entry.file_type,
            });
        }
        Ok(())
    }

    fn list_one_block(&self, dir: &Dir<'_>, cookie: u64, sink: Sink<'_>) -> Result<()> {
        if self.list_dots(dir, cookie, sink)?.is_break() {
            return Ok(());
        }
        let version = self
            .volume
            .superblock()
            .default_hash()
            .unwrap_or(HashVersion {
                algorithm: HashAlgorithm::HalfMd4,
                unsigned_chars: false,
            });
        let by = self.shown_by_of(dir)?;
        let shown = Shown { version, by };
        let mut items = Vec::new();
        if dir.is_inline() {
            for (_, area) in self.inline_areas(OP, dir)? {
                self.collect(dir, shown, 0, &area, &mut items)?;
            }
        } else if dir.blocks == 1 {
            let buffer = self.block_there(OP, dir, 0)?;
            let data = buffer.data();
            self.collect(dir, shown, 0, &data[..dir.layout.leaf_space()], &mut items)?;
        }
        Self::number_equal_keys(&mut items);
        let _ = Self::emit(&items, cookie, sink);
        Ok(())
    }

    fn list_index(
        &self,
        dir: &Dir<'_>,
        version: HashVersion,
        cookie: u64,
        sink: Sink<'_>,
    ) -> Result<()> {
        if self.list_dots(dir, cookie, sink)?.is_break() {
            return Ok(());
        }
        let mut path = self.probe(OP, dir, ((cookie >> 32) as u32) << 1)?;
        let shown = Shown {
            version,
            by: Some(version),
        };
        let mut items = Vec::new();
        // As many leaves as there are blocks, at most, even if the index goes in circles.
        for _ in 0..dir.blocks {
            let lblk = path.leaf();
            let buffer = self.block_there(OP, dir, lblk)?;
            let data = buffer.data();
            self.collect(
                dir,
                shown,
                lblk,
                &data[..dir.layout.leaf_space()],
                &mut items,
            )?;
            let next = path.next_hash();
            // A hash that continues in the next leaf is numbered over both.
            if next.is_none_or(|hash| hash & 1 == 0) {
                Self::number_equal_keys(&mut items);
                if Self::emit(&items, cookie, sink).is_break() {
                    return Ok(());
                }
                items.clear();
            }
            if !self.next_leaf(OP, dir, &mut path)? {
                break;
            }
        }
        Ok(())
    }

    /// Lists all blocks in order; a cookie is the offset behind the entry.
    fn list_by_offset(&self, dir: &Dir<'_>, cookie: u64, sink: Sink<'_>) -> Result<()> {
        if dir.is_inline() {
            return self.list_inline_by_offset(dir, cookie, sink);
        }
        let indexed = dir
            .flags
            .contains(blockwright_ondisk::ext4::InodeFlags::INDEX);
        if indexed && self.list_dots(dir, cookie, sink)?.is_break() {
            return Ok(());
        }
        let by = self.shown_by_of(dir)?;
        let bytes = dir.layout.block_size as u64;
        let mut next = u32::try_from(cookie / bytes).unwrap_or(u32::MAX);
        while let Some((lblk, buffer)) = self.next_block(OP, dir, next)? {
            next = lblk + 1;
            let data = buffer.data();
            let base = u64::from(lblk) * bytes;
            for entry in block::entries(self.walk_area(dir, lblk, &data), &dir.layout) {
                let entry = entry.map_err(|b| self.bad_entry(OP, dir, lblk, &b))?;
                // Walked from the block's start: where the cookie points may have been merged into
                // the entry before it since.
                if !entry.is_used() || base + (entry.offset as u64) < cookie {
                    continue;
                }
                let dots = entry.name == b"." || entry.name == b"..";
                let name = if dots {
                    entry.name.to_vec()
                } else {
                    self.shown_name(dir, by, &entry)
                };
                let flow = sink(DirEntry {
                    ino: vfs_ino(entry.ino),
                    kind: Self::kind_of(entry.file_type),
                    name: &name,
                    cookie: base + (entry.offset + block::ENTRY_HEADER) as u64,
                });
                if flow.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn list_inline_by_offset(&self, dir: &Dir<'_>, cookie: u64, sink: Sink<'_>) -> Result<()> {
        if self.list_dots(dir, cookie, sink)?.is_break() {
            return Ok(());
        }
        let by = self.shown_by_of(dir)?;
        let mut base = FIRST_OFFSET;
        for (_, area) in self.inline_areas(OP, dir)? {
            for entry in block::entries(&area, &dir.layout) {
                let entry = entry.map_err(|b| self.bad_entry(OP, dir, 0, &b))?;
                let at = base + entry.offset as u64;
                if !entry.is_used() || at < cookie {
                    continue;
                }
                let name = self.shown_name(dir, by, &entry);
                let flow = sink(DirEntry {
                    ino: vfs_ino(entry.ino),
                    kind: Self::kind_of(entry.file_type),
                    name: &name,
                    cookie: at + block::ENTRY_HEADER as u64,
                });
                if flow.is_break() {
                    return Ok(());
                }
            }
            base += area.len() as u64;
        }
        Ok(())
    }
}
