//! Tar streams, in layers with whiteouts, and their compressions.

use super::no_bases;
use super::tree;
use crate::Target;
use crate::base::options;
use blockwright::{Format, VolumeBuilder};
use blockwright_device::{MemoryDevice, SharedDevice};
use std::io::{Cursor, Write};
use std::sync::Arc;

pub(crate) const TAR: Target = Target {
    name: "tar",
    property: "an archive is refused, or gives a volume that check calls clean and that is read without an error",
    run: run_tar,
    max_len: 16 << 10,
    bases: no_bases,
    seeds: tar_seeds,
};

pub(crate) const COMPRESSION: Target = Target {
    name: "compression",
    property: "a compressed stream is refused or unpacked, in memory and time that its volume's size bounds",
    run: run_compression,
    max_len: 16 << 10,
    bases: no_bases,
    seeds: compression_seeds,
};

const BYTES: u64 = 2 << 20;

/// Makes a volume of the layers, and has it looked at.
fn build(layers: Vec<Vec<u8>>) {
    let mut builder = VolumeBuilder::new();
    for layer in layers {
        builder = builder.from_reader(Cursor::new(layer), "layer");
    }
    make(builder);
}

/// Makes a small volume of a builder's sources, and has it looked at.
pub(crate) fn make(builder: VolumeBuilder) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(BYTES));
    let builder = builder
        .format(Format::Ext4)
        .size(BYTES)
        .block_size(1024)
        .features("^has_journal")
        .uuid([7; 16])
        .source_date_epoch(1_700_000_000);
    if builder.create_on(&device).is_err() {
        return;
    }
    let report = blockwright_check::ext4::check(device.clone(), &Default::default());
    match report {
        Ok(report) => assert!(report.is_clean(), "{:?}", report.issues),
        Err(e) => panic!("made, and refused by check: {e}"),
    }
    let volume = options(true)
        .open_device(device)
        .expect("made, and not to be opened");
    let walked = tree::walk(&volume);
    assert!(walked.errors.is_empty(), "{:?}", walked.errors);
}

/// The first byte: how many 512-byte records belong to the lower of two layers; 0 for one layer.
fn run_tar(data: &[u8]) {
    let Some((split, data)) = data.split_first() else {
        return;
    };
    let at = (usize::from(*split) * 512).min(data.len());
    let layers = match at {
        0 => vec![data.to_vec()],
        _ => vec![data[..at].to_vec(), data[at..].to_vec()],
    };
    build(layers.into_iter().map(mended).collect());
}

/// With the checksum that each header should have: mutations are to get past it.
fn mended(mut tar: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while let Some(header) = tar.get_mut(at..at + 512) {
        if header.iter().any(|b| *b != 0) {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let octal = |n: u64, b: &u8| n * 8 + u64::from(b.wrapping_sub(b'0') & 7);
        let digits = header[124..136].iter().take_while(|b| b.is_ascii_digit());
        let size = digits.fold(0, octal).min(1 << 20) as usize;
        at += 512 + size.next_multiple_of(512);
    }
    tar
}

/// The first byte says which compression's magic the stream is given.
fn run_compression(data: &[u8]) {
    const MAGICS: [&[u8]; 3] = [
        &[0x1F, 0x8B, 8],
        &[0x28, 0xB5, 0x2F, 0xFD],
        &[0xFD, b'7', b'z', b'X', b'Z', 0],
    ];
    let Some((which, stream)) = data.split_first() else {
        return;
    };
    let magic = MAGICS[usize::from(*which) % MAGICS.len()];
    let mut stream = stream.to_vec();
    if stream.len() >= magic.len() {
        stream[..magic.len()].copy_from_slice(magic);
    }
    build(vec![stream]);
}

fn entry(out: &mut Vec<u8>, kind: u8, name: &str, link: &str, data: &[u8]) {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..108].copy_from_slice(b"0000755\0");
    header[108..116].copy_from_slice(b"0000000\0");
    header[116..124].copy_from_slice(b"0000000\0");
    header[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    header[136..148].copy_from_slice(b"14524720400\0");
    header[156] = kind;
    header[157..157 + link.len()].copy_from_slice(link.as_bytes());
    header[257..265].copy_from_slice(b"ustar\x0000");
    out.extend(header);
    out.extend(data);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in records {
        let body = key.len() + value.len() + 3;
        let mut len = body + 1;
        while len != body + len.to_string().len() {
            len = body + len.to_string().len();
        }
        out.extend(format!("{len} {key}={value}\n").bytes());
    }
    out
}

fn archive() -> Vec<u8> {
    let mut tar = Vec::new();
    entry(&mut tar, b'5', "dir/", "", b"");
    entry(&mut tar, b'0', "dir/file", "", b"contents");
    entry(&mut tar, b'1', "dir/hard", "dir/file", b"");
    entry(&mut tar, b'2', "soft", "../../etc/passwd", b"");
    entry(&mut tar, b'3', "null", "", b"");
    entry(&mut tar, b'6', "fifo", "", b"");
    entry(
        &mut tar,
        b'L',
        "././@LongLink",
        "",
        &[&[b'n'; 120][..], b"\0"].concat(),
    );
    entry(&mut tar, b'0', "short", "", b"");
    let records = [
        ("path", "dir/named-by-pax"),
        ("SCHILY.xattr.user.a", "b"),
        ("mtime", "1700000000.5"),
    ];
    entry(&mut tar, b'x', "PaxHeader", "", &pax(&records));
    entry(&mut tar, b'0', "overruled", "", &[3; 700]);
    let sparse = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.realsize", "9000"),
    ];
    entry(&mut tar, b'x', "PaxHeader", "", &pax(&sparse));
    let mut map = b"1\n4096\n512\n".to_vec();
    map.resize(512, 0);
    map.extend([4; 512]);
    entry(&mut tar, b'0', "sparse", "", &map);
    tar.extend([0; 1024]);
    tar
}

fn whiteouts() -> Vec<u8> {
    let mut tar = Vec::new();
    entry(&mut tar, b'0', "dir/.wh.file", "", b"");
    entry(&mut tar, b'5', "dir/sub/", "", b"");
    entry(&mut tar, b'0', "dir/sub/.wh..wh..opq", "", b"");
    entry(&mut tar, b'0', "soft", "", b"a file now");
    entry(&mut tar, b'0', "../../outside", "", b"");
    tar.extend([0; 1024]);
    tar
}

fn tar_seeds() -> Vec<Vec<u8>> {
    let lower = archive();
    let records = (lower.len() / 512) as u8;
    vec![
        [&[0][..], &lower].concat(),
        [&[records][..], &lower, &whiteouts()].concat(),
    ]
}

fn compression_seeds() -> Vec<Vec<u8>> {
    let tar = archive();
    let mut gzip = flate2::write::GzEncoder::new(vec![0], flate2::Compression::best());
    let mut xz = liblzma::write::XzEncoder::new(vec![2], 6);
    let written = gzip.write_all(&tar).and_then(|()| xz.write_all(&tar));
    let all = written.and_then(|()| {
        Ok([
            gzip.finish()?,
            xz.finish()?,
            zstd::encode_all(&tar[..], 19)?,
        ])
    });
    // In memory this does not fail; without these the fuzzer begins with nothing.
    let [gzip, xz, zstd] = all.unwrap_or_default();
    vec![gzip, [&[1][..], &zstd].concat(), xz]
}
