//! The hash index of a directory: its blocks, and which hashes each leaf may hold.

use std::collections::BTreeMap;

use blockwright_ondisk::common::casefold;
use blockwright_ondisk::ext4::dir::DirFormat;
use blockwright_ondisk::ext4::hash::{HashAlgorithm, HashVersion, NameHash, name_hash};
use blockwright_ondisk::ext4::htree::{
    self, DxNode, DxPlace, DxRootInfo, MAX_INDIRECT_LEVELS, MAX_INDIRECT_LEVELS_LARGE,
};
use blockwright_ondisk::ext4::superblock::MiscFlags;
use blockwright_ondisk::ext4::{BlockNo, FormatError, Incompat};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::state::DirInfo;

/// What the index says about a block of the directory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Role {
    /// Root or inner node.
    Index(DxPlace),
    /// Names whose hash is at least `.0` and less than `.1` (or equal to it, when names of that
    /// hash continue in the next leaf).
    Leaf(u32, u32),
}

/// The index of one directory.
pub(super) struct Index {
    pub roles: BTreeMap<u32, Role>,
    /// `None`: names cannot be hashed here (the index's hash is not that of such directories).
    pub hasher: Option<NameHasher>,
    /// Something is wrong with it.
    pub bad: bool,
}

/// How the names of a directory are hashed. Encrypted names are hashed as they are stored, unless
/// they are folded, too: then the hash needs the key, and is stored behind the name.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameHasher {
    pub version: HashVersion,
    pub seed: [u32; 4],
    pub casefold: bool,
}

impl NameHasher {
    /// Hash of a name, where it can be computed; `stored` is what its entry says.
    pub fn hash(&self, name: &[u8], stored: Option<(u32, u32)>) -> Option<NameHash> {
        if self.version.algorithm == HashAlgorithm::SipHash {
            return stored.map(|(hash, minor)| NameHash {
                hash: hash & !1,
                minor,
            });
        }
        let folded = if self.casefold {
            // A character younger than the volume's encoding may be folded or not.
            if std::str::from_utf8(name).is_ok_and(casefold::is_newer) {
                return None;
            }
            casefold::fold_name(name)
        } else {
            name.into()
        };
        name_hash(self.version, self.seed, None, &folded).ok()
    }
}

/// Where a directory's blocks are.
pub(super) struct DirBlocks<'a> {
    pub checker: &'a Checker,
    pub dir: &'a DirInfo,
}

impl DirBlocks<'_> {
    /// The device block of a block of the directory.
    pub fn physical(&self, logical: u32) -> Option<BlockNo> {
        let runs = self.checker.scan.dir_runs.get(self.dir.runs.clone())?;
        let n = runs
            .partition_point(|r| r.logical <= logical)
            .checked_sub(1)?;
        let run = runs.get(n)?;
        let offset = logical - run.logical;
        (offset < run.len).then(|| BlockNo(run.physical.0 + u64::from(offset)))
    }
}

impl Checker {
    /// How a new index of a directory hashes names; `None` when they cannot be hashed here.
    pub fn new_hasher(&self, encrypted: bool, casefold: bool) -> Option<NameHasher> {
        let sip = encrypted && casefold;
        let mut version = HashVersion::from_raw(self.sb.def_hash_version).ok()?;
        if sip {
            version = HashVersion {
                algorithm: HashAlgorithm::SipHash,
                unsigned_chars: false,
            };
        } else if version.algorithm == HashAlgorithm::SipHash {
            return None;
        } else if self.sb.misc_flags().contains(MiscFlags::UNSIGNED_HASH) {
            version.unsigned_chars = true;
        }
        Some(NameHasher {
            version,
            seed: self.sb.hash_seed(),
            casefold,
        })
    }

