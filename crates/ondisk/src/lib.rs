//! On-disk formats: little-endian raw structures whose sizes and offsets are asserted at compile
//! time, their checksums, their feature sets, and the validated form of each (`RawX` → `X`).
//!
//! Not responsible for: I/O, caching, locking, allocation policy, or for deciding what to do about
//! damage. A parser either returns a value every later computation can rely on, or a
//! `FormatError` ([ext4's](ext4::FormatError), [f2fs's](f2fs::FormatError)) that names the structure
//! and the value it refused.
//!
//! Invariants: nothing here panics on any input bytes, allocates in proportion to an on-disk
//! number, or contains unsafe code.
#![forbid(unsafe_code)]

pub mod ext4;
pub mod f2fs;
pub mod lzo;
pub mod nokey;
mod numbers;
pub mod quota;
