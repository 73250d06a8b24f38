//! [`Mmp`]: multiple-mount protection, a block that the host which has the volume mounted keeps changing.
//!
//! It owns the claim and the thread that renews it. It calls the device, and a hook when another host has taken the volume.
//!
//! Mounting: a host that finds the block changing while it waits must not mount. So mounting takes at
//! least one waiting time, also of a clean volume, because two hosts may begin at the same moment.
//! While mounted a thread rewrites the block at every interval, and checks that no other host did.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Multiple Mount Protection".

use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, DeviceExt, Flags, SharedDevice};
use blockwright_ondisk::ext4::mmp::{RawMmp, SEQ_CLEAN, SEQ_FSCK, SEQ_MAX, SIZE};
use blockwright_ondisk::ext4::{BlockNo, Geometry, Superblock};
use parking_lot::{Condvar, Mutex};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

const OP: &str = "multiple-mount protection";
/// Shortest interval to check with, in seconds: slower hosts must get a chance to write.
const CHECK_INTERVAL_MIN: u64 = 5;
/// Longest update interval, in seconds.
const UPDATE_INTERVAL_MAX: u64 = 300;

struct Area {
    device: SharedDevice,
    geo: Geometry,
    block: BlockNo,
}

impl Area {
    fn read(&self) -> Result<RawMmp> {
        let offset = DevOffset(self.geo.block_offset(self.block));
        let bytes = self
            .device
            .read_buf(offset, self.geo.block_len())
            .map_err(|e| Error::io(OP, e).block(self.block.0))?;
        RawMmp::parse(&bytes, &self.geo)
            .map_err(|e| Error::corrupt(OP, e.to_string()).block(self.block.0))
    }

    fn write(&self, raw: &mut RawMmp) -> Result<()> {
        raw.time.set(crate::volume::now_seconds());
        raw.set_checksum(&self.geo);
        let offset = DevOffset(self.geo.block_offset(self.block));
        let io = |e| Error::io(OP, e).block(self.block.0);
        let mut bytes = self
            .device
            .read_buf(offset, self.geo.block_len())
            .map_err(io)?;
        if let Some(place) = bytes.get_mut(..SIZE) {
            place.copy_from_slice(raw.as_bytes());
        }
        self.device
            .write_at(offset, &bytes, Flags::FUA | Flags::META)
            .map_err(io)
    }
}

fn in_use(raw: &RawMmp) -> Error {
    Error::new(ErrorKind::Busy, OP).detail(format!(
        "the volume is in use on host {} (device {})",
        String::from_utf8_lossy(raw.host()),
        String::from_utf8_lossy(raw.device())
    ))
}

#[derive(Default)]
struct Stop {
    stop: Mutex<bool>,
    wake: Condvar,
}

/// A volume held against other hosts. Dropping it stops the thread and leaves the block as in use.
pub struct Mmp {
    area: Arc<Area>,
    stop: Arc<Stop>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Mmp {
    /// Claims the volume, waiting as long as the protocol demands; `None` without the feature.
    /// `host` is this host's name, if it is known. `lost` is called from the thread when the claim is lost or cannot be renewed.
    ///
    /// # Errors
    /// `Busy` when another host, or a checker, has the volume; `Corrupt`, `Io`.
    pub fn claim(
        device: &SharedDevice,
        superblock: &Superblock,
        host: Option<&str>,
        lost: impl Fn(Error) + Send + 'static,
    ) -> Result<Option<Mmp>> {
        let Some(block) = superblock
            .mmp_block()
            .map_err(|e| Error::corrupt(OP, e.to_string()))?
        else {
            return Ok(None);
        };
        let area = Arc::new(Area {
            device: Arc::clone(device),
            geo: superblock.geo.clone(),
            block,
        });
        let update = match u64::from(superblock.raw.mmp_interval.get()) {
            0 => CHECK_INTERVAL_MIN,
            n => n.min(UPDATE_INTERVAL_MAX),
        };
        let mut raw = area.read()?;
        let check = u64::from(raw.check_interval.get())
            .clamp(CHECK_INTERVAL_MIN, UPDATE_INTERVAL_MAX)
            .max(update);
        let wait = Duration::from_secs((check * 2 + 1).min(check + 60));
        match raw.seq.get() {
            SEQ_CLEAN => {}
            SEQ_FSCK => {
                return Err(Error::new(ErrorKind::Busy, OP).detail(
                    "a checker runs, or was interrupted, on the volume (tune2fs -E clear_mmp)",
                ));
            }
            seen => {
                std::thread::sleep(wait);
                let now = area.read()?;
                if now.seq.get() != seen {
                    return Err(in_use(&now));
                }
            }
        }
        let random = RandomState::new().hash_one(std::process::id());
        let ours = (random % u64::from(SEQ_MAX)) as u32 + 1;
        raw.seq.set(ours);
        put_name(
            &mut raw.nodename,
            &host.map_or_else(host_name, str::to_owned),
        );
        put_name(
            &mut raw.bdevname,
            device.name().rsplit('/').next().unwrap_or_default(),
        );
        area.write(&mut raw)?;
        std::thread::sleep(wait);
        let now = area.read()?;
        if now.seq.get() != ours {
            return Err(in_use(&now));
        }
        let stop = Arc::<Stop>::default();
        let thread = {
            let (area, stop) = (Arc::clone(&area), Arc::clone(&stop));
            std::thread::Builder::new()
                .name("ext4-mmp".into())
                .spawn(move || renew(&area, &stop, raw, update, lost))
                .map_err(|e| Error::new(ErrorKind::Io, OP).detail(e.to_string()))?
        };
        Ok(Some(Mmp {
            area,
            stop,
            thread: Mutex::new(Some(thread)),
        }))
    }

    fn stop(&self) {
        *self.stop.stop.lock() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A thread that panicked has nothing left to stop.
            let _ = thread.join();
        }
    }

    /// Unmounting: others may have the volume.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn release(&self) -> Result<()> {
        self.stop();
        let mut raw = self.area.read()?;
        raw.seq.set(SEQ_CLEAN);
        self.area.write(&mut raw)
    }
}

impl Drop for Mmp {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Rewrites the block at every interval until told to stop or the claim is lost.
fn renew(area: &Area, stop: &Stop, mut raw: RawMmp, update: u64, lost: impl Fn(Error)) {
    let interval = Duration::from_secs(update);
    let mut written = Instant::now();
    loop {
        {
            let mut stopped = stop.stop.lock();
            if !*stopped {
                stop.wake
                    .wait_for(&mut stopped, interval.saturating_sub(written.elapsed()));
            }
            if *stopped {
                return;
            }
        }
        if written.elapsed() < interval {
            continue;
        }
        let ours = raw.seq.get();
        let renewed = area.read().and_then(|now| {
            if now.seq.get() != ours || now.nodename != raw.nodename {
                return Err(in_use(&now));
            }
            raw.seq.set(if ours >= SEQ_MAX { 1 } else { ours + 1 });
            // How late this host may be: other hosts must wait that long.
            let late = written
                .elapsed()
                .as_secs()
                .max(CHECK_INTERVAL_MIN)
                .max(update);
            raw.check_interval.set(late.min(UPDATE_INTERVAL_MAX) as u16);
            area.write(&mut raw)
        });
        if let Err(error) = renewed {
            lost(error);
            return;
        }
        written = Instant::now();
    }
}

fn put_name(place: &mut [u8], name: &str) {
    place.fill(0);
    let len = name.len().min(place.len() - 1);
    place[..len].copy_from_slice(&name.as_bytes()[..len]);
}

fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_else(|_| "unknown".to_owned())
}
