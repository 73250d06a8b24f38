//! Indexes of images (`.caibx`): which chunks an image consists of.
//!
//! All numbers are little-endian and have 64 bits. An index has
//! - a head of 48 bytes: its size, the type [`INDEX_TYPE`], feature flags, and the least, average and largest size of a chunk
//! - a table: its size, which is not known when its head is written and therefore all ones; the type [`TABLE_TYPE`]; for each chunk 40 bytes, the
//!   offset of its *end* in the image and its name
//! - a tail in the place of one more chunk: two zeroes, the offset of the table (48), the table's size with head and tail, and [`TAIL_MARK`].
//!
//! Sources: the files that casync 2 writes, and desync's documentation.

use crate::{ChunkId, Digest, Error, Result};
use std::io::{self, Read, Write};

/// Type of the head.
pub const INDEX_TYPE: u64 = 0x9682_4D9C_7B12_9FF9;
/// Type of the table.
pub const TABLE_TYPE: u64 = 0xE75B_9E11_2F17_417D;
/// The last eight bytes.
pub const TAIL_MARK: u64 = 0x4B4F_050E_5549_ECD1;
/// Feature flag: chunks are named by SHA-512/256. Without it, by SHA-256.
pub const SHA512_256: u64 = 0x2000_0000_0000_0000;
/// What casync sets for images beside [`SHA512_256`]; about files that trees leave out.
const BLOB_FLAGS: u64 = 0x9000_0000_0000_0000;

/// The largest index that is read, in bytes: 400 GiB in chunks of 64 KiB.
pub const INDEX_BYTES_MAX: u64 = 256 << 20;
/// The largest chunk that is read, in bytes.
pub const CHUNK_BYTES_MAX: u64 = 16 << 20;

const HEAD_BYTES: u64 = 48;
const ENTRY_BYTES: u64 = 40;
const TABLE_HEAD_BYTES: u64 = 16;

/// Bounds of the sizes of chunks, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSizes {
    /// The least; only the last chunk of an image is smaller.
    pub min: u64,
    /// The average, about.
    pub avg: u64,
    /// The largest.
    pub max: u64,
}

impl Default for ChunkSizes {
    /// casync's: 16, 64 and 256 KiB.
    fn default() -> Self {
        ChunkSizes::around(64 << 10)
    }
}

impl ChunkSizes {
    /// A quarter of the average, the average, and four times as much, as casync takes them.
    #[must_use]
    pub fn around(avg: u64) -> Self {
        ChunkSizes {
            min: avg / 4,
            avg,
            max: avg.saturating_mul(4),
        }
    }

    /// Whether chunks can be cut so.
    ///
    /// # Errors
    /// What is wrong, as a sentence.
    pub fn check(&self) -> std::result::Result<(), String> {
        let ChunkSizes { min, avg, max } = *self;
        let is_sane = min > 0 && min <= avg && avg <= max && max <= CHUNK_BYTES_MAX;
        if !is_sane {
            return Err(format!(
                "chunks of {min} to {max} bytes, {avg} on average: the least size must be at least 1, and the largest at most {CHUNK_BYTES_MAX}"
            ));
        }
        Ok(())
    }
}

/// A chunk of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it ends in the image, in bytes.
    pub end: u64,
    /// Its name.
    pub id: ChunkId,
}

/// An index in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// How chunks are named.
    pub digest: Digest,
    /// Sizes of chunks.
    pub sizes: ChunkSizes,
    /// The chunks in the image's order. Each ends behind the one before it.
    entries: Vec<Entry>,
}

/// Reads whole numbers, and counts.
struct Words<R> {
    from: R,
    at: u64,
}

impl<R: Read> Words<R> {
    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.from.read_exact(&mut bytes).map_err(|e| {
            if e.kind() == io::ErrorKind::UnexpectedEof {
                Error::Index(format!("it ends after byte {}, within its table", self.at))
            } else {
                Error::host("reading the index", &e)
            }
        })?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn word(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }
}

impl Index {
    /// An index of no chunks.
    #[must_use]
    pub fn new(digest: Digest, sizes: ChunkSizes) -> Self {
        Index {
            digest,
            sizes,
            entries: Vec::new(),
        }
    }

