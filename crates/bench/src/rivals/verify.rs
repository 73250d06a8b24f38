//! Whether what is measured is also right.

use super::served::{Served, Server, knows};
use super::{Setting, create};
use crate::machine::{drop_caches, have, run};
use crate::rivals::jobs::{self, Sizes};
use crate::write_path::{Target, Work, Writer, works};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

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
    let formats = setting.formats.available();
    for server in formats.iter().flat_map(|format| Server::ours(*format)) {
        let asked = setting.plan.variant.as_deref();
        if asked.is_some_and(|part| !server.name().contains(part)) {
            continue;
        }
        if !knows(setting.program, server) {
            eprintln!("{}: not available here, left out", server.name());
            continue;
        }
        for job in jobs::all(&sizes) {
            if !setting.plan.wants("peers", &job.name) {
                continue;
            }
            let place = |e: String| format!("{}, {}: {e}", job.name, server.name());
            one(setting, server, &job, &image, &mnt).map_err(place)?;
            eprintln!("{}, {}: verified", job.name, server.name());
            done += 1;
        }
        for check in own(&sizes, bytes) {
            if !setting.plan.wants("peers", &check.name) {
                continue;
            }
            let place = |e: String| format!("{}, {}: {e}", check.name, server.name());
            mounts(setting, server, &image, &mnt, &*check.write, &*check.look).map_err(place)?;
            eprintln!("{}, {}: verified", check.name, server.name());
            done += 1;
        }
    }
    let _ = std::fs::remove_file(&image);
    let _ = std::fs::remove_dir(&mnt);
    if done == 0 {
        return Err("no workload, or nothing that is here, is called so".to_owned());
    }
    println!("{done} workloads verified");
    Ok(())
}

fn one(
    setting: &Setting<'_>,
    server: Server,
    job: &jobs::Job,
    image: &Path,
    mnt: &Path,
) -> Result<(), String> {
    let write = |mnt: &Path| {
        // Where a file is overwritten, there is one before.
        job.prepare(mnt)?;
        job.write_verified(mnt)
    };
    mounts(setting, server, image, mnt, &write, &|mnt| {
        job.read_verified(mnt)
    })
}

type InMount<'a> = dyn Fn(&Path) -> Result<(), String> + 'a;

/// A workload that fio does not do.
struct Own {
    name: String,
    write: Box<InMount<'static>>,
    look: Box<InMount<'static>>,
}

/// Making files, and the workloads of preallocation in their small form: they write each place once, so that doing them again and reading
/// instead of writing shows whether all is there.
fn own(sizes: &Sizes, bytes: u64) -> Vec<Own> {
    let mut all = Vec::new();
    for threads in create::THREADS {
        let files = sizes.creates / threads;
        all.push(Own {
            name: create::name(threads),
            write: Box::new(move |mnt| {
                create::prepare(mnt, threads)?;
                create::in_mount(mnt, threads, files).map(drop)
            }),
            look: Box::new(move |mnt| create::verify(mnt, threads, files)),
        });
    }
    for (name, .., work) in works(true, bytes) {
        let work: Rc<Work> = Rc::new(work);
        let again = Rc::clone(&work);
        all.push(Own {
            name,
            write: Box::new(move |mnt| work(&Marked(mnt.to_path_buf())).map(drop)),
            look: Box::new(move |mnt| again(&Recalled(mnt.to_path_buf())).map(drop)),
        });
    }
    all
}

/// A mount in which what is written tells where it belongs.
struct Marked(PathBuf);
/// The same mount later: what was to be written is read and compared.
struct Recalled(PathBuf);

struct MarkedFile(File, u64);
struct RecalledFile(File, u64, String);

/// A number of a file's name (FNV-1a).
fn number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, byte| {
        (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// `len` bytes that no other file and no other place has.
fn mark(file: u64, at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64)
        .map(|at| ((file ^ (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> (at % 8 * 8)) as u8)
        .collect()
}

impl Target for Marked {
    fn file(&self, name: &str) -> Result<Box<dyn Writer>, String> {
        let file = File::create(self.0.join(name)).map_err(|e| e.to_string())?;
        Ok(Box::new(MarkedFile(file, number(name))))
    }
    fn directory(&self, name: &str) -> Result<(), String> {
        std::fs::create_dir(self.0.join(name)).map_err(|e| e.to_string())
    }
}

impl Writer for MarkedFile {
    fn write(&self, data: &[u8], at: u64) -> Result<(), String> {
        let marked = mark(self.1, at, data.len());
        self.0.write_all_at(&marked, at).map_err(|e| e.to_string())
    }
    fn sync(&self) -> Result<(), String> {
        self.0.sync_all().map_err(|e| e.to_string())
    }
}

impl Target for Recalled {
    fn file(&self, name: &str) -> Result<Box<dyn Writer>, String> {
        let file = File::open(self.0.join(name)).map_err(|e| format!("{name}: {e}"))?;
        Ok(Box::new(RecalledFile(file, number(name), name.to_owned())))
    }
    fn directory(&self, name: &str) -> Result<(), String> {
        match self.0.join(name).is_dir() {
            true => Ok(()),
            false => Err(format!("{name}: not the directory that was made")),
        }
    }
}

impl Writer for RecalledFile {
    fn write(&self, data: &[u8], at: u64) -> Result<(), String> {
        let mut found = vec![0; data.len()];
        let place = || format!("{} at {at}", self.2);
        self.0
            .read_exact_at(&mut found, at)
            .map_err(|e| format!("{}: {e}", place()))?;
        if found == mark(self.1, at, data.len()) {
            Ok(())
        } else {
            Err(format!("{}: not what was written", place()))
        }
    }
    fn sync(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Writes in a fresh volume, looks after a remount, and has the checkers look.
fn mounts(
    setting: &Setting<'_>,
    server: Server,
    image: &Path,
    mnt: &Path,
    write: &InMount<'_>,
    look: &InMount<'_>,
) -> Result<(), String> {
    server.format().make(image)?;
    let served = Served::mount(server, setting.program, image, mnt)?;
    write(mnt)?;
    served.unmount()?;
    drop_caches();
    let served = Served::mount(server, setting.program, image, mnt)?;
    look(mnt)?;
    served.unmount()?;
    server.format().check(image)?;
    run(Command::new(setting.program)
        .args(["check", "-n"])
        .arg(image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_tell_files_and_places_apart() {
        let whole = mark(number("a"), 0, 4096);
        assert_eq!(mark(number("a"), 1000, 24), whole[1000..1024]);
        assert_ne!(mark(number("b"), 1000, 24), whole[1000..1024]);
        assert_ne!(whole[..1024], whole[1024..2048]);
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().to_path_buf();
        let written = Marked(place.clone()).file("a").unwrap();
        written.write(&[0; 2048], 8192).unwrap();
        let recalled = Recalled(place).file("a").unwrap();
        recalled.write(&[0; 2048], 8192).unwrap();
        assert!(recalled.write(&[0; 2048], 4096).is_err(), "a hole");
        assert!(recalled.write(&[0; 2048], 9216).is_err(), "the end");
    }
}
