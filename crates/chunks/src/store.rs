//! Where chunks come from: stores of this host, behind HTTP and in S3, asked in turn, with a cache on disk before them.
//!
//! Nothing here looks into a chunk. What comes back is what a store holds, at most this many bytes; the caller unpacks and checks it.

use crate::address::{ChunkAddress, Site};
use crate::cache::Cache;
use crate::files::read_file;
use crate::http::{Client, Verb};
use crate::index::INDEX_BYTES_MAX;
use crate::pack::packed_bytes_max;
use crate::s3::{S3Keys, S3Place};
use crate::{ChunkId, Error, Result};

/// A chunk as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The compressed bytes.
    pub bytes: Vec<u8>,
    /// The store that they came from, for messages.
    pub store: String,
}

/// What gives chunks.
pub trait Source: Send + Sync {
    /// The chunk with this name, which has `bytes` bytes when it is unpacked. `fresh`: not from the cache, because what was there was wrong.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Store`], [`Error::Wrong`] for something that is larger than the chunk can be.
    fn fetch(&self, id: ChunkId, bytes: usize, fresh: bool) -> Result<Packed>;

    /// The bytes of the index.
    ///
    /// # Errors
    /// [`Error::Host`], [`Error::Store`].
    fn index(&self) -> Result<Vec<u8>>;
}

/// The stores and the cache of an address.
pub struct Stores {
    index: Site,
    stores: Vec<Site>,
    client: Option<Client>,
    keys: S3Keys,
    cache: Option<Cache>,
}

impl Stores {
    /// Takes what an address names. Nothing is read yet but certificates, and for S3 the keys in the environment ([`S3Keys::of_environment`]).
    ///
    /// # Errors
    /// [`Error::Host`] when the cache's folder cannot be made, or the certificates cannot be read; [`Error::Address`] for half of a pair of keys.
    pub fn open(address: &ChunkAddress) -> Result<Self> {
        let mut sites = address.stores.iter().chain([&address.index]);
        let keys = match sites.any(|site| matches!(site, Site::S3(_))) {
            true => S3Keys::of_environment()?,
            false => S3Keys::default(),
        };
        Self::open_with(address, keys)
    }

    /// The same with other keys for S3.
    ///
    /// # Errors
    /// As [`Stores::open`].
    pub fn open_with(address: &ChunkAddress, keys: S3Keys) -> Result<Self> {
        let mut sites = address.stores.iter().chain([&address.index]);
        let client = match sites.any(|site| !matches!(site, Site::Path(_))) {
            true => Some(Client::new(address.ca.as_deref())?),
            false => None,
        };
        let cache = address.cache.as_ref();
        Ok(Stores {
            index: address.index.clone(),
            stores: address.stores.clone(),
            client,
            keys,
            cache: cache
                .map(|folder| Cache::open(folder, address.cache_bytes))
                .transpose()?,
        })
    }

    fn client(&self, place: &str) -> Result<&Client> {
        self.client.as_ref().ok_or_else(|| Error::Store {
            place: place.to_owned(),
            why: "no HTTP client was made".to_owned(),
        })
    }

    /// The bytes at a URL; `None` when there is nothing.
    fn get(&self, url: &str, most: u64) -> Result<Option<Vec<u8>>> {
        self.client(url)?.get(url, most)
    }

    /// The bytes of an object of S3; `None` when there is none.
    fn get_object(&self, place: &S3Place, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
        let object = place.object(name);
        let client = self.client(place.text())?;
        client.s3(&object, &self.keys, Verb::Get(most))
    }
}

impl Source for Stores {
    fn fetch(&self, id: ChunkId, bytes: usize, fresh: bool) -> Result<Packed> {
        let most = packed_bytes_max(bytes);
        if let Some(cache) = self.cache.as_ref().filter(|_| !fresh)
            && let Some(bytes) = cache.get(id, most)
        {
            return Ok(Packed {
                bytes,
                store: cache.name(),
            });
        }
        let mut failed = None;
        for site in &self.stores {
            let found = match site {
                Site::Path(folder) => {
                    let path = folder.join(id.path());
                    read_file(&path, most).map_err(|e| Error::host(path.display(), &e))
                }
                Site::Url(url) => self.get(&format!("{url}/{}", id.path()), most),
                Site::S3(place) => self.get_object(place, &id.path(), most),
            };
            match found {
                Ok(Some(found)) if found.len() as u64 > most => {
                    failed.get_or_insert(Error::Wrong {
                        chunk: id,
                        store: site.to_string(),
                        why: format!(
                            "it has more than {most} bytes, too many for a chunk of {bytes}"
                        ),
                    });
                }
                Ok(Some(bytes)) => {
                    if let Some(cache) = &self.cache {
                        cache.put(id, &bytes);
                    }
                    return Ok(Packed {
                        bytes,
                        store: site.to_string(),
                    });
                }
                Ok(None) => {}
                // Another store may have it.
                Err(e) => drop(failed.get_or_insert(e)),
            }
        }
        let names: Vec<String> = self.stores.iter().map(Site::to_string).collect();
        Err(failed.unwrap_or_else(|| Error::Missing {
            chunk: id,
            stores: names.join(", "),
        }))
    }

    fn index(&self) -> Result<Vec<u8>> {
        let found = match &self.index {
            Site::Path(path) => read_file(path, INDEX_BYTES_MAX)
                .map_err(|e| Error::host(path.display(), &e))?
                .ok_or_else(|| Error::Host {
                    place: path.display().to_string(),
                    why: "no such file or directory".to_owned(),
                    errno: Some(rustix::io::Errno::NOENT.raw_os_error()),
                })?,
            Site::Url(url) => self
                .get(url, INDEX_BYTES_MAX)?
                .ok_or_else(|| Error::Store {
                    place: url.clone(),
                    why: "the server has no such file".to_owned(),
                })?,
            Site::S3(place) => self
                .get_object(place, "", INDEX_BYTES_MAX)?
                .ok_or_else(|| Error::Store {
                    place: place.to_string(),
                    why: "there is no such object".to_owned(),
                })?,
        };
        if found.len() as u64 > INDEX_BYTES_MAX {
            return Err(Error::Index(format!(
                "it has more than {INDEX_BYTES_MAX} bytes"
            )));
        }
        Ok(found)
    }
}
