//! The program that libFuzzer drives: `BLOCKWRIGHT_FUZZ_TARGET` names the target. `cargo xtask fuzz` builds and runs it.
#![no_main]

use blockwright_fuzz::{Target, mutate, target};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use std::sync::OnceLock;

fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var("BLOCKWRIGHT_FUZZ_TARGET").unwrap_or_default();
        target(&name).unwrap_or_else(|| panic!("BLOCKWRIGHT_FUZZ_TARGET={name} is no target"))
    })
}

/// Writes the target's seeds where the corpus is that the fuzzer adds to.
fn write_seeds() {
    let Some(dir) = std::env::var_os("BLOCKWRIGHT_FUZZ_SEEDS") else {
        return;
    };
    for (n, seed) in (chosen().seeds)().into_iter().enumerate() {
        let file = std::path::Path::new(&dir).join(format!("seed-{n:02}"));
        std::fs::write(&file, seed).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
}

fuzz_target!(init: write_seeds(), |data: &[u8]| {
    (chosen().run)(data);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let bases = (chosen().bases)();
    // One mutation in five is libFuzzer's own: it knows the operands of comparisons.
    if bases.is_empty() || seed % 5 == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let changed = mutate::mutate(bases, &data[..size], u64::from(seed));
    let len = changed.len().min(max_size);
    data[..len].copy_from_slice(&changed[..len]);
    len
});
