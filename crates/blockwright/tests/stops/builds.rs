//! Builds that a watch stops: each long step ends with `Interrupted`, and nothing is left that looks like a volume.

use blockwright::build::{
    BuildProgress, ContainerImage, EntryPolicy, FileContexts, JournalBuilder,
};
use blockwright::device::{DeviceExt, MemoryDevice, SharedDevice};
use blockwright::ext4::FsType;
use blockwright::reshape::ExternalJournal;
use blockwright::{ErrorKind, Format, Result, Volume, VolumeBuilder};
use blockwright_device::DevOffset;
use blockwright_test_support::testing::{have, run_ok};
use sha2::{Digest, Sha256};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A build of one large file stops while the file is read: for the UUID of reproducible volumes, for fs-verity, and from a stream.
#[test]
fn builds_while_a_large_file_is_read() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (tree, tar) = (dir.path().join("tree"), dir.path().join("tar"));
    let image = dir.path().join("image");
    std::fs::create_dir(&tree).expect("made");
    std::fs::write(tree.join("large"), vec![7; 5 << 20]).expect("written");
    let text = |path: &Path| path.display().to_string();
    run_ok("tar", &["-C", &text(&tree), "-cf", &text(&tar), "large"]);
    let stream = || std::fs::File::open(&tar).expect("opened");
    let new = || VolumeBuilder::new().size_auto(0);
    let policy = EntryPolicy::new().fsverity("large").expect("a pattern");
    let builders = [
        ("UUID", new().from(&tree).source_date_epoch(1)),
        ("fs-verity", new().from(&tree).entries(policy)),
        ("stream", new().from_reader(stream(), "tar")),
    ];
    for (what, builder) in builders {
        let watch = |step: &BuildProgress| match step {
            BuildProgress::Reading { .. } => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let error = builder.watch(watch).create(&image).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{what}: {error}");
        assert!(!image.exists(), "{what}");
    }
}

/// A build stops at the last piece that is copied, too: behind it only metadata is written. Of one small file there is one piece.
#[test]
fn builds_at_the_last_piece() {
    let dir = tempfile::tempdir().expect("a folder");
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    std::fs::create_dir(&tree).expect("made");
    for (name, bytes) in [("small", 100), ("middle", 3 << 20)] {
        std::fs::write(tree.join(name), vec![7; bytes]).expect("written");
        for format in [Format::Ext4, Format::F2fs] {
            let build = |stop: usize| {
                let pieces = Arc::new(AtomicUsize::new(0));
                let seen = Arc::clone(&pieces);
                let watch = move |step: &BuildProgress| match step {
                    BuildProgress::Copied { .. }
                        if seen.fetch_add(1, Ordering::Relaxed) + 1 == stop =>
                    {
                        ControlFlow::Break(())
                    }
                    _ => ControlFlow::Continue(()),
                };
                let builder = VolumeBuilder::new().format(format).size_auto(0);
                let made = builder.from(&tree).watch(watch).create(&image);
                (made, pieces.load(Ordering::Relaxed))
            };
            let (made, pieces) = build(usize::MAX);
            made.expect("made");
            std::fs::remove_file(&image).expect("removed");
            assert!(pieces > 0, "{format}, {name}");
            let (stopped, _) = build(pieces);
            let what = format!("{format}, {name}, stopped at {pieces}");
            let error = stopped.expect_err(&what);
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{what}: {error}");
            assert!(!image.exists(), "{what}");
        }
        std::fs::remove_file(tree.join(name)).expect("removed");
    }
}

/// A build stops at whichever step breaks, and the same build finishes afterwards; the last step comes too late.
#[test]
fn builds() {
    let dir = tempfile::tempdir().expect("a folder");
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    std::fs::create_dir(&tree).expect("made");
    for n in 0..600 {
        std::fs::write(tree.join(format!("small-{n}")), b"x").expect("written");
    }
    for n in 0..3 {
        std::fs::write(tree.join(format!("large-{n}")), vec![n; 40 << 20]).expect("written");
    }
    type Step = fn(&BuildProgress) -> bool;
    let steps: [(&str, Step); 3] = [
        ("reading", |step| {
            matches!(step, BuildProgress::Reading { .. })
        }),
        ("planned", |step| {
            matches!(step, BuildProgress::Planned { .. })
        }),
        ("copied", |step| {
            matches!(step, BuildProgress::Copied { .. })
        }),
    ];
    let build = |format, stops: Step| {
        let watch = move |step: &BuildProgress| match stops(step) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let builder = VolumeBuilder::new().format(format).size_auto(0);
        builder.from(&tree).watch(watch).create(&image)
    };
    for format in [Format::Ext4, Format::F2fs] {
        for (name, stops) in steps {
            let error = build(format, stops).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{name}: {error}");
            assert!(!image.exists(), "{format}: {name}");
        }
        let late: Step = |step| matches!(step, BuildProgress::Finishing);
        build(format, late).expect("made");
        // An image that was there is untouched while the sources are read, and then no volume.
        let (_, reading) = steps[0];
        build(format, reading).expect_err("stopped");
        assert!(Volume::open_read_only(&image).is_ok(), "{format}");
        for (name, stops) in &steps[1..] {
            build(format, *stops).expect_err(name);
            assert!(Volume::open_read_only(&image).is_err(), "{format}: {name}");
        }
        build(format, |_| false).expect("made");
        let volume = Volume::open_read_only(&image).expect("opened");
        assert_eq!(volume.read("/small-599").expect("read"), b"x");
        drop(volume);
        std::fs::remove_file(&image).expect("removed");
    }
}

