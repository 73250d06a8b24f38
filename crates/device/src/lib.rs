//! blockwright-device
