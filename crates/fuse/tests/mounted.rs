//! A mounted volume over whatever transport is chosen by itself: io_uring, where that is switched on.

mod support;

#[path = "mounted/cases.rs"]
mod cases;

const TRANSPORT: blockwright_fuse::TransportChoice = blockwright_fuse::TransportChoice::Auto;
