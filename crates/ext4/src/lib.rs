//! blockwright-ext4
