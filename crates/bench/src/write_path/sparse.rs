//! Inode preallocations: the four workloads of the report.

use super::direct::scatter;
use super::kernel;
use super::place::Place;
use super::stream::{beside, open};
use crate::runner::{Plan, Workload};
use crate::table::{Row, Sample, Unit};
use blockwright::VolumeOptions;
use blockwright_device::AlignedBuf;
use blockwright_ext4::comparison::Preallocation;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

const GROUP: &str = "preallocations";

/// Something files can be written in: a volume of the library or a mounted one.
pub trait Target: Sync {
    /// Makes or opens a file, by its path from the root.
    fn file(&self, name: &str) -> Result<Box<dyn Writer>, String>;
    /// Makes a directory at the root.
    fn directory(&self, name: &str) -> Result<(), String>;
}

/// A file of a [`Target`].
pub trait Writer: Send + Sync {
    /// Writes all of it there.
    fn write(&self, data: &[u8], at: u64) -> Result<(), String>;
    /// Makes it durable.
    fn sync(&self) -> Result<(), String>;
}

/// A volume of the library.
pub struct Library(pub Arc<blockwright::Volume>);
/// A mounted volume.
pub struct Mounted(pub PathBuf);

impl Target for Library {
    fn file(&self, name: &str) -> Result<Box<dyn Writer>, String> {
        Ok(Box::new(open(&self.0, &format!("/{name}"), false)?))
    }
    fn directory(&self, name: &str) -> Result<(), String> {
        self.0.create_dir(name).map_err(|e| e.to_string())
    }
}

impl Target for Mounted {
    fn file(&self, name: &str) -> Result<Box<dyn Writer>, String> {
        let file = std::fs::File::create(self.0.join(name)).map_err(|e| e.to_string())?;
        Ok(Box::new(file))
    }
    fn directory(&self, name: &str) -> Result<(), String> {
        std::fs::create_dir(self.0.join(name)).map_err(|e| e.to_string())
    }
}

impl Writer for blockwright::File {
    fn write(&self, data: &[u8], at: u64) -> Result<(), String> {
        self.write_all_at(data, at).map_err(|e| e.to_string())
    }
    fn sync(&self) -> Result<(), String> {
        self.sync_all().map_err(|e| e.to_string())
    }
}

impl Writer for std::fs::File {
    fn write(&self, data: &[u8], at: u64) -> Result<(), String> {
        self.write_all_at(data, at).map_err(|e| e.to_string())
    }
    fn sync(&self) -> Result<(), String> {
        self.sync_all().map_err(|e| e.to_string())
    }
}

/// Sparse writes of 1 KiB in scattered order, each alone in `stride` bytes. A later write near by cuts the preallocation
/// around an earlier one in two. So there are about as many preallocations as writes, and no write finds its blocks at the
/// list's head.
fn sparse_writes(target: &dyn Target, writes: u64, stride: u64) -> Result<f64, String> {
    let file = target.file("t1")?;
    for k in 0..writes {
        file.write(&[7; 1024], scatter(k, writes) * stride)?;
    }
    file.sync()?;
    Ok(writes as f64 * 1024.0 / 1e6)
}

/// How far apart the sparse writes are: so that what is preallocated for all of them is at most a third of the device.
fn sparse_stride(writes: u64, bytes: u64) -> u64 {
    let most = (bytes / 3 / writes).clamp(8192, 64 << 10);
    1 << most.ilog2()
}

/// Bursts: fills `bytes` with writes of 1 KiB in `burst`s that follow each other, at scattered places.
fn bursts(target: &dyn Target, bytes: u64, burst: u64) -> Result<f64, String> {
    let file = target.file("t2")?;
    let bursts = bytes / 1024 / burst;
    for k in 0..bursts {
        let at = scatter(k, bursts) * burst * 1024;
        for i in 0..burst {
            file.write(&[9; 1024], at + i * 1024)?;
        }
    }
    file.sync()?;
    Ok(bytes as f64 / 1e6)
}

/// Files of 2 KiB by 64 threads, each in a directory of its own.
fn small_files(target: &dyn Target, files: u64) -> Result<f64, String> {
    let threads = 64;
    for k in 0..threads {
        target.directory(&format!("d{k}"))?;
    }
    beside(threads, |k| {
        for i in 0..files / threads as u64 {
            target.file(&format!("d{k}/{i}"))?.write(&[3; 2048], 0)?;
        }
        Ok(())
    })?;
    Ok((files / threads as u64 * threads as u64) as f64)
}

/// Does a workload and says how much it was, in 10⁶ bytes or files.
pub type Work = Box<dyn Fn(&dyn Target) -> Result<f64, String>>;

