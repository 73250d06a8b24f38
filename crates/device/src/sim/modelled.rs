//! Storage hardware that this machine does not have, in virtual time.
//!
//! [`ModelledDevice`] keeps its bytes in a [`MemoryDevice`] and works out, request by request, when
//! the modelled hardware would have finished. Nothing sleeps. The model has four parts:
//!
//! * a number of **units** that work at the same time (flash dies behind a queue, or the disks of
//!   an array), each busy for a request's access time;
//! * a shared **bus** whose bandwidth limits large transfers in each direction;
//! * for disks, **seeks**: a head per unit, distance by the square root, half a turn of rotation
//!   when the request does not follow the last one;
//! * for cheap flash, **open erase blocks**: a write outside those that are open, or not
//!   following the last write inside one, pays for the controller's copying.
//!
//! # Time
//! A request arrives "now". A synchronous call moves now to its completion: synchronous callers are
//! one after another in virtual time, independent of their threads. A submitted request does not move
//! now unless the queue is full, when it waits for the earliest completion. Inside a completion,
//! now is that request's completion time, so chains cost what they should. `elapsed` is when all
//! that was asked is finished. Processor time costs nothing.
//!
//! # What it is good for
//! Comparing two orders of requests on one kind of hardware. The parameters are typical published
//! figures (at [`Model`]'s constructors), not measurements of one product; there is no wear, no
//! background collection, no thermal limit and no cache beyond `flush` costs.

use super::memory::MemoryDevice;
use crate::{AlignedBuf, BlockDevice, DevOffset, Flags, Geometry, Op, Request, Result};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

/// Movement of a disk's head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seek {
    /// To the neighbouring track.
    pub shortest: Duration,
    /// Across the whole disk.
    pub longest: Duration,
    /// One turn of the platters.
    pub turn: Duration,
}

/// Erase blocks of cheap flash.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EraseBlocks {
    /// Their size in bytes (the card's allocation unit).
    pub bytes: u64,
    /// How many can be written to without closing another.
    pub open_max: usize,
    /// Cost of closing one to open another.
    pub reopen: Duration,
    /// Cost of a write in an open one that does not follow the last write there.
    pub jump: Duration,
}

/// What requests came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Reads, writes, flushes and discards.
    pub all: u64,
    /// Writes in an open erase block that did not follow the last write there, or did not begin a new one at its beginning.
    pub jumps: u64,
    /// Erase blocks closed to open another.
    pub reopened: u64,
}

/// Parameters of a kind of hardware.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// What it is.
    pub name: &'static str,
    /// Units that work at the same time.
    pub units: usize,
    /// Bytes that lie on one unit before the next one's begin; 0: any free unit serves.
    pub stripe_bytes: u64,
    /// Requests that the device takes before submitters wait.
    pub queue_depth: usize,
    /// A unit's time for a read besides the transfer.
    pub read_access: Duration,
    /// A unit's time for a write besides the transfer.
    pub write_access: Duration,
    /// Of all units together, in bytes a second.
    pub read_bandwidth: u64,
    /// Of all units together, in bytes a second.
    pub write_bandwidth: u64,
    /// A flush, after everything before it finished. Also what FUA adds to a write.
    pub flush: Duration,
    /// A discard or write-zeroes, however long.
    pub discard: Duration,
    /// Heads that move, on disks.
    pub seek: Option<Seek>,
    /// Erase blocks that matter, on cheap flash.
    pub erase: Option<EraseBlocks>,
}

const MB: u64 = 1_000_000;
const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

