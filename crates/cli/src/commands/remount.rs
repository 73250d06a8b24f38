//! `mount -o remount,…`: options that can change while the volume is mounted are handed to its server as tunables.

use super::stats::{connect, said};
use crate::failure::{Failure, Result};
use crate::mount_options::IGNORED;
use std::path::Path;

/// Whether the options ask for a remount.
pub fn is_asked(options: &[String]) -> bool {
    options
        .iter()
        .flat_map(|o| o.split(','))
        .any(|o| o.trim() == "remount")
}

/// The tunable that an option changes, and its value; `None` for what is so anyway.
fn tunable(option: &str) -> Result<Option<(&'static str, u64)>> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    let number = |name: &'static str| -> Result<Option<(&'static str, u64)>> {
        let value = value
            .and_then(|v| v.parse().ok())
            .ok_or_else(|| Failure::usage(format_args!("mount option {name}= needs a number")))?;
        Ok(Some((name, value)))
    };
    Ok(match (name, value) {
        ("checkpoint_merge", None) | ("checkpoint", Some("merge")) => Some(("checkpoint_merge", 1)),
        ("nocheckpoint_merge", None) => Some(("checkpoint_merge", 0)),
        ("checkpoint", Some("enable")) => Some(("checkpoint", 1)),
        // Refused there, with the reason.
        ("checkpoint", Some(text)) if text.starts_with("disable") => Some(("checkpoint", 0)),
        ("ckpt_thread_ioprio", _) => number("ckpt_thread_ioprio")?,
        ("serialized_dio_pages", _) => number("serialized_dio_pages")?,
        ("remount" | "rw", None) => None,
        (name, None) if IGNORED.contains(&name) => None,
        _ => {
            return Err(Failure::usage(format_args!(
                "mount option {option} cannot be changed while the volume is mounted"
            )));
        }
    })
}

/// Changes a mounted volume. All options are looked at before any is applied.
///
/// # Errors
/// Options that cannot change, and what the server refuses.
pub fn remount(mountpoint: &Path, options: &[String]) -> Result<()> {
    let mut changes = Vec::new();
    for option in options.iter().flat_map(|o| o.split(',')).map(str::trim) {
        if option.is_empty() || option.starts_with("x-") || option.starts_with("X-") {
            continue;
        }
        changes.extend(tunable(option)?);
    }
    let control = connect(mountpoint)?;
    for (name, value) in changes {
        control
            .tune(name, value)
            .map_err(|e| said(&e).at(mountpoint.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_change_and_what_cannot() {
        assert!(is_asked(&["ro".to_owned(), "noatime,remount".to_owned()]));
        assert!(!is_asked(&["remounted".to_owned()]));
        let of = |text: &str| tunable(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(of("nocheckpoint_merge"), Some(("checkpoint_merge", 0)));
        assert_eq!(of("checkpoint=merge"), Some(("checkpoint_merge", 1)));
        assert_eq!(of("checkpoint=enable"), Some(("checkpoint", 1)));
        assert_eq!(of("checkpoint=disable:5%"), Some(("checkpoint", 0)));
        assert_eq!(
            of("serialized_dio_pages=7"),
            Some(("serialized_dio_pages", 7))
        );
        assert_eq!(
            (of("rw"), of("remount"), of("defaults")),
            (None, None, None)
        );
        for bad in [
            "ro",
            "mode=lfs",
            "checkpoint=never",
            "ckpt_thread_ioprio=x",
            "dio_alloc",
        ] {
            let e = tunable(bad)
                .err()
                .unwrap_or_else(|| panic!("{bad} was taken"));
            assert!(
                e.to_string().contains(bad.split('=').next().unwrap_or(bad)),
                "{e}"
            );
        }
    }
}
