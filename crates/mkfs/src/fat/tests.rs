//! Volumes as `fsck.fat` and mtools see them.

use super::*;
use crate::output::{DataSource, SourceError};
use crate::tree::Node;
use blockwright_device::{DevOffset, DeviceExt, Flags, HostDevice, MemoryDevice, SharedDevice};
use blockwright_ondisk::ext4::Timestamp;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

const NOW: Timestamp = Timestamp {
    secs: 1_700_000_000,
    nanos: 0,
};

/// Bytes that follow from the node and the offset.
struct Pattern;

fn byte(node: NodeId, at: u64) -> u8 {
    (at / 7 + at % 251 + u64::from(node.0)) as u8
}

impl DataSource for Pattern {
    fn read_at(
        &self,
        node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> std::result::Result<(), SourceError> {
        for (at, to) in (offset..).zip(buf) {
            *to = byte(node, at);
        }
        Ok(())
    }
}

fn add(tree: &mut Tree, dir: NodeId, name: &str, kind: FileKind, size: u64) -> NodeId {
    let mut node = Node::new(kind, 0o644, NOW);
    node.size = size;
    node.data.extend((size > 0).then_some(0..size));
    let id = tree.add(node);
    tree.node_mut(dir)
        .children
        .insert(name.as_bytes().to_vec(), id);
    id
}

fn tree() -> Tree {
    let mut tree = Tree::new(Node::new(FileKind::Directory, 0o755, NOW));
    let efi = add(&mut tree, NodeId::ROOT, "EFI", FileKind::Directory, 0);
    let boot = add(&mut tree, efi, "BOOT", FileKind::Directory, 0);
    add(&mut tree, boot, "BOOTX64.EFI", FileKind::Regular, 3 << 20);
    add(&mut tree, NodeId::ROOT, "empty", FileKind::Regular, 0);
    let many = add(
        &mut tree,
        NodeId::ROOT,
        "a directory of many",
        FileKind::Directory,
        0,
    );
    for n in 0..300 {
        add(
            &mut tree,
            many,
            &format!("some file with a long name {n}.conf"),
            FileKind::Regular,
            n * 11,
        );
    }
    tree
}

fn options(before: Before) -> FormatOptions {
    FormatOptions {
        id: 0x1234_ABCD,
        label: "SYSTEM".to_owned(),
        before,
    }
}

fn made(plan: &Plan, tree: &Tree, device: &SharedDevice) {
    write(device, plan, tree, &Pattern, &|_| ControlFlow::Continue(()))
        .unwrap_or_else(|e| panic!("{e}"));
}

fn run(tool: &str, args: &[&str]) -> Vec<u8> {
    let out = Command::new(tool)
        .args(args)
        .env("MTOOLS_SKIP_CHECK", "1")
        .output()
        .unwrap_or_else(|e| panic!("{tool}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        out.status.success(),
        "{tool} {args:?}: {}{}",
        text(&out.stdout),
        text(&out.stderr)
    );
    out.stdout
}

#[test]
fn fsck_and_mtools_agree() {
    if !blockwright_oracles::have(&["fsck.fat", "mtype", "mdir", "mlabel"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tree = tree();
    // The last is of the second class, whose clusters have eight sectors.
    for (n, bytes) in [None, Some(40 << 20), Some(300 << 20)]
        .into_iter()
        .enumerate()
    {
        let options = options(Before::Zeroes);
        let plan = match bytes {
            None => smallest(
                &options,
                &tree,
                SizeGoal {
                    free_bytes: 5 << 20,
                },
            )
            .unwrap(),
            Some(bytes) => plan(&options, &tree, bytes).unwrap(),
        };
        let report = plan.report();
        let path = dir.path().join(format!("fat-{n}.img"));
        let image = path.to_str().unwrap();
        made(
            &plan,
            &tree,
            &HostDevice::create(&path, report.bytes).unwrap(),
        );
        run("fsck.fat", &["-n", "-V", image]);
        assert_eq!(report.cluster_bytes, if n == 2 { 4096 } else { 512 });
        assert!(report.free_clusters * u64::from(report.cluster_bytes) >= 5 << 20);
        let listing = run("mdir", &["-i", image, "-b", "-/", "::"]);
        let listing = String::from_utf8_lossy(&listing);
        assert_eq!(listing.lines().count(), 300 + 3 + 2, "{listing}");
        for (name, node) in [
            ("::/EFI/BOOT/BOOTX64.EFI", 3),
            (
                "::/a directory of many/some file with a long name 299.conf",
                305,
            ),
        ] {
            let found = run("mtype", &["-i", image, name]);
            let node = NodeId(node);
            assert_eq!(found.len() as u64, tree.node(node).size);
            assert!(
                found
                    .iter()
                    .enumerate()
                    .all(|(at, b)| *b == byte(node, at as u64)),
                "{name}"
            );
        }
        let label = run("mlabel", &["-i", image, "-s", "::"]);
        assert!(String::from_utf8_lossy(&label).contains("SYSTEM"));
        let info = run("mdir", &["-i", image, "::/empty"]);
        assert!(String::from_utf8_lossy(&info).contains("2023-11-14"));
    }
}

#[test]
fn what_was_there_before_does_not_show() {
    let tree = tree();
    let clean: SharedDevice = Arc::new(MemoryDevice::new(40 << 20));
    made(
        &plan(&options(Before::Zeroes), &tree, 40 << 20).unwrap(),
        &tree,
        &clean,
    );
    let dirty: SharedDevice = Arc::new(MemoryDevice::new(40 << 20));
    dirty
        .write_at(DevOffset(0), &vec![0xA5; 40 << 20], Flags::empty())
        .unwrap();
    let plan = plan(&options(Before::Unknown), &tree, 40 << 20).unwrap();
    made(&plan, &tree, &dirty);
    // Everything but free clusters is the same.
    let used = (plan.shape.sector_of(FIRST_CLUSTER + plan.used_clusters) * SECTOR) as usize;
    assert!(
        clean.read_buf(DevOffset(0), used).unwrap()[..]
            == dirty.read_buf(DevOffset(0), used).unwrap()[..]
    );
}

#[test]
fn shapes() {
    let empty = Tree::new(Node::new(FileKind::Directory, 0o755, NOW));
    let options = options(Before::Zeroes);
    let small = smallest(&options, &empty, SizeGoal::default()).unwrap();
    assert!(small.shape.clusters >= CLUSTERS_MIN && small.report().bytes < 34 << 20);
    let too_small = plan(&options, &empty, 30 << 20);
    assert!(matches!(too_small, Err(MkfsError::TooSmall { .. })));
    for bytes in [
        34 << 20,
        260 << 20,
        (260 << 20) + 512,
        9 << 30,
        20 << 30,
        1 << 40,
        (2 << 40) - 512,
    ] {
        let shape = plan(&options, &empty, bytes).unwrap().shape;
        assert!(
            shape.clusters >= CLUSTERS_MIN && shape.clusters <= CLUSTERS_MAX,
            "{shape:?}"
        );
        assert!(shape.data_start + shape.clusters * shape.cluster_sectors <= shape.sectors);
        assert!(Shape::table_sectors(shape.clusters) <= shape.table_sectors);
        assert_eq!(shape.data_start % shape.cluster_sectors.max(8), 0);
        assert!(shape.reserved_sectors() < 1 << 16);
    }
    assert!(plan(&options, &empty, 3 << 40).is_err());
}

#[test]
fn what_has_no_place() {
    let options = options(Before::Zeroes);
    let refused = |name: &str, kind, size: u64, what: &str| {
        let mut tree = Tree::new(Node::new(FileKind::Directory, 0o755, NOW));
        let dir = add(&mut tree, NodeId::ROOT, "dir", FileKind::Directory, 0);
        add(&mut tree, dir, name, kind, size);
        let error = plan(&options, &tree, 64 << 20).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("/dir/"), "{error}");
    };
    refused("link", FileKind::Symlink, 0, "symbolic links");
    refused("large", FileKind::Regular, 1 << 32, "4 GiB");
    refused("a?b", FileKind::Regular, 1, "'?'");
    let mut tree = Tree::new(Node::new(FileKind::Directory, 0o755, NOW));
    add(&mut tree, NodeId::ROOT, "big", FileKind::Regular, 80 << 20);
    assert!(matches!(
        plan(&options, &tree, 64 << 20),
        Err(MkfsError::NoSpace { .. })
    ));
    for n in 0..40_000 {
        add(
            &mut tree,
            NodeId::ROOT,
            &format!("{n} with a long name"),
            FileKind::Regular,
            0,
        );
    }
    let error = smallest(&options, &tree, SizeGoal::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("65536 entries"), "{error}");
}
