//! Chains of fsynced nodes, made by hand: what a mount refuses to recover, `check -n` calls damaged; what it leaves out
//! is no damage; and the attributes that it recovers are those that are looked at.

use super::f2fs::made;
use super::lab::f2fs::{
    F2Volume, clean, f2fs_tools, name as lab_name, names, repair_f2fs, show, verify_f2fs,
};
use super::tools;
use super::trees::{self, Tree};
use blockwright::Volume;
use blockwright_check::Mode;
use blockwright_check::f2fs::{CheckOptions, Report, check};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::f2fs::inode::{self, NIDS_OFFSET, RawInodeHead};
use blockwright_ondisk::f2fs::{
    Advise, BLOCK_SIZE, BlockAddr, Footer, InlineFlags, Ino, Log, Nid, NodeOffset, xattr,
};
use std::sync::Arc;
use zerocopy::FromBytes;

/// A node of a chain.
struct Node {
    bytes: Vec<u8>,
    footer: Footer,
    /// Whether its checksum is right.
    signed: bool,
}

/// What is made of the clean volume: each node names the next one's block, unless it names one already.
type Case = (&'static str, fn(&F2Volume) -> Vec<Node>, Verdict);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// The mount recovers it, or there is nothing to recover.
    Sound,
    /// The mount refuses it.
    Refused,
    /// The mount recovers it, and a list of attributes is broken.
    BrokenList,
}
use Verdict::{BrokenList, Refused, Sound};

/// Where the chain begins.
fn start(v: &F2Volume) -> u32 {
    let head = v.pack.checkpoint.raw.log(Log::WarmNode);
    v.geo.segment_start(head.segment).expect("there").0 + u32::from(head.offset)
}

/// A node that the checkpoint has, fsynced again.
fn again(v: &F2Volume, nid: Nid) -> Node {
    let (_, bytes) = v.node(nid);
    let mut footer = Footer::read(&bytes).expect("a footer");
    (footer.fsync, footer.dentry, footer.next) = (true, false, BlockAddr(0));
    Node {
        bytes,
        footer,
        signed: true,
    }
}

impl Node {
    fn edit(mut self, edit: impl FnOnce(&mut RawInodeHead)) -> Self {
        edit(
            RawInodeHead::mut_from_prefix(&mut self.bytes)
                .expect("an inode")
                .0,
        );
        self
    }

    fn word(mut self, at: usize, word: u32) -> Self {
        self.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        self
    }

    fn foot(mut self, edit: impl FnOnce(&mut Footer)) -> Self {
        edit(&mut self.footer);
        self
    }

    fn unmarked(self) -> Self {
        self.foot(|f| f.fsync = false)
    }
}

fn long(v: &F2Volume) -> Node {
    again(v, v.lookup("long").nid())
}

/// A file without room for attributes in its inode.
fn bare(v: &F2Volume) -> Node {
    again(v, v.lookup("bare").nid())
}

/// Number of the node of attributes in an inode.
const XATTR_NID: usize = 0x4C;
/// A number that no node has.
const FREE: Ino = Ino(2000);

fn list(broken: bool) -> Vec<u8> {
    let one = [xattr::Xattr {
        index: xattr::INDEX_USER,
        name: b"n",
        value: b"v",
    }];
    let (mut bytes, _) = xattr::build(&one, xattr::NODE_BYTES).expect("fits");
    if broken {
        bytes[26..28].copy_from_slice(&60_000u16.to_le_bytes());
    }
    bytes
}

/// A node of attributes of the file "bare", which has none.
fn attributes(v: &F2Volume, broken: bool) -> Node {
    let mut bytes = vec![0; BLOCK_SIZE];
    let list = list(broken);
    bytes[..list.len()].copy_from_slice(&list);
    let mut node = bare(v).foot(|f| {
        f.nid = Nid(FREE.0);
        f.offset = NodeOffset::XATTR;
    });
    node.bytes = bytes;
    node
}

/// A file that the checkpoint does not have, with a broken list.
fn new_file(v: &F2Volume, named: bool) -> Node {
    let ino = v.lookup("long");
    let mut node = long(v).edit(|head| {
        head.inline |= InlineFlags::XATTR.bits();
        head.size.set(0);
    });
    let parsed = inode::Inode::parse_unverified(&node.bytes, ino, &v.geo).expect("an inode");
    let layout = parsed.layout(v.geo.features);
    node.bytes[layout.address_bytes()].fill(0);
    node.bytes[NIDS_OFFSET..NIDS_OFFSET + 20].fill(0);
    let range = layout.xattr_bytes();
    let list = list(true);
    let part = range.len().min(list.len());
    node.bytes[range][..part].copy_from_slice(&list[..part]);
    node.foot(|f| {
        f.nid = FREE.nid();
        f.ino = FREE;
        f.dentry = named;
    })
}

