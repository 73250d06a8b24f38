//! Differential runs over damaged volumes: the test `damage` of the library with other seeds than its own. In a build for
//! tests, which is optimised too, so that an overflow or a broken assertion is a failure.

use crate::tools;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask damage [--format ext4|f2fs] [--seeds A..B]";

pub(crate) fn run(args: &[String]) -> ExitCode {
    let Some((formats, seeds)) = parse(args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut result = ExitCode::SUCCESS;
    for format in formats {
        let selected = format!("{format}:{seeds}");
        let code = tools::cargo_with(
            &["test", "-p", "blockwright", "--test", "damage", "--"],
            &["--exact".into(), format.to_owned(), "--nocapture".into()],
            &[("BLOCKWRIGHT_DAMAGE", &selected)],
        );
        if code != ExitCode::SUCCESS {
            result = code;
        }
    }
    result
}

/// The formats and the seeds.
fn parse(args: &[String]) -> Option<(Vec<&str>, String)> {
    let (mut formats, mut seeds) = (vec!["ext4", "f2fs"], "0..5000".to_owned());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next()?;
        match arg.as_str() {
            "--format" => formats = vec![*formats.iter().find(|f| *f == value)?],
            "--seeds" => {
                let (from, to) = value.split_once("..")?;
                let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
                seeds = format!("{from}..{to}");
            }
            _ => return None,
        }
    }
    Some((formats, seeds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_seeds() {
        let parse = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            parse(&args).map(|(formats, seeds)| (formats.join(","), seeds))
        };
        let both = ("ext4,f2fs".to_owned(), "0..5000".to_owned());
        assert_eq!(parse(""), Some(both));
        let some = ("f2fs".to_owned(), "7..9".to_owned());
        assert_eq!(parse("--seeds 7..9 --format f2fs"), Some(some));
        assert_eq!(parse("--format xfs"), None);
        assert_eq!(parse("--seeds 7"), None);
        assert_eq!(parse("--seeds"), None);
    }
}
