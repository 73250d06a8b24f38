//! Android sparse images (simg): a sequence of chunks. A chunk is data, a four-byte pattern to repeat, or a hole.
//!
//! Source of the format: the structures in `sparse_format.h` of Android's libsparse (Apache-2.0). Numbers are little-endian.

use crate::bytes::{array, le16, le32};
use crate::file::{file_bytes, read_any};
use crate::mapped::{Map, Mapped, Piece};
use crate::{Error, Result};
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};
use std::io::{Seek, SeekFrom, Write};

/// How a file begins.
pub(crate) const MAGIC: [u8; 4] = [0x3A, 0xFF, 0x26, 0xED];
const HEADER_BYTES: usize = 28;
const CHUNK_BYTES: usize = 12;
/// The most chunks that are read.
const CHUNKS_MAX: u32 = 16 << 20;
/// How much is read at once for chunks' heads.
const WINDOW_BYTES: usize = 64 << 10;

const RAW: u16 = 0xCAC1;
const FILL: u16 = 0xCAC2;
const HOLE: u16 = 0xCAC3;
const CRC: u16 = 0xCAC4;

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("Android sparse image: {what}"))
}

/// A chunk that is not a hole: where on the disk, how long, and what.
#[derive(Clone, Copy)]
struct Chunk {
    start: u64,
    bytes: u64,
    piece: Piece,
}

struct Chunks(Vec<Chunk>);

impl Map for Chunks {
    fn piece(&self, offset: u64, end: u64) -> Result<(Piece, u64)> {
        let next = self.0.partition_point(|chunk| chunk.start <= offset);
        if let Some(chunk) = next.checked_sub(1).map(|n| self.0[n])
            && offset < chunk.start + chunk.bytes
        {
            let within = offset - chunk.start;
            let bytes = (chunk.bytes - within).min(end - offset);
            let piece = match chunk.piece {
                Piece::Data(at) => Piece::Data(at + within),
                other => other,
            };
            return Ok((piece, bytes));
        }
        let stop = self.0.get(next).map_or(end, |chunk| chunk.start.min(end));
        Ok((Piece::Zero, stop - offset))
    }
}

/// The disk in an Android sparse image.
///
/// # Errors
/// [`Error::Corrupt`] when the chunks do not make up the disk that the header promises; [`Error::Unsupported`], [`Error::Device`].
pub(crate) fn open(file: SharedDevice) -> Result<SharedDevice> {
    let header = read_any(&file, 0, HEADER_BYTES)?;
    let (major, header_bytes, chunk_bytes) =
        (le16(&header, 4), le16(&header, 8), le16(&header, 10));
    if major != 1 {
        return Err(Error::Unsupported(format!(
            "Android sparse image: version {major}"
        )));
    }
    let (block, blocks, count) = (le32(&header, 12), le32(&header, 16), le32(&header, 20));
    let is_sane =
        usize::from(header_bytes) >= HEADER_BYTES && usize::from(chunk_bytes) >= CHUNK_BYTES;
    if !is_sane || block == 0 || !block.is_multiple_of(512) || count > CHUNKS_MAX {
        return Err(corrupt(format_args!(
            "{count} chunks, blocks of {block} bytes, heads of {header_bytes} and {chunk_bytes} bytes"
        )));
    }
    let end_of_file = file_bytes(&file)?;
    let (mut at, mut done) = (u64::from(header_bytes), 0u64);
    let mut chunks = Vec::new();
    let (mut window, mut window_at) = (Vec::new(), 0u64);
    for n in 0..count {
        if at + u64::from(chunk_bytes) > end_of_file {
            return Err(corrupt(format_args!(
                "the file ends before chunk {n} of {count}"
            )));
        }
        let in_window = at >= window_at && at + 16 <= window_at + window.len() as u64;
        if !in_window {
            window = read_any(&file, at, WINDOW_BYTES)?;
            window_at = at;
        }
        let head = &window[(at - window_at) as usize..];
        let (kind, blocks_here, total) = (le16(head, 0), le32(head, 4), le32(head, 8));
        let data = u64::from(total).checked_sub(u64::from(chunk_bytes));
        let data = data.ok_or_else(|| corrupt(format_args!("chunk {n} has {total} bytes")))?;
        let bytes = u64::from(blocks_here) * u64::from(block);
        let place = at + u64::from(chunk_bytes);
        let (expected, piece) = match kind {
            RAW => (bytes, Some(Piece::Data(place))),
            FILL => (4, Some(Piece::Fill(array(&read_any(&file, place, 4)?, 0)))),
            HOLE => (0, None),
            CRC => (4, None),
            other => {
                return Err(corrupt(format_args!(
                    "chunk {n} has the unknown kind {other:#06x}"
                )));
            }
        };
        if data != expected || (kind == CRC && blocks_here != 0) || place + data > end_of_file {
            return Err(corrupt(format_args!(
                "chunk {n} has {data} bytes for {blocks_here} blocks, from byte {place} of {end_of_file}"
            )));
        }
        if let Some(piece) = piece.filter(|_| bytes > 0) {
            let start = done * u64::from(block);
            chunks.push(Chunk {
                start,
                bytes,
                piece,
            });
        }
        done += u64::from(blocks_here);
        if done > u64::from(blocks) {
            return Err(corrupt(format_args!(
                "its chunks have more than the {blocks} blocks that its header promises"
            )));
        }
        at = place + data;
    }
    if done != u64::from(blocks) {
        return Err(corrupt(format_args!(
            "its chunks have {done} blocks, its header promises {blocks}"
        )));
    }
    let bytes = u64::from(blocks) * u64::from(block);
    Ok(std::sync::Arc::new(Mapped::new(
        file,
        bytes,
        Chunks(chunks),
    )?))
}

