//! Compressed files of f2fs, of every shape and damaged ones (Linux's own: `compressed_linux`). Debian's sload.f2fs and its
//! kernel for user-mode-linux cannot write them, so files that the engine wrote are compressed here, in place, with the
//! algorithms' own libraries (zstd's, lz4's; LZO by a plain encoder of its own, its decoder is held
//! against liblzo2's output in `ondisk`). fsck.f2fs judges whether what comes out is f2fs.

use crate::common;
use crate::common::below;
use blockwright::{ErrorKind, ExtentKind, OpenOptions, Volume};
use blockwright_check::{Mode, f2fs as check};
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{HostDevice, OpenMode, SharedDevice};
use blockwright_f2fs::F2fs;
use blockwright_ondisk::f2fs::checksum::crc32_magic;
use blockwright_ondisk::f2fs::compress::{Algorithm, FLAG_CHECKSUM, HEADER_BYTES};
use blockwright_ondisk::f2fs::inode::{InlineFlags, Inode, InodeFlags, set_checksum};
use blockwright_ondisk::f2fs::{BlockAddr, Geometry, Ino, Nid};
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: usize = 4096;
const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::Lzo,
    Algorithm::Lz4,
    Algorithm::Zstd,
    Algorithm::LzoRle,
];

/// Appends a length that does not fit its opcode.
fn lzo_length(out: &mut Vec<u8>, mut rest: usize) {
    while rest > 255 {
        out.push(0);
        rest -= 255;
    }
    out.push(rest as u8);
}

/// An LZO stream: the nearest earlier place of four bytes is copied from; runs of zeroes where the version has
/// them.
fn lzo(data: &[u8], runs: bool) -> Vec<u8> {
    let mut out = if runs { vec![17, 1] } else { vec![] };
    let begin = out.len();
    let mut seen = std::collections::HashMap::new();
    // Byte of the last copy's operand that says how many bytes follow it as they are.
    let mut operand = None;
    let (mut from, mut at) = (0, 0);
    let take = |out: &mut Vec<u8>, bytes: &[u8]| {
        match bytes.len() {
            0 => {}
            n @ 1..=238 if out.len() == begin => out.push(17 + n as u8),
            n @ 4..=18 => out.push(n as u8 - 3),
            n => {
                out.push(0);
                lzo_length(out, n - 18);
            }
        }
        out.extend(bytes);
    };
    while at < data.len() {
        let rest = &data[at..];
        let zeroes = rest.iter().take(2051).take_while(|b| **b == 0).count();
        let key = rest.get(..4).map(<[u8]>::to_vec);
        let back = key.and_then(|k| seen.insert(k, at)).map(|b| at - b);
        let back = back.filter(|d| *d <= 16384);
        // Fewer than four bytes can only be taken at the very start.
        if !(at == from || at - from >= 4 || out.len() == begin) || (at == 0) {
            at += 1;
            continue;
        }
        let len = if runs && zeroes >= 4 {
            take(&mut out, &data[from..at]);
            let n = zeroes - 4;
            operand = Some(out.len() + 1);
            out.extend([16 | 8 | (n & 7) as u8, 0xFC, 0xFF, (n >> 3) as u8]);
            zeroes
        } else if let Some(distance) = back {
            take(&mut out, &data[from..at]);
            let len = (0..rest.len())
                .take_while(|n| data[at + n - distance] == rest[*n])
                .count();
            if len <= 33 {
                out.push(32 | (len - 2) as u8);
            } else {
                out.push(32);
                lzo_length(&mut out, len - 33);
            }
            operand = Some(out.len());
            out.extend((((distance - 1) << 2) as u16).to_le_bytes());
            len
        } else {
            at += 1;
            continue;
        };
        at += len;
        from = at;
    }
    match (data.len() - from, operand) {
        (n @ 1..=3, Some(byte)) => {
            out[byte] |= n as u8;
            out.extend(&data[from..]);
        }
        _ => take(&mut out, &data[from..]),
    }
    out.extend([17, 0, 0]);
    out
}

fn pack(algorithm: Algorithm, data: &[u8]) -> Vec<u8> {
    match algorithm {
        Algorithm::Lzo => lzo(data, false),
        Algorithm::LzoRle => lzo(data, true),
        Algorithm::Lz4 => lz4_flex::block::compress(data),
        Algorithm::Zstd => zstd::bulk::compress(data, 3).expect("compressed"),
    }
}

fn code(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::Lzo => 0,
        Algorithm::Lz4 => 1,
        Algorithm::Zstd => 2,
        Algorithm::LzoRle => 3,
    }
}

