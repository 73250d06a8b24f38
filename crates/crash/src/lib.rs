//! blockwright-crash
