//! Indexes of chunks, and stores with anything in them.

use super::no_bases;
use crate::Target;
use blockwright_chunks::{
    ChunkAddress, ChunkDevice, ChunkId, ChunkSizes, Digest, Error, Index, Packed, Result, Source,
    verify,
};
use blockwright_device::{BlockDevice, DevOffset, DeviceExt};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub(crate) const TARGET: Target = Target {
    name: "chunks",
    property: "whatever an address, an index and a store hold, opening and reading end with a value or an error; what is read has the digest that the index says",
    run,
    max_len: 16 << 10,
    bases: no_bases,
    seeds,
};

/// Gives the same bytes under every name.
struct Anything(Vec<u8>);

impl Source for Anything {
    fn fetch(&self, id: ChunkId, _: usize, fresh: bool) -> Result<Packed> {
        if self.0.is_empty() {
            return Err(Error::Missing {
                chunk: id,
                stores: "the input".to_owned(),
            });
        }
        let bytes = match fresh {
            true => self.0.clone(),
            // As a damaged cache.
            false => self.0[..self.0.len() / 2].to_vec(),
        };
        Ok(Packed {
            bytes,
            store: "the input".to_owned(),
        })
    }

    fn index(&self) -> Result<Vec<u8>> {
        Ok(self.0.clone())
    }
}

/// Chunks of a hostile index that are looked at.
const CHUNKS_MAX: usize = 64;

/// Two bytes: the length of the index. Then the index, and what the store holds.
fn run(data: &[u8]) {
    if let Some(Ok(address)) = ChunkAddress::parse(OsStr::from_bytes(data)) {
        let again = ChunkAddress::parse(address.path());
        assert_eq!(
            again,
            Some(Ok(address)),
            "an address is read as it was written"
        );
    }
    let Some((len, rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (index, packed) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
    let Ok(index) = Index::read(index) else {
        return;
    };
    let mut again = Vec::new();
    if index.write(&mut again).is_ok() {
        assert_eq!(
            Index::read(&again[..]),
            Ok(index.clone()),
            "an index is read as it was written"
        );
    }
    if index.entries().len() > CHUNKS_MAX {
        return;
    }
    let found = verify(&index, &Anything(packed.to_vec()), &|_| ());
    let source = Box::new(Anything(packed.to_vec()));
    let device = ChunkDevice::new(index.clone(), source, "input".to_owned());
    for n in 0..index.entries().len() {
        let (start, end) = (index.start(n), index.entries()[n].end);
        let start = start.next_multiple_of(512);
        let read = device.read_buf(DevOffset(start), 512);
        if start + 512 > end {
            continue;
        }
        assert!(device.next_data(DevOffset(start)).0 >= start);
        if found.problems.is_empty() {
            assert!(read.is_ok(), "chunk {n} was right, and cannot be read");
        }
    }
    let _tail = device.tail();
}

fn seeds() -> Vec<Vec<u8>> {
    let contents = vec![7; 3000];
    let sizes = ChunkSizes::around(1024);
    let mut index = Index::new(Digest::default(), sizes);
    let id = Digest::default().of(&contents);
    let zeroes = Digest::default().of(&[0; 4096]);
    for (bytes, id) in [(3000, id), (4096, zeroes), (3000, id), (100, id)] {
        // The sizes are those of the index.
        let _pushed = index.push(bytes, id);
    }
    let mut bytes = Vec::new();
    let _written = index.write(&mut bytes);
    let packed = zstd::bulk::compress(&contents, 3).unwrap_or_default();
    let len = (bytes.len() as u16).to_le_bytes();
    vec![
        [&len[..], &bytes, &packed].concat(),
        [&len[..], &bytes].concat(),
        b"chunks:a.caibx?store=http://h/s&cache=c&ca=%25".to_vec(),
    ]
}
