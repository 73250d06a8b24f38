//! `cargo xtask dist`: the static program and its packages in `target/dist-out`, the same bytes wherever they are built. (`target/dist` is cargo's own, for
//! the profile of that name.)
//!
//! Four things make them so. No path of the machine reaches the compilers' output, they see no variables of the user's environment, `SOURCE_DATE_EPOCH` is the time of all
//! files, and `scripts/package.sh` sorts what it packs. `--verify` proves it: a second build from another folder, with another `CARGO_HOME`, and a comparison.

use crate::check::tracked_files;
use crate::tools::{cargo_home, cargo_path, compiler, is_installed, output};
use crate::{licences, target_dir, workspace};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask dist [--verify] [--quick]";

/// Programs that a build needs beside Rust's, and `scripts/package.sh`.
const TOOLS: &[&str] = &[
    "cc",
    "musl-gcc",
    "objcopy",
    "readelf",
    "dpkg-deb",
    "xz",
    "gzip",
    "md5sum",
    "sha256sum",
    "tar",
    "git",
];

pub(crate) fn run(args: &[String]) -> ExitCode {
    let known = ["--verify", "--quick"];
    if args.iter().any(|arg| !known.contains(&&**arg)) {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let has = |word: &str| args.iter().any(|arg| arg == word);
    // Unoptimised, in a fraction of the time: for a look at the steps.
    let profile = if has("--quick") { "quick" } else { "dist" };
    match dist(profile, has("--verify")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(told) => {
            eprintln!("xtask dist: {told}");
            ExitCode::FAILURE
        }
    }
}

fn dist(profile: &'static str, verify: bool) -> Result<(), String> {
    let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    let missing = missing(&target)?;
    if !missing.is_empty() {
        return Err(format!(
            "missing: {}; `sh scripts/setup.sh dist` installs it",
            missing.join(", ")
        ));
    }
    let here = Place {
        source: workspace(),
        profile,
        build: target_dir().join("dist-build"),
        cargo_home: cargo_home(),
        target,
        date: date()?,
    };
    let out = target_dir().join(match profile {
        "dist" => "dist-out",
        _ => "dist-out-quick",
    });
    here.make(&out)?;
    lintian(&out)?;
    if verify {
        let dir = target_dir().join("dist-verify");
        let there = here.elsewhere(&dir)?;
        let again = dir.join("dist");
        there.make(&again)?;
        let differences = differences(&out, &again)?;
        if !differences.is_empty() {
            return Err(format!(
                "{} and {} differ: {}",
                out.display(),
                again.display(),
                differences.join("; ")
            ));
        }
        remove(&dir)?;
        println!("xtask dist: two builds in two folders, the same bytes");
    }
    for entry in sorted(&out)? {
        println!("{}", entry.display());
    }
    Ok(())
}

/// What this machine lacks for a static program.
fn missing(target: &str) -> Result<Vec<String>, String> {
    let tools = TOOLS.iter().filter(|tool| !is_installed(tool));
    let mut missing: Vec<String> = tools.map(|tool| (*tool).to_owned()).collect();
    let libraries = sysroot()?.join("lib/rustlib").join(target).join("lib");
    if !libraries.is_dir() {
        missing.push(format!("Rust's target {target}"));
    }
    Ok(missing)
}

fn sysroot() -> Result<PathBuf, String> {
    let told = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    Ok(PathBuf::from(told.trim()))
}

/// The time of all files, in seconds of Unix time: `SOURCE_DATE_EPOCH`, or when the last commit was made.
fn date() -> Result<String, String> {
    if let Ok(date) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(date);
    }
    let mut git = Command::new("git");
    git.args(["-c", "safe.directory=*", "log", "-1", "--format=%ct"]);
    let told = output(&mut git).map_err(|e| format!("set SOURCE_DATE_EPOCH; git log: {e}"))?;
    Ok(told.trim().to_owned())
}

/// Where a build happens. Nothing of it may be seen in the result, but for `profile`, `target` and `date`.
struct Place {
    profile: &'static str,
    source: PathBuf,
    build: PathBuf,
    cargo_home: PathBuf,
    target: String,
    date: String,
}