/// What `n` blocks of a file hold: text, zeroes, and blocks that no algorithm makes smaller.
fn contents(seed: u64, n: usize) -> Vec<u8> {
    let mut rng = SplitMix64::new(seed);
    let mut out = Vec::with_capacity(n * BLOCK + BLOCK);
    while out.len() < n * BLOCK {
        match below(&mut rng, 8) {
            0 => out.resize(out.len() + below(&mut rng, 20_000) as usize, 0),
            1 => {
                for _ in 0..below(&mut rng, 4000) {
                    out.extend(rng.next_u64().to_le_bytes());
                }
            }
            k => {
                for line in 0..below(&mut rng, 900) {
                    out.extend(format!("{k} line {line} of the text\n").into_bytes());
                }
            }
        }
    }
    out.truncate(n * BLOCK);
    out
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug)]
struct How {
    algorithm: Algorithm,
    /// `log2` of a cluster's blocks.
    log: u8,
    checksum: bool,
    /// Blocks that were saved are given back.
    released: bool,
}

fn device(image: &Path) -> SharedDevice {
    HostDevice::open(image, OpenMode::default()).expect("opens")
}

/// Where nodes are, and the volume's geometry.
fn with_nodes<R>(image: &Path, f: impl FnOnce(&Geometry, &dyn Fn(Nid) -> BlockAddr) -> R) -> R {
    let volume = Volume::open_read_only(image).expect("opens");
    let engine = volume.vfs().engine().as_any();
    let fs = engine.downcast_ref::<F2fs>().expect("f2fs").fs();
    f(&fs.volume.geo, &|nid| {
        fs.nodes.nat.get(nid).expect("a node").block
    })
}

fn ino_of(image: &Path, path: &str) -> Ino {
    let volume = Volume::open_read_only(image).expect("opens");
    Ino(volume.metadata(path).expect("there").ino() as u32)
}

/// Compresses a file of whole blocks in place. Its contents as they are then: blocks behind the inode's
/// addresses move, because whole clusters of addresses are used only. `spoil` may damage a packed cluster.
fn compress_file(
    image: &Path,
    path: &str,
    how: How,
    data: &[u8],
    mut spoil: impl FnMut(usize, &mut Vec<u8>, &mut [u32]),
) -> (Vec<u8>, usize) {
    let ino = ino_of(image, path);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(image)
        .expect("opens");
    let cluster = 1usize << how.log;
    let read = |at: BlockAddr| {
        let mut block = vec![0; BLOCK];
        file.read_exact_at(&mut block, u64::from(at.0) * BLOCK as u64)
            .expect("read");
        block
    };
    with_nodes(image, |geo, node_at| {
        let at = node_at(ino.nid());
        let mut block = read(at);
        let mut inode = Inode::parse_unverified(&block, ino, geo).expect("an inode");
        let layout = inode.layout(geo.features);
        let words = layout.address_bytes();
        let plain_count = layout.addresses_used(1);
        let count = layout.addresses_used(cluster);
        let mut nodes = vec![(ino.nid(), at, words.start, 0, count)];
        if inode.nids[0].0 != 0 {
            let used = 1018 / cluster * cluster;
            let nid = inode.nids[0];
            nodes.push((nid, node_at(nid), 0, plain_count, used));
        }
        let (mut shown, mut packed_clusters, mut saved) = (Vec::new(), 0, 0u64);
        let mut done = vec![];
        for (nid, node, start, first, count) in nodes {
            let mut bytes = if nid == ino.nid() {
                block.clone()
            } else {
                read(node)
            };
            for slot in (0..count).step_by(cluster) {
                let mut plain = vec![0u8; cluster * BLOCK];
                let from = ((first + slot) * BLOCK).min(data.len());
                let part = &data[from..data.len().min(from + cluster * BLOCK)];
                if part.is_empty() {
                    break;
                }
                plain[..part.len()].copy_from_slice(part);
                shown.extend_from_slice(&plain);
                let addr = |n: usize| start + (slot + n) * 4;
                let mut addresses: Vec<u32> = (0..cluster)
                    .map(|n| u32::from_le_bytes(bytes[addr(n)..addr(n) + 4].try_into().expect("4")))
                    .collect();
                let mut packed = pack(how.algorithm, &plain);
                let blocks = (packed.len() + HEADER_BYTES).div_ceil(BLOCK);
                if blocks >= cluster || addresses.contains(&0) {
                    continue;
                }
                let keep = if how.released {
                    BlockAddr::NULL
                } else {
                    BlockAddr::NEW
                };
                addresses[0] = BlockAddr::COMPRESSED.0;
                addresses[blocks + 1..].fill(keep.0);
                saved += (cluster - blocks) as u64;
                let length = packed.len() as u32;
                let sum = crc32_magic(&packed);
                let mut head = length.to_le_bytes().to_vec();
                head.extend(if how.checksum { sum } else { 0 }.to_le_bytes());
                head.resize(HEADER_BYTES, 0);
                head.append(&mut packed);
                spoil(packed_clusters, &mut head, &mut addresses);
                head.resize(blocks * BLOCK, 0);
                packed_clusters += 1;
                for (n, at) in addresses[1..=blocks].iter().enumerate() {
                    if BlockAddr(*at).is_stored() {
                        let to = u64::from(*at) * BLOCK as u64;
                        file.write_all_at(&head[n * BLOCK..(n + 1) * BLOCK], to)
                            .expect("written");
                    }
                }
                for (n, a) in addresses.iter().enumerate() {
                    bytes[addr(n)..addr(n) + 4].copy_from_slice(&a.to_le_bytes());
                }
            }
            done.push((nid, node, bytes));
        }
        for (nid, node, bytes) in done {
            if nid == ino.nid() {
                block = bytes;
            } else {
                file.write_all_at(&bytes, u64::from(node.0) * BLOCK as u64)
                    .expect("written");
            }
        }
        let size = if data.len() > plain_count * BLOCK {
            shown.len()
        } else {
            data.len()
        };
        shown.truncate(size);
        inode.size = size as u64;
        inode.flags |= InodeFlags::COMPRESS;
        if how.released {
            inode.inline |= InlineFlags::COMPRESS_RELEASED;
            inode.blocks -= saved;
        }
        let extra = inode.extra.as_mut().expect("extra attributes");
        extra.compress_algorithm = code(how.algorithm);
        extra.log_cluster_size = how.log;
        extra.compress_flag = if how.checksum { FLAG_CHECKSUM } else { 0 };
        extra.compr_blocks = saved;
        inode.encode_into(&mut block).expect("encoded");
        set_checksum(&mut block, ino, geo);
        file.write_all_at(&block, u64::from(at.0) * BLOCK as u64)
            .expect("written");
        (shown, packed_clusters)
    })
}

