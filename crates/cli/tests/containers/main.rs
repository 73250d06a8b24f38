//! Container images as sources of `mkfs`: umoci and skopeo are the oracles for what an image is; damaged, hostile and
//! ambiguous ones are refused by name.

#[path = "../common/mod.rs"]
mod common;
mod endings;

use common::run::{bw, good, hash, refused, source_tree, with_input};
use common::snapshot::{Tree, assert_same, snapshot};
use common::{Scratch, check_clean, e2fsck_clean, have, ok, output, program};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn tar(dir: &Path) -> Vec<u8> {
    let out = output(
        Command::new("tar")
            .args(["--numeric-owner", "--xattrs", "-C"])
            .arg(dir)
            .args(["-cf", "-", "."]),
    );
    assert!(out.status.success(), "{out:?}");
    out.stdout
}

/// An image layout that a test writes blob by blob.
struct Layout {
    dir: PathBuf,
}

impl Layout {
    fn new(dir: PathBuf) -> Self {
        fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        fs::write(
            dir.join("oci-layout"),
            json!({"imageLayoutVersion": "1.0.0"}).to_string(),
        )
        .unwrap();
        Layout { dir }
    }

    fn blob(&self, kind: &str, bytes: &[u8]) -> Value {
        let digits = hex(bytes);
        fs::write(self.dir.join("blobs/sha256").join(&digits), bytes).unwrap();
        json!({"mediaType": kind, "digest": format!("sha256:{digits}"), "size": bytes.len()})
    }

    fn json(&self, kind: &str, value: &Value) -> Value {
        self.blob(kind, value.to_string().as_bytes())
    }

    /// An image of these layers for an architecture.
    fn image(&self, architecture: &str, layers: &[Layer<'_>]) -> Value {
        let ids: Vec<String> = layers
            .iter()
            .map(|(_, tar, _)| format!("sha256:{}", hex(tar)))
            .collect();
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": {"Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": ids}
        });
        let config = self.json(CONFIG, &config);
        let layers: Vec<Value> = layers
            .iter()
            .map(|(kind, tar, packed)| self.blob(kind, packed.unwrap_or(tar)))
            .collect();
        let manifest =
            json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        self.json(MANIFEST, &manifest)
    }

    fn index(&self, manifests: &[Value]) {
        let index = json!({"schemaVersion": 2, "manifests": manifests});
        fs::write(self.dir.join("index.json"), index.to_string()).unwrap();
    }

    fn source(&self, tag: &str) -> String {
        format!("oci:{}{tag}", self.dir.display())
    }
}

/// Its media type, the archive, and what is stored when that is not the archive itself.
type Layer<'a> = (&'a str, &'a [u8], Option<&'a [u8]>);

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

fn tagged(mut descriptor: Value, tag: &str) -> Value {
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
    descriptor
}

fn for_platform(mut descriptor: Value, os: &str, architecture: &str) -> Value {
    descriptor["platform"] = json!({"os": os, "architecture": architecture});
    descriptor
}

fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A directory with one file, as an archive.
fn one_file(scratch: &Scratch, name: &str, contents: &str) -> Vec<u8> {
    let dir = scratch.dir(&format!("one-{name}-{}", hex(contents.as_bytes())));
    fs::write(dir.join(name), contents).unwrap();
    tar(&dir)
}

