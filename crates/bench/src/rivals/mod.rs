//! `peers`: ordinary workloads through our mounts, our library, the kernel's ext4 and fuse2fs, in turn.
//!
//! The workloads are those of the FUSE table (eight), fsyncs of one and of several jobs, and the four of the preallocation report. All
//! peers work on the same fully written image file, made anew by mke2fs or mkfs.f2fs before every run. Our f2fs is measured
//! against the kernel's ext4, as ext4 is, and against the kernel's f2fs in user-mode-linux. A child touches memory
//! right before the timed part of every run (see `runner`).
//!
//! `verify` runs the same workloads small, with fio's checksums in the data, and reads it all back after a
//! remount; then e2fsck and our own checker look at the volume.

mod create;
mod jobs;
mod library;
mod served;
mod uml;
mod verify;

pub use uml::{InMountArgs, in_mount};
pub use verify::verify;

use crate::machine::{drop_caches, have, run, sync_all};
use crate::runner::{self, Plan, Workload};
use crate::table::{Row, Sample, Unit};
use crate::volumes::{Format, Formats};
use crate::write_path::{Place, Work, works};
use jobs::Sizes;
use serde::Serialize;
use served::{Served, Server};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// What a row has to reach.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// Which variant.
    variant: &'static str,
    /// Against which.
    against: &'static str,
    /// The least ratio.
    must: f64,
    /// The ratio aimed at, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    aim: Option<f64>,
    /// The ratio measured: the median of pairs. Absent when one of the two was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    got: Option<f64>,
}

/// A row and what it has to reach.
#[derive(Debug, Serialize)]
pub struct Judged {
    #[serde(flatten)]
    row: Row,
    targets: Vec<Target>,
}

/// What is stored.
#[derive(Debug, Serialize)]
pub struct Results {
    what: &'static str,
    machine: String,
    quick: bool,
    rounds: usize,
    rows: Vec<Judged>,
}

impl Results {
    /// The table, and below it what was reached.
    pub fn markdown(&self) -> String {
        let rows: Vec<Row> = self.rows.iter().map(|j| j.row.clone()).collect();
        let mut out = crate::table::markdown(&rows);
        out.push_str(
            "\n| workload | of | against | must | aim | got |\n|---|---|---|---|---|---|\n",
        );
        for judged in &self.rows {
            for t in &judged.targets {
                let aim = t.aim.map(|a| format!("{a:.2}")).unwrap_or_default();
                let got = match t.got {
                    Some(got) if got >= t.must => format!("{got:.2}"),
                    Some(got) => format!("**{got:.2}**"),
                    None => "–".to_owned(),
                };
                out.push_str(&format!(
                    "| {} | {} | {} | {:.2} | {aim} | {got} |\n",
                    judged.row.workload, t.variant, t.against, t.must
                ));
            }
        }
        out
    }
}

/// Where and with what.
pub struct Setting<'a> {
    pub plan: &'a Plan,
    pub dir: &'a Path,
    pub program: &'a Path,
    pub formats: Formats,
}

/// All servers that can be measured here. Names those that cannot.
fn servers(setting: &Setting<'_>) -> Vec<Server> {
    let mut all = Vec::new();
    let formats = setting.formats.available();
    for server in formats.iter().flat_map(|format| Server::ours(*format)) {
        if served::knows(setting.program, server) {
            all.push(server);
        } else {
            eprintln!("{}: not available here, left out", server.name());
        }
    }
    if rustix::process::geteuid().is_root() {
        all.push(Server::Kernel);
    } else {
        eprintln!("not root: the kernel's ext4 is left out");
    }
    if have("fuse2fs") {
        all.push(Server::Fuse2fs);
    } else {
        eprintln!("fuse2fs is not installed: left out");
    }
    if formats.contains(&Format::F2fs) {
        if uml::available() {
            all.push(Server::Uml);
        } else {
            eprintln!("user-mode-linux is not installed: the kernel's f2fs is left out");
        }
    }
    all
}

/// The library's variants.
fn libraries(setting: &Setting<'_>) -> Vec<(&'static str, Format)> {
    let named = |format: &Format| match format {
        Format::Ext4 => (Server::LIBRARY, *format),
        Format::F2fs => (Server::F2FS_LIBRARY, *format),
    };
    setting.formats.list().iter().map(named).collect()
}