/// Bytes of the blocks of images that are made.
const BLOCK: u64 = 4096;
/// The largest chunk of data, in blocks: other programs keep one in memory.
const RUN_BLOCKS: u64 = 16 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hole,
    Fill([u8; 4]),
    Raw,
}

fn kind_of(block: &[u8]) -> Kind {
    let first: [u8; 4] = array(block, 0);
    // Compared with itself, four bytes on: one pass that the C library does fast.
    match block[..block.len() - 4] == block[4..] {
        true if first == [0; 4] => Kind::Hole,
        true => Kind::Fill(first),
        false => Kind::Raw,
    }
}

/// Writes the disk as an Android sparse image. `progress` gets the position in bytes of the disk.
///
/// # Errors
/// [`Error::Unsupported`] for disks of 16 TiB and more; [`Error::Device`]; the output's.
pub(crate) fn write(
    disk: &SharedDevice,
    out: &mut (impl Write + Seek),
    progress: &dyn Fn(u64),
) -> std::io::Result<()> {
    let bytes = disk.geometry().bytes;
    let blocks = bytes.div_ceil(BLOCK);
    let blocks = u32::try_from(blocks).map_err(|_| {
        std::io::Error::other("an Android sparse image has less than 2^32 blocks of 4096 bytes")
    })?;
    out.write_all(&[0; HEADER_BYTES])?;
    let mut chunks = 0u32;
    let mut head = |out: &mut dyn Write, kind: u16, blocks: u64, data: u64| {
        chunks += 1;
        let mut head = [0u8; CHUNK_BYTES];
        head[..2].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&(blocks as u32).to_le_bytes());
        head[8..].copy_from_slice(&((CHUNK_BYTES as u64 + data) as u32).to_le_bytes());
        out.write_all(&head)
    };
    // Holes and fills are gathered over any length.
    let (mut at, mut same, mut run) = (0u64, Kind::Hole, 0u64);
    let mut buf = vec![0u8; (RUN_BLOCKS * BLOCK / 16) as usize];
    while at < bytes {
        let data = disk.next_data(DevOffset(at / 512 * 512)).0 / BLOCK * BLOCK;
        let mut parts: Vec<(Kind, usize, usize)> = Vec::new();
        if data > at {
            let skipped = data.min(bytes) - at;
            parts.push((Kind::Hole, 0, skipped.div_ceil(BLOCK) as usize));
            at += skipped.next_multiple_of(BLOCK);
        } else {
            let len = (bytes - at).min(buf.len() as u64) as usize;
            let found = disk
                .read_buf(DevOffset(at), len)
                .map_err(std::io::Error::other)?;
            buf[..len].copy_from_slice(&found);
            buf[len..].fill(0);
            let count = len.div_ceil(BLOCK as usize);
            for n in 0..count {
                let kind = kind_of(&buf[n * BLOCK as usize..][..BLOCK as usize]);
                match parts.last_mut() {
                    Some((last, _, blocks)) if *last == kind => *blocks += 1,
                    _ => parts.push((kind, n, 1)),
                }
            }
            at += count as u64 * BLOCK;
        }
        for (kind, first, count) in parts {
            if kind != same || kind == Kind::Raw {
                finish(out, &mut head, same, run)?;
                (same, run) = (kind, 0);
            }
            if kind == Kind::Raw {
                let bytes = count * BLOCK as usize;
                head(out, RAW, count as u64, bytes as u64)?;
                out.write_all(&buf[first * BLOCK as usize..][..bytes])?;
            } else {
                run += count as u64;
            }
        }
        progress(at.min(bytes));
    }
    finish(out, &mut head, same, run)?;
    let mut header = [0u8; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&1u16.to_le_bytes());
    header[8..10].copy_from_slice(&(HEADER_BYTES as u16).to_le_bytes());
    header[10..12].copy_from_slice(&(CHUNK_BYTES as u16).to_le_bytes());
    header[12..16].copy_from_slice(&(BLOCK as u32).to_le_bytes());
    header[16..20].copy_from_slice(&blocks.to_le_bytes());
    header[20..24].copy_from_slice(&chunks.to_le_bytes());
    out.seek(SeekFrom::Start(0))?;
    out.write_all(&header)
}

/// Writes the head of a chunk: its kind, blocks, and bytes of data.
type WriteHead<'a> = dyn FnMut(&mut dyn Write, u16, u64, u64) -> std::io::Result<()> + 'a;

/// Writes the chunk of a run of holes or fills.
fn finish(
    out: &mut dyn Write,
    head: &mut WriteHead<'_>,
    kind: Kind,
    run: u64,
) -> std::io::Result<()> {
    match kind {
        _ if run == 0 => Ok(()),
        Kind::Raw => Ok(()),
        Kind::Hole => head(out, HOLE, run, 0),
        Kind::Fill(pattern) => {
            head(out, FILL, run, 4)?;
            out.write_all(&pattern)
        }
    }
}
