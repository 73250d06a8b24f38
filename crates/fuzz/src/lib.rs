//! Fuzz targets as plain functions, and what they need: base images, patches, a structure-aware mutator.
//!
//! * [`TARGETS`] lists the targets. A target takes any bytes and panics only when a property is violated.
//! * [`base`] makes the base images at start-up, from the engines themselves, so the repository holds none.
//! * [`patch`] is the input format of image targets: a base's number, patches of its bytes, then a program.
//! * [`fields`] knows where the structures' fields lie in a base; [`mutate`] changes these.
//!
//! `cargo xtask fuzz` builds the program with libFuzzer, edge counters in the workspace's crates, and checksums that
//! verify as true. Plain `cargo test` replays the corpora through the same functions, with checksums in force.
//!
//! Not responsible for: comparing with other implementations (`crates/check` does that), crashes (`crates/crash`).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod base;
pub mod fields;
pub mod mutate;
pub mod patch;
mod rng;
mod targets;

/// A fuzz target.
pub struct Target {
    /// Its name on the command line, and its folder below `corpus`.
    pub name: &'static str,
    /// What it holds the code to.
    pub property: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// The longest input worth trying.
    pub max_len: usize,
    /// Which bases an input may name; empty: inputs are no patched images.
    pub bases: fn() -> &'static [base::Base],
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    targets::walk::TARGET,
    targets::ops::TARGET,
    targets::check_repair::TARGET,
    targets::replay::TARGET,
    targets::archive::TAR,
    targets::archive::COMPRESSION,
    targets::listing::TARGET,
    targets::nbd::TARGET,
    targets::trace::TARGET,
    targets::disk::TARGET,
    targets::chunks::TARGET,
    targets::resize::TARGET,
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|t| t.name == name)
}

/// Whether this build takes every checksum for right.
#[must_use]
pub fn checksums_are_off() -> bool {
    !blockwright_ondisk::sums_differ(0, 1)
}
