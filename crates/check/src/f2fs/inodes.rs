//! Inodes: their fields, and their trees of nodes.

use std::mem::offset_of;

use blockwright_ondisk::common::casefold::{self, ENCODING_UTF8_12_1};
use blockwright_ondisk::f2fs::compress::CLUSTER_LOGS;
use blockwright_ondisk::f2fs::inode::{self, INLINE_RESERVED_WORDS, RawExtra, WORDS_OFFSET};
use blockwright_ondisk::f2fs::{
    Advise, BlockAddr, Features, FileKind, Footer, FormatError, InlineFlags, Ino, Inode,
    InodeFlags, Nid, NodeOffset,
};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::mend::{mend, restore_extra_size};
use super::nodes::{Place, Walk, footer_of};
use super::state::{DirInfo, InodeState};
use super::superblock::ENCODING_NONE;

/// The cluster size in a compressed file's inode, when no such size exists.
fn cluster_log_unknown(inode: &Inode, kind: FileKind, features: Features) -> Option<u8> {
    let compressed = kind == FileKind::Regular
        && inode.flags.contains(InodeFlags::COMPRESS)
        && features.contains(Features::COMPRESSION);
    let log = inode.extra.filter(|_| compressed)?.log_cluster_size;
    (!CLUSTER_LOGS.contains(&log)).then_some(log)
}

impl Checker {
    /// Checks an inode and its tree of nodes.
    pub(super) fn check_inode(&mut self, ino: Ino) -> Result<(), CheckError> {
        let nid = ino.nid();
        let Some((place, mut block)) = self.read_node(nid)? else {
            return Ok(());
        };
        let mut footer = match footer_of(&block, nid, ino) {
            Ok(footer) => footer,
            Err(error) => {
                let error = error.into();
                self.scan.bad.insert(ino.0);
                self.scan.visited.insert(nid.0);
                if self.problem(IssueKind::NodeFooter { nid, error }) {
                    self.free_node(nid);
                }
                return Ok(());
            }
        };
        if !self.take_node(nid, place)? {
            self.scan.bad.insert(ino.0);
            if self.problem(IssueKind::NodeShared { ino, nid }) {
                self.free_node(nid);
            }
            return Ok(());
        }
        self.check_next(ino, nid, &footer)?;
        if let Some((found, expected)) = restore_extra_size(&mut block, ino, &self.geo)
            && self.problem(IssueKind::InodeExtraSize {
                ino,
                found,
                expected,
            })
        {
            let geo = self.geo.clone();
            self.edit_node(nid, |bytes| {
                restore_extra_size(bytes, ino, &geo);
            })?;
        }
        if let Err(error) = inode::verify_checksum(&block, ino, &self.geo) {
            let error = error.into();
            if self.problem(IssueKind::InodeChecksum { error }) {
                self.edit_node(nid, |_| {})?;
            }
        }
        if footer.offset != NodeOffset::INODE {
            let (found, expected) = (footer.offset.0, NodeOffset::INODE.0);
            let repair = self.problem(IssueKind::NodeOffset {
                nid,
                ino,
                found,
                expected,
            });
            footer.offset = NodeOffset::INODE;
            let _ = footer.write(&mut block);
            if repair {
                self.edit_node(nid, |bytes| {
                    let _ = footer.write(bytes);
                })?;
            }
        }
        let geo = self.geo.clone();
        let mut mended = block.clone();
        let inode = match mend(&mut mended, ino, &geo) {
            Ok((inode, errors)) => {
                self.tell_fields(ino, errors, &mended)?;
                inode
            }
            Err(error) => {
                let error = error.into();
                self.scan.bad.insert(ino.0);
                if self.problem(IssueKind::InodeUnusable { error }) {
                    self.free_node(nid);
                }
                return Ok(());
            }
        };
        let Some(kind) = inode.kind() else {
            return Ok(());
        };
        self.scan.inodes.insert(
            ino.0,
            InodeState {
                kind,
                links: inode.links,
                pino: inode.pino,
                names: 0,
                subdirs: 0,
                parent: Ino(0),
                reached: false,
            },
        );
        let stored_blocks = u64::from_le_bytes(*block[24..].first_chunk().unwrap_or(&[0; 8]));
        let cluster_log_unknown = cluster_log_unknown(&inode, kind, geo.features);
        let mut w = Walk {
            ino,
            layout: inode.layout(geo.features),
            kind,
            blocks: 1,
            extent_matched: 0,
            cluster: match cluster_log_unknown {
                Some(_) => 1,
                None => inode.cluster_blocks(),
            },
            cluster_log_unknown,
            marks: 0,
            saved: 0,
            end: 0,
            hidden: self.is_hidden(ino),
            inode,
        };
        let first_dir_block = self.scan.dir_blocks.len();
        self.walk_tree(&mut w, &mended)?;
        self.check_xattrs(&mut w, &mended)?;
        self.check_contents(&w, &mended)?;
        if kind == FileKind::Directory {
            self.keep_directory(&w, first_dir_block);
        }
        self.count_kind(kind);
        self.account(ino, &w.inode, w.blocks);
        if w.blocks != stored_blocks {
            let (found, counted) = (stored_blocks, w.blocks);
            if self.problem(IssueKind::InodeBlocks {
                ino,
                found,
                counted,
            }) {
                self.edit_inode(ino, |head| head.blocks.set(counted))?;
            }
        }
        self.check_saved(&w)?;
        self.check_compression(&w)?;
        let folds = kind == FileKind::Directory
            && geo.features.contains(Features::CASEFOLD)
            && self.sb.s_encoding.get() != ENCODING_NONE;
        if w.inode.flags.contains(InodeFlags::CASEFOLD)
            && !folds
            && self.problem(IssueKind::CasefoldFlag { ino })
        {
            let flag = InodeFlags::CASEFOLD.bits();
            self.edit_inode(ino, |head| head.flags.set(head.flags.get() & !flag))?;
        }
        if w.inode.flags.contains(InodeFlags::COMPRESS)
            && !geo.features.contains(Features::COMPRESSION)
            && self.problem(IssueKind::CompressFlag { ino })
        {
            let flag = InodeFlags::COMPRESS.bits();
            self.edit_inode(ino, |head| head.flags.set(head.flags.get() & !flag))?;
        }
        let failures = w.inode.current_depth as u16;
        if kind == FileKind::Regular
            && failures != 0
            && !w.inode.inline.contains(InlineFlags::PIN_FILE)
            && self.problem(IssueKind::GcFailures {
                ino,
                found: failures,
            })
        {
            self.edit_inode(ino, |head| head.current_depth.set(0))?;
        }
        let (_, _, len) = w.inode.extent;
        if w.cluster == 1
            && w.cluster_log_unknown.is_none()
            && w.extent_matched != u64::from(len)
            && self.problem(IssueKind::InodeExtent { ino })
        {
            self.edit_inode(ino, |head| head.ext.len.set(0))?;
        }
        Ok(())
    }