impl Place {
    /// Compiles the program and packs it into an emptied `out`.
    fn make(&self, out: &Path) -> Result<(), String> {
        let mut build = self.build()?;
        eprintln!("xtask dist: building in {}", self.source.display());
        ended(&mut build, "cargo build")?;
        let program = self
            .build
            .join(&self.target)
            .join(self.profile)
            .join("blockwright");
        self.inspect(&program)?;
        let notices = self.build.join("THIRD-PARTY.txt");
        let sources = licences::Sources {
            workspace: self.source.clone(),
            cargo_home: self.cargo_home.clone(),
        };
        fs::write(&notices, licences::notices(&self.target, &sources)?)
            .map_err(|e| format!("{}: {e}", notices.display()))?;
        remove(out)?;
        let mut pack = Command::new("sh");
        pack.arg(self.source.join("scripts/package.sh"))
            .args([&program, &notices])
            .arg(out);
        keep_environment(&mut pack, std::env::vars_os());
        pack.env("SOURCE_DATE_EPOCH", &self.date);
        ended(&mut pack, "scripts/package.sh")
    }

    fn build(&self) -> Result<Command, String> {
        let mut command = Command::new(cargo_path());
        keep_environment(&mut command, std::env::vars_os());
        command.args([
            "build",
            "--locked",
            "--quiet",
            "--profile",
            self.profile,
            "--package",
            "blockwright-cli",
        ]);
        command
            .args(["--target", &self.target, "--target-dir"])
            .arg(&self.build);
        command.current_dir(&self.source);
        command
            .env("CARGO_HOME", &self.cargo_home)
            .env("CARGO_INCREMENTAL", "0");
        // An empty one outranks that of a configuration file.
        command.env("RUSTC_WRAPPER", "");
        command.env("RUSTC_WORKSPACE_WRAPPER", "");
        command.env("SOURCE_DATE_EPOCH", &self.date);
        let renamed = self.renamed()?;
        let flags: Vec<String> = renamed
            .iter()
            .map(|(from, to)| format!("--remap-path-prefix={from}={to}"))
            .collect();
        command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        // C code of crates. Its flags are split as a shell does.
        let quoted = |(from, to): &(String, String)| {
            format!("'-ffile-prefix-map={}={to}'", from.replace('\'', "'\\''"))
        };
        let flags: Vec<String> = renamed.iter().map(quoted).collect();
        let target = self.target.replace('-', "_");
        command.env("CC_SHELL_ESCAPED_FLAGS", "1");
        command.env(format!("CFLAGS_{target}"), flags.join(" "));
        command.env(format!("CC_{target}"), "musl-gcc");
        Ok(command)
    }

    /// Paths of this place and what stands for them, the inner ones last: compilers take the last that fits.
    fn renamed(&self) -> Result<Vec<(String, String)>, String> {
        let mut renamed = vec![
            (self.source.clone(), "/blockwright".to_owned()),
            (self.build.clone(), "/build".to_owned()),
        ];
        // A registry's folder has a name that depends on its address, and mirrors have the same crates.
        let registries = self.cargo_home.join("registry/src");
        let registries = sorted(&registries).unwrap_or_default();
        renamed.extend(
            registries
                .into_iter()
                .map(|dir| (dir, "/crates".to_owned())),
        );
        // With its source installed, the compiler names the standard library by where that is.
        let hash = compiler("commit-hash")?;
        renamed.push((
            sysroot()?.join("lib/rustlib/src/rust"),
            format!("/rustc/{hash}"),
        ));
        let text = |(path, to): (PathBuf, String)| {
            let path = path.into_os_string().into_string();
            path.map(|path| (path, to))
                .map_err(|path| format!("{path:?}: the path is not UTF-8"))
        };
        renamed.into_iter().map(text).collect()
    }

    /// Refuses a program that names this place or needs libraries of the host.
    fn inspect(&self, program: &Path) -> Result<(), String> {
        let bytes = fs::read(program).map_err(|e| format!("{}: {e}", program.display()))?;
        let paths = [&self.source, &self.build, &self.cargo_home, &sysroot()?];
        if let Some(found) = paths.iter().find_map(|path| named(&bytes, path)) {
            return Err(format!(
                "{} names a path of this machine: {found}",
                program.display()
            ));
        }
        let told = output(Command::new("readelf").arg("--dynamic").arg(program))?;
        match told.contains("(NEEDED)") {
            true => Err(format!("{} is not static: {told}", program.display())),
            false => Ok(()),
        }
    }

