//! Where and how the library is built: combinations of features, the oldest compiler, other hosts, the size of a reader.

use crate::skipped::skip;
use crate::tools::{cargo_path, host, is_installed, output};
use crate::{target_dir, workspace};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Features of the library that are compiled together, because one has code for the other. Each is also compiled alone.
const PAIRS: &[&str] = &[
    "ext4,f2fs",
    "ext4,casefold",
    "ext4,resize",
    "f2fs,casefold",
    "f2fs,zstd",
    "disk,zstd",
    "f2fs,disk,ruzstd",
    "build,gzip",
    "build,zstd",
    "build,xz",
];

/// What the library has on every host, beside the features that each target needs a C compiler for, and those of one host.
const PORTABLE: &[&str] = &[
    "ext4", "f2fs", "casefold", "build", "resize", "disk", "verity", "gzip", "ruzstd",
];

/// What a reader of ext4 alone may pull, itself and our own crates counted.
const READER_CRATES_MAX: usize = 24;

/// The features of rustix that such a reader may need. With those of the whole program it takes twice as long to compile.
const READER_RUSTIX: &str = "alloc,default,fs,std";

/// Hosts beside the one at hand.
const TARGETS: &[&str] = &[
    "x86_64-pc-windows-gnu",
    "aarch64-apple-darwin",
    "x86_64-unknown-freebsd",
    "aarch64-unknown-linux-musl",
    "wasm32-wasip1",
];

/// Everything here that needs compilers. What is wrong, in sentences.
pub(crate) fn check() -> Vec<String> {
    let mut faults = Vec::new();
    match library_features() {
        Ok(features) => {
            let alone = features.iter().map(String::as_str);
            for list in alone.chain([""]).chain(PAIRS.iter().copied()) {
                let what = format!("the library with the features [{list}]");
                faults.extend(library(&what, list));
            }
        }
        Err(told) => faults.push(told),
    }
    let maker = ["--package", "blockwright-web", "--bins"];
    faults.extend(compile("the program that makes the web page", &maker));
    faults.extend(reader());
    faults.extend(oldest().err());
    faults.extend(static_program());
    let installed = output(Command::new("rustup").args(["target", "list", "--installed"]));
    for target in TARGETS {
        if installed
            .as_ref()
            .is_ok_and(|list| list.lines().any(|t| t == *target))
        {
            faults.extend(portable(target));
        } else {
            skip(&format!("{target}: rustup target add {target}"));
        }
    }
    faults
}

/// What cargo says of the workspace's own packages.
pub(crate) fn own_packages() -> Result<Value, String> {
    let mut command = Command::new(cargo_path());
    command.args(["metadata", "--no-deps", "--format-version", "1"]);
    let told = output(&mut command)?;
    serde_json::from_str(&told).map_err(|e| format!("cargo metadata: {e}"))
}

fn own_package<'a>(metadata: &'a Value, name: &str) -> Result<&'a Value, String> {
    let packages = metadata["packages"].as_array();
    let found = packages.and_then(|all| all.iter().find(|p| p["name"] == name));
    found.ok_or_else(|| format!("cargo metadata: no package {name}"))
}

/// The features that the library's manifest has, but for the default ones.
fn library_features() -> Result<Vec<String>, String> {
    let metadata = own_packages()?;
    let features = own_package(&metadata, "blockwright")?["features"].as_object();
    let features = features.ok_or("cargo metadata: no features")?;
    let names = features.keys().filter(|name| *name != "default");
    Ok(names.cloned().collect())
}

/// Dependencies of the devices' optional back ends that other hosts would get as well: each back end is of one host.
fn back_ends(metadata: &Value) -> Result<Vec<String>, String> {
    let device = own_package(metadata, "blockwright-device")?;
    let dependencies = device["dependencies"].as_array();
    let dependencies = dependencies.ok_or("cargo metadata: no dependencies")?;
    let everywhere = dependencies
        .iter()
        .filter(|d| d["optional"] == true && d["target"].is_null());
    let fault = |d: &Value| {
        let name = d["name"].as_str().unwrap_or_default();
        format!("device: {name} is a dependency on every host, and its back end of one host")
    };
    Ok(everywhere.map(fault).collect())
}

