//! `touch`: makes empty files, sets times.

use crate::args::TouchArgs;
use crate::commands::each::each_operand;
use crate::commands::edit::umask;
use crate::failure::{At, Failure, Result};
use crate::image::{Access, Image};
use blockwright_vfs::{CreateRequest, ErrorKind, FileKind, SetAttr, SetTime, Timestamp};

/// Runs `touch`.
///
/// # Errors
/// As printed; the other operands were changed.
pub fn touch(args: &TouchArgs) -> Result<()> {
    let time = match &args.date {
        Some(text) => SetTime::At(parse_time(text).ok_or_else(|| {
            Failure::usage(format_args!(
                "`{text}` is not a time: @SECONDS since 1970, or 2026-11-23T12:30:00Z"
            ))
        })?),
        None => SetTime::Now,
    };
    let both = args.access == args.modification;
    let request = SetAttr {
        atime: (args.access || both).then_some(time),
        mtime: (args.modification || both).then_some(time),
        ..SetAttr::default()
    };
    let perm = 0o666 & !umask();
    each_operand(Access::Write, &args.paths, |image, operand| {
        touch_one(image, &operand.path, args, perm, &request)
    })
}

fn touch_one(
    image: &Image,
    path: &[u8],
    args: &TouchArgs,
    perm: u32,
    request: &SetAttr,
) -> Result<()> {
    let (vfs, cred) = (image.vfs(), image.cred());
    let inode = match image.find(path, !args.symlinks)? {
        Some(inode) => inode,
        None if args.no_create => return Ok(()),
        None if path.ends_with(b"/") => {
            return Err(Failure::new(ErrorKind::NotFound).at(image.place(path)));
        }
        None => {
            let (dir, name) = image.resolve_parent(path)?;
            let new = CreateRequest::new(FileKind::Regular, perm);
            vfs.create(cred, &dir, &name, &new).at(image.place(path))?.0
        }
    };
    vfs.set_attr(cred, &inode, request)
        .at(image.place(path))
        .map(|_| ())
}

/// `@SECONDS[.FRACTION]`, or a date and a time of day in UTC: `2026-11-23`, `2026-11-23T12:30`, `2026-11-23 12:30:15.5Z`.
fn parse_time(text: &str) -> Option<Timestamp> {
    let nanos = |fraction: &str| -> Option<u32> {
        let digits = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
        let text = format!("{:0<9}", &fraction[..fraction.len().min(9)]);
        digits.then(|| text.parse().ok()).flatten()
    };
    let split = |text: &str| -> Option<(String, u32)> {
        match text.split_once('.') {
            Some((whole, fraction)) => Some((whole.to_owned(), nanos(fraction)?)),
            None => Some((text.to_owned(), 0)),
        }
    };
    if let Some(secs) = text.strip_prefix('@') {
        let (whole, nanos) = split(secs)?;
        let secs: i64 = whole.parse().ok()?;
        // Counted upwards from the second before.
        return Some(match (whole.starts_with('-'), nanos) {
            (true, 1..) => Timestamp {
                secs: secs.checked_sub(1)?,
                nanos: 1_000_000_000 - nanos,
            },
            _ => Timestamp { secs, nanos },
        });
    }
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time),
        None => (text, "0:0"),
    };
    let numbers = |text: &str, at: char| -> Option<Vec<i64>> {
        text.split(at)
            .map(|part| {
                let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
                digits.then(|| part.parse().ok()).flatten()
            })
            .collect()
    };
    let [year, month, day] = numbers(date, '-')?[..] else {
        return None;
    };
    let (time, nanos) = split(time)?;
    let (hour, minute, second) = match numbers(&time, ':')?[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let february = if leap { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = *lengths.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    if !(1..=length).contains(&day) || hour > 23 || minute > 59 || second > 59 || year > 9999 {
        return None;
    }
    // Days since 1970-01-01: whole years, the leap days among them, then this year's months.
    let before = year - 1;
    let leap_days = before / 4 - before / 100 + before / 400 - 477;
    let months: i64 = lengths[..(month - 1) as usize].iter().sum();
    let days = (year - 1970) * 365 + leap_days + months + day - 1;
    Some(Timestamp {
        secs: days * 86_400 + hour * 3600 + minute * 60 + second,
        nanos,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::time_json;

    #[test]
    fn times() {
        let shown = |text: &str| parse_time(text).map(time_json);
        for (text, time) in [
            ("@0", "1970-01-01T00:00:00.000000000Z"),
            ("@1.5", "1970-01-01T00:00:01.500000000Z"),
            ("@-0.25", "1969-12-31T23:59:59.750000000Z"),
            ("2026-11-23", "2026-11-23T00:00:00.000000000Z"),
            ("2000-02-29T23:59:58Z", "2000-02-29T23:59:58.000000000Z"),
            ("1969-12-31 01:02", "1969-12-31T01:02:00.000000000Z"),
            ("2100-03-01T12:30:15.25", "2100-03-01T12:30:15.250000000Z"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(time), "{text}");
        }
        for bad in [
            "",
            "now",
            "@",
            "@x",
            "2026-13-01",
            "2026-02-29",
            "2026-01-00",
            "2026-1",
            "2026-01-01T24:00",
        ] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