/// A mount of one run, and what it is made of.
struct Run<'a> {
    setting: &'a Setting<'a>,
    image: PathBuf,
    mnt: PathBuf,
    server: Server,
}

impl Run<'_> {
    fn mount(&self) -> Result<Served, String> {
        Served::mount(self.server, self.setting.program, &self.image, &self.mnt)
    }

    /// Prepares, remounts if the work is to be done cold, times the work, unmounts.
    fn timed(
        &self,
        row: &str,
        before: impl FnOnce(&Path) -> Result<(), String>,
        cold: bool,
        work: impl FnOnce(&Path) -> Result<Sample, String>,
    ) -> Result<Sample, String> {
        if self.server == Server::Uml {
            return uml::timed(self.setting, &self.image, row, cold);
        }
        self.server.format().make(&self.image)?;
        let mut served = self.mount()?;
        before(&self.mnt)?;
        sync_all();
        if cold {
            served.unmount()?;
            drop_caches();
            served = self.mount()?;
        }
        runner::touch(self.setting.plan.touch_bytes)?;
        let sample = work(&self.mnt)?;
        let resident = served.resident_mb();
        served.unmount()?;
        Ok(match resident {
            Some(mb) => sample.with("resident MB", mb),
            None => sample,
        })
    }
}

/// Measures what the plan asks for.
pub fn measure(setting: &Setting<'_>) -> Result<Results, String> {
    if !have("fio") {
        return Err("fio is needed".to_owned());
    }
    let place = Place::new("file", setting.dir, setting.plan.quick)?;
    let image = place.path().ok_or("no image")?.to_path_buf();
    let mnt = setting.dir.join("peers-mnt");
    let servers = servers(setting);
    // Memory is touched here, right before the timed part.
    let plan = Plan {
        touch_bytes: 0,
        ..setting.plan.clone()
    };
    let sizes = Sizes::new(plan.quick);
    let each = |server| Run {
        setting,
        image: image.clone(),
        mnt: mnt.clone(),
        server,
    };
    let mut rows = Vec::new();
    for job in jobs::all(&sizes) {
        let mut workload = empty(job.name.clone(), job.unit);
        let job = &job;
        for server in &servers {
            let run = each(*server);
            workload = workload.variant(server.name(), move || {
                run.timed(
                    &job.name,
                    |mnt| job.prepare(mnt),
                    job.cold,
                    |mnt| job.run(mnt),
                )
            });
        }
        for (name, format) in libraries(setting) {
            if let Some(work) = library::work(job, &sizes) {
                let (place, touch) = (&place, setting.plan.touch_bytes);
                workload = workload.variant(name, move || work(place, format, touch));
            }
        }
        plan.run(workload, &mut rows)?;
    }
    for threads in create::THREADS {
        let files = sizes.creates / threads;
        let mut workload = empty(create::name(threads), Unit::OpsPerSecond);
        for server in &servers {
            let run = each(*server);
            workload = workload.variant(server.name(), move || {
                run.timed(
                    &create::name(threads),
                    |mnt| create::prepare(mnt, threads),
                    false,
                    |mnt| create::in_mount(mnt, threads, files),
                )
            });
        }
        let (place, touch) = (&place, setting.plan.touch_bytes);
        for (name, format) in libraries(setting) {
            workload = workload.variant(name, move || {
                create::in_library(place, format, touch, threads, files)
            });
        }
        plan.run(workload, &mut rows)?;
    }
    for (name, unit, reported, work) in works(plan.quick, place.bytes()) {
        let mut workload = empty(name.clone(), unit);
        workload.reported = reported;
        let work: &Work = &work;
        for server in &servers {
            // An hour for what the others do in a minute is not worth it. And these rows are about ext4's allocation.
            if *server == Server::Fuse2fs && !plan.quick || server.format() == Format::F2fs {
                continue;
            }
            let run = each(*server);
            workload = workload.variant(server.name(), move || {
                run.timed(
                    "T",
                    |_| Ok(()),
                    false,
                    |mnt| {
                        let began = Instant::now();
                        let amount = work(&crate::write_path::Mounted(mnt.to_path_buf()))?;
                        sync(mnt)?;
                        Ok(Sample::rate(amount, began.elapsed().as_secs_f64()))
                    },
                )
            });
        }
        let (place, touch) = (&place, setting.plan.touch_bytes);
        if setting.formats.list().contains(&Format::Ext4) {
            workload = workload.variant(Server::LIBRARY, {
                let name = name.as_str();
                move || library::t(place, touch, name, work)
            });
        }
        plan.run(workload, &mut rows)?;
    }
    if rows.is_empty() {
        return Err("no workload is called so".to_owned());
    }
    let rows = rows.into_iter().map(judge).collect();
    Ok(Results {
        what: "peers",
        machine: crate::machine::describe(),
        quick: plan.quick,
        rounds: plan.rounds,
        rows,
    })
}