fn with_name(v: &F2Volume, name: &[u8]) -> Node {
    new_file(v, true).edit(|head| {
        head.inline &= !InlineFlags::XATTR.bits();
        head.namelen.set(name.len() as u32);
        head.name[..name.len()].copy_from_slice(name);
    })
}

const CASES: &[Case] = &[
    ("one node", |v| vec![long(v)], Sound),
    (
        "the next one is itself",
        |v| vec![long(v).foot(|f| f.next = BlockAddr(start(v)))],
        Refused,
    ),
    (
        "a circle without a mark",
        |v| vec![long(v).unmarked().foot(|f| f.next = BlockAddr(start(v)))],
        Sound,
    ),
    (
        "an inode at place 5",
        |v| vec![long(v).foot(|f| f.offset = NodeOffset(5))],
        Refused,
    ),
    (
        "an inode at place 5, behind the last mark",
        |v| {
            let behind = long(v).unmarked().foot(|f| f.offset = NodeOffset(5));
            vec![long(v), behind]
        },
        Sound,
    ),
    (
        "a number that cannot be",
        |v| {
            let other = long(v).unmarked().foot(|f| f.nid = Nid(u32::MAX));
            vec![other.foot(|f| f.offset = NodeOffset(1)), long(v)]
        },
        Refused,
    ),
    (
        "the node of attributes is one of addresses",
        |v| {
            let direct = v.inode(v.lookup("long")).0.nids[0];
            vec![long(v).word(XATTR_NID, direct.0)]
        },
        Refused,
    ),
    (
        "a new file without a name",
        |v| vec![new_file(v, false)],
        Sound,
    ),
    (
        "a new file with a name",
        |v| vec![new_file(v, true).edit(|head| head.name[0] = b'L')],
        BrokenList,
    ),
    (
        "attributes behind an inode that has none",
        |v| vec![bare(v).unmarked(), attributes(v, false)],
        Sound,
    ),
    (
        "broken attributes behind an inode that has none",
        |v| vec![bare(v).unmarked(), attributes(v, true)],
        BrokenList,
    ),
    (
        "broken attributes before an inode that has none",
        |v| vec![attributes(v, true), bare(v)],
        Sound,
    ),
    (
        "broken attributes alone",
        |v| vec![attributes(v, true)],
        BrokenList,
    ),
    (
        "broken attributes behind the file's last mark",
        |v| {
            let other = again(v, v.lookup("dir/tiny").nid());
            vec![bare(v), attributes(v, true).unmarked(), other]
        },
        Sound,
    ),
    (
        "a node in a block that is in use",
        |v| {
            let used = v.nat_entry(v.lookup("dir/tiny").nid()).block;
            vec![long(v).foot(|f| f.next = used)]
        },
        Refused,
    ),
    (
        "a directory",
        |v| vec![again(v, v.lookup("dir").nid())],
        Refused,
    ),
    (
        "inline contents of an encrypted file",
        |v| {
            let tiny = again(v, v.lookup("dir/tiny").nid());
            vec![tiny.edit(|head| head.advise |= Advise::ENCRYPT.bits())]
        },
        Refused,
    ),
    (
        "inline contents of a file that is protected by fs-verity",
        |v| {
            let tiny = again(v, v.lookup("dir/tiny").nid());
            vec![tiny.edit(|head| head.advise |= Advise::VERITY.bits())]
        },
        Refused,
    ),
    (
        "a wrong checksum",
        |v| {
            let mut node = long(v);
            node.signed = false;
            node.bytes[8] ^= 1;
            vec![node]
        },
        Refused,
    ),
    (
        "a number that is a node's of another file",
        |v| {
            let direct = v.inode(v.lookup("long")).0.nids[0];
            let own = again(v, v.lookup("dir/tiny").nid());
            vec![own.foot(|f| (f.nid, f.ino) = (direct, direct.as_ino()))]
        },
        Refused,
    ),
    (
        "a name with a slash",
        |v| vec![with_name(v, b"a/b")],
        Refused,
    ),
    (
        "a name in a file",
        |v| {
            let parent = v.lookup("dir/tiny");
            vec![with_name(v, b"new").edit(|head| head.pino.set(parent.0))]
        },
        Refused,
    ),
    (
        "a place that no file has",
        |v| {
            let direct = v.inode(v.lookup("long")).0.nids[0];
            vec![again(v, direct).foot(|f| f.offset = NodeOffset(0x0FFF_FFF0))]
        },
        Refused,
    ),
    (
        "data in a segment of nodes",
        |v| {
            let ino = v.lookup("long");
            let used = v.nat_entry(ino.nid()).block;
            vec![long(v).word(v.address_at(ino, 3), used.0)]
        },
        Refused,
    ),
    (
        "a compressed cluster",
        |v| {
            let direct = v.inode(v.lookup("long")).0.nids[0];
            vec![again(v, direct).word(0, BlockAddr::COMPRESSED.0)]
        },
        Refused,
    ),
];

