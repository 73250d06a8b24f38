//! A whole quota file from its entries: header, radix tree, data blocks.
//!
//! Used where a file is written at once: by the builder of volumes, and by the checker for a
//! damaged file.

use std::collections::BTreeMap;

use zerocopy::{FromZeros, IntoBytes};

use super::{
    BLOCK_SIZE, DEFAULT_GRACE, ENTRIES_PER_BLOCK, GROUP_MAGIC, PROJECT_MAGIC, RawQuotaBlockHeader,
    RawQuotaEntry, RawQuotaHeader, RawQuotaInfo, TREE_DEPTH, TREE_ROOT, USER_MAGIC, VERSION,
};

/// Which ids a quota file counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    /// The first word of a file of this kind.
    #[must_use]
    pub fn magic(self) -> u32 {
        match self {
            Self::User => USER_MAGIC,
            Self::Group => GROUP_MAGIC,
            Self::Project => PROJECT_MAGIC,
        }
    }
}

/// Seconds that an owner may be over a soft limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace {
    /// Of space.
    pub blocks: u32,
    /// Of inodes.
    pub inodes: u32,
}

impl Default for Grace {
    fn default() -> Self {
        Self {
            blocks: DEFAULT_GRACE,
            inodes: DEFAULT_GRACE,
        }
    }
}

/// An entry that says only what is used.
#[must_use]
pub fn usage_entry(id: u32, bytes: u64, inodes: u64) -> RawQuotaEntry {
    RawQuotaEntry {
        id: id.into(),
        curinodes: inodes.into(),
        curspace: bytes.into(),
        ..RawQuotaEntry::new_zeroed()
    }
}

/// A quota file: header, radix tree, entries.
#[must_use]
pub fn quota_file(
    kind: QuotaKind,
    grace: Grace,
    entries: &BTreeMap<u32, RawQuotaEntry>,
) -> Vec<u8> {
    const B: usize = BLOCK_SIZE;
    const ENTRY: usize = size_of::<RawQuotaEntry>();
    const HEAD: usize = size_of::<RawQuotaBlockHeader>();
    let mut file = vec![0u8; 2 * B];
    let new_block = |file: &mut Vec<u8>| {
        let number = (file.len() / B) as u32;
        file.resize(file.len() + B, 0);
        number
    };
    let mut data_block = 0u32;
    let mut in_block = ENTRIES_PER_BLOCK;
    for (id, entry) in entries {
        if in_block == ENTRIES_PER_BLOCK {
            data_block = new_block(&mut file);
            in_block = 0;
        }
        let entry = RawQuotaEntry {
            id: (*id).into(),
            ..*entry
        };
        let at = data_block as usize * B + HEAD + in_block * ENTRY;
        file[at..at + ENTRY].copy_from_slice(entry.as_bytes());
        in_block += 1;
        let count = data_block as usize * B + 8;
        file[count..count + 2].copy_from_slice(&(in_block as u16).to_le_bytes());
        let mut node = TREE_ROOT;
        for (level, byte) in id.to_be_bytes().into_iter().enumerate() {
            let slot = node as usize * B + usize::from(byte) * 4;
            let word = &file[slot..slot + 4];
            let mut child = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if child == 0 {
                child = if level + 1 == TREE_DEPTH {
                    data_block
                } else {
                    new_block(&mut file)
                };
                file[slot..slot + 4].copy_from_slice(&child.to_le_bytes());
            }
            node = child;
        }
    }
    // The last data block, when it has room, is the list of blocks with free entries.
    let free_entry = if (1..ENTRIES_PER_BLOCK).contains(&in_block) {
        data_block
    } else {
        0
    };
    let head = RawQuotaHeader {
        magic: kind.magic().into(),
        version: VERSION.into(),
    };
    let info = RawQuotaInfo {
        bgrace: grace.blocks.into(),
        igrace: grace.inodes.into(),
        flags: 0.into(),
        blocks: ((file.len() / B) as u32).into(),
        free_blk: 0.into(),
        free_entry: free_entry.into(),
    };
    file[..8].copy_from_slice(head.as_bytes());
    file[8..32].copy_from_slice(info.as_bytes());
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_file_for_root_is_as_long_as_mke2fs_s() {
        let usage = BTreeMap::from([(0, usage_entry(0, 20_480, 2))]);
        let file = quota_file(QuotaKind::User, Grace::default(), &usage);
        assert_eq!(file.len(), 6 * BLOCK_SIZE);
    }

    #[test]
    fn every_id_is_reached_through_the_tree() {
        let ids = [0, 1, 255, 256, 1000, 70_000, u32::MAX];
        let usage: BTreeMap<u32, RawQuotaEntry> = ids
            .into_iter()
            .chain(2000..2100)
            .map(|id| (id, usage_entry(id, u64::from(id) + 7, 1)))
            .collect();
        let file = quota_file(QuotaKind::Group, Grace::default(), &usage);
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four"));
        for (id, used) in &usage {
            let mut node = TREE_ROOT;
            for byte in id.to_be_bytes() {
                node = word(node as usize * BLOCK_SIZE + usize::from(byte) * 4);
                assert_ne!(node, 0, "id {id}");
            }
            let block = &file[node as usize * BLOCK_SIZE..][..BLOCK_SIZE];
            let found = block[16..].chunks_exact(72).any(|e| {
                e[..4] == id.to_le_bytes() && e[48..56] == used.curspace.get().to_le_bytes()
            });
            assert!(found, "id {id}");
        }
    }
}
