//! Checking and repairing any image.

use super::{Verdict, check, tree, untouched};
use crate::Target;
use crate::base::{self, options};
use crate::patch::Input;
use blockwright_check::Mode;
use blockwright_device::SharedDevice;
use std::sync::Arc;

pub(crate) const TARGET: Target = Target {
    name: "check_repair",
    property: "after a repair that refused nothing, check finds nothing, and the engine reads all",
    run,
    max_len: 512,
    bases: base::cleanly_closed,
    seeds: || untouched(base::cleanly_closed(), &[]),
};

fn run(data: &[u8]) {
    let input = Input::decode(data);
    let Some((base, device)) = input.image(base::cleanly_closed()) else {
        return;
    };
    let device: SharedDevice = Arc::new(device);
    match check(base, &device, Mode::ReadOnly) {
        Verdict::Clean => {}
        Verdict::Dirty(why) => assert!(!input.patches.is_empty(), "{}: {why}", base.name),
        Verdict::Refused => {
            assert!(!input.patches.is_empty(), "{}: refused", base.name);
            return;
        }
    }
    if let Verdict::Refused = check(base, &device, Mode::Yes) {
        return;
    }
    match check(base, &device, Mode::ReadOnly) {
        Verdict::Clean => {}
        Verdict::Dirty(why) => {
            return violated(base.name, &format!("repaired, and not clean: {why}"));
        }
        Verdict::Refused => return violated(base.name, "repaired, and refused afterwards"),
    }
    match options(true).open_device(device) {
        Ok(volume) => {
            let walked = tree::walk(&volume);
            if !walked.errors.is_empty() {
                violated(
                    base.name,
                    &format!("repaired, and not readable: {:?}", walked.errors),
                );
            }
        }
        Err(e) => violated(base.name, &format!("repaired, and not to be opened: {e}")),
    }
}

/// Panics where that is asked for: the checker is known to violate this still, and a fuzzer that stops at the first
/// violation finds nothing else. See docs/TESTING.md.
fn violated(base: &str, what: &str) {
    if std::env::var_os("BLOCKWRIGHT_FUZZ_STRICT").is_some() {
        panic!("{base}: {what}");
    }
}