fn empty<'a>(name: String, unit: Unit) -> Workload<'a> {
    Workload {
        group: "peers",
        name,
        device: "file".to_owned(),
        unit,
        reported: "",
        variants: Vec::new(),
    }
}

/// Writes back everything in a mount.
fn sync(mnt: &Path) -> Result<(), String> {
    run(Command::new("sync").arg("-f").arg(mnt))
}

/// (workload begins with, of which variant, must, aim), all against the kernel.
const TARGETS: &[(&str, &[&str], f64, Option<f64>)] = &[
    ("buffered write, 1 MiB", &Server::MOUNTS, 0.7, Some(0.93)),
    ("buffered write, 4 KiB", &Server::MOUNTS, 0.9, Some(1.13)),
    ("buffered random write", &Server::MOUNTS, 1.0, Some(1.2)),
    ("direct overwrite", &Server::MOUNTS, 1.0, Some(1.17)),
    ("direct append, 4 KiB", &Server::MOUNTS, 1.0, Some(1.18)),
    ("direct append, 128 KiB", &Server::MOUNTS, 0.9, Some(0.93)),
    ("cold read", &Server::MOUNTS, 1.0, Some(2.12)),
    (
        "create and close, 1 thread",
        &Server::MOUNTS,
        0.4,
        Some(0.7),
    ),
    (
        "create and close, 8 threads",
        &Server::MOUNTS,
        0.3,
        Some(0.4),
    ),
    ("write 4 KiB and fsync", &Server::MOUNTS, 1.0, None),
    ("write 4 KiB and fsync", &[Server::LIBRARY], 1.0, None),
    ("buffered write, 1 MiB", &[Server::LIBRARY], 1.0, None),
    ("sparse writes", &[Server::LIBRARY], 2.0, None),
    ("random bursts", &[Server::LIBRARY], 1.0, None),
    ("sequential bursts", &[Server::LIBRARY], 1.0, None),
    ("small files", &[Server::LIBRARY], 1.0, Some(2.0)),
];
/// Where fuse2fs is slower than the kernel by this in streams and overwrites, we are faster than it by this.
const FUSE2FS: f64 = 5.0;
/// On no workload is a mount over io_uring, the default, slower than one over `/dev/fuse` by more than 3 %.
const TRANSPORTS: f64 = 0.97;
/// Where the processor is the limit, f2fs is faster than the kernel's in user-mode-linux by this.
const UML: f64 = 3.0;

