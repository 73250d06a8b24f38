//! Journals, fast commits and chains of fsynced nodes.

use super::{Verdict, check, tree, untouched};
use crate::Target;
use crate::base::{self, options};
use crate::patch::Input;
use blockwright_check::Mode;
use blockwright_device::SharedDevice;
use std::sync::Arc;

pub(crate) const TARGET: Target = Target {
    name: "replay",
    property: "recovery in memory shows the tree that recovery for writing leaves; an intact volume is clean after it",
    run,
    max_len: 512,
    bases: base::unclean,
    seeds: || untouched(base::unclean(), &[]),
};

fn run(data: &[u8]) {
    let input = Input::decode(data);
    let Some((base, device)) = input.image(base::unclean()) else {
        return;
    };
    let intact = input.patches.is_empty();
    let frozen: SharedDevice = Arc::new(device.snapshot());
    let device: SharedDevice = Arc::new(device);
    let in_memory = match options(true).open_device(frozen) {
        Ok(volume) => Some(tree::walk(&volume)),
        Err(e) => {
            assert!(!intact, "{}: {e}", base.name);
            None
        }
    };
    let volume = match options(false).open_device(device.clone()) {
        Ok(volume) => volume,
        Err(e) => return assert!(!intact, "{}: {e}", base.name),
    };
    let walked = tree::walk(&volume);
    if let Some(in_memory) = in_memory
        && in_memory.errors.is_empty()
        && walked.errors.is_empty()
    {
        assert_eq!(
            in_memory.names, walked.names,
            "{}: recovered in memory, and for writing",
            base.name
        );
    }
    let closed = volume.close();
    if intact {
        assert!(
            walked.errors.is_empty() && closed.is_ok(),
            "{}: {walked:?} {closed:?}",
            base.name
        );
        if let Verdict::Dirty(why) = check(base, &device, Mode::ReadOnly) {
            panic!("{}: not clean after its recovery: {why}", base.name);
        }
    }
}
