//! The structure-aware mutator: it aims at fields and blocks of the base that an input names.
//!
//! A field becomes zero, ones, one more, one less, random, a small or large number, the field beside it or one
//! anywhere of the same length. A block becomes zero, a copy of another, or changes places. Patches are added,
//! dropped, moved a little, or taken back, so that libFuzzer's minimiser has something to find.

use crate::base::Base;
use crate::fields::Field;
use crate::patch::{Input, Patch};
use crate::rng::Rng;
use blockwright_device::{BlockDevice, DevOffset};

/// Inputs with more patches are hardly ever better ones.
const PATCHES_MAX: usize = 24;

/// Numbers around which code decides.
const INTERESTING: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    11,
    12,
    15,
    16,
    31,
    32,
    63,
    64,
    127,
    128,
    255,
    256,
    511,
    512,
    1023,
    1024,
    4095,
    4096,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x1_0000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFE,
    0xFFFF_FFFF,
    u64::MAX - 1,
    u64::MAX,
];

/// A changed input.
#[must_use]
pub fn mutate(bases: &[Base], data: &[u8], seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut input = Input::decode(data);
    for _ in 0..1 + rng.below(3) {
        mutate_once(bases, &mut input, &mut rng);
    }
    input.encode()
}

fn mutate_once(bases: &[Base], input: &mut Input, rng: &mut Rng) {
    let Some(base) = bases.get(usize::from(input.base) % bases.len().max(1)) else {
        return;
    };
    match rng.below(100) {
        0..3 => input.base = rng.below(bases.len()) as u8,
        3..18 if !input.patches.is_empty() => {
            let which = rng.below(input.patches.len());
            input.patches.remove(which);
        }
        18..26 if !input.patches.is_empty() => {
            let which = rng.below(input.patches.len());
            nudge(&mut input.patches[which], rng);
        }
        26..46 if !input.program.is_empty() => mutate_program(&mut input.program, rng),
        46..50 => input.program.push(rng.next() as u8),
        50..56 => input.patches.extend(of_blocks(base, rng)),
        _ => input.patches.extend(of_a_field(base, rng)),
    }
    while input.patches.len() > PATCHES_MAX {
        let which = rng.below(input.patches.len());
        input.patches.remove(which);
    }
}

fn mutate_program(program: &mut Vec<u8>, rng: &mut Rng) {
    let at = rng.below(program.len());
    match rng.below(4) {
        0 => program[at] = rng.next() as u8,
        1 => program.insert(at, rng.next() as u8),
        2 => drop(program.remove(at)),
        _ => {
            let from = rng.below(program.len());
            let to = (from + 1 + rng.below(12)).min(program.len());
            let part = program[from..to].to_vec();
            program.splice(at..at, part);
            program.truncate(512);
        }
    }
}

/// A patch at a place beside, or with another value.
fn nudge(patch: &mut Patch, rng: &mut Rng) {
    match patch {
        Patch::Bytes(at, bytes) => match rng.below(3) {
            0 => *at = at.wrapping_add_signed(rng.below(65) as i32 - 32),
            1 => {
                let which = rng.below(bytes.len());
                bytes[which] ^= 1 << rng.below(8);
            }
            _ => {
                let which = rng.below(bytes.len());
                bytes[which] = bytes[which].wrapping_add(if rng.below(2) == 0 { 1 } else { 0xFF });
            }
        },
        Patch::Fill(at, units, ones) => match rng.below(3) {
            0 => *at = at.wrapping_add(64),
            1 => *units = rng.below(16) as u8,
            _ => *ones = !*ones,
        },
        Patch::Copy(one, other) | Patch::Swap(one, other) => std::mem::swap(one, other),
    }
}

fn of_blocks(base: &Base, rng: &mut Rng) -> Option<Patch> {
    let one = *rng.pick(&base.map.blocks)?;
    let other = *rng.pick(&base.map.blocks)?;
    let units = (base.block_bytes / 64).min(256) - 1;
    Some(match rng.below(5) {
        0 => Patch::Fill(one, units as u8, false),
        1 => Patch::Fill(one, units as u8, true),
        2 | 3 => Patch::Copy(one, other),
        _ => Patch::Swap(one, other),
    })
}

fn of_a_field(base: &Base, rng: &mut Rng) -> Option<Patch> {
    let fields = &base.map.fields;
    let which = rng.below(fields.len());
    let field = *fields.get(which)?;
    let old = value(base, field);
    let bits = u32::from(field.len) * 8;
    let new = match rng.below(12) {
        0 => 0,
        1 => u64::MAX,
        2 => old.wrapping_add(1),
        3 => old.wrapping_sub(1),
        4 | 5 => rng.next() >> rng.below(64),
        6 | 7 => *rng.pick(INTERESTING)?,
        8 => old ^ 1u64.checked_shl(rng.below(bits as usize) as u32)?,
        9 => value(base, *fields.get(which + 1)?),
        10 => old.wrapping_mul(2),
        _ => {
            let alike = |f: &&Field| f.len == field.len && f.big_endian == field.big_endian;
            let start = rng.below(fields.len());
            value(base, *fields[start..].iter().find(alike)?)
        }
    };
    let len = usize::from(field.len).clamp(1, 8);
    let mut bytes = new.to_le_bytes()[..len].to_vec();
    if field.big_endian {
        bytes.reverse();
    }
    Some(Patch::Bytes(field.at, bytes))
}

/// What a field of the base holds.
fn value(base: &Base, field: Field) -> u64 {
    let start = u64::from(field.at) / 512 * 512;
    let mut sectors = [0; 1024];
    let len = (base.device.geometry().bytes - start).min(1024) as usize;
    // Memory has no faults.
    let _no_fault = base.device.read_at(DevOffset(start), &mut sectors[..len]);
    let skip = (u64::from(field.at) - start) as usize;
    let bytes = &sectors[skip..(skip + usize::from(field.len)).min(sectors.len())];
    let join = |n: u64, b: &u8| n << 8 | u64::from(*b);
    if field.big_endian {
        bytes.iter().fold(0, join)
    } else {
        bytes.iter().rev().fold(0, join)
    }
}
