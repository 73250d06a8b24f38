//! Images in chunks, by the program's commands: from a folder and over HTTP, in the sandbox. casync is the oracle.

mod common;
#[path = "../../chunks/tests/web/mod.rs"]
mod web;

use common::run::{bw, good, json, refused, source_tree};
use common::snapshot::{assert_same, snapshot};
use common::{Mounted, Scratch, have, have_fuse, ok};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use web::s3::{self, S3};
use web::{Behaviour, Web};

/// A volume of a small tree, `disk.img`, and in chunks: `store`, `disk.caibx`.
fn in_chunks(scratch: &Scratch, format: &str) {
    let tree = source_tree(scratch, "tree");
    let image = scratch.path("disk.img");
    let from = tree.to_str().unwrap();
    good(
        &image,
        &["mkfs", "-q", "-t", format, "--from", from, "IMAGE", "128M"],
    );
    let (store, index) = (scratch.path("store"), scratch.path("disk.caibx"));
    let (store, index) = (store.to_str().unwrap(), index.to_str().unwrap());
    let make = [
        "chunk", "make", "--json", "--store", store, "-o", index, "IMAGE",
    ];
    let made = json(&image, &make);
    assert_eq!(made["bytes"], 128 << 20);
    assert!(made["new_chunks"].as_u64().unwrap() > 3, "{made}");
}

fn local(scratch: &Scratch) -> PathBuf {
    let (index, store) = (scratch.path("disk.caibx"), scratch.path("store"));
    format!("chunks:{}?store={}", index.display(), store.display()).into()
}

/// What commands print is what they print of the image itself.
fn same_as_image(scratch: &Scratch, address: &Path) {
    let image = scratch.path("disk.img");
    for args in [
        &["ls", "-lR", "IMAGE:/"][..],
        &["tree", "IMAGE"],
        &["du", "IMAGE:/"],
        &["stat", "--json", "IMAGE:/"],
        &["check", "-n", "IMAGE"],
        &["ls", "--sandbox=off", "IMAGE:/"],
        &["df", "--sandbox=off", "--json", "IMAGE"],
    ] {
        let (of_image, of_chunks) = (good(&image, args), good(address, args));
        let replaced = of_chunks.replace(address.to_str().unwrap(), image.to_str().unwrap());
        assert_eq!(of_image, replaced, "{args:?}");
    }
    let tar = |place: &Path, name: &str| {
        let out = scratch.path(name);
        good(place, &["export", "-o", out.to_str().unwrap(), "IMAGE"]);
        fs::read(&out).unwrap()
    };
    assert!(tar(&image, "a.tar") == tar(address, "b.tar"));
}

#[test]
fn every_reading_command_takes_an_image_in_chunks() {
    let scratch = Scratch::new();
    in_chunks(&scratch, "ext4");
    same_as_image(&scratch, &local(&scratch));
    let web = Web::start(&scratch.path(""), Behaviour::Good);
    let cache = scratch.path("cache");
    let http: PathBuf = format!(
        "chunks:{}?store={}&cache={}",
        web.url("disk.caibx"),
        web.url("store"),
        cache.display()
    )
    .into();
    same_as_image(&scratch, &http);
    // From the cache alone, once the index is here.
    let answers = web.answers();
    same_as_image(&scratch, &http);
    let indexes = answers_of_indexes();
    assert_eq!(web.answers() - answers, indexes);
    // The library.
    let volume = blockwright::Volume::open_read_only(&http).unwrap();
    assert!(volume.walk("/").all(|entry| entry.is_ok()));
    volume.close().unwrap();
    for args in [
        &["rm", "IMAGE:/x"][..],
        &["mkfs", "-q", "-F", "IMAGE"],
        &["set", "IMAGE", "label=x"],
    ] {
        refused(&mut bw(&http, args), 1, &["read-only"]);
    }
}

/// Each command of `same_as_image` that reads the address reads the index once.
fn answers_of_indexes() -> usize {
    8
}

#[test]
fn a_mount_fetches_and_shows_the_tree() {
    if !have_fuse() {
        return;
    }
    for format in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        in_chunks(&scratch, format);
        let web = Web::start(&scratch.path(""), Behaviour::Good);
        let address = format!(
            "chunks:{}?store={}",
            web.url("disk.caibx"),
            web.url("store")
        );
        let shown = |image: &Path| {
            let mounted = Mounted::new(image, &scratch.dir("mnt"), "ro");
            let tree = snapshot(&scratch.path("mnt"));
            mounted.unmount();
            tree
        };
        let (of_image, of_chunks) = (shown(&scratch.path("disk.img")), shown(Path::new(&address)));
        assert!(of_image.len() > 5, "{of_image:?}");
        assert_same(format, &of_image, &of_chunks);
    }
}

