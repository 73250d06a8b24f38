//! Reading an archive's bytes: detects the compression by its magic, and keeps the data where it can be read again.
//!
//! Files of an archive are written to the volume after the whole archive was read. Data of a plain archive is read a second time from
//! the archive itself. Data of a compressed archive, or of a stream, goes to a temporary file (`data`).

use super::Rules;
use super::budget::Budget;
use super::data::Segment;
use super::progress::Meter;
use crate::{Error, ErrorKind, Result};
use blockwright_device::positional;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

/// An archive being read front to back.
pub(crate) struct Input<'a> {
    source: Source<'a>,
    /// Bytes read so far, of the uncompressed archive.
    pub position: u64,
    spooled: u64,
}

enum Source<'a> {
    /// A plain archive in a file: data stays there.
    InPlace { reader: BufReader<Section> },
    /// A stream: data is copied to a nameless file.
    Stream {
        reader: Box<dyn Read + 'a>,
        spool: Arc<File>,
    },
}

/// A stretch of a file, with a position of its own: others may read the same file.
pub(crate) struct Section {
    file: Arc<File>,
    /// Where it begins in the file, and its length.
    at: u64,
    bytes: u64,
    position: u64,
}

impl Section {
    pub fn new(file: Arc<File>, at: u64, bytes: u64) -> Self {
        Section {
            file,
            at,
            bytes,
            position: 0,
        }
    }
}

impl Read for Section {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.bytes.saturating_sub(self.position);
        let most = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        let n = positional::read_at(&self.file, &mut buf[..most], self.at + self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Seek for Section {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

/// Passes each piece of the stream to a digest.
struct Watched<'a, R> {
    reader: R,
    watch: Watch<'a>,
}

type Watch<'a> = Box<dyn FnMut(&[u8]) + 'a>;

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buf)?;
        (self.watch)(&buf[..n]);
        Ok(n)
    }
}

const GZIP: &[u8] = &[0x1F, 0x8B];
const ZSTD: &[u8] = &[0x28, 0xB5, 0x2F, 0xFD];
const XZ: &[u8] = &[0xFD, b'7', b'z', b'X', b'Z', 0];
const BZIP2: &[u8] = b"BZh";

/// So much behind an end mark is looked at in a file: what is none has its magic in there.
const REST_BYTES_MAX: u64 = 1 << 20;

/// Whether a stream of zstd begins so: with a frame, or with one to be skipped, as pzstd writes it.
fn is_zstd(magic: &[u8]) -> bool {
    let skipped = matches!(magic, [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..]);
    magic.starts_with(ZSTD) || skipped
}

fn compressed(magic: &[u8]) -> bool {
    is_zstd(magic) || [GZIP, XZ, BZIP2].iter().any(|m| magic.starts_with(m))
}

/// Reads up to the longest magic's length; less only at the end.
fn read_magic(reader: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut magic = Vec::with_capacity(XZ.len());
    reader.take(XZ.len() as u64).read_to_end(&mut magic)?;
    Ok(magic)
}

/// The memory limit for unpacking xz, mostly its dictionary, whose size the stream claims. `xz -9` needs 65 MiB; zstd's
/// own limit is 128 MiB.
#[cfg(feature = "xz")]
const XZ_MEMORY_MAX: u64 = 256 << 20;

/// Bounds what a stream unpacks to: all of it would be written to the spool, or at least be waited for. The progress function can stop it.
struct Bounded<'a, R> {
    reader: R,
    budget: Arc<Budget>,
    meter: Meter<'a>,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.unpacked_left();
        let most = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        if most > 0 || buf.is_empty() {
            let n = self.reader.read(&mut buf[..most])?;
            self.budget.unpacked(n as u64);
            self.meter.read(n as u64).map_err(io::Error::other)?;
            return Ok(n);
        }
        match self.reader.read(&mut buf[..1])? {
            0 => Ok(0),
            _ => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                self.budget.too_much(),
            )),
        }
    }
}

