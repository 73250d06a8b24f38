//! Facts about a calling process that the request's header lacks, read from the kernel.
//!
//! Where they cannot be had, a caller has the rights of its user and its main group only.

use smallvec::SmallVec;

/// The supplementary groups of a process, from `/proc`. Empty when they cannot be had: the
/// process is in another pid namespace, or gone.
///
/// Only used when the volume checks permissions itself; it costs a file read per request.
pub(crate) fn supplementary_groups(pid: u32) -> SmallVec<[u32; 8]> {
    if pid == 0 {
        return SmallVec::new();
    }
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .map(|status| parse_groups(&status))
        .unwrap_or_default()
}

fn parse_groups(status: &str) -> SmallVec<[u32; 8]> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("Groups:"))
        .map(|list| {
            list.split_ascii_whitespace()
                .filter_map(|word| word.parse().ok())
                .collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_the_status() {
        let status = "Name:\tx\nUid:\t1\t1\t1\t1\nGroups:\t4 24 1000 \nNStgid:\t1\n";
        assert_eq!(parse_groups(status).as_slice(), &[4, 24, 1000]);
        assert!(parse_groups("Name:\tx\n").is_empty());
        assert!(supplementary_groups(0).is_empty());
    }
}
