//! blockwright-mkfs