    /// Reads and checks the index of a directory. Problems are reported; `bad` tells whether
    /// the index is to be removed.
    pub fn read_index(&mut self, dir: &DirInfo, format: &DirFormat) -> Result<Index, CheckError> {
        let geo = self.geo.clone();
        let misc = self.sb.misc_flags();
        let mut index = Index {
            roles: BTreeMap::new(),
            hasher: None,
            bad: false,
        };
        let large = geo.features.has_incompat(Incompat::LARGE_DIR);
        let max_levels = if large {
            MAX_INDIRECT_LEVELS_LARGE
        } else {
            MAX_INDIRECT_LEVELS
        };
        let first = DirBlocks { checker: self, dir }.physical(0);
        let Some(place) = first else {
            // A hole at the start; reported with the blocks.
            index.bad = true;
            return Ok(index);
        };
        let bytes = self.store.read(place, "directory")?;
        let root = DxRootInfo::parse(&bytes, format, max_levels)
            .and_then(|root| Ok((root, HashVersion::from_raw(root.hash_version)?)));
        let (root, mut version) = match root {
            Ok(found) => found,
            Err(error) => {
                self.problem(IssueKind::HtreeRoot {
                    dir: dir.ino,
                    error: error.into(),
                });
                index.bad = true;
                return Ok(index);
            }
        };
        let sip = version.algorithm == HashAlgorithm::SipHash;
        if misc.contains(MiscFlags::UNSIGNED_HASH) && !sip {
            version.unsigned_chars = true;
        }
        if sip == (dir.encrypted && dir.casefold) {
            index.hasher = Some(NameHasher {
                version,
                seed: self.sb.hash_seed(),
                casefold: dir.casefold,
            });
        }
        let whole = (0, u32::MAX);
        let levels = root.indirect_levels;
        self.read_index_node(dir, format, &mut index, 0, levels, whole)?;
        Ok(index)
    }

    fn read_index_node(
        &mut self,
        dir: &DirInfo,
        format: &DirFormat,
        index: &mut Index,
        logical: u32,
        levels: u8,
        range: (u32, u32),
    ) -> Result<(), CheckError> {
        let ino = dir.ino;
        let place = if logical == 0 {
            DxPlace::Root
        } else {
            DxPlace::Node
        };
        let Some(block) = (DirBlocks { checker: self, dir }).physical(logical) else {
            return Ok(());
        };
        index.roles.insert(logical, Role::Index(place));
        let bytes = self.store.read(block, "directory index")?;
        // e2fsck finds the count of a node only behind an entry without a name; the kernel reads the entry's length alone.
        let named = place == DxPlace::Node && bytes[6..8] != [0; 2];
        let node = match DxNode::parse(&bytes, place, format) {
            Ok(_) if named => Err(FormatError::DxFakeEntry),
            parsed => parsed,
        };
        let node = match node {
            Ok(node) => node,
            Err(error) => {
                self.problem(IssueKind::HtreeNode {
                    dir: ino,
                    logical,
                    error: error.into(),
                });
                index.bad = true;
                return Ok(());
            }
        };
        let seed = self.geo.inode_seed(ino, dir.generation);
        if let Err(FormatError::DxChecksum { .. } | FormatError::DxTail) =
            htree::verify_checksum(&bytes, place, format, seed)
            && self.problem(IssueKind::HtreeChecksum { dir: ino, logical })
        {
            let mut fixed = bytes.clone();
            if htree::set_checksum(&mut fixed, place, format, seed).is_ok() {
                self.write(block, fixed);
            }
        }
        let entries: Vec<_> = node.iter().collect();
        for (n, entry) in entries.iter().enumerate() {
            let low = if n == 0 { range.0 } else { entry.hash };
            let high = entries.get(n + 1).map_or(range.1, |next| next.hash);
            let child = (DirBlocks { checker: self, dir }).physical(entry.block);
            let what = if child.is_none() {
                Some("does not exist")
            } else if index.roles.contains_key(&entry.block) {
                Some("is in the index already")
            } else if n > 0 && (entry.hash < range.0 || entry.hash > range.1) {
                Some("has hashes outside of its parent's")
            } else {
                None
            };
            if let Some(what) = what {
                self.problem(IssueKind::HtreeBlock {
                    dir: ino,
                    logical: entry.block,
                    what,
                });
                index.bad = true;
                continue;
            }
            if levels == 0 {
                index.roles.insert(entry.block, Role::Leaf(low, high));
            } else {
                self.read_index_node(dir, format, index, entry.block, levels - 1, (low, high))?;
            }
        }
        Ok(())
    }

    /// Whether a hash may be in a leaf.
    pub fn hash_fits(hash: u32, low: u32, high: u32) -> bool {
        // The lowest bit of a boundary says that names of this hash began in the leaf before.
        let continued = high & 1 != 0 && high != u32::MAX;
        hash >= low & !1 && (hash < high || (continued && hash == high & !1) || high == u32::MAX)
    }
}