/// What a stream holds, decompressed where its first bytes say that it is compressed.
fn decompress<'a>(magic: &[u8], reader: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    #[cfg(any(feature = "gzip", feature = "zstd", feature = "xz"))]
    const BUFFER: usize = 256 << 10;
    #[cfg(feature = "gzip")]
    if magic.starts_with(GZIP) {
        let reader = BufReader::with_capacity(BUFFER, reader);
        return Ok(Box::new(flate2::bufread::MultiGzDecoder::new(reader)));
    }
    #[cfg(feature = "zstd")]
    if is_zstd(magic) {
        let reader = BufReader::with_capacity(BUFFER, reader);
        return Ok(Box::new(zstd::stream::read::Decoder::with_buffer(reader)?));
    }
    #[cfg(feature = "xz")]
    if magic.starts_with(XZ) {
        let reader = BufReader::with_capacity(BUFFER, reader);
        let stream = liblzma::stream::Stream::new_stream_decoder(
            XZ_MEMORY_MAX,
            liblzma::stream::CONCATENATED,
        );
        let stream = stream.map_err(std::io::Error::from)?;
        return Ok(Box::new(liblzma::bufread::XzDecoder::new_stream(
            reader, stream,
        )));
    }
    #[cfg(not(all(feature = "gzip", feature = "zstd", feature = "xz")))]
    {
        use crate::export::Compression;
        let kinds = [
            (magic.starts_with(GZIP), Compression::Gzip),
            (is_zstd(magic), Compression::Zstd),
            (magic.starts_with(XZ), Compression::Xz),
        ];
        if let Some((_, absent)) = kinds.iter().find(|(is, _)| *is) {
            return Err(absent.not_built());
        }
    }
    if magic.starts_with(BZIP2) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "bzip2 is not supported; use gzip, zstd or xz",
        ));
    }
    Ok(Box::new(reader))
}

/// A nameless file for data that is read again.
pub(crate) fn spool_file(dir: &Path) -> Result<Arc<File>> {
    let file = tempfile::tempfile_in(dir).map_err(|e| Error::from(e).at(dir))?;
    Ok(Arc::new(file))
}

impl<'a> Input<'a> {
    /// An archive in a file.
    pub fn open(path: &Path, rules: &Rules<'a>) -> Result<Self> {
        let mut file = File::open(path)?;
        let magic = read_magic(&mut file)?;
        let metadata = file.metadata()?;
        if metadata.is_file() && !compressed(&magic) {
            let section = Section::new(Arc::new(file), 0, metadata.len());
            return Ok(Self::section(section));
        }
        Self::with_magic(&magic, file, rules, None)
    }

    /// A plain archive that is a stretch of a file.
    pub fn section(section: Section) -> Self {
        let reader = BufReader::with_capacity(64 << 10, section);
        Input {
            source: Source::InPlace { reader },
            position: 0,
            spooled: 0,
        }
    }

    /// Whether a stretch of a file is compressed, by its magic.
    pub fn is_compressed(mut section: Section) -> Result<bool> {
        Ok(compressed(&read_magic(&mut section)?))
    }

    /// A compressed archive that is a stretch of a file. `watch` is shown what it unpacks to.
    pub fn unpacked(
        mut section: Section,
        watch: impl FnMut(&[u8]) + 'a,
        rules: &Rules<'a>,
    ) -> Result<Self> {
        let magic = read_magic(&mut section)?;
        Self::with_magic(&magic, section, rules, Some(Box::new(watch)))
    }

    /// An archive from a stream.
    pub fn stream(mut reader: impl Read + 'a, rules: &Rules<'a>) -> Result<Self> {
        let magic = read_magic(&mut reader)?;
        Self::with_magic(&magic, reader, rules, None)
    }