fn library(what: &str, features: &str) -> Option<String> {
    compile(what, &["--package", "blockwright", "--features", features])
}

/// The library and the checker for another host, with ext4 alone and with all that is portable; the offline program; and for WASI the web page's module.
fn portable(target: &str) -> Vec<String> {
    let on = ["--target", target];
    let library = |features: &[&str]| {
        let listed: Vec<String> = features
            .iter()
            .map(|feature| format!("blockwright/{feature}"))
            .collect();
        let listed = listed.join(",");
        let what = format!("the library for {target} with the features {features:?}");
        let packages = ["--package", "blockwright", "--package", "blockwright-check"];
        compile(
            &what,
            &[&on[..], &packages[..], &["--features", &listed]].concat(),
        )
    };
    let mut faults: Vec<String> = [&["ext4"][..], PORTABLE]
        .into_iter()
        .filter_map(library)
        .collect();
    let what = format!("the offline program for {target}");
    let program = ["--package", "blockwright-offline"];
    faults.extend(compile(&what, &[&on[..], &program[..]].concat()));
    if target.ends_with("-wasip1") {
        let module = ["--package", "blockwright-web", "--lib"];
        let module = [&module[..], &["--features", "module"]].concat();
        let what = "the module of the web page";
        faults.extend(compile(what, &[&on[..], &module[..]].concat()));
    }
    faults
}

/// The program as `cargo xtask dist` builds it, with musl, whose types are not all those of glibc.
fn static_program() -> Option<String> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"])).unwrap_or_default();
    let libraries = Path::new(sysroot.trim()).join("lib/rustlib").join(&target);
    if !libraries.is_dir() || !is_installed("musl-gcc") {
        skip("the static program: sh scripts/setup.sh dist");
        return None;
    }
    let of = ["--package", "blockwright-cli", "--target", &target];
    compile("the static program", &of)
}

fn compile(what: &str, of: &[&str]) -> Option<String> {
    let mut command = Command::new(cargo_path());
    command
        .args(["check", "--quiet", "--no-default-features"])
        .args(of);
    command.env("RUSTFLAGS", "--deny warnings");
    // Other flags would compile everything again for the next command.
    command.arg("--target-dir").arg(target_dir().join("hosts"));
    let told = output(&mut command).err()?;
    Some(format!("{what}: {told}"))
}

/// The toolchain of the `rust-version` in a manifest.
fn oldest_toolchain(manifest: &str) -> Result<String, String> {
    let mut lines = manifest.lines().map(|line| line.split('=').map(str::trim));
    let value =
        lines.find_map(|mut line| (line.next() == Some("rust-version")).then(|| line.next()));
    let version = value.flatten().map(|value| value.trim_matches('"'));
    let version = version.ok_or("the workspace's manifest has no rust-version")?;
    let numbers: Vec<&str> = version.split('.').collect();
    if !numbers.iter().all(|n| n.parse::<u32>().is_ok()) || !(2..=3).contains(&numbers.len()) {
        return Err(format!("the workspace's rust-version is {version}"));
    }
    Ok(match numbers.len() {
        2 => format!("{version}.0"),
        _ => version.to_owned(),
    })
}