impl Model {
    /// A microSD card of application class A1 on a UHS-I bus. SD Physical Layer 5.1 asks of A1 at
    /// least 1500 random reads and 500 random writes of 4 KiB a second; the bus gives about 90
    /// MB/s. Few open allocation units of 4 MiB: A. Bergmann, "Optimizing Linux with cheap flash
    /// drives", LWN 2011.
    #[must_use]
    pub fn sd_card() -> Self {
        let erase = EraseBlocks {
            bytes: 4 << 20,
            open_max: 5,
            reopen: us(20_000),
            jump: us(1200),
        };
        Model {
            name: "SD card (A1)",
            units: 1,
            stripe_bytes: 0,
            queue_depth: 1,
            read_access: us(600),
            write_access: us(700),
            read_bandwidth: 90 * MB,
            write_bandwidth: 25 * MB,
            flush: us(2000),
            discard: us(1500),
            seek: None,
            erase: Some(erase),
        }
    }

    /// An eMMC 5.1 part with command queue: HS400 carries about 300 MB/s, data sheets of 2016–2020
    /// give 150 MB/s of writing and around 8000 random reads a second.
    #[must_use]
    pub fn emmc() -> Self {
        let erase = EraseBlocks {
            bytes: 4 << 20,
            open_max: 16,
            reopen: us(4000),
            jump: us(150),
        };
        Model {
            name: "eMMC 5.1",
            units: 2,
            stripe_bytes: 0,
            queue_depth: 32,
            read_access: us(200),
            write_access: us(150),
            read_bandwidth: 300 * MB,
            write_bandwidth: 150 * MB,
            flush: us(1000),
            discard: us(500),
            seek: None,
            erase: Some(erase),
        }
    }

    /// A UFS 3.1 part: vendors give 2100 MB/s reading, 1200 MB/s writing, 100 000 random reads and
    /// 70 000 random writes a second with a full queue of 32.
    #[must_use]
    pub fn ufs() -> Self {
        Model {
            name: "UFS 3.1",
            units: 8,
            stripe_bytes: 0,
            queue_depth: 32,
            read_access: us(80),
            write_access: us(110),
            read_bandwidth: 2100 * MB,
            write_bandwidth: 1200 * MB,
            flush: us(500),
            discard: us(200),
            seek: None,
            erase: None,
        }
    }

    /// A consumer NVMe drive with a volatile cache on PCIe 4.0: data sheets give 7000 and 5000
    /// MB/s, about 20 000 reads and 60 000 writes a second at queue depth 1, up to a million deep.
    #[must_use]
    pub fn nvme() -> Self {
        Model {
            name: "NVMe",
            units: 32,
            stripe_bytes: 0,
            queue_depth: 1023,
            read_access: us(48),
            write_access: us(16),
            read_bandwidth: 7000 * MB,
            write_bandwidth: 5000 * MB,
            flush: us(800),
            discard: us(100),
            seek: None,
            erase: None,
        }
    }