fn judge(row: Row) -> Judged {
    let kernel = Server::Kernel.name();
    let median_of = |name: &str| {
        let variant = row.variants.iter().find(|v| v.name == name);
        variant.map(|v| crate::stats::median(&v.values))
    };
    let pair = |variant: &str, against: &str| {
        let of = |name: &str| row.variants.iter().find(|v| v.name == name);
        let pairs = of(variant)?.values.iter().zip(&of(against)?.values);
        let pairs: Vec<f64> = pairs.map(|(a, b)| a / b).collect();
        (!pairs.is_empty()).then(|| crate::stats::median(&pairs))
    };
    let mut targets = Vec::new();
    for (begins, variants, must, aim) in TARGETS {
        if row.workload.starts_with(begins) {
            // The same of f2fs's mount, in the rows that are asked of it.
            let f2fs =
                match *variants == Server::MOUNTS && !row.workload.ends_with("fsync, 32 jobs") {
                    true => &Server::F2FS_MOUNTS[..],
                    false => &[],
                };
            targets.extend(variants.iter().chain(f2fs).map(|variant| Target {
                variant,
                against: kernel,
                must: *must,
                aim: *aim,
                got: pair(variant, kernel),
            }));
        }
    }
    let uml = Server::Uml.name();
    if median_of(uml).is_some()
        && targets
            .iter()
            .any(|t| Server::F2FS_MOUNTS.contains(&t.variant))
    {
        targets.extend(Server::F2FS_MOUNTS.into_iter().map(|variant| Target {
            variant,
            against: uml,
            must: UML,
            aim: None,
            got: pair(variant, uml),
        }));
    }
    let fuse2fs = Server::Fuse2fs.name();
    if let (Some(theirs), Some(kernels)) = (median_of(fuse2fs), median_of(kernel))
        && kernels >= theirs * FUSE2FS
        && matches!(row.unit, Unit::MegabytesPerSecond)
        && !row.workload.ends_with("fsync, 32 jobs")
    {
        targets.extend(Server::MOUNTS.into_iter().map(|variant| Target {
            variant,
            against: fuse2fs,
            must: FUSE2FS,
            aim: None,
            got: pair(variant, fuse2fs),
        }));
    }
    for [uring, dev_fuse] in [Server::MOUNTS, Server::F2FS_MOUNTS] {
        targets.extend(pair(uring, dev_fuse).map(|got| Target {
            variant: uring,
            against: dev_fuse,
            must: TRANSPORTS,
            aim: None,
            got: Some(got),
        }));
    }
    // A transport that is not here is not judged.
    targets.retain(|t| row.variants.iter().any(|v| v.name == t.variant));
    Judged { row, targets }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Variant;

    fn variant(name: &str, values: &[f64]) -> Variant {
        Variant {
            name: name.to_owned(),
            values: values.to_vec(),
            extra: Default::default(),
        }
    }

    fn row(workload: &str, unit: Unit, variants: Vec<Variant>) -> Row {
        Row {
            group: "peers".into(),
            workload: workload.into(),
            device: "file".into(),
            unit,
            variants,
            reported: "",
        }
    }

    #[test]
    fn the_default_transport_is_judged_by_the_other() {
        let variants = vec![
            variant(Server::MOUNTS[0], &[90.0, 96.0, 100.0]),
            variant(Server::MOUNTS[1], &[100.0, 100.0, 80.0]),
        ];
        let name = "overwrite 8 KiB and fdatasync, 1 job";
        let judged = judge(row(name, Unit::OpsPerSecond, variants));
        let [uring, dev_fuse] = Server::MOUNTS;
        let target = judged.targets.iter().find(|t| t.against == dev_fuse);
        let target = target.expect("judged");
        assert_eq!((target.variant, target.got), (uring, Some(0.96)));
        assert!(target.got < Some(target.must), "3 % are too much");
    }

    #[test]
    fn pairs_are_judged() {
        let row = row(
            "buffered write, 1 MiB",
            Unit::MegabytesPerSecond,
            vec![
                variant(Server::MOUNTS[1], &[60.0, 300.0]),
                variant(Server::Kernel.name(), &[100.0, 400.0]),
                variant(Server::Fuse2fs.name(), &[10.0, 40.0]),
                variant(Server::LIBRARY, &[200.0, 200.0]),
                variant(Server::F2FS_MOUNTS[0], &[80.0, 400.0]),
                variant(Server::Uml.name(), &[40.0, 100.0]),
            ],
        );
        let judged = judge(row);
        let got: Vec<(&str, &str, f64, Option<f64>)> = judged
            .targets
            .iter()
            .map(|t| (t.variant, t.against, t.must, t.got))
            .collect();
        assert_eq!(
            got,
            [
                (Server::MOUNTS[1], Server::Kernel.name(), 0.7, Some(0.675)),
                (
                    Server::F2FS_MOUNTS[0],
                    Server::Kernel.name(),
                    0.7,
                    Some(0.9)
                ),
                (Server::LIBRARY, Server::Kernel.name(), 1.0, Some(1.25)),
                (Server::F2FS_MOUNTS[0], Server::Uml.name(), 3.0, Some(3.0)),
                (Server::MOUNTS[1], Server::Fuse2fs.name(), 5.0, Some(6.75)),
            ]
        );
    }
}
