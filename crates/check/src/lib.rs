//! blockwright-check
