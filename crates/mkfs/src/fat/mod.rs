//! FAT32 volumes: for EFI system partitions. A tree is planned in memory and written front to back, each file and directory in one piece.
//!
//! A FAT volume keeps names, contents and times of files and directories. Owners, modes, attributes and holes have no place there; a file with
//! several names is stored once for each. Symbolic links and special files are refused, and so are names that differ in case alone.
//!
//! Not responsible for: FAT12 and FAT16, which small volumes would have; changing a volume that exists.
//!
//! Source of the format: Microsoft, "FAT32 File System Specification" 1.03.

mod names;
mod write;

use crate::options::{Before, SizeGoal};
use crate::tree::{NodeId, Tree};
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::FileKind;
use names::Name;
use std::collections::{HashMap, HashSet};

pub use write::write;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Sectors in front of the first table, at least: boot sector, information, and their copies.
const RESERVED_SECTORS: u64 = 32;
/// A volume of fewer clusters would be FAT16.
const CLUSTERS_MIN: u64 = 65_525;
/// The most clusters whose numbers have 28 bits.
const CLUSTERS_MAX: u64 = 0x0FFF_FFF5;
/// The number of the first cluster.
const FIRST_CLUSTER: u64 = 2;
/// Copies of the table.
const TABLES: u64 = 2;
/// Bytes of a directory entry.
const ENTRY_BYTES: u64 = 32;
/// The most entries of a directory.
const ENTRIES_MAX: u64 = 65_536;

/// Sectors of a cluster by the volume's size, as the specification has them: up to this many bytes.
const CLASSES: [(u64, u64); 5] = [
    (260 << 20, 1),
    (8 << 30, 8),
    (16 << 30, 16),
    (32 << 30, 32),
    (u64::MAX, 64),
];

/// Options of a volume.
#[derive(Clone, Debug, Default)]
pub struct FormatOptions {
    /// The volume's serial number.
    pub id: u32,
    /// At most 11 characters of those that short names have; empty for none.
    pub label: String,
    /// What the device holds before.
    pub before: Before,
}

/// A file or directory that has its place.
#[derive(Clone, Debug)]
struct Placed {
    node: NodeId,
    /// Its first cluster; 0 for an empty file.
    first: u64,
    clusters: u64,
}

/// A directory: where it is, the first cluster of its parent as `..` has it, and what is in it.
#[derive(Clone, Debug)]
struct Dir {
    place: Placed,
    parent: u64,
    entries: Vec<(Name, Placed)>,
}

/// A planned volume.
#[derive(Clone, Debug)]
pub struct Plan {
    options: FormatOptions,
    shape: Shape,
    dirs: Vec<Dir>,
    /// Files with contents, in the order of their places.
    files: Vec<Placed>,
    used_clusters: u64,
    /// Sectors of the disk in front of the volume.
    pub hidden_sectors: u32,
}

/// Sizes of a volume's parts, in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    sectors: u64,
    cluster_sectors: u64,
    table_sectors: u64,
    data_start: u64,
    clusters: u64,
}

impl Shape {
    /// Where the clusters begin: they are aligned to their own size, and to pages.
    fn data_start(table_sectors: u64, cluster_sectors: u64) -> u64 {
        (RESERVED_SECTORS + TABLES * table_sectors).next_multiple_of(cluster_sectors.max(8))
    }

    fn table_sectors(clusters: u64) -> u64 {
        ((clusters + FIRST_CLUSTER) * 4).div_ceil(SECTOR)
    }

    /// The shape of a volume of this many sectors, with the smallest table that counts all clusters.
    fn of(sectors: u64, cluster_sectors: u64) -> Self {
        let clusters = |table| {
            sectors.saturating_sub(Self::data_start(table, cluster_sectors)) / cluster_sectors
        };
        // A larger table leaves fewer clusters to count.
        let (mut low, mut high) = (1, Self::table_sectors(sectors / cluster_sectors));
        while low < high {
            let middle = low + (high - low) / 2;
            match Self::table_sectors(clusters(middle)) <= middle {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        Shape {
            sectors,
            cluster_sectors,
            table_sectors: low,
            data_start: Self::data_start(low, cluster_sectors),
            clusters: clusters(low),
        }
    }

    fn cluster_bytes(&self) -> u64 {
        self.cluster_sectors * SECTOR
    }

    /// The sector in which a cluster begins.
    fn sector_of(&self, cluster: u64) -> u64 {
        self.data_start + (cluster - FIRST_CLUSTER) * self.cluster_sectors
    }

    fn reserved_sectors(&self) -> u64 {
        self.data_start - TABLES * self.table_sectors
    }
}

/// What a volume is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Bytes of the volume.
    pub bytes: u64,
    /// Bytes of a cluster.
    pub cluster_bytes: u32,
    /// Clusters of the volume.
    pub clusters: u64,
    /// Free clusters.
    pub free_clusters: u64,
}

impl Plan {
    /// What the volume will be like.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            bytes: self.shape.sectors * SECTOR,
            cluster_bytes: self.shape.cluster_bytes() as u32,
            clusters: self.shape.clusters,
            free_clusters: self.shape.clusters - self.used_clusters,
        }
    }

    /// Bytes of data to copy, in whole clusters.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let clusters: u64 = self.files.iter().map(|f| f.clusters).sum();
        clusters * self.shape.cluster_bytes()
    }
}