#[test]
fn extract_and_verify_agree_with_casync() {
    let scratch = Scratch::new();
    in_chunks(&scratch, "ext4");
    let (index, store) = (scratch.path("disk.caibx"), scratch.path("store"));
    let out = scratch.path("out.img");
    let image = fs::read(scratch.path("disk.img")).unwrap();
    let store_text = store.to_str().unwrap();
    let arguments = ["chunk", "extract", "--store", store_text, "IMAGE", "-o"];
    good(&index, &[&arguments[..], &[out.to_str().unwrap()]].concat());
    assert!(fs::read(&out).unwrap() == image);
    refused(
        &mut bw(&index, &[&arguments[..], &[out.to_str().unwrap()]].concat()),
        1,
        &["out.img", "exists"],
    );
    if have("casync") {
        let theirs = scratch.path("casync.img");
        let mut casync = Command::new("casync");
        casync.arg("extract").arg(format!("--store={store_text}"));
        ok(casync.arg(&index).arg(&theirs));
        assert!(fs::read(&theirs).unwrap() == image);
    }
    let verify = ["chunk", "verify", "--json", "--store", store_text, "IMAGE"];
    assert_eq!(
        json(&index, &verify)["problems"].as_array().unwrap().len(),
        0
    );
    // One damaged chunk, one that is gone.
    let mut chunks = Vec::new();
    for folder in fs::read_dir(&store).unwrap().flatten() {
        chunks.extend(
            fs::read_dir(folder.path())
                .unwrap()
                .flatten()
                .map(|f| f.path()),
        );
    }
    chunks.sort();
    fs::write(&chunks[0], b"damage").unwrap();
    fs::remove_file(&chunks[1]).unwrap();
    let name = |n: usize| chunks[n].file_stem().unwrap().to_str().unwrap().to_owned();
    let verify = ["chunk", "verify", "--store", store_text, "IMAGE"];
    refused(
        &mut bw(&index, &verify),
        1,
        &[
            &name(0),
            "not compressed",
            &name(1),
            "is not in",
            store_text,
        ],
    );
    let again = scratch.path("again.img");
    let arguments = [&arguments[..], &[again.to_str().unwrap()]].concat();
    refused(&mut bw(&index, &arguments), 1, &["chunk", store_text]);
    assert!(!again.exists());
}

#[test]
fn what_is_wrong_with_an_address_is_said() {
    let scratch = Scratch::new();
    in_chunks(&scratch, "ext4");
    let index = scratch.path("disk.caibx");
    let address = |rest: &str| PathBuf::from(format!("chunks:{}{rest}", index.display()));
    for (rest, says) in [
        ("", "no store is named, and an index alone has no data"),
        ("?shop=/x", "unknown parameter `shop`"),
        ("x?store=/x", "no such file"),
        ("?store=/nowhere", "is not in /nowhere"),
        ("?store=http://127.0.0.1:1/s", "127.0.0.1:1/s"),
    ] {
        refused(&mut bw(&address(rest), &["ls", "IMAGE:/"]), 1, &[says]);
    }
    fs::write(&index, b"no index").unwrap();
    refused(
        &mut bw(&local(&scratch), &["ls", "IMAGE:/"]),
        1,
        &["the index", "disk.caibx"],
    );
}

/// Behind the wall too: another process signs and sends.
#[test]
fn images_are_made_in_s3_and_read_from_it() {
    let scratch = Scratch::new();
    in_chunks(&scratch, "ext4");
    let image = scratch.path("disk.img");
    let server = S3::start(&scratch.path("objects"), false);
    let store = server.place("chunks");
    let index = scratch.path("s3.caibx");
    let with_keys = |command: &mut Command| {
        for (name, value) in [
            ("AWS_ACCESS_KEY_ID", s3::KEY),
            ("AWS_SECRET_ACCESS_KEY", s3::SECRET),
            ("AWS_SESSION_TOKEN", s3::TOKEN),
        ] {
            command.env(name, value);
        }
    };
    let index_text = index.to_str().unwrap();
    for sandbox in ["--sandbox=require", "--sandbox=off"] {
        let args = [
            "chunk", "make", sandbox, "--store", &store, "-o", index_text, "IMAGE",
        ];
        // Without keys nothing is kept.
        if server.puts() == 0 {
            let mut command = bw(&image, &args);
            for name in ["AWS_ACCESS_KEY_ID", "S3_ACCESS_KEY"] {
                command.env_remove(name);
            }
            refused(&mut command, 1, &["refuses access", "AWS_ACCESS_KEY_ID"]);
            assert!(!index.exists());
        }
        let mut command = bw(&image, &args);
        with_keys(&mut command);
        ok(&mut command);
        let same = fs::read(scratch.path("disk.caibx")).unwrap() == fs::read(&index).unwrap();
        assert!(same, "{sandbox}: another index");
    }
    assert!(server.puts() > 3);
    let address = PathBuf::from(format!("chunks:{index_text}?store={store}"));
    let mut command = bw(&address, &["ls", "--sandbox=require", "-lR", "IMAGE:/"]);
    with_keys(&mut command);
    let (of_image, of_chunks) = (good(&image, &["ls", "-lR", "IMAGE:/"]), ok(&mut command));
    let replaced = of_chunks.replace(address.to_str().unwrap(), image.to_str().unwrap());
    assert_eq!(of_image, replaced);
    // Half of a pair of keys.
    command.env_remove("AWS_SECRET_ACCESS_KEY");
    let text = refused(&mut command, 1, &["AWS_SECRET_ACCESS_KEY is not"]);
    assert!(!text.contains(s3::TOKEN), "{text}");
}