    /// A node's footer names the block that its log went on with.
    pub(super) fn check_next(
        &mut self,
        ino: Ino,
        nid: Nid,
        footer: &Footer,
    ) -> Result<(), CheckError> {
        let next = footer.next;
        // Past the last segment when the log ended there; 0 from tools that write no chain.
        let fine = next.0 == 0
            || next.0 == u32::MAX
            || self.geo.in_main(next)
            || u64::from(next.0) == self.geo.main_end();
        if !fine && self.problem(IssueKind::NodeNext { nid, ino, next }) {
            let footer = *footer;
            self.edit_node(nid, |bytes| {
                let next = BlockAddr(0);
                let _ = Footer { next, ..footer }.write(bytes);
            })?;
        }
        Ok(())
    }

    /// What an inode says that compression saved.
    fn check_saved(&mut self, w: &Walk) -> Result<(), CheckError> {
        // Without a mark nothing is compressed, however large clusters are.
        let known = w.cluster > 1 || (w.cluster_log_unknown.is_some() && w.marks == 0);
        let Some(extra) = w.inode.extra.filter(|_| known) else {
            return Ok(());
        };
        let (ino, found, counted) = (w.ino, extra.compr_blocks, w.saved);
        if found != counted
            && self.problem(IssueKind::CompressSaved {
                ino,
                found,
                counted,
            })
        {
            let at = WORDS_OFFSET + offset_of!(RawExtra, compr_blocks);
            self.edit_node(ino.nid(), |bytes| {
                bytes[at..at + 8].copy_from_slice(&counted.to_le_bytes());
            })?;
        }
        Ok(())
    }

    /// Tells of wrong fields, and stores them put right.
    fn tell_fields(
        &mut self,
        ino: Ino,
        errors: Vec<FormatError>,
        mended: &[u8],
    ) -> Result<(), CheckError> {
        let mut repair = false;
        for error in errors {
            // Blocks are counted anyway.
            if matches!(error, FormatError::InodeBlocks { .. }) {
                continue;
            }
            repair |= self.problem(IssueKind::InodeField {
                error: error.into(),
            });
        }
        if repair {
            self.edit_node(ino.nid(), |bytes| bytes.copy_from_slice(mended))?;
        }
        Ok(())
    }

