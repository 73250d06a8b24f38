//! Where new chunks go: a folder of this host, or S3.

use crate::address::Site;
use crate::files::write_whole;
use crate::http::{Client, Verb};
use crate::s3::{S3Keys, S3Place};
use crate::{ChunkId, Error, Result};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// What keeps chunks.
pub trait Sink: Send + Sync {
    /// Whether the chunk is there already.
    ///
    /// # Errors
    /// [`Error::Store`].
    fn has(&self, id: ChunkId) -> Result<bool>;

    /// Keeps a chunk, compressed. It appears whole.
    ///
    /// # Errors
    /// [`Error::Host`], [`Error::Store`].
    fn put(&self, id: ChunkId, packed: &[u8]) -> Result<()>;

    /// Makes durable what was put.
    ///
    /// # Errors
    /// [`Error::Host`], [`Error::Store`].
    fn sync(&self) -> Result<()>;
}

/// A store in a folder of this host.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes the folder if it is not there.
    ///
    /// # Errors
    /// [`Error::Host`].
    pub fn open(path: &Path) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            return Err(Error::Host {
                place: path.display().to_string(),
                why: "this is no folder, and a store of chunks is one".to_owned(),
                errno: Some(rustix::io::Errno::NOTDIR.raw_os_error()),
            });
        }
        fs::create_dir_all(path).map_err(|e| Error::host(path.display(), &e))?;
        Ok(Folder(path.to_owned()))
    }
}

impl Sink for Folder {
    fn has(&self, id: ChunkId) -> Result<bool> {
        Ok(self.0.join(id.path()).exists())
    }

    fn put(&self, id: ChunkId, packed: &[u8]) -> Result<()> {
        let path = self.0.join(id.path());
        write_whole(&path, packed).map_err(|e| Error::host(path.display(), &e))
    }

    fn sync(&self) -> Result<()> {
        let place = self.0.display();
        let folder = File::open(&self.0).map_err(|e| Error::host(&place, &e))?;
        rustix::fs::syncfs(&folder).map_err(|e| Error::host(place, &e.into()))
    }
}

/// A store in S3. An object that a server has answered for is durable.
pub struct S3Store {
    place: S3Place,
    client: Client,
    keys: S3Keys,
}

impl S3Store {
    /// A store at a place, with the keys in the environment. `ca`: as in an address. Nothing is asked yet.
    ///
    /// # Errors
    /// As [`S3Keys::of_environment`]; [`Error::Host`] for certificates.
    pub fn open(place: &S3Place, ca: Option<&Path>) -> Result<Self> {
        Self::open_with(place, S3Keys::of_environment()?, ca)
    }

    /// The same with other keys.
    ///
    /// # Errors
    /// [`Error::Host`] for certificates.
    pub fn open_with(place: &S3Place, keys: S3Keys, ca: Option<&Path>) -> Result<Self> {
        Ok(S3Store {
            place: place.clone(),
            client: Client::new(ca)?,
            keys,
        })
    }
}

impl Sink for S3Store {
    fn has(&self, id: ChunkId) -> Result<bool> {
        let object = self.place.object(&id.path());
        let found = self.client.s3(&object, &self.keys, Verb::Head)?;
        Ok(found.is_some())
    }

    fn put(&self, id: ChunkId, packed: &[u8]) -> Result<()> {
        let object = self.place.object(&id.path());
        let made = self.client.s3(&object, &self.keys, Verb::Put(packed))?;
        match made {
            Some(_) => Ok(()),
            None => Err(Error::Store {
                place: self.place.to_string(),
                why: "the server takes no objects".to_owned(),
            }),
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// Opens the store at a place that chunks can be written to.
///
/// # Errors
/// [`Error::Address`] for an HTTP URL; as [`Folder::open`] and [`S3Store::open`].
pub fn open_sink(site: &Site, ca: Option<&Path>) -> Result<Box<dyn Sink>> {
    Ok(match site {
        Site::Path(path) => Box::new(Folder::open(path)?),
        Site::S3(place) => Box::new(S3Store::open(place, ca)?),
        Site::Url(url) => {
            return Err(Error::Address(format!(
                "{url}: chunks are not written over HTTP; a store to write is a folder, or s3+https://HOST/BUCKET/PREFIX"
            )));
        }
    })
}
