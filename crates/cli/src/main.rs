//! blockwright-cli
fn main() {}