/// Whether a step is told to ask about the going on alone.
fn asks(step: &BuildProgress) -> bool {
    matches!(
        step,
        BuildProgress::Reading { files: 0 } | BuildProgress::Copied { bytes: 0, .. }
    )
}

/// Makes the image with a watch that breaks at question `stop` (from 1). The result, and the questions.
fn asked(
    builder: VolumeBuilder,
    stop: usize,
    make: impl Fn(&VolumeBuilder) -> Result<()>,
) -> (Result<()>, usize) {
    let questions = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&questions);
    let builder = builder.watch(move |step| {
        match asks(step) && seen.fetch_add(1, Ordering::Relaxed) + 1 == stop {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    (make(&builder), questions.load(Ordering::Relaxed))
}

/// Stops the making of an image at each question; there are at least `least` of them.
fn stopped_at_each(what: &str, least: usize, builder: impl Fn() -> VolumeBuilder) {
    let dir = tempfile::tempdir().expect("a folder");
    let image = dir.path().join("image");
    let make = |builder: &VolumeBuilder| builder.create(&image).map(drop);
    let (made, questions) = asked(builder(), usize::MAX, make);
    made.unwrap_or_else(|e| panic!("{what}: {e}"));
    println!("{what}: {questions} questions.");
    assert!(questions >= least, "{what}: {questions} questions");
    std::fs::remove_file(&image).expect("removed");
    for stop in 1..=questions {
        let (stopped, asked) = asked(builder(), stop, make);
        let error = stopped.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{what}: {error}");
        assert_eq!(asked, stop, "{what}: asked after the stop");
        let left = std::fs::read_dir(dir.path()).expect("a folder").count();
        assert_eq!(left, 0, "{what}: something is left");
    }
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

/// A container image of one plain layer of 5 MiB, as an OCI layout and as `docker save` writes it.
fn container(dir: &Path) -> (PathBuf, PathBuf) {
    let tree = dir.join("tree");
    std::fs::create_dir(&tree).expect("made");
    std::fs::write(tree.join("large"), vec![7; 5 << 20]).expect("written");
    let text = |path: &Path| path.display().to_string();
    let layer = dir.join("layer.tar");
    run_ok("tar", &["-C", &text(&tree), "-cf", &text(&layer), "large"]);
    let layer = std::fs::read(layer).expect("read");
    let (oci, docker) = (dir.join("oci"), dir.join("docker"));
    std::fs::create_dir_all(oci.join("blobs/sha256")).expect("made");
    std::fs::create_dir(&docker).expect("made");
    let processor = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = format!(
        r#"{{"architecture":"{processor}","os":"linux","rootfs":{{"type":"layers","diff_ids":["sha256:{}"]}}}}"#,
        sha256(&layer)
    );
    let blob = |kind: &str, bytes: &[u8]| {
        let digits = sha256(bytes);
        std::fs::write(oci.join("blobs/sha256").join(&digits), bytes).expect("written");
        let size = bytes.len();
        format!(
            r#"{{"mediaType":"application/vnd.oci.image.{kind}","digest":"sha256:{digits}","size":{size}}}"#
        )
    };
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{},"layers":[{}]}}"#,
        blob("config.v1+json", config.as_bytes()),
        blob("layer.v1.tar", &layer)
    );
    let manifest = blob("manifest.v1+json", manifest.as_bytes());
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{manifest}]}}"#);
    std::fs::write(oci.join("index.json"), index).expect("written");
    std::fs::write(oci.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("written");
    std::fs::write(docker.join("layer.tar"), &layer).expect("written");
    std::fs::write(docker.join("config.json"), &config).expect("written");
    let saved = r#"[{"Config":"config.json","RepoTags":["x:1"],"Layers":["layer.tar"]}]"#;
    std::fs::write(docker.join("manifest.json"), saved).expect("written");
    let archive = dir.join("docker.tar");
    run_ok("tar", &["-C", &text(&docker), "-cf", &text(&archive), "."]);
    (oci, archive)
}

/// While the digest of a container image's layer is compared, as it is stored and unpacked.
#[test]
fn builds_while_digests_are_compared() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (oci, archive) = container(dir.path());
    let image =
        |image: &ContainerImage| VolumeBuilder::new().size_auto(0).from_image(image.clone());
    let layout = ContainerImage::OciLayout {
        dir: oci,
        tag: None,
    };
    let saved = ContainerImage::DockerArchive {
        file: archive,
        name: None,
    };
    stopped_at_each("an OCI layout", 5, || image(&layout));
    stopped_at_each("of docker save", 5, || image(&saved));
}

