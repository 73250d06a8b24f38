//! blockwright-blockwright
