//! Rules for the entries of all sources, applied after the sources are merged: which entries are left out, and their times,
//! owners, modes and labels.
//!
//! The order, for each file: its times; the map of owners; `fs_config`; the SELinux label. So owners of `fs_config` are the
//! volume's own, and labels of `file_contexts` count more than those of the sources and of `fs_config`. The first name of a
//! file with several names decides: the tree is walked from the root, names of a directory in the order of their bytes.
//!
//! Not responsible for: what the sources say (see their modules), and what the format does with it.

mod contexts;
mod fs_config;
mod owners;
mod patterns;

use super::progress::{Meter, Tell};
use super::tree::LayerTree;
use crate::Result;
use crate::setters::setters;
use blockwright_mkfs::tree::{Node, NodeId};
use blockwright_ondisk::ext4::{FileKind, Timestamp};
pub use contexts::{FileContexts, companions};
pub use fs_config::FsConfig;
pub use owners::OwnerMap;
pub(crate) use patterns::Patterns;

/// The time of the last change that files get, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mtime {
    /// All have this one.
    Set(i64),
    /// Those that are younger have this one.
    Clamp(i64),
}

/// What applies to the entries of all sources: for [`VolumeBuilder::entries`](super::VolumeBuilder::entries). The new policy
/// changes nothing.
///
/// ```
/// use blockwright::build::{EntryPolicy, OwnerMap};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut owners = OwnerMap::default();
/// owners.add("0-65535:100000")?;
/// let policy = EntryPolicy::new().owners(owners).exclude("*.o")?.exclude("/tmp/*")?;
/// # let _ = policy;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
pub struct EntryPolicy {
    excluded: Patterns,
    protected: Patterns,
    owners: OwnerMap,
    mtime: Option<Mtime>,
    fs_config: Option<FsConfig>,
    contexts: Option<FileContexts>,
    /// With a slash at its end.
    mount_point: Vec<u8>,
}

impl EntryPolicy {
    /// A policy that changes nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Leaves files out, and directories with all that is in them. A pattern with a slash other than at its end is compared with
    /// the path from the volume's root, another one with the name. `*` and `?` match no slash, `**` does; `[a-z]` and `{a,b}`
    /// are known; a slash at the end means directories only.
    ///
    /// # Errors
    /// `Invalid` for a pattern that is invalid.
    pub fn exclude(mut self, pattern: &str) -> Result<Self> {
        self.excluded.add(pattern)?;
        Ok(self)
    }

    /// Protects the regular files that match, as `fsverity enable` does: SHA-256, blocks of 4096 bytes, no salt, no signature.
    /// Patterns are those of [`EntryPolicy::exclude`]; a file is protected when one of its names matches. The volume gets the
    /// feature `verity`, and ext4 blocks of 4096 bytes.
    ///
    /// # Errors
    /// `Invalid` for a pattern that is invalid.
    pub fn fsverity(mut self, pattern: &str) -> Result<Self> {
        self.protected.add(pattern)?;
        Ok(self)
    }

    /// Which files fs-verity protects.
    pub(crate) fn protected(&self) -> &Patterns {
        &self.protected
    }

    setters! {
        /// Users and groups of the sources become others: owners, those in access control lists, and the root of a user namespace that
        /// file capabilities are for.
        owners(map: OwnerMap) { owners = map; }
        /// Sets or bounds times of the last change. The time of the last access becomes the same one where it was changed.
        mtime(mtime: Mtime) { mtime = Some(mtime); }
        /// Owners, modes and capabilities by path.
        fs_config(config: FsConfig) { fs_config = Some(config); }
        /// SELinux labels by path. An entry that no line matches keeps the label of its source.
        file_contexts(contexts: FileContexts) { contexts = Some(contexts); }
    }

