//! Growth of a volume that is in use.
//!
//! The plan is that of the offline command (`blockwright_reshape`): new groups behind the end, a few blocks that change together. It reads
//! the volume through the metadata cache, while no handle is open. New groups are written at once: nothing refers to them. The other blocks and the superblock
//! are one transaction of the engine's journal, and the parts see the new shape before the next handle starts.
//!
//! Where more descriptors are needed than blocks are reserved for, new groups hold them (`meta_bg`), and reserved blocks are freed.
//!
//! # Locks
//! `growing`, for all of it. In the transaction, with no handle beside it: the lock of the group that was cut, then those of groups with reserved blocks one by
//! one, and below each of them buffers.
//!
//! # Crash order
//! New groups on the device; flush; the transaction. Copies of superblock and descriptors follow, and serve only when the originals are lost.
//!
//! Without a journal, descriptors of new groups and then the superblock reach the device in front of the transaction
//! ([`Growth::begin_unlogged`]). A crash leaves at worst too few free blocks, as a checker counts them again.

use super::Fs;
use crate::alloc::bits::set_bits;
use crate::alloc::{Allocator, Run};
use crate::journal::Handle;
use crate::journal::buffer::{BlockKind, MetaCache};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{
    BlockDevice, DevOffset, DeviceError, DeviceErrorKind, Flags, Op, Request, SharedDevice,
};
use blockwright_ondisk::ext4::{BlockNo, Geometry, GroupDesc, GroupNo, Incompat};
use blockwright_reshape::ReshapeError;
use blockwright_reshape::ext4::resize::Growth;
use blockwright_vfs::engine::{Grown, NewSize};
use std::sync::Arc;

const OP: &str = "grow";
/// Blocks of the transaction beside those of the plan: the superblock, with room to spare.
const OTHER_BLOCKS: u32 = 4;

/// The device with everything that is committed or changed in memory. Only while no handle is open.
struct Current {
    cache: MetaCache,
    /// Bytes of the volume. Holes of the device in front of it may be blocks that are not home yet.
    volume_bytes: u64,
}

impl BlockDevice for Current {
    fn geometry(&self) -> blockwright_device::Geometry {
        self.cache.device().geometry()
    }

