//! The device under test, and fresh volumes on it.

use blockwright::{Volume, VolumeOptions};
use blockwright_device::sim::modelled::{Model, ModelledDevice, Requests};
use blockwright_device::sim::paced::PacedDevice;
use blockwright_device::{DirectIo, HostDevice, MemoryDevice, OpenMode, SharedDevice};
use blockwright_mkfs::ext4::FormatOptions;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

enum Kind {
    /// A file that is fully written, or a block special.
    Host(PathBuf),
    Memory,
    Model(Model),
    Paced(Model),
}

/// Where volumes are made.
pub struct Place {
    name: String,
    kind: Kind,
    bytes: u64,
    /// Directory for mount points.
    pub dir: PathBuf,
}

/// A device of one run, with the clock that counts for it.
pub struct Bench {
    /// The device.
    pub device: SharedDevice,
    modelled: Option<Arc<ModelledDevice>>,
    began: Instant,
}

impl Bench {
    fn of(device: SharedDevice, modelled: Option<Arc<ModelledDevice>>) -> Self {
        Bench {
            device,
            modelled,
            began: Instant::now(),
        }
    }

    /// What time it is for this device: the machine's, or the model's virtual one.
    pub fn now(&self) -> Duration {
        match &self.modelled {
            Some(m) => m.elapsed(),
            None => self.began.elapsed(),
        }
    }

    /// What the model was asked so far.
    pub fn requests(&self) -> Option<Requests> {
        self.modelled.as_ref().map(|m| m.requests())
    }

    /// Opens the volume on the device.
    pub fn open(&self, options: &VolumeOptions) -> Result<Volume, String> {
        options
            .open_device(Arc::clone(&self.device))
            .map_err(|e| e.to_string())
    }
}

impl Place {
    /// The device called `name`; see [`super::run`].
    pub fn new(name: &str, dir: &Path, quick: bool) -> Result<Self, String> {
        let file_bytes: u64 = if quick { 1 << 30 } else { 11 << 30 };
        let (kind, bytes) = match name.split_once(':') {
            None if name == "file" => {
                let path = dir.join(if quick { "small.img" } else { "write-path.img" });
                fill(&path, file_bytes)?;
                (Kind::Host(path), file_bytes)
            }
            // Memory is dear: half the machine's would leave nothing for the caches.
            None if name == "memory" => (Kind::Memory, if quick { 1 << 30 } else { 4 << 30 }),
            Some(("block", path)) => {
                let path = PathBuf::from(path);
                let device = open_host(&path)?;
                let bytes = device.geometry().bytes;
                (Kind::Host(path), bytes)
            }
            Some((kind @ ("model" | "paced"), model)) => {
                let model = match model {
                    "sdcard" => Model::sd_card(),
                    "emmc" => Model::emmc(),
                    "ufs" => Model::ufs(),
                    "nvme" => Model::nvme(),
                    "raid0" => Model::raid0_of_disks(),
                    other => {
                        return Err(format!(
                            "no model is called {other}: sdcard, emmc, ufs, nvme or raid0"
                        ));
                    }
                };
                let paced = kind == "paced";
                let kind = if paced { Kind::Paced } else { Kind::Model };
                let gib = if quick || paced { 1 } else { 6 };
                (kind(model), gib << 30)
            }
            _ => {
                return Err(format!(
                    "no device is called {name}: file, memory, block:PATH, model:NAME or paced:NAME"
                ));
            }
        };
        Ok(Place {
            name: name.to_owned(),
            kind,
            bytes,
            dir: dir.to_path_buf(),
        })
    }

