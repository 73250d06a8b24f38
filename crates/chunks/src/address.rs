//! Addresses of images in chunks: `chunks:INDEX?store=STORE[&store=STORE…][&cache=DIR][&cache-bytes=BYTES][&ca=FILE]`.
//!
//! The index and the stores are paths, `http://` and `https://` URLs, or places in S3 (`s3+https://HOST/BUCKET/PREFIX`). `%XX` stands for a byte: `&`, `?`, `%`, and a `:` in front of a `/` of a path
//! are written so. A place counts as an address when `?` is in it or the index's name ends in `.caibx`. Another file whose path begins with
//! `chunks:` is not meant then; it is written with `./` in front.

use crate::percent::decode;
use crate::s3::{S3Place, is_s3};
use crate::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// How an address begins.
pub const SCHEME: &str = "chunks:";

/// How large a cache is on disk unless the address says so, in bytes.
pub const CACHE_BYTES: u64 = 8 << 30;

/// Stores of one address.
const STORES_MAX: usize = 16;

/// Where an index or a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// A file or a folder of this host.
    Path(PathBuf),
    /// Behind HTTP: a URL without `/` at its end.
    Url(String),
    /// In S3.
    S3(S3Place),
}

impl Site {
    fn parse(bytes: &[u8], what: &str) -> Result<Self> {
        if bytes.is_empty() {
            return Err(Error::Address(format!("no {what} is named")));
        }
        let is_url = bytes.starts_with(b"http://") || bytes.starts_with(b"https://");
        if is_url || is_s3(bytes) {
            let text = std::str::from_utf8(bytes).ok();
            let plain = |text: &&str| text.bytes().all(|b| b.is_ascii_graphic());
            return match text.filter(plain) {
                Some(text) if !is_url => Ok(Site::S3(S3Place::parse(text, what)?)),
                Some(text) => match text.trim_end_matches('/') {
                    "http:" | "https:" => {
                        Err(Error::Address(format!("the {what}'s URL has no host")))
                    }
                    text => Ok(Site::Url(text.to_owned())),
                },
                None => Err(Error::Address(format!(
                    "the {what}'s URL has characters that no URL has"
                ))),
            };
        }
        if bytes.contains(&0) {
            return Err(Error::Address(format!("the {what}'s path holds a zero")));
        }
        Ok(Site::Path(OsStr::from_bytes(bytes).into()))
    }

    fn absolute(self) -> io::Result<Self> {
        Ok(match self {
            Site::Path(path) => Site::Path(std::path::absolute(path)?),
            url => url,
        })
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Path(path) => path.display().fmt(f),
            Site::Url(url) => f.write_str(url),
            Site::S3(place) => place.fmt(f),
        }
    }
}

/// The source of an image in chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkAddress {
    /// The index.
    pub index: Site,
    /// The stores, asked in this order.
    pub stores: Vec<Site>,
    /// A folder that keeps what was fetched. It is laid out as a store, and any number of processes can share it.
    pub cache: Option<PathBuf>,
    /// How large that folder may become, in bytes.
    pub cache_bytes: u64,
    /// A file of certificates (PEM) that HTTPS servers are checked against, instead of the built-in list of the Mozilla project.
    pub ca: Option<PathBuf>,
}

fn encode(out: &mut Vec<u8>, site: &Site) {
    let (bytes, is_url) = match site {
        Site::Path(path) => (path.as_os_str().as_bytes(), false),
        Site::Url(url) => (url.as_bytes(), true),
        Site::S3(place) => (place.text().as_bytes(), true),
    };
    for &byte in bytes {
        // A colon could end the image of an operand, unless it is that of a URL.
        if matches!(byte, b'%' | b'&' | b'?') || (byte == b':' && !is_url) {
            out.extend(format!("%{byte:02X}").into_bytes());
        } else {
            out.push(byte);
        }
    }
}