    /// What is special about inline contents and links.
    fn check_contents(&mut self, w: &Walk, block: &[u8]) -> Result<(), CheckError> {
        let ino = w.ino;
        if w.inode
            .inline
            .intersects(InlineFlags::DATA | InlineFlags::DENTRY)
        {
            let at = w.layout.address_bytes().start;
            let reserved = block
                .get(at..at + INLINE_RESERVED_WORDS * 4)
                .and_then(|b| b.first_chunk::<4>())
                .map_or(0, |b| u32::from_le_bytes(*b));
            if reserved != 0
                && self.problem(IssueKind::InlineReserved {
                    ino,
                    found: reserved,
                })
            {
                self.edit_node(ino.nid(), |bytes| {
                    if let Some(word) = bytes.get_mut(at..at + 4) {
                        word.fill(0);
                    }
                })?;
            }
        }
        if w.inode.inline.contains(InlineFlags::DATA)
            && !w.inode.inline.contains(InlineFlags::DATA_EXIST)
            && block[w.layout.inline_bytes()].iter().any(|b| *b != 0)
            && self.problem(IssueKind::InlineUnsaid { ino })
        {
            self.edit_inode(ino, |head| {
                head.inline |= InlineFlags::DATA_EXIST.bits();
            })?;
        }
        self.check_inline_flags(w)?;
        if w.kind == FileKind::Symlink {
            if w.inode.size == 0 {
                if self.problem(IssueKind::SymlinkEmpty { ino }) {
                    self.free_node(ino.nid());
                }
            } else if self.target_is_empty(w, block)? {
                self.problem(IssueKind::SymlinkTarget { ino });
            }
        }
        Ok(())
    }

    /// Whether a link of some size has no target: neither the engine nor Linux follows it. There is no second source, so it stays.
    fn target_is_empty(&mut self, w: &Walk, block: &[u8]) -> Result<bool, CheckError> {
        if w.inode.advise.contains(Advise::ENCRYPT) {
            return Ok(false);
        }
        if w.inode.inline.contains(InlineFlags::DATA) {
            let target = block.get(w.layout.inline_bytes()).unwrap_or_default();
            return Ok(target.first().is_none_or(|b| *b == 0));
        }
        let first = block.get(w.layout.address_bytes()).unwrap_or_default();
        let first = first
            .first_chunk::<4>()
            .map_or(0, |b| u32::from_le_bytes(*b));
        let first = BlockAddr(first);
        // An address outside of the volume is named where addresses are looked at.
        if first.is_stored() && !self.geo.in_main(first) {
            return Ok(false);
        }
        Ok(!first.is_stored() || self.store.read(first, "target of a symbolic link")?[0] == 0)
    }

    /// Contents that are encrypted, verified or compressed are never inline: Linux 6.1 refuses such an inode. Inline contents
    /// are what they are, so the flag goes.
    fn check_inline_flags(&mut self, w: &Walk) -> Result<(), CheckError> {
        let ino = w.ino;
        if w.kind != FileKind::Regular || !w.inode.inline.contains(InlineFlags::DATA) {
            return Ok(());
        }
        for (advise, what) in [
            (Advise::ENCRYPT, "encrypted"),
            (Advise::VERITY, "fs-verity"),
        ] {
            if w.inode.advise.contains(advise) && self.problem(IssueKind::InlineFlag { ino, what })
            {
                self.edit_inode(ino, |head| head.advise &= !advise.bits())?;
            }
        }
        let compressed = w.inode.flags.contains(InodeFlags::COMPRESS)
            && self.geo.features.contains(Features::COMPRESSION);
        let what = "compressed";
        if compressed && self.problem(IssueKind::InlineFlag { ino, what }) {
            let flag = InodeFlags::COMPRESS.bits();
            self.edit_inode(ino, |head| head.flags.set(head.flags.get() & !flag))?;
        }
        Ok(())
    }

    fn keep_directory(&mut self, w: &Walk, first_block: usize) {
        let casefold = w.inode.flags.contains(InodeFlags::CASEFOLD)
            && self.geo.features.contains(Features::CASEFOLD);
        let encoding = match self.sb.s_encoding.get() {
            ENCODING_NONE => ENCODING_UTF8_12_1,
            encoding => encoding,
        };
        self.scan.dirs.push(DirInfo {
            ino: w.ino,
            blocks: first_block,
            inline: w.inode.inline.contains(InlineFlags::DENTRY),
            casefold,
            folding_known: casefold::is_known(encoding),
            encrypted: w.inode.advise.contains(Advise::ENCRYPT),
            dir_level: w.inode.dir_level,
            depth: w.inode.current_depth,
            size: w.inode.size,
            dots_pending: w.inode.inline.contains(InlineFlags::DOTS),
        });
    }

    fn count_kind(&mut self, kind: FileKind) {
        let stats = &mut self.scan.stats;
        match kind {
            FileKind::Regular => stats.files += 1,
            FileKind::Directory => stats.directories += 1,
            FileKind::Symlink => stats.symlinks += 1,
            _ => stats.specials += 1,
        }
    }

    /// Follows the node of attributes.
    pub(super) fn open_xattr_node(&mut self, w: &mut Walk) -> Result<Option<Vec<u8>>, CheckError> {
        let nid = w.inode.xattr_nid;
        if nid.0 == 0 {
            return Ok(None);
        }
        self.open_node(w, nid, Place::Xattr, NodeOffset::XATTR)
    }
}
