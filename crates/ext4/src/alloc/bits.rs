//! Bits of on-disk bitmaps.
//!
//! Bit `n` is bit `n % 8` of byte `n / 8`. Past the end of a bitmap all blocks count as used, and nothing is changed: a wrong count of a damaged
//! volume neither panics nor hands out what is not there.

/// Whether a bit of an on-disk bitmap is set; past its end, yes.
pub(crate) fn bit(bitmap: &[u8], at: u32) -> bool {
    bitmap
        .get(at as usize / 8)
        .is_none_or(|b| b >> (at % 8) & 1 == 1)
}

fn for_bits(bitmap: &mut [u8], from: u32, len: u32, mut f: impl FnMut(&mut u8, u8)) {
    let (mut at, end) = (u64::from(from), u64::from(from) + u64::from(len));
    while at < end {
        let Some(byte) = bitmap.get_mut((at / 8) as usize) else {
            return;
        };
        let n = (8 - at % 8).min(end - at);
        f(byte, ((0xFFu16 >> (8 - n)) as u8) << (at % 8));
        at += n;
    }
}

/// Sets bits of an on-disk bitmap; those past its end are ignored.
pub(crate) fn set_bits(bitmap: &mut [u8], from: u32, len: u32) {
    for_bits(bitmap, from, len, |byte, mask| *byte |= mask);
}

/// Clears bits of an on-disk bitmap; those past its end are ignored.
pub(crate) fn clear_bits(bitmap: &mut [u8], from: u32, len: u32) {
    for_bits(bitmap, from, len, |byte, mask| *byte &= !mask);
}

/// The 64 bits that begin with a byte of an on-disk bitmap. Bytes past its end are `missing`.
fn word_at(bitmap: &[u8], byte: usize, missing: u8) -> u64 {
    let rest = bitmap.get(byte..).unwrap_or_default();
    if let Some(word) = rest.first_chunk() {
        return u64::from_le_bytes(*word);
    }
    let mut word = [missing; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

/// The first bit in the range that is set in the words that `word` returns for the byte they begin with.
fn first_set(from: u32, len: u32, word: impl Fn(usize) -> u64) -> Option<u32> {
    let end = from.saturating_add(len);
    let mut at = from;
    while at < end {
        let found = word(at as usize / 8) >> (at % 8);
        if found != 0 {
            let found = at.checked_add(found.trailing_zeros())?;
            return (found < end).then_some(found);
        }
        at = at.checked_add(64 - at % 8)?;
    }
    None
}

/// The first bit in the range that is not as wanted. Past the end of the bitmap all are set.
pub(crate) fn first_other(bitmap: &[u8], from: u32, len: u32, want: bool) -> Option<u32> {
    first_set(from, len, |byte| {
        let word = word_at(bitmap, byte, 0xFF);
        if want { !word } else { word }
    })
}

/// The first bit in the range that is set in neither of two bitmaps. Past their ends all bits are set in `used` and clear in `more`.
pub(crate) fn first_clear(used: &[u8], more: &[u8], from: u32, len: u32) -> Option<u32> {
    first_set(from, len, |byte| {
        !(word_at(used, byte, 0xFF) | word_at(more, byte, 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmap_edits() {
        let mut b = [0u8; 8];
        set_bits(&mut b, 3, 18);
        assert_eq!(b[..4], [0xF8, 0xFF, 0x1F, 0]);
        assert_eq!(first_other(&b, 3, 18, true), None);
        assert_eq!(first_other(&b, 3, 19, true), Some(21));
        assert_eq!(first_other(&b, 0, 64, false), Some(3));
        // As bit by bit, wherever it begins and ends, and however long the second bitmap is.
        for more in [
            &[][..],
            &[0, 0x60],
            &[0, 0, 0xF0, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
        ] {
            let in_more = |at: u32| (at as usize / 8) < more.len() && bit(more, at);
            for from in 0..72 {
                for len in 0..72 {
                    let slow = (from..from + len).find(|at| !bit(&b, *at) && !in_more(*at));
                    assert_eq!(
                        first_clear(&b, more, from, len),
                        slow,
                        "{more:?} {from} {len}"
                    );
                }
            }
        }
        for want in [true, false] {
            for from in 0..72 {
                for len in 0..72 {
                    let slow = (from..from + len).find(|at| bit(&b, *at) != want);
                    assert_eq!(
                        first_other(&b, from, len, want),
                        slow,
                        "{from} {len} {want}"
                    );
                }
            }
        }
        clear_bits(&mut b, 8, 8);
        assert_eq!(b[..4], [0xF8, 0, 0x1F, 0]);
        set_bits(&mut b, 60, 100);
        assert_eq!(b[7], 0xF0);
        assert!(bit(&b, 64), "past the end counts as used");
        clear_bits(&mut b, 0, u32::MAX);
        assert_eq!(b, [0; 8]);
    }
}
