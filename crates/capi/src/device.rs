//! A block device that a C program implements.
//!
//! Requests complete inline, in the thread that submits them. That may be any thread of the program or of the library.

use crate::call::{known, outside};
use crate::error::{Fault, Result};
use crate::raw::{User, Versioned, sized};
use blockwright_device::{
    AlignedBuf, BlockDevice, DeviceError, DeviceErrorKind, Flags, Geometry, Op, Request, refuse,
};
use parking_lot::Mutex;
use std::ffi::c_void;

/// No write is accepted.
pub const BW_DEVICE_READ_ONLY: u32 = 1;
/// The library calls one function of the device at a time. Without it the functions are called from several threads at once.
pub const BW_DEVICE_SERIAL: u32 = 2;

const ALL_FLAGS: u32 = BW_DEVICE_READ_ONLY | BW_DEVICE_SERIAL;

/// Reads or writes are at most this long, so that a device needs no large buffers.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// A block device that the program implements. The structure is copied; the functions must stay callable until `release` was called.
///
/// The functions return 0, or an errno such as `EIO`. They are called from threads of the library, too. They must not call the library, and must
/// not leave by `longjmp` or a C++ exception. Ranges are multiples of the logical block and lie on the device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bw_device {
    /// `sizeof(bw_device)`.
    pub struct_size: usize,
    /// `BW_DEVICE_` flags.
    pub flags: u32,
    /// Smallest unit of a request in bytes: a power of two from 512 to 65536; 0 means 512.
    pub logical_block_bytes: u32,
    /// Size of the device in bytes.
    pub bytes: u64,
    /// Handed to each function.
    pub user: User,
    /// Fills `buffer` with `bytes` bytes of the device, from `offset` on.
    pub read:
        Option<extern "C" fn(user: User, offset: u64, buffer: *mut c_void, bytes: usize) -> i32>,
    /// Writes `bytes` bytes to the device, from `offset` on. May be null for a device that is only read.
    pub write:
        Option<extern "C" fn(user: User, offset: u64, buffer: *const c_void, bytes: usize) -> i32>,
    /// Makes all writes durable that have returned. May be null for a device that is only read.
    pub flush: Option<extern "C" fn(user: User) -> i32>,
    /// May be null. The contents of the range are no longer needed.
    pub discard: Option<extern "C" fn(user: User, offset: u64, bytes: u64) -> i32>,
    /// May be null. Called once when the library will not use the device again. If opening fails, it is called before the opening returns.
    /// A device that is refused as misuse is not released.
    pub release: Option<extern "C" fn(user: User)>,
}

// SAFETY: numbers and functions after `struct_size`.
unsafe impl Versioned for bw_device {}

/// The device, as the library sees it.
pub(crate) struct CallbackDevice {
    device: bw_device,
    geometry: Geometry,
    /// Held during each function of a serial device.
    turn: Option<Mutex<()>>,
}

impl CallbackDevice {
    /// Takes a device over.
    ///
    /// # Errors
    /// `Null` and `Misuse` for a device that lacks something or contradicts itself.
    pub(crate) fn new(device: *const bw_device) -> Result<Self> {
        let device = sized(device, "device")?;
        let device = *device.ok_or(Fault::Null("device"))?;
        known(device.flags, ALL_FLAGS, "device.flags")?;
        let read_only = device.flags & BW_DEVICE_READ_ONLY != 0;
        if device.read.is_none() {
            return Err(Fault::Null("device.read"));
        }
        if !read_only && (device.write.is_none() || device.flush.is_none()) {
            return Err(Fault::Misuse(
                "a device that is written to needs write and flush".to_owned(),
            ));
        }
        let block = match device.logical_block_bytes {
            0 => 512,
            bytes => bytes,
        };
        if !block.is_power_of_two() || !(512..=65536).contains(&block) {
            let what = format!(
                "device.logical_block_bytes is {block}: a power of two from 512 to 65536 is needed"
            );
            return Err(Fault::Misuse(what));
        }
        Ok(CallbackDevice {
            turn: (device.flags & BW_DEVICE_SERIAL != 0).then(Mutex::default),
            geometry: Geometry {
                bytes: device.bytes / u64::from(block) * u64::from(block),
                logical_block_bytes: block,
                optimal_io_bytes: block.max(4096),
                request_bytes_max: REQUEST_BYTES_MAX,
                fua: false,
                discard: device.discard.is_some(),
                read_only,
            },
            device,
        })
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.geometry.read_only
    }

    fn run(&self, f: impl FnOnce(User) -> i32) -> std::result::Result<(), DeviceErrorKind> {
        let _turn = self.turn.as_ref().map(|turn| turn.lock());
        match outside(|| f(self.device.user)) {
            0 => Ok(()),
            errno => Err(DeviceErrorKind::Os(errno)),
        }
    }

    fn read(&self, at: u64, buf: &mut AlignedBuf) -> std::result::Result<(), DeviceErrorKind> {
        let read = self.device.read.ok_or(DeviceErrorKind::Unsupported)?;
        let mut at = at;
        for part in buf.chunks_mut(REQUEST_BYTES_MAX as usize) {
            self.run(|user| read(user, at, part.as_mut_ptr().cast(), part.len()))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn write(&self, at: u64, bytes: &[u8]) -> std::result::Result<(), DeviceErrorKind> {
        let write = self.device.write.ok_or(DeviceErrorKind::ReadOnly)?;
        let mut at = at;
        for part in bytes.chunks(REQUEST_BYTES_MAX as usize) {
            self.run(|user| write(user, at, part.as_ptr().cast(), part.len()))?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn flush_all(&self) -> std::result::Result<(), DeviceErrorKind> {
        match self.device.flush {
            Some(flush) => self.run(|user| flush(user)),
            None => Ok(()),
        }
    }

    fn zeroes(&self, at: u64, bytes: u64) -> std::result::Result<(), DeviceErrorKind> {
        let zeroes = vec![0; bytes.min(u64::from(REQUEST_BYTES_MAX)) as usize];
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(zeroes.len() as u64) as usize;
            self.write(at + done, &zeroes[..step])?;
            done += step as u64;
        }
        Ok(())
    }
}

impl BlockDevice for CallbackDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) {
        if let Err(refused) = refuse::request(&self.geometry, &request) {
            request.complete(Err(refused));
            return;
        }
        let at = request.offset.0;
        let fua = request.flags.contains(Flags::FUA);
        let done = match &mut request.op {
            Op::Read(buf) => self.read(at, buf),
            Op::Write(slices) => {
                let mut at = at;
                let each = slices.iter().try_for_each(|slice| {
                    self.write(at, slice)?;
                    at += slice.len() as u64;
                    Ok(())
                });
                match each {
                    Ok(()) if fua => self.flush_all(),
                    done => done,
                }
            }
            Op::Flush => self.flush_all(),
            Op::Discard { bytes } => {
                let bytes = *bytes;
                match self.device.discard {
                    Some(discard) => self.run(|user| discard(user, at, bytes)),
                    None => Ok(()),
                }
            }
            Op::WriteZeroes { bytes } => self.zeroes(at, *bytes),
        };
        let result = done.map_err(|kind| DeviceError {
            op: request.op.name(),
            offset: request.offset,
            bytes: request.op.bytes(),
            kind,
        });
        request.complete(result);
    }

    fn name(&self) -> String {
        "device of the program".to_owned()
    }
}

impl Drop for CallbackDevice {
    fn drop(&mut self) {
        if let Some(release) = self.device.release {
            outside(|| release(self.device.user));
        }
    }
}