/// Layers with all that layers do: whiteouts, opaque directories, replaced kinds, links to files below.
fn layers(scratch: &Scratch) -> Vec<PathBuf> {
    let first = source_tree(scratch, "first");
    for path in ["gone/deep", "kept/inside", "opaque/old", "was-dir/x"] {
        fs::create_dir_all(first.join(path).parent().unwrap()).unwrap();
        fs::write(first.join(path), path).unwrap();
    }
    fs::write(first.join("was-file"), "file").unwrap();
    symlink("kept", first.join("to-kept")).unwrap();
    let second = scratch.dir("second");
    for dir in ["kept", "opaque", "was-file"] {
        fs::create_dir(second.join(dir)).unwrap();
    }
    fs::write(second.join(".wh.gone"), "").unwrap();
    fs::write(second.join("kept/.wh.inside"), "").unwrap();
    fs::write(second.join("kept/other"), "other").unwrap();
    fs::write(second.join("opaque/.wh..wh..opq"), "").unwrap();
    fs::write(second.join("opaque/new"), "new").unwrap();
    fs::write(second.join("was-file/now"), "a directory").unwrap();
    fs::write(second.join("was-dir"), "a file").unwrap();
    fs::set_permissions(second.join("kept"), fs::Permissions::from_mode(0o2750)).unwrap();
    let third = scratch.dir("third");
    fs::write(third.join("gone"), "back").unwrap();
    fs::write(third.join("big"), vec![7; 100_000]).unwrap();
    [first, second, third]
        .iter()
        .map(|dir| {
            let file = dir.with_extension("tar");
            fs::write(&file, tar(dir)).unwrap();
            file
        })
        .collect()
}

/// A tree as far as a copy keeps it: hard links by the first of their names, no times or places of the copy's own.
fn copied(root: &Path) -> Tree {
    let mut tree = snapshot(root);
    tree.remove("");
    let mut numbers = std::collections::HashMap::new();
    for entry in tree.values_mut() {
        let next = numbers.len() as u64;
        entry.ino = *numbers.entry(entry.ino).or_insert(next);
        (entry.ctime, entry.btime) = ((0, 0), (0, 0));
        entry.blocks = 0;
        entry.data_map.clear();
    }
    tree
}

