//! What the page may ask for, and what it is answered, as JSON.

use serde::{Deserialize, Serialize};

/// A question. Paths are coded as [`crate::names`] says, and begin at the volume's root.
#[derive(Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub(crate) enum Request {
    /// Opens the image, which the person knows by this name: [`Image`].
    Open { name: String },
    /// Opens the volume on a partition, or on the whole image: [`VolumeInfo`].
    Volume { part: Option<u32> },
    /// Entries of a directory, sorted, from number `first` on: [`Listing`].
    List {
        path: String,
        first: usize,
        count: usize,
    },
    /// Bytes of a file, or fewer at its end.
    Read {
        path: String,
        offset: u64,
        bytes: usize,
    },
    /// Everything at and below a path as a tar stream.
    Export { path: String },
    /// What a check finds: [`Checked`].
    Check,
    /// What each block holds: [`MapOf`].
    Map,
    /// The same as a page to zoom in: HTML.
    MapPage,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Image {
    /// The container: `raw`, `qcow2`, …
    pub container: &'static str,
    /// Bytes of the disk in it.
    pub bytes: u64,
    pub table: Option<TableOf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TableOf {
    pub partitions: Vec<PartitionOf>,
    /// Partitions beyond those.
    pub more: usize,
    pub remarks: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PartitionOf {
    pub number: u32,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub bytes: u64,
    /// Why it cannot be used.
    pub problem: Option<String>,
    pub holds: Option<Holds>,
}

/// What is on a device, by its signature.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Holds {
    pub noun: &'static str,
    pub label: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeInfo {
    pub format: String,
    pub label: String,
    pub bytes: u64,
    pub free_bytes: u64,
    pub inodes: u64,
    pub free_inodes: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listing {
    /// Entries in all.
    pub total: usize,
    /// Why there may be more than these.
    pub trouble: Option<String>,
    pub entries: Vec<EntryOf>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EntryOf {
    pub name: String,
    /// `None` where the inode cannot be read, and the directory does not say it.
    pub kind: Option<&'static str>,
    #[serde(flatten)]
    pub attributes: Option<Attributes>,
    /// Of a symbolic link.
    pub target: Option<String>,
    /// What a symbolic link leads to; `None` where that is nothing.
    pub leads_to: Option<&'static str>,
    /// The size of what it leads to.
    pub leads_to_bytes: Option<u64>,
    /// Why its inode cannot be read.
    pub trouble: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attributes {
    pub size: u64,
    /// Permission bits with set-id and sticky.
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: i64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Checked {
    pub clean: bool,
    pub issues: Vec<IssueOf>,
    /// Issues beyond those.
    pub more: u64,
    pub files: u64,
    pub directories: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IssueOf {
    pub severity: &'static str,
    pub text: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MapOf {
    pub about: String,
    pub svg: String,
    pub kinds: Vec<KindOf>,
    pub problems: Vec<String>,
    /// Problems beyond those.
    pub more_problems: usize,
    pub fragmented: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KindOf {
    pub label: &'static str,
    pub bytes: u64,
}

/// What is told while a request runs, one line of JSON each.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event {
    /// How far a check or a map is.
    Progress {
        phase: &'static str,
        done: u64,
        total: u64,
    },
    /// Something that an export leaves out.
    Unreadable { text: String },
    /// An export is complete.
    Exported {
        entries: u64,
        sockets: u64,
        unreadable: u64,
    },
}

/// A request that fails.
#[derive(Serialize)]
pub(crate) struct Failed {
    /// For people.
    pub error: String,
}