    /// Where the volume will be mounted, as `/system`: it stands before the paths that `fs_config` and `file_contexts`
    /// are asked about.
    #[must_use]
    pub fn mount_point(mut self, path: impl AsRef<[u8]>) -> Self {
        let parts = path.as_ref().split(|b| *b == b'/');
        self.mount_point = parts
            .filter(|part| !part.is_empty())
            .flat_map(|part| [part, b"/"].concat())
            .collect();
        self
    }

    /// Whether a path is left out, without looking at the directories that it is in. It has no slash in front.
    pub(crate) fn leaves_out(&self, path: &[u8], is_directory: bool) -> bool {
        self.excluded.matches(path, is_directory)
    }

    /// Decides about all entries. No time is later than `epoch`, and times that depend on when and how often the sources were
    /// read are replaced by it.
    ///
    /// # Errors
    /// `Invalid` for a line of `file_contexts` that cannot be used; `Interrupted` when `tell` breaks.
    pub(crate) fn apply(
        &self,
        tree: &mut LayerTree,
        epoch: Option<Timestamp>,
        tell: Tell<'_>,
    ) -> Result<()> {
        let mut meter = Meter::new(tell);
        let mut decided = vec![false; tree.tree.nodes.len()];
        let mut todo = vec![(Vec::new(), NodeId::ROOT)];
        while let Some((path, id)) = todo.pop() {
            meter.entry()?;
            let node = tree.tree.node_mut(id);
            if !std::mem::replace(&mut decided[id.0 as usize], true) {
                self.decide(&path, node, epoch, &mut meter)?;
            }
            if node.kind != FileKind::Directory {
                continue;
            }
            let mut children = std::mem::take(&mut node.children);
            let mut inside = Vec::with_capacity(children.len());
            children.retain(|name, child| {
                let path = match &path[..] {
                    b"" => name.clone(),
                    dir => [dir, b"/", name].concat(),
                };
                let is_directory = tree.tree.node(*child).kind == FileKind::Directory;
                if self.leaves_out(&path, is_directory) {
                    return false;
                }
                inside.push((path, *child));
                true
            });
            tree.tree.node_mut(id).children = children;
            todo.extend(inside.into_iter().rev());
        }
        Ok(())
    }