/// The tree of an image is the one that umoci unpacks, in each of the forms that skopeo makes of it, byte for byte.
#[test]
fn the_tree_is_the_one_that_container_tools_unpack() {
    if !have("umoci") || !have("skopeo") || !blockwright_oracles::is_root() {
        return;
    }
    let scratch = Scratch::new();
    let layout = scratch.path("layout");
    let image = format!("{}:v1", layout.display());
    ok(Command::new("umoci")
        .arg("init")
        .arg("--layout")
        .arg(&layout));
    ok(Command::new("umoci").args(["new", "--image", &image]));
    for layer in layers(&scratch) {
        ok(Command::new("umoci")
            .args(["raw", "add-layer", "--image", &image])
            .arg(layer));
    }
    let bundle = scratch.path("bundle");
    ok(Command::new("umoci")
        .args(["unpack", "--image", &image])
        .arg(&bundle));
    let copy = |to: String| {
        ok(Command::new("skopeo").args([
            "copy",
            "-q",
            "--insecure-policy",
            &format!("oci:{image}"),
            &to,
        ]));
        to
    };
    let path = |name: &str| scratch.path(name).display().to_string();
    let docker = copy(format!(
        "docker-archive:{}:example.org/thing:v1",
        path("docker.tar")
    ));
    let sources = [
        format!("oci:{image}"),
        copy(format!("oci-archive:{}:v1", path("oci.tar"))),
        docker.clone(),
        format!("docker-archive:{}", path("docker.tar")),
        "docker-archive:-".to_owned(),
    ];
    let mut hashes = Vec::new();
    for (n, source) in sources.iter().enumerate() {
        let file = scratch.path(&format!("{n}.img"));
        let mut mkfs = program();
        mkfs.env("SOURCE_DATE_EPOCH", "1700000000")
            .args(["mkfs", "-q", "--from", source])
            .arg(&file);
        if source.ends_with(":-") {
            let saved = fs::read(scratch.path("docker.tar")).unwrap();
            let out = with_input(&mut mkfs, &saved);
            assert!(out.status.success(), "{out:?}");
        } else {
            ok(&mut mkfs);
        }
        hashes.push(hash(&file));
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{sources:?}");
    // Without an epoch the times are the image's own.
    let file = scratch.path("tree.img");
    good(&file, &["mkfs", "-q", "--from", &sources[0], "IMAGE"]);
    check_clean(&file, "from an image");
    e2fsck_clean(&file, "from an image");
    let out = scratch.dir("out");
    good(&file, &["cp", "-a", "IMAGE:/.", out.to_str().unwrap()]);
    fs::remove_dir_all(out.join("lost+found")).unwrap();
    assert_same(
        "umoci and blockwright",
        &copied(&bundle.join("rootfs")),
        &copied(&out),
    );
    with_buildah(&scratch, "oci:layout:v1", |root| {
        assert_same("buildah and blockwright", &copied(root), &copied(&out));
    });
}

/// Shows the root of a container that buildah makes of an image, in a store of the test's own. The image is named from the
/// test's folder: buildah makes a name of the path, which has no capital letters then.
fn with_buildah(scratch: &Scratch, image: &str, look: impl FnOnce(&Path)) {
    if !have("buildah") {
        return;
    }
    let policy = scratch.path("policy.json");
    fs::write(
        &policy,
        json!({"default": [{"type": "insecureAcceptAnything"}]}).to_string(),
    )
    .unwrap();
    let buildah = |args: &[&str]| {
        let store = |name: &str| scratch.path(name).display().to_string();
        let mut command = Command::new("buildah");
        command
            .current_dir(scratch.path("."))
            .args(["--root", &store("store"), "--runroot", &store("run")])
            .args(["--storage-driver", "vfs"])
            .args(args);
        ok(&mut command).trim().to_owned()
    };
    let policy = policy.display().to_string();
    let from = [
        "from",
        "-q",
        "--isolation",
        "chroot",
        "--signature-policy",
        &policy,
        image,
    ];
    let container = buildah(&from);
    let root = buildah(&["mount", &container]);
    look(Path::new(&root));
    buildah(&["umount", &container]);
    buildah(&["rm", &container]);
}

#[test]
fn compressed_layers_tags_and_platforms() {
    let scratch = Scratch::new();
    let layout = Layout::new(scratch.path("layout"));
    let below = one_file(&scratch, "below", "below");
    let make = |architecture: &str| {
        let above = one_file(&scratch, "for", architecture);
        let mut packed = vec![("+gzip", "gzip", above.clone())];
        if have("zstd") {
            packed.push(("+zstd", "zstd", above.clone()));
        }
        let packed: Vec<(String, Vec<u8>, Vec<u8>)> = packed
            .into_iter()
            .map(|(suffix, tool, tar)| {
                let out = with_input(Command::new(tool).arg("-c"), &tar);
                assert!(out.status.success(), "{out:?}");
                (format!("{LAYER}{suffix}"), tar, out.stdout)
            })
            .collect();
        let mut layers = vec![(LAYER, &below[..], None)];
        layers.extend(
            packed
                .iter()
                .map(|(kind, tar, packed)| (&**kind, &tar[..], Some(&packed[..]))),
        );
        layout.image(architecture, &layers)
    };
    let (host, other) = (host_architecture(), "s390x");
    let mut list = vec![
        for_platform(make(other), "linux", other),
        for_platform(make(host), "linux", host),
    ];
    // What build tools add beside the images.
    list.push(for_platform(make("unknown"), "unknown", "unknown"));
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": list});
    let index = layout.json(INDEX, &index);
    layout.index(&[tagged(index, "many"), tagged(make(other), "single")]);
    let image = scratch.path("disk.img");
    let made = |args: &[&str]| {
        let _ = fs::remove_file(&image);
        good(&image, &[&["mkfs", "-q", "IMAGE"][..], args].concat());
        check_clean(&image, "from an image");
        assert_eq!(good(&image, &["cat", "IMAGE:/below"]), "below");
        good(&image, &["cat", "IMAGE:/for"])
    };
    let (many, single) = (layout.source(":many"), layout.source(":single"));
    assert_eq!(made(&["--from", &many]), host);
    assert_eq!(made(&["--from", &many, "--platform", "linux/s390x"]), other);
    assert_eq!(made(&["--from", &single, "-t", "f2fs"]), other);
    assert_eq!(made(&["--from", &single, "--keep-config"]), other);
    let config = good(&image, &["cat", "IMAGE:/.blockwright/config.json"]);
    let config: Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["config"]["Cmd"][0], "/bin/sh");
    let refuse = |args: &[&str], code: i32, says: &[&str]| {
        let _ = fs::remove_file(&image);
        refused(
            &mut bw(&image, &[&["mkfs", "IMAGE"][..], args].concat()),
            code,
            says,
        );
        assert!(!image.exists(), "{args:?}");
    };
    let none = layout.source("");
    refuse(&["--from", &none], 1, &["several images", "many, single"]);
    let absent = layout.source(":absent");
    refuse(
        &["--from", &absent],
        1,
        &["no image `absent`", "many, single"],
    );
    refuse(
        &["--from", &many, "--platform", "linux/riscv64"],
        1,
        &[
            "platform linux/riscv64",
            &format!("linux/{host}, linux/s390x"),
        ],
    );
    refuse(
        &["--from", &single, "--platform", "linux/riscv64"],
        1,
        &["platform linux/riscv64", "linux/s390x"],
    );
    refuse(
        &["--from", &many, "--platform", "linux"],
        2,
        &["`linux` is not a platform"],
    );
    refuse(
        &["--from", "oci:/no/such/layout"],
        1,
        &["/no/such/layout: no such file"],
    );
    let scratch_dir = format!("oci:{}", scratch.path("").display());
    refuse(&["--from", &scratch_dir], 1, &["not an OCI image layout"]);
}

