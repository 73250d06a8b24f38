//! Names of any bytes as text: what is not UTF-8, and `%`, becomes `%` and two hexadecimal digits.

use std::fmt::Write;

/// A name or path as text.
pub(crate) fn coded(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '%' => out.push_str("%25"),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The bytes of a name or path; `None` where a `%` is not followed by two digits.
pub(crate) fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        out.push((digit()? << 4 | digit()?) as u8);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_come_back() {
        let all: Vec<u8> = (0..=255).collect();
        for bytes in [
            &all[..],
            b"caf\xe9",
            b"100%",
            "caf\u{e9} \u{1f600}".as_bytes(),
            b"\xf0\x9f\x98",
            b"",
        ] {
            assert_eq!(decoded(&coded(bytes)).as_deref(), Some(bytes));
        }
        assert_eq!(coded("a/\u{e9}".as_bytes()), "a/\u{e9}");
        assert_eq!(coded(b"caf\xe9%"), "caf%E9%25");
    }

    #[test]
    fn what_is_no_code_is_refused() {
        for text in ["%", "%4", "a%zz", "%\u{e9}"] {
            assert_eq!(decoded(text), None, "{text}");
        }
    }
}