/// Whether a place is an address.
#[must_use]
pub fn is_address(place: &[u8]) -> bool {
    let Some(rest) = place.strip_prefix(SCHEME.as_bytes()) else {
        return false;
    };
    let index = rest.split(|&b| b == b'?').next().unwrap_or(rest);
    let index = index.split(|&b| b == b':').next().unwrap_or(index);
    rest.contains(&b'?') || index.ends_with(b".caibx")
}

/// Where the image ends in an operand that begins with an address: at the first `:/` that is not part of a URL, or at a colon at its end.
#[must_use]
pub fn image_end(operand: &[u8]) -> Option<usize> {
    let from = SCHEME.len();
    let is_end =
        |at: &usize| operand[*at..].starts_with(b":/") && !operand[*at..].starts_with(b"://");
    (from..operand.len())
        .find(is_end)
        .or_else(|| operand.ends_with(b":").then(|| operand.len() - 1))
}

impl ChunkAddress {
    /// An image with an index in these stores.
    #[must_use]
    pub fn new(index: Site, stores: Vec<Site>) -> Self {
        ChunkAddress {
            index,
            stores,
            cache: None,
            cache_bytes: CACHE_BYTES,
            ca: None,
        }
    }

    /// Takes what names an index or a store: a path or a URL.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn site(place: &Path) -> Result<Site> {
        Site::parse(place.as_os_str().as_bytes(), "index or store")
    }

    /// Reads an address. `None` when the place is none, but a path.
    ///
    /// # Errors
    /// [`Error::Address`].
    pub fn parse(place: impl AsRef<Path>) -> Option<Result<Self>> {
        let place = place.as_ref().as_os_str().as_bytes();
        is_address(place).then(|| Self::parse_rest(&place[SCHEME.len()..]))
    }

    fn parse_rest(rest: &[u8]) -> Result<Self> {
        let (index, query) = match rest.iter().position(|&b| b == b'?') {
            Some(at) => (&rest[..at], &rest[at + 1..]),
            None => (rest, &b""[..]),
        };
        let index = Site::parse(&decode(index)?, "index")?;
        let mut address = ChunkAddress::new(index, Vec::new());
        for pair in query.split(|&b| b == b'&').filter(|pair| !pair.is_empty()) {
            let at = pair.iter().position(|&b| b == b'=').unwrap_or(pair.len());
            let (name, value) = (&pair[..at], decode(pair.get(at + 1..).unwrap_or_default())?);
            let path = |what: &str| match Site::parse(&value, what)? {
                Site::Path(path) => Ok(path),
                other => Err(Error::Address(format!("{other}: a {what} is a path"))),
            };
            match name {
                b"store" => address.stores.push(Site::parse(&value, "store")?),
                b"cache" => address.cache = Some(path("cache")?),
                b"ca" => address.ca = Some(path("file of certificates")?),
                b"cache-bytes" => {
                    let number = std::str::from_utf8(&value)
                        .ok()
                        .and_then(|v| v.parse().ok());
                    address.cache_bytes = number.ok_or_else(|| {
                        Error::Address("`cache-bytes=` takes a number of bytes".to_owned())
                    })?;
                }
                _ => {
                    return Err(Error::Address(format!(
                        "unknown parameter `{}`; there are store, cache, cache-bytes and ca",
                        name.escape_ascii()
                    )));
                }
            }
        }
        match address.stores.len() {
            1..=STORES_MAX => Ok(address),
            0 => Err(Error::Address(format!(
                "no store is named, and an index alone has no data: add ?store=STORE, where STORE is a folder, a URL or a place in S3, \
                 as in {SCHEME}{}?store=/srv/store",
                address.index
            ))),
            many => Err(Error::Address(format!(
                "{many} stores are named, and at most {STORES_MAX} are asked"
            ))),
        }
    }

    /// The same, independent of the working directory.
    ///
    /// # Errors
    /// When there is no working directory.
    pub fn absolute(self) -> io::Result<Self> {
        let path = |path: Option<PathBuf>| path.map(std::path::absolute).transpose();
        let stores = self.stores.into_iter().map(Site::absolute);
        Ok(ChunkAddress {
            index: self.index.absolute()?,
            stores: stores.collect::<io::Result<_>>()?,
            cache: path(self.cache)?,
            cache_bytes: self.cache_bytes,
            ca: path(self.ca)?,
        })
    }

    /// The address as one path again.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let mut out = SCHEME.as_bytes().to_vec();
        encode(&mut out, &self.index);
        let mut separator = b'?';
        let mut pair = |out: &mut Vec<u8>, name: &str| {
            out.push(std::mem::replace(&mut separator, b'&'));
            out.extend(name.as_bytes());
            out.push(b'=');
        };
        for store in &self.stores {
            pair(&mut out, "store");
            encode(&mut out, store);
        }
        for (name, path) in [("cache", &self.cache), ("ca", &self.ca)] {
            if let Some(path) = path {
                pair(&mut out, name);
                encode(&mut out, &Site::Path(path.clone()));
            }
        }
        if self.cache_bytes != CACHE_BYTES {
            pair(&mut out, "cache-bytes");
            out.extend(self.cache_bytes.to_string().into_bytes());
        }
        OsString::from_vec(out).into()
    }
}