    fn submit(&self, request: Request) {
        if let Op::Read(buf) = &request.op {
            // The plan reads synchronously, by the function below.
            let error = DeviceError {
                op: "read",
                offset: request.offset,
                bytes: buf.len() as u64,
                kind: DeviceErrorKind::Unsupported,
            };
            return request.complete(Err(error));
        }
        self.cache.device().submit(request);
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> blockwright_device::Result<()> {
        self.cache.device().read_at(offset, buf)?;
        let size = self.cache.block_bytes() as u64;
        let end = offset.0 + buf.len() as u64;
        for block in offset.0 / size..end.div_ceil(size) {
            let Some(data) = self.cache.newer_than_device(BlockNo(block)) else {
                continue;
            };
            let (from, to) = ((block * size).max(offset.0), ((block + 1) * size).min(end));
            buf[(from - offset.0) as usize..(to - offset.0) as usize].copy_from_slice(
                &data[(from - block * size) as usize..(to - block * size) as usize],
            );
        }
        Ok(())
    }

    fn write_at(
        &self,
        offset: DevOffset,
        buf: &[u8],
        flags: Flags,
    ) -> blockwright_device::Result<()> {
        self.cache.device().write_at(offset, buf, flags)
    }

    fn flush(&self) -> blockwright_device::Result<()> {
        self.cache.device().flush()
    }

    fn write_zeroes(&self, offset: DevOffset, bytes: u64) -> blockwright_device::Result<()> {
        self.cache.device().write_zeroes(offset, bytes)
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        match offset.0 < self.volume_bytes {
            true => offset,
            false => self.cache.device().next_data(offset),
        }
    }

    fn name(&self) -> String {
        self.cache.device().name()
    }
}

fn refused(error: &ReshapeError) -> Error {
    let kind = match error {
        ReshapeError::Device { source, .. } => return Error::io(OP, source.clone()),
        ReshapeError::Format(_) | ReshapeError::F2fs(_) | ReshapeError::Damaged(_) => {
            ErrorKind::Corrupt
        }
        ReshapeError::NotClean(_) | ReshapeError::Undecided(_) | ReshapeError::Unsupported(_) => {
            ErrorKind::Unsupported
        }
        ReshapeError::Invalid(_) => ErrorKind::Invalid,
        ReshapeError::NoSpace(_) => ErrorKind::NoSpace,
        ReshapeError::Interrupted => ErrorKind::Interrupted,
    };
    Error::new(kind, OP).detail(error.to_string())
}

impl Fs {
    /// [`blockwright_vfs::engine::Space::grow`].
    ///
    /// # Errors
    /// As there.
    pub fn grow(&self, size: NewSize) -> Result<Grown> {
        let _growing = self.growing.lock();
        let volume = &self.volume;
        volume.check_writable(OP)?;
        // It may have become larger since the mount. A device that cannot grow keeps its size.
        let _ = volume.device.grow(0);
        let geo = volume.geometry();
        let now = geo.blocks_count << geo.block_bits;
        let device = &volume.device;
        let wanted = match size {
            NewSize::Bytes(bytes) => bytes,
            NewSize::More(bytes) => now.saturating_add(bytes),
            NewSize::Fill => device.geometry().bytes,
        };
        if wanted < now {
            return Err(Error::new(ErrorKind::Invalid, OP)
                .detail("a mounted volume only becomes larger: unmount it to make it smaller"));
        }
        if wanted > device.geometry().bytes {
            device.grow(wanted).map_err(|e| match e.kind {
                DeviceErrorKind::Unsupported => Error::new(ErrorKind::Invalid, OP).detail(format!(
                    "the device has {} bytes, fewer than the {wanted} asked for",
                    device.geometry().bytes
                )),
                _ => Error::io(OP, e),
            })?;
        }
        let view: SharedDevice = Arc::new(Current {
            cache: volume.cache.clone(),
            volume_bytes: now,
        });
        let plan = volume.journal.alone(OP, |h| {
            let plan = Growth::plan(&view, wanted).map_err(|e| refused(&e))?;
            let images = u32::try_from(plan.images().len()).unwrap_or(u32::MAX);
            if images.saturating_add(OTHER_BLOCKS) > volume.journal.credits_max() / 2 {
                return Err(Error::new(ErrorKind::NoSpace, OP).detail(
                    "the journal is too small for the blocks that change: unmount the volume and run `blockwright resize`",
                ));
            }
            if plan.superblock().geo.blocks_count > geo.blocks_count {
                let freed = self.freed_by(&plan)?;
                if !volume.journal.has_log() {
                    plan.begin_unlogged().map_err(|e| {
                        let error = refused(&e);
                        volume.journal.abort(&error);
                        error
                    })?;
                }
                // The parts may know a part of the new shape by then, and the disk none.
                self.take_over(h, &plan, &freed)
                    .inspect_err(|e| volume.journal.abort(e))?;
            }
            Ok(plan)
        })?;
        let bits = plan.superblock().geo.block_bits;
        let grown = Grown {
            before: plan.blocks_before() << bits,
            now: plan.superblock().geo.blocks_count << bits,
        };
        if grown.now > grown.before {
            plan.write_copies().map_err(|e| refused(&e))?;
        }
        Ok(grown)
    }

    /// What the plan frees in the groups that exist. It is loaded, so that nothing fails when it is freed.
    fn freed_by(&self, plan: &Growth) -> Result<Vec<Freed>> {
        let volume = &self.volume;
        let old = volume.geometry();
        let mut all = Vec::new();
        for no in old.groups() {
            let bitmap = plan.desc(no).map(|desc| desc.block_bitmap);
            let Some((block, image)) = bitmap.and_then(|b| Some((b, plan.image(b)?))) else {
                continue;
            };
            let group = self.groups.group(no)?;
            let desc = group.lock().desc;
            let is_uninit = self.groups.block_bitmap_is_uninit(&desc);
            let kind = BlockKind::BlockBitmap(no);
            let now = match is_uninit {
                true => self.groups.uninit_block_bitmap(no)?,
                false => volume.cache.read(block, kind, |_| Ok(()))?.data().to_vec(),
            };
            let runs = cleared(&now, image, old.group_blocks(no));
            let first = old.group_first_block(no).0;
            for (start, len) in &runs {
                self.alloc.prepare_free(Run {
                    start: BlockNo(first + u64::from(*start)),
                    len: *len,
                })?;
            }
            all.push(Freed {
                group: no,
                bitmap: block,
                is_uninit,
                runs,
            });
        }
        Ok(all)
    }

