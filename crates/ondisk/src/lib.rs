//! blockwright-ondisk
