//! Gives the shared library the name under which programs find it at run time.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The number is that of the ABI: `BW_ABI`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libblockwright.so.0");
}
