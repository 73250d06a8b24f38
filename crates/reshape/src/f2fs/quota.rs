//! Quota files of a volume that has none: what users, groups and projects use is counted, and each file is written.
//!
//! A quota file is an inode without a name, which only the superblock knows. What quota files use is not counted.
//!
//! # Crash order
//! The files, with the next two checkpoints: either pack has them. Then the superblock, which names them and sets the feature. Before it nothing leads to the files: the volume is as it
//! was before, less their blocks, and `check` and fsck.f2fs say so. The same command finds such files by what they are, and removes them in the
//! checkpoint that brings the new ones.

use std::collections::BTreeMap;

use blockwright_ondisk::common::quota::layout::{Grace, QuotaKind, quota_file, usage_entry};
use blockwright_ondisk::common::quota::tree::Usage;
use blockwright_ondisk::f2fs::inode::{self, INLINE_XATTR_WORDS};
use blockwright_ondisk::f2fs::nat::{ENTRIES_PER_BLOCK, NatBlock};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, Features, FileKind, Footer, InlineFlags, Ino, Inode, InodeFlags, Log,
    NatEntry, Nid, NodeOffset, RawSuperblock, Summary, Timestamp,
};

use super::room::Room;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};
use crate::now;
use crate::watch::Phase;

const KINDS: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
/// More owners than an inode without further nodes has blocks for: it bounds the memory that counts them.
const OWNERS_MAX: usize = 1 << 16;
/// Permission bits of a quota file.
const PERMISSIONS: u16 = 0o600;

/// Which quota files these features ask for that the superblock does not name.
pub(super) fn missing(raw: &RawSuperblock, features: Features) -> Vec<QuotaKind> {
    let had = raw.features().contains(Features::QUOTA);
    let wanted = |kind: &QuotaKind| match kind {
        QuotaKind::User | QuotaKind::Group => features.contains(Features::QUOTA),
        QuotaKind::Project => features.contains(Features::QUOTA | Features::PROJECT_QUOTA),
    };
    let named = |kind: &QuotaKind| had && raw.qf_ino[*kind as usize].get() != 0;
    let kinds = KINDS.into_iter();
    kinds.filter(|kind| wanted(kind) && !named(kind)).collect()
}

/// What is known of the inodes.
#[derive(Default)]
struct Count {
    /// Of users, groups and projects.
    usage: [BTreeMap<u32, Usage>; 3],
    /// Numbers that no node has.
    free: Vec<Nid>,
    /// Files that an interrupted command has made.
    unnamed: Vec<(Ino, NatEntry)>,
}

/// Writes quota files, and commits them; their inodes.
///
/// # Errors
/// `NoSpace`; `Interrupted`; `Unsupported` where there are more owners than a file without further nodes can list, and where an inode has no room for a project; damage.
pub(super) fn make(volume: &mut Volume, kinds: &[QuotaKind]) -> Result<Vec<(QuotaKind, Ino)>> {
    let count = count(volume, kinds)?;
    for (ino, entry) in &count.unnamed {
        remove(volume, *ino, *entry)?;
    }
    let mut room = Room::new(volume, 0..volume.geo.main_segments);
    let mut made = Vec::new();
    let mut numbers = count.free.into_iter();
    for kind in kinds {
        let ino = numbers.next().ok_or_else(|| no_space("inodes"))?.as_ino();
        let used = &count.usage[*kind as usize];
        let entries = used
            .iter()
            .map(|(id, used)| (*id, usage_entry(*id, used.bytes, used.inodes)))
            .collect();
        let bytes = quota_file(*kind, Grace::default(), &entries);
        write(volume, &mut room, ino, &bytes)?;
        made.push((*kind, ino));
    }
    let raw = &volume.cp.raw;
    if raw.valid_block_count.get() > raw.user_block_count.get() {
        return Err(no_space("blocks"));
    }
    volume.commit()?;
    // The older pack does not have the files that the superblock is going to name.
    volume.commit()?;
    Ok(made)
}

fn no_space(what: &str) -> ReshapeError {
    ReshapeError::NoSpace(format!("there are no free {what} for the quota files"))
}

