//! Opening and walking.

use super::{tree, untouched};
use crate::Target;
use crate::base::{self, options};
use crate::patch::Input;
use std::sync::Arc;

pub(crate) const TARGET: Target = Target {
    name: "open_walk",
    property: "opening and reading any image ends with a value or an error; an intact one is read without an error",
    run,
    max_len: 512,
    bases: base::cleanly_closed,
    seeds: || {
        [
            untouched(base::cleanly_closed(), &[]),
            untouched(base::cleanly_closed(), &[1]),
        ]
        .concat()
    },
};

/// A program whose first byte is odd opens for writing.
fn run(data: &[u8]) {
    let input = Input::decode(data);
    let Some((base, device)) = input.image(base::cleanly_closed()) else {
        return;
    };
    let write = input.program.first().is_some_and(|b| b & 1 == 1);
    let intact = input.patches.is_empty();
    match options(!write).open_device(Arc::new(device)) {
        Ok(volume) => {
            let walked = tree::walk(&volume);
            assert!(
                !intact || walked.errors.is_empty(),
                "{}: {:?}",
                base.name,
                walked.errors
            );
            assert!(
                !intact || walked.names.len() > 40,
                "{}: {:?}",
                base.name,
                walked.names
            );
            let closed = volume.close();
            assert!(!intact || closed.is_ok(), "{}: {closed:?}", base.name);
        }
        Err(e) => assert!(!intact, "{}: {e}", base.name),
    }
}
