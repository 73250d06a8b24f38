//! blockwright-xtask
fn main() {}
