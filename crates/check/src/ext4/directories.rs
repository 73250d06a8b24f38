//! Directory blocks and the names in them.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use blockwright_ondisk::common::casefold;
use blockwright_ondisk::ext4::dir::{self, DirBlock, DirEntry, DirFormat};
use blockwright_ondisk::ext4::inode::{BLOCK_AREA, InodeFlags};
use blockwright_ondisk::ext4::xattr::{INDEX_SYSTEM, INLINE_DATA_NAME, XattrList, XattrValue};
use blockwright_ondisk::ext4::{BlockNo, FileKind, FormatError, Incompat, Ino, Inode, htree};

use super::context::Checker;
use super::htree::{DirBlocks, Index, Role};
use super::issue::IssueKind;
use super::state::{DirInfo, DirRun};
use super::{CheckError, Phase};

/// Directory blocks read at once.
const READ_BLOCKS: u32 = 64;
/// Where entries begin in an inode that holds a directory: behind the parent's number in `i_block`.
const INLINE_ENTRIES: Range<usize> = 0x28 + 4..0x28 + BLOCK_AREA;
/// Names are encrypted in blocks of this size.
const ENCRYPTED_NAME_MIN: usize = 16;

/// A directory while its blocks are checked.
pub(super) struct DirPass {
    pub dir: DirInfo,
    pub format: DirFormat,
    pub index: Option<Index>,
    /// Hashes of the names seen.
    names: HashSet<u64>,
    hasher: RandomState,
    /// The type that the current entry records, valid or not.
    stored_kind: u8,
    pub dotdot: Ino,
}

/// What is to become of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    Remove,
}

