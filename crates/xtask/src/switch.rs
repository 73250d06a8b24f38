//! The kernel's switch for FUSE over io_uring: on while tests run, so that both transports are tested.

use std::fs;

/// Off by default, and only root may change it.
const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// While it lives the switch is on; then it is as it was.
pub(crate) struct UringOn {
    old: String,
}

impl UringOn {
    /// Switches on. `None` where there is no such switch, or it may not be changed: said loudly, because
    /// then tests see only one transport.
    pub(crate) fn new() -> Option<Self> {
        let switched = fs::read_to_string(ENABLED).and_then(|old| {
            fs::write(ENABLED, "Y")?;
            Ok(UringOn { old })
        });
        switched
            .inspect_err(|e| {
                eprintln!("xtask test: {ENABLED}: {e}; mounts are tested over /dev/fuse only");
            })
            .ok()
    }
}

impl Drop for UringOn {
    fn drop(&mut self) {
        let _ = fs::write(ENABLED, self.old.trim());
    }
}