/// Compiles the whole workspace with the oldest compiler that the manifests promise. Without that compiler this is skipped.
fn oldest() -> Result<(), String> {
    let path = workspace().join("Cargo.toml");
    let manifest = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let toolchain = oldest_toolchain(&manifest)?;
    let there = output(Command::new("rustc").args([format!("+{toolchain}").as_str(), "-V"]));
    if there.is_err() {
        skip(&format!(
            "Rust {toolchain}: rustup toolchain install {toolchain}"
        ));
        return Ok(());
    }
    let mut command = Command::new("cargo");
    command.arg(format!("+{toolchain}"));
    // Cargo tells its own children which compiler they are to use.
    for name in ["RUSTC", "RUSTDOC", "CARGO", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command.args(["check", "--workspace", "--quiet"]);
    command.arg("--target-dir").arg(target_dir().join("oldest"));
    let built = output(&mut command);
    built.map_or_else(|told| Err(format!("Rust {toolchain}: {told}")), |_| Ok(()))
}

/// A program that only reads ext4, as a user would write it, which is given an f2fs volume.
const READER: &str = r#"use blockwright::{ErrorKind, Volume};

fn main() {
    let path = std::env::args().nth(1).expect("an image");
    let error = Volume::open_read_only(path).expect_err("there is no f2fs here");
    assert_eq!(error.kind(), ErrorKind::UnsupportedFeature);
    println!("{error}");
}
"#;

/// Compiles and runs [`READER`] outside of the workspace, where no other crate's features count.
fn reader() -> Option<String> {
    let run = || -> Result<String, String> {
        let dir = target_dir().join("reader");
        let told = |e: std::io::Error| format!("{}: {e}", dir.display());
        fs::create_dir_all(dir.join("src")).map_err(told)?;
        let manifest = format!(
            "[package]\nname = \"reader\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n\
             blockwright = {{ path = {:?}, default-features = false, features = [\"ext4\"] }}\n\n[workspace]\n",
            workspace().join("crates/blockwright")
        );
        fs::write(dir.join("Cargo.toml"), manifest).map_err(told)?;
        fs::write(dir.join("src/main.rs"), READER).map_err(told)?;
        fs::copy(workspace().join("Cargo.lock"), dir.join("Cargo.lock")).map_err(told)?;
        let mut image = vec![0u8; 1 << 20];
        image[0x400..0x404].copy_from_slice(&[0x10, 0x20, 0xF5, 0xF2]);
        fs::write(dir.join("f2fs.img"), image).map_err(told)?;
        let mut command = Command::new(cargo_path());
        command.args(["run", "--quiet", "--manifest-path"]);
        command
            .arg(dir.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(dir.join("target"));
        output(command.arg("--").arg(dir.join("f2fs.img")))
    };
    match run() {
        Ok(told) if told.contains("f2fs volume") && told.contains("feature `f2fs`") => None,
        Ok(told) => Some(format!("a reader of ext4 says of an f2fs volume: {told}")),
        Err(told) => Some(format!("a reader of ext4: {told}")),
    }
}

/// The crates that the library pulls with these features, a line each in a format of `cargo tree`.
fn tree_of(features: &str, format: &str) -> Result<String, String> {
    let mut command = Command::new(cargo_path());
    command.args(["tree", "--package", "blockwright", "--edges", "normal"]);
    command.args(["--prefix", "none", "--no-dedupe", "--format", format]);
    command.args(["--no-default-features", "--features", features]);
    output(&mut command)
}

/// The features of rustix that a reader needs, if they are other ones than [`READER_RUSTIX`].
fn reader_rustix() -> Result<Option<String>, String> {
    let listed = tree_of("ext4", "{p}: {f}")?;
    let found = listed.lines().find(|line| line.starts_with("rustix "));
    let found = found.and_then(|line| line.split(": ").nth(1));
    let found = found.unwrap_or_default().trim_end_matches(" (*)");
    Ok((found != READER_RUSTIX).then(|| {
        format!("a reader of ext4 needs the features {found} of rustix, not {READER_RUSTIX}")
    }))
}

/// The crates that the library pulls with these features, by name and version.
fn crates_of(features: &str) -> Result<Vec<String>, String> {
    let listed = tree_of(features, "{p}")?;
    let name = |line: &str| {
        line.split_whitespace()
            .take(2)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut found: Vec<String> = listed.lines().filter(|l| !l.is_empty()).map(name).collect();
    found.sort();
    found.dedup();
    Ok(found)
}

/// Too many crates for a reader, and licences that are not on the list. Needs no compiler: `make test` asks this, too.
pub(crate) fn dependencies() -> Vec<String> {
    let mut faults = Vec::new();
    match crates_of("ext4") {
        Ok(found) if found.len() <= READER_CRATES_MAX => {}
        Ok(found) => faults.push(format!(
            "a reader of ext4 pulls {} crates, at most {READER_CRATES_MAX}: {found:?}",
            found.len()
        )),
        Err(told) => faults.push(told),
    }
    match reader_rustix() {
        Ok(fault) => faults.extend(fault),
        Err(told) => faults.push(told),
    }
    match own_packages().and_then(|metadata| back_ends(&metadata)) {
        Ok(found) => faults.extend(found),
        Err(told) => faults.push(told),
    }
    let mut command = Command::new(cargo_path());
    command.args(["metadata", "--format-version", "1"]);
    // What only other hosts need is not downloaded.
    if let Ok(host) = host() {
        command.args(["--filter-platform", &host]);
    }
    match output(&mut command).map(|text| serde_json::from_str::<Value>(&text)) {
        Ok(Ok(metadata)) => faults.extend(crate::licences::refused(&metadata)),
        Ok(Err(e)) => faults.push(format!("cargo metadata: {e}")),
        Err(told) => faults.push(told),
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_small_and_licences_are_free() {
        let faults = dependencies();
        assert!(faults.is_empty(), "{faults:#?}");
    }

    /// A feature of the manifest is compiled, whether or not this file knows it.
    #[test]
    fn features_are_those_of_the_manifest() {
        let features = library_features().unwrap();
        let manifest = workspace().join("crates/blockwright/Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let section = manifest.split("[features]\n").nth(1).unwrap();
        let section = section.split("\n[").next().unwrap();
        let keys = section
            .lines()
            .filter(|l| l.starts_with(char::is_lowercase));
        let mut keys: Vec<&str> = keys.filter_map(|l| l.split(' ').next()).collect();
        keys.retain(|key| *key != "default");
        keys.sort_unstable();
        assert!(keys.len() >= 13, "{keys:?}");
        assert_eq!(features, keys);
        let pairs = PAIRS.iter().flat_map(|pair| pair.split(','));
        for name in pairs.chain(PORTABLE.iter().copied()) {
            assert!(features.iter().any(|f| f == name), "{name}");
        }
    }

    #[test]
    fn a_back_end_of_one_host_pulls_nothing_elsewhere() {
        let with = |target: Value, optional| {
            let dependencies = serde_json::json!([
                { "name": "x", "optional": optional, "target": target },
            ]);
            let package =
                serde_json::json!({ "name": "blockwright-device", "dependencies": dependencies });
            back_ends(&serde_json::json!({ "packages": [package] })).unwrap()
        };
        assert_eq!(with(Value::Null, true).len(), 1);
        assert!(with(Value::Null, false).is_empty());
        assert!(with("cfg(target_os = \"linux\")".into(), true).is_empty());
        assert!(back_ends(&serde_json::json!({})).is_err());
    }

    #[test]
    fn a_rust_version_that_cannot_be_read_is_a_fault() {
        let found = |text: &str| oldest_toolchain(text).ok();
        for manifest in [
            "[workspace.package]\nrust-version = \"1.88\"\n",
            "rust-version=\"1.88.0\"",
        ] {
            assert_eq!(found(manifest).as_deref(), Some("1.88.0"));
        }
        for manifest in [
            "",
            "rust-version.workspace = true",
            "rust-version = \"\"",
            "rust-version = \"1\"",
            "rust-version = \"1.x\"",
            "# rust-version = \"1.88\"",
        ] {
            assert_eq!(found(manifest), None, "{manifest}");
        }
    }
}
