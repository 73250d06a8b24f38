//! Sizes on the command line and in mount options: one grammar for all of them.

/// A number.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse_number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a number that can stand here"))
}

/// A size in bytes: a number, also with a fraction, and an optional binary unit K, M, G, T or P (also KiB, KB, …).
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => {
            return Err(format!(
                "`{text}` is not a size: a number, and K, M, G, T or P behind it"
            ));
        }
    };
    let bad = || format!("`{text}` is not a size: a number, and K, M, G, T or P behind it");
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.contains('.') {
        return Err(bad());
    }
    // More digits than that change no byte.
    const DIGITS_MAX: usize = 18;
    let fraction = &fraction[..fraction.len().min(DIGITS_MAX)];
    let digits = |text: &str| text.parse::<u128>().map_err(|_| bad());
    let scale = 10u128.pow(fraction.len() as u32);
    let part = if fraction.is_empty() {
        0
    } else {
        digits(fraction)?
    };
    if shift == 0 && part != 0 {
        return Err(format!("`{text}` is not a whole number of bytes"));
    }
    let large = || format!("`{text}` is larger than any volume");
    let bytes = digits(whole)?
        .checked_shl(shift)
        .filter(|_| whole.len() <= 20);
    let bytes = bytes.ok_or_else(large)? + (part << shift) / scale;
    u64::try_from(bytes).map_err(|_| large())
}

/// A user's, group's or project's number.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse_id(text: &str) -> Result<u32, String> {
    let fail = |_| "a number is needed: names of this host mean nothing in an image".to_owned();
    text.parse().map_err(fail)
}

/// A number of seconds that a wait can have.
///
/// # Errors
/// A sentence that says what is wrong.
pub fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=1e9).contains(&seconds) => Ok(seconds),
        _ => Err(format!(
            "`{text}` is not a number of seconds of at least 0.01"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("16T"), Ok(16 << 40));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("0.5k"), Ok(512));
        assert_eq!(parse_size("2.0"), Ok(2));
        assert_eq!(parse_size("1.25 MiB"), Ok(5 << 18));
        for bad in [
            "12Q",
            "",
            "99999999999T",
            ".5G",
            "1.G",
            "1.5.2G",
            "1.5",
            "-1",
            "1,5G",
            "G",
            "18446744073709551616",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
    }
}