    /// Four 7200-rpm disks striped by 512 KiB (mdadm's default chunk): data sheets of nearline
    /// disks give a turn of 8.33 ms, 8.5 ms for the average seek (about 1 ms to the next track, 16
    /// ms across) and 200 MB/s each.
    #[must_use]
    pub fn raid0_of_disks() -> Self {
        let seek = Seek {
            shortest: us(1000),
            longest: us(16_000),
            turn: us(8333),
        };
        Model {
            name: "RAID-0 of 4 disks",
            units: 4,
            stripe_bytes: 512 << 10,
            queue_depth: 128,
            read_access: us(100),
            write_access: us(100),
            read_bandwidth: 800 * MB,
            write_bandwidth: 800 * MB,
            flush: us(8333),
            discard: us(100),
            seek: Some(seek),
            erase: None,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Unit {
    /// When it is free, in virtual nanoseconds.
    free: u64,
    /// The byte after its last request.
    head: u64,
}

/// An open erase block: its number, and where the last write in it ended.
struct OpenBlock {
    number: u64,
    end: u64,
}

struct Clock {
    now: u64,
    last: u64,
    units: Vec<Unit>,
    bus_free: u64,
    /// Completion times of what may still be outstanding.
    outstanding: Vec<u64>,
    /// Least recently written first.
    open: VecDeque<OpenBlock>,
    requests: Requests,
}

thread_local! {
    /// Virtual time inside a completion on this thread.
    static INSIDE: Cell<Option<u64>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write { fua: bool },
    Flush,
    Discard,
}

/// A device with the timing of some hardware. See the module's head.
pub struct ModelledDevice {
    storage: MemoryDevice,
    model: Model,
    clock: Mutex<Clock>,
}

fn ns(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

fn transfer_ns(bytes: u64, bandwidth: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bandwidth.max(1))) as u64
}

impl ModelledDevice {
    /// A device with these contents and this timing, at virtual time zero.
    #[must_use]
    pub fn new(storage: MemoryDevice, model: Model) -> Self {
        let clock = Clock {
            now: 0,
            last: 0,
            units: vec![Unit::default(); model.units.max(1)],
            bus_free: 0,
            outstanding: Vec::new(),
            open: VecDeque::new(),
            requests: Requests::default(),
        };
        ModelledDevice {
            storage,
            model,
            clock: Mutex::new(clock),
        }
    }

    /// Virtual time at which everything asked so far is finished.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let clock = self.clock.lock();
        Duration::from_nanos(clock.last.max(clock.now))
    }

    /// Lets virtual time pass until everything is finished, as a caller does that waits for all.
    pub fn drain(&self) {
        let mut clock = self.clock.lock();
        clock.now = clock.now.max(clock.last);
    }

    /// What was asked so far.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.clock.lock().requests
    }

    /// The parameters.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The bytes.
    #[must_use]
    pub fn storage(&self) -> &MemoryDevice {
        &self.storage
    }

    /// When a request is finished that the hardware is given at `now`, in nanoseconds since the beginning: for a caller that
    /// keeps time and queue itself.
    pub(super) fn finish_of(&self, request: &Request, now: u64) -> u64 {
        let outer = INSIDE.replace(Some(now));
        let end = self.charge(
            kind_of(request),
            request.offset.0,
            request.op.bytes(),
            false,
        );
        INSIDE.set(outer);
        end
    }

    /// The hardware's time for a request without any other one in its way, in nanoseconds.
    pub(super) fn cost_of(&self, request: &Request) -> u64 {
        let m = &self.model;
        let bytes = request.op.bytes();
        match kind_of(request) {
            Kind::Read => ns(m.read_access) + transfer_ns(bytes, m.read_bandwidth),
            Kind::Write { fua } => {
                let durable = if fua { ns(m.flush) } else { 0 };
                ns(m.write_access) + transfer_ns(bytes, m.write_bandwidth) + durable
            }
            Kind::Flush => ns(m.flush),
            Kind::Discard => ns(m.discard),
        }
    }

    /// When a request that arrives now is finished.
    fn charge(&self, kind: Kind, offset: u64, bytes: u64, waits: bool) -> u64 {
        let mut clock = self.clock.lock();
        clock.requests.all += 1;
        let mut now = INSIDE.get().unwrap_or(clock.now);
        clock.outstanding.retain(|at| *at > now);
        if clock.outstanding.len() >= self.model.queue_depth.max(1) {
            let earliest = clock.outstanding.iter().copied().min().unwrap_or(now);
            now = now.max(earliest);
            clock.outstanding.retain(|at| *at > now);
            if INSIDE.get().is_none() {
                clock.now = clock.now.max(now);
            }
        }
        let end = match kind {
            Kind::Flush => clock.last.max(now) + ns(self.model.flush),
            Kind::Discard => now + ns(self.model.discard),
            Kind::Read => self.transfer(&mut clock, false, now, offset, bytes),
            Kind::Write { fua } => {
                let end = self.transfer(&mut clock, true, now, offset, bytes);
                end + if fua { ns(self.model.flush) } else { 0 }
            }
        };
        clock.outstanding.push(end);
        clock.last = clock.last.max(end);
        if waits && INSIDE.get().is_none() {
            clock.now = clock.now.max(end);
        }
        end
    }