/// Each of these layouts is wrong in one way, and each is refused with what is wrong.
#[test]
fn damaged_and_hostile_images_are_refused_by_name() {
    let scratch = Scratch::new();
    let layer = one_file(&scratch, "file", "contents");
    let host = host_architecture();
    let image = scratch.path("disk.img");
    let mut n = 0;
    let mut refuse = |says: &[&str], build: &dyn Fn(&Layout)| {
        n += 1;
        let layout = Layout::new(scratch.path(&format!("layout{n}")));
        layout.index(&[layout.image(host, &[(LAYER, &layer, None)])]);
        build(&layout);
        let source = layout.source("");
        refused(
            &mut bw(&image, &["mkfs", "--from", &source, "IMAGE"]),
            1,
            says,
        );
        assert!(!image.exists(), "{says:?}");
    };
    let blobs = |layout: &Layout, wanted: &dyn Fn(&[u8]) -> bool| -> PathBuf {
        let dir = layout.dir.join("blobs/sha256");
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| fs::read(path).is_ok_and(|bytes| wanted(&bytes)))
            .unwrap()
    };
    let the_layer = |layout: &Layout| blobs(layout, &|bytes| bytes == layer);
    // One byte of the contents is another, and the tar archive is still good.
    refuse(&["layer 1 of 1", "the digest is sha256:"], &|layout| {
        let path = the_layer(layout);
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(8).position(|w| w == b"contents").unwrap();
        bytes[at] = b'C';
        fs::write(path, bytes).unwrap();
    });
    refuse(&["bytes, and the image says"], &|layout| {
        let path = the_layer(layout);
        let mut bytes = fs::read(&path).unwrap();
        bytes.push(0);
        fs::write(path, bytes).unwrap();
    });
    refuse(&["blobs/sha256/", "no such file"], &|layout| {
        fs::remove_file(the_layer(layout)).unwrap();
    });
    // Right bytes, but outside of the layout.
    refuse(&["a link in an image layout is not followed"], &|layout| {
        let (path, away) = (the_layer(layout), layout.dir.with_extension("away"));
        fs::rename(&path, &away).unwrap();
        symlink(&away, &path).unwrap();
    });
    refuse(&["a link in an image layout is not followed"], &|layout| {
        let (dir, away) = (layout.dir.join("blobs"), layout.dir.with_extension("away"));
        fs::rename(&dir, &away).unwrap();
        symlink(&away, &dir).unwrap();
    });
    refuse(&["not a regular file"], &|layout| {
        let path = the_layer(layout);
        fs::remove_file(&path).unwrap();
        ok(Command::new("mkfifo").arg(&path));
    });
    refuse(&["is not a digest"], &|layout| {
        layout.index(&[
            json!({"mediaType": MANIFEST, "digest": "sha256:../../../etc/passwd", "size": 1}),
        ]);
    });
    refuse(&["the digest is", "blobs/sha256"], &|layout| {
        let path = blobs(layout, &|bytes| bytes.starts_with(b"{\"config\":{\"d"));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(
            &path,
            text.replace("\"schemaVersion\":2", "\"schemaVersion\":3"),
        )
        .unwrap();
    });
    refuse(&["index.json", "not what an image has here"], &|layout| {
        fs::write(layout.dir.join("index.json"), "[1, 2").unwrap();
    });
    refuse(&["index.json", "not what an image has here"], &|layout| {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let text = format!("{{\"manifests\": {deep}}}");
        fs::write(layout.dir.join("index.json"), text).unwrap();
    });
    refuse(&["index.json", "too many for JSON"], &|layout| {
        let file = fs::File::create(layout.dir.join("index.json")).unwrap();
        file.set_len(1 << 40).unwrap();
    });
    refuse(&["an image layout of version 2.0.0"], &|layout| {
        let text = json!({"imageLayoutVersion": "2.0.0"}).to_string();
        fs::write(layout.dir.join("oci-layout"), text).unwrap();
    });
    refuse(&["no image"], &|layout| layout.index(&[]));
    refuse(&["indexes lead to one another"], &|layout| {
        let mut inner = layout.image(host, &[]);
        for _ in 0..6 {
            let index = json!({"manifests": [for_platform(inner, "linux", host)]});
            inner = layout.json(INDEX, &index);
        }
        layout.index(&[inner]);
    });
    refuse(&["a layer of type application/x-encrypted"], &|layout| {
        layout.index(&[layout.image(host, &[("application/x-encrypted", &layer, None)])]);
    });
    refuse(&["artifact of type application/vnd.cncf.helm"], &|layout| {
        let config = layout.blob("application/vnd.cncf.helm.config.v1+json", b"{}");
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": []});
        layout.index(&[layout.json(MANIFEST, &manifest)]);
    });
    refuse(
        &["a manifest of type application/vnd.docker.distribution.manifest.v1"],
        &|layout| {
            let mut image = layout.image(host, &[(LAYER, &layer, None)]);
            image["mediaType"] = json!("application/vnd.docker.distribution.manifest.v1+json");
            layout.index(&[image]);
        },
    );
    refuse(
        &["the manifest has 1 layers, and the configuration 0"],
        &|layout| {
            let config = json!({"os": "linux", "architecture": host, "rootfs": {"diff_ids": []}});
            let config = layout.json(CONFIG, &config);
            let blob = layout.blob(LAYER, &layer);
            let manifest = json!({"config": config, "layers": [blob]});
            layout.index(&[layout.json(MANIFEST, &manifest)]);
        },
    );
    // The blob is what the manifest says, but unpacks to something else than the configuration says.
    for tool in [None, Some("gzip")] {
        refuse(&["layer 1 of 1", "the digest is"], &|layout| {
            let other = one_file(&scratch, "file", "other");
            let id = format!("sha256:{}", hex(&other));
            let config = json!({"os": "linux", "architecture": host, "rootfs": {"diff_ids": [id]}});
            let config = layout.json(CONFIG, &config);
            let stored = match tool {
                Some(tool) => with_input(Command::new(tool).arg("-c"), &layer).stdout,
                None => layer.clone(),
            };
            let blob = layout.blob(LAYER, &stored);
            let manifest = json!({"config": config, "layers": [blob]});
            layout.index(&[layout.json(MANIFEST, &manifest)]);
        });
    }
    refuse(&["layer 1 of 1", "not a tar archive"], &|layout| {
        layout.index(&[layout.image(host, &[(LAYER, &[b'x'; 4096], None)])]);
    });
}

