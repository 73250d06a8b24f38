//! Inputs of a known shape, the same on every machine.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A tree of `files` files and about `bytes` bytes: sizes spread as in source and system trees (many small
/// ones, few large), some thirty files a directory, a tenth symlinks. Made once, then reused.
pub fn tree(dir: &Path, files: usize, bytes: u64) -> Result<PathBuf, String> {
    let root = dir.join(format!("tree-{files}-{}", bytes / 1_000_000));
    let done = root.with_extension("done");
    if done.exists() {
        return Ok(root);
    }
    let fail = |e: std::io::Error| format!("{}: {e}", root.display());
    let _ = fs::remove_dir_all(&root);
    let mut rng = Rng(0x2545_f491_4f6c_dd1d);
    let mut weights: Vec<f64> = (0..files)
        .map(|_| {
            let u = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
            // A heavy tail: the median is a twentieth of the mean.
            (1.0 - u).powf(-0.9) - 0.9
        })
        .collect();
    let total: f64 = weights.iter().sum();
    for w in &mut weights {
        *w *= bytes as f64 / total;
    }
    let mut block = vec![0u8; 1 << 16];
    for (k, weight) in weights.iter().enumerate() {
        let sub = root.join(format!("d{:03}/s{:02}", k / 900, k / 30 % 30));
        if k % 30 == 0 {
            fs::create_dir_all(&sub).map_err(fail)?;
        }
        if k % 10 == 9 {
            std::os::unix::fs::symlink(
                format!("file{:06}", k - 1),
                sub.join(format!("link{k:06}")),
            )
            .map_err(fail)?;
        }
        let mut out =
            BufWriter::new(fs::File::create(sub.join(format!("file{k:06}"))).map_err(fail)?);
        let mut left = (*weight as usize).min(400_000_000);
        while left > 0 {
            for chunk in block.chunks_exact_mut(8) {
                chunk.copy_from_slice(&rng.next().to_le_bytes());
            }
            let n = left.min(block.len());
            out.write_all(&block[..n]).map_err(fail)?;
            left -= n;
        }
        out.flush().map_err(fail)?;
    }
    fs::write(done, b"").map_err(fail)?;
    Ok(root)
}

/// Reads a file, or every file below a directory, so that the next copy finds it in the kernel's cache.
pub fn warm(path: &Path) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let meta = path.symlink_metadata().map_err(fail)?;
    if meta.is_dir() {
        for entry in fs::read_dir(path).map_err(fail)? {
            warm(&entry.map_err(fail)?.path())?;
        }
    } else if meta.is_file() {
        let mut file = fs::File::open(path).map_err(fail)?;
        std::io::copy(&mut file, &mut std::io::sink()).map_err(fail)?;
    }
    Ok(())
}

/// Bytes of all files below `dir`, and their number.
pub fn measure(dir: &Path) -> (u64, u64) {
    let (mut bytes, mut files) = (0, 0);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.path().symlink_metadata() else {
            continue;
        };
        if meta.is_dir() {
            let (b, f) = measure(&entry.path());
            bytes += b;
            files += f + 1;
        } else {
            bytes += if meta.is_file() { meta.len() } else { 0 };
            files += 1;
        }
    }
    (bytes, files)
}
