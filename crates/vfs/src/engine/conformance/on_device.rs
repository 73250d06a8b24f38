//! A subject whose format keeps everything on its device.

use super::{Access, Subject};
use crate::engine::Engine;
use blockwright_device::SharedDevice;
use blockwright_device::sim::memory::MemoryDevice;
use std::sync::Arc;

/// A formatted device in memory, and how to mount and check it.
pub struct OnDevice {
    memory: Arc<MemoryDevice>,
    engine: Option<Arc<dyn Engine>>,
    mount: fn(SharedDevice, Access) -> Arc<dyn Engine>,
    check: fn(SharedDevice),
}

impl OnDevice {
    /// Mounts a device. `check` panics unless the volume is sound.
    #[must_use]
    pub fn mount(
        memory: Arc<MemoryDevice>,
        mount: fn(SharedDevice, Access) -> Arc<dyn Engine>,
        check: fn(SharedDevice),
    ) -> Box<dyn Subject> {
        let engine = mount(memory.clone(), Access::ReadWrite);
        Box::new(OnDevice {
            memory,
            engine: Some(engine),
            mount,
            check,
        })
    }
}

impl Subject for OnDevice {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(self.engine.as_ref().expect("mounted"))
    }

    fn device(&self) -> SharedDevice {
        self.memory.clone()
    }

    fn remount(&mut self, access: Access) {
        self.engine = None;
        self.engine = Some((self.mount)(self.memory.clone(), access));
    }

    fn crashed(&self) -> Option<Box<dyn Subject>> {
        let copy = Arc::new(self.memory.snapshot());
        Some(Self::mount(copy, self.mount, self.check))
    }

    fn check(&self) {
        (self.check)(self.memory.clone());
    }
}
