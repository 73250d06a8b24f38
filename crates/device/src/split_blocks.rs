//! A device with blocks of 512 bytes on one that takes only larger ones.
//!
//! Purpose: volumes on servers whose smallest request is larger than a volume's blocks: NBD in front of an object store (64 KiB). A write of part
//! of a block reads the block, changes it, and writes it again. qemu does so, too; Linux does not mount such volumes.
//!
//! # Invariants
//! Changes of one block below never overlap, also whole ones: a block that is written again would bring old bytes back over a write beside it.
//! Such requests wait for each other, in the order of their submission. Reads wait for nothing.
//!
//! # Locks
//! One lock, a leaf: not held while the device below works, nor during a completion.
//!
//! # Crash order
//! A block that is torn may lose bytes beside those that were written. The devices this is for replace a block as a whole.

use crate::{
    AlignedBuf, BlockDevice, Completion, DevOffset, Done, Flags, Geometry, IoPriority, IoSlice,
    Monitor, Op, Request, Result, SharedDevice, refuse,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a block as the users see it.
const BLOCK_BYTES: u32 = 512;

/// A change of a range of bytes, and the blocks below that it touches.
struct Change {
    request: Request,
    blocks: Range<u64>,
}

#[derive(Default)]
struct State {
    /// Blocks below that are being changed. Disjoint.
    busy: Vec<Range<u64>>,
    /// Changes that wait for such blocks, or behind one that does.
    waiting: VecDeque<Change>,
    /// Changes whose blocks are busy for them, and that begin next.
    ready: VecDeque<Change>,
    /// Some caller begins what is ready.
    is_beginning: bool,
}

impl State {
    /// Frees the blocks of a change, and readies those that waited for nothing else.
    fn release(&mut self, blocks: &Range<u64>) {
        self.busy.retain(|other| other != blocks);
        let mut at = 0;
        while let Some(change) = self.waiting.get(at) {
            let next = &change.blocks;
            let is_free = meets(next, blocks)
                && !self.busy.iter().any(|busy| meets(busy, next))
                && !self.waiting.iter().take(at).any(|w| meets(&w.blocks, next));
            match is_free.then(|| self.waiting.remove(at)).flatten() {
                Some(change) => {
                    self.busy.push(change.blocks.clone());
                    self.ready.push_back(change);
                }
                None => at += 1,
            }
        }
    }
}

struct Shared {
    inner: SharedDevice,
    geometry: Geometry,
    /// Bytes of a block below.
    unit: u64,
    state: Mutex<State>,
}

/// See the module's head.
pub struct SplitBlocksDevice(Arc<Shared>);

/// A step of a change. Steps follow one another.
enum Step {
    /// A request for whole blocks below.
    Whole(DevOffset, Op),
    /// Bytes within one block: its offset, and where in it the bytes go.
    Part(DevOffset, usize, Vec<u8>),
}

fn meets(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl SplitBlocksDevice {
    /// A device with blocks of 512 bytes over another one.
    #[must_use]
    pub fn new(inner: SharedDevice) -> Self {
        let below = inner.geometry();
        let geometry = Geometry {
            logical_block_bytes: BLOCK_BYTES,
            ..below
        };
        Self(Arc::new(Shared {
            inner,
            geometry,
            unit: u64::from(below.logical_block_bytes),
            state: Mutex::default(),
        }))
    }
}

/// Bytes from `from` on of slices that follow one another.
fn copied(slices: &[IoSlice], from: u64, to: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity((to - from) as usize);
    let mut at = 0;
    for slice in slices {
        let end = at + slice.len() as u64;
        let (a, b) = (from.max(at), to.min(end));
        if a < b {
            out.extend_from_slice(&slice[(a - at) as usize..(b - at) as usize]);
        }
        at = end;
    }
    out
}

impl Shared {
    /// Cuts a change where blocks below begin.
    fn steps(&self, start: u64, op: Op) -> VecDeque<Step> {
        let unit = self.unit;
        let end = start + op.bytes();
        let (first, last) = (start.next_multiple_of(unit), end / unit * unit);
        // A device takes whole blocks in each slice, too.
        let is_whole = match &op {
            Op::Write(slices) => slices.iter().all(|s| (s.len() as u64).is_multiple_of(unit)),
            _ => true,
        };
        if start == first && end == last && is_whole {
            return [Step::Whole(DevOffset(start), op)].into();
        }
        let mut steps = VecDeque::new();
        if let Op::Discard { .. } = op {
            // Advice: what is cut off keeps its bytes.
            if first < last {
                let bytes = last - first;
                steps.push_back(Step::Whole(DevOffset(first), Op::Discard { bytes }));
            }
            return steps;
        }
        let bytes = |from: u64, to: u64| match &op {
            Op::Write(slices) => copied(slices, from - start, to - start),
            _ => vec![0; (to - from) as usize],
        };
        let part = |from: u64, to: u64| {
            let block = from / unit * unit;
            Step::Part(DevOffset(block), (from - block) as usize, bytes(from, to))
        };
        if start < first {
            steps.push_back(part(start, end.min(first)));
        }
        if first < last {
            let whole = match &op {
                Op::Write(_) => Op::Write(vec![AlignedBuf::copy_of(&bytes(first, last)).into()]),
                _ => Op::WriteZeroes {
                    bytes: last - first,
                },
            };
            steps.push_back(Step::Whole(DevOffset(first), whole));
        }
        if last >= first && last < end {
            steps.push_back(part(last, end));
        }
        steps
    }

    fn change(self: &Arc<Self>, change: Change) {
        {
            let mut state = self.state.lock();
            let waits = state.busy.iter().any(|busy| meets(busy, &change.blocks))
                || state
                    .waiting
                    .iter()
                    .any(|other| meets(&other.blocks, &change.blocks));
            if waits {
                return state.waiting.push_back(change);
            }
            state.busy.push(change.blocks.clone());
        }
        self.begin(change);
    }

    /// Begins a change whose blocks are marked as busy.
    fn begin(self: &Arc<Self>, change: Change) {
        let Change { request, blocks } = change;
        let how = (request.flags, request.priority);
        let steps = self.steps(request.offset.0, request.op);
        let (shared, done) = (Arc::clone(self), request.done);
        let ended = Box::new(move |result: Result<()>| {
            shared.end(&blocks);
            done(Done { result, read: None });
        });
        self.step(steps, how, ended);
    }

    fn step(
        self: &Arc<Self>,
        mut steps: VecDeque<Step>,
        how: (Flags, IoPriority),
        ended: Box<dyn FnOnce(Result<()>) + Send>,
    ) {
        let (shared, (flags, priority)) = (Arc::clone(self), how);
        let send = |offset, op, flags, done: Completion| {
            let mut request = Request::new(op, offset, done);
            (request.flags, request.priority) = (flags, priority);
            self.inner.submit(request);
        };
        match steps.pop_front() {
            None => ended(Ok(())),
            Some(Step::Whole(offset, op)) => {
                let next = move |done: Done| match done.result {
                    Ok(()) => shared.step(steps, how, ended),
                    failed => ended(failed),
                };
                send(offset, op, flags, Box::new(next));
            }
            Some(Step::Part(offset, at, bytes)) => {
                let read = Op::Read(AlignedBuf::zeroed(self.unit as usize));
                let next = move |Done { result, read }: Done| match (result, read) {
                    (Ok(()), Some(mut block)) => {
                        block[at..at + bytes.len()].copy_from_slice(&bytes);
                        steps.push_front(Step::Whole(offset, Op::Write(vec![block.into()])));
                        shared.step(steps, how, ended);
                    }
                    (result, _) => ended(result),
                };
                send(offset, read, Flags::empty(), Box::new(next));
            }
        }
    }

    /// A change has ended: those that waited for its blocks begin. One caller at a time begins them, one after another: a device may complete
    /// requests at once, and each completion ends up here.
    fn end(self: &Arc<Self>, blocks: &Range<u64>) {
        {
            let mut state = self.state.lock();
            state.release(blocks);
            if std::mem::replace(&mut state.is_beginning, true) {
                return;
            }
        }
        loop {
            let next = {
                let mut state = self.state.lock();
                let next = state.ready.pop_front();
                state.is_beginning = next.is_some();
                next
            };
            match next {
                Some(change) => self.begin(change),
                None => return,
            }
        }
    }

    fn read(&self, mut request: Request) {
        let (start, bytes) = (request.offset.0, request.op.bytes());
        let from = start / self.unit * self.unit;
        let to = (start + bytes).next_multiple_of(self.unit);
        if (from, to) == (start, start + bytes) {
            return self.inner.submit(request);
        }
        let whole = Op::Read(AlignedBuf::for_overwrite((to - from) as usize));
        let Op::Read(mut buf) = std::mem::replace(&mut request.op, whole) else {
            return;
        };
        request.offset = DevOffset(from);
        let done = request.done;
        request.done = Box::new(move |Done { result, read }| {
            if let Some(read) = read.filter(|_| result.is_ok()) {
                let at = (start - from) as usize;
                buf.copy_from_slice(&read[at..at + bytes as usize]);
            }
            done(Done {
                result,
                read: Some(buf),
            });
        });
        self.inner.submit(request);
    }
}

impl BlockDevice for SplitBlocksDevice {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn submit(&self, request: Request) {
        let shared = &self.0;
        if let Err(error) = refuse::request(&shared.geometry, &request) {
            return request.complete(Err(error));
        }
        let bytes = request.op.bytes();
        match &request.op {
            Op::Flush => shared.inner.submit(request),
            _ if bytes == 0 => request.complete(Ok(())),
            Op::Read(_) => shared.read(request),
            Op::Write(_) | Op::Discard { .. } | Op::WriteZeroes { .. } => {
                let end = (request.offset.0 + bytes).div_ceil(shared.unit);
                let blocks = request.offset.0 / shared.unit..end;
                shared.change(Change { request, blocks });
            }
        }
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        let from = offset.0 / self.0.unit * self.0.unit;
        self.0.inner.next_data(DevOffset(from)).max(offset)
    }

    fn tail(&self) -> Result<Vec<u8>> {
        self.0.inner.tail()
    }

    fn monitor(&self) -> Option<&Monitor> {
        self.0.inner.monitor()
    }

    fn name(&self) -> String {
        self.0.inner.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, conformance};
    use std::sync::mpsc;

    /// A device whose blocks have 64 KiB.
    struct Coarse(MemoryDevice);

    impl BlockDevice for Coarse {
        fn geometry(&self) -> Geometry {
            Geometry {
                logical_block_bytes: 64 << 10,
                ..self.0.geometry()
            }
        }

        fn submit(&self, request: Request) {
            match refuse::request(&self.geometry(), &request) {
                Ok(()) => self.0.submit(request),
                Err(error) => request.complete(Err(error)),
            }
        }

        fn name(&self) -> String {
            "coarse".into()
        }
    }

    fn coarse(bytes: u64) -> SharedDevice {
        let inner: SharedDevice = Arc::new(Coarse(MemoryDevice::new(bytes)));
        Arc::new(SplitBlocksDevice::new(inner))
    }

    #[test]
    fn conforms_over_large_blocks() {
        let device = coarse(conformance::BYTES_MIN.next_multiple_of(64 << 10));
        conformance::run(&device, 41);
    }

    /// Threads write neighbours in the same blocks: none undoes the write of another.
    #[test]
    fn neighbours_keep_their_bytes() {
        let device = coarse(256 << 10);
        let (told, all) = mpsc::channel();
        std::thread::scope(|s| {
            for thread in 0..4u64 {
                let (device, told) = (&device, told.clone());
                s.spawn(move || {
                    for n in (thread..512).step_by(4) {
                        let bytes = AlignedBuf::copy_of(&[n as u8 | 1; 512]);
                        let told = told.clone();
                        let done = Box::new(move |done: Done| told.send(done.result).unwrap());
                        let op = Op::Write(vec![bytes.into()]);
                        device.submit(Request::new(op, DevOffset(n * 512), done));
                    }
                });
            }
        });
        drop(told);
        assert_eq!(all.iter().map(|result| result.unwrap()).count(), 512);
        let mut back = vec![0; 256 << 10];
        device.read_at(DevOffset(0), &mut back).unwrap();
        for (n, block) in back.chunks(512).enumerate() {
            assert!(block.iter().all(|byte| *byte == n as u8 | 1), "block {n}");
        }
        let flags = Flags::FUA;
        device.write_at(DevOffset(1536), &[0; 512], flags).unwrap();
        device.discard(DevOffset(512), 130 << 10).unwrap();
        device.write_zeroes(DevOffset(66_048), 70_144).unwrap();
        device.read_at(DevOffset(0), &mut back).unwrap();
        assert!(back[512..1024] == [1; 512] && back[1536..2048] == [0; 512]);
        assert!(back[66_048..136_192].iter().all(|byte| *byte == 0));
        assert!(back[136_192..136_704] == [(266u64 as u8) | 1; 512]);
    }

    /// A device that holds its first request, and refuses all others at once.
    struct Gone(Mutex<Option<Request>>);

    impl BlockDevice for Gone {
        fn geometry(&self) -> Geometry {
            Coarse(MemoryDevice::new(1 << 30)).geometry()
        }

        fn submit(&self, request: Request) {
            let mut held = self.0.lock();
            if held.is_none() {
                *held = Some(request);
                return;
            }
            drop(held);
            let error = refuse::range(&self.geometry(), "write", DevOffset(1), 1, false);
            request.complete(error);
        }

        fn name(&self) -> String {
            "gone".to_owned()
        }
    }

    /// Each write waits for the one before it, and all fail in the completion of the first.
    #[test]
    fn a_long_row_of_changes_fails_on_a_small_stack() {
        let gone = Arc::new(Gone(Mutex::default()));
        let device = SplitBlocksDevice::new(gone.clone());
        let (told, all) = mpsc::channel();
        for n in 0..3000u64 {
            let told = told.clone();
            let done = Box::new(move |done: Done| told.send(done.result.is_err()).unwrap());
            let op = Op::Write(vec![AlignedBuf::zeroed(64 << 10).into()]);
            device.submit(Request::new(
                op,
                DevOffset(4096 + (n << 16) % (900 << 20)),
                done,
            ));
        }
        drop(told);
        let first = gone.0.lock().take().expect("held");
        *gone.0.lock() = Some(Request::new(Op::Flush, DevOffset(0), Box::new(|_| ())));
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let fails = move || {
            first.complete(refuse::range(
                &gone.geometry(),
                "read",
                DevOffset(1),
                1,
                false,
            ))
        };
        small.spawn(fails).unwrap().join().unwrap();
        assert_eq!(all.iter().filter(|failed| *failed).count(), 3000);
    }
}
