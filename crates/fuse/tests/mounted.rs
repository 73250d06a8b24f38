//! A mounted volume over whatever transport is chosen by itself: io_uring, where that is switched on.

mod support;

#[path = "mounted/cases.rs"]
mod cases;
#[path = "mounted/times.rs"]
mod times;

const TRANSPORT: blockwright_fuse::TransportChoice = blockwright_fuse::TransportChoice::Auto;
