//! The bytes of an extended attribute area: in an inode, or a block of its own.
//!
//! Pure functions. An area is parsed into a list, changed as a list, and laid out anew: entries
//! from the front, values from the back, so there is never fragmentation to care about.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Extended Attributes".

use blockwright_ondisk::ext4::Ino;

/// Magic of both kinds of area.
pub const MAGIC: u32 = 0xEA02_0000;
/// Bytes of an attribute block's header.
pub const BLOCK_HEADER: usize = 32;
/// Bytes of the header of the area in an inode.
pub const INODE_HEADER: usize = 4;
const ENTRY_HEADER: usize = 16;

/// Where a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Beside its entry.
    Here(Vec<u8>),
    /// In an inode of its own.
    Inode {
        /// That inode.
        ino: Ino,
        /// Bytes of the value.
        size: u32,
        /// CRC-32C of the value: goes into the entry's hash.
        value_hash: Option<u32>,
        /// The entry's hash as stored.
        entry_hash: u32,
    },
}

/// One attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Index of the name's prefix.
    pub index: u8,
    /// The rest of the name.
    pub name: Vec<u8>,
    /// The value.
    pub value: Value,
}

impl Attribute {
    /// Whether it has this name.
    #[must_use]
    pub fn is(&self, index: u8, name: &[u8]) -> bool {
        self.index == index && self.name == name
    }

    /// Bytes it needs in an area.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let value = match &self.value {
            Value::Here(v) => v.len().next_multiple_of(4),
            Value::Inode { .. } => 0,
        };
        entry_bytes(self.name.len()) + value
    }
}

/// Bytes of an entry with a name of this length.
#[must_use]
pub fn entry_bytes(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len).next_multiple_of(4)
}

/// What is wrong with an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadArea(pub &'static str);

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Parses the entries that start at `entries_at`; value offsets count from the start of `area`.
///
/// # Errors
/// Entries or values that cross the end of the area or each other's region.
pub fn parse(area: &[u8], entries_at: usize) -> Result<Vec<Attribute>, BadArea> {
    let mut out = Vec::new();
    let mut at = entries_at;
    let mut values = Vec::new();
    loop {
        if at + 4 > area.len() {
            return Err(BadArea("the attribute entries have no end"));
        }
        if u32_at(area, at) == 0 {
            break;
        }
        if at + ENTRY_HEADER > area.len() {
            return Err(BadArea("an attribute entry crosses the end of its area"));
        }
        let name_len = usize::from(area[at]);
        let next = at + entry_bytes(name_len);
        if next > area.len() {
            return Err(BadArea("an attribute entry crosses the end of its area"));
        }
        let name = area[at + ENTRY_HEADER..at + ENTRY_HEADER + name_len].to_vec();
        if name.contains(&0) {
            return Err(BadArea("an attribute name contains a zero byte"));
        }
        let offset = usize::from(u16_at(area, at + 2));
        let inode = u32_at(area, at + 4);
        let size = u32_at(area, at + 8);
        let value = if inode != 0 {
            Value::Inode {
                ino: Ino(inode),
                size,
                value_hash: None,
                entry_hash: u32_at(area, at + 12),
            }
        } else if size == 0 {
            Value::Here(Vec::new())
        } else {
            let size = size as usize;
            if size > area.len() || offset > area.len() - size {
                return Err(BadArea("an attribute value crosses the end of its area"));
            }
            values.push(offset);
            Value::Here(area[offset..offset + size].to_vec())
        };
        out.push(Attribute {
            index: area[at + 1],
            name,
            value,
        });
        at = next;
    }
    // The terminator is the last byte that entries may claim.
    if values.iter().any(|v| *v < at + 4) {
        return Err(BadArea("an attribute value overlaps the entries"));
    }
    Ok(out)
}

/// Bytes of `area` that the attributes need behind `entries_at`.
#[must_use]
pub fn needed(attrs: &[Attribute]) -> usize {
    4 + attrs.iter().map(Attribute::bytes).sum::<usize>()
}