/// Looks at each inode, for files of these kinds.
fn count(volume: &mut Volume, kinds: &[QuotaKind]) -> Result<Count> {
    let mut count = Count::default();
    let hidden = match volume.geo.features.contains(Features::QUOTA) {
        true => volume.raw.qf_ino.map(|ino| Ino(ino.get())),
        false => [Ino(0); 3],
    };
    let blocks = volume.geo.nat_blocks();
    for index in 0..blocks {
        let watch = &volume.store.watch;
        watch.tell(Phase::Inodes, u64::from(index), u64::from(blocks))?;
        let block = volume.nat_bytes(index)?;
        let first = index * ENTRIES_PER_BLOCK as u32;
        for (nid, entry) in (first..).map(Nid).zip(NatBlock::parse(&block)?.iter()) {
            // The first numbers are those of the tables and of the root.
            if nid.0 < Ino::ROOT.0 || volume.geo.check_nid(nid).is_err() {
                continue;
            }
            if entry.is_free() {
                if count.free.len() < kinds.len() {
                    count.free.push(nid);
                }
                continue;
            }
            let ino = entry.ino;
            if ino.nid() != nid || hidden.contains(&ino) {
                continue;
            }
            let (bytes, inode) = read(volume, ino, &entry)?;
            if is_unnamed(volume, &bytes, &inode)? {
                count.unnamed.push((ino, entry));
                continue;
            }
            if kinds.contains(&QuotaKind::Project) && inode.extra.is_some_and(|e| !e.has_projid()) {
                // fsck.f2fs takes the word behind its extra attributes for the project.
                return Err(ReshapeError::Unsupported(format!(
                    "projects cannot be counted: inode {ino} has no room for a project"
                )));
            }
            let ids = [inode.uid, inode.gid, inode.extra.map_or(0, |e| e.projid)];
            for kind in kinds {
                let owners = &mut count.usage[*kind as usize];
                let usage = owners.entry(ids[*kind as usize]).or_default();
                // Its own node is not charged.
                usage.bytes += inode.blocks.saturating_sub(1) * BLOCK_SIZE as u64;
                usage.inodes += 1;
                if owners.len() > OWNERS_MAX {
                    return Err(ReshapeError::Unsupported(format!(
                        "`quota` cannot be set: files belong to more than {OWNERS_MAX} owners"
                    )));
                }
            }
        }
    }
    Ok(count)
}

fn read(volume: &Volume, ino: Ino, entry: &NatEntry) -> Result<(Vec<u8>, Inode)> {
    if !volume.geo.in_main(entry.block) {
        return Err(ReshapeError::Damaged(format!(
            "inode {ino} is outside of the main area"
        )));
    }
    let bytes = volume.store.read(entry.block, 1, "inode")?;
    Footer::expect(&bytes, ino.nid(), Some(ino))?;
    let inode = Inode::parse(&bytes, ino, &volume.geo)?;
    Ok((bytes, inode))
}

/// Whether an inode is one that [`write`] has made. A file of a user has had a name.
fn is_unnamed(volume: &Volume, node: &[u8], inode: &Inode) -> Result<bool> {
    let looks = inode.kind() == Some(FileKind::Regular)
        && inode.name.is_empty()
        && inode.pino == Ino(0)
        && inode.flags == InodeFlags::IMMUTABLE
        && inode.mode & 0o7777 == PERMISSIONS
        && (inode.uid, inode.gid, inode.links) == (0, 0, 1)
        && !inode
            .inline
            .intersects(InlineFlags::DATA | InlineFlags::DENTRY)
        && inode.nids.iter().all(|nid| nid.0 == 0)
        && inode.xattr_nid.0 == 0;
    let first = match looks {
        true => addresses(volume, node, inode).next(),
        false => None,
    };
    let Some(first) = first.filter(|first| volume.geo.in_main(*first)) else {
        return Ok(false);
    };
    let block = volume.store.read(first, 1, "quota file")?;
    let heads = KINDS.map(|kind| kind.magic().to_le_bytes());
    Ok(heads.iter().any(|head| block.starts_with(head)))
}

/// The words of an inode that are addresses of data.
fn addresses<'n>(
    volume: &Volume,
    node: &'n [u8],
    inode: &Inode,
) -> impl Iterator<Item = BlockAddr> + use<'n> {
    let words = inode.layout(volume.geo.features).address_bytes();
    let words = node.get(words).unwrap_or_default().as_chunks::<4>().0;
    words
        .iter()
        .map(|word| BlockAddr(u32::from_le_bytes(*word)))
}

