//! Reading LZO1X streams: version 0 (`lzo`) and version 1 (`lzo-rle`, which has runs of zeroes).
//!
//! A stream is a series of instructions. Each copies bytes that were written before (a length, and a
//! distance back), and then 0 to 3 bytes that follow it in the stream; or it copies a longer stretch of the
//! stream. What opcodes below 16 mean depends on how many bytes the last instruction took from the stream.
//!
//! Not responsible for: compressing; where streams are kept.
//!
//! Reference: kernel documentation, "LZO stream format as understood by Linux's LZO decompressor".

crate::with_messages! {
/// The reason why a stream is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the messages say it
pub enum LzoError {
    Short = "the stream ends early",
    Long { max: usize } = "the stream holds more than {max} bytes",
    Distance { distance: usize, at: usize } = "a copy from {distance} bytes back, at byte {at}",
    Version { found: u8 } = "stream version {found} is not known",
    Behind { left: usize } = "{left} bytes behind the end mark",
}
}

/// What an instruction took from the stream, as far as the next one cares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    None,
    Few,
    Many,
}

struct Stream<'a> {
    input: &'a [u8],
    at: usize,
    out: Vec<u8>,
    max: usize,
}

impl Stream<'_> {
    fn byte(&mut self) -> Result<u8, LzoError> {
        let byte = *self.input.get(self.at).ok_or(LzoError::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn word(&mut self) -> Result<usize, LzoError> {
        let low = self.byte()?;
        Ok(usize::from(u16::from_le_bytes([low, self.byte()?])))
    }

    /// A length of which the opcode has `bits` bits; when they are 0 it continues in the stream.
    fn length(&mut self, opcode: u8, bits: u32) -> Result<usize, LzoError> {
        let all = (1usize << bits) - 1;
        let short = usize::from(opcode) & all;
        if short != 0 {
            return Ok(short);
        }
        let mut length = all;
        loop {
            match self.byte()? {
                0 => length += 255,
                last => return Ok(length + usize::from(last)),
            }
            // No output is that long; and there is an end to adding.
            if length > self.max {
                return Err(LzoError::Long { max: self.max });
            }
        }
    }

    fn room(&self, length: usize) -> Result<(), LzoError> {
        if length > self.max - self.out.len() {
            return Err(LzoError::Long { max: self.max });
        }
        Ok(())
    }

    /// Takes bytes from the stream.
    fn literals(&mut self, length: usize) -> Result<(), LzoError> {
        self.room(length)?;
        let end = self.at.checked_add(length).ok_or(LzoError::Short)?;
        let bytes = self.input.get(self.at..end).ok_or(LzoError::Short)?;
        self.out.extend_from_slice(bytes);
        self.at = end;
        Ok(())
    }

    /// Copies bytes that were written before; a copy may overlap what it writes.
    fn copy(&mut self, distance: usize, length: usize) -> Result<(), LzoError> {
        self.room(length)?;
        let at = self.out.len();
        if distance == 0 || distance > at {
            return Err(LzoError::Distance { distance, at });
        }
        let mut left = length;
        while left > 0 {
            // What is there already, again and again.
            let n = left.min(distance);
            let from = self.out.len() - distance;
            self.out.extend_from_within(from..from + n);
            left -= n;
        }
        Ok(())
    }

    fn zeroes(&mut self, length: usize) -> Result<(), LzoError> {
        self.room(length)?;
        self.out.resize(self.out.len() + length, 0);
        Ok(())
    }
}

/// Decompresses a stream that holds at most `max` bytes; never more memory is taken.
///
/// # Errors
/// See [`LzoError`].
pub fn decompress(input: &[u8], max: usize) -> Result<Vec<u8>, LzoError> {
    let mut s = Stream {
        input,
        at: 0,
        out: Vec::with_capacity(max),
        max,
    };
    let mut taken = Taken::None;
    let mut runs = false;
    // The shortest stream with a version has five bytes.
    if input.len() >= 5 && input[0] == 17 {
        match input[1] {
            0 => {}
            1 => runs = true,
            found => return Err(LzoError::Version { found }),
        }
        s.at = 2;
    }
    // The first byte may be a count of bytes to take.
    if let Some(first @ 18..) = input.get(s.at).copied() {
        s.at += 1;
        let count = usize::from(first - 17);
        s.literals(count)?;
        taken = if count < 4 { Taken::Few } else { Taken::Many };
    }
    loop {
        let opcode = s.byte()?;
        let low = usize::from(opcode);
        // How many bytes to take behind the copy: the last two bits of the opcode, or of its operand.
        let more = match opcode {
            0..=15 => match taken {
                Taken::None => {
                    let length = s.length(opcode, 4)? + 3;
                    s.literals(length)?;
                    taken = Taken::Many;
                    continue;
                }
                Taken::Few => {
                    let distance = (usize::from(s.byte()?) << 2) + (low >> 2) + 1;
                    s.copy(distance, 2)?;
                    low & 3
                }
                Taken::Many => {
                    let distance = (usize::from(s.byte()?) << 2) + (low >> 2) + 2049;
                    s.copy(distance, 3)?;
                    low & 3
                }
            },
            16..=31 => {
                let operand = s.input.get(s.at..s.at + 2);
                let run = runs && low & 8 != 0 && matches!(operand, Some([a, 255]) if a >> 2 == 63);
                if run {
                    let operand = s.word()?;
                    let length = (usize::from(s.byte()?) << 3 | low & 7) + 4;
                    s.zeroes(length)?;
                    operand & 3
                } else {
                    let length = s.length(opcode, 3)? + 2;
                    let operand = s.word()?;
                    let distance = ((low & 8) << 11) + (operand >> 2);
                    if distance == 0 {
                        break;
                    }
                    s.copy(distance + 16384, length)?;
                    operand & 3
                }
            }
            32..=63 => {
                let length = s.length(opcode, 5)? + 2;
                let operand = s.word()?;
                s.copy((operand >> 2) + 1, length)?;
                operand & 3
            }
            64..=127 => {
                let distance = (usize::from(s.byte()?) << 3) + (low >> 2 & 7) + 1;
                s.copy(distance, 3 + (low >> 5 & 1))?;
                low & 3
            }
            128..=255 => {
                let distance = (usize::from(s.byte()?) << 3) + (low >> 2 & 7) + 1;
                s.copy(distance, 5 + (low >> 5 & 3))?;
                low & 3
            }
        };
        s.literals(more)?;
        taken = if more == 0 { Taken::None } else { Taken::Few };
    }
    let left = input.len() - s.at;
    if left > 0 {
        return Err(LzoError::Behind { left });
    }
    Ok(s.out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_one_by_one() {
        let end = [17, 0, 0];
        let stream = |head: &[u8]| [head, &end].concat();
        // Five bytes taken, then two opcodes of the short distances.
        let s = stream(&[22, 1, 2, 3, 4, 5, 64 + 4 * 3, 0, 128 + 32 + 1, 0, 9]);
        let wanted = [1, 2, 3, 4, 5, 2, 3, 4, 4, 4, 4, 4, 4, 4, 9];
        assert_eq!(decompress(&s, 4096).unwrap(), wanted);
        // A copy that overlaps itself, with a long length.
        let s = stream(&[18, 7, 32, 10, 0, 0]);
        assert_eq!(decompress(&s, 4096).unwrap(), [7; 1 + 31 + 10 + 2]);
        // A long stretch of the stream; 2 bytes taken, then a copy of two.
        let long: Vec<u8> = (0..40).collect();
        let head = [&[0, 40 - 3 - 15][..], &long, &[32 + 1, 2, 0, 50, 51, 0, 0]].concat();
        let mut wanted = long;
        wanted.extend([39, 39, 39, 50, 51, 51, 51]);
        assert_eq!(decompress(&stream(&head), 4096).unwrap(), wanted);
    }

    #[test]
    fn runs_of_zeroes_are_of_version_1() {
        let run = [17, 1, 18, 7, 16 | 8 | 5, 0xFC | 1, 0xFF, 2, 9, 17, 0, 0];
        let mut wanted = vec![7];
        wanted.extend([0; (2 << 3 | 5) + 4]);
        wanted.push(9);
        assert_eq!(decompress(&run, 4096).unwrap(), wanted);
        let old = [18, 7, 16 | 8 | 5, 0xFC | 1, 0xFF, 9, 17, 0, 0];
        assert!(matches!(
            decompress(&old, 4096),
            Err(LzoError::Distance {
                distance: 49151,
                at: 1
            })
        ));
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(decompress(&[], 10), Err(LzoError::Short));
        assert_eq!(decompress(&[17, 0, 0], 0), Ok(vec![]));
        assert_eq!(
            decompress(&[17, 9, 0, 0, 0], 10),
            Err(LzoError::Version { found: 9 })
        );
        assert_eq!(
            decompress(&[17, 0, 0, 1], 10),
            Err(LzoError::Behind { left: 1 })
        );
        // Lengths that never end, and such that end late.
        let long = [&[18, 7, 32][..], &[0; 100_000]].concat();
        assert_eq!(decompress(&long, 4096), Err(LzoError::Long { max: 4096 }));
        let s = [18, 7, 32, 10, 0, 0, 17, 0, 0];
        assert_eq!(decompress(&s, 43), Err(LzoError::Long { max: 43 }));
        assert_eq!(decompress(&s[..6], 4096), Err(LzoError::Short));
        let mut x = 1u64;
        for _ in 0..50_000 {
            let mut bytes = [0u8; 24];
            for b in &mut bytes {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
                *b = (x >> 56) as u8;
            }
            if let Ok(out) = decompress(&bytes, 512) {
                assert!(out.len() <= 512);
            }
        }
    }

    #[test]
    fn what_liblzo2_made() {
        let hex = "\
        00096c696e6520353435323638206f662074686520746578740a6e652020205400381401200b640036240233\
        0c0198190232383736332b340398020236343836312b580005d8f46eda787f8b9a98030231303538352b7800\
        06c64fb0b3684889ab0020d000000564e89053ffb7cd88208de00305cb34970af1bae4a8200fd40205f1ba46\
        67d96fe18a200adc0084460238353939312c4409200a08012022a80094100236333334342bdc0a2022640120\
        c008010503220c0f5741a8aa88280235363534372023200705f631815ac43c53ae940a0232363833382c1c12\
        206358050b0000000000000000000000000000110000";
        let nibble = |b: &u8| (*b as char).to_digit(16).expect("hex") as u8;
        let bytes: Vec<u8> = hex
            .as_bytes()
            .chunks(2)
            .map(|p| nibble(&p[0]) << 4 | nibble(&p[1]))
            .collect();
        let out = decompress(&bytes, 1536).unwrap();
        assert_eq!((out.len(), crc32fast::hash(&out)), (1536, 0xDF87_EF65));
        for cut in 0..bytes.len() {
            assert!(decompress(&bytes[..cut], 1536).is_err(), "{cut}");
        }
    }
}