    /// Changes the blocks of the plan in the handle, and what the parts know of the volume's shape.
    fn take_over(&self, h: &Handle<'_>, plan: &Growth, freed: &[Freed]) -> Result<()> {
        let volume = &self.volume;
        let (old, new) = (volume.geometry(), &plan.superblock().geo);
        let missing = || Error::corrupt(OP, "a group has no descriptor");
        let cut = GroupNo(old.groups_count.saturating_sub(1));
        let mut cut_desc = plan.desc(cut).ok_or_else(missing)?;
        // What may fail comes first.
        let group = self.groups.group(cut)?;
        let mut changes = Vec::with_capacity(plan.images().len());
        for (block, image) in plan.images() {
            let mut image = image.to_vec();
            if let Some(freed) = freed.iter().find(|freed| freed.bitmap == block) {
                if freed.group != cut {
                    continue;
                }
                // What is freed in this group, too, is freed below.
                for (start, len) in &freed.runs {
                    set_bits(&mut image, *start, *len);
                    cut_desc.free_clusters = cut_desc.free_clusters.saturating_sub(*len);
                }
                cut_desc.set_block_bitmap_csum(&image, new);
            }
            let kind = kind_of(
                new,
                block,
                cut,
                &cut_desc,
                self.groups.inode_table(GroupNo(0))?,
            );
            changes.push((volume.cache.read(block, kind, |_| Ok(()))?, image));
        }
        self.alloc
            .make_room_for_groups(&self.groups, new.groups_count);
        self.ialloc.grow(new.groups_count);
        volume.cache.set_blocks_count(new.blocks_count);
        {
            // A map of this group is compared with bitmap, descriptor and geometry whenever it is loaded.
            let mut st = group.lock();
            for (buffer, image) in &changes {
                h.modify(buffer, |bytes| {
                    let n = bytes.len().min(image.len());
                    bytes[..n].copy_from_slice(&image[..n]);
                })?;
            }
            st.desc = cut_desc;
            let clusters = new.group_clusters(cut);
            let longer = st
                .map
                .as_deref()
                .map(|map| Box::new(map.extended(clusters)));
            st.map = longer;
            volume.set_superblock(plan.superblock().clone());
            self.alloc.note_longer_group(cut, &st);
        }
        self.groups.forget_zones();
        let (mut blocks, mut inodes) = (0i64, 0i64);
        let added = u64::from(new.group_clusters(cut)) - u64::from(old.group_clusters(cut));
        blocks += (added << new.cluster_bits) as i64;
        for group in (old.groups_count..new.groups_count).map(GroupNo) {
            let desc = plan.desc(group).ok_or_else(missing)?;
            blocks += self.alloc.note_group(group, &desc) as i64;
            inodes += i64::from(desc.free_inodes);
            self.ialloc.note_group(group, &desc);
        }
        self.alloc.shared.space.set_size(
            new.blocks_count,
            plan.superblock().raw.reserved_blocks_count(),
            new.features.has_incompat(Incompat::EXTENT),
        );
        volume.sb.add_free_blocks(blocks);
        volume.sb.add_free_inodes(inodes);
        for freed in freed {
            self.free_descriptor_blocks(h, freed)?;
        }
        let planned = plan.superblock().raw;
        volume.sb.update(h, |raw| {
            raw.inodes_count = planned.inodes_count;
            raw.set_blocks_count(planned.blocks_count());
            raw.set_reserved_blocks_count(planned.reserved_blocks_count());
            raw.reserved_gdt_blocks = planned.reserved_gdt_blocks;
            raw.overhead_blocks = planned.overhead_blocks;
            raw.first_meta_bg = planned.first_meta_bg;
            raw.backup_bgs = planned.backup_bgs;
            // The mount has marks of its own among the features.
            let (before, after) = (old.features, new.features);
            let mut features = raw.features();
            features.incompat |= after.incompat - before.incompat;
            features.compat -= before.compat - after.compat;
            raw.set_features(features);
        })
    }

