//! `set`: settings of a volume that is not mounted.

use super::change::{Change, named_journal};
use super::mkfs::parse_uuid;
use crate::args::SetArgs;
use crate::failure::{Failure, Result, warn};
use crate::size::parse_size;
use blockwright::ErrorKind;
use blockwright::reshape::{self, ErrorBehaviour, LostJournal, Reserved, Settings};
use blockwright_device::OpenMode;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// 16 bytes, as a UUID is written; `random` makes some.
fn uuid(name: &str, text: &str) -> Result<[u8; 16]> {
    if text == "random" {
        return Ok(reshape::random_uuid());
    }
    parse_uuid(text).map_err(|_| {
        Failure::usage(format_args!(
            "{name}={text}: `random`, or 32 hexadecimal digits"
        ))
    })
}

fn reserved(text: &str) -> Result<Reserved> {
    let bad = |what: &str| Failure::usage(format_args!("reserved={text}: {what}"));
    match text.strip_suffix('%') {
        Some(percent) => percent
            .parse()
            .map(Reserved::Percent)
            .map_err(|_| bad("a percentage, such as 2.5%, or a size")),
        None => parse_size(text).map(Reserved::Bytes).map_err(|e| bad(&e)),
    }
}

fn errors(text: &str) -> Result<ErrorBehaviour> {
    match text {
        "continue" => Ok(ErrorBehaviour::Continue),
        "remount-ro" => Ok(ErrorBehaviour::RemountReadOnly),
        "panic" => Ok(ErrorBehaviour::Panic),
        _ => Err(Failure::usage(format_args!(
            "errors={text}: continue, remount-ro or panic"
        ))),
    }
}

fn settings(args: &SetArgs) -> Result<Settings> {
    let mut settings = Settings::default();
    for setting in &args.settings {
        let bytes = setting.as_bytes();
        let Some(at) = bytes.iter().position(|b| *b == b'=') else {
            return Err(Failure::usage(format_args!(
                "`{}`: a setting is NAME=VALUE",
                setting.display()
            )));
        };
        let (name, value) = (&bytes[..at], &bytes[at + 1..]);
        let text = || {
            OsStr::from_bytes(value)
                .to_str()
                .ok_or_else(|| Failure::usage(format_args!("`{}` is not UTF-8", setting.display())))
        };
        match name {
            b"label" => settings.label = Some(value.to_vec()),
            b"uuid" => settings.uuid = Some(uuid("uuid", text()?)?),
            b"hash-seed" => settings.hash_seed = Some(uuid("hash-seed", text()?)?),
            b"reserved" => settings.reserved = Some(reserved(text()?)?),
            b"errors" => settings.errors = Some(errors(text()?)?),
            b"default-options" => settings.default_options = Some(text()?.to_owned()),
            b"features" => settings.features = Some(text()?.to_owned()),
            b"cold-extensions" => settings.cold_extensions = Some(text()?.to_owned()),
            b"hot-extensions" => settings.hot_extensions = Some(text()?.to_owned()),
            b"journal-size" => {
                let bytes = parse_size(text()?)
                    .map_err(|e| Failure::usage(format_args!("journal-size: {e}")))?;
                settings.journal_bytes = Some(bytes);
            }
            _ => {
                return Err(Failure::usage(format_args!(
                    "unknown setting `{}`; the settings are label, uuid, reserved, errors, hash-seed, default-options, features, journal-size, cold-extensions, hot-extensions",
                    String::from_utf8_lossy(name)
                )));
            }
        }
    }
    Ok(settings)
}

/// Runs `set`.
///
/// # Errors
/// With the image named.
pub fn set(args: &SetArgs) -> Result<()> {
    let mut settings = settings(args)?;
    settings.journal = named_journal(OpenMode::default())?;
    settings.lost_journal = match (args.force, args.lose_transactions) {
        (false, _) => None,
        (true, false) => Some(LostJournal::Journal),
        (true, true) => Some(LostJournal::Transactions),
    };
    let run = || -> Result<()> {
        let device = crate::wall::device(&args.image, OpenMode::default())?;
        let change = Change::begin()?;
        let ended = reshape::set_watched(&device, &settings, &change.watch());
        drop(change);
        let lost = ended.map_err(|e| match e.kind() {
            ErrorKind::Interrupted => Failure::new(
                "interrupted; the volume is whole, and a part of the settings may be changed: the same command makes the rest",
            )
            .code(crate::exit::INTERRUPTED),
            _ => e.into(),
        })?;
        if lost == Some(LostJournal::Transactions) {
            warn(format_args!(
                "{}: what waited in the lost journal is lost with it: run `blockwright check -y IMAGE`",
                args.image.display()
            ));
        }
        Ok(())
    };
    run().map_err(|e| e.at(args.image.display()))
}
