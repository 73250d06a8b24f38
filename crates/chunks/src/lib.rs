//! Images in content-addressed chunks, as casync and desync have them.
//!
//! An image is cut into chunks of about 64 KiB at places that its contents choose ([`Chunker`]). An [`Index`] lists the names of the chunks,
//! which are digests. A store keeps each chunk once, even if many images share it. So a new build of an image costs only its new chunks,
//! both in the store and on the network.
//!
//! # Parts
//! * [`make()`] cuts an image; [`extract()`] writes one from its chunks, and [`verify()`] reads all its chunks.
//! * [`ChunkAddress`] is the name of such an image: `chunks:INDEX?store=URL`. [`open`] makes a device of it. The device fetches a chunk when it is
//!   read, checks it, and reads ahead.
//! * [`Source`] gives chunks: [`Stores`], in this process, or a [`Remote`] in another one, for a process that may not use the network.
//! * [`Sink`] keeps new ones: a [`Folder`], an [`S3Store`], or a [`Remote`].
//!
//! # Calls
//! It calls `device`, and the network through `http` alone.
//!
//! # Hostile input
//! Indexes and stores are hostile input. Chunks have at most [`index::CHUNK_BYTES_MAX`] bytes and indexes [`index::INDEX_BYTES_MAX`]. A chunk
//! that differs from its digest in the index is an error with its name and its store. A device takes at most [`fetch::MEMORY_BYTES`] of memory and two
//! chunks for each of its [`fetch::THREADS`] threads.
//!
//! # Locks
//! Each part has one mutex for its own state. None is held during I/O on a store, except the one that keeps messages of a [`Remote`] whole.
//!
//! # Crash order
//! Files of stores and indexes appear whole: they are written under another name and renamed. [`make()`] syncs the store before it writes the
//! index, so a durable index has durable chunks.
//!
//! # Not responsible for
//! The contents of an image; writing to one (a device above keeps changes).
//!
//! References: casync's and desync's formats `.caibx` and `.castr`; `docs/design/chunks.md`.

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
mod percent;
mod remote;
mod s3;
mod sink;
mod store;

pub use address::{ChunkAddress, Site};
pub use chunker::{Chunker, WINDOW};
pub use device::{ChunkDevice, check_mode, hold, open};
pub use error::{Error, Result};
pub use extract::{Verified, extract, verify};
pub use id::{ChunkId, Digest};
pub use index::{ChunkSizes, Entry, Index};
pub use make::{Made, MakeOptions, make, make_into};
pub use pack::packed_bytes_max;
pub use remote::{Remote, serve, serve_sink};
pub use s3::{S3Keys, S3Place};
pub use sink::{Folder, S3Store, Sink, open_sink};
pub use store::{Packed, Source, Stores};