/// Lays the attributes out. Entry hashes are stored in blocks (`hashes`), and for values in inodes.
/// Returns `false`, with nothing changed, when they do not fit.
#[must_use]
pub fn encode(area: &mut [u8], entries_at: usize, attrs: &[Attribute], hashes: bool) -> bool {
    if entries_at + needed(attrs) > area.len() {
        return false;
    }
    area[entries_at..].fill(0);
    let mut at = entries_at;
    let mut end = area.len();
    for attr in attrs {
        area[at] = attr.name.len() as u8;
        area[at + 1] = attr.index;
        area[at + ENTRY_HEADER..at + ENTRY_HEADER + attr.name.len()].copy_from_slice(&attr.name);
        let (size, ino, hash) = match &attr.value {
            Value::Here(value) => {
                if !value.is_empty() {
                    end -= value.len().next_multiple_of(4);
                    area[end..end + value.len()].copy_from_slice(value);
                    area[at + 2..at + 4].copy_from_slice(&(end as u16).to_le_bytes());
                }
                let hash = if hashes {
                    entry_hash(&attr.name, value)
                } else {
                    0
                };
                (value.len() as u32, 0, hash)
            }
            Value::Inode {
                ino,
                size,
                value_hash,
                entry_hash,
            } => {
                let hash = value_hash.map_or(*entry_hash, |h| {
                    entry_hash_words(&attr.name, std::iter::once(h))
                });
                (*size, ino.0, hash)
            }
        };
        area[at + 4..at + 8].copy_from_slice(&ino.to_le_bytes());
        area[at + 8..at + 12].copy_from_slice(&size.to_le_bytes());
        area[at + 12..at + 16].copy_from_slice(&hash.to_le_bytes());
        at += entry_bytes(attr.name.len());
    }
    true
}

fn entry_hash_words(name: &[u8], words: impl Iterator<Item = u32>) -> u32 {
    let hash = name
        .iter()
        .fold(0u32, |h, c| h.rotate_left(5) ^ u32::from(*c));
    words.fold(hash, |h, w| h.rotate_left(16) ^ w)
}

/// Hash of an entry: of its name, and its value in words padded with zeroes.
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    entry_hash_words(
        name,
        value.chunks(4).map(|c| {
            let mut word = [0; 4];
            word[..c.len()].copy_from_slice(c);
            u32::from_le_bytes(word)
        }),
    )
}

/// The order entries have in a block.
#[must_use]
pub fn block_order(a: &Attribute, b: &Attribute) -> std::cmp::Ordering {
    (a.index, a.name.len(), &a.name).cmp(&(b.index, b.name.len(), &b.name))
}

/// Makes the bytes of an attribute block with reference count 1, sorted and hashed, without its
/// checksum. `None` when the attributes do not fit.
#[must_use]
pub fn encode_block(attrs: &[Attribute], block_bytes: usize) -> Option<Vec<u8>> {
    let mut sorted = attrs.to_vec();
    sorted.sort_by(block_order);
    let mut block = vec![0; block_bytes];
    if !encode(&mut block, BLOCK_HEADER, &sorted, true) {
        return None;
    }
    block[..4].copy_from_slice(&MAGIC.to_le_bytes());
    block[4..8].copy_from_slice(&1u32.to_le_bytes());
    block[8..12].copy_from_slice(&1u32.to_le_bytes());
    let mut hash = 0u32;
    let mut at = BLOCK_HEADER;
    for attr in &sorted {
        let e = u32_at(&block, at + 12);
        if e == 0 {
            // One entry that cannot be hashed keeps the block from being shared.
            hash = 0;
            break;
        }
        hash = hash.rotate_left(16) ^ e;
        at += entry_bytes(attr.name.len());
    }
    block[12..16].copy_from_slice(&hash.to_le_bytes());
    Some(block)
}

/// Checks an attribute block's header and entries.
///
/// # Errors
/// What is wrong.
pub fn parse_block(block: &[u8]) -> Result<Vec<Attribute>, BadArea> {
    if u32_at(block, 0) != MAGIC {
        return Err(BadArea("the attribute block has no magic number"));
    }
    if u32_at(block, 8) != 1 {
        return Err(BadArea("the attribute block claims more than one block"));
    }
    if refcount(block) == 0 {
        return Err(BadArea("the attribute block has no references"));
    }
    parse(block, BLOCK_HEADER)
}

/// How many inodes share an attribute block.
#[must_use]
pub fn refcount(block: &[u8]) -> u32 {
    u32_at(block, 4)
}

/// Changes how many inodes share an attribute block.
pub fn set_refcount(block: &mut [u8], n: u32) {
    block[4..8].copy_from_slice(&n.to_le_bytes());
}