    /// Adds the next chunk.
    ///
    /// # Errors
    /// [`Error::Index`] when it is empty or too large, or there are too many.
    pub fn push(&mut self, bytes: u64, id: ChunkId) -> Result<()> {
        let start = self.bytes();
        let n = self.entries.len() as u64;
        if bytes == 0 || bytes > self.sizes.max {
            return Err(Error::Index(format!(
                "chunk {n} has {bytes} bytes; chunks of this index have 1 to {}",
                self.sizes.max
            )));
        }
        if n >= (INDEX_BYTES_MAX - HEAD_BYTES - TABLE_HEAD_BYTES) / ENTRY_BYTES - 1 {
            return Err(Error::Index(format!(
                "it has more than {n} chunks, in more than {INDEX_BYTES_MAX} bytes; larger chunks make it smaller"
            )));
        }
        let end = start.checked_add(bytes);
        let end = end.ok_or_else(|| Error::Index(format!("chunk {n} ends behind 2^64 bytes")))?;
        self.entries.push(Entry { end, id });
        Ok(())
    }

    /// Reads an index, and nothing behind it.
    ///
    /// # Errors
    /// [`Error::Index`] for everything that is not as the head of this module says, [`Error::Unsupported`] for indexes of trees, [`Error::Host`] as
    /// reading.
    pub fn read(from: impl Read) -> Result<Self> {
        let mut words = Words { from, at: 0 };
        let (size, kind) = (words.word()?, words.word()?);
        if (size, kind) != (HEAD_BYTES, INDEX_TYPE) {
            return Err(Error::Index(format!(
                "it does not begin as an index of chunks does (size {size}, type {kind:#018x})"
            )));
        }
        let flags = words.word()?;
        let sizes = ChunkSizes {
            min: words.word()?,
            avg: words.word()?,
            max: words.word()?,
        };
        sizes.check().map_err(Error::Index)?;
        let (size, kind) = (words.word()?, words.word()?);
        if (size, kind) != (u64::MAX, TABLE_TYPE) {
            return Err(Error::Index(format!(
                "no table follows its head (size {size:#x}, type {kind:#018x})"
            )));
        }
        let digest = match flags & SHA512_256 {
            0 => Digest::Sha256,
            _ => Digest::Sha512_256,
        };
        let mut index = Index::new(digest, sizes);
        loop {
            let end = words.word()?;
            if end == 0 {
                break;
            }
            let id = ChunkId(words.bytes()?);
            let start = index.bytes();
            if end <= start {
                return Err(Error::Index(format!(
                    "chunk {} ends at byte {end}, and the one before it at {start}",
                    index.entries.len()
                )));
            }
            index.push(end - start, id)?;
        }
        let table = words.at - HEAD_BYTES + ENTRY_BYTES - 8;
        let tail = [words.word()?, words.word()?, words.word()?, words.word()?];
        if tail != [0, HEAD_BYTES, table, TAIL_MARK] {
            return Err(Error::Index(format!(
                "its tail is {tail:x?}, not [0, {HEAD_BYTES:x}, {table:x}, {TAIL_MARK:x}]"
            )));
        }
        Ok(index)
    }