/// Names and places, for clusters of a size.
struct Contents {
    dirs: Vec<Dir>,
    files: Vec<Placed>,
    used_clusters: u64,
}

/// Names and entries of each directory, before anything has a place.
struct Named<'t> {
    tree: &'t Tree,
    dirs: Vec<(NodeId, Vec<(Name, NodeId)>)>,
    label: bool,
}

fn refuse(tree: &Tree, id: NodeId, reason: impl Into<String>) -> MkfsError {
    MkfsError::Tree {
        name: tree.path_of(id),
        reason: reason.into(),
    }
}

impl<'t> Named<'t> {
    fn new(tree: &'t Tree, label: bool) -> Result<Self> {
        let mut dirs: Vec<(NodeId, Vec<(Name, NodeId)>)> = Vec::new();
        let mut order = vec![NodeId::ROOT];
        let mut seen: HashSet<NodeId> = order.iter().copied().collect();
        let mut next = 0;
        while let Some(&dir) = order.get(next) {
            next += 1;
            let children = &tree.node(dir).children;
            let named =
                names::assign(children.keys().map(Vec::as_slice)).map_err(|(name, reason)| {
                    match children.get(name) {
                        Some(child) => refuse(tree, *child, reason),
                        None => refuse(tree, dir, reason),
                    }
                })?;
            let mut entries = Vec::with_capacity(named.len());
            for (name, &child) in named.into_iter().zip(children.values()) {
                let node = tree.node(child);
                match node.kind {
                    FileKind::Directory if seen.insert(child) => order.push(child),
                    FileKind::Directory => {
                        return Err(refuse(tree, child, "a directory has one name"));
                    }
                    FileKind::Regular if node.size > u64::from(u32::MAX) => {
                        return Err(refuse(
                            tree,
                            child,
                            "a file on a FAT volume has less than 4 GiB",
                        ));
                    }
                    FileKind::Regular => {}
                    _ => {
                        return Err(refuse(
                            tree,
                            child,
                            "a FAT volume has files and directories only: no symbolic links, no special files",
                        ));
                    }
                }
                entries.push((name, child));
            }
            dirs.push((dir, entries));
        }
        for (dir, entries) in &dirs {
            if Self::slots(*dir, entries, label) > ENTRIES_MAX {
                return Err(refuse(
                    tree,
                    *dir,
                    format!(
                        "a directory of a FAT volume has at most {ENTRIES_MAX} entries; long names take several"
                    ),
                ));
            }
        }
        Ok(Named { tree, dirs, label })
    }

    fn slots(dir: NodeId, entries: &[(Name, NodeId)], label: bool) -> u64 {
        // `.` and `..`, or the volume's label.
        let own = match dir {
            NodeId::ROOT => u64::from(label),
            _ => 2,
        };
        own + entries.iter().map(|(name, _)| name.slots()).sum::<u64>()
    }

