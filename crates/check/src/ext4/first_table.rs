//! The inode table of the first group: it holds the root directory.
//!
//! Without it there is no root, and a repair would throw all names away. So when the table is not
//! where the descriptor says, it is looked for: first where copies of the descriptor say, then in
//! the whole first group. But to move a table destroys what lies at its new place. Therefore
//! nothing moves unless several independent sources agree:
//!
//! - what the descriptor names does not look like a table: no root directory, and hardly a sound
//!   inode;
//! - the descriptor is not confirmed by a copy, both with the right checksum;
//! - at the new place there is an inode of a directory whose blocks say that it is the root;
//! - other inodes there are sound (checksums, where the volume has them), and those that the root
//!   directory names are in use.
//!
//! Counts that are merely wrong, of links for instance, say nothing about places.

use blockwright_ondisk::ext4::dir::{DirBlock, DirFormat};
use blockwright_ondisk::ext4::inode::{self, BLOCK_AREA, InodeFlags};
use blockwright_ondisk::ext4::{
    BlockNo, ChecksumKind, FileKind, GroupFlags, GroupNo, Ino, Inode, extent, group_desc,
};

use super::CheckError;
use super::context::{Checker, decode_lenient};
use super::groups::slot;
use super::issue::{IssueKind, Metadata};

/// Inodes at the start of a table that are looked at.
const INODES_SEEN: u32 = 64;
/// Sound inodes of which one is the root: a new volume has the resize inode or the journal, and
/// lost+found, too.
const SOUND_MIN: u32 = 3;

/// Reserved inodes that no file system ever used.
const NEVER_USED: [u32; 4] = [5, 6, 9, 10];

/// What speaks for and against a place being the first table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Evidence {
    /// There is the inode of a directory that says it is the root.
    root: bool,
    /// Inodes that are as inodes must be.
    sound: u32,
    /// Slots that hold something else than an inode or nothing.
    broken: u32,
    /// Reserved inodes without a use that are files here: the table begins elsewhere.
    reserved: u32,
    /// Of what the root directory names: in use, and not.
    named: (u32, u32),
}

impl Evidence {
    /// Whether a descriptor that points here must not be doubted.
    fn is_table(self) -> bool {
        self.root || (self.sound >= 2 && self.sound > self.broken && self.reserved == 0)
    }

    /// Whether the table may be taken from here. `told`: a copy of the descriptor says so.
    fn is_certain(self, told: bool) -> bool {
        let (used, unused) = self.named;
        let others = if told { 2 } else { SOUND_MIN };
        self.root && self.sound >= others && self.sound > 2 * self.broken && used >= 3 * unused
    }
}

