//! The running kernel's ext4 reads what we repaired, and must read the same as our engine.
//!
//! Names, kinds, contents and targets are compared. Attributes are not: the kernel shows its own selection of them.

use super::trees::{self, Node, Tree};
use blockwright::FileType;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Files up to this size are read with their holes.
const WHOLE_MAX: u64 = 8 << 20;

/// A volume that the kernel mounted read-only. Unmounted when it is dropped, also by a failed test.
pub struct Mounted {
    device: String,
    at: PathBuf,
    mounted: bool,
}

/// Runs a program under a time limit: whether it succeeded, and what it said.
fn run(args: &[&str]) -> Result<String, String> {
    let out = Command::new("timeout")
        .args(["-k", "2", "60"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("a program");
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    match out.status.success() {
        true => Ok(text),
        false => Err(text + &String::from_utf8_lossy(&out.stderr)),
    }
}

impl Mounted {
    /// Mounts an image below `dir`. `Err`: the kernel refuses it.
    pub fn new(image: &Path, dir: &Path) -> Result<Self, String> {
        let at = dir.join("kernel");
        std::fs::create_dir_all(&at).expect("a directory");
        let path = image.to_str().expect("a plain path");
        let device = run(&["losetup", "--find", "--show", "--read-only", path])?;
        let mut out = Mounted {
            device,
            at,
            mounted: false,
        };
        let at = out.at.to_str().expect("a plain path");
        run(&["mount", "-t", "ext4", "-o", "ro", &out.device, at])?;
        out.mounted = true;
        Ok(out)
    }

    /// All that the kernel reads.
    pub fn read(&self) -> Tree {
        let mut tree = Tree::default();
        let mut todo = vec![PathBuf::from("/")];
        while let Some(path) = todo.pop() {
            match self.node(&path) {
                Ok(node) => {
                    if node.kind == FileType::Directory {
                        let names = std::fs::read_dir(self.host(&path));
                        let names = names.and_then(Iterator::collect::<Result<Vec<_>, _>>);
                        match names {
                            Ok(names) => {
                                todo.extend(names.iter().map(|e| path.join(e.file_name())))
                            }
                            Err(e) => tree.errors.push(format!("{}: {e}", path.display())),
                        }
                    }
                    tree.nodes.insert(path, node);
                }
                Err(e) => tree.errors.push(format!("{}: {e}", path.display())),
            }
        }
        tree
    }

    fn host(&self, path: &Path) -> PathBuf {
        self.at.join(path.strip_prefix("/").expect("absolute"))
    }

    fn node(&self, path: &Path) -> std::io::Result<Node> {
        let host = self.host(path);
        let meta = std::fs::symlink_metadata(&host)?;
        let kind = meta.file_type();
        let kind = match () {
            () if kind.is_dir() => FileType::Directory,
            () if kind.is_symlink() => FileType::Symlink,
            () if kind.is_file() => FileType::Regular,
            () if kind.is_char_device() => FileType::CharDevice,
            () if kind.is_block_device() => FileType::BlockDevice,
            () if kind.is_fifo() => FileType::Fifo,
            () => FileType::Socket,
        };
        let mut node = Node {
            ino: meta.ino(),
            kind,
            pieces: BTreeMap::new(),
            target: None,
            attributes: BTreeMap::new(),
        };
        if kind == FileType::Symlink {
            node.target = Some(std::fs::read_link(&host)?);
        } else if kind == FileType::Regular {
            let file = File::open(&host)?;
            let size = meta.size();
            // Behind inline data that is shorter than the file, the kernel answers ENOENT.
            let seek = |from| match rustix::fs::seek(&file, from) {
                Ok(at) => Ok(Some(at)),
                Err(rustix::io::Errno::NXIO | rustix::io::Errno::NOENT) => Ok(None),
                Err(e) => Err(std::io::Error::from(e)),
            };
            trees::pieces(
                &mut node.pieces,
                |at| match size {
                    0..=WHOLE_MAX => Ok((at < size).then_some(at)),
                    _ => seek(rustix::fs::SeekFrom::Data(at)),
                },
                |at| match size {
                    0..=WHOLE_MAX => Ok(size),
                    _ => Ok(seek(rustix::fs::SeekFrom::Hole(at))?.unwrap_or(size)),
                },
                |buf, at| {
                    let mut done = 0;
                    while done < buf.len() {
                        match file.read_at(&mut buf[done..], at + done as u64)? {
                            0 => break,
                            n => done += n,
                        }
                    }
                    Ok(())
                },
            )?;
        }
        Ok(node)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let at = self.at.to_str().expect("a plain path");
        if self.mounted && run(&["umount", at]).is_err() {
            let _ = run(&["umount", "--lazy", at]);
        }
        let _ = run(&["losetup", "--detach", &self.device]);
    }
}

/// Where the kernel and our engine do not read the same.
pub fn differences(ours: &Tree, kernel: &Tree) -> Vec<String> {
    let mut out: Vec<String> = (kernel.errors.iter())
        .map(|e| format!("the kernel: {e}"))
        .collect();
    for (path, node) in &ours.nodes {
        let shown = path.display();
        match kernel.nodes.get(path) {
            None => out.push(format!("{shown}: the kernel does not have the name")),
            Some(k) if k.kind != node.kind || k.ino != node.ino => {
                out.push(format!("{shown}: another inode for the kernel"));
            }
            Some(k) if k.pieces != node.pieces => out.push(format!("{shown}: other contents")),
            Some(k) if k.target != node.target => out.push(format!("{shown}: another target")),
            Some(_) => {}
        }
    }
    let more = kernel.nodes.keys().filter(|p| !ours.nodes.contains_key(*p));
    out.extend(more.map(|p| format!("{}: the kernel alone has the name", p.display())));
    out
}