    /// Another place with copies of the sources that git tracks, as they are now, and cargo's downloads under another name.
    fn elsewhere(&self, dir: &Path) -> Result<Place, String> {
        remove(dir)?;
        let there = Place {
            profile: self.profile,
            source: dir.join("another folder/of sources"),
            build: dir.join("build"),
            cargo_home: dir.join("cargo-home"),
            target: self.target.clone(),
            date: self.date.clone(),
        };
        let files = tracked_files()?;
        if files.is_empty() {
            return Err("--verify copies the files that git tracks, and there are none".into());
        }
        let told = |e: std::io::Error| format!("{}: {e}", dir.display());
        for file in files.iter().filter(|file| file.symlink_metadata().is_ok()) {
            let inner = file.strip_prefix(&self.source).map_err(|e| e.to_string())?;
            copy(file, &there.source.join(inner)).map_err(told)?;
        }
        fs::create_dir_all(&there.cargo_home).map_err(told)?;
        for entry in sorted(&self.cargo_home)? {
            let name = entry.file_name().unwrap_or_default();
            link(&entry, &there.cargo_home.join(name)).map_err(told)?;
        }
        Ok(there)
    }
}

/// Clears a command's environment but for what finds programs and crates. What is not on the list cannot change what compilers make.
fn keep_environment(command: &mut Command, all: impl Iterator<Item = (OsString, OsString)>) {
    command.env_clear();
    command.envs(all.filter(|(name, _)| is_kept(&name.to_string_lossy())));
    command.env("LC_ALL", "C").env("TZ", "UTC");
}

/// Whether a variable only says where programs, folders and downloads are, or how many jobs run.
fn is_kept(name: &str) -> bool {
    const NAMES: &[&str] = &[
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "RUSTUP_HOME",
        "RUSTUP_TOOLCHAIN",
        "CARGO_BUILD_JOBS",
        "CARGO_MAKEFLAGS",
        "MAKEFLAGS",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
    ];
    // Where crates come from: their contents are those of the lock file.
    const BEGINNINGS: &[&str] = &[
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_SOURCE_",
    ];
    NAMES.contains(&name)
        || BEGINNINGS.iter().any(|start| name.starts_with(start))
        || name.to_ascii_lowercase().ends_with("_proxy")
}

/// The first text in the bytes that begins with this path, up to what cannot be in a path.
fn named(bytes: &[u8], path: &Path) -> Option<String> {
    let path = path.to_str()?.as_bytes();
    if path.len() < 2 {
        return None;
    }
    let at = bytes
        .windows(path.len())
        .position(|window| window == path)?;
    let rest = bytes[at..]
        .iter()
        .take(200)
        .take_while(|byte| byte.is_ascii_graphic());
    Some(rest.map(|byte| char::from(*byte)).collect())
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    match fs::read_link(from) {
        Ok(target) => link(&target, to),
        Err(_) => fs::copy(from, to).map(|_| ()),
    }
}

#[cfg(unix)]
fn link(to: &Path, name: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, name)
}

#[cfg(not(unix))]
fn link(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

fn ended(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{what}: {e}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{what} failed")),
    }
}

fn remove(dir: &Path) -> Result<(), String> {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", dir.display()))
        }
        _ => Ok(()),
    }
}

