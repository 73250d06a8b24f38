//! Several devices, one behind the other, as one that is only read.
//!
//! Not responsible for: which devices belong together, and in which order.

use crate::{
    AlignedBuf, BlockDevice, Completion, DevOffset, DeviceError, DeviceErrorKind, Done, Geometry,
    Op, Request, Result, SharedDevice, refuse,
};
use parking_lot::Mutex;
use std::sync::Arc;

struct Part {
    device: SharedDevice,
    /// Where it begins in the whole.
    start: u64,
    bytes: u64,
}

/// See the module's head.
pub struct JoinedDevice {
    parts: Vec<Part>,
    geometry: Geometry,
}

/// A read of several parts, under way.
struct Gather {
    left: usize,
    out: AlignedBuf,
    error: Option<DeviceError>,
    done: Option<Completion>,
}

impl JoinedDevice {
    /// Joins the first this many bytes of each device.
    ///
    /// # Errors
    /// [`DeviceErrorKind::OutOfRange`] when a device has fewer, or they are no whole logical blocks.
    pub fn new(devices: Vec<(SharedDevice, u64)>) -> Result<Self> {
        let mut parts = Vec::with_capacity(devices.len());
        let mut geometry = Geometry {
            bytes: 0,
            logical_block_bytes: 512,
            optimal_io_bytes: 512,
            request_bytes_max: u32::MAX,
            fua: false,
            discard: false,
            read_only: true,
        };
        for (device, bytes) in devices {
            let own = device.geometry();
            refuse::range(&own, "open", DevOffset(0), bytes, false)?;
            parts.push(Part {
                device,
                start: geometry.bytes,
                bytes,
            });
            geometry.bytes += bytes;
            let g = &mut geometry;
            g.logical_block_bytes = g.logical_block_bytes.max(own.logical_block_bytes);
            g.optimal_io_bytes = g.optimal_io_bytes.max(own.optimal_io_bytes);
            g.request_bytes_max = g.request_bytes_max.min(own.request_bytes_max);
        }
        Ok(JoinedDevice { parts, geometry })
    }

    /// The parts of a range: each with where it begins there, and how long it is.
    fn pieces(&self, start: u64, bytes: u64) -> Vec<(&Part, u64, u64)> {
        let end = start + bytes;
        let touched = |p: &&Part| p.start < end && p.start + p.bytes > start;
        let pieces = self.parts.iter().filter(touched).map(|p| {
            let from = start.max(p.start);
            (p, from - p.start, end.min(p.start + p.bytes) - from)
        });
        pieces.collect()
    }
}

impl BlockDevice for JoinedDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) {
        if let Err(error) = refuse::request(&self.geometry, &request) {
            return request.complete(Err(error));
        }
        let offset = request.offset.0;
        let pieces = self.pieces(offset, request.op.bytes());
        match pieces[..] {
            // A flush; nothing was written.
            [] => request.complete(Ok(())),
            [(part, at, _)] => {
                request.offset = DevOffset(at);
                part.device.submit(request);
            }
            _ => {
                let Op::Read(out) = request.op else {
                    let error = DeviceError {
                        op: request.op.name(),
                        offset: request.offset,
                        bytes: request.op.bytes(),
                        kind: DeviceErrorKind::ReadOnly,
                    };
                    return request.complete(Err(error));
                };
                let gather = Arc::new(Mutex::new(Gather {
                    left: pieces.len(),
                    out,
                    error: None,
                    done: Some(request.done),
                }));
                let mut to = 0;
                let ring = request.ring;
                for (part, at, bytes) in pieces {
                    let mine = Arc::clone(&gather);
                    let buf = AlignedBuf::for_overwrite(bytes as usize);
                    let done = move |d: Done| Gather::take(&mine, to, d);
                    let mut piece = Request::new(Op::Read(buf), DevOffset(at), done);
                    piece.ring.clone_from(&ring);
                    part.device.submit(piece);
                    to += bytes as usize;
                }
            }
        }
    }

    fn name(&self) -> String {
        let names: Vec<String> = self.parts.iter().map(|p| p.device.name()).collect();
        names.join(" + ")
    }
}

impl Gather {
    /// A piece was read, which belongs at byte `to`.
    fn take(this: &Mutex<Gather>, to: usize, piece: Done) {
        let mut g = this.lock();
        match (piece.result, piece.read) {
            (Ok(()), Some(bytes)) => g.out[to..to + bytes.len()].copy_from_slice(&bytes),
            (Ok(()), None) => {}
            (Err(e), _) => drop(g.error.get_or_insert(e)),
        }
        g.left -= 1;
        if g.left == 0
            && let Some(done) = g.done.take()
        {
            let read = Some(std::mem::replace(&mut g.out, AlignedBuf::zeroed(0)));
            let result = g.error.take().map_or(Ok(()), Err);
            drop(g);
            done(Done { result, read });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flags, MemoryDevice};

    #[test]
    fn reads_cross_the_seams() {
        let parts: Vec<(SharedDevice, u64)> = [3u64, 1, 5]
            .into_iter()
            .enumerate()
            .map(|(n, blocks)| {
                let device = MemoryDevice::new(8 * 4096);
                let bytes = vec![n as u8 + 1; blocks as usize * 4096];
                device
                    .write_at(DevOffset(0), &bytes, Flags::empty())
                    .unwrap();
                (Arc::new(device) as SharedDevice, blocks * 4096)
            })
            .collect();
        let joined = JoinedDevice::new(parts.clone()).unwrap();
        assert_eq!(joined.geometry().bytes, 9 * 4096);
        let all: Vec<u8> = [1, 1, 1, 2, 3, 3, 3, 3, 3]
            .iter()
            .flat_map(|b| [*b; 4096])
            .collect();
        for from in 0..9usize {
            for to in from + 1..=9 {
                let mut buf = vec![0; (to - from) * 4096];
                joined
                    .read_at(DevOffset(from as u64 * 4096), &mut buf)
                    .unwrap();
                assert!(buf == all[from * 4096..to * 4096], "{from}..{to}");
            }
        }
        joined.flush().unwrap();
        let past = joined.read_at(DevOffset(8 * 4096), &mut [0; 8192]);
        assert!(matches!(
            past.unwrap_err().kind,
            DeviceErrorKind::OutOfRange { .. }
        ));
        let write = joined.write_at(DevOffset(0), &[0; 4096], Flags::empty());
        assert_eq!(write.unwrap_err().kind, DeviceErrorKind::ReadOnly);
        // A device that is too small.
        let small = vec![(parts[0].0.clone(), 9 * 4096)];
        assert!(JoinedDevice::new(small).is_err());
    }
}
