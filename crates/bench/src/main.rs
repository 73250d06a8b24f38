//! blockwright-bench
fn main() {}