    /// Applies all rules to one file, in this order: times, owners and modes, labels.
    fn decide(
        &self,
        path: &[u8],
        node: &mut Node,
        epoch: Option<Timestamp>,
        meter: &mut Meter<'_>,
    ) -> Result<()> {
        let mtime = match self.mtime {
            Some(Mtime::Set(secs)) => Timestamp { secs, nanos: 0 },
            Some(Mtime::Clamp(secs)) => node.mtime.min(Timestamp { secs, nanos: 0 }),
            None => node.mtime,
        };
        if mtime != node.mtime {
            (node.mtime, node.atime) = (mtime, mtime);
        }
        if let Some(epoch) = epoch {
            node.mtime = node.mtime.min(epoch);
            node.atime = node.mtime;
            node.ctime = epoch;
            node.crtime = epoch;
        }
        if !self.owners.is_empty() {
            node.uid = self.owners.user(node.uid);
            node.gid = self.owners.group(node.gid);
            self.owners.attributes(&mut node.xattrs);
        }
        if self.fs_config.is_none() && self.contexts.is_none() {
            return Ok(());
        }
        let mounted = [&self.mount_point[..], path].concat();
        let mounted = mounted.strip_suffix(b"/").unwrap_or(&mounted);
        if let Some(config) = &self.fs_config {
            config.apply(mounted, node);
        }
        if let Some(contexts) = &self.contexts {
            let absolute = [b"/", mounted].concat();
            if let Some(label) = contexts.find(&absolute, node.kind, meter)? {
                let value = [label, &[0][..]].concat();
                node.xattrs.insert(contexts::ATTRIBUTE.to_vec(), value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::progress::unheard;

    fn at(secs: i64) -> Timestamp {
        Timestamp { secs, nanos: 0 }
    }

    fn tree(names: &[(&str, FileKind)]) -> LayerTree {
        let root = Node::new(FileKind::Directory, 0o755, at(50));
        let mut tree = LayerTree::new(root, at(50));
        for (name, kind) in names {
            let (dir, name) = tree
                .parent_of(name.as_bytes())
                .expect("a path")
                .expect("a name");
            tree.insert(dir, name, Node::new(*kind, 0o644, at(50)), None);
        }
        tree
    }

    #[test]
    fn times_are_set_or_bounded_and_the_epoch_bounds_both() {
        let times = |policy: EntryPolicy, epoch| {
            let mut tree = tree(&[("f", FileKind::Regular)]);
            policy.apply(&mut tree, epoch, &unheard).expect("applies");
            let id = tree.find(b"f").expect("there");
            let node = tree.tree.node(id);
            [node.mtime.secs, node.atime.secs, node.ctime.secs]
        };
        let new = EntryPolicy::new;
        assert_eq!(times(new(), None), [50, 50, 50]);
        assert_eq!(times(new(), Some(at(40))), [40, 40, 40]);
        assert_eq!(times(new(), Some(at(60))), [50, 50, 60]);
        assert_eq!(times(new().mtime(Mtime::Set(70)), None), [70, 70, 50]);
        assert_eq!(times(new().mtime(Mtime::Clamp(70)), None), [50, 50, 50]);
        assert_eq!(times(new().mtime(Mtime::Clamp(30)), None), [30, 30, 50]);
        assert_eq!(
            times(new().mtime(Mtime::Set(70)), Some(at(60))),
            [60, 60, 60]
        );
    }

    #[test]
    fn the_root_and_a_mount_point_have_their_lines() {
        let lines = "/ -d root\n/system -d top\n/system/a -- file\n/a -- unmounted\n";
        let labels = |mount_point: &str| {
            let policy = EntryPolicy::new()
                .file_contexts(FileContexts::parse(lines).expect("lines"))
                .fs_config(FsConfig::parse(b"system 1 1 700\nsystem/a 2 2 600\n").expect("lines"))
                .mount_point(mount_point);
            let mut tree = tree(&[("a", FileKind::Regular)]);
            policy.apply(&mut tree, None, &unheard).expect("applies");
            let id = tree.find(b"a").expect("there");
            [NodeId::ROOT, id].map(|id| {
                let node = tree.tree.node(id);
                let label = node.xattrs.get(contexts::ATTRIBUTE).cloned();
                (
                    String::from_utf8(label.unwrap_or_default()).expect("text"),
                    node.uid,
                )
            })
        };
        for mount_point in ["/system", "system/", "//system//"] {
            let expected = [("top\0".to_owned(), 1), ("file\0".to_owned(), 2)];
            assert_eq!(labels(mount_point), expected, "{mount_point}");
        }
        for none in ["", "/"] {
            let expected = [("root\0".to_owned(), 0), ("unmounted\0".to_owned(), 0)];
            assert_eq!(labels(none), expected);
        }
    }

    #[test]
    fn what_is_left_out_takes_what_is_in_it_along() {
        let policy = EntryPolicy::new()
            .exclude("cache/")
            .and_then(|p| p.exclude("/d/*.o"))
            .expect("patterns");
        let mut tree = tree(&[
            ("d/a.o", FileKind::Regular),
            ("d/e/a.o", FileKind::Regular),
            ("d/cache/x", FileKind::Regular),
            ("cache", FileKind::Regular),
        ]);
        let hard = tree.find(b"d/a.o").expect("there");
        let (dir, name) = tree
            .parent_of(b"d/e/hard")
            .expect("a path")
            .expect("a name");
        tree.link(dir, name, hard).expect("linked");
        policy.apply(&mut tree, None, &unheard).expect("applies");
        for (path, there) in [
            ("d/a.o", false),
            ("d/e/a.o", true),
            ("d/cache", false),
            ("cache", true),
            ("d/e/hard", true),
        ] {
            assert_eq!(tree.find(path.as_bytes()).is_ok(), there, "{path}");
        }
    }
}
