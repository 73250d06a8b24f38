//! Inodes whose parts are possible one by one, and not together: Linux refuses them.
//!
//! A volume that is written refuses them as well. Writing to such a file would make more of what Linux does not read. A volume that is only
//! read shows them, because their contents can be there anyway and a rescue wants them. The checker names them, and drops the flag.
//!
//! # References
//! kernel documentation, "Flash-Friendly File System (F2FS)": Compression implementation. Which inodes Linux 6.1 refuses was tried.

use blockwright_ondisk::f2fs::compress::{self, CLUSTER_LOGS};
use blockwright_ondisk::f2fs::inode::{Advise, InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::{Features, FileKind, Inode};

/// Why Linux refuses an inode.
pub(crate) fn why_impossible(inode: &Inode, kind: FileKind, features: Features) -> Option<String> {
    let compressed =
        features.contains(Features::COMPRESSION) && inode.flags.contains(InodeFlags::COMPRESS);
    if kind == FileKind::Regular && inode.inline.contains(InlineFlags::DATA) {
        let marks = [
            (inode.advise.contains(Advise::ENCRYPT), "encrypted"),
            (
                inode.advise.contains(Advise::VERITY),
                "protected by fs-verity",
            ),
            (compressed, "compressed"),
        ];
        if let Some((_, what)) = marks.iter().find(|(set, _)| *set) {
            return Some(format!(
                "its contents are inline, and marked as {what}, which inline contents cannot be"
            ));
        }
    }
    let extra = inode.extra.as_ref().filter(|_| compressed)?;
    if compress::algorithm(extra.compress_algorithm).is_err() {
        let code = extra.compress_algorithm;
        return Some(format!("there is no compression algorithm {code}"));
    }
    if !CLUSTER_LOGS.contains(&extra.log_cluster_size) {
        let log = extra.log_cluster_size;
        return Some(format!(
            "compressed clusters of 2^{log} blocks, from 2^{} to 2^{} are possible",
            CLUSTER_LOGS.start(),
            CLUSTER_LOGS.end()
        ));
    }
    None
}