    /// Frees blocks that descriptors no longer take. The parts know the new shape.
    fn free_descriptor_blocks(&self, h: &Handle<'_>, freed: &Freed) -> Result<()> {
        let group = self.groups.group(freed.group)?;
        {
            // The plan's descriptors count these blocks as free already.
            let mut st = group.lock();
            if freed.is_uninit && !freed.runs.is_empty() {
                let desc = &mut st.desc;
                self.groups
                    .change_block_bitmap(h, freed.group, desc, |bits, desc| {
                        for (start, len) in &freed.runs {
                            set_bits(bits, *start, *len);
                        }
                        desc.set_block_bitmap_csum(bits, self.volume.geometry());
                    })?;
            }
            self.groups.store_desc(h, freed.group, &st)?;
        }
        let first = self.volume.geometry().group_first_block(freed.group).0;
        for (start, len) in &freed.runs {
            let run = Run {
                start: BlockNo(first + u64::from(*start)),
                len: *len,
            };
            self.alloc.free(h, run, true)?;
        }
        Ok(())
    }
}

/// Blocks of one group that the plan frees.
struct Freed {
    group: GroupNo,
    bitmap: BlockNo,
    /// The bitmap was never written.
    is_uninit: bool,
    /// First block in the group, and blocks.
    runs: Vec<(u32, u32)>,
}

/// Runs among the first `len` bits that are set before and clear after.
fn cleared(before: &[u8], after: &[u8], len: u32) -> Vec<(u32, u32)> {
    let bit = |bytes: &[u8], n: u32| {
        let byte = bytes.get((n / 8) as usize).copied().unwrap_or(u8::MAX);
        byte >> (n % 8) & 1 == 1
    };
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for n in (0..len).filter(|n| bit(before, *n) && !bit(after, *n)) {
        match runs.last_mut() {
            Some((start, count)) if *start + *count == n => *count += 1,
            _ => runs.push((n, 1)),
        }
    }
    runs
}

/// What a block of the plan holds.
fn kind_of(
    geo: &Geometry,
    block: BlockNo,
    cut: GroupNo,
    cut_desc: &GroupDesc,
    first_table: BlockNo,
) -> BlockKind {
    let table = first_table.0..first_table.0 + u64::from(geo.inode_table_blocks);
    if block == cut_desc.block_bitmap {
        BlockKind::BlockBitmap(cut)
    } else if table.contains(&block.0) {
        BlockKind::InodeTable(GroupNo(0))
    } else if (0..geo.desc_blocks).any(|index| geo.desc_block(index) == Some(block)) {
        BlockKind::GroupDesc
    } else {
        // Lists of the resize inode.
        BlockKind::Indirect
    }
}

impl Allocator {
    /// Makes room for what is known of more groups.
    fn make_room_for_groups(&self, groups: &crate::alloc::groups::Groups, count: u32) {
        let before = self.volume.geometry().groups_count;
        self.shared.index.grow(count);
        // Entries that other threads set while the index was copied.
        for group in (0..before).map(GroupNo).filter_map(|g| groups.loaded(g)) {
            let st = group.lock();
            if st.block_bitmap_bad {
                self.shared.index.set(group.no, 0, None);
            }
            self.reindex(group, &st);
        }
    }

    /// A group has more blocks. Its state is locked.
    fn note_longer_group(&self, group: GroupNo, st: &crate::alloc::groups::GroupState) {
        match &st.map {
            _ if st.block_bitmap_bad => {}
            Some(map) => {
                self.shared
                    .index
                    .set(group, map.free(), map.largest_order());
            }
            None => {
                self.note_group(group, &st.desc);
            }
        }
    }
}
