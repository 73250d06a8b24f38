//! Runs over damaged volumes: the test `damage` of the library with other cases than its own. In a build for tests, which is optimised too,
//! so that an overflow or a broken assertion is a failure.

use crate::tools;
use std::process::ExitCode;

const USAGE: &str =
    "usage: cargo xtask damage [--format ext4|f2fs] [--seeds A..B | --fields [--one-in N]]";

/// What is run.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Cases {
    /// Damage by chance, judged and repaired beside the formats' tools.
    Seeds(String),
    /// One in this many of all fields with all their values: what the engine refuses, the checker names.
    Fields(String),
}

pub(crate) fn run(args: &[String]) -> ExitCode {
    let Some((formats, cases)) = parse(args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut result = ExitCode::SUCCESS;
    for format in formats {
        let (test, variable, value) = match &cases {
            Cases::Seeds(seeds) => (format.to_owned(), "BLOCKWRIGHT_DAMAGE", seeds),
            Cases::Fields(step) => (
                format!("every_field_of_{format}"),
                "BLOCKWRIGHT_FIELDS",
                step,
            ),
        };
        let selected = format!("{format}:{value}");
        let code = tools::cargo_with(
            &["test", "-p", "blockwright", "--test", "damage", "--"],
            &["--exact".into(), test, "--nocapture".into()],
            &[(variable, &selected)],
        );
        if code != ExitCode::SUCCESS {
            result = code;
        }
    }
    result
}

/// The formats and the cases.
fn parse(args: &[String]) -> Option<(Vec<&str>, Cases)> {
    let mut formats = vec!["ext4", "f2fs"];
    let (mut seeds, mut fields, mut step) = (None, false, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--fields" => fields = true,
            "--format" => {
                let value = args.next()?;
                formats = vec![*formats.iter().find(|f| *f == value)?];
            }
            "--one-in" => step = Some(args.next()?.parse::<usize>().ok().filter(|n| *n > 0)?),
            "--seeds" => {
                let (from, to) = args.next()?.split_once("..")?;
                let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
                seeds = Some(format!("{from}..{to}"));
            }
            _ => return None,
        }
    }
    let cases = match (fields, seeds, step) {
        (true, None, step) => Cases::Fields(step.unwrap_or(1).to_string()),
        (false, seeds, None) => Cases::Seeds(seeds.unwrap_or_else(|| "0..5000".to_owned())),
        _ => return None,
    };
    Some((formats, cases))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_and_cases() {
        let parse = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            parse(&args).map(|(formats, cases)| (formats.join(","), cases))
        };
        let both = |cases| Some(("ext4,f2fs".to_owned(), cases));
        assert_eq!(parse(""), both(Cases::Seeds("0..5000".to_owned())));
        assert_eq!(parse("--fields"), both(Cases::Fields("1".to_owned())));
        let some = ("f2fs".to_owned(), Cases::Seeds("7..9".to_owned()));
        assert_eq!(parse("--seeds 7..9 --format f2fs"), Some(some));
        let some = ("ext4".to_owned(), Cases::Fields("50".to_owned()));
        assert_eq!(parse("--format ext4 --fields --one-in 50"), Some(some));
        assert_eq!(parse("--fields --seeds 7..9"), None);
        assert_eq!(parse("--one-in 3"), None);
        assert_eq!(parse("--fields --one-in 0"), None);
        assert_eq!(parse("--format xfs"), None);
        assert_eq!(parse("--seeds 7"), None);
        assert_eq!(parse("--seeds"), None);
    }
}
