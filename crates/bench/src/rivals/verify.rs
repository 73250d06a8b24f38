//! Whether what is measured is also right.

use super::served::{Served, Who, knows};
use super::{Setting, mke2fs};
use crate::machine::{drop_caches, have, run};
use crate::rivals::jobs::{self, Sizes};
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// Runs every workload with checksums through each of our transports, reads all back after a remount, and has the
/// checkers look at the volume. Small sizes if the plan is quick.
pub fn verify(setting: &Setting<'_>) -> Result<(), String> {
    if !have("fio") {
        return Err("fio is needed".to_owned());
    }
    let image = setting.dir.join("verify.img");
    let mnt = setting.dir.join("verify-mnt");
    let sizes = Sizes::new(setting.plan.quick);
    let bytes: u64 = if setting.plan.quick {
        512 << 20
    } else {
        6 << 30
    };
    File::create(&image)
        .and_then(|f| f.set_len(bytes))
        .map_err(|e| format!("{}: {e}", image.display()))?;
    let mut done = 0;
    for who in Who::OURS {
        if !knows(setting.program, who) {
            eprintln!("{}: not available here, left out", who.name());
            continue;
        }
        for job in jobs::all(&sizes) {
            if !setting.plan.wants("peers", &job.name) {
                continue;
            }
            let place = |e: String| format!("{}, {}: {e}", job.name, who.name());
            one(setting, who, &job, &image, &mnt).map_err(place)?;
            eprintln!("{}, {}: verified", job.name, who.name());
            done += 1;
        }
    }
    let _ = std::fs::remove_file(&image);
    let _ = std::fs::remove_dir(&mnt);
    if done == 0 {
        return Err("no workload is called so".to_owned());
    }
    println!("{done} workloads verified");
    Ok(())
}

fn one(
    setting: &Setting<'_>,
    who: Who,
    job: &jobs::Job,
    image: &Path,
    mnt: &Path,
) -> Result<(), String> {
    mke2fs(image)?;
    let served = Served::mount(who, setting.program, image, mnt)?;
    // Where a file is overwritten, there is one before.
    job.prepare(mnt)?;
    job.write_verified(mnt)?;
    served.unmount()?;
    drop_caches();
    let served = Served::mount(who, setting.program, image, mnt)?;
    job.read_verified(mnt)?;
    served.unmount()?;
    run(Command::new("e2fsck").arg("-fn").arg(image))?;
    run(Command::new(setting.program)
        .args(["check", "-n"])
        .arg(image))
}
