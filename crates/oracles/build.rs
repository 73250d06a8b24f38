//! Compiles what lets user-mode-linux run on processors with a large extended state. Without a C compiler there is none, and it runs where it
//! can by itself.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/uml_xstate.c");
    let out = std::env::var_os("OUT_DIR").expect("cargo says where");
    let library = Path::new(&out).join("uml_xstate.so");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return;
    }
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .arg(&library)
        .arg("src/uml_xstate.c")
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("cargo::warning=no C compiler: user-mode-linux may not run on this processor");
    }
}
