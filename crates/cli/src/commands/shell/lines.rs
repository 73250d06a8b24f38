//! Lines of a script or a prompt.

use crate::failure::{Failure, Result};
use std::io::{BufRead, ErrorKind, Read};

/// The longest line, in bytes.
const LINE_MAX: u64 = 1 << 20;

/// The next line, or why it is none; `None` at the end. A line that is too long is skipped as a whole, so no part of it is a command.
///
/// # Errors
/// When nothing more can be read.
pub fn next(from: &mut impl BufRead) -> Result<Option<Result<String>>> {
    let mut line = Vec::new();
    let read = from.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(None);
    }
    if read as u64 == LINE_MAX {
        if line.last() != Some(&b'\n') {
            skip(from)?;
        }
        return Ok(Some(Err(Failure::new("the line is too long"))));
    }
    let line = String::from_utf8(line);
    Ok(Some(
        line.map_err(|_| Failure::new("the line is not UTF-8")),
    ))
}

/// Reads to the end of a line and keeps nothing of it.
fn skip(from: &mut impl BufRead) -> Result<()> {
    loop {
        let buffer = match from.fill_buf() {
            Ok(buffer) => buffer,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e.into()),
        };
        let end = buffer.iter().position(|b| *b == b'\n');
        let (used, done) = match end {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        from.consume(used);
        if done {
            return Ok(());
        }
    }
}
