//! The jobs that fio runs in a mount, the same for each rival: streams, random, appended and synced writes, cold reads.
//!
//! [`all`] lists them. A job also says what file it finds and whether the volume is remounted before, which is not timed.

use crate::machine::run;
use crate::table::{Sample, Unit};
use std::path::Path;
use std::process::Command;

/// How much is moved.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// One file's stream, of large and of small writes, and of random ones.
    pub stream: u64,
    pub small: u64,
    pub random: u64,
    /// The file that is overwritten, and how much of it is.
    pub file: u64,
    pub overwritten: u64,
    /// What each of 32 jobs appends, in small and in large writes.
    pub append_small: u64,
    pub append_large: u64,
    /// What each of 32 jobs writes, syncing after each write.
    pub synced: u64,
    /// A file that exists and is overwritten from start to end, synced after each write, as a database does with its log.
    pub resynced: u64,
    /// Files made.
    pub creates: u64,
    /// The time limit of one fio in seconds.
    limit: u64,
}

impl Sizes {
    /// Those that are measured, or with `quick` small ones that only show that everything runs.
    pub fn new(quick: bool) -> Self {
        if quick {
            return Sizes {
                stream: 64 << 20,
                small: 16 << 20,
                random: 8 << 20,
                file: 32 << 20,
                overwritten: 16 << 20,
                append_small: 256 << 10,
                append_large: 1 << 20,
                synced: 40 << 10,
                resynced: 1 << 20,
                creates: 800,
                limit: 120,
            };
        }
        Sizes {
            stream: 2 << 30,
            small: 1 << 30,
            random: 512 << 20,
            file: 1 << 30,
            overwritten: 1 << 30,
            append_small: 16 << 20,
            append_large: 32 << 20,
            synced: 800 << 10,
            resynced: 8 << 20,
            creates: 40_000,
            limit: 900,
        }
    }
}

/// What a job does. The library is measured without fio, and does the same by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Buffered, one after another, of this many bytes each.
    Stream(usize),
    /// Buffered, anywhere, 4 KiB.
    Random,
    /// Direct, anywhere, 4 KiB, 64 at once.
    Overwrite,
    /// Direct, one after another, of this many bytes each, by 32.
    Append(usize),
    /// Buffered reading of 1 MiB, nothing cached.
    Read,
    /// Buffered, 4 KiB, each synced, by 32.
    Synced,
    /// Buffered, 8 KiB, over what is there, the data synced after each, by so many.
    Resynced(usize),
}

impl Kind {
    /// Bytes of one operation, where operations are counted.
    pub fn op_bytes(self) -> u64 {
        match self {
            Kind::Resynced(_) => 8192,
            Kind::Stream(each) | Kind::Append(each) => each as u64,
            Kind::Random | Kind::Overwrite | Kind::Synced => 4096,
            Kind::Read => 1 << 20,
        }
    }

    /// How many files are there before, one for each job.
    fn files(self) -> usize {
        match self {
            Kind::Resynced(jobs) => jobs,
            _ => 1,
        }
    }
}

/// One workload.
pub struct Job {
    pub name: String,
    pub unit: Unit,
    pub kind: Kind,
    /// The file has this size before.
    pub file: Option<u64>,
    /// Remounted, and caches dropped, before the timed part.
    pub cold: bool,
    /// What fio is told.
    pub arguments: Vec<String>,
    /// Seconds after which fio is given up.
    limit: u64,
    /// fio's direction.
    reads: bool,
}

/// The arguments in one text.
fn split(text: &str) -> Vec<String> {
    text.split_whitespace()
        .map(|word| format!("--{word}"))
        .collect()
}

