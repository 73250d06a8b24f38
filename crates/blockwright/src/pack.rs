//! Compression of archives that are written.

use crate::{Error, ErrorKind, Result};
use flate2::write::GzEncoder;
use liblzma::write::XzEncoder;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How an archive is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
}

impl Compression {
    /// What the end of a file's name asks for: `.gz`, `.tgz`, `.zst`, `.tzst`, `.xz`, `.txz`.
    ///
    /// # Errors
    /// `Unsupported` for names of other compressions.
    pub fn of_name(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().as_bytes();
        let end = name.rsplit(|&b| b == b'.').next().unwrap_or_default();
        Ok(match &end.to_ascii_lowercase()[..] {
            b"gz" | b"tgz" => Compression::Gzip,
            b"zst" | b"tzst" => Compression::Zstd,
            b"xz" | b"txz" => Compression::Xz,
            b"bz2" | b"tbz" | b"tbz2" | b"lz4" | b"lz" | b"lzo" => {
                let what =
                    "its name asks for a compression that is not supported; use .gz, .zst or .xz";
                return Err(Error::new(ErrorKind::Unsupported, what).at(path));
            }
            _ => Compression::None,
        })
    }
}

/// A writer that compresses. Only [`Packer::finish`] ends the stream.
pub struct Packer<W: Write>(Inner<W>);

enum Inner<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
    Zstd(zstd::stream::write::Encoder<'static, W>),
    Xz(XzEncoder<W>),
}

/// The program's own default.
const XZ_LEVEL: u32 = 6;

impl<W: Write> Packer<W> {
    /// A stream that is written to `to`.
    ///
    /// # Errors
    /// `Io` when there is no memory for the compressor.
    pub fn new(to: W, compression: Compression) -> Result<Self> {
        Ok(Packer(match compression {
            Compression::None => Inner::Plain(to),
            Compression::Gzip => Inner::Gzip(GzEncoder::new(to, flate2::Compression::default())),
            Compression::Zstd => Inner::Zstd(zstd::stream::write::Encoder::new(
                to,
                zstd::DEFAULT_COMPRESSION_LEVEL,
            )?),
            Compression::Xz => Inner::Xz(XzEncoder::new(to, XZ_LEVEL)),
        }))
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// As writing.
    pub fn finish(self) -> Result<W> {
        Ok(match self.0 {
            Inner::Plain(to) => to,
            Inner::Gzip(encoder) => encoder.finish()?,
            Inner::Zstd(encoder) => encoder.finish()?,
            Inner::Xz(encoder) => encoder.finish()?,
        })
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Plain(to) => to.write(buf),
            Inner::Gzip(encoder) => encoder.write(buf),
            Inner::Zstd(encoder) => encoder.write(buf),
            Inner::Xz(encoder) => encoder.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Inner::Plain(to) => to.flush(),
            // A flush in the middle would make the archive larger and serves no reader.
            Inner::Gzip(_) | Inner::Zstd(_) | Inner::Xz(_) => Ok(()),
        }
    }
}