/// `manifest.json` names members of the archive, wherever in it they are, and nothing else.
#[test]
fn archives_of_docker_save() {
    let scratch = Scratch::new();
    let layer = one_file(&scratch, "file", "contents");
    let image = scratch.path("disk.img");
    let config = json!({
        "os": "linux", "architecture": host_architecture(),
        "rootfs": {"diff_ids": [format!("sha256:{}", hex(&layer))]}
    })
    .to_string();
    let config_name = format!("{}.json", hex(config.as_bytes()));
    let mut n = 0;
    let mut save = |manifest: Value, build: &dyn Fn(&Path)| {
        n += 1;
        let dir = scratch.dir(&format!("save{n}"));
        fs::write(dir.join(&config_name), &config).unwrap();
        fs::create_dir(dir.join("aa")).unwrap();
        fs::write(dir.join("aa/layer.tar"), &layer).unwrap();
        fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
        build(&dir);
        let file = scratch.path(&format!("save{n}.tar"));
        fs::write(&file, tar(&dir)).unwrap();
        file.display().to_string()
    };
    let entry = |layer: &str, tag: &str| json!({"Config": config_name, "RepoTags": [tag], "Layers": [layer]});
    let nothing: &dyn Fn(&Path) = &|_| ();
    let made = |source: &str| {
        let _ = fs::remove_file(&image);
        good(&image, &["mkfs", "-q", "--from", source, "IMAGE"]);
        assert_eq!(good(&image, &["cat", "IMAGE:/file"]), "contents");
        let _ = fs::remove_file(&image);
    };
    let refuse = |source: &str, says: &[&str]| {
        refused(
            &mut bw(&image, &["mkfs", "--from", source, "IMAGE"]),
            1,
            says,
        );
        assert!(!image.exists(), "{source}");
    };
    let one = json!([entry("aa/layer.tar", "thing:latest")]);
    let good_one = save(one.clone(), nothing);
    made(&format!("docker-archive:{good_one}"));
    made(&format!("docker-archive:{good_one}:thing"));
    made(&format!("docker-archive:{good_one}:thing:latest"));
    refuse(
        &format!("docker-archive:{good_one}:else"),
        &["no image `else`", "thing:latest"],
    );
    // Older versions linked a layer that an image before had.
    let linked = save(json!([entry("bb/layer.tar", "a:b")]), &|dir| {
        fs::create_dir(dir.join("bb")).unwrap();
        symlink("../aa/layer.tar", dir.join("bb/layer.tar")).unwrap();
    });
    made(&format!("docker-archive:{linked}"));
    let packed = scratch.path("packed.tar.gz");
    let bytes = with_input(
        Command::new("gzip").arg("-c"),
        &fs::read(&good_one).unwrap(),
    )
    .stdout;
    fs::write(&packed, bytes).unwrap();
    made(&format!("docker-archive:{}", packed.display()));
    let two = save(
        json!([entry("aa/layer.tar", "a:1"), entry("aa/layer.tar", "a:2")]),
        nothing,
    );
    refuse(
        &format!("docker-archive:{two}"),
        &["several images", "a:1, a:2"],
    );
    made(&format!("docker-archive:{two}:a:2"));
    let escapes = save(json!([entry("../../etc/passwd", "a:1")]), nothing);
    refuse(
        &format!("docker-archive:{escapes}"),
        &["leads out of the archive"],
    );
    let away = save(json!([entry("cc", "a:1")]), &|dir| {
        symlink("/etc/passwd", dir.join("cc")).unwrap();
    });
    refuse(&format!("docker-archive:{away}"), &["cc", "no such member"]);
    let loops = save(json!([entry("cc", "a:1")]), &|dir| {
        symlink("dd", dir.join("cc")).unwrap();
        symlink("cc", dir.join("dd")).unwrap();
    });
    refuse(
        &format!("docker-archive:{loops}"),
        &["cc", "too many links"],
    );
    let changed = save(one.clone(), &|dir| {
        let text = config.replace("linux", "linuX");
        fs::write(dir.join(&config_name), text).unwrap();
    });
    refuse(
        &format!("docker-archive:{changed}"),
        &[&config_name, "the digest is"],
    );
    let layer_changed = save(one, &|dir| {
        fs::write(
            dir.join("aa/layer.tar"),
            one_file(&scratch, "file", "others"),
        )
        .unwrap();
    });
    refuse(
        &format!("docker-archive:{layer_changed}"),
        &["layer 1 of 1", "the digest is"],
    );
    let plain = scratch.path("plain.tar");
    fs::write(&plain, &layer).unwrap();
    refuse(
        &format!("docker-archive:{}", plain.display()),
        &["not an archive of docker save"],
    );
}
