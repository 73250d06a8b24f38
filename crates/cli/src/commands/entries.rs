//! What `mkfs` applies to the files of all sources.

use crate::args::EntryArgs;
use crate::failure::{Failure, Result};
use blockwright::build::{EntryPolicy, FileContexts, FsConfig, Mtime, OwnerMap, companions};
use std::path::PathBuf;

/// The policy of these arguments; files are read.
pub fn policy(args: &EntryArgs) -> Result<EntryPolicy> {
    let mut policy = EntryPolicy::new();
    for pattern in &args.exclude {
        let usage = |e| Failure::usage(format_args!("--exclude: {e}"));
        policy = policy.exclude(pattern).map_err(usage)?;
    }
    for pattern in &args.fsverity {
        let usage = |e| Failure::usage(format_args!("--fsverity: {e}"));
        policy = policy.fsverity(pattern).map_err(usage)?;
    }
    let mut owners = OwnerMap::default();
    for rule in &args.owner_map {
        let usage = |e| Failure::usage(format_args!("--owner-map: {e}"));
        owners.add(rule).map_err(usage)?;
    }
    policy = policy.owners(owners);
    if let Some(text) = &args.mtime {
        let secs = seconds(text)?;
        policy = policy.mtime(match args.clamp_mtime {
            true => Mtime::Clamp(secs),
            false => Mtime::Set(secs),
        });
    }
    if let Some(path) = &args.fs_config {
        policy = policy.fs_config(FsConfig::read(path).map_err(Failure::from)?);
    }
    if let Some(path) = &args.file_contexts {
        policy = policy.file_contexts(FileContexts::read(path).map_err(Failure::from)?);
    }
    if let Some(path) = &args.mount_point {
        policy = policy.mount_point(path);
    }
    Ok(policy)
}

/// A time: seconds since 1970, also as date(1) takes them, with an @ in front.
fn seconds(text: &str) -> Result<i64> {
    let digits = text.strip_prefix('@').unwrap_or(text);
    digits.parse().map_err(|_| {
        Failure::usage(format_args!(
            "--mtime: `{text}` is not a number of seconds since 1970"
        ))
    })
}

/// What is read of the host beside the sources.
pub fn read(args: &EntryArgs) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    paths.extend(args.fs_config.clone());
    if let Some(path) = &args.file_contexts {
        let there = companions(path).into_iter().filter(|path| path.exists());
        paths.extend(there.chain([path.clone()]));
    }
    match &args.objects {
        Some(objects) => paths.push(objects.clone()),
        None => paths.extend(
            args.dumpfile
                .iter()
                .filter(|p| p.as_os_str() != "-")
                .map(|path| match path.parent() {
                    Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
                    _ => PathBuf::from("."),
                }),
        ),
    }
    paths
}