impl fmt::Display for ChunkAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().display().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<ChunkAddress> {
        ChunkAddress::parse(text).expect("an address")
    }

    #[test]
    fn addresses_are_read_and_written() {
        for text in [
            "chunks:a.caibx?store=/srv/store",
            "chunks:https://h/a.caibx?store=https://h:8080/s&store=local&cache=/var/c&ca=/etc/ca.pem&cache-bytes=1000",
            "chunks:odd%3Aname%3F?store=with%25and%26",
            "chunks:s3+https://h/b/a.caibx?store=s3+http://h:9000/b/p%3Fregion=eu-1",
        ] {
            let address = parsed(text).unwrap();
            assert_eq!(address.path(), Path::new(text));
        }
        let address = parsed("chunks:odd%3Aname%3F?store=http://h/s/").unwrap();
        assert_eq!(address.index, Site::Path("odd:name?".into()));
        assert_eq!(address.stores, [Site::Url("http://h/s".into())]);
        let absolute = address.absolute().unwrap();
        assert!(matches!(absolute.index, Site::Path(path) if path.is_absolute()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, why) in [
            (
                "chunks:a.caibx",
                "no store is named, and an index alone has no data: add ?store=STORE",
            ),
            ("chunks:a.caibx", "as in chunks:a.caibx?store=/srv/store"),
            ("chunks:a?store=", "no store is named"),
            ("chunks:?store=s", "no index is named"),
            ("chunks:a?shop=s", "unknown parameter `shop`"),
            ("chunks:a?store=s&cache=http://h/", "a cache is a path"),
            ("chunks:a?store=s&cache-bytes=x", "a number of bytes"),
            ("chunks:a?store=%zz", "hexadecimal"),
            ("chunks:a?store=http://h/%0A", "no URL has"),
            ("chunks:a?store=a%00", "a zero"),
            ("chunks:a?store=https:///", "no host"),
            (
                "chunks:a?store=s3+https://h",
                "s3+https://HOST/BUCKET/PREFIX",
            ),
        ] {
            let error = parsed(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        for path in ["chunks:a", "chunks:etc/hosts", "./chunks:a?store=s", "x"] {
            assert!(ChunkAddress::parse(path).is_none(), "{path}");
        }
    }

    #[test]
    fn images_end_before_paths() {
        let end = |text: &str| image_end(text.as_bytes()).map(|at| text[..at].to_owned());
        let image = "chunks:http://h:1/a.caibx?store=http://h:1/s";
        assert_eq!(end(&format!("{image}:/etc")).as_deref(), Some(image));
        assert_eq!(end(&format!("{image}:")).as_deref(), Some(image));
        assert_eq!(end(image), None);
        assert_eq!(
            end("chunks:/a.caibx?store=/s:/x").as_deref(),
            Some("chunks:/a.caibx?store=/s")
        );
    }
}
