//! A device that fails on demand.
//!
//! A [`Rule`] says which requests it is about (operations, range, after how many, how many times,
//! with what probability) and what goes wrong. The first rule that fires decides. Probabilities
//! come from the seed; with concurrent submitters the requests' order decides which request draws which value.
//!
//! Locks: the rules', a leaf, never held while the device underneath is called.

use super::rng::SplitMix64;
use crate::{BlockDevice, DeviceErrorKind, Done, Geometry, Op, Request, SharedDevice, refuse};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

bitflags::bitflags! {
    /// The operations a rule is about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Ops: u8 {
        /// Reads.
        const READ = 1;
        /// Writes.
        const WRITE = 2;
        /// Flushes; they match every range.
        const FLUSH = 4;
        /// Discards.
        const DISCARD = 8;
        /// Write-zeroes.
        const WRITE_ZEROES = 16;
    }
}

impl Ops {
    fn of(op: &Op) -> Ops {
        match op {
            Op::Read(_) => Ops::READ,
            Op::Write(_) => Ops::WRITE,
            Op::Flush => Ops::FLUSH,
            Op::Discard { .. } => Ops::DISCARD,
            Op::WriteZeroes { .. } => Ops::WRITE_ZEROES,
        }
    }
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request fails with this errno and has no effect.
    Errno(i32),
    /// About half of the request is done, the rest is not, and it is reported as short. A request
    /// of a single block does nothing.
    Short,
    /// The device disappears: this and every later request fails.
    Gone,
    /// The request is done, but only after this time.
    Delay(Duration),
    /// A read succeeds with one bit wrong. Other operations are not affected.
    FlipBit,
    /// The request is reported as done, but was not (a lost write, a flush that lies).
    Lost,
}

/// When something goes wrong, and what. The default fields match every request, once.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Which operations.
    pub ops: Ops,
    /// Which bytes: requests that overlap the range.
    pub range: Range<u64>,
    /// So many matching requests pass first.
    pub skip: u64,
    /// How often the rule fires.
    pub times: u64,
    /// How likely a matching request past `skip` is hit, in thousandths.
    pub per_mille: u32,
    /// What happens.
    pub fault: Fault,
}

impl Rule {
    /// Hits the first request of these operations, wherever it is.
    #[must_use]
    pub fn new(ops: Ops, fault: Fault) -> Self {
        Rule {
            ops,
            range: 0..u64::MAX,
            skip: 0,
            times: 1,
            per_mille: 1000,
            fault,
        }
    }

    /// Only requests that overlap the range.
    #[must_use]
    pub fn range(self, range: Range<u64>) -> Self {
        Rule { range, ..self }
    }

    /// Lets this many matching requests pass first.
    #[must_use]
    pub fn skip(self, skip: u64) -> Self {
        Rule { skip, ..self }
    }

    /// Fires so often, instead of once.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Rule { times, ..self }
    }

    /// Fires without a limit.
    #[must_use]
    pub fn always(self) -> Self {
        self.times(u64::MAX)
    }

    /// Fires with this probability in thousandths.
    #[must_use]
    pub fn per_mille(self, per_mille: u32) -> Self {
        Rule { per_mille, ..self }
    }

    fn matches(&self, request: &Request) -> bool {
        let ops = Ops::of(&request.op);
        let (start, bytes) = (request.offset.0, request.op.bytes());
        self.ops.contains(ops)
            && (ops == Ops::FLUSH
                || start < self.range.end && start.saturating_add(bytes) > self.range.start)
    }
}

struct State {
    rules: Vec<Rule>,
    rng: SplitMix64,
    gone: bool,
    fired: u64,
}

/// See the module's head.
pub struct FaultyDevice {
    inner: SharedDevice,
    state: Mutex<State>,
}

impl FaultyDevice {
    /// A device that works until rules are added. The seed is for probabilities and bits.
    #[must_use]
    pub fn new(inner: SharedDevice, seed: u64) -> Self {
        let rng = SplitMix64::new(seed);
        FaultyDevice {
            inner,
            state: Mutex::new(State {
                rules: Vec::new(),
                rng,
                gone: false,
                fired: 0,
            }),
        }
    }