fn sorted(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Names of files that are in one of two folders only, or have other bytes there.
fn differences(one: &Path, other: &Path) -> Result<Vec<String>, String> {
    let names = |dir: &Path| -> Result<Vec<OsString>, String> {
        let paths = sorted(dir)?;
        Ok(paths
            .iter()
            .filter_map(|p| p.file_name().map(OsString::from))
            .collect())
    };
    let mut all = names(one)?;
    all.extend(names(other)?);
    all.sort();
    all.dedup();
    let read = |dir: &Path, name: &OsString| fs::read(dir.join(name)).ok();
    let differ = |name: &OsString| match (read(one, name), read(other, name)) {
        (Some(a), Some(b)) if a == b => None,
        (Some(a), Some(b)) => {
            let at = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            Some(format!(
                "{} at byte {at} ({} and {} bytes)",
                name.display(),
                a.len(),
                b.len()
            ))
        }
        _ => Some(format!("{} is in one of them", name.display())),
    };
    Ok(all.iter().filter_map(differ).collect())
}

/// Refuses a Debian package that lintian finds faults in.
fn lintian(out: &Path) -> Result<(), String> {
    if !is_installed("lintian") {
        eprintln!("xtask dist: SKIPPED lintian, which is not installed");
        return Ok(());
    }
    let packages = sorted(out)?
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "deb"));
    let mut command = Command::new("lintian");
    command.args(["--fail-on", "error,warning"]).args(packages);
    ended(&mut command, "lintian")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path) -> Place {
        Place {
            profile: "dist",
            source: dir.join("s"),
            build: dir.join("s/b"),
            cargo_home: dir.join("it's"),
            target: "x86_64-unknown-linux-musl".into(),
            date: "1700000000".into(),
        }
    }

    #[test]
    fn a_build_renames_all_paths_of_its_place() {
        let dir = std::env::temp_dir().join(format!("bw-dist-{}", std::process::id()));
        let registry = dir.join("it's/registry/src/mirror-1");
        fs::create_dir_all(&registry).unwrap();
        let place = place(&dir);
        let renamed = place.renamed().unwrap();
        // The compilers take the last that fits, and that is the innermost.
        let stands_for = |path: PathBuf| {
            let path = path.to_str().unwrap();
            let (from, to) = renamed
                .iter()
                .rev()
                .find(|(from, _)| path.starts_with(&**from))
                .unwrap();
            path.replacen(&**from, to, 1)
        };
        assert_eq!(
            stands_for(dir.join("s/src/main.rs")),
            "/blockwright/src/main.rs"
        );
        assert_eq!(stands_for(dir.join("s/b/x.rs")), "/build/x.rs");
        assert_eq!(
            stands_for(registry.join("a-1/lib.rs")),
            "/crates/a-1/lib.rs"
        );
        let build = place.build().unwrap();
        let value = |name: &str| {
            let found = build.get_envs().find(|(key, _)| *key == name).unwrap();
            found.1.unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(
            value("CARGO_ENCODED_RUSTFLAGS").split('\x1f').count(),
            renamed.len()
        );
        let flags = value("CFLAGS_x86_64_unknown_linux_musl");
        let mut shell = Command::new("sh");
        let split = output(shell.args(["-c", &format!("printf '%s\\n' {flags}")])).unwrap();
        let wanted = format!("-ffile-prefix-map={}=/crates", registry.display());
        assert!(split.lines().any(|flag| flag == wanted), "{split}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn settings_of_the_user_do_not_count() {
        let names = [
            "PATH",
            "CARGO_BUILD_JOBS",
            "HTTPS_PROXY",
            "RUSTFLAGS",
            "CARGO_PROFILE_DIST_LTO",
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_MUSL_RUSTFLAGS",
            "CFLAGS",
            "TARGET_CFLAGS",
            "CPATH",
            "C_INCLUDE_PATH",
            "LIBRARY_PATH",
            "COMPILER_PATH",
            "GCC_EXEC_PREFIX",
            "ZSTD_SYS_USE_PKG_CONFIG",
            "LZMA_API_STATIC",
            "PKG_CONFIG_PATH",
            "RUSTC_BOOTSTRAP",
            "XZ_DEFAULTS",
            "TAR_OPTIONS",
            "DPKG_DEB_COMPRESSOR_TYPE",
            "LANG",
        ];
        let all = names.map(|name| (OsString::from(name), OsString::from("x")));
        let mut command = Command::new("env");
        keep_environment(&mut command, all.into_iter());
        let told = command.env("PATH", std::env::var_os("PATH").unwrap());
        let told = output(told).unwrap();
        let mut kept: Vec<&str> = told.lines().filter_map(|l| l.split('=').next()).collect();
        kept.sort_unstable();
        assert_eq!(
            kept,
            ["CARGO_BUILD_JOBS", "HTTPS_PROXY", "LC_ALL", "PATH", "TZ"]
        );
    }

    /// `target/NAME` is where cargo builds with the profile NAME.
    #[test]
    fn no_folder_is_that_of_a_profile() {
        let manifest = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
        for name in ["dist-out", "dist-out-quick", "dist-build", "dist-verify"] {
            assert!(!manifest.contains(&format!("[profile.{name}]")), "{name}");
        }
    }

    #[test]
    fn a_path_in_a_program_is_found() {
        let bytes = b"\0/home/me/src/lib.rs\0more";
        assert_eq!(
            named(bytes, Path::new("/home/me")).as_deref(),
            Some("/home/me/src/lib.rs")
        );
        assert_eq!(named(bytes, Path::new("/home/you")), None);
        assert_eq!(named(bytes, Path::new("/")), None);
    }

    #[test]
    fn folders_that_differ() {
        let dir = std::env::temp_dir().join(format!("bw-differ-{}", std::process::id()));
        let (one, other) = (dir.join("one"), dir.join("other"));
        for (path, text) in [
            ("one/same", "1"),
            ("other/same", "1"),
            ("one/bytes", "12"),
            ("other/bytes", "13"),
            ("other/more", ""),
        ] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(differences(&one, &one).unwrap(), [""; 0]);
        assert_eq!(
            differences(&one, &other).unwrap(),
            ["bytes at byte 1 (2 and 2 bytes)", "more is in one of them"]
        );
        fs::remove_dir_all(&dir).unwrap();
    }
}
