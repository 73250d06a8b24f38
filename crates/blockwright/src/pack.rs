//! Compression of archives that are written.

use crate::{Error, ErrorKind, Result};
use std::io::{self, Write};
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
        let name = blockwright_device::os_name::bytes(path.file_name().unwrap_or_default());
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

#[cfg(not(all(feature = "gzip", feature = "zstd", feature = "xz")))]
impl Compression {
    /// The refusal of a build without it.
    pub(crate) fn not_built(self) -> Error {
        let name = format!("{self:?}").to_lowercase();
        let what = format!("this build has no compression by {name} (feature `{name}`)");
        Error::new(ErrorKind::Unsupported, what)
    }
}

/// A writer that compresses. Only [`Packer::finish`] ends the stream.
pub struct Packer<W: Write>(Inner<W>);

enum Inner<W: Write> {
    Plain(W),
    #[cfg(feature = "gzip")]
    Gzip(flate2::write::GzEncoder<W>),
    #[cfg(feature = "zstd")]
    Zstd(zstd::stream::write::Encoder<'static, W>),
    #[cfg(feature = "xz")]
    Xz(liblzma::write::XzEncoder<W>),
}

/// The program's own default.
#[cfg(feature = "xz")]
const XZ_LEVEL: u32 = 6;

impl<W: Write> Packer<W> {
    /// A stream that is written to `to`.
    ///
    /// # Errors
    /// `Io` when there is no memory for the compressor; `Unsupported` when this build does not have it.
    pub fn new(to: W, compression: Compression) -> Result<Self> {
        Ok(Packer(match compression {
            Compression::None => Inner::Plain(to),
            #[cfg(feature = "gzip")]
            Compression::Gzip => {
                let level = flate2::Compression::default();
                Inner::Gzip(flate2::write::GzEncoder::new(to, level))
            }
            #[cfg(feature = "zstd")]
            Compression::Zstd => Inner::Zstd(zstd::stream::write::Encoder::new(
                to,
                zstd::DEFAULT_COMPRESSION_LEVEL,
            )?),
            #[cfg(feature = "xz")]
            Compression::Xz => Inner::Xz(liblzma::write::XzEncoder::new(to, XZ_LEVEL)),
            #[cfg(not(all(feature = "gzip", feature = "zstd", feature = "xz")))]
            absent => return Err(absent.not_built()),
        }))
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// As writing.
    pub fn finish(self) -> Result<W> {
        Ok(match self.0 {
            Inner::Plain(to) => to,
            #[cfg(feature = "gzip")]
            Inner::Gzip(encoder) => encoder.finish()?,
            #[cfg(feature = "zstd")]
            Inner::Zstd(encoder) => encoder.finish()?,
            #[cfg(feature = "xz")]
            Inner::Xz(encoder) => encoder.finish()?,
        })
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Plain(to) => to.write(buf),
            #[cfg(feature = "gzip")]
            Inner::Gzip(encoder) => encoder.write(buf),
            #[cfg(feature = "zstd")]
            Inner::Zstd(encoder) => encoder.write(buf),
            #[cfg(feature = "xz")]
            Inner::Xz(encoder) => encoder.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Inner::Plain(to) => to.flush(),
            // A flush in the middle would make the archive larger and serves no reader.
            #[cfg(any(feature = "gzip", feature = "zstd", feature = "xz"))]
            _ => Ok(()),
        }
    }
}