/// Gives up a quota file that nothing names.
fn remove(volume: &mut Volume, ino: Ino, entry: NatEntry) -> Result<()> {
    let (bytes, inode) = read(volume, ino, &entry)?;
    let data = addresses(volume, &bytes, &inode).filter(|block| *block != BlockAddr::NULL);
    let blocks: Vec<BlockAddr> = [entry.block].into_iter().chain(data).collect();
    for block in &blocks {
        let place = volume.geo.segment_of(*block);
        let taken = place.filter(|(seg, at)| volume.sit(seg.0).valid.get(*at));
        let (seg, at) = taken.ok_or_else(|| {
            ReshapeError::Damaged(format!("block {block} of inode {ino} is not in use"))
        })?;
        volume.give_up(seg.0, at);
    }
    let free = NatEntry {
        version: entry.version.wrapping_add(1),
        ino: Ino(0),
        block: BlockAddr::NULL,
    };
    volume.set_nat(ino.nid(), free)?;
    charge(volume, -1, -(blocks.len() as i64));
    Ok(())
}

/// Adds to the checkpoint's numbers of inodes and of blocks.
fn charge(volume: &mut Volume, inodes: i32, blocks: i64) {
    let raw = &mut volume.cp.raw;
    let all = raw.valid_block_count.get().saturating_add_signed(blocks);
    raw.valid_block_count.set(all);
    for count in [&mut raw.valid_node_count, &mut raw.valid_inode_count] {
        count.set(count.get().saturating_add_signed(inodes));
    }
}

/// Writes a file with these contents, which the next checkpoint has.
fn write(volume: &mut Volume, room: &mut Room, ino: Ino, contents: &[u8]) -> Result<()> {
    const WHAT: &str = "quota file";
    let features = volume.geo.features;
    let mut inode = Inode::new(FileKind::Regular.mode_bits() | PERMISSIONS, features);
    let time = Timestamp {
        secs: now(),
        nanos: 0,
    };
    (inode.atime, inode.mtime, inode.ctime) = (time, time, time);
    inode.inline |= InlineFlags::XATTR;
    inode.flags = InodeFlags::IMMUTABLE;
    inode.size = contents.len() as u64;
    if let Some(extra) = &mut inode.extra {
        if features.contains(Features::INODE_CRTIME) {
            extra.crtime = time;
        }
        if features.contains(Features::FLEXIBLE_INLINE_XATTR) {
            extra.inline_xattr_words = INLINE_XATTR_WORDS as u16;
        }
    }
    let pieces = contents.chunks(BLOCK_SIZE);
    inode.blocks = 1 + pieces.len() as u64;
    let words = inode.layout(features).address_bytes();
    if pieces.len() * 4 > words.len() {
        return Err(ReshapeError::Unsupported(format!(
            "`quota` cannot be set: a quota file would have {} blocks, and {} are possible here",
            pieces.len(),
            words.len() / 4
        )));
    }
    let version = volume.nat(ino.nid())?.version;
    let mut node = vec![0; BLOCK_SIZE];
    for (at, piece) in pieces.enumerate() {
        let owner = Summary {
            nid: ino.nid(),
            version,
            offset: at as u16,
        };
        let to = room
            .take_for(volume, Log::WarmData, owner)?
            .ok_or_else(|| no_space("blocks"))?;
        let mut block = piece.to_vec();
        block.resize(BLOCK_SIZE, 0);
        volume.store.write(to.block, &block, WHAT)?;
        node[words.start + at * 4..][..4].copy_from_slice(&to.block.0.to_le_bytes());
    }
    let owner = Summary {
        nid: ino.nid(),
        version: 0,
        offset: 0,
    };
    let to = room
        .take_for(volume, Log::WarmNode, owner)?
        .ok_or_else(|| no_space("blocks"))?;
    let footer = Footer {
        nid: ino.nid(),
        ino,
        offset: NodeOffset::INODE,
        cold: true,
        fsync: false,
        dentry: false,
        version: volume.cp.footer_version(),
        next: BlockAddr(to.block.0 + 1),
    };
    inode
        .encode_into(&mut node)
        .and_then(|()| footer.write(&mut node))
        .ok_or_else(|| ReshapeError::Damaged("an inode is cut".into()))?;
    inode::set_checksum(&mut node, ino, &volume.geo);
    volume.store.write(to.block, &node, WHAT)?;
    let entry = NatEntry {
        version,
        ino,
        block: to.block,
    };
    volume.set_nat(ino.nid(), entry)?;
    charge(volume, 1, inode.blocks as i64);
    let raw = &mut volume.cp.raw;
    if raw.next_free_nid.get() == ino.0 {
        raw.next_free_nid.set(ino.0 + 1);
    }
    Ok(())
}