    /// When a read or write is finished: each piece on its unit, then over the bus.
    fn transfer(
        &self,
        clock: &mut Clock,
        write: bool,
        now: u64,
        mut offset: u64,
        bytes: u64,
    ) -> u64 {
        let model = &self.model;
        let (access, bandwidth) = if write {
            (model.write_access, model.write_bandwidth)
        } else {
            (model.read_access, model.read_bandwidth)
        };
        let finish = offset + bytes;
        let mut end = now;
        while offset < finish {
            let (unit, place, len) = match offset.checked_div(model.stripe_bytes) {
                None => {
                    let unit = (0..clock.units.len()).min_by_key(|unit| clock.units[*unit].free);
                    (unit.unwrap_or(0), offset, finish - offset)
                }
                Some(stripe) => {
                    let units = clock.units.len() as u64;
                    let inside = offset % model.stripe_bytes;
                    let place = stripe / units * model.stripe_bytes + inside;
                    let len = (model.stripe_bytes - inside).min(finish - offset);
                    ((stripe % units) as usize, place, len)
                }
            };
            let penalty = if write {
                self.erase_penalty(clock, offset, len)
            } else {
                0
            };
            let movement = self.seek_ns(clock.units[unit].head, place);
            let start = clock.units[unit].free.max(now);
            let positioned = start + ns(access) + movement + penalty;
            let done = if model.stripe_bytes == 0 {
                let on_bus = positioned.max(clock.bus_free) + transfer_ns(len, bandwidth);
                clock.bus_free = on_bus;
                on_bus
            } else {
                // Disks have a medium of their own each, and a bus that is not the limit.
                let share = bandwidth / clock.units.len() as u64;
                positioned + transfer_ns(len, share)
            };
            clock.units[unit] = Unit {
                free: done,
                head: place + len,
            };
            end = end.max(done);
            offset += len;
        }
        end
    }

    fn seek_ns(&self, from: u64, to: u64) -> u64 {
        let Some(seek) = &self.model.seek else {
            return 0;
        };
        if from == to {
            return 0;
        }
        let span = self.storage.geometry().bytes / self.model.units.max(1) as u64;
        let share = (from.abs_diff(to) as f64 / span.max(1) as f64)
            .min(1.0)
            .sqrt();
        let (shortest, longest) = (ns(seek.shortest), ns(seek.longest));
        let travel = longest.saturating_sub(shortest) as f64 * share;
        shortest + travel as u64 + ns(seek.turn) / 2
    }

    /// Nanoseconds of the controller's copying that a write costs, which it then counts as done.
    fn erase_penalty(&self, clock: &mut Clock, offset: u64, len: u64) -> u64 {
        let Some(erase) = &self.model.erase else {
            return 0;
        };
        let Clock { open, requests, .. } = clock;
        let (mut at, end, mut cost) = (offset, offset + len, 0);
        while at < end {
            let number = at / erase.bytes;
            let stop = end.min((number + 1) * erase.bytes);
            match open.iter().position(|block| block.number == number) {
                Some(index) => {
                    let block = open.remove(index);
                    if block.is_some_and(|block| block.end != at) {
                        cost += ns(erase.jump);
                        requests.jumps += 1;
                    }
                }
                None => {
                    if open.len() >= erase.open_max {
                        open.pop_front();
                        cost += ns(erase.reopen);
                        requests.reopened += 1;
                    }
                    // Entering a block anywhere but at its beginning keeps the old bytes before.
                    if !at.is_multiple_of(erase.bytes) {
                        cost += ns(erase.jump);
                        requests.jumps += 1;
                    }
                }
            }
            open.push_back(OpenBlock { number, end: stop });
            at = stop;
        }
        cost
    }

    /// Performs on the storage, then charges what was performed.
    fn timed<T>(
        &self,
        kind: Kind,
        offset: DevOffset,
        bytes: u64,
        perform: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let value = perform()?;
        self.charge(kind, offset.0, bytes, true);
        Ok(value)
    }
}