    fn with_magic(
        magic: &[u8],
        reader: impl Read + 'a,
        rules: &Rules<'a>,
        watch: Option<Watch<'a>>,
    ) -> Result<Self> {
        let whole = io::Cursor::new(magic.to_vec()).chain(reader);
        let mut reader = decompress(magic, whole)?;
        if let Some(watch) = watch {
            reader = Box::new(Watched { reader, watch });
        }
        let source = Source::Stream {
            reader: Box::new(Bounded {
                reader,
                budget: Arc::clone(&rules.budget),
                meter: Meter::new(rules.progress),
            }),
            spool: spool_file(&rules.spool_dir)?,
        };
        Ok(Input {
            source,
            position: 0,
            spooled: 0,
        })
    }

    /// Fills `buf`. `false` when the archive ended before its first byte.
    pub fn read_full(&mut self, buf: &mut [u8]) -> Result<bool> {
        let reader: &mut dyn Read = match &mut self.source {
            Source::InPlace { reader } => reader,
            Source::Stream { reader, .. } => reader,
        };
        let mut done = 0;
        while done < buf.len() {
            match reader.read(&mut buf[done..]) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(self.truncated()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Err(self.truncated()),
                Err(e) => return Err(Error::from(e)),
            }
        }
        self.position += done as u64;
        Ok(true)
    }

    /// The error of an archive that ends too early.
    pub fn truncated(&self) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "the archive is truncated: it ends inside an entry after byte {}",
                self.position
            ),
        )
    }

    /// Goes over `bytes` bytes of data and says where they can be read from later.
    pub fn keep(&mut self, bytes: u64) -> Result<(Arc<File>, Segment)> {
        let kept = match &mut self.source {
            Source::InPlace { reader } => {
                let section = reader.get_ref();
                let (file, at, all) = (Arc::clone(&section.file), section.at, section.bytes);
                let end = self.position.checked_add(bytes).filter(|end| *end <= all);
                let (Some(_), Ok(by)) = (end, i64::try_from(bytes)) else {
                    return Err(self.truncated());
                };
                reader.seek_relative(by)?;
                (file, at + self.position)
            }
            Source::Stream { reader, spool } => {
                let at = self.spooled;
                let copied = io::copy(&mut reader.take(bytes), &mut &**spool);
                let copied = match copied {
                    Ok(n) => n,
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                        return Err(self.truncated());
                    }
                    Err(e) => return Err(Error::from(e)),
                };
                self.spooled += copied;
                if copied < bytes {
                    return Err(self.truncated());
                }
                (Arc::clone(spool), at)
            }
        };
        self.position += bytes;
        Ok((
            kept.0,
            Segment {
                logical: 0,
                bytes,
                at: kept.1,
            },
        ))
    }

    /// Skips bytes that are not needed.
    pub fn skip(&mut self, bytes: u64) -> Result<()> {
        match &mut self.source {
            Source::InPlace { .. } => self.keep(bytes).map(|_| ()),
            Source::Stream { reader, .. } => {
                let skipped = io::copy(&mut reader.take(bytes), &mut io::sink())?;
                if skipped < bytes {
                    return Err(self.truncated());
                }
                self.position += bytes;
                Ok(())
            }
        }
    }

    /// Reads what follows the end mark: a writer must not find its pipe closed, and a checksum at the
    /// end of a compressed stream must be looked at. Returns whether it is all zeroes, as far as it
    /// was looked at: in a file that is no more than [`REST_BYTES_MAX`].
    pub fn drain(&mut self) -> Result<bool> {
        let mut rest = ZeroesOnly(true);
        match &mut self.source {
            Source::Stream { reader, spool } => {
                (&**spool).flush()?;
                io::copy(reader, &mut rest)?;
            }
            Source::InPlace { reader } => {
                io::copy(&mut reader.take(REST_BYTES_MAX), &mut rest)?;
            }
        }
        Ok(rest.0)
    }
}

/// Remembers whether all that was written to it are zeroes.
struct ZeroesOnly(bool);

impl Write for ZeroesOnly {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0 && bytes.iter().all(|b| *b == 0);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
