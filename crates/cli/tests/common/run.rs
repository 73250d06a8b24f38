//! Running the program as users do, and what its output must be.

use super::{Scratch, ok, output, program};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The program with these arguments; `IMAGE` at the start of one stands for the image.
pub fn bw(image: &Path, args: &[&str]) -> Command {
    let mut command = program();
    for arg in args {
        match arg.strip_prefix("IMAGE") {
            Some(rest) => {
                let mut text = image.as_os_str().to_owned();
                text.push(rest);
                command.arg(text)
            }
            None => command.arg(arg),
        };
    }
    command
}

pub fn good(image: &Path, args: &[&str]) -> String {
    ok(&mut bw(image, args))
}

pub fn json(image: &Path, args: &[&str]) -> Value {
    let text = good(image, args);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}\n{text}"))
}

pub fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Insists on failure with this code and a message that has all of these in it.
pub fn refused(command: &mut Command, code: i32, says: &[&str]) -> String {
    let out = output(command);
    let text = stderr(&out);
    assert_eq!(
        out.status.code(),
        Some(code),
        "{command:?}: {}\n{text}",
        out.status
    );
    for part in says {
        assert!(text.contains(part), "{command:?}: no `{part}` in:\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
    text
}

pub fn hash(path: &Path) -> Vec<u8> {
    Sha256::digest(fs::read(path).unwrap()).to_vec()
}

/// Runs a command with bytes on its standard input.
pub fn with_input(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        let _ = pipe.write_all(&input);
    });
    let out = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    out
}

/// A tree on the host with one of everything that needs no root.
pub fn source_tree(scratch: &Scratch, name: &str) -> PathBuf {
    let dir = scratch.dir(name);
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/file"), b"contents").unwrap();
    fs::set_permissions(dir.join("sub/file"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::hard_link(dir.join("sub/file"), dir.join("linked")).unwrap();
    symlink("sub/file", dir.join("link")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 5_000_000).unwrap();
    sparse.set_len(9_000_001).unwrap();
    fs::write(dir.join("big"), vec![0xA5; 3_000_001]).unwrap();
    fs::write(dir.join(OsStr::from_bytes(b"bytes \xff\xfe")), b"x").unwrap();
    let path = dir.join("big");
    let _ = rustix::fs::setxattr(&path, "user.note", b"kept", rustix::fs::XattrFlags::empty());
    dir
}
