//! The contract, kept and checked.

mod attributes;
mod data;
mod names;
mod space;
mod volume;
