//! Volumes made from directories, tar streams and container images.
//!
//! # Steps
//! 1. Sources are merged in memory, in order (`tree`; metadata only). `policy` applies rules to all entries.
//! 2. The volume is planned from the result: [`blockwright_mkfs::ext4::plan`], [`blockwright_mkfs::f2fs::plan`]. Planning alone finds the smallest size.
//! 3. The plan is written front to back. Several threads read the data from the sources. So no journal is needed, and every file lies in one piece.
//!
//! # Data of sources
//! Data of plain archives and of directories is read in place. Data of compressed archives and of standard input is kept in a nameless
//! file beside the image until it is in the volume. `budget` limits what all archives together may take.
//!
//! # Reproducible volumes
//! With [`VolumeBuilder::source_date_epoch`], the same sources and options make the same bytes. No time later than the epoch is stored, and
//! the epoch replaces times that reading the sources changes. Nothing is random: without [`VolumeBuilder::uuid`], the UUID is derived from a
//! digest of the volume's contents (see `digest`), and the directories' hash seed from the UUID.
//!
//! # Calls
//! It calls `mkfs` for plans and writing, `disk` and `device` for the target. It never calls an engine.
//!
//! # Crash order
//! That of `mkfs`: the superblock is written last, so an interrupted volume is not taken for a complete one.
//!
//! References: pax(1) and tar(5) for archives; `image` and `policy` name theirs.

mod archive;
mod base;
mod budget;
mod copying;
mod data;
mod digest;
mod directory;
mod dumpfile;
mod fsverity;
mod image;
mod journal;
mod layer;
pub(crate) mod output;
mod pax;
mod policy;
pub(crate) mod progress;
mod rules;
mod source;
mod tar;
mod target;
mod tree;
mod volume_builder;

pub use blockwright_mkfs::flags::LeftOut;
pub use image::ContainerImage;
pub use journal::{JournalBuilder, JournalReport};
pub use policy::{EntryPolicy, FileContexts, FsConfig, Mtime, OwnerMap, companions};
pub use progress::BuildProgress;
pub use target::{BuildDetails, BuildReport};
pub use volume_builder::VolumeBuilder;

pub(crate) use directory::storable;
use rules::Rules;
pub(crate) use volume_builder::part;
