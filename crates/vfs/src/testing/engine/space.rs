//! Blocks in memory: free, reserved, given back.

use crate::engine::Space;
use crate::error::{ErrorKind, Result};
use crate::inode::Inode;
use crate::testing::MemEngine;
use crate::types::StatFs;
use blockwright_device::BlockDevice;
use std::ops::Range;
use std::sync::Arc;

impl Space for MemEngine {
    fn statfs(&self) -> Result<StatFs> {
        let v = self.volume.lock();
        let free = v.free.len() as u64 - v.reserved;
        Ok(StatFs {
            block_bytes: self.options.block_bytes,
            blocks: self.device.geometry().bytes / self.block(),
            blocks_free: free,
            blocks_available: free,
            files: u64::MAX,
            files_free: u64::MAX,
            name_bytes_max: 255,
            fsid: 1,
        })
    }

    fn reserve(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
        self.writable()?;
        let mut range = range;
        {
            let mut v = self.volume.lock();
            if Self::file(&mut v, inode).inline.is_some() {
                range.end = range.end.next_multiple_of(self.block());
            }
        }
        let units = self.units(&range);
        let mut v = self.volume.lock();
        let available = v.free.len() as u64 - v.reserved;
        let file = Self::file(&mut v, inode);
        let new: Vec<u64> = units
            .filter(|u| {
                !file.blocks.contains_key(u)
                    && !file.delayed.contains(u)
                    && !file.pending.contains_key(u)
            })
            .collect();
        if new.len() as u64 > available {
            return Err(ErrorKind::NoSpace.into());
        }
        file.delayed.extend(&new);
        Self::refresh_blocks(inode, file, self.block());
        v.reserved += new.len() as u64;
        drop(v);
        if let Some(meanwhile) = self.on_reserve.get() {
            meanwhile();
        }
        Ok(())
    }

    fn unreserve(&self, inode: &Arc<Inode>, range: Range<u64>) {
        let units = self.units(&range);
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let before = file.delayed.len();
        file.delayed.retain(|u| !units.contains(u));
        let gone = (before - file.delayed.len()) as u64;
        Self::refresh_blocks(inode, file, self.block());
        v.reserved -= gone;
    }

    fn trim(&self, range: Range<u64>, _bytes_min: u64) -> Result<u64> {
        self.writable()?;
        let bytes = range.end.saturating_sub(range.start);
        if range.start >= self.device.geometry().bytes || bytes < self.block() {
            return Err(ErrorKind::Invalid.into());
        }
        Ok(0)
    }
}
