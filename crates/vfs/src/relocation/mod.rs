//! For engines that move blocks: a barrier that keeps a file's blocks in place, and knowledge of when reads have ended ([`reads`]).
//!
//! # Locks
//! [`Host::with_relocation_barrier`] takes what truncation takes.

pub(crate) mod reads;

use crate::core::Core;
use crate::engine::Host;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::inode::holds::WritebackOwner;
use crate::types::{FileKind, Ino};
use crate::writeback::WithoutRoom;
use reads::{Reading, Reads};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl Core {
    /// Counts a read of file data, where blocks may move.
    pub(crate) fn begin_read(&self) -> Option<Reading> {
        self.reads.as_ref().map(Reads::begin)
    }

    /// Before something of `bytes` is written: lets the engine clean. No lock is held.
    pub(crate) fn make_room(&self, bytes: usize) {
        if self.reads.is_some() {
            self.engine.make_room(bytes as u64);
            self.budget.set_room(self.engine.unwritten_bytes_max());
        }
    }
}

/// The vfs as its engine sees it.
pub(crate) struct EngineHost {
    pub(crate) core: Weak<Core>,
    pub(crate) reads: Option<Arc<Reads>>,
}

impl EngineHost {
    fn core(&self, op: &'static str) -> Result<Arc<Core>> {
        let core = self.core.upgrade().ok_or_else(|| Error::unmounted(op))?;
        // While the volume is being unmounted, what is dirty may still need cleaning.
        match core.unmounted.load(Ordering::Acquire) {
            true => Err(Error::unmounted(op)),
            false => Ok(core),
        }
    }
}

impl Host for EngineHost {
    fn with_relocation_barrier(
        &self,
        ino: Ino,
        work: &mut dyn FnMut(&Arc<Inode>) -> Result<()>,
    ) -> Result<()> {
        const OP: &str = "hold blocks still";
        let core = self.core(OP)?;
        let inode = core.inode(ino)?;
        if inode.kind() != FileKind::Regular {
            return Err(Error::new(ErrorKind::Invalid, OP).ino(ino));
        }
        let _lock = inode.lock.write();
        let _invalidate = inode.invalidate.write();
        inode.pages.wait_direct();
        inode.extent_cache.forget();
        inode.placed.forget();
        let _owner = WritebackOwner::acquire(&inode);
        work(&inode)
    }

    fn write_back(&self) -> Result<()> {
        // The engine cleans: it cannot do so again for what finds no room. That stays dirty.
        let core = self.core("write back")?;
        core.write_all_once(WithoutRoom::KeepDirty).1
    }

    fn unwritten_bytes(&self) -> u64 {
        self.core
            .upgrade()
            .map_or(0, |core| core.budget.unwritten())
    }

    fn await_reads(&self) {
        if let Some(reads) = &self.reads {
            reads.wait();
        }
    }
}