/// Writes a chain; where a node of it is in use, that one belongs to the checkpoint's time, too.
fn put(v: &F2Volume, nodes: Vec<Node>) {
    let version = v.pack.checkpoint.footer_version();
    for (at, mut node) in (start(v)..).zip(nodes) {
        node.footer.version = version;
        match node.footer.next.0 {
            0 => node.footer.next = BlockAddr(at + 1),
            next if v.geo.in_main(BlockAddr(next)) && next != start(v) => {
                v.edit(BlockAddr(next), |b| {
                    let mut footer = Footer::read(b).expect("a footer");
                    (footer.version, footer.fsync) = (version, true);
                    footer.write(b).expect("written");
                });
            }
            _ => {}
        }
        node.footer.write(&mut node.bytes).expect("written");
        if node.signed && node.footer.nid == node.footer.ino.nid() {
            inode::set_checksum(&mut node.bytes, node.footer.ino, &v.geo);
        }
        v.put(BlockAddr(at), &node.bytes);
    }
}

/// Repairs a copy, and gives up its chain.
fn discard(v: &F2Volume) -> Result<(Report, Arc<MemoryDevice>), String> {
    let device = Arc::new(v.device.snapshot());
    let options = CheckOptions {
        mode: Mode::Yes,
        discard_fsynced: true,
        ..CheckOptions::default()
    };
    let report = check(Arc::clone(&device) as SharedDevice, &options);
    Ok((report.map_err(|e| e.to_string())?, device))
}

/// What a mount recovers is not given up, although the caller asks for it.
fn keeping(v: &F2Volume, waits: bool) -> Result<(), String> {
    let (report, device) = discard(v)?;
    let told = names(&report);
    let named = |name: &str| told.iter().any(|n| n == name);
    if report.changed || named("RecoveryDiscarded") || device.to_vec() != v.device.to_vec() {
        return Err(format!("a sound chain was given up:\n{}", show(&report)));
    }
    if waits != named("RecoveryPending") {
        return Err(format!("the chain is not mentioned:\n{}", show(&report)));
    }
    Ok(())
}

/// Without a mount that recovers the chain, a repair changes nothing until the caller gives the chain up. Then the volume is what its checkpoint
/// says, each file is named, and mounts write.
fn discarding(v: &F2Volume, checkpoint: &Tree) -> Result<(), String> {
    let (report, after) = repair_f2fs(&v.device, Mode::Yes);
    let report = report.map_err(|e| e.to_string())?;
    if report.changed || !report.has_uncorrected() || after.to_vec() != v.device.to_vec() {
        return Err(format!("check -y:\n{}", show(&report)));
    }
    let (report, device) = discard(v)?;
    let text = show(&report);
    let told = names(&report);
    let named = |name: &str| told.iter().any(|n| n == name);
    if report.has_uncorrected() || !named("RecoveryDiscarded") || !named("RecoveryFile") {
        return Err(format!("discarded:\n{text}"));
    }
    let again = verify_f2fs(&device).map_err(|e| e.to_string())?;
    if !again.is_clean() || names(&again).iter().any(|n| n.starts_with("Recovery")) {
        return Err(format!("{text}-- then\n{}", show(&again)));
    }
    if f2fs_tools() {
        let dir = tools::scratch();
        let path = dir.path().join("f2fs.img");
        device.save(&path).map_err(|e| e.to_string())?;
        let (code, told) = tools::run("fsck.f2fs", &["--dry-run", "-f"], &path);
        if !clean(code, &told) {
            return Err(format!("{text}-- fsck.f2fs:\n{told}"));
        }
    }
    let tree = trees::read(&device)?;
    if !tree.errors.is_empty() || tree.nodes != checkpoint.nodes {
        return Err(format!("{text}-- read: {:?}", tree.errors));
    }
    let mounted = Volume::open_device(device).map_err(|e| e.to_string())?;
    if let Some(reason) = mounted.read_only_reason() {
        return Err(format!("{text}-- mounted read-only: {reason}"));
    }
    let written = mounted.write("/new", b"new").map_err(|e| e.to_string());
    written.and(mounted.close().map_err(|e| e.to_string()))
}