/// All workloads that fio does.
pub fn all(s: &Sizes) -> Vec<Job> {
    let job = |name: &str, kind: Kind, file: Option<u64>, arguments: String| Job {
        name: name.to_owned(),
        unit: match kind {
            Kind::Synced | Kind::Resynced(_) => Unit::OpsPerSecond,
            _ => Unit::MegabytesPerSecond,
        },
        kind,
        file,
        cold: kind == Kind::Read,
        arguments: split(&arguments),
        limit: s.limit,
        reads: kind == Kind::Read,
    };
    // Created when they are opened, so that writes append; never allocated before.
    let fresh = "create_on_open=1 fallocate=none";
    let resynced = |jobs: usize, name: &str| {
        job(
            name,
            Kind::Resynced(jobs),
            Some(s.resynced),
            format!(
                "rw=write bs=8k size={} numjobs={jobs} fdatasync=1 overwrite=1",
                s.resynced
            ),
        )
    };
    vec![
        job(
            "buffered write, 1 MiB",
            Kind::Stream(1 << 20),
            None,
            format!("rw=write bs=1M size={} end_fsync=1 {fresh}", s.stream),
        ),
        job(
            "buffered write, 4 KiB",
            Kind::Stream(4096),
            None,
            format!("rw=write bs=4k size={} end_fsync=1 {fresh}", s.small),
        ),
        job(
            "buffered random write, 4 KiB",
            Kind::Random,
            None,
            format!("rw=randwrite bs=4k size={} end_fsync=1 {fresh}", s.random),
        ),
        job(
            "direct overwrite, 4 KiB, depth 64",
            Kind::Overwrite,
            Some(s.file),
            format!(
                "rw=randwrite bs=4k size={} io_size={} direct=1 ioengine=libaio iodepth=64 overwrite=1",
                s.file, s.overwritten
            ),
        ),
        job(
            "direct append, 4 KiB, 32 jobs",
            Kind::Append(4096),
            None,
            format!(
                "rw=write bs=4k size={} numjobs=32 direct=1 {fresh}",
                s.append_small
            ),
        ),
        job(
            "direct append, 128 KiB, 32 jobs",
            Kind::Append(128 << 10),
            None,
            format!(
                "rw=write bs=128k size={} numjobs=32 direct=1 {fresh}",
                s.append_large
            ),
        ),
        job(
            "cold read, 1 MiB",
            Kind::Read,
            Some(s.stream),
            format!("rw=read bs=1M size={}", s.stream),
        ),
        job(
            "write 4 KiB and fsync, 32 jobs",
            Kind::Synced,
            None,
            format!(
                "rw=write bs=4k size={} numjobs=32 fsync=1 {fresh}",
                s.synced
            ),
        ),
        resynced(1, "overwrite 8 KiB and fdatasync, 1 job"),
        resynced(4, "overwrite 8 KiB and fdatasync, 4 jobs"),
    ]
}

/// fio, about to run in a directory.
fn command(limit: u64, mnt: &Path) -> Command {
    let mut command = Command::new("timeout");
    command
        .args(["-k", "10", &limit.to_string(), "fio"])
        .args(["--name=job", "--thread", "--group_reporting"])
        .arg("--output-format=json")
        // One name for one job, or the file that was laid out would not be the one that is used.
        .arg("--filename_format=job.$jobnum")
        .arg(format!("--directory={}", mnt.display()))
        // What it keeps about itself must not lie in what is measured.
        .current_dir("/tmp");
    command
}

impl Job {
    /// Lays out the file that is used later.
    pub fn prepare(&self, mnt: &Path) -> Result<(), String> {
        let Some(bytes) = self.file else {
            return Ok(());
        };
        run(command(self.limit, mnt).args(split(&format!(
            "rw=write bs=1M size={bytes} end_fsync=1 fallocate=none numjobs={}",
            self.kind.files()
        ))))
    }

    /// Does it and says how fast it was.
    pub fn run(&self, mnt: &Path) -> Result<Sample, String> {
        let out = command(self.limit, mnt)
            .args(&self.arguments)
            .output()
            .map_err(|e| format!("fio: {e}"))?;
        let error = String::from_utf8_lossy(&out.stderr);
        let text = String::from_utf8_lossy(&out.stdout);
        // Warnings come before the document.
        let json = text.find('{').map_or("", |at| &text[at..]);
        let value: serde_json::Value =
            serde_json::from_str(json).map_err(|e| format!("fio: {}: {e}: {error}", out.status))?;
        let side = &value["jobs"][0][if self.reads { "read" } else { "write" }];
        let rate = side["bw_bytes"].as_f64().unwrap_or(0.0);
        if !out.status.success() || rate <= 0.0 {
            return Err(format!("fio: {}: {error}", out.status));
        }
        let amount = match self.unit {
            Unit::MegabytesPerSecond => rate / 1e6,
            Unit::OpsPerSecond => rate / self.kind.op_bytes() as f64,
        };
        Ok(Sample::rate(amount, 1.0))
    }

    /// With checksums in what is written; they are looked at right away.
    pub fn write_verified(&self, mnt: &Path) -> Result<(), String> {
        let mut arguments = self.arguments.clone();
        if self.reads {
            // What is read must have been written so.
            arguments.retain(|a| !a.starts_with("--rw="));
            arguments.extend(split("rw=write end_fsync=1 fallocate=none"));
        }
        // Every block is written once. Otherwise the last write of a block would be unknown.
        arguments.retain(|a| !a.starts_with("--io_size="));
        run(command(self.limit, mnt)
            .args(arguments)
            .args(split(VERIFY))
            .arg("--do_verify=1"))
    }

    /// Looks at the checksums of what [`Job::write_verified`] has written.
    pub fn read_verified(&self, mnt: &Path) -> Result<(), String> {
        let left_out = ["--io_size=", "--fsync=", "--fdatasync="];
        let kept = self
            .arguments
            .iter()
            .filter(|a| !left_out.iter().any(|name| a.starts_with(name)));
        run(command(self.limit, mnt)
            .args(kept)
            .args(split(VERIFY))
            .args(if self.reads { &["--rw=write"][..] } else { &[] })
            .arg("--verify_only=1"))
    }
}

const VERIFY: &str = "verify=crc32c verify_fatal=1 verify_state_save=0 randrepeat=1";
