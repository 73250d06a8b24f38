//! The engine in memory keeps the promises of the engine traits, too.

use crate::engine::Engine;
use crate::engine::conformance::{Access, Shape, Subject};
use crate::testing::{MemEngine, MemOptions};
use blockwright_device::SharedDevice;
use blockwright_device::sim::memory::MemoryDevice;
use std::sync::Arc;

struct InMemory(Arc<MemEngine>);

impl Subject for InMemory {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.0) as Arc<dyn Engine>
    }
    fn device(&self) -> SharedDevice {
        Arc::clone(self.0.device()) as SharedDevice
    }
    fn remount(&mut self, access: Access) {
        self.0.set_read_only(access == Access::ReadOnly);
    }
    fn crashed(&self) -> Option<Box<dyn Subject>> {
        None
    }
    fn check(&self) {
        assert_eq!(self.0.reserved_blocks(), 0, "nothing stays reserved");
    }
}

fn make(shape: Shape) -> Option<Box<dyn Subject>> {
    if shape.quota {
        return None;
    }
    let options = MemOptions {
        inline_bytes_max: if shape.inline_data { 60 } else { 0 },
        ..MemOptions::default()
    };
    let engine = MemEngine::new(Arc::new(MemoryDevice::new(shape.bytes)), options);
    Some(Box::new(InMemory(engine)))
}

crate::engine_conformance!(make);

/// With blocks at hand, and allocations that are short.
mod preallocated {
    use super::{InMemory, MemEngine, MemOptions, MemoryDevice, Shape, Subject};
    use std::sync::Arc;

    fn make(shape: Shape) -> Option<Box<dyn Subject>> {
        if shape.quota || shape.inline_data {
            return None;
        }
        let options = MemOptions {
            preallocated: true,
            allocate_bytes_max: 8192,
            ..MemOptions::default()
        };
        let engine = MemEngine::new(Arc::new(MemoryDevice::new(shape.bytes)), options);
        Some(Box::new(InMemory(engine)))
    }

    crate::engine_conformance!(make);
}
