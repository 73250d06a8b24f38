//! The module behind the web page: one image, read through WASI, and questions about it.
//!
//! The page (`web/`) runs this in a worker, and implements the few functions of WASI that it calls. The image is the file `/image`;
//! only what is read of it is read from the disk. The module has one function, `serve`, so that the interface is bytes and files:
//! - standard input has the request, a line of JSON (`request::Request`);
//! - standard output takes the answer: JSON, or the bytes that were asked for;
//! - standard error takes lines of JSON (`request::Event`), and the last words of a panic;
//! - the result is 0, or 1 when the answer is an error in JSON.
//!
//! # Parts
//! `names`: names as text. `request`: the interface. `listing`: directories. `session`: the open image. `serving`: the module's function.
//! [`page`]: the page as one file, which does without the others (feature `module`).
//!
//! # Calls
//! `blockwright` and `disk` to read, `ffi` for the check, `map` for the picture.
//!
//! # Hostile images
//! Every list in an answer has a bound. A panic, and memory without an end (the module has at most 1 GiB), end the module; the page
//! says so, and starts another.

#![deny(unsafe_code)]
#![warn(missing_docs)]

#[cfg(feature = "module")]
mod listing;
#[cfg(feature = "module")]
mod names;
pub mod page;
#[cfg(feature = "module")]
mod request;
#[cfg(feature = "module")]
mod serving;
#[cfg(feature = "module")]
mod session;

#[cfg(feature = "module")]
pub use serving::serve;