/// Stores an attribute block's checksum.
pub fn set_checksum(block: &mut [u8], sum: u32) {
    block[16..20].copy_from_slice(&sum.to_le_bytes());
}

/// An attribute block's checksum.
#[must_use]
pub fn checksum(block: &[u8]) -> u32 {
    u32_at(block, 16)
}

/// The attributes kept in an inode's bytes behind its extra size; none when there is no area.
///
/// # Errors
/// An area that is invalid.
pub fn parse_inode(raw: &[u8], extra_isize: u16) -> Result<Vec<Attribute>, BadArea> {
    match inode_area(raw, extra_isize) {
        Some(at) if u32_at(raw, at) == MAGIC => parse(&raw[at + INODE_HEADER..], 0),
        _ => Ok(Vec::new()),
    }
}

/// Offset of the area in an inode, if it has room for one.
#[must_use]
pub fn inode_area(raw: &[u8], extra_isize: u16) -> Option<usize> {
    let at = 128 + usize::from(extra_isize);
    (extra_isize > 0 && at + INODE_HEADER + 4 <= raw.len()).then_some(at)
}

/// Bytes the attributes kept in an inode may need in all ([`needed`]).
#[must_use]
pub fn inode_room(raw: &[u8], extra_isize: u16) -> usize {
    inode_area(raw, extra_isize).map_or(0, |at| raw.len() - at - INODE_HEADER)
}

/// Lays the attributes out in an inode; an empty list removes the area. `false`, with nothing
/// changed, when they do not fit.
#[must_use]
pub fn encode_inode(raw: &mut [u8], extra_isize: u16, attrs: &[Attribute]) -> bool {
    let Some(at) = inode_area(raw, extra_isize) else {
        return attrs.is_empty();
    };
    if attrs.is_empty() {
        raw[at..].fill(0);
        return true;
    }
    if !encode(&mut raw[at + INODE_HEADER..], 0, attrs, false) {
        return false;
    }
    raw[at..at + 4].copy_from_slice(&MAGIC.to_le_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(index: u8, name: &str, value: &[u8]) -> Attribute {
        Attribute {
            index,
            name: name.as_bytes().to_vec(),
            value: Value::Here(value.to_vec()),
        }
    }

    #[test]
    fn areas_round_trip() {
        let attrs = vec![
            attr(1, "colour", b"red"),
            attr(7, "data", b""),
            attr(6, "selinux", &[7; 33]),
            Attribute {
                index: 1,
                name: b"big".to_vec(),
                value: Value::Inode {
                    ino: Ino(99),
                    size: 100_000,
                    value_hash: None,
                    entry_hash: 0x1234,
                },
            },
        ];
        let mut raw = vec![0xFF; 512];
        assert!(encode_inode(&mut raw, 32, &attrs));
        assert_eq!(parse_inode(&raw, 32).unwrap(), attrs);
        assert!(encode_inode(&mut raw, 32, &[]));
        assert!(parse_inode(&raw, 32).unwrap().is_empty());

        let block = encode_block(&attrs, 1024).unwrap();
        let mut sorted = attrs.clone();
        sorted.sort_by(block_order);
        assert_eq!(parse_block(&block).unwrap(), sorted);
        assert_eq!(refcount(&block), 1);
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut raw = vec![0; 256];
        assert!(encode_inode(&mut raw, 32, &[attr(1, "a", b"b")]));
        let before = raw.clone();
        assert!(!encode_inode(&mut raw, 32, &[attr(1, "a", &[0; 90])]));
        assert_eq!(raw, before);
        assert!(encode_block(&[attr(1, "a", &[0; 990])], 1024).is_none());
        assert!(encode_block(&[attr(1, "a", &[0; 968])], 1024).is_some());
    }

    #[test]
    fn damage_is_refused() {
        let block = encode_block(&[attr(1, "colour", b"red")], 1024).unwrap();
        for (at, value) in [
            (0, 1u8),
            (8, 2),
            (4, 0),
            (32, 255),
            (34, 33),
            (41, 8),
            (48, 0),
        ] {
            let mut bad = block.clone();
            bad[at] = value;
            if at == 34 {
                bad[35] = 0;
            }
            if at == 32 {
                bad[33..].fill(0xFF);
            }
            assert!(parse_block(&bad).is_err(), "byte {at} = {value}");
        }
    }
}
