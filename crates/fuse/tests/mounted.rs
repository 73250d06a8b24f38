//! A mounted volume over whatever transport is chosen by itself: io_uring, where that is switched on.

mod support;

#[path = "mounted/cases.rs"]
mod cases;
#[path = "mounted/locks.rs"]
mod locks;
#[path = "mounted/noxattr.rs"]
mod noxattr;
#[path = "mounted/stale.rs"]
mod stale;
#[path = "mounted/times.rs"]
mod times;

#[path = "mounted/streams.rs"]
mod streams;

const TRANSPORT: blockwright_fuse::TransportChoice = blockwright_fuse::TransportChoice::Auto;
