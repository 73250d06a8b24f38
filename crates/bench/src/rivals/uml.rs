//! The kernel's own f2fs, which few kernels have: Linux as an ordinary process (Debian's user-mode-linux).
//!
//! The guest's root is the host's tree, so this very program runs in it: it prepares or does one row's work in a mount and
//! prints the rate. The guest writes to the image and to a scratch directory alone. It has one CPU, and the host's cache lies between it
//! and the image: a rival where the processor is the limit, and no more than a direction elsewhere.

use super::jobs::{self, Sizes};
use super::{Setting, create};
use crate::machine::{drop_caches, run, sync_all};
use crate::runner;
use crate::table::Sample;
use crate::volumes::Format;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Whether there is one here. (`linux.uml -V` would boot.)
pub fn available() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |tool: &str| std::env::split_paths(&path).any(|dir| dir.join(tool).exists());
    ["linux.uml", "perl", "insmod"].into_iter().all(has)
}

/// What happens in one boot.
#[derive(clap::Args, Debug)]
pub struct InMountArgs {
    /// The row's name
    row: String,
    /// The mount
    mnt: std::path::PathBuf,
    /// Prepare it
    #[arg(long)]
    prepare: bool,
    /// Do its work, and print how fast it was
    #[arg(long)]
    work: bool,
    /// Small sizes
    #[arg(long)]
    quick: bool,
}

/// Prepares or does a row's work in a mount.
///
/// # Errors
/// A sentence.
pub fn in_mount(args: &InMountArgs) -> Result<(), String> {
    let sizes = Sizes::new(args.quick);
    let mnt = &args.mnt;
    let print = |sample: Sample| println!("{}", sample.value);
    if let Some(job) = jobs::all(&sizes).into_iter().find(|j| j.name == args.row) {
        if args.prepare {
            job.prepare(mnt)?;
        }
        if args.work {
            print(job.run(mnt)?);
        }
        return Ok(());
    }
    for threads in create::THREADS {
        if create::name(threads) == args.row {
            if args.prepare {
                create::prepare(mnt, threads)?;
            }
            if args.work {
                print(create::in_mount(mnt, threads, sizes.creates / threads)?);
            }
            return Ok(());
        }
    }
    Err(format!("no row is called {}", args.row))
}

/// Does a row on a fresh volume. `cold`: the work in a boot of its own, nothing cached anywhere.
pub fn timed(setting: &Setting<'_>, image: &Path, row: &str, cold: bool) -> Result<Sample, String> {
    Format::F2fs.make(image)?;
    sync_all();
    let text = if cold {
        boot(setting, image, row, &["--prepare"])?;
        drop_caches();
        runner::touch(setting.plan.touch_bytes)?;
        boot(setting, image, row, &["--work"])?
    } else {
        runner::touch(setting.plan.touch_bytes)?;
        boot(setting, image, row, &["--prepare", "--work"])?
    };
    let rate = text.trim().parse::<f64>();
    Ok(Sample::rate(
        rate.map_err(|e| format!("the guest said {text:?}: {e}"))?,
        1.0,
    ))
}

/// Boots, mounts the image, runs this program in it, unmounts, powers off. What it printed.
fn boot(setting: &Setting<'_>, image: &Path, row: &str, steps: &[&str]) -> Result<String, String> {
    let fail = |e: std::io::Error| format!("user-mode-linux: {e}");
    let out = setting.dir.join("uml");
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir_all(&out).map_err(fail)?;
    let program = std::env::current_exe().map_err(fail)?;
    let quick = if setting.plan.quick { "--quick" } else { "" };
    let script = format!(
        r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
OUT='{out}'
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs none /mnt
mount -t tmpfs none /dev/shm
modules=/usr/lib/uml/modules/$(uname -r)/kernel
for m in crypto/crc32_generic fs/quota/quota_tree fs/quota/quota_v2 fs/f2fs/f2fs; do
    if [ -e "$modules/$m.ko" ]; then insmod "$modules/$m.ko"; fi
done
(
set -e
mkdir /mnt/a
mount -t f2fs -o nodiscard /dev/ubda /mnt/a
'{program}' in-mount {steps} {quick} '{row}' /mnt/a > $OUT/said
umount /mnt/a
) > $OUT/log 2>&1
echo $? > $OUT/status
sync
perl -e 'syscall(169, 0xfee1dead, 672274793, 0x4321fedc, 0)'
"#,
        out = out.display(),
        program = program.display(),
        steps = steps.join(" "),
    );
    let init = out.join("init.sh");
    std::fs::write(&init, script).map_err(fail)?;
    std::fs::set_permissions(&init, std::fs::Permissions::from_mode(0o755)).map_err(fail)?;
    let (memory, limit) = if setting.plan.quick {
        ("512M", "120")
    } else {
        ("2560M", "1200")
    };
    // timeout ends the whole process group, which the guest's processes are in.
    let ran = run(Command::new("timeout")
        .envs(blockwright_oracles::uml_environment())
        .args(["-k", "5", limit, "linux.uml"])
        .arg(format!("mem={memory}"))
        .args(["rootfstype=hostfs", "rw", "con=null", "con0=null,fd:1"])
        .arg(format!("init={}", init.display()))
        .arg(format!("uml_dir={}/", out.display()))
        .arg(format!("ubd0={}", image.display())));
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    if read("status").trim() != "0" {
        return Err(format!("user-mode-linux: {ran:?}: {}", read("log")));
    }
    let said = read("said");
    let _ = std::fs::remove_dir_all(&out);
    Ok(said)
}
