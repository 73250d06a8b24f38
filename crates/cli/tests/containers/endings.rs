//! Layers that end, or are compressed, in ways that few tools write.

use super::*;

/// What a tool makes of its input.
fn packed(tool: &str, bytes: &[u8]) -> Vec<u8> {
    let out = with_input(Command::new(tool).arg("-c"), bytes);
    assert!(out.status.success(), "{out:?}");
    out.stdout
}

/// A frame of zstd that readers skip.
fn skipped_frame() -> Vec<u8> {
    [&[0x5A, 0x2A, 0x4D, 0x18, 5, 0, 0, 0][..], b"aside"].concat()
}

/// What a layer is, its compression, its tar stream, and what the blob is where that is not the stream.
type Case<'a> = (&'a str, &'a str, &'a [u8], Option<Vec<u8>>);

/// Layers that end or are compressed in ways which the tools for containers take. A layer's digest tells that it is whole, not its end mark.
#[test]
fn layers_that_end_or_are_compressed_in_unusual_ways() {
    let scratch = Scratch::new();
    let layout = Layout::new(scratch.path("layout"));
    let whole = one_file(&scratch, "file", "contents");
    let last = whole.chunks(512).rposition(|block| block != [0; 512]);
    let bare = &whole[..(last.unwrap() + 1) * 512];
    let behind = [&whole[..], &[0x77; 1300]].concat();
    let halves = |tool: &str, tar: &[u8]| [&tar[..700], &tar[700..]].map(|half| packed(tool, half));
    let mut cases: Vec<Case<'_>> = vec![
        ("no end mark", "", bare, None),
        (
            "no end mark, gzip",
            "+gzip",
            bare,
            Some(packed("gzip", bare)),
        ),
        ("bytes behind the end mark", "", &behind, None),
        (
            "bytes behind, gzip",
            "+gzip",
            &behind,
            Some(packed("gzip", &behind)),
        ),
        (
            "members",
            "+gzip",
            &whole,
            Some(halves("gzip", &whole).concat()),
        ),
        (
            "members, no end mark",
            "+gzip",
            bare,
            Some(halves("gzip", bare).concat()),
        ),
        ("nothing", "", b"", None),
    ];
    if have("zstd") {
        let [one, two] = halves("zstd", &whole);
        let aside = skipped_frame();
        let frames = |all: &[&[u8]]| Some(all.concat());
        cases.extend([
            (
                "no end mark, zstd",
                "+zstd",
                bare,
                Some(packed("zstd", bare)),
            ),
            ("frames", "+zstd", &whole, frames(&[&one, &two])),
            (
                "a skipped frame first",
                "+zstd",
                &whole,
                frames(&[&aside, &one, &two]),
            ),
            (
                "skipped frames",
                "+zstd",
                &whole,
                frames(&[&one, &aside, &two, &aside]),
            ),
        ]);
    }
    let below = one_file(&scratch, "below", "below");
    let image = scratch.path("disk.img");
    for (what, suffix, tar, stored) in &cases {
        let kind = format!("{LAYER}{suffix}");
        // In the middle, so that the next layer is read, too.
        let above = one_file(&scratch, "above", "above");
        let layers: [Layer<'_>; 3] = [
            (LAYER, &below, None),
            (&kind, tar, stored.as_deref()),
            (LAYER, &above, None),
        ];
        layout.index(&[tagged(layout.image(host_architecture(), &layers), "v1")]);
        let _ = fs::remove_file(&image);
        let source = layout.source(":v1");
        good(&image, &["mkfs", "-q", "IMAGE", "--from", &source]);
        check_clean(&image, what);
        for (name, contents) in [("below", "below"), ("file", "contents"), ("above", "above")] {
            if !(tar.is_empty() && name == "file") {
                let path = format!("IMAGE:/{name}");
                assert_eq!(good(&image, &["cat", &path]), contents, "{what}");
            }
        }
        if tar.is_empty() {
            continue;
        }
        // The archive of the layout may end so, too.
        let archive = scratch.path("image.tar");
        let mut bytes = self::tar(&layout.dir);
        while bytes.ends_with(&[0; 512]) {
            bytes.truncate(bytes.len() - 512);
        }
        fs::write(&archive, bytes).unwrap();
        let _ = fs::remove_file(&image);
        let source = format!("oci-archive:{}:v1", archive.display());
        good(&image, &["mkfs", "-q", "IMAGE", "--from", &source]);
        if !have("skopeo") {
            continue;
        }
        // skopeo unpacks and compares.
        let copy = scratch.path("copy");
        let _ = fs::remove_dir_all(&copy);
        ok(Command::new("skopeo")
            .args(["copy", "-q", "--insecure-policy", "--dest-decompress"])
            .arg(layout.source(":v1"))
            .arg(format!("dir:{}", copy.display())));
        if !have("umoci") || !blockwright_oracles::is_root() || suffix.contains("zstd") {
            continue;
        }
        let bundle = scratch.path("bundle");
        let _ = fs::remove_dir_all(&bundle);
        ok(Command::new("umoci")
            .args(["unpack", "--image"])
            .arg(format!("{}:v1", layout.dir.display()))
            .arg(&bundle));
        let above = fs::read(bundle.join("rootfs/above")).unwrap();
        assert_eq!(above, b"above", "{what}");
    }
    // Neither a layer that ends inside an entry, nor bytes behind a compressed stream.
    let cut = &bare[..bare.len() - 508];
    let mut behind = packed("gzip", &whole);
    behind.extend(b"more than there should be");
    for (what, kind, tar, stored) in [
        ("cut", LAYER.to_owned(), cut, None),
        (
            "behind",
            format!("{LAYER}+gzip"),
            &whole[..],
            Some(&behind[..]),
        ),
    ] {
        layout.index(&[tagged(
            layout.image(host_architecture(), &[(&kind, tar, stored)]),
            "v1",
        )]);
        let _ = fs::remove_file(&image);
        let source = layout.source(":v1");
        let says: &[&str] = match what {
            "cut" => &["layer 1 of 1", "truncated"],
            _ => &["layer 1 of 1"],
        };
        refused(
            &mut bw(&image, &["mkfs", "-q", "IMAGE", "--from", &source]),
            1,
            says,
        );
    }
}
