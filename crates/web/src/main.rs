//! Makes the web page: compiles the module for WASI and writes the page as one file.

#![forbid(unsafe_code)]

use blockwright_web::page::{self, Sources};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: blockwright-web-page [--module FILE | --profile NAME] OUTPUT

Writes the page to OUTPUT. Without --module it compiles the module first, in cargo's profile `web` or in NAME; cargo and the target
wasm32-wasip1 must be there.";

const TARGET: &str = "wasm32-wasip1";

/// An image that needs more memory than 1 GiB ends the module, not the browser.
const MEMORY: &str = "-Clink-arg=--max-memory=1073741824";

fn main() -> ExitCode {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let page = |profile: &OsStr, output| compile(profile).and_then(|m| write(&m, output));
    let made = match &words[..] {
        [output] if !output.to_string_lossy().starts_with('-') => page("web".as_ref(), output),
        [flag, name, output] if flag.as_os_str() == "--profile" => page(name.as_ref(), output),
        [flag, module, output] if flag.as_os_str() == "--module" => write(module, output),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match made {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("blockwright-web-page: {e}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).unwrap_or(here)
}

/// Compiles the module in a profile; where it is.
fn compile(profile: &OsStr) -> Result<PathBuf, String> {
    // With the other builds for WASI.
    let target = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => root().join(dir),
        _ => root().join("target"),
    };
    let target = target.join("hosts");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["rustc", "--quiet", "--package", "blockwright-web", "--lib"])
        .args(["--crate-type", "cdylib", "--profile"])
        .arg(profile)
        .args(["--target", TARGET, "--target-dir"])
        .arg(&target)
        .args(["--", MEMORY])
        // The caller's own flags are for the host.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .current_dir(root())
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(format!(
            "the module does not compile; does `rustup target add {TARGET}` help?"
        ));
    }
    let built = target.join(TARGET).join(profile);
    Ok(built.join("blockwright_web.wasm"))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes the page; what was made, in words.
fn write(module: &Path, output: &Path) -> Result<String, String> {
    let module = read(module)?;
    let source = |name: &str| {
        let path = root().join("web").join(name);
        String::from_utf8(read(&path)?).map_err(|_| format!("{}: not UTF-8", path.display()))
    };
    let (html, style) = (source("index.html")?, source("style.css")?);
    let (script, worker) = (source("page.js")?, source("worker.js")?);
    let sources = Sources {
        html: &html,
        style: &style,
        script: &script,
        worker: &worker,
    };
    let page = page::assemble(sources, &module).map_err(|e| format!("web: {e}"))?;
    if let Some(folder) = output.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    std::fs::write(output, &page).map_err(|e| format!("{}: {e}", output.display()))?;
    let packed = page::compressed(&module).map_err(|e| e.to_string())?;
    Ok(format!(
        "{}: {} bytes; the module has {} bytes, {} compressed",
        output.display(),
        page.len(),
        module.len(),
        packed.len()
    ))
}
