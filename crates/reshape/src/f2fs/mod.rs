//! f2fs: settings, and the size.
//!
//! # Parts, lowest first
//! - `trial`: the blocks that a rehearsal has written, in memory.
//! - `store`: the device in blocks.
//! - `volume`: NAT, SIT, summaries and logs of a clean volume, and the checkpoint that commits changes of them.
//! - `room`: blocks that may be written, as the committed checkpoint does not use them.
//! - `mover`: copies blocks out of segments.
//! - `switch`: writes all metadata in another place, and the superblock that names it.
//! - [`resize`]: what is done in which order, and why it survives a crash.
//! - `extensions`: the lists of names of cold and hot files.
//! - `features`: which features change, and why others do not.
//! - `quota`: quota files of a volume that has none.
//! - [`settings`]: changes of the superblock.
//!
//! # Stops
//! `mover` asks the watch between segments, and commits what has moved before it stops. `switch` asks while it writes tables that no superblock names. So a
//! volume may be stopped between two layouts, with its metadata in between or with the new end already: the next change of size goes on from there.

mod extensions;
mod features;
mod mover;
mod quota;
pub mod resize;
mod room;
pub mod settings;
mod store;
mod switch;
mod trial;
mod volume;

pub use settings::{rehearse, set, set_rehearsed};
