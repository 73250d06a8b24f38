//! The sources of a volume become one tree, and the rules decide about its entries.

use super::{Size, VolumeBuilder};
use crate::Result;
use crate::build::budget::Budget;
use crate::build::fsverity;
use crate::build::image;
use crate::build::rules::Rules;
use crate::build::tree::LayerTree;
use blockwright_mkfs::tree::Node;
use blockwright_ondisk::ext4::{FileKind, Timestamp};
use std::path::Path;
use std::sync::Arc;

impl VolumeBuilder {
    fn timestamp(&self) -> Timestamp {
        let secs = self.epoch.unwrap_or(self.options.now);
        Timestamp {
            secs: i64::try_from(secs).unwrap_or(i64::MAX),
            nanos: 0,
        }
    }

    /// Lays the sources over one another. `device_bytes`: the size of what the volume is made on.
    pub(super) fn gather(
        &self,
        image: Option<(u64, u64)>,
        spool_dir: &Path,
        device_bytes: Option<u64>,
    ) -> Result<LayerTree> {
        let now = self.timestamp();
        let mut root = Node::new(FileKind::Directory, 0o755, now);
        (root.uid, root.gid) = self.owner.unwrap_or(self.options.root_owner);
        let mut tree = LayerTree::new(root, now);
        let rules = Rules {
            owner: self.owner,
            policy: &self.policy,
            now,
            image,
            spool_dir: spool_dir.to_owned(),
            budget: Arc::new(Budget::new(match self.size {
                Size::Bytes(bytes) => Some(bytes),
                Size::AsDevice => device_bytes,
                Size::Auto(_) => None,
            })),
            progress: &*self.progress,
        };
        let choice = |reference| image::Choice {
            reference,
            platform: self.platform.as_ref(),
            keep_config: self.keep_config,
        };
        for source in &self.sources {
            tree.next_layer();
            source.lay(&mut tree, choice, &rules)?;
        }
        let epoch = self.epoch.map(|_| now);
        self.policy.apply(&mut tree, epoch, &*self.progress)?;
        if !self.policy.protected().is_empty() {
            let patterns = self.policy.protected();
            fsverity::protect(&mut tree, patterns, self.format, spool_dir, &*self.progress)?;
        }
        Ok(tree)
    }
}