fn kind_of(request: &Request) -> Kind {
    match &request.op {
        Op::Read(_) => Kind::Read,
        Op::Write(_) => write_kind(request.flags),
        Op::Flush => Kind::Flush,
        Op::Discard { .. } | Op::WriteZeroes { .. } => Kind::Discard,
    }
}

fn write_kind(flags: Flags) -> Kind {
    Kind::Write {
        fua: flags.contains(Flags::FUA),
    }
}

impl BlockDevice for ModelledDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            fua: self.model.seek.is_none(),
            ..self.storage.geometry()
        }
    }

    fn submit(&self, mut request: Request) {
        let kind = kind_of(&request);
        let result = self.storage.perform(&mut request);
        let end = match &result {
            Ok(()) => self.charge(kind, request.offset.0, request.op.bytes(), false),
            Err(_) => return request.complete(result),
        };
        let outer = INSIDE.replace(Some(end));
        request.complete(result);
        INSIDE.set(outer);
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
        let bytes = buf.len() as u64;
        self.timed(Kind::Read, offset, bytes, || {
            self.storage.read_at(offset, buf)
        })
    }

    fn write_at(&self, offset: DevOffset, buf: &[u8], flags: Flags) -> Result<()> {
        let bytes = buf.len() as u64;
        let kind = write_kind(flags);
        self.timed(kind, offset, bytes, || {
            self.storage.write_at(offset, buf, flags)
        })
    }

    fn read_aligned(&self, offset: DevOffset, buf: AlignedBuf) -> Result<AlignedBuf> {
        let bytes = buf.len() as u64;
        self.timed(Kind::Read, offset, bytes, || {
            self.storage.read_aligned(offset, buf)
        })
    }

    fn write_vectored_at(
        &self,
        offset: DevOffset,
        slices: &[crate::IoSlice],
        flags: Flags,
    ) -> Result<()> {
        let bytes = slices.iter().map(|slice| slice.len() as u64).sum();
        let kind = write_kind(flags);
        self.timed(kind, offset, bytes, || {
            self.storage.write_vectored_at(offset, slices, flags)
        })
    }

    fn flush(&self) -> Result<()> {
        self.timed(Kind::Flush, DevOffset(0), 0, || Ok(()))
    }

    fn discard(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        self.timed(Kind::Discard, offset, bytes, || {
            self.storage.discard(offset, bytes)
        })
    }

    fn write_zeroes(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        self.timed(Kind::Discard, offset, bytes, || {
            self.storage.write_zeroes(offset, bytes)
        })
    }

    fn name(&self) -> String {
        format!("modelled {}", self.model.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::rng::SplitMix64;
    use crate::{SharedDevice, conformance};
    use std::sync::Arc;

    fn all() -> [Model; 5] {
        let disks = Model::raid0_of_disks();
        [
            Model::sd_card(),
            Model::emmc(),
            Model::ufs(),
            Model::nvme(),
            disks,
        ]
    }

    fn device(model: Model) -> ModelledDevice {
        ModelledDevice::new(MemoryDevice::new(1 << 40), model)
    }

    /// Megabytes a second of submitted 1 MiB requests one after another.
    fn streaming(model: Model, write: bool) -> f64 {
        let device = device(model);
        for index in 0..256u64 {
            let buf = AlignedBuf::zeroed(1 << 20);
            let op = if write {
                Op::Write(vec![buf.into()])
            } else {
                Op::Read(buf)
            };
            device.submit(Request::new(op, DevOffset(index << 20), |done| {
                done.result.unwrap()
            }));
        }
        f64::from(256 << 20) / 1e6 / device.elapsed().as_secs_f64()
    }

    /// 4 KiB requests a second at random places.
    fn random(model: Model, write: bool, submitted: bool) -> f64 {
        const COUNT: u32 = 2000;
        let device = device(model);
        let mut rng = SplitMix64::new(1);
        for _ in 0..COUNT {
            let at = DevOffset(rng.below(1 << 28) * 4096);
            match (submitted, write) {
                (true, _) => {
                    let buf = AlignedBuf::zeroed(4096);
                    let op = if write {
                        Op::Write(vec![buf.into()])
                    } else {
                        Op::Read(buf)
                    };
                    device.submit(Request::new(op, at, |done| done.result.unwrap()));
                }
                (false, true) => device.write_at(at, &[0; 4096], Flags::empty()).unwrap(),
                (false, false) => device.read_at(at, &mut [0; 4096]).unwrap(),
            }
        }
        f64::from(COUNT) / device.elapsed().as_secs_f64()
    }

    #[test]
    fn all_conform() {
        for model in all() {
            let device = ModelledDevice::new(MemoryDevice::new(conformance::BYTES_MIN), model);
            conformance::run(&(Arc::new(device) as SharedDevice), 8);
        }
    }

    #[test]
    fn streaming_reaches_the_bandwidth() {
        for model in all() {
            for write in [false, true] {
                let bandwidth = if write {
                    model.write_bandwidth
                } else {
                    model.read_bandwidth
                };
                let reached = streaming(model.clone(), write) / (bandwidth as f64 / 1e6);
                assert!(
                    (0.4..=1.01).contains(&reached),
                    "{} {write}: {reached}",
                    model.name
                );
            }
        }
    }

    #[test]
    fn random_rates_are_those_of_the_data_sheets() {
        let within = |name: &str, rate: f64, range: std::ops::Range<f64>| {
            assert!(range.contains(&rate), "{name}: {rate} a second");
        };
        within(
            "SD reads",
            random(Model::sd_card(), false, false),
            1300.0..2000.0,
        );
        within(
            "SD writes",
            random(Model::sd_card(), true, false),
            20.0..600.0,
        );
        within(
            "eMMC reads",
            random(Model::emmc(), false, true),
            6000.0..11_000.0,
        );
        within(
            "UFS reads",
            random(Model::ufs(), false, true),
            70_000.0..110_000.0,
        );
        within(
            "NVMe single reads",
            random(Model::nvme(), false, false),
            15_000.0..25_000.0,
        );
        within(
            "NVMe reads",
            random(Model::nvme(), false, true),
            400_000.0..1_100_000.0,
        );
        within(
            "disk reads",
            random(Model::raid0_of_disks(), false, false),
            55.0..110.0,
        );
        within(
            "disks' reads",
            random(Model::raid0_of_disks(), false, true),
            180.0..400.0,
        );
    }

    #[test]
    fn chains_in_completions_take_their_time() {
        fn chain(device: &Arc<ModelledDevice>, left: u32) {
            let next = Arc::clone(device);
            let op = Op::Read(AlignedBuf::zeroed(4096));
            device.submit(Request::new(op, DevOffset(0), move |_| {
                if left > 1 {
                    chain(&next, left - 1);
                }
            }));
        }
        let device = Arc::new(device(Model::nvme()));
        chain(&device, 100);
        assert!(device.elapsed() >= 100 * Model::nvme().read_access);
        let before = device.elapsed();
        device.drain();
        device.flush().unwrap();
        assert_eq!(device.elapsed(), before + Model::nvme().flush);
    }

    #[test]
    fn few_open_erase_blocks_are_cheap_and_many_are_not() {
        let cost = |streams: u64| {
            let device = device(Model::sd_card());
            for round in 0..200u64 {
                let at = ((round % streams * 64) << 20) + round / streams * 4096;
                device
                    .write_at(DevOffset(at), &[1; 4096], Flags::empty())
                    .unwrap();
            }
            device.elapsed()
        };
        assert!(cost(8) > 5 * cost(4), "{:?} {:?}", cost(8), cost(4));
    }
}