    /// Its name in tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The image or block special, for peers that need a path.
    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Host(path) => Some(path),
            Kind::Memory | Kind::Model(_) | Kind::Paced(_) => None,
        }
    }

    /// Whether time is virtual: then only orders of requests differ, not processor time.
    pub fn is_virtual(&self) -> bool {
        matches!(self.kind, Kind::Model(_))
    }

    /// Whether the device takes the time that modelled hardware would.
    pub fn is_paced(&self) -> bool {
        matches!(self.kind, Kind::Paced(_))
    }

    /// The device, with whatever is on it (memory and models: with nothing).
    pub fn device(&self) -> Result<Bench, String> {
        let (device, modelled): (SharedDevice, _) = match &self.kind {
            Kind::Host(path) => (open_host(path)?, None),
            Kind::Memory => (Arc::new(MemoryDevice::new(self.bytes)), None),
            Kind::Paced(model) => {
                let storage = MemoryDevice::new(self.bytes);
                let paced = PacedDevice::new(storage, model.clone()).map_err(|e| e.to_string())?;
                (Arc::new(paced), None)
            }
            Kind::Model(model) => {
                let model = ModelledDevice::new(MemoryDevice::new(self.bytes), model.clone());
                let model = Arc::new(model);
                (Arc::clone(&model) as SharedDevice, Some(model))
            }
        };
        Ok(Bench::of(device, modelled))
    }

    /// The device with a fresh, empty ext4 volume on it.
    pub fn fresh(&self) -> Result<Bench, String> {
        self.formatted(|device| {
            let options = FormatOptions {
                block_bytes: Some(4096),
                ..FormatOptions::default()
            };
            blockwright_mkfs::ext4::format(device, &options).map(drop)
        })
    }

    /// The device with a fresh, empty f2fs volume on it.
    pub fn fresh_f2fs(&self) -> Result<Bench, String> {
        self.formatted(|device| {
            let options = blockwright_mkfs::f2fs::FormatOptions::default();
            blockwright_mkfs::f2fs::format(device, &options).map(drop)
        })
    }

    /// The device with what `format` puts on it. Memory is there before it is measured, as an image is fully written.
    fn formatted<E: std::fmt::Display>(
        &self,
        format: impl FnOnce(&SharedDevice) -> Result<(), E>,
    ) -> Result<Bench, String> {
        let (bench, memory) = match self.kind {
            Kind::Memory => {
                let memory = Arc::new(MemoryDevice::new(self.bytes));
                let device = Arc::clone(&memory) as SharedDevice;
                (Bench::of(device, None), Some(memory))
            }
            Kind::Host(_) | Kind::Model(_) | Kind::Paced(_) => (self.device()?, None),
        };
        format(&bench.device).map_err(|e| e.to_string())?;
        bench.device.flush().map_err(|e| e.to_string())?;
        if let Some(memory) = memory {
            memory.populate();
        }
        Ok(bench)
    }
}

fn open_host(path: &Path) -> Result<SharedDevice, String> {
    let mode = OpenMode {
        direct: DirectIo::Always,
        ..OpenMode::default()
    };
    HostDevice::open(path, mode).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file in full, once: a hole would be allocated during the first measurement.
fn fill(path: &Path, bytes: u64) -> Result<(), String> {
    const CHUNK: usize = 4 << 20;
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let done = path.with_extension("filled");
    if done.exists() && path.metadata().is_ok_and(|m| m.len() == bytes) {
        return Ok(());
    }
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_file(&done);
    let bar = indicatif::ProgressBar::new(bytes);
    bar.set_message("filling the image");
    {
        let device = HostDevice::create(path, bytes).map_err(|e| fail(&e))?;
        let chunk = vec![0x5au8; CHUNK];
        let mut at = 0;
        while at < bytes {
            let n = CHUNK.min((bytes - at) as usize);
            device
                .write_at(
                    blockwright_device::DevOffset(at),
                    &chunk[..n],
                    blockwright_device::Flags::empty(),
                )
                .map_err(|e| fail(&e))?;
            at += n as u64;
            bar.set_position(at);
        }
        device.flush().map_err(|e| fail(&e))?;
    }
    bar.finish_and_clear();
    std::fs::write(&done, b"").map_err(|e| fail(&e))
}
