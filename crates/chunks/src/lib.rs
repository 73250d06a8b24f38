//! Images in content-addressed chunks, as casync and desync have them.
//!
//! An image is cut into chunks of some 64 KiB where its contents say ([`Chunker`]). An [`Index`] lists the chunks' names, which are digests; a store
//! keeps each chunk once, whichever images it is part of. So a new build of an image costs what is new in it, to keep and to fetch.
//!
//! * [`make()`] cuts an image; [`extract()`] puts one together again, and [`verify()`] reads all its chunks.
//! * [`ChunkAddress`] is what a user calls such an image: `chunks:INDEX?store=URL`. [`open`] makes a device of it, which fetches a chunk when it is
//!   read, checks it, and reads ahead.
//! * [`Source`] gives chunks: [`Stores`], in this process, or a [`Remote`] in another one, for a process that may not use the network.
//!
//! Indexes and stores are hostile input. Chunks have at most [`index::CHUNK_BYTES_MAX`] bytes and indexes [`index::INDEX_BYTES_MAX`]; a chunk that is
//! not what the index says is an error with its name and its store. The largest amount of memory of a device is [`fetch::MEMORY_BYTES`] and two chunks
//! for each of its [`fetch::THREADS`] threads.
//!
//! Not responsible for: what is in an image; writing (a device above keeps changes).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod address;
mod cache;
mod chunker;
mod device;
mod error;
mod extract;
pub mod fetch;
mod files;
mod http;
mod id;
pub mod index;
mod make;
mod pack;
mod remote;
mod store;

pub use address::{ChunkAddress, Site};
pub use chunker::{Chunker, WINDOW};
pub use device::{ChunkDevice, check_mode, hold, open};
pub use error::{Error, Result};
pub use extract::{Verified, extract, verify};
pub use id::{ChunkId, Digest};
pub use index::{ChunkSizes, Entry, Index};
pub use make::{Made, MakeOptions, make};
pub use pack::packed_bytes_max;
pub use remote::{Remote, serve};
pub use store::{Packed, Source, Stores};
