//! The crash explorer: runs a seeded workload over a recording device, cuts the power at chosen points, and
//! holds every resulting image against docs/DURABILITY.md.
//!
//! * A [`Plan`] says what is run and on what; [`workload`] draws the operations and runs them through the vfs, keeping the model in step.
//! * [`model`] is the durability model: what the volume looked like after each operation, and from which log
//!   position on what was promised.
//! * [`verify`] mounts a crash image, walks it, and asks the model whether such a volume may exist; then the
//!   checker, and on a sample e2fsck, must find nothing.
//!
//! Everything is drawn from one seed, so that seed and commit replay a run: also where f2fs is worked on by several threads, which
//! take turns then, in debug builds ([`Plan::takes_turns`]). The device is filled with
//! [`STALE`] before the volume is made: a file that shows this byte shows a block's earlier owner.
//!
//! Not responsible for: recording and cutting, which is `device::sim::RecordingDevice`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod ace;
mod ballast;
mod explore;
mod explored;
mod fresh;
#[cfg(test)]
mod in_turns;
pub mod model;
mod mounted;
mod plan;
pub mod script;
#[cfg(test)]
mod second_life;
pub mod verify;
pub mod workload;
#[cfg(test)]
mod written_ahead;

pub use explore::{Cuts, explore};
pub use explored::Explored;
pub use plan::{Cleaning, F2fsSwitches, Format, Plan, Rng, Room, STALE};
