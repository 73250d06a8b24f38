//! blockwright-fuse