/// A volume with files to be fsynced again.
fn with_files() -> F2Volume {
    let (device, v) = made("extra_attr,inode_checksum,flexible_inline_xattr");
    v.write("/long", vec![0x77; 5 << 20]).expect("written");
    v.write("/bare", vec![0x33; 9000]).expect("written");
    v.close().expect("closed");
    F2Volume::new(device.snapshot())
}

/// However few issues a report may have, each file that is given up is named.
#[test]
fn each_file_that_is_given_up_is_named() {
    let base = with_files();
    let mut nodes = vec![long(&base), bare(&base)];
    for name in ["dir/tiny", "dir/plain"] {
        nodes.push(again(&base, base.lookup(name).nid()));
    }
    nodes[0].signed = false;
    nodes[0].bytes[8] ^= 1;
    let count = nodes.len();
    put(&base, nodes);
    // Damage that the checkpoint has is counted against the limit.
    for name in ["holes", "dir"] {
        base.edit_inode(base.lookup(name), |head| head.blocks.set(77));
    }
    for max_issues in [1, 2, 3, 10] {
        let options = CheckOptions {
            mode: Mode::Yes,
            discard_fsynced: true,
            max_issues,
            ..CheckOptions::default()
        };
        let device = Arc::new(base.device.snapshot());
        let report = check(device, &options).expect("checked");
        let told = |name: &str| {
            let kinds = report.issues.iter().map(|i| lab_name(&i.kind));
            kinds.filter(|kind| kind == name).count()
        };
        let (files, given_up) = (told("RecoveryFile"), told("RecoveryDiscarded"));
        assert_eq!((files, given_up), (count, 1), "{}", show(&report));
        // All others count: the refusal, and two wrong counts of blocks.
        let others = report.issues.len() - files - given_up;
        assert_eq!(others, max_issues.min(3), "{}", show(&report));
        assert_eq!(report.suppressed > 0, max_issues < 3, "{}", show(&report));
    }
}

#[test]
fn chains_of_nodes_are_judged_as_a_mount_judges_them() {
    let base = with_files();
    base.edit_inode(base.lookup("bare"), |head| {
        head.inline &= !InlineFlags::XATTR.bits();
    });
    assert!(verify_f2fs(&base.device).expect("checked").is_clean());
    assert!(base.nat_entry(FREE.nid()).is_free());
    let checkpoint = trees::read(&base.device).expect("opens");
    let mut wrong = Vec::new();
    for (what, nodes, expected) in CASES {
        let v = base.copy();
        put(&v, nodes(&v));
        let report = verify_f2fs(&v.device).expect("checked");
        let found = names(&report);
        let named = |name: &str| found.iter().any(|f| f == name);
        let judged = match (named("RecoveryRefused"), named("Xattr")) {
            (true, _) => Refused,
            (_, true) => BrokenList,
            _ => Sound,
        };
        if judged != *expected || report.is_clean() != (judged == Sound) {
            wrong.push(format!("{what}: check says {judged:?}\n{}", show(&report)));
        }
        let shared: SharedDevice = Arc::new(v.device.snapshot());
        let mounted = Volume::open_device(shared).expect("mounts");
        let reason = mounted.read_only_reason();
        if reason.is_some() != (*expected == Refused) {
            wrong.push(format!("{what}: the mount says {reason:?}"));
        }
        let _ = mounted.close();
        if *expected == Refused {
            let way_out = "check -y --discard-fsynced";
            if !show(&report).contains(way_out)
                || !reason.as_ref().is_some_and(|r| r.contains(way_out))
            {
                wrong.push(format!(
                    "{what}: no way out in {reason:?}\n{}",
                    show(&report)
                ));
            }
            if let Err(e) = discarding(&v, &checkpoint) {
                wrong.push(format!("{what}: {e}"));
            }
        } else {
            // Without a mark nothing waits.
            let waits = *what != "a circle without a mark";
            if let Err(e) = keeping(&v, waits) {
                wrong.push(format!("{what}: {e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
