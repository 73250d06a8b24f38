//! `resize`: volumes that are not mounted, made larger and smaller, beside resize2fs. Nothing of the image is in the host's cache.

use crate::machine::{drop_caches, have, run};
use crate::stats::Table;
use crate::workloads::{Maker, Setting, in_turn};
use blockwright::Volume;
use std::fs;
use std::path::Path;
use std::process::Command;

/// The volumes: a large one that shrinks, with files all over it, and a small empty one that grows.
struct Sizes {
    large: String,
    used: String,
    /// Files that are in use, of [`FILE_BYTES`] each.
    files: u64,
    smaller: String,
    small: &'static str,
    huge: &'static str,
}

impl Sizes {
    fn new(setting: &Setting) -> Self {
        let divisor = match setting.quick {
            true => 10,
            false => setting.divisor.max(1),
        };
        let files = 2048 / divisor;
        let mebibytes = |gibibytes: u64| format!("{}M", (gibibytes << 10) / divisor);
        Sizes {
            large: mebibytes(20),
            used: format!("{}M", (files * FILE_BYTES as u64) >> 20),
            files,
            smaller: mebibytes(10),
            small: if setting.quick { "1G" } else { "10G" },
            huge: if setting.quick { "64G" } else { "1T" },
        }
    }
}

/// Of each file of the volumes, here and in `converting`.
pub(crate) const FILE_BYTES: usize = 4 << 20;

/// Measures shrinking to a size, shrinking to the minimum, and growing. The peer of the second is `resize2fs -M`, run until the
/// size stays.
pub fn measure(setting: &Setting) -> Result<Vec<Table>, String> {
    let sizes = Sizes::new(setting);
    let large = format!("{} with {} in it", sizes.large, sizes.used);
    let shrink = format!("shrink {large} to {}", sizes.smaller);
    let minimum = format!("shrink {large} to the minimum");
    let grow = format!("grow {}, empty, to {}", sizes.small, sizes.huge);
    let all = [&shrink, &minimum, &grow];
    if !all.iter().any(|name| setting.wanted(name)) {
        return Ok(Vec::new());
    }
    if !have("resize2fs") {
        return Err("resize2fs (e2fsprogs) is needed".to_owned());
    }
    let image = setting.dir.join("resize.img");
    let base = setting.dir.join("resize-base.img");
    let ours = |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let image = &image;
        move || {
            run(Command::new(&setting.program)
                .arg("resize")
                .arg(image)
                .args(&arguments))
        }
    };
    // `-f`: without it, it asks for a complete check first, which would be timed too.
    let theirs = |size: &str| {
        let (image, size) = (&image, size.to_owned());
        move || run(Command::new("resize2fs").arg("-f").arg(image).arg(&size))
    };
    let copied = || {
        run(Command::new("cp")
            .args(["--sparse=always", "--reflink=auto"])
            .args([&base, &image]))?;
        drop_caches();
        Ok(())
    };
    let check = || run(Command::new("e2fsck").arg("-fn").arg(&image));
    let mut tables = Vec::new();
    if setting.wanted(&shrink) || setting.wanted(&minimum) {
        make(setting, &base, &sizes.large)?;
        fill(&base, sizes.files)?;
    }
    if setting.wanted(&shrink) {
        let makers: [Maker<'_>; 2] = [
            ("blockwright resize", Box::new(ours(&[&sizes.smaller]))),
            ("resize2fs", Box::new(theirs(&sizes.smaller))),
        ];
        tables.push(in_turn(
            setting, shrink, None, &image, &makers, copied, check,
        )?);
    }
    if setting.wanted(&minimum) {
        let to_the_end = || loop {
            let before = length(&image)?;
            run(Command::new("resize2fs").args(["-f", "-M"]).arg(&image))?;
            if length(&image)? == before {
                return Ok(());
            }
        };
        let makers: [Maker<'_>; 2] = [
            ("blockwright resize", Box::new(ours(&["--minimum"]))),
            ("resize2fs", Box::new(to_the_end)),
        ];
        tables.push(in_turn(
            setting, minimum, None, &image, &makers, copied, check,
        )?);
    }
    if setting.wanted(&grow) {
        make(setting, &base, sizes.small)?;
        let makers: [Maker<'_>; 2] = [
            ("blockwright resize", Box::new(ours(&[sizes.huge]))),
            ("resize2fs", Box::new(theirs(sizes.huge))),
        ];
        tables.push(in_turn(
            setting, grow, None, &image, &makers, copied, check,
        )?);
    }
    for path in [&image, &base] {
        fs::remove_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(tables)
}

fn length(image: &Path) -> Result<u64, String> {
    let meta = fs::metadata(image).map_err(|e| format!("{}: {e}", image.display()))?;
    Ok(meta.len())
}

pub(crate) fn make(setting: &Setting, base: &Path, size: &str) -> Result<(), String> {
    match fs::remove_file(base) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("{}: {e}", base.display()));
        }
        _ => {}
    }
    run(Command::new(&setting.program)
        .args(["mkfs", "-q", "-t", "ext4"])
        .arg(base)
        .arg(size))
}

/// Writes twice as many files and removes every second one: what is left lies all over the first part of the volume.
pub(crate) fn fill(base: &Path, files: u64) -> Result<(), String> {
    let fail = |e: blockwright::Error| format!("{}: {e}", base.display());
    let volume = Volume::open(base).map_err(fail)?;
    let mut block = vec![0u8; FILE_BYTES];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for k in 0..files * 2 {
        for word in block.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        volume.write(format!("/f{k}"), &block).map_err(fail)?;
    }
    volume.sync().map_err(fail)?;
    for k in 0..files {
        volume.remove_file(format!("/f{}", 2 * k)).map_err(fail)?;
    }
    volume.close().map_err(fail)
}
