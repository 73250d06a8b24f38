//! The input format of image targets.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | which base |
//! | 1 | how many patches follow; what is behind them is the target's program |
//! | 1 | a patch's kind: low nibble 0 to 11: this many bytes and one; 12: zeroes; 13: ones; 14: copied from another block; 15: swapped with it |
//! | 4 | its offset in the image, modulo the image's size |
//! | n | the bytes; or 1: how many units of 64 bytes; or 4: the other block's offset |
//!
//! Every input decodes: what is missing counts as zero. Blocks of kinds 14 and 15 are the base's.

use crate::base::Base;
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice};

/// A change of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Patch {
    /// These bytes are at this offset; 1 to 12.
    Bytes(u32, Vec<u8>),
    /// So many units of 64 bytes from this offset on have all bits clear, or set.
    Fill(u32, u8, bool),
    /// The block at the first offset is a copy of the block at the second.
    Copy(u32, u32),
    /// The blocks at these offsets change places.
    Swap(u32, u32),
}

/// A decoded input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// Number of the base, modulo how many there are.
    pub base: u8,
    /// Its changes, in order.
    pub patches: Vec<Patch>,
    /// What the target does with it.
    pub program: Vec<u8>,
}

/// A unit of [`Patch::Fill`].
const UNIT: usize = 64;

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
}

impl Input {
    /// From any bytes.
    #[must_use]
    pub fn decode(data: &[u8]) -> Self {
        let mut data = Bytes(data);
        let base = data.byte();
        let count = data.byte();
        let mut patches = Vec::new();
        for _ in 0..count {
            if data.0.is_empty() {
                break;
            }
            let kind = data.byte() & 15;
            let at = data.word();
            patches.push(match kind {
                0..=11 => Patch::Bytes(at, (0..=kind).map(|_| data.byte()).collect()),
                12 | 13 => Patch::Fill(at, data.byte(), kind == 13),
                14 => Patch::Copy(at, data.word()),
                _ => Patch::Swap(at, data.word()),
            });
        }
        Input {
            base,
            patches,
            program: data.0.to_vec(),
        }
    }

    /// As bytes; at most 255 patches are kept.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let patches = &self.patches[..self.patches.len().min(255)];
        let mut out = vec![self.base, patches.len() as u8];
        for patch in patches {
            match patch {
                Patch::Bytes(at, bytes) => {
                    let bytes = &bytes[..bytes.len().min(12)];
                    out.push((bytes.len().max(1) - 1) as u8);
                    out.extend(at.to_le_bytes());
                    out.extend(bytes);
                    if bytes.is_empty() {
                        out.push(0);
                    }
                }
                Patch::Fill(at, units, ones) => {
                    out.push(12 + u8::from(*ones));
                    out.extend(at.to_le_bytes());
                    out.push(*units);
                }
                Patch::Copy(at, from) => {
                    out.push(14);
                    out.extend(at.to_le_bytes());
                    out.extend(from.to_le_bytes());
                }
                Patch::Swap(at, with) => {
                    out.push(15);
                    out.extend(at.to_le_bytes());
                    out.extend(with.to_le_bytes());
                }
            }
        }
        out.extend(&self.program);
        out
    }

    /// The base that is meant, and a device with the patched image. `None` without bases.
    #[must_use]
    pub fn image<'b>(&self, bases: &'b [Base]) -> Option<(&'b Base, MemoryDevice)> {
        let base = bases.get(usize::from(self.base) % bases.len().max(1))?;
        let device = base.device.snapshot();
        let view = View {
            device: &device,
            bytes: device.geometry().bytes,
            sector: u64::from(device.geometry().logical_block_bytes),
        };
        for patch in &self.patches {
            let block = |at: u32| u64::from(at) / base.block_bytes * base.block_bytes;
            let len = base.block_bytes as usize;
            match patch {
                Patch::Bytes(at, bytes) => view.write(u64::from(*at), bytes),
                Patch::Fill(at, units, ones) => {
                    let fill = vec![if *ones { 0xFF } else { 0 }; (usize::from(*units) + 1) * UNIT];
                    view.write(u64::from(*at), &fill);
                }
                Patch::Copy(at, from) => view.write(block(*at), &view.read(block(*from), len)),
                Patch::Swap(at, with) => {
                    let (one, other) = (view.read(block(*at), len), view.read(block(*with), len));
                    view.write(block(*at), &other);
                    view.write(block(*with), &one);
                }
            }
        }
        Some((base, device))
    }
}

/// Any bytes of a device; offsets wrap at its end, ranges end there.
struct View<'a> {
    device: &'a MemoryDevice,
    bytes: u64,
    sector: u64,
}

impl View<'_> {
    /// The sectors around a range: their offset, and where in them it lies.
    fn around(&self, at: u64, len: usize) -> (u64, std::ops::Range<usize>, usize) {
        let at = at % self.bytes.max(1);
        let end = (at + len as u64).min(self.bytes);
        let start = at / self.sector * self.sector;
        let stop = end.next_multiple_of(self.sector).min(self.bytes);
        let inside = (at - start) as usize..(end - start) as usize;
        (start, inside, (stop - start) as usize)
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let (start, inside, whole) = self.around(at, len);
        let mut bytes = vec![0; whole];
        // Memory has no faults; were there one, zeroes would do.
        let _no_fault = self.device.read_at(DevOffset(start), &mut bytes);
        bytes[inside].to_vec()
    }

    fn write(&self, at: u64, new: &[u8]) {
        let (start, inside, whole) = self.around(at, new.len());
        let mut bytes = vec![0; whole];
        let _no_fault = self.device.read_at(DevOffset(start), &mut bytes);
        let len = inside.len();
        bytes[inside].copy_from_slice(&new[..len]);
        let _no_fault = (self.device).write_at(DevOffset(start), &bytes, Flags::empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_survive_encoding() {
        let input = Input {
            base: 3,
            patches: vec![
                Patch::Bytes(7, vec![1]),
                Patch::Bytes(u32::MAX, (0..12).collect()),
                Patch::Fill(1024, 15, true),
                Patch::Fill(0, 0, false),
                Patch::Copy(4096, 8192),
                Patch::Swap(1, 2),
            ],
            program: b"program".to_vec(),
        };
        assert_eq!(Input::decode(&input.encode()), input);
    }

    #[test]
    fn any_bytes_decode_and_apply() {
        let device = MemoryDevice::new(8192);
        device
            .write_at(DevOffset(1024), &[5; 1024], Flags::empty())
            .unwrap();
        let base = Base::plain("test", device, 1024);
        let bases = std::slice::from_ref(&base);
        for n in 0..=255u8 {
            let data: Vec<u8> = (0..40).map(|k: u8| k.wrapping_mul(n) ^ n).collect();
            let input = Input::decode(&data);
            assert!(input.image(bases).is_some());
        }
        let input = Input {
            patches: vec![Patch::Swap(1024, 3000), Patch::Bytes(2047, vec![9, 8])],
            ..Input::default()
        };
        let image = input.image(bases).unwrap().1.to_vec();
        assert_eq!((image[1024], image[2047], image[2048]), (0, 9, 8));
        assert_eq!(image[2049..3072], [5; 1023]);
        assert!(
            base.device.to_vec()[2048..] == [0; 6144],
            "the base stays as it is"
        );
    }
}
