//! [`Quotas`]: opening the quota files at mount, counting them anew, and setting limits.
//!
//! It owns nothing: files and promises belong to the tree (`node::tree::quota`), which charges them. The tree begins no operations;
//! this part does.

use crate::checkpoint::Checkpoints;
use crate::node::Nodes;
use crate::node::inode::Body;
use crate::node::tree::Tree;
use crate::node::tree::quota::{now, of_kind, owner_of, stored};
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::common::quota::tree::{self, Usage};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::{Ino, Nid};
use blockwright_vfs as vfs;
use std::collections::BTreeMap;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Quotas {
        volume: Volume,
        nodes: Nodes,
        tree: Tree,
        checkpoints: Checkpoints,
    }
}

impl Quotas {
    /// Opens the volume's quota files, and counts anew what they say if that is out of date. Called once, before
    /// the volume is used.
    ///
    /// # Errors
    /// Quota files that cannot be kept exact: the volume must then be mounted read-only.
    pub(crate) fn start_quota(&self, recount: bool) -> Result<()> {
        let files = self.tree.open_quota_files()?;
        // Loaded once: nothing else uses the volume yet.
        let _ = self.tree.quota.files.set(files);
        let flags = self.volume.checkpoint.flags();
        if self.tree.quota.is_on() && (recount || flags.contains(CheckpointFlags::QUOTA_NEED_FSCK))
        {
            self.recount_quota()?;
        }
        Ok(())
    }

    /// Writes the usage as counted into the files. The volume is not in use yet.
    fn recount_quota(&self) -> Result<()> {
        let op = self.checkpoints.begin("count quota")?;
        let mut counted: [BTreeMap<u32, Usage>; 3] = Default::default();
        let per = disk::nat::ENTRIES_PER_BLOCK as u32;
        for index in 0..self.volume.geo.nat_blocks() {
            if self.nodes.nat.is_empty_block(index) {
                continue;
            }
            for nid in
                (index * per).max(Ino::ROOT.0)..((index + 1) * per).min(self.volume.geo.nids())
            {
                let entry = self.nodes.nat.get(Nid(nid))?;
                let ino = Ino(nid);
                if entry.is_free() || entry.ino != ino || self.volume.is_quota_file(ino) {
                    continue;
                }
                let node = self.nodes.inode_node(ino)?;
                let body = Body::parse(&self.volume, ino, &node)?;
                for (counted, id) in counted.iter_mut().zip(owner_of(&body.inode).ids()) {
                    let usage = counted.entry(id).or_default();
                    usage.bytes += body.charged << 12;
                    usage.inodes += 1;
                }
            }
        }
        for file in self.tree.quota.files() {
            let at = self.tree.at(file);
            let mut counted = std::mem::take(&mut counted[file.which]);
            let said = tree::entries(&at)?;
            for id in said.keys() {
                counted.entry(*id).or_default();
            }
            for (id, used) in counted {
                let before = said.get(&id).map_or(Usage::default(), |e| Usage {
                    bytes: e.curspace.get(),
                    inodes: e.curinodes.get(),
                });
                let bytes = used.bytes.wrapping_sub(before.bytes) as i64;
                let inodes = used.inodes.wrapping_sub(before.inodes) as i64;
                if bytes != 0 || inodes != 0 {
                    tree::add(
                        &at,
                        id,
                        bytes,
                        inodes,
                        now(),
                        &mut file.places.lock_nested(),
                    )?;
                }
            }
        }
        drop(op);
        Ok(())
    }

    /// Sets what an id may have.
    ///
    /// # Errors
    /// `Unsupported` when the volume does not count by this kind; damage, no space, a device error.
    pub(crate) fn set_quota_limits(
        &self,
        kind: vfs::quota::Kind,
        id: u32,
        limits: &vfs::quota::Limits,
    ) -> Result<()> {
        const OP: &str = "set quota";
        let Some(file) = of_kind(self.tree.quota.files().iter(), kind) else {
            return Err(Error::new(ErrorKind::Unsupported, OP));
        };
        let op = self.checkpoints.begin(OP)?;
        let mut places = file.places.lock();
        let set = tree::set_limits(&self.tree.at(file), id, &stored(limits), now(), &mut places);
        drop(places);
        drop(op);
        set
    }
}
