//! Extended attributes: in inodes and in shared blocks. Values in inodes of their own: `value_inodes`.
//!
//! Of a damaged table, the attributes in front of the damage are kept, and the table is laid out anew. References to blocks and to inodes of
//! values are counted while inodes are checked, and compared when all were seen.

use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::xattr::{self, XattrEntry, XattrList, XattrValue};
use blockwright_ondisk::ext4::{BlockNo, Compat, FormatError, Incompat, Ino, Inode};

use super::CheckError;
use super::context::Checker;
use super::inode_fields::{Fields, set_sectors};
use super::issue::IssueKind;
use super::state::{EaBlock, Values};
use super::value_inodes::ValueFault;

/// Name (under [`xattr::INDEX_ENCRYPTION`]) of an inode's encryption context.
const ENCRYPTION_NAME: &[u8] = b"c";
/// Bytes at the end of a context that each inode has for itself.
const NONCE_BYTES: usize = 16;

/// How long a context is, by its version; `None` for a version that is not known.
fn context_length(version: u8) -> Option<usize> {
    match version {
        0 => Some(0),
        1 => Some(28),
        2 => Some(40),
        _ => None,
    }
}

/// The policy that a context follows; `None` when it is no context. Contexts of unknown versions are not compared.
fn policy_of(context: &[u8]) -> Option<Vec<u8>> {
    let version = context.first().filter(|version| **version > 0)?;
    match context_length(*version) {
        Some(len) if len == context.len() => Some(context[..len - NONCE_BYTES].to_vec()),
        Some(_) => None,
        None => Some(Vec::new()),
    }
}

/// The part of a damaged table of attributes that is good.
struct Good {
    kept: Vec<Kept>,
    /// Inodes that hold values of these attributes.
    holders: Vec<Ino>,
    /// What these values add to the counts of the file.
    values: Values,
}