/// The four workloads of the preallocation report: name, unit, what was reported, the work. On a device of `bytes` bytes.
pub fn works(quick: bool, bytes: u64) -> Vec<(String, Unit, &'static str, Work)> {
    let fill: u64 = (if quick { 32 << 20 } else { 5u64 << 30 }).min(bytes / 2);
    let (sparse, files) = if quick {
        (5_000, 2_000)
    } else {
        (200_000, 400_000)
    };
    let stride = sparse_stride(sparse, bytes);
    vec![
        (
            format!(
                "sparse writes: {sparse} of 1 KiB, {} KiB apart",
                stride >> 10
            ),
            Unit::MegabytesPerSecond,
            "list → tree: 11.8 → 23.3, delayed 27.2 → 63.7 MB/s",
            Box::new(move |t| sparse_writes(t, sparse, stride)),
        ),
        (
            format!("random bursts: {} MB, 1 KiB each", fill / 1_000_000),
            Unit::MegabytesPerSecond,
            "list → tree: 1617 → 1740, delayed 2223 → 2208 MB/s",
            Box::new(move |t| bursts(t, fill, 1)),
        ),
        (
            format!(
                "sequential bursts: {} MB, four writes of 1 KiB before each jump",
                fill / 1_000_000
            ),
            Unit::MegabytesPerSecond,
            "list → tree: 1715 → 1823, delayed 2346 → 2364 MB/s",
            Box::new(move |t| bursts(t, fill, 4)),
        ),
        (
            format!("small files: {files} of 2 KiB, 64 threads"),
            Unit::OpsPerSecond,
            "list → tree: 14284 → 14347, delayed 13762 → 13882 files/s",
            Box::new(move |t| small_files(t, files)),
        ),
    ]
}

/// Takes the memory of a page cache once, as small pages, and gives it back to the process's buffers: or whichever variant
/// comes first has the page faults, and the others have its memory.
fn touch_pages(cache_bytes: u64) {
    let pages = cache_bytes.min(256 << 20) / 4096;
    let mut held: Vec<AlignedBuf> = (0..pages).map(|_| AlignedBuf::zeroed(4096)).collect();
    // Zeroed memory may not be there yet.
    held.iter_mut().for_each(|page| page[0] = 1);
}

/// As much memory as the kernel takes by itself: a cache of half of what is available, and dirty pages as its defaults have them
/// (writeback from a tenth on, writers held back at a fifth).
pub fn take_memory_as_kernel(options: &mut VolumeOptions) {
    let available = crate::machine::available_bytes();
    let mount = &mut options.parts.vfs;
    mount.cache_bytes = mount.cache_bytes.max(available / 2);
    mount.dirty_bytes_background = mount.dirty_bytes_background.max(available / 10);
    mount.dirty_bytes_max = mount.dirty_bytes_max.max(available / 5);
}

/// Options for a workload. Bursts write a fourth of each block at a time and so measure the size of the cache.
pub fn options_for(name: &str) -> VolumeOptions {
    let mut options = VolumeOptions::default();
    if name.contains("bursts") {
        take_memory_as_kernel(&mut options);
    }
    options
}

/// The four workloads with and without delayed allocation, and in the kernel.
pub fn run(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    let works = works(plan.quick, place.bytes());
    for (name, unit, reported, work) in &works {
        let library = |delayed: bool, preallocation: Preallocation| {
            move || {
                let bench = place.fresh()?;
                let mut options = options_for(name);
                options.parts.vfs.delayed_allocation = delayed;
                options.parts.ext4.comparison.preallocation = preallocation;
                let volume = Arc::new(bench.open(&options)?);
                touch_pages(options.parts.vfs.cache_bytes);
                let (before, cpu) = (bench.now(), crate::machine::cpu_seconds());
                let amount = work(&Library(Arc::clone(&volume)))?;
                volume.sync().map_err(|e| e.to_string())?;
                let seconds = (bench.now() - before).as_secs_f64();
                Ok(Sample::rate(amount, seconds)
                    .with("cpu ms", (crate::machine::cpu_seconds() - cpu) * 1e3))
            }
        };
        let mut workload = Workload {
            group: GROUP,
            name: name.clone(),
            device: place.name().to_owned(),
            unit: *unit,
            reported,
            variants: Vec::new(),
        }
        .variant("delalloc, tree", library(true, Preallocation::Tree))
        .variant("delalloc, list", library(true, Preallocation::List))
        .variant("nodelalloc, tree", library(false, Preallocation::Tree))
        .variant("nodelalloc, list", library(false, Preallocation::List));
        if kernel::available(place) {
            workload = workload.variant("kernel ext4, loop", move || {
                let Some((mounted, mnt)) = kernel::mount(place)? else {
                    return Err("cannot mount".to_owned());
                };
                let began = std::time::Instant::now();
                let amount = work(&Mounted(mnt.clone()))?;
                crate::machine::run(std::process::Command::new("sync").arg("-f").arg(&mnt))?;
                let seconds = began.elapsed().as_secs_f64();
                mounted.unmount()?;
                Ok(Sample::rate(amount, seconds))
            });
        }
        plan.run(workload, rows)?;
    }
    Ok(())
}
