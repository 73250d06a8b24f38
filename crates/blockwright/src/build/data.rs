//! Where the bytes of files are until they are written to the volume: in a file of the host, in an archive, or in a temporary file.

use crate::{Error, host};
use blockwright_device::positional;
use blockwright_mkfs::DataSource;
use blockwright_mkfs::tree::NodeId;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// A stretch of a file's data within another file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    /// First byte in the file-to-be.
    pub logical: u64,
    pub bytes: u64,
    /// First byte in the other file.
    pub at: u64,
}

/// Where a file's data is.
#[derive(Clone, Debug)]
pub(crate) enum DataRef {
    /// In a file of the host.
    Host(PathBuf),
    /// In an archive, or in what was spooled from one.
    Archive {
        file: Arc<File>,
        segments: Vec<Segment>,
    },
    /// A file's data with fs-verity's metadata behind it.
    Protected {
        /// Without it all is a hole.
        data: Option<Box<DataRef>>,
        /// Bytes of the data.
        size: u64,
        /// Byte of the file where the metadata begins.
        metadata_at: u64,
        /// Where the metadata is until then, and from which byte on.
        spool: Arc<File>,
        spooled: u64,
    },
}

impl DataRef {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> crate::Result<()> {
        match self {
            DataRef::Host(path) => {
                let read = host::open(path).and_then(|file| read_exact(&file, buf, offset));
                read.map_err(|e| Error::from(e).at(path))
            }
            DataRef::Archive { file, segments } => {
                fill_from_segments(file, segments, offset, buf).map_err(Error::from)
            }
            DataRef::Protected {
                data,
                size,
                metadata_at,
                spool,
                spooled,
            } => {
                // The data, the gap up to the metadata, the metadata: any of them may be in the range.
                let within = |end: u64| end.saturating_sub(offset).min(buf.len() as u64) as usize;
                let (data_end, gap_end) = (within(*size), within(*metadata_at));
                let (own, rest) = buf.split_at_mut(data_end);
                let (gap, metadata) = rest.split_at_mut(gap_end - data_end);
                match data {
                    Some(data) if !own.is_empty() => data.read_at(offset, own)?,
                    _ => own.fill(0),
                }
                gap.fill(0);
                if !metadata.is_empty() {
                    let from = offset.max(*metadata_at) - metadata_at;
                    read_exact(spool, metadata, spooled + from)?;
                }
                Ok(())
            }
        }
    }
}

/// Reads all of `buf`; what a host's file no longer has is an error.
fn read_exact(file: &File, buf: &mut [u8], at: u64) -> io::Result<()> {
    positional::read_exact_at(file, buf, at).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it became shorter while it was read",
        ),
        _ => e,
    })
}

/// The data of all files of a tree.
pub(crate) struct TreeData<'a>(pub &'a HashMap<NodeId, DataRef>);

impl DataSource for TreeData<'_> {
    fn read_at(
        &self,
        node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.0.get(&node) {
            None => buf.fill(0),
            Some(data) => data.read_at(offset, buf)?,
        }
        Ok(())
    }
}

fn fill_from_segments(
    file: &File,
    segments: &[Segment],
    offset: u64,
    buf: &mut [u8],
) -> io::Result<()> {
    let end = offset + buf.len() as u64;
    let mut filled = offset;
    let first = segments.partition_point(|s| s.logical + s.bytes <= offset);
    for s in segments[first..].iter().take_while(|s| s.logical < end) {
        let from = s.logical.max(offset);
        let to = (s.logical + s.bytes).min(end);
        let range = (from - offset) as usize..(to - offset) as usize;
        buf[(filled - offset) as usize..range.start].fill(0);
        read_exact(file, &mut buf[range], s.at + (from - s.logical))?;
        filled = to;
    }
    buf[(filled - offset) as usize..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn segments_and_the_holes_between_them() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"abcdefgh").expect("written");
        let segments = [
            Segment {
                logical: 2,
                bytes: 3,
                at: 0,
            },
            Segment {
                logical: 8,
                bytes: 5,
                at: 3,
            },
        ];
        let whole = b"\0\0abc\0\0\0defgh\0\0";
        for start in 0..15 {
            for end in start..=15 {
                let mut buf = vec![0xEE; end - start];
                fill_from_segments(&file, &segments, start as u64, &mut buf).expect("read");
                assert_eq!(buf, whole[start..end]);
            }
        }
    }
}