/// While rules are applied, while labels are looked for, and while an earlier build is read.
#[test]
fn builds_between_entries_and_rules() {
    let dir = tempfile::tempdir().expect("a folder");
    let (one, many) = (dir.path().join("one"), dir.path().join("many"));
    std::fs::create_dir(&one).expect("made");
    std::fs::create_dir(&many).expect("made");
    std::fs::write(one.join("file"), b"x").expect("written");
    for n in 0..600 {
        std::fs::write(many.join(n.to_string()), b"").expect("written");
    }
    let new = || VolumeBuilder::new().size_auto(0);
    let lines: String = (0..100).map(|n| format!("/.*[{n}]x label\n")).collect();
    let labels = || {
        let contexts = FileContexts::parse(&lines).expect("lines");
        new()
            .from(&one)
            .entries(EntryPolicy::new().file_contexts(contexts))
    };
    stopped_at_each("labels", 4, labels);
    stopped_at_each("rules", 1, || new().from(&many));
    let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
    VolumeBuilder::new()
        .from(&many)
        .create_on(&device)
        .expect("made");
    // Rules, the digest for the UUID, and the base.
    let over = || new().from(&many).source_date_epoch(1).base(device.clone());
    stopped_at_each("a base", 3, over);
}

/// While a device's old contents are wiped: places of the journal, of inode tables, of f2fs's tables.
#[test]
fn builds_while_a_device_is_wiped() {
    let new = VolumeBuilder::new;
    type Make = fn() -> VolumeBuilder;
    let kinds: [(&str, usize, Make); 3] = [
        ("a journal", 4, || {
            VolumeBuilder::new().journal_bytes(64 << 20)
        }),
        ("inode tables", 2, || {
            VolumeBuilder::new().fs_type(FsType::Ext2)
        }),
        ("f2fs", 1, || VolumeBuilder::new().format(Format::F2fs)),
    ];
    for (what, least, builder) in kinds {
        let fresh = || -> SharedDevice {
            let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
            new().create_on(&device).expect("an old volume");
            device
        };
        let device = fresh();
        let make = |device: &SharedDevice| {
            let device = device.clone();
            move |builder: &VolumeBuilder| builder.create_on(&device).map(drop)
        };
        let (made, questions) = asked(builder(), usize::MAX, make(&device));
        made.expect(what);
        assert!(questions >= least, "{what}: {questions} questions");
        for stop in [1, questions] {
            let device = fresh();
            let error = asked(builder(), stop, make(&device)).0.expect_err(what);
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{what}: {error}");
            let opened = Volume::options().read_only(true).open_device(device);
            assert!(opened.is_err(), "{what}: half a volume can be opened");
        }
    }
}

/// The making of a journal on a device of its own stops before anything is written, while its log is wiped, and before its superblock.
#[test]
fn a_journal_on_a_device() {
    let bytes = 48 << 20;
    let device = || -> SharedDevice { Arc::new(MemoryDevice::new(bytes)) };
    let make = |device: &SharedDevice, stop: usize| {
        let steps = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&steps);
        let builder = JournalBuilder::new().watch(move |_| {
            match seen.fetch_add(1, Ordering::Relaxed) + 1 == stop {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        (builder.create_on(device), steps.load(Ordering::Relaxed))
    };
    let whole = device();
    let (made, steps) = make(&whole, usize::MAX);
    made.expect("made");
    assert!(steps >= 4, "{steps} steps");
    let head = |device: &SharedDevice| device.read_buf(DevOffset(0), 4096).expect("read").to_vec();
    for stop in 1..=steps {
        // Over an earlier journal.
        let device = device();
        JournalBuilder::new().create_on(&device).expect("a journal");
        let before = head(&device);
        let error = make(&device, stop).0.expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{stop}: {error}");
        assert_eq!(head(&device) == before, stop == 1, "{stop}");
        let journal = ExternalJournal { device, number: 0 };
        assert_eq!(journal.read().is_ok(), stop == 1, "{stop}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("log.img");
    let builder = JournalBuilder::new().size(bytes).watch(|step| match step {
        BuildProgress::Copied { .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    let error = builder.create(&path).expect_err("stopped");
    assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    assert!(!path.exists());

    // An image that would become longer keeps its length.
    let before = vec![0x5A; 5_000_000];
    for stop in 1..=steps {
        std::fs::write(&path, &before).expect("written");
        let seen = AtomicUsize::new(0);
        let builder = JournalBuilder::new().size(bytes).watch(move |_| {
            match seen.fetch_add(1, Ordering::Relaxed) + 1 == stop {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let error = builder.create(&path).expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{stop}: {error}");
        let after = std::fs::read(&path).expect("read");
        assert_eq!(after.len(), before.len(), "{stop}");
        assert_eq!(after == before, stop == 1, "{stop}");
    }
    // As when it fails in another way.
    std::fs::write(&path, &before).expect("written");
    let builder = JournalBuilder::new().size(bytes).block_size(3000);
    builder.create(&path).expect_err("no such block size");
    assert!(std::fs::read(&path).expect("read") == before);
}
