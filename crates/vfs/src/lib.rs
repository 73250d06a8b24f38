//! blockwright-vfs