    /// Writes the index.
    ///
    /// # Errors
    /// As writing.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let flags = match self.digest {
            Digest::Sha512_256 => BLOB_FLAGS | SHA512_256,
            Digest::Sha256 => BLOB_FLAGS,
        };
        let ChunkSizes { min, avg, max } = self.sizes;
        let head = [
            HEAD_BYTES,
            INDEX_TYPE,
            flags,
            min,
            avg,
            max,
            u64::MAX,
            TABLE_TYPE,
        ];
        let mut words = |list: &[u64]| list.iter().try_for_each(|w| to.write_all(&w.to_le_bytes()));
        words(&head)?;
        for entry in &self.entries {
            to.write_all(&entry.end.to_le_bytes())?;
            to.write_all(&entry.id.0)?;
        }
        let table = TABLE_HEAD_BYTES + (self.entries.len() as u64 + 1) * ENTRY_BYTES;
        for word in [0, 0, HEAD_BYTES, table, TAIL_MARK] {
            to.write_all(&u64::to_le_bytes(word))?;
        }
        Ok(())
    }

    /// The chunks, in the image's order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Size of the image, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries.last().map_or(0, |entry| entry.end)
    }

    /// Where chunk `n` begins in the image.
    ///
    /// # Panics
    /// When there is no chunk before it.
    #[must_use]
    pub fn start(&self, n: usize) -> u64 {
        n.checked_sub(1)
            .map_or(0, |before| self.entries[before].end)
    }

    /// Size of chunk `n`, in bytes.
    ///
    /// # Panics
    /// When there is no such chunk.
    #[must_use]
    pub fn chunk_bytes(&self, n: usize) -> usize {
        (self.entries[n].end - self.start(n)) as usize
    }

    /// The chunk that holds a byte of the image.
    #[must_use]
    pub fn find(&self, offset: u64) -> usize {
        self.entries.partition_point(|entry| entry.end <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Index {
        let mut index = Index::new(Digest::default(), ChunkSizes::default());
        for n in 1..4u8 {
            index.push(20_000 * u64::from(n), ChunkId([n; 32])).unwrap();
        }
        index
    }

    fn written(index: &Index) -> Vec<u8> {
        let mut bytes = Vec::new();
        index.write(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let index = small();
        let bytes = written(&index);
        assert_eq!(bytes.len(), 48 + 16 + 4 * 40);
        assert_eq!(Index::read(&bytes[..]).unwrap(), index);
        assert_eq!(index.bytes(), 120_000);
        assert_eq!((index.find(0), index.find(19_999)), (0, 0));
        assert_eq!((index.find(20_000), index.find(119_999)), (1, 2));
        assert_eq!((index.start(2), index.chunk_bytes(2)), (60_000, 60_000));
        let empty = Index::new(Digest::Sha256, ChunkSizes::default());
        assert_eq!(Index::read(&written(&empty)[..]).unwrap(), empty);
    }

    #[test]
    fn every_cut_and_every_wrong_byte_of_the_frame_is_an_error() {
        let bytes = written(&small());
        for len in 0..bytes.len() {
            let error = Index::read(&bytes[..len]).unwrap_err();
            assert!(
                error.to_string().contains("ends after byte"),
                "{len}: {error}"
            );
        }
        let frame = (0..16).chain(48..64).chain(bytes.len() - 32..bytes.len());
        for at in frame {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(Index::read(&wrong[..]).is_err(), "byte {at}");
        }
    }

    #[test]
    fn offsets_that_go_back_and_chunks_that_are_too_large_are_named() {
        let with_end = |n: usize, end: u64| {
            let mut bytes = written(&small());
            bytes[64 + n * 40..72 + n * 40].copy_from_slice(&end.to_le_bytes());
            Index::read(&bytes[..]).unwrap_err().to_string()
        };
        assert!(with_end(1, 20_000).contains("chunk 1 ends at byte 20000"));
        assert!(with_end(1, 19_999).contains("and the one before it at 20000"));
        assert!(with_end(1, 20_000 + 262_145).contains("chunk 1 has 262145 bytes"));
        assert!(with_end(2, u64::MAX).contains("chunk 2 has"));
        let mut bytes = written(&small());
        bytes[40..48].copy_from_slice(&(1u64 << 40).to_le_bytes());
        let error = Index::read(&bytes[..]).unwrap_err().to_string();
        assert!(error.contains("the largest at most 16777216"), "{error}");
    }

    #[test]
    fn an_index_without_an_end_is_given_up_in_time() {
        /// Entries of a byte each, forever.
        struct Endless(u64, Vec<u8>);
        impl Read for Endless {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                if self.1.is_empty() {
                    self.0 += 1;
                    self.1.extend(self.0.to_le_bytes());
                    self.1.extend([7; 32]);
                }
                let len = buf.len().min(self.1.len());
                buf[..len].copy_from_slice(&self.1[..len]);
                self.1.drain(..len);
                Ok(len)
            }
        }
        let head = written(&small())[..64].to_vec();
        let error = Index::read(Endless(0, head)).unwrap_err().to_string();
        assert!(error.contains("more than"), "{error}");
    }
}