impl Checker {
    /// If an inode is the root directory, the inodes that its first block names; otherwise `None`.
    pub fn names_of_root(&self, inode: &Inode) -> Result<Option<Vec<Ino>>, CheckError> {
        let geo = &self.geo;
        if inode.kind() != Some(FileKind::Directory) {
            return Ok(None);
        }
        let names = |bytes: &[u8]| -> Vec<Ino> {
            DirBlock::entries_of(bytes, DirFormat::of(geo, inode.flags))
                .iter()
                .map_while(Result::ok)
                .filter(|e| e.is_used() && !e.is_dot_or_dotdot())
                .map(|e| e.ino)
                .collect()
        };
        let two = Ino::ROOT.0.to_le_bytes();
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            let own = inode.block[..4] == two;
            return Ok(own.then(|| names(&inode.block[4..BLOCK_AREA])));
        }
        let map = self.mapping_of(Ino::ROOT, inode)?;
        let Some(first) = map.pieces.first().filter(|p| p.logical == 0) else {
            return Ok(None);
        };
        let block = self.store.read(first.physical, "root directory")?;
        let own = block[..4] == two && block[8..10] == *b".\0" && block[12..16] == two;
        Ok(own.then(|| names(&block)))
    }

    /// Whether a slot of a table holds an inode as inodes must be; `None` when it holds nothing.
    fn sound_inode(&self, raw: &[u8], ino: Ino) -> Option<bool> {
        let geo = &self.geo;
        if raw.iter().all(|b| *b == 0) {
            return None;
        }
        if geo.metadata_csum() {
            return Some(inode::verify_checksum(raw, geo, ino).is_ok());
        }
        let Ok(inode) = Inode::decode(raw, geo, ino) else {
            return Some(false);
        };
        if inode.mode == 0 && inode.links == 0 {
            // Reserved ones have times and nothing else.
            return inode.block.iter().any(|b| *b != 0).then_some(false);
        }
        let Some(kind) = inode.kind() else {
            return Some(false);
        };
        let word = u32::from_le_bytes([
            inode.block[0],
            inode.block[1],
            inode.block[2],
            inode.block[3],
        ]);
        let maps = matches!(kind, FileKind::Regular | FileKind::Directory);
        let mapped = if inode.flags.contains(InodeFlags::EXTENTS) {
            word as u16 == extent::MAGIC
        } else if maps && !inode.flags.contains(InodeFlags::INLINE_DATA) {
            u64::from(word) < geo.blocks_count
        } else {
            true
        };
        Some(mapped && (inode.links > 0 || inode.dtime != 0))
    }

    fn table_evidence(&self, table: BlockNo) -> Result<Evidence, CheckError> {
        let geo = self.geo.clone();
        let mut out = Evidence::default();
        if !geo.contains_run(table, u64::from(geo.inode_table_blocks)) {
            return Ok(out);
        }
        let read = |ino: Ino| -> Result<Option<Vec<u8>>, CheckError> {
            let Some((block, at)) = geo.inode_location(ino, table) else {
                return Ok(None);
            };
            let bytes = self.store.read(block, "inode table")?;
            let slot = bytes.get(at..at + usize::from(geo.inode_size));
            Ok(slot.map(<[u8]>::to_vec))
        };
        for ino in (1..=INODES_SEEN.min(geo.inodes_per_group)).map(Ino) {
            let Some(raw) = read(ino)? else {
                continue;
            };
            if NEVER_USED.contains(&ino.0) && raw[..2] != [0; 2] {
                out.reserved += 1;
            }
            match self.sound_inode(&raw, ino) {
                Some(true) => out.sound += 1,
                Some(false) => out.broken += 1,
                None => {}
            }
        }
        let root = read(Ino::ROOT)?.and_then(|raw| decode_lenient(&raw, &geo, Ino::ROOT));
        if let Some(root) = root
            && let Some(names) = self.names_of_root(&root)?
        {
            out.root = true;
            for ino in names
                .into_iter()
                .filter(|ino| ino.0 <= geo.inodes_per_group)
                .take(INODES_SEEN as usize)
            {
                match read(ino)?.and_then(|raw| self.sound_inode(&raw, ino)) {
                    Some(true) => out.named.0 += 1,
                    _ => out.named.1 += 1,
                }
            }
        }
        Ok(out)
    }

    /// Whether the first table may be at this place, as a copy of the descriptor says.
    pub fn may_hold_root(&self, table: BlockNo) -> Result<bool, CheckError> {
        Ok(self.table_evidence(table)?.is_certain(true))
    }

    /// Whether the descriptor of the first group and one of its copies say the same, both with the
    /// right checksum.
    fn first_place_confirmed(&self) -> Result<bool, CheckError> {
        let geo = &self.geo;
        let group = GroupNo(0);
        let (index, _) = geo.desc_position(group);
        if geo.checksums == ChecksumKind::None {
            return Ok(false);
        }
        let Some(place) = geo.desc_block(index) else {
            return Ok(false);
        };
        let bytes = self.store.read(place, "group descriptors")?;
        let right = |raw: &[u8]| group_desc::verify_checksum(raw, geo, group).is_ok();
        if !slot(&bytes, geo, group).is_some_and(right) {
            return Ok(false);
        }
        let said = self.descs[0].inode_table;
        for place in self.desc_copy_places(group) {
            let bytes = self.store.read(place, "copy of the group descriptors")?;
            if let Some(raw) = slot(&bytes, geo, group)
                && right(raw)
                && blockwright_ondisk::ext4::GroupDesc::decode(raw, geo)
                    .is_ok_and(|copy| copy.inode_table == said)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Looks for the first table when it is not where the descriptor says.
    pub fn seek_first_table(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let group = GroupNo(0);
        let Some(said) = self.descs.first().map(|d| d.inode_table) else {
            return Ok(());
        };
        if self.table_evidence(said)?.is_table() || self.first_place_confirmed()? {
            return Ok(());
        }
        let mut found = None;
        for copy in self.desc_copies(group)? {
            if self.may_hold_root(copy.inode_table)? {
                found = Some(copy.inode_table);
                break;
            }
        }
        let first = geo.group_first_block(group).0 + u64::from(geo.base_meta_blocks(group));
        let end = geo.group_first_block(group).0 + u64::from(geo.group_blocks(group));
        let mut at = first;
        while found.is_none() && at < end {
            if self.could_begin_table(BlockNo(at))?
                && self.table_evidence(BlockNo(at))?.is_certain(false)
            {
                found = Some(BlockNo(at));
            }
            at += 1;
        }
        let Some(place) = found.filter(|place| *place != said) else {
            return Ok(());
        };
        let repair = self.problem(IssueKind::GroupDescLocation {
            group,
            what: Metadata::InodeTable,
            block: said,
        });
        let desc = &mut self.descs[0];
        desc.inode_table = place;
        desc.flags -= GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
        desc.itable_unused = 0;
        if repair {
            self.write_desc(group, true)?;
        }
        Ok(())
    }

    /// A look at one block that spares the closer one nearly everywhere.
    fn could_begin_table(&self, table: BlockNo) -> Result<bool, CheckError> {
        let geo = &self.geo;
        if !geo.contains_run(table, u64::from(geo.inode_table_blocks)) {
            return Ok(false);
        }
        let Some((block, at)) = geo.inode_location(Ino::ROOT, table) else {
            return Ok(false);
        };
        let bytes = self.store.read(block, "inode table")?;
        let mode = bytes
            .get(at..at + 2)
            .map(|b| u16::from_le_bytes([b[0], b[1]]));
        Ok(mode.is_some_and(|mode| mode & 0xF000 == FileKind::Directory.mode_bits()))
    }
}
