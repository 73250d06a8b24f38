//! `%XX` in addresses and URLs.

use crate::{Error, Result};

/// The bytes that a text with `%XX` stands for.
///
/// # Errors
/// [`Error::Address`].
pub(crate) fn decode(text: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'%' {
            out.push(first);
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|b| char::from(*b).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            let why = "`%` without two hexadecimal digits behind it";
            return Err(Error::Address(why.to_owned()));
        };
        out.push((high << 4 | low) as u8);
        rest = &tail[2..];
    }
    Ok(out)
}

/// The path of a URL as S3's signatures need it: all but unreserved characters and `/` is `%XX`.
pub(crate) fn encode_path(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