    /// Adds a rule after those there are.
    pub fn add(&self, rule: Rule) {
        self.state.lock().rules.push(rule);
    }

    /// Forgets all rules, and brings a device that is gone back.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.rules.clear();
        state.gone = false;
    }

    /// How many requests were hit so far.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.state.lock().fired
    }

    /// The fault for a request, and a random number for it.
    fn judge(&self, request: &Request) -> Option<(Fault, u64)> {
        let mut state = self.state.lock();
        let State {
            rules,
            rng,
            gone,
            fired,
        } = &mut *state;
        if *gone {
            return Some((Fault::Gone, 0));
        }
        for rule in rules
            .iter_mut()
            .filter(|rule| rule.times > 0 && rule.matches(request))
        {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if rng.chance(rule.per_mille) {
                rule.times = rule.times.saturating_sub(u64::from(rule.times != u64::MAX));
                *gone = rule.fault == Fault::Gone;
                *fired += 1;
                return Some((rule.fault.clone(), rng.next_u64()));
            }
        }
        None
    }

    /// Does a block-aligned half of a request, then reports it as short.
    fn shorten(&self, mut request: Request) {
        let block = u64::from(self.inner.geometry().logical_block_bytes);
        let half = request.op.bytes() / 2 / block * block;
        let error = request.error(DeviceErrorKind::Short {
            transferred: half as usize,
        });
        match &mut request.op {
            // The contents of a failed read's buffer are unspecified.
            Op::Read(_) | Op::Flush => return request.complete(Err(error)),
            Op::Discard { bytes } | Op::WriteZeroes { bytes } => *bytes = half,
            Op::Write(slices) => {
                let whole: Vec<u8> = slices
                    .iter()
                    .map(|slice| &**slice)
                    .collect::<Vec<_>>()
                    .concat();
                *slices = vec![crate::AlignedBuf::copy_of(&whole[..half as usize]).into()];
            }
        }
        let done = request.done;
        request.done = Box::new(move |Done { read, .. }| {
            done(Done {
                result: Err(error),
                read,
            })
        });
        self.inner.submit(request);
    }
}

