//! f2fs: label and UUID, and the size.
//!
//! # Parts, lowest first
//! - `store`: the device in blocks.
//! - `volume`: NAT, SIT, summaries and logs of a clean volume, and the checkpoint that commits changes of them.
//! - `room`: blocks that may be written, as the committed checkpoint does not use them.
//! - `mover`: copies blocks out of segments.
//! - `switch`: writes all metadata in another place, and the superblock that names it.
//! - [`resize`]: what is done in which order, and why it survives a crash.
//! - [`settings`]: the label and the UUID.

mod mover;
pub mod resize;
mod room;
pub mod settings;
mod store;
mod switch;
mod volume;

pub use settings::set;