/// The blocks that compression saved are marked as valid still: our own repair puts that right.
fn settle(image: &Path) {
    let options = check::CheckOptions {
        mode: Mode::Yes,
        ..check::CheckOptions::default()
    };
    let report = check::check(device(image), &options).expect("checked");
    for issue in &report.issues {
        let text = issue.to_string();
        assert!(
            ["SIT", "segment", "checkpoint", "NAT bits", "count"]
                .iter()
                .any(|w| text.contains(w)),
            "{text}"
        );
    }
}

fn make(image: &Path) {
    common::mkfs_f2fs(image, "extra_attr,inode_checksum,compression", 96 << 20);
}

fn write(image: &Path, files: &[(&str, &[u8])]) {
    let volume = Volume::open(image).expect("opens");
    for (path, data) in files {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&volume, path)
            .expect("made");
        file.write_all_at(data, 0).expect("written");
    }
    volume.close().expect("closed");
}

#[test]
fn every_algorithm_is_read() {
    if !common::have_tool("mkfs.f2fs") || !common::have_tool("fsck.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    make(&image);
    let mut files = Vec::new();
    for (n, algorithm) in ALGORITHMS.into_iter().enumerate() {
        for (log, blocks, tail) in [(2u8, 60, 0), (3, 80, 1234), (5, 130, 7), (8, 300, 4000)] {
            let how = How {
                algorithm,
                log,
                checksum: log != 3,
                released: log == 3 || n == 2 && log == 5,
            };
            let mut data = contents(u64::from(log) * 10 + n as u64, blocks);
            data.truncate(data.len() - tail);
            files.push((format!("/{algorithm:?}-{log}"), how, data));
        }
    }
    // Behind the inode's own addresses.
    let long = contents(99, 1500);
    let how = How {
        algorithm: Algorithm::Lz4,
        log: 4,
        checksum: true,
        released: false,
    };
    files.push(("/long".to_owned(), how, long));
    let list: Vec<(&str, &[u8])> = files.iter().map(|(p, _, d)| (&p[..], &d[..])).collect();
    write(&image, &list);
    for (path, how, data) in &mut files {
        let (shown, clusters) = compress_file(&image, path, *how, data, |_, _, _| {});
        assert!(
            clusters > 0 || how.log == 8,
            "{path}: nothing was compressed"
        );
        *data = shown;
    }
    settle(&image);
    common::assert_fsck_f2fs_clean(&image);

    let volume = Volume::open(&image).expect("opens");
    assert!(!volume.is_read_only());
    let mut rng = SplitMix64::new(common::seed(7));
    let mut encoded = 0;
    for (path, how, data) in &files {
        let read = volume.read(path).expect("read");
        assert!(read == *data, "{path} {how:?}: differs");
        volume.vfs().drop_caches();
        let direct = OpenOptions::new()
            .read(true)
            .direct(true)
            .open(&volume, path)
            .expect("opens");
        let file = volume.open_file(path).expect("opens");
        for _ in 0..20 {
            let at = below(&mut rng, data.len() as u64) as usize;
            let len = below(&mut rng, 50_000) as usize;
            let wanted = &data[at..data.len().min(at + len)];
            let mut got = vec![0; len];
            let n = file.read_at(&mut got, at as u64).expect("read");
            assert!(got[..n] == *wanted, "{path} at {at}");
            let n = direct.read_at(&mut got, at as u64).expect("read");
            assert!(got[..n] == *wanted, "{path} at {at}, direct");
        }
        let extents = file.extents().expect("known");
        encoded += extents
            .iter()
            .filter(|e| e.kind == ExtentKind::Encoded)
            .count();
        // Writing is refused by name, and changes nothing.
        let open = OpenOptions::new().write(true).open(&volume, path);
        let e = open
            .and_then(|f| f.write_at(b"x", 5000).and_then(|_| f.sync_all()))
            .expect_err("refused");
        assert_eq!(e.kind(), ErrorKind::UnsupportedFeature, "{e}");
        assert!(e.to_string().contains("compressed"), "{e}");
    }
    assert!(encoded > 50, "{encoded} compressed clusters");
    // Their blocks are given up like others'.
    for (path, _, _) in &files {
        volume.remove_file(path).expect("removed");
    }
    volume.close().expect("closed");
    common::assert_fsck_f2fs_clean(&image);
}

#[test]
fn damaged_clusters_are_refused() {
    if !common::have_tool("mkfs.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    make(&image);
    let cases = [
        "clen", "sum", "body", "large", "none", "gap", "outside", "short",
    ];
    let data: Vec<u8> = (0..64 * BLOCK).map(|n| (n / 300) as u8).collect();
    let names: Vec<String> = ALGORITHMS
        .iter()
        .flat_map(|a| cases.map(|c| format!("/{a:?}-{c}")))
        .collect();
    let list: Vec<(&str, &[u8])> = names.iter().map(|n| (&n[..], &data[..])).collect();
    write(&image, &list);
    for algorithm in ALGORITHMS {
        for case in cases {
            let how = How {
                algorithm,
                log: 3,
                checksum: case == "sum",
                released: false,
            };
            let path = format!("/{algorithm:?}-{case}");
            let mut spoil = |n: usize, head: &mut Vec<u8>, addresses: &mut [u32]| {
                if n != 1 {
                    return;
                }
                match case {
                    "clen" => head[..4].copy_from_slice(&0x00FF_FFFFu32.to_le_bytes()),
                    "sum" => head[4] ^= 1,
                    "body" => head[HEADER_BYTES..].fill(0xFF),
                    // Another cluster's worth, twice as large as there is room for.
                    "large" => {
                        let packed = pack(algorithm, &vec![0; 16 * BLOCK]);
                        head[..4].copy_from_slice(&(packed.len() as u32).to_le_bytes());
                        head.truncate(HEADER_BYTES);
                        head.extend(packed);
                    }
                    "short" => {
                        let packed = pack(algorithm, &vec![0; BLOCK]);
                        head[..4].copy_from_slice(&(packed.len() as u32).to_le_bytes());
                        head.truncate(HEADER_BYTES);
                        head.extend(packed);
                    }
                    "none" => addresses[1..].fill(0),
                    "gap" => addresses[7] = addresses[1],
                    _ => addresses[1] = 3,
                }
            };
            compress_file(&image, &path, how, &data, &mut spoil);
        }
    }
    let volume = Volume::open_read_only(&image).expect("opens");
    for path in &names {
        let file = volume.open_file(path).expect("opens");
        let mut block = vec![0; BLOCK];
        // What is before and behind the damage is read.
        for at in [0, 2 * 8 * BLOCK] {
            file.read_at(&mut block, at as u64).expect("read");
            assert!(block == data[at..at + BLOCK], "{path} at {at}");
        }
        let e = file
            .read_at(&mut block, 9 * BLOCK as u64)
            .expect_err("damaged");
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{path}: {e}");
    }
    volume.close().expect("closed");
}

#[test]
fn the_fixture_s_lzo_is_read_back() {
    for seed in 0..40 {
        let mut data = contents(seed, 16);
        data.truncate(16 * BLOCK - (seed as usize % 5) * 3);
        for runs in [false, true] {
            let packed = lzo(&data, runs);
            let out = blockwright_ondisk::lzo::decompress(&packed, data.len());
            assert!(out.expect("read") == data, "seed {seed}");
        }
    }
}