/// Whether values of a table overlap. Tables are at most a block, entries at least 16 bytes.
fn overlapping(entries: &[XattrEntry<'_>], area: &[u8]) -> Option<usize> {
    let base = area.as_ptr() as usize;
    let mut ranges: Vec<(usize, usize, usize)> = entries
        .iter()
        .filter_map(|e| match e.value {
            XattrValue::Local(value) if !value.is_empty() => {
                let start = value.as_ptr() as usize - base;
                Some((start, start + value.len(), e.offset))
            }
            _ => None,
        })
        .collect();
    ranges.sort_unstable();
    ranges.windows(2).find(|w| w[0].1 > w[1].0).map(|w| w[1].2)
}

/// Whether the stored hash of an attribute in `area` is that of its name and value. Kernels and e2fsprogs hash whole words:
/// the bytes that pad a value count as they are, not as zeroes.
fn hash_matches(entry: &XattrEntry<'_>, area: &[u8]) -> bool {
    if entry.verify_hash(None).is_ok() {
        return true;
    }
    let XattrValue::Local(value) = entry.value else {
        return false;
    };
    // One of no bytes has no padding, and need not be a part of the area.
    if value.is_empty() {
        return false;
    }
    let at = value.as_ptr() as usize - area.as_ptr() as usize;
    area.get(at..at + value.len().next_multiple_of(4))
        .is_some_and(|words| {
            let value = XattrValue::Local(words);
            XattrEntry { value, ..*entry }.verify_hash(None).is_ok()
        })
}

impl Checker {
    /// Checks both places an inode may keep attributes in, and enters the block among the used.
    pub fn check_inode_attributes(&mut self, fields: &mut Fields) -> Result<(), CheckError> {
        self.check_ibody(fields)?;
        self.check_attribute_block(fields)?;
        self.check_encryption(fields)
    }

    /// An encrypted inode has a context, which names its policy.
    fn check_encryption(&mut self, fields: &mut Fields) -> Result<(), CheckError> {
        if !fields.inode.flags.contains(InodeFlags::ENCRYPT)
            || !self.geo.features.has_incompat(Incompat::ENCRYPT)
            || self.is_quota_file(fields.ino)
        {
            return Ok(());
        }
        let ino = fields.ino;
        let context = self.encryption_context(fields)?;
        if let Some(policy) = context.as_deref().and_then(policy_of) {
            self.scan.policies.insert(ino.0, policy);
            return Ok(());
        }
        let flags = fields.inode.flags.bits();
        let what = match context {
            None => "encrypted, but no context says how",
            Some(_) => "encrypted, but its context is invalid",
        };
        if self.problem(IssueKind::InodeFlags { ino, flags, what }) {
            fields.inode.flags -= InodeFlags::ENCRYPT;
            fields.edit().flags(InodeFlags::ENCRYPT.bits(), 0);
            if let Some(dir) = self.scan.dirs.last_mut().filter(|d| d.ino == ino) {
                dir.encrypted = false;
            }
        }
        Ok(())
    }

    /// The encryption policy of an inode: from the attribute in the inode, or from its attribute block.
    fn encryption_context(&self, fields: &Fields) -> Result<Option<Vec<u8>>, CheckError> {
        let find = |list: XattrList<'_>| match list
            .find(xattr::INDEX_ENCRYPTION, ENCRYPTION_NAME)
            .map(|e| e.value)
        {
            Some(XattrValue::Local(value)) => Some(value.to_vec()),
            _ => None,
        };
        let inside = fields
            .inode
            .attributes_offset(&self.geo)
            .and_then(|at| fields.raw.get(at..));
        if let Some(area) = inside
            && let Ok(Some(list)) = XattrList::parse_ibody(area, &self.geo)
            && let Some(context) = find(list)
        {
            return Ok(Some(context));
        }
        let block = fields.inode.file_acl;
        if block.0 == 0 || !self.inside(block) {
            return Ok(None);
        }
        let bytes = self.store.read(block, "attribute block")?;
        Ok(XattrList::parse_block(&bytes, &self.geo)
            .ok()
            .and_then(|(_, list)| find(list)))
    }

    fn check_ibody(&mut self, fields: &mut Fields) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let ino = fields.ino;
        let Some(at) = fields.inode.attributes_offset(&geo) else {
            return Ok(());
        };
        self.check_name_lengths(fields, at);
        self.check_context_length(fields, at);
        self.check_inline_hash(fields, at);
        let area = fields.raw.get(at..).unwrap_or(&[]).to_vec();
        let fault = match XattrList::parse_ibody(&area, &geo) {
            Ok(None) => return Ok(()),
            Ok(Some(list)) => {
                let entries: Vec<XattrEntry<'_>> = list.iter().collect();
                let inline = fields.inode.flags.contains(InodeFlags::INLINE_DATA);
                let fault = self.check_entries(ino, &entries, &area, true, inline)?;
                if fault.is_none() {
                    self.count_holders(ino, &entries)?;
                    fields.values += self.values_of(ino, &entries)?;
                }
                fault
            }
            Err(error) => Some(IssueKind::XattrInode {
                ino,
                error: error.into(),
            }),
        };
        let Some(fault) = fault else {
            return Ok(());
        };
        let repair = self.problem(fault);
        // Attributes are found by walking the table from its start: the start of the next entry
        // is unknown behind a bad one. Valid entries in front of it are kept, and their values stay in use.
        let good = self.good_attributes(ino, &area)?;
        for holder in good.holders {
            self.count_holder(holder)?;
        }
        fields.values += good.values;
        if repair {
            let mut out = area.clone();
            if store_kept(&mut out, &good.kept).is_none() {
                out.fill(0);
            }
            fields.edited = true;
            fields.raw[at..].copy_from_slice(&out);
        }
        Ok(())
    }

    /// A name that ends with padding has a wrong length: a name has no zero byte.
    fn check_name_lengths(&mut self, fields: &mut Fields, at: usize) {
        let area = fields.raw.get(at..).unwrap_or(&[]);
        let Ok(Some(list)) = XattrList::parse_ibody(area, &self.geo) else {
            return;
        };
        let longer: Vec<(usize, usize)> = list
            .iter()
            .filter_map(|e| {
                let len = e.name.iter().position(|b| *b == 0).filter(|n| *n > 0)?;
                let padding = e.name[len..].iter().all(|b| *b == 0);
                let same = len.next_multiple_of(4) == e.name.len().next_multiple_of(4);
                let name = &e.name[..len];
                let short = XattrEntry { name, ..e };
                (padding && same && hash_matches(&short, area)).then_some((e.offset, len))
            })
            .collect();
        for (offset, len) in longer {
            // What else is looked at has the right name, repaired or not.
            fields.raw[at + offset] = len as u8;
            fields.edited |= self.problem(IssueKind::XattrEntry {
                ino: fields.ino,
                offset,
                what: "its name has a zero byte in it",
            });
        }
    }

    /// The version of a context says how long it is. When the hash confirms it, or without one the room up to the next value, its
    /// length is the damage.
    fn check_context_length(&mut self, fields: &mut Fields, at: usize) {
        let area = fields.raw.get(at..).unwrap_or(&[]);
        let Ok(Some(list)) = XattrList::parse_ibody(area, &self.geo) else {
            return;
        };
        let Some(entry) = list.find(xattr::INDEX_ENCRYPTION, ENCRYPTION_NAME) else {
            return;
        };
        let XattrValue::Local(found) = entry.value else {
            return;
        };
        let len = found.first().and_then(|version| context_length(*version));
        let Some(len) = len.filter(|len| *len > 0 && *len != found.len()) else {
            return;
        };
        let place = |value: &[u8]| value.as_ptr() as usize - area.as_ptr() as usize;
        let start = place(found);
        let Some(value) = area.get(start..start + len) else {
            return;
        };
        let others = list.iter().filter_map(|e| match e.value {
            XattrValue::Local(value) if !value.is_empty() => Some(place(value)),
            _ => None,
        });
        let end = others.filter(|at| *at > start).min().unwrap_or(area.len());
        let value = XattrValue::Local(value);
        let hashed = XattrEntry { value, ..entry };
        let offset = entry.offset;
        let confirmed = match entry.hash {
            0 => end - start == len.next_multiple_of(4),
            _ => hashed.verify_hash(None).is_ok(),
        };
        if !confirmed {
            return;
        }
        // What else is looked at has the right length, repaired or not.
        fields.raw[at + offset + 8..][..4].copy_from_slice(&(len as u32).to_le_bytes());
        fields.edited |= self.problem(IssueKind::XattrEntry {
            ino: fields.ino,
            offset,
            what: "its length is not that of an encryption context",
        });
    }

    /// Inline data has no hash: e2fsck ends where there is one.
    fn check_inline_hash(&mut self, fields: &mut Fields, at: usize) {
        let area = fields.raw.get(at..).unwrap_or(&[]);
        let Ok(Some(list)) = XattrList::parse_ibody(area, &self.geo) else {
            return;
        };
        let Some(data) = list.find(xattr::INDEX_SYSTEM, xattr::INLINE_DATA_NAME) else {
            return;
        };
        let offset = data.offset;
        // An empty value lies nowhere, but e2fsck wants its place inside.
        let end = area.len() - xattr::IBODY_HEADER;
        let place = usize::from(u16::from_le_bytes([area[offset + 2], area[offset + 3]]));
        let empty = matches!(data.value, XattrValue::Local([]));
        let hashed = data.hash != 0;
        // e2fsck finds no inline data beside a value in an inode that has a place here, too.
        let inline = fields.inode.flags.contains(InodeFlags::INLINE_DATA);
        let placed: Vec<usize> = (list.iter())
            .filter(|e| inline && matches!(e.value, XattrValue::Inode { .. }))
            .map(|e| e.offset)
            .filter(|at| area[at + 2..at + 4] != [0; 2])
            .collect();
        for offset in placed {
            if self.problem(IssueKind::XattrEntry {
                ino: fields.ino,
                offset,
                what: "its value is in an inode and here",
            }) {
                fields.edited = true;
                fields.raw[at + offset + 2..][..2].fill(0);
            }
        }
        if empty
            && place > end
            && self.problem(IssueKind::XattrEntry {
                ino: fields.ino,
                offset,
                what: "its empty value is outside",
            })
        {
            fields.edited = true;
            fields.raw[at + offset + 2..][..2].copy_from_slice(&(end as u16).to_le_bytes());
        }
        if hashed
            && fields.inode.flags.contains(InodeFlags::INLINE_DATA)
            && self.problem(IssueKind::XattrEntry {
                ino: fields.ino,
                offset,
                what: "inline data has a hash",
            })
        {
            fields.edited = true;
            fields.raw[at + offset + 12..at + offset + 16].fill(0);
        }
    }

    /// Gives an inode the attribute that inline data must have, empty. Whether there was room.
    pub fn give_inline_attribute(&mut self, fields: &mut Fields) -> bool {
        let geo = self.geo.clone();
        let Some(at) = fields.inode.attributes_offset(&geo) else {
            return false;
        };
        let mut area = fields.raw.get(at..).unwrap_or(&[]).to_vec();
        let mut kept: Vec<Kept> = match XattrList::parse_ibody(&area, &geo) {
            Ok(Some(list)) => list.iter().map(|e| Kept::of(&e)).collect(),
            Ok(None) => Vec::new(),
            Err(_) => return false,
        };
        kept.retain(|k| k.name_index != xattr::INDEX_SYSTEM || k.name != xattr::INLINE_DATA_NAME);
        let none = Kept {
            name_index: xattr::INDEX_SYSTEM,
            name: xattr::INLINE_DATA_NAME.to_vec(),
            value: Ok(Vec::new()),
            hash: 0,
        };
        kept.insert(0, none);
        if store_kept(&mut area, &kept).is_none() {
            return false;
        }
        fields.edited = true;
        fields.raw[at..].copy_from_slice(&area);
        true
    }

    /// Takes the attribute that continues inline data out of an inode's bytes. Whether the others could be kept.
    pub fn remove_inline_attribute(&self, inode: &Inode, raw: &mut [u8]) -> bool {
        let Some(area) = inode
            .attributes_offset(&self.geo)
            .and_then(|at| raw.get_mut(at..))
        else {
            return true;
        };
        let mut kept: Vec<Kept> = match XattrList::parse_ibody(area, &self.geo) {
            Ok(Some(list)) => list.iter().map(|e| Kept::of(&e)).collect(),
            Ok(None) => return true,
            Err(_) => return false,
        };
        kept.retain(|k| k.name_index != xattr::INDEX_SYSTEM || k.name != xattr::INLINE_DATA_NAME);
        store_kept(area, &kept).is_some()
    }

    /// Attributes of a damaged area in an inode that are good. Where the table itself is damaged,
    /// those in front of the damage.
    fn good_attributes(&mut self, ino: Ino, area: &[u8]) -> Result<Good, CheckError> {
        let geo = self.geo.clone();
        // Cut the table before entry after entry until what is left is valid.
        let mut ends = Vec::new();
        let mut at = xattr::IBODY_HEADER;
        while let Some(head) = area.get(at..at + 16) {
            if head[..4] == [0; 4] {
                break;
            }
            ends.push(at);
            at += (16 + usize::from(head[0])).next_multiple_of(4);
        }
        let whole = std::iter::once(None);
        for cut in whole.chain(ends.into_iter().rev().map(Some)) {
            let mut copy = area.to_vec();
            if let Some(cut) = cut {
                copy[cut..cut + 4].fill(0);
            }
            let Ok(Some(list)) = XattrList::parse_ibody(&copy, &geo) else {
                continue;
            };
            let entries: Vec<XattrEntry<'_>> = list.iter().collect();
            if overlapping(&entries, &copy).is_some() {
                continue;
            }
            let mut good = Vec::new();
            let mut holders = Vec::new();
            for e in entries {
                let is_data =
                    e.name_index == xattr::INDEX_SYSTEM && e.name == xattr::INLINE_DATA_NAME;
                let valid = match e.value {
                    XattrValue::Local(_) => is_data || hash_matches(&e, &copy),
                    XattrValue::Inode { ino: value, size } => {
                        let fault = self.value_fault(ino, &e, value, size)?;
                        let there = !matches!(fault, Some(ValueFault::Wrong(_)));
                        holders.extend(there.then_some(value));
                        there || is_data
                    }
                };
                if valid && !e.name.contains(&0) {
                    good.push(e);
                }
            }
            return Ok(Good {
                kept: good.iter().map(Kept::of).collect(),
                holders,
                values: self.values_of(ino, &good)?,
            });
        }
        Ok(Good {
            kept: Vec::new(),
            holders: Vec::new(),
            values: Values::default(),
        })
    }

    /// Checks the entries of a valid table. The first problem.
    fn check_entries(
        &mut self,
        ino: Ino,
        entries: &[XattrEntry<'_>],
        area: &[u8],
        in_inode: bool,
        inline: bool,
    ) -> Result<Option<IssueKind>, CheckError> {
        let entry =
            |offset: usize, what: &'static str| Some(IssueKind::XattrEntry { ino, offset, what });
        if let Some(offset) = overlapping(entries, area) {
            return Ok(entry(offset, "its value overlaps another one"));
        }
        for e in entries {
            if e.name_index == 0 && !in_inode {
                return Ok(entry(e.offset, "its name has no kind"));
            }
            // Programs get names that end with a zero byte: this name would look like two. The kernel refuses such an
            // inode; e2fsck does not look.
            if e.name.contains(&0) {
                return Ok(entry(e.offset, "its name has a zero byte in it"));
            }
            let is_data = e.name_index == xattr::INDEX_SYSTEM && e.name == xattr::INLINE_DATA_NAME;
            if is_data && in_inode && inline {
                // Inline data is not hashed.
                continue;
            }
            match e.value {
                XattrValue::Local(_) => {
                    if !hash_matches(e, area) || (e.hash == 0 && !in_inode) {
                        return Ok(entry(e.offset, "its hash does not match"));
                    }
                }
                XattrValue::Inode { ino: value, size } => {
                    let fault = self.value_fault(ino, e, value, size)?;
                    if let Some(ValueFault::Wrong(what)) = fault {
                        return Ok(Some(IssueKind::XattrValueInode { ino, value, what }));
                    }
                    if let Some(ValueFault::Denied(what)) = fault
                        && self.problem(IssueKind::XattrValueInode { ino, value, what })
                    {
                        self.scan.holders_to_mark.insert(value.0);
                    }
                }
            }
        }
        Ok(None)
    }

    fn drop_attribute_block(&mut self, fields: &mut Fields) {
        fields.inode.file_acl = BlockNo(0);
        let mut edit = fields.edit();
        edit.put32(0x68, 0);
        edit.put16(0x76, 0);
    }

    fn check_attribute_block(&mut self, fields: &mut Fields) -> Result<(), CheckError> {
        let (ino, block) = (fields.ino, fields.inode.file_acl);
        if block.0 == 0 {
            return Ok(());
        }
        if !self.inside(block) {
            if self.problem(IssueKind::XattrBlockOutside { ino, block }) {
                self.drop_attribute_block(fields);
            }
            return Ok(());
        }
        if let Some(known) = self.scan.ea_blocks.get_mut(&block.0) {
            known.counted += 1;
            let valid = known.valid;
            fields.attribute_block = valid;
            fields.values += known.values;
            if !valid {
                self.drop_attribute_block(fields);
            }
            return Ok(());
        }
        let geo = self.geo.clone();
        let bytes = self.store.read(block, "attribute block")?;
        let (mut stored, mut values) = (0, Values::default());
        let bad = match XattrList::parse_block(&bytes, &geo) {
            Ok((head, list)) => {
                stored = head.refcount.get();
                let entries: Vec<XattrEntry<'_>> = list.iter().collect();
                values = self.values_of(ino, &entries)?;
                let fault = self.check_entries(ino, &entries, &bytes, false, false)?;
                let sound = fault.is_none();
                let drop = fault.is_some_and(|kind| self.problem(kind));
                if sound {
                    self.check_attribute_checksum(block, &bytes);
                }
                if !drop {
                    self.count_holders(ino, &entries)?;
                }
                drop
            }
            Err(error) => self.problem(IssueKind::XattrBlock {
                ino,
                block,
                error: error.into(),
            }),
        };
        self.scan.ea_blocks.insert(
            block.0,
            EaBlock {
                stored,
                counted: 1,
                valid: !bad,
                values: if bad { Values::default() } else { values },
            },
        );
        if bad {
            self.drop_attribute_block(fields);
            return Ok(());
        }
        fields.attribute_block = true;
        fields.values += values;
        self.scan
            .used
            .insert_run(block, 1, Some(&mut self.scan.twice));
        Ok(())
    }

    fn check_attribute_checksum(&mut self, block: BlockNo, bytes: &[u8]) {
        let geo = self.geo.clone();
        if let Err(FormatError::XattrChecksum { .. }) =
            xattr::verify_block_checksum(bytes, block, &geo)
            && self.problem(IssueKind::XattrChecksum { block })
        {
            let mut fixed = bytes.to_vec();
            if xattr::set_block_checksum(&mut fixed, block, &geo).is_ok() {
                self.write(block, fixed);
            }
        }
    }

    /// After all inodes were seen: reference counts of blocks and of value inodes.
    pub fn check_attribute_references(&mut self) -> Result<(), CheckError> {
        let features = self.sb.features();
        if !features.has_compat(Compat::EXT_ATTR)
            && self.scan.ea_blocks.values().any(|b| b.valid)
            && self.problem(IssueKind::FeatureContradiction {
                what: "there are attribute blocks, but ext_attr is not set",
            })
        {
            let mut features = features;
            features.compat |= Compat::EXT_ATTR;
            self.set_first_features(features);
        }
        let wrong: Vec<(u64, EaBlock)> = self
            .scan
            .ea_blocks
            .iter()
            .filter(|(_, b)| b.valid && b.stored != b.counted)
            .map(|(n, b)| (*n, *b))
            .collect();
        for (block, ea) in wrong {
            let block = BlockNo(block);
            if self.problem(IssueKind::XattrRefcount {
                block,
                found: ea.stored,
                counted: ea.counted,
            }) {
                let mut bytes = self.store.read(block, "attribute block")?;
                bytes[4..8].copy_from_slice(&ea.counted.to_le_bytes());
                if xattr::set_block_checksum(&mut bytes, block, &self.geo).is_ok() {
                    self.write(block, bytes);
                }
            }
        }
        self.check_holders()
    }

    /// Corrects an inode's sector count for a mapping that was laid out anew.
    pub fn store_sectors(&mut self, ino: Ino, sectors: u64) -> Result<(), CheckError> {
        let Some(raw) = self.read_raw_inode(ino)? else {
            return Ok(());
        };
        let Some(inode) = self.read_inode(ino)? else {
            return Ok(());
        };
        let Some(kind) = inode.kind() else {
            return Ok(());
        };
        let mut fields = Fields::new(ino, &raw, &inode, kind);
        let geo = self.geo.clone();
        set_sectors(&mut fields, &geo, sectors);
        self.write_raw_inode(ino, fields.raw)
    }
}

/// Lays attributes out anew in an inode. Hashes stay: the hash of a value in an inode of its own
/// may be of an older kind.
fn store_kept(area: &mut [u8], kept: &[Kept]) -> Option<()> {
    let new: Vec<xattr::NewXattr<'_>> = kept.iter().map(Kept::as_new).collect();
    xattr::write_ibody(area, &new)?;
    let mut at = xattr::IBODY_HEADER;
    for k in kept {
        area.get_mut(at + 12..at + 16)?
            .copy_from_slice(&k.hash.to_le_bytes());
        at += (16 + k.name.len()).next_multiple_of(4);
    }
    Some(())
}

/// An attribute copied out of a damaged table.
struct Kept {
    name_index: u8,
    name: Vec<u8>,
    value: Result<Vec<u8>, (Ino, u32)>,
    hash: u32,
}

impl Kept {
    fn of(entry: &XattrEntry<'_>) -> Self {
        Self {
            name_index: entry.name_index,
            name: entry.name.to_vec(),
            value: match entry.value {
                XattrValue::Local(value) => Ok(value.to_vec()),
                XattrValue::Inode { ino, size } => Err((ino, size)),
            },
            hash: entry.hash,
        }
    }

    fn as_new(&self) -> xattr::NewXattr<'_> {
        xattr::NewXattr {
            name_index: self.name_index,
            name: &self.name,
            value: match &self.value {
                Ok(value) => XattrValue::Local(value),
                Err((ino, size)) => XattrValue::Inode {
                    ino: *ino,
                    size: *size,
                },
            },
            value_inode_hash: 0,
        }
    }
}