/// A name for messages.
pub(super) fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl Checker {
    /// Checks all directories.
    pub fn check_directories(&mut self) -> Result<(), CheckError> {
        let total = self.scan.dirs.len();
        for n in 0..total {
            if n % 1024 == 0 {
                self.report_progress(Phase::Directories, n as u64, total as u64)?;
            }
            let dir = self.scan.dirs[n].clone();
            let dotdot = if dir.inline {
                self.check_inline_directory(&dir)?
            } else {
                self.check_block_directory(dir)?
            };
            self.scan.dirs[n].dotdot = dotdot;
        }
        self.resolve_second_names();
        self.remove_second_links()?;
        self.scan.restart |= self.raise_marks()?;
        Ok(())
    }

    fn dir_pass(&self, dir: DirInfo) -> DirPass {
        let format = dir.format(&self.geo);
        DirPass {
            dir,
            format,
            index: None,
            names: HashSet::new(),
            hasher: RandomState::new(),
            stored_kind: 0,
            dotdot: Ino(0),
        }
    }

    fn check_block_directory(&mut self, dir: DirInfo) -> Result<Ino, CheckError> {
        let mut pass = self.dir_pass(dir);
        let ino = pass.dir.ino;
        let drop_index = self.scan.unindex.contains(&ino.0);
        if pass.dir.index && !drop_index {
            let index = self.read_index(&pass.dir, &pass.format)?;
            pass.index = Some(index);
        }
        if pass.dir.index
            && self.repairing()
            && (drop_index || pass.index.as_ref().is_some_and(|i| i.bad))
            && self.mode() == crate::Mode::Yes
        {
            self.remove_index(&pass)?;
            pass.index = None;
            pass.dir.index = false;
        }
        let blocks = (pass.dir.size >> self.geo.block_bits).min(u64::from(u32::MAX)) as u32;
        let runs: Vec<DirRun> = self.scan.dir_runs[pass.dir.runs.clone()].to_vec();
        let mut next = 0;
        for run in runs {
            if run.logical > next {
                self.report_hole(&pass, next)?;
            }
            let mut at = 0;
            while at < run.len {
                let count = READ_BLOCKS.min(run.len - at);
                let first = BlockNo(run.physical.0 + u64::from(at));
                let bytes = self.store.read_run(first, u64::from(count), "directory")?;
                for (n, block) in bytes.chunks_exact(self.geo.block_len()).enumerate() {
                    let logical = run.logical + at + n as u32;
                    let place = BlockNo(first.0 + n as u64);
                    self.check_dir_block(&mut pass, logical, place, block)?;
                }
                at += count;
            }
            next = run.logical.saturating_add(run.len);
        }
        if next < blocks {
            self.report_hole(&pass, next)?;
        }
        let bad = self.check_unreferenced(&pass);
        if bad && self.mode() == crate::Mode::Yes {
            // Read again by the next round, without its index.
            self.remove_index(&pass)?;
        }
        Ok(pass.dotdot)
    }

    fn report_hole(&mut self, pass: &DirPass, logical: u32) -> Result<(), CheckError> {
        if self.problem(IssueKind::DirHole {
            dir: pass.dir.ino,
            logical,
        }) {
            self.scan.restart = true;
            if !self.seek_names_behind_marks()? {
                self.fill_holes(pass.dir.ino)?;
            }
        }
        Ok(())
    }

    /// Leaves the index does not know. Whether there are any, or it is bad anyway.
    fn check_unreferenced(&mut self, pass: &DirPass) -> bool {
        let Some(index) = &pass.index else {
            return false;
        };
        let mut bad = index.bad;
        if !bad {
            let mut lost = Vec::new();
            for run in &self.scan.dir_runs[pass.dir.runs.clone()] {
                for logical in (0..run.len).map(|n| run.logical + n) {
                    if !index.roles.contains_key(&logical) {
                        lost.push(logical);
                    }
                }
            }
            for logical in lost {
                bad |= self.problem(IssueKind::HtreeUnreferenced {
                    dir: pass.dir.ino,
                    logical,
                });
            }
        }
        bad && pass.dir.index
    }

    fn check_dir_block(
        &mut self,
        pass: &mut DirPass,
        logical: u32,
        place: BlockNo,
        block: &[u8],
    ) -> Result<(), CheckError> {
        let role = pass
            .index
            .as_ref()
            .and_then(|i| i.roles.get(&logical).copied());
        let index_root = matches!(role, Some(Role::Index(htree::DxPlace::Root)));
        if matches!(role, Some(Role::Index(_))) && !index_root {
            return Ok(());
        }
        let mut work = block.to_vec();
        let mut changed = false;
        let mut end = block.len();
        let checked = pass.format.checksums && !index_root;
        if checked {
            match DirBlock::leaf(block, pass.format) {
                Ok(_) => end -= dir::TAIL_SIZE,
                Err(_) => {
                    // A bad index leaves it open what the block is; then it has no tail to miss.
                    let unknown = pass.index.as_ref().is_some_and(|i| i.bad) && role.is_none();
                    let taken = pass.index.is_some() && logical == 0;
                    if !unknown && !taken {
                        let dir = pass.dir.ino;
                        if self.problem(IssueKind::DirTail { dir, logical }) {
                            end = self.make_tail(pass, &mut work);
                            changed = true;
                        }
                    }
                }
            }
        }
        if !index_root {
            changed |= self.check_entries_of(pass, logical, place, &mut work[..end], role)?;
        } else {
            changed |= self.check_root_dots(pass, place, &mut work)?;
        }
        let seed = self.geo.inode_seed(pass.dir.ino, pass.dir.generation);
        if checked && !changed {
            let bad = matches!(
                dir::verify_leaf_checksum(block, &pass.format, seed),
                Err(FormatError::DirChecksum { .. })
            );
            if bad
                && self.problem(IssueKind::DirChecksum {
                    dir: pass.dir.ino,
                    logical,
                })
            {
                changed = true;
            }
        }
        if changed && self.repairing() {
            self.store_dir_block(pass, place, work, index_root);
        }
        Ok(())
    }

    /// Stores a directory block with a new checksum.
    pub fn store_dir_block(
        &mut self,
        pass: &DirPass,
        place: BlockNo,
        mut bytes: Vec<u8>,
        index_root: bool,
    ) {
        let seed = self.geo.inode_seed(pass.dir.ino, pass.dir.generation);
        let sum = if index_root {
            htree::set_checksum(&mut bytes, htree::DxPlace::Root, &pass.format, seed)
        } else {
            dir::set_leaf_checksum(&mut bytes, &pass.format, seed)
        };
        // Without a place for a sum the block is stored as it is; the next round sees it again.
        if sum.is_ok() || !pass.format.checksums {
            self.write(place, bytes);
        }
    }

    /// "." and ".." of an indexed directory; the rest of the block is the index.
    fn check_root_dots(
        &mut self,
        pass: &mut DirPass,
        place: BlockNo,
        work: &mut [u8],
    ) -> Result<bool, CheckError> {
        self.check_entries_of(
            pass,
            0,
            place,
            work,
            Some(Role::Index(htree::DxPlace::Root)),
        )
    }

    /// Checks the entries of a block (or of a piece of inline data). Whether `bytes` was changed.
    pub fn check_entries_of(
        &mut self,
        pass: &mut DirPass,
        logical: u32,
        place: BlockNo,
        bytes: &mut [u8],
        role: Option<Role>,
    ) -> Result<bool, CheckError> {
        let ino = pass.dir.ino;
        let mut changed = false;
        let mut at = 0;
        let mut previous: Option<usize> = None;
        let mut position = 0;
        while at < bytes.len() {
            pass.stored_kind = bytes.get(at + 7).copied().unwrap_or(0);
            let parsed = DirBlock::entries_of(bytes, pass.format).entry_at(at);
            // A place that no name fits into: the tail of a block that has no checksum any more, for one.
            if pass.format.stored_hash
                && let (Ok(entry), Some(before)) = (&parsed, previous)
                && let (rec_len, false) = (entry.rec_len, entry.is_used())
                && rec_len < pass.format.min_rec_len(1)
                && self.problem(IssueKind::DirEntry {
                    dir: ino,
                    logical,
                    block: place,
                    error: FormatError::DirRecLenSmall {
                        offset: at,
                        rec_len,
                    }
                    .into(),
                })
            {
                Self::join_entries(bytes, before, at + rec_len, &pass.format);
                changed = true;
                at += rec_len;
                continue;
            }
            if let Ok(entry) = &parsed
                && let Some(name) = self.name_in_utf8(pass, entry)
                && self.problem(IssueKind::EntryEncoding {
                    dir: ino,
                    name: show(entry.name),
                })
            {
                let start = at + dir::ENTRY_HEADER;
                bytes[start..start + name.len()].copy_from_slice(&name);
                changed = true;
                // Looked at again, under the name that it has now.
                continue;
            }
            let (offset, rec_len) = match parsed {
                Ok(entry) => {
                    let (offset, mut rec_len) = (entry.offset, entry.rec_len);
                    let mut verdict = self.check_entry(pass, logical, position, &entry, role)?;
                    if verdict == Fix::Keep && entry.is_used() && entry.is_dot_or_dotdot() {
                        let end = dir::ENTRY_HEADER + entry.name.len();
                        if bytes.get(offset + end).is_some_and(|b| *b != 0)
                            && self.problem(IssueKind::DotPadding { dir: ino })
                        {
                            verdict = Fix::Replace([&bytes[offset..offset + end], &[0]].concat());
                        }
                    }
                    if let Fix::Replace(new) = verdict {
                        if let Some(dest) = bytes.get_mut(offset..offset + new.len()) {
                            dest.copy_from_slice(&new);
                            changed = true;
                        }
                        // The entry may have been split.
                        let stored = u16::from_le_bytes([bytes[offset + 4], bytes[offset + 5]]);
                        rec_len = dir::decode_rec_len(stored, pass.format.block_size);
                    } else if verdict == Fix::Remove {
                        bytes[offset..offset + 4].fill(0);
                        changed = true;
                    }
                    (offset, rec_len)
                }
                Err(error) => {
                    let repair = self.problem(IssueKind::DirEntry {
                        dir: ino,
                        logical,
                        block: place,
                        error: error.clone().into(),
                    });
                    if !repair {
                        break;
                    }
                    changed = true;
                    match error {
                        FormatError::DirInode { offset, .. }
                        | FormatError::DirNameEmpty { offset } => {
                            bytes[offset..offset + 4].fill(0);
                        }
                        FormatError::DirNameByte { offset, .. } => {
                            let len = usize::from(bytes[offset + 6]);
                            for b in &mut bytes[offset + 8..offset + 8 + len] {
                                if matches!(*b, 0 | b'/') {
                                    *b = b'.';
                                }
                            }
                        }
                        _ => Self::skip_damage(bytes, at, previous, &pass.format),
                    }
                    // Look at the repaired entry again, unless it became part of the one before.
                    if let Some(before) = previous
                        && DirBlock::entries_of(bytes, pass.format)
                            .entry_at(before)
                            .is_ok_and(|e| before + e.rec_len > at)
                    {
                        at = before
                            + DirBlock::entries_of(bytes, pass.format)
                                .entry_at(before)
                                .map_or(bytes.len(), |e| e.rec_len);
                    }
                    continue;
                }
            };
            previous = Some(offset);
            at = offset + rec_len;
            position += 1;
            if matches!(role, Some(Role::Index(_))) && position == 2 {
                break;
            }
        }
        if logical == 0 && !pass.dir.inline && position < 2 {
            self.report_missing_dots(pass, position);
        }
        Ok(changed)
    }

    /// A valid name in place of one that the volume does not allow in this directory: a dot for each byte that is
    /// not UTF-8.
    fn name_in_utf8(&self, pass: &DirPass, entry: &DirEntry<'_>) -> Option<Vec<u8>> {
        let strict = self.sb.encoding_flags.get() & casefold::STRICT != 0;
        if !strict || !pass.dir.casefold || pass.dir.encrypted || !entry.is_used() {
            return None;
        }
        std::str::from_utf8(entry.name).err()?;
        let mut out = Vec::with_capacity(entry.name.len());
        for chunk in entry.name.utf8_chunks() {
            out.extend_from_slice(chunk.valid().as_bytes());
            out.resize(out.len() + chunk.invalid().len(), b'.');
        }
        Some(out)
    }

    fn report_missing_dots(&mut self, pass: &DirPass, position: usize) {
        let dir = pass.dir.ino;
        if position == 0 {
            self.problem(IssueKind::DotMissing { dir });
        } else {
            self.problem(IssueKind::DotDotMissing { dir });
        }
    }

    fn check_entry(
        &mut self,
        pass: &mut DirPass,
        logical: u32,
        position: usize,
        entry: &DirEntry<'_>,
        role: Option<Role>,
    ) -> Result<Fix, CheckError> {
        if logical == 0 && !pass.dir.inline && position < 2 {
            return self.check_dots(pass, position, entry);
        }
        if !entry.is_used() {
            return Ok(Fix::Keep);
        }
        if self.check_name(pass, logical, entry, role) == Verdict::Remove {
            return Ok(Fix::Remove);
        }
        self.check_target(pass, entry)
    }

    /// The first two entries of a directory.
    fn check_dots(
        &mut self,
        pass: &mut DirPass,
        position: usize,
        entry: &DirEntry<'_>,
    ) -> Result<Fix, CheckError> {
        let dir = pass.dir.ino;
        let kind = pass.format.filetype.then_some(FileKind::Directory);
        if position == 0 {
            let right_name = entry.is_used() && entry.name == b".";
            if !right_name {
                if self.problem(IssueKind::DotMissing { dir }) {
                    self.count_link(dir);
                    return Ok(Fix::rewrite(entry, dir, kind, b".", &pass.format));
                }
                return Ok(Fix::Keep);
            } else if entry.ino != dir {
                if self.problem(IssueKind::DotInode {
                    dir,
                    found: entry.ino,
                }) {
                    return Ok(Fix::rewrite(entry, dir, kind, b".", &pass.format));
                }
            } else if entry.rec_len > 12 && self.problem(IssueKind::DotBig { dir }) {
                return Ok(Fix::rewrite(entry, dir, kind, b".", &pass.format));
            }
            self.count_link(dir);
        } else {
            if !(entry.is_used() && entry.name == b"..") {
                if self.problem(IssueKind::DotDotMissing { dir }) {
                    // Which directory it should name is found by the check of connectivity.
                    pass.dotdot = Ino::ROOT;
                    return Ok(Fix::rewrite(entry, Ino::ROOT, kind, b"..", &pass.format));
                }
                return Ok(Fix::Keep);
            }
            pass.dotdot = entry.ino;
            // Its parent has lost the link of a directory that waits to be deleted.
            let state = self.scan.inodes.get(dir);
            if !state.is_some_and(|s| s.marks.orphan && s.links == 0) {
                self.count_link(entry.ino);
            }
        }
        Ok(self.check_entry_type(pass, entry, FileKind::Directory))
    }

    fn check_name(
        &mut self,
        pass: &mut DirPass,
        logical: u32,
        entry: &DirEntry<'_>,
        role: Option<Role>,
    ) -> Verdict {
        let dir = pass.dir.ino;
        let name = entry.name;
        let dots = entry.is_dot_or_dotdot();
        let hash = pass.hasher.hash_one(name);
        if (dots || !pass.names.insert(hash))
            && self.problem(IssueKind::EntryDuplicate {
                dir,
                name: show(name),
            })
        {
            // The inode is not lost: without another name it goes to lost+found.
            return Verdict::Remove;
        }
        if let (Some(Role::Leaf(low, high)), Some(index)) = (role, &mut pass.index)
            && let Some(hasher) = index.hasher
            && let Some(hash) = hasher.hash(name, entry.stored_hash)
            && !Self::hash_fits(hash.hash, low, high)
        {
            index.bad |= self.problem(IssueKind::HtreeHash {
                dir,
                logical,
                name: show(name),
            });
        }
        Verdict::Keep
    }

    fn check_target(
        &mut self,
        pass: &mut DirPass,
        entry: &DirEntry<'_>,
    ) -> Result<Fix, CheckError> {
        let dir = pass.dir.ino;
        let ino = entry.ino;
        let name = || show(entry.name);
        let wrong = |what| IssueKind::EntryInode {
            dir,
            name: name(),
            ino,
            what,
        };
        let state = self.scan.inodes.get(ino).copied();
        let what = if ino == Ino::ROOT {
            Some("the root")
        } else if ino < self.geo.first_ino {
            Some("reserved")
        } else {
            match state {
                None => {
                    if self.unused_part(ino).is_some() && self.used_behind_mark(ino)? {
                        // Kept; the group's mark is raised when all names were seen.
                        self.problem(IssueKind::EntryUnusedInode {
                            dir,
                            name: name(),
                            ino,
                        });
                        self.note_behind_mark(ino);
                        return Ok(Fix::Keep);
                    }
                    Some("not in use")
                }
                Some(state) if state.marks.ea_inode => Some("an attribute value"),
                Some(state) if state.marks.bad || state.kind.is_none() => Some("not valid"),
                // A mount for writing deletes it, whatever names it.
                Some(state) if state.marks.orphan => Some("an orphan without links"),
                Some(_) => None,
            }
        };
        let (Some(state), None) = (state, what) else {
            let fix = self.problem(wrong(what.unwrap_or("not in use")));
            return Ok(if fix { Fix::Remove } else { Fix::Keep });
        };
        let kind = state.kind.unwrap_or(FileKind::Regular);
        if pass.dir.encrypted
            && let Some(what) = self.encrypted_entry_problem(pass, entry, kind)
        {
            let fix = self.problem(wrong(what));
            return Ok(if fix { Fix::Remove } else { Fix::Keep });
        }
        if kind == FileKind::Directory
            && let Some(n) = self.scan.dir_position(ino)
        {
            let first = self.scan.dirs[n].parent;
            let is_second = first.0 != 0;
            if is_second
                && !(self.is_parent_of(n, first, dir)? && self.scan.second_names.insert((n, dir.0)))
            {
                let fix = self.problem(IssueKind::EntrySecondLink {
                    dir,
                    name: name(),
                    ino,
                });
                return Ok(if fix { Fix::Remove } else { Fix::Keep });
            }
            if is_second {
                // The link was counted for the other entry.
                return Ok(self.check_entry_type(pass, entry, kind));
            }
            self.scan.dirs[n].parent = dir;
        }
        self.count_link(ino);
        self.scan.stats.names += 1;
        Ok(self.check_entry_type(pass, entry, kind))
    }

    /// The reason why an entry cannot belong to an encrypted directory. Names are encrypted in
    /// blocks, and every entry follows the directory's policy.
    fn encrypted_entry_problem(
        &self,
        pass: &DirPass,
        entry: &DirEntry<'_>,
        kind: FileKind,
    ) -> Option<&'static str> {
        let Some(policy) = self.scan.policies.get(&pass.dir.ino.0) else {
            // It has none: that is reported, and the directory is not encrypted afterwards.
            return None;
        };
        if entry.name.len() < ENCRYPTED_NAME_MIN {
            return Some("under a name too short for an encrypted one");
        }
        let encrypts = matches!(
            kind,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        match self.scan.policies.get(&entry.ino.0) {
            None if encrypts => Some("not encrypted, in an encrypted directory"),
            Some(own) if own != policy => Some("encrypted by another policy than its directory"),
            _ => None,
        }
    }

    fn check_entry_type(&mut self, pass: &DirPass, entry: &DirEntry<'_>, kind: FileKind) -> Fix {
        if !pass.format.filetype || entry.kind == Some(kind) {
            return Fix::Keep;
        }
        let fix = self.problem(IssueKind::EntryType {
            dir: pass.dir.ino,
            name: show(entry.name),
            ino: entry.ino,
            found: pass.stored_kind,
            expected: kind.dirent_code(),
        });
        if fix {
            Fix::rewrite(entry, entry.ino, Some(kind), entry.name, &pass.format)
        } else {
            Fix::Keep
        }
    }

    fn count_link(&mut self, ino: Ino) {
        if let Some(state) = self.scan.inodes.get_mut(ino) {
            state.found = state.found.saturating_add(1);
        }
    }

    /// A directory in its inode: the parent's number, then entries in `i_block` and behind it in
    /// the attribute.
    fn check_inline_directory(&mut self, dir: &DirInfo) -> Result<Ino, CheckError> {
        let geo = self.geo.clone();
        let mut pass = self.dir_pass(dir.clone());
        let ino = dir.ino;
        let (Some(mut raw), Some(inode)) = (self.read_raw_inode(ino)?, self.read_inode(ino)?)
        else {
            return Ok(Ino(0));
        };
        if !geo.features.has_incompat(Incompat::INLINE_DATA)
            || !inode.flags.contains(InodeFlags::INLINE_DATA)
        {
            return Ok(Ino(0));
        }
        let parent = Ino(u32::from_le_bytes([
            inode.block[0],
            inode.block[1],
            inode.block[2],
            inode.block[3],
        ]));
        self.count_link(ino);
        self.count_link(parent);
        let place = self.inode_place(ino).map_or(BlockNo(0), |(block, _)| block);
        let mut first = inode.block[4..BLOCK_AREA].to_vec();
        let mut changed = self.check_entries_of(&mut pass, 0, place, &mut first, None)?;
        raw[INLINE_ENTRIES].copy_from_slice(&first);
        if let Some(range) = self.inline_rest_range(&inode, &raw) {
            let mut second = raw[range.clone()].to_vec();
            changed |= self.check_entries_of(&mut pass, 1, place, &mut second, None)?;
            raw[range].copy_from_slice(&second);
        }
        if changed && self.repairing() {
            self.write_raw_inode(ino, raw)?;
        }
        Ok(parent)
    }

    /// Where the entries of a directory in its inode lie in the bytes of the inode.
    pub fn inline_parts(&self, inode: &Inode, raw: &[u8]) -> Vec<Range<usize>> {
        let rest = self.inline_rest_range(inode, raw);
        std::iter::once(INLINE_ENTRIES).chain(rest).collect()
    }

    /// Those in the attribute that continues the inline data.
    fn inline_rest_range(&self, inode: &Inode, raw: &[u8]) -> Option<Range<usize>> {
        let at = inode.attributes_offset(&self.geo)?;
        let area = raw.get(at..)?;
        let list = XattrList::parse_ibody(area, &self.geo).ok()??;
        let XattrValue::Local(value) = list.find(INDEX_SYSTEM, INLINE_DATA_NAME)?.value else {
            return None;
        };
        let start = at + (value.as_ptr() as usize).checked_sub(area.as_ptr() as usize)?;
        let range = start..start + value.len();
        (!range.is_empty() && range.end <= raw.len()).then_some(range)
    }

    /// The device block of a block of a directory.
    pub fn dir_block(&self, dir: &DirInfo, logical: u32) -> Option<BlockNo> {
        DirBlocks { checker: self, dir }.physical(logical)
    }
}

/// What is done with an entry.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Fix {
    /// Nothing.
    Keep,
    /// Its inode number becomes 0.
    Remove,
    /// Its bytes are replaced.
    Replace(Vec<u8>),
}

impl Fix {
    /// The entry with another name, inode or type, in the place it has.
    fn rewrite(
        entry: &DirEntry<'_>,
        ino: Ino,
        kind: Option<FileKind>,
        name: &[u8],
        format: &DirFormat,
    ) -> Self {
        let split = name == b"." && entry.rec_len >= 12 + 12;
        let rec_len = if split { 12 } else { entry.rec_len };
        let mut bytes = vec![0; entry.rec_len];
        if dir::write_entry(&mut bytes, 0, rec_len, ino, kind, name, format).is_none() {
            return Self::Keep;
        }
        if split {
            let rest = entry.rec_len - 12;
            let _ = dir::write_entry(&mut bytes, 12, rest, Ino(0), None, b"", format);
            bytes.truncate(24);
        } else {
            bytes.truncate((dir::ENTRY_HEADER + name.len()).next_multiple_of(4));
        }
        Self::Replace(bytes)
    }
}