#[test]
fn a_store_that_cannot_be_one_is_named() {
    let scratch = Scratch::new();
    in_chunks(&scratch, "ext4");
    let image = scratch.path("disk.img");
    let index = scratch.path("new.caibx");
    let make = |store: &str, code: i32, says: &[&str]| {
        for sandbox in ["--sandbox=auto", "--sandbox=off"] {
            let index = index.to_str().unwrap();
            let args = [
                "chunk", "make", sandbox, "--store", store, "-o", index, "IMAGE",
            ];
            refused(&mut bw(&image, &args), code, says);
        }
    };
    let file = scratch.path("disk.caibx");
    make(file.to_str().unwrap(), 1, &["disk.caibx", "no folder"]);
    make("http://127.0.0.1:1/s", 2, &["not written over HTTP"]);
    make("s3+http://127.0.0.1:1", 2, &["HOST/BUCKET/PREFIX"]);
    assert!(!index.exists());
}

/// Of two builds, the second one is laid over the first one, which is in chunks: most of its chunks are in the store already.
#[test]
fn a_build_over_another_one_shares_its_chunks() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    // Bytes that neither repeat nor compress, so that cuts come as often as in real data.
    let content = |n: usize, len: usize| -> Vec<u8> {
        let mut state = n as u64 + 1;
        let byte = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005);
            state = state.wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..len).map(byte).collect()
    };
    for n in 0..400 {
        let file = tree.join(format!("{n:03}"));
        fs::write(file, content(n, 5_000 + n * 97 % 30_000)).unwrap();
    }
    let (store, from) = (scratch.path("store"), tree.to_str().unwrap());
    let make = |name: &str, more: &[&str]| -> PathBuf {
        let image = scratch.path(name);
        let args = [
            "mkfs",
            "--sandbox=require",
            "-q",
            "--size",
            "64M",
            "--from",
            from,
        ];
        let mut command = bw(&image, &args);
        command.env("SOURCE_DATE_EPOCH", "1700000000");
        ok(command.args(more).arg(&image));
        image
    };
    let new_chunks = |image: &Path, store: &Path| {
        let index = format!("{}.caibx", image.display());
        let store = store.to_str().unwrap();
        let args = [
            "chunk", "make", "--json", "--store", store, "-o", &index, "IMAGE",
        ];
        json(image, &args)["new_chunks"].as_u64().unwrap()
    };
    let first = make("first.img", &[]);
    let all = new_chunks(&first, &store);
    // The build without a base is compared in a store of its own.
    let other = scratch.path("other");
    ok(Command::new("cp").arg("-a").arg(&store).arg(&other));
    // Some files grow, one goes, one comes in front of all others.
    for n in [20, 21, 22] {
        let file = tree.join(format!("{n:03}"));
        fs::write(file, content(n, 60_000)).unwrap();
    }
    fs::remove_file(tree.join("300")).unwrap();
    fs::write(tree.join("000-new"), content(999, 9_000)).unwrap();
    let address = format!("chunks:{}.caibx?store={}", first.display(), store.display());
    fs::remove_file(&first).unwrap();
    let over = make("over.img", &["--base", &address]);
    let alone = make("alone.img", &[]);
    ok(Command::new("e2fsck").arg("-fn").arg(&over));
    let tar = |image: &Path, name: &str| {
        let out = scratch.path(name);
        good(image, &["export", "-o", out.to_str().unwrap(), "IMAGE"]);
        fs::read(&out).unwrap()
    };
    assert!(tar(&over, "over.tar") == tar(&alone, "alone.tar"));
    let (over, alone) = (new_chunks(&over, &store), new_chunks(&alone, &other));
    println!("{all} chunks; {over} new ones over the base, {alone} without it");
    assert!(over < alone && over * 4 < all, "{over}, {alone} of {all}");
    let index = scratch.path("first.img.caibx");
    let mut command = bw(&scratch.path("x.img"), &["mkfs", "--size", "64M", "--base"]);
    refused(command.arg(&index).arg("x.img"), 2, &["needs a store"]);
}
