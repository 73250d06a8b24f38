//! Listings of composefs, and what is decided about files by lists of their paths.

use super::archive::make;
use super::no_bases;
use crate::Target;
use blockwright::build::{EntryPolicy, FileContexts, FsConfig, OwnerMap};
use blockwright::{Result, VolumeBuilder};
use std::io::Cursor;

pub(crate) const TARGET: Target = Target {
    name: "listing",
    property: "a listing and lists of attributes are refused, or give a volume that check calls clean and that is read without an error",
    run,
    max_len: 8 << 10,
    bases: no_bases,
    seeds,
};

/// Between the listing, the file_contexts, the fs_config, the owner rules and the patterns.
const SEPARATOR: &[u8] = b"\n%%\n";

fn policy(parts: &[&[u8]]) -> Result<EntryPolicy> {
    let text =
        |index: usize| String::from_utf8_lossy(parts.get(index).copied().unwrap_or_default());
    let mut owners = OwnerMap::default();
    for rule in text(3).lines() {
        owners.add(rule)?;
    }
    let mut policy = EntryPolicy::new()
        .owners(owners)
        .fs_config(FsConfig::parse(text(2).as_bytes())?)
        .file_contexts(FileContexts::parse(&text(1))?);
    for pattern in text(4).lines() {
        policy = policy.exclude(pattern)?;
    }
    Ok(policy)
}

fn run(data: &[u8]) {
    let mut parts = Vec::new();
    let mut rest = data;
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|w| w == SEPARATOR) {
        parts.push(&rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    parts.push(rest);
    let Ok(policy) = policy(&parts) else {
        return;
    };
    let listing = Cursor::new(parts[0].to_vec());
    make(
        VolumeBuilder::new()
            .entries(policy)
            .from_dumpfile_reader(listing, None, "listing"),
    );
}

fn seeds() -> Vec<Vec<u8>> {
    let listing = "\
/ 0 40755 3 0 0 0 5.1 - - - security.selinux=label\\x00
/dir 0 41777 2 1000 1000 0 -1.0 - - - user.a\\x3d=b\\\\
/dir/inline 5 104755 2 1 2 0 0.0 - text\\n - user.x=
/hard 0 @100644 2 0 0 0 0.0 /dir/inline - -
/link 0 120777 1 0 0 0 0.0 ../\\x2d - -
/null 0 20666 1 0 0 259 0.0 - - -
/fifo 0 10644 1 0 0 0 0.0 - - -
";
    let contexts =
        "/ -d root\n/.* any\n/dir(/.*)? -- label\n/[^/]+\\.(a|b){1,3} x\n/null <<none>>\n";
    let config = " 0 0 755\ndir/inline 0 2000 0750 capabilities=0x3000 selabel=u:r:t:s0\n";
    let all = [
        listing,
        contexts,
        config,
        "0-1000:7\nu:1000:0\ng:9:8",
        "*.o\n/dir/**/x\n{a,b}/",
    ];
    vec![
        listing.as_bytes().to_vec(),
        all.join("\n%%\n").into_bytes(),
        b"/x 6 100644 1 0 0 0 0.0 ../../etc/hostname - -".to_vec(),
        b"/ 0 40755 1 0 0 0 0.0 - - -\n%%\n/(((a{9}){9}){9}){9} x\n/(?!a) y\n".to_vec(),
    ]
}