    /// Gives everything a place: directories first, then files, in the order of a walk.
    fn place(&self, cluster_bytes: u64) -> Contents {
        let mut next = FIRST_CLUSTER;
        let mut take = |bytes: u64| {
            let clusters = bytes.div_ceil(cluster_bytes);
            let first = if clusters > 0 { next } else { 0 };
            next += clusters;
            (first, clusters)
        };
        let mut of_dir: HashMap<NodeId, (u64, u64)> = HashMap::new();
        for (dir, entries) in &self.dirs {
            let slots = Self::slots(*dir, entries, self.label).max(1);
            of_dir.insert(*dir, take(slots * ENTRY_BYTES));
        }
        let (mut dirs, mut files) = (Vec::new(), Vec::new());
        let mut parents: HashMap<NodeId, u64> = HashMap::new();
        for (dir, entries) in &self.dirs {
            let (own, own_clusters) = of_dir[dir];
            let mut placed = Vec::with_capacity(entries.len());
            for (name, node) in entries {
                let (first, clusters) = match of_dir.get(node) {
                    Some(place) => *place,
                    None => take(self.tree.node(*node).size),
                };
                let place = Placed {
                    node: *node,
                    first,
                    clusters,
                };
                if of_dir.contains_key(node) {
                    // The root directory is 0 there.
                    let is_root = *dir == NodeId::ROOT;
                    parents.insert(*node, if is_root { 0 } else { own });
                } else if clusters > 0 {
                    files.push(place.clone());
                }
                placed.push((name.clone(), place));
            }
            dirs.push(Dir {
                place: Placed {
                    node: *dir,
                    first: own,
                    clusters: own_clusters,
                },
                parent: parents.get(dir).copied().unwrap_or(0),
                entries: placed,
            });
        }
        Contents {
            dirs,
            files,
            used_clusters: next - FIRST_CLUSTER,
        }
    }
}

fn check_label(label: &str) -> Result<()> {
    let fits = label.chars().all(|c| {
        c == ' ' || c.is_ascii_uppercase() || c.is_ascii_digit() || "$%'-_@~`!(){}^#&".contains(c)
    });
    match fits && label.len() <= 11 && !label.starts_with(' ') {
        true => Ok(()),
        false => Err(MkfsError::option(
            "-L",
            "a FAT volume's label has at most 11 capital letters, digits and $%'-_@~`!(){}^#&",
        )),
    }
}

fn finish(options: &FormatOptions, shape: Shape, contents: Contents) -> Result<Plan> {
    if shape.clusters < CLUSTERS_MIN {
        return Err(MkfsError::TooSmall {
            blocks: shape.clusters,
            what: "FAT32, which has 65525 clusters at least",
        });
    }
    if shape.clusters > CLUSTERS_MAX || shape.sectors > u64::from(u32::MAX) {
        return Err(MkfsError::option(
            "--size",
            "a FAT volume has at most 2 TiB",
        ));
    }
    if contents.used_clusters > shape.clusters {
        return Err(MkfsError::NoSpace {
            blocks: shape.clusters,
            missing: contents.used_clusters - shape.clusters,
            block_bytes: shape.cluster_bytes() as u32,
        });
    }
    Ok(Plan {
        options: options.clone(),
        shape,
        dirs: contents.dirs,
        files: contents.files,
        used_clusters: contents.used_clusters,
        hidden_sectors: 0,
    })
}

/// Plans a volume of a size.
///
/// # Errors
/// [`MkfsError::TooSmall`], [`MkfsError::NoSpace`], [`MkfsError::Option`], and [`MkfsError::Tree`] for what has no place on a FAT volume.
pub fn plan(options: &FormatOptions, tree: &Tree, bytes: u64) -> Result<Plan> {
    check_label(&options.label)?;
    let named = Named::new(tree, !options.label.is_empty())?;
    let class = CLASSES.iter().find(|(most, _)| bytes <= *most);
    let shape = Shape::of(bytes / SECTOR, class.map_or(64, |(_, sectors)| *sectors));
    finish(options, shape, named.place(shape.cluster_bytes()))
}

/// Plans the smallest volume; at least 33 MiB, because FAT32 has 65 525 clusters at least.
///
/// # Errors
/// As [`plan`].
pub fn smallest(options: &FormatOptions, tree: &Tree, goal: SizeGoal) -> Result<Plan> {
    check_label(&options.label)?;
    let named = Named::new(tree, !options.label.is_empty())?;
    for (most, cluster_sectors) in CLASSES {
        let cluster = cluster_sectors * SECTOR;
        let contents = named.place(cluster);
        let clusters = contents
            .used_clusters
            .saturating_add(goal.free_bytes.div_ceil(cluster))
            .max(CLUSTERS_MIN);
        if clusters > CLUSTERS_MAX {
            continue;
        }
        let table = Shape::table_sectors(clusters);
        let sectors = Shape::data_start(table, cluster_sectors) + clusters * cluster_sectors;
        let sectors = sectors.next_multiple_of(8);
        if sectors * SECTOR <= most {
            return finish(options, Shape::of(sectors, cluster_sectors), contents);
        }
    }
    Err(MkfsError::option(
        "--size",
        "a FAT volume has at most 2 TiB",
    ))
}

#[cfg(test)]
mod tests;