impl BlockDevice for FaultyDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, mut request: Request) {
        // A request that every device refuses is not one that a fault should hit.
        if let Err(error) = refuse::request(&self.inner.geometry(), &request) {
            return request.complete(Err(error));
        }
        match self.judge(&request) {
            None => self.inner.submit(request),
            Some((Fault::Errno(errno), _)) => {
                let error = request.error(DeviceErrorKind::Os(errno));
                request.complete(Err(error));
            }
            Some((Fault::Gone, _)) => {
                let error = request.error(DeviceErrorKind::Gone);
                request.complete(Err(error));
            }
            Some((Fault::Lost, _)) => match request.op {
                Op::Read(_) => self.inner.submit(request),
                _ => request.complete(Ok(())),
            },
            Some((Fault::Short, _)) => self.shorten(request),
            Some((Fault::Delay(time), _)) => {
                // A thread of its own, so that neither the submitter nor a later request waits.
                let held = Arc::new(Mutex::new(Some(request)));
                let (inner, theirs) = (Arc::clone(&self.inner), Arc::clone(&held));
                let started = std::thread::Builder::new().spawn(move || {
                    std::thread::sleep(time);
                    let request = theirs.lock().take();
                    if let Some(request) = request {
                        inner.submit(request);
                    }
                });
                let unsent = if started.is_err() {
                    held.lock().take()
                } else {
                    None
                };
                if let Some(request) = unsent {
                    self.inner.submit(request);
                }
            }
            Some((Fault::FlipBit, random)) => {
                let done = request.done;
                request.done = Box::new(move |mut finished| {
                    if let Some(buf) = finished.read.as_mut().filter(|buf| !buf.is_empty()) {
                        let bit = random % (buf.len() as u64 * 8);
                        buf[(bit / 8) as usize] ^= 1 << (bit % 8);
                    }
                    done(finished);
                });
                self.inner.submit(request);
            }
        }
    }

    fn monitor(&self) -> Option<&crate::Monitor> {
        self.inner.monitor()
    }

    fn name(&self) -> String {
        format!("faulty {}", self.inner.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DevOffset, Flags, MemoryDevice, conformance};

    fn faulty(rules: Vec<Rule>) -> FaultyDevice {
        let device = FaultyDevice::new(Arc::new(MemoryDevice::new(1 << 20)), 9);
        rules.into_iter().for_each(|rule| device.add(rule));
        device
    }

    fn write(device: &FaultyDevice, offset: u64, bytes: &[u8]) -> Result<(), DeviceErrorKind> {
        device
            .write_at(DevOffset(offset), bytes, Flags::empty())
            .map_err(|error| error.kind)
    }

    #[test]
    fn conforms_without_rules_and_with_delays() {
        let inner = Arc::new(MemoryDevice::new(conformance::BYTES_MIN));
        let device = Arc::new(FaultyDevice::new(inner, 1));
        conformance::run(&(Arc::clone(&device) as SharedDevice), 6);
        let delay = Fault::Delay(Duration::from_micros(50));
        device.add(Rule::new(Ops::all(), delay).always().per_mille(20));
        conformance::run(&(device as SharedDevice), 7);
    }

    #[test]
    fn rules_count_and_choose() {
        let eio = Fault::Errno(libc::EIO);
        let rule = Rule::new(Ops::WRITE, eio)
            .range(4096..8192)
            .skip(1)
            .times(2);
        let device = faulty(vec![rule]);
        let results: Vec<bool> = [0, 4096, 4096, 3584, 7680, 4096, 8192]
            .map(|at| write(&device, at, &[1; 1024]).is_ok())
            .into();
        assert_eq!(results, [true, true, false, false, true, true, true]);
        assert_eq!(device.fired(), 2);
        device.read_at(DevOffset(4096), &mut [0; 512]).unwrap();
    }

    #[test]
    fn short_writes_leave_a_prefix() {
        let device = faulty(vec![Rule::new(Ops::WRITE, Fault::Short)]);
        let error = write(&device, 0, &[3; 1536]).unwrap_err();
        assert_eq!(error, DeviceErrorKind::Short { transferred: 512 });
        let mut back = [0; 1536];
        device.read_at(DevOffset(0), &mut back).unwrap();
        assert_eq!(back[..], [vec![3; 512], vec![0; 1024]].concat());
    }

    #[test]
    fn gone_stays_gone() {
        let device = faulty(vec![Rule::new(Ops::FLUSH, Fault::Gone)]);
        write(&device, 0, &[1; 512]).unwrap();
        assert_eq!(device.flush().unwrap_err().kind, DeviceErrorKind::Gone);
        assert_eq!(write(&device, 0, &[1; 512]), Err(DeviceErrorKind::Gone));
        device.heal();
        write(&device, 0, &[1; 512]).unwrap();
    }

    #[test]
    fn flips_one_bit_and_loses_writes() {
        let flip = Rule::new(Ops::READ, Fault::FlipBit);
        let device = faulty(vec![flip, Rule::new(Ops::WRITE, Fault::Lost)]);
        write(&device, 0, &[0xFF; 512]).unwrap();
        let mut back = [0; 512];
        device.read_at(DevOffset(0), &mut back).unwrap();
        assert_eq!(back.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
        device.read_at(DevOffset(0), &mut back).unwrap();
        assert_eq!(back, [0; 512]);
    }

    #[test]
    fn probabilities_repeat_with_the_seed() {
        let run = || {
            let eio = Fault::Errno(libc::EIO);
            let device = faulty(vec![Rule::new(Ops::WRITE, eio).always().per_mille(300)]);
            (0..1000)
                .map(|_| write(&device, 0, &[1; 512]).is_ok())
                .collect::<Vec<_>>()
        };
        let first = run();
        assert_eq!(first, run());
        let failed = first.iter().filter(|ok| !**ok).count();
        assert!((200..400).contains(&failed), "{failed}");
    }
}
