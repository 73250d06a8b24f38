//! Carries out requests: reads of every kind of cluster, writes with copy-on-write, and discards.
//!
//! It runs under the device's lock where it looks up or changes the mapping (see the parent module).

use super::entry::{Entry, Run};
use super::header::Compression;
use super::{Shared, buffer};
use crate::file::read_any;
use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, Flags, IoSlice};
use std::io::Read;
use std::sync::Arc;

/// The most clusters that one write allocates at once, in bytes.
const STEP_BYTES: u64 = 8 << 20;

/// The parts of slices, laid one after another, that cover `[from, from + bytes)`.
fn cut(slices: &[IoSlice], mut from: u64, mut bytes: u64) -> Vec<IoSlice> {
    let mut parts = Vec::new();
    for slice in slices {
        let len = slice.len() as u64;
        if from >= len {
            from -= len;
            continue;
        }
        let take = (len - from).min(bytes);
        if take == 0 {
            break;
        }
        parts.push(slice.slice(from as usize..(from + take) as usize));
        bytes -= take;
        from = 0;
    }
    parts
}

fn inflate(method: Compression, packed: &[u8], cluster: usize) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(cluster);
    // The compressed bytes end somewhere in the last sector. So the stream's own end counts, and at most a cluster is read.
    let result = match method {
        Compression::Deflate => flate2::read::DeflateDecoder::new(packed)
            .take(cluster as u64)
            .read_to_end(&mut out),
        #[cfg(not(any(feature = "zstd", feature = "ruzstd")))]
        Compression::Zstd => {
            return Err(Error::Unsupported(
                "qcow2: a cluster is compressed by zstd, which this build cannot read (feature `zstd` or `ruzstd`)".to_owned(),
            ));
        }
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::stream::read::Decoder::new(packed).and_then(|decoder| {
            decoder
                .single_frame()
                .take(cluster as u64)
                .read_to_end(&mut out)
        }),
        #[cfg(all(feature = "ruzstd", not(feature = "zstd")))]
        Compression::Zstd => unpack_zstd_in_rust(packed, cluster, &mut out),
    };
    match result {
        Ok(_) if out.len() == cluster => Ok(out),
        _ => Err(Error::Corrupt(
            "qcow2: a compressed cluster cannot be unpacked".to_owned(),
        )),
    }
}

/// The first `cluster` bytes of a frame of zstd, whatever follows it. Returns their number.
#[cfg(all(feature = "ruzstd", any(test, not(feature = "zstd"))))]
fn unpack_zstd_in_rust(packed: &[u8], cluster: usize, out: &mut Vec<u8>) -> std::io::Result<usize> {
    ruzstd::decoding::StreamingDecoder::new(packed)
        .map_err(std::io::Error::other)?
        .take(cluster as u64)
        .read_to_end(out)
}

impl Shared {
    /// Reads data from the file that has it; zeroes behind its end.
    fn read_host(&self, host: u64, buf: &mut [u8]) -> Result<()> {
        let there = self
            .data()
            .geometry()
            .bytes
            .saturating_sub(host)
            .min(buf.len() as u64) as usize;
        let (front, rest) = buf.split_at_mut(there);
        if !front.is_empty() {
            self.data().read_at(DevOffset(host), front)?;
        }
        match &self.external {
            // A raw file can end anywhere.
            Some(data) if !rest.is_empty() => {
                let end = read_any(data, host + there as u64, rest.len())?;
                rest.copy_from_slice(&end);
            }
            _ => rest.fill(0),
        }
        Ok(())
    }

    /// Reads from the backing file; zeroes behind its end, and without one.
    fn read_backing(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let Some(backing) = &self.backing else {
            buf.fill(0);
            return Ok(());
        };
        let geometry = backing.geometry();
        let there = geometry.bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (front, rest) = buf.split_at_mut(there);
        rest.fill(0);
        if front.is_empty() {
            return Ok(());
        }
        let unit = u64::from(geometry.logical_block_bytes);
        if (offset | front.len() as u64).is_multiple_of(unit) {
            return Ok(backing.read_at(DevOffset(offset), front)?);
        }
        let start = offset / unit * unit;
        let len = (offset + front.len() as u64)
            .next_multiple_of(unit)
            .min(geometry.bytes)
            - start;
        let all = backing.read_buf(DevOffset(start), len as usize)?;
        front.copy_from_slice(&all[(offset - start) as usize..][..front.len()]);
        Ok(())
    }

    fn unpack(
        &self,
        host: u64,
        bytes: u64,
        method: Compression,
        cluster: usize,
    ) -> Result<Arc<Vec<u8>>> {
        if let Some((at, unpacked)) = &*self.unpacked.lock()
            && *at == host
        {
            return Ok(Arc::clone(unpacked));
        }
        let geometry = self.file.geometry();
        let unit = u64::from(geometry.logical_block_bytes);
        let start = host / unit * unit;
        // The last sectors may not be in the file: the stream can end before.
        let end = host
            .saturating_add(bytes)
            .next_multiple_of(unit)
            .min(geometry.bytes);
        if end <= host {
            return Err(Error::Corrupt(format!(
                "qcow2: a compressed cluster is said to be at byte {host}, behind the end of the file"
            )));
        }
        let packed = buffer(&self.file, start, (end - start) as usize)?;
        let within = (host - start) as usize;
        let stop = packed.len().min(within + bytes as usize);
        let unpacked = Arc::new(inflate(method, &packed[within..stop], cluster)?);
        *self.unpacked.lock() = Some((host, Arc::clone(&unpacked)));
        Ok(unpacked)
    }

    /// Reads what a run says. Outside of the core's lock; the caller is counted in flight.
    fn read_run(
        &self,
        run: Run,
        offset: u64,
        buf: &mut [u8],
        cluster: u64,
        method: Compression,
    ) -> Result<()> {
        match run.entry {
            Entry::Unallocated => self.read_backing(offset, buf),
            Entry::Zero { .. } => {
                buf.fill(0);
                Ok(())
            }
            Entry::Data { host, .. } => self.read_host(host + offset % cluster, buf),
            Entry::Compressed { host, bytes } => {
                let unpacked = self.unpack(host, bytes, method, cluster as usize)?;
                let within = (offset % cluster) as usize;
                buf.copy_from_slice(&unpacked[within..within + buf.len()]);
                Ok(())
            }
        }
    }

    pub(super) fn read(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let (run, cluster, method);
            {
                let mut core = self.core.lock();
                run = core.run(offset, offset + buf.len() as u64)?;
                (cluster, method) = (core.cluster_bytes(), core.header.compression);
                self.in_flight.enter();
            }
            let (part, rest) = buf.split_at_mut(run.bytes as usize);
            let result = self.read_run(run, offset, part, cluster, method);
            self.in_flight.leave();
            result?;
            offset += run.bytes;
            buf = rest;
        }
        Ok(())
    }

    pub(super) fn write(&self, offset: u64, slices: &[IoSlice], flags: Flags) -> Result<()> {
        let bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        let mut done = 0;
        while done < bytes {
            let at = offset + done;
            let mut core = self.core.lock();
            let cluster = core.cluster_bytes();
            let run = core.run(at, offset + bytes)?;
            if let Entry::Data { host, copied: true } = run.entry
                && (self.external.is_some() || host + cluster <= self.file.geometry().bytes)
            {
                core.reach_data(at + run.bytes)?;
                self.in_flight.enter();
                drop(core);
                let parts = cut(slices, done, run.bytes);
                let place = DevOffset(host + at % cluster);
                let result = self
                    .data()
                    .write_vectored_at(place, &parts, flags & Flags::META);
                self.in_flight.leave();
                result?;
                done += run.bytes;
                continue;
            }
            let end = (offset + bytes).min(at / cluster * cluster + STEP_BYTES.max(cluster));
            let wanted = core.count_to_allocate(at, end)?.max(1);
            let found = core.allocate_data(at, wanted)?;
            let first = at / cluster * cluster;
            let mut last = first + (found.end - found.start) * cluster;
            if self.external.is_some() {
                // A data file is no longer than the disk.
                last = last.min(self.geometry.bytes);
                core.reach_data(last)?;
            }
            let end = end.min(last);
            // The parts of the first and last cluster that the request does not cover.
            let mut parts = Vec::new();
            if first < at {
                parts.push(self.old(&mut core, first, at)?);
            }
            parts.extend(cut(slices, done, end - at));
            if end < last {
                parts.push(self.old(&mut core, end, last)?);
            }
            let place = DevOffset(found.start * cluster);
            self.data()
                .write_vectored_at(place, &parts, flags & Flags::META)?;
            core.map(first, found)?;
            done += end - at;
        }
        if flags.contains(Flags::FUA) {
            self.flush()?;
        }
        Ok(())
    }

    /// The present contents of `[from, to)`, within one cluster; the core is locked.
    fn old(&self, core: &mut super::Core, from: u64, to: u64) -> Result<IoSlice> {
        let mut buf = AlignedBuf::zeroed((to - from) as usize);
        let there = to.min(self.geometry.bytes.max(from));
        let run = core.run(from, to)?;
        let (cluster, method) = (core.cluster_bytes(), core.header.compression);
        let part = &mut buf[..(there - from) as usize];
        self.read_run(run, from, part, cluster, method)?;
        Ok(buf.into())
    }

    /// Drops a range: whole clusters of it are mapped to zeroes, and zeroes are written to the rest. With `advisory`, the rest stays, and what the
    /// range reads as is not promised.
    pub(super) fn drop_range(&self, offset: u64, bytes: u64, advisory: bool) -> Result<()> {
        let end = offset + bytes;
        let (cluster, is_raw) = {
            let core = self.core.lock();
            (core.cluster_bytes(), core.is_raw())
        };
        if is_raw {
            return self.drop_raw(offset, end, advisory);
        }
        let mut at = offset;
        while at < end {
            let next = (at / cluster + 1) * cluster;
            // The disk may end within its last cluster.
            let reaches_end = end == self.geometry.bytes;
            if at.is_multiple_of(cluster) && (next <= end || reaches_end) {
                let whole = if reaches_end {
                    end.next_multiple_of(cluster)
                } else {
                    end / cluster * cluster
                };
                let stopped = self.core.lock().drop_clusters(at, whole, advisory)?;
                if let Some(stopped) = stopped {
                    self.give_back(at, stopped);
                    at = stopped;
                    continue;
                }
            }
            let stop = next.min(end);
            if !advisory {
                self.write_zero(at, stop)?;
            }
            at = stop;
        }
        Ok(())
    }

    /// Gives the space of a range back that an external data file has for it, and that is not mapped there any more. Only advice.
    ///
    /// The mapping may not be durable yet. A crash then leaves zeroes where the old contents were: the range was dropped and not flushed, so both are
    /// allowed.
    fn give_back(&self, from: u64, to: u64) {
        let Some(data) = &self.external else { return };
        let to = to.min(data.geometry().bytes);
        if from < to {
            let _kept = data.discard(DevOffset(from), to - from);
        }
    }

    /// As [`Shared::drop_range`], of an external data file that must have the disk's contents without the mapping: the mapping stays.
    fn drop_raw(&self, offset: u64, end: u64, advisory: bool) -> Result<()> {
        let data = self.data();
        let there = data.geometry().bytes;
        // Bytes behind the last whole block are no part of a request. They are read, so they are zeroed, too.
        if !advisory && end > there && offset < there + data.tail()?.len() as u64 {
            self.core.lock().reach_data(there + 1)?;
        }
        let end = end.min(data.geometry().bytes);
        let mut at = offset;
        while at < end {
            let run = self.core.lock().run(at, end)?;
            let place = DevOffset(at);
            match (run.entry, advisory) {
                (Entry::Data { .. }, true) => {
                    // Only advice.
                    let _kept = data.discard(place, run.bytes);
                }
                // Not even advice may change what is known to be zero.
                (_, true) => {}
                (_, false) => data.write_zeroes(place, run.bytes)?,
            }
            at += run.bytes;
        }
        Ok(())
    }

    /// Writes zeroes to a part of a cluster, unless it has them.
    fn write_zero(&self, from: u64, to: u64) -> Result<()> {
        let entry = self.core.lock().run(from, to)?.entry;
        let is_zero = match entry {
            Entry::Zero { .. } => true,
            Entry::Unallocated => self.backing.is_none(),
            _ => false,
        };
        match is_zero {
            true => Ok(()),
            false => self.write(
                from,
                &[AlignedBuf::zeroed((to - from) as usize).into()],
                Flags::empty(),
            ),
        }
    }

    /// See [`blockwright_device::BlockDevice::next_data`].
    pub(super) fn next_data(&self, offset: u64) -> Result<u64> {
        let end = self.geometry.bytes;
        let mut at = offset;
        // Files below have blocks of other sizes.
        let block = |found| self.geometry.block_start(found).max(offset);
        while at < end {
            let run = self.core.lock().run(at, end)?;
            match (run.entry, &self.backing) {
                (Entry::Zero { .. }, _) | (Entry::Unallocated, None) => {}
                (Entry::Unallocated, Some(backing)) => {
                    let unit = u64::from(backing.geometry().logical_block_bytes);
                    let found = backing.next_data(DevOffset(at / unit * unit)).0.max(at);
                    if found < (at + run.bytes).min(backing.geometry().bytes) {
                        return Ok(block(found));
                    }
                }
                (Entry::Data { .. }, _) if self.external.is_some() => {
                    // A raw data file is mapped as a whole from the beginning, and has holes.
                    let found = self.data().next_data(DevOffset(at)).0.max(at);
                    if found < at + run.bytes {
                        return Ok(block(found));
                    }
                }
                _ => return Ok(at),
            }
            at += run.bytes;
        }
        Ok(end.max(offset))
    }
}

#[cfg(test)]
mod tests {
    /// The end of a frame is not where the bytes end: a cluster is stored in whole sectors.
    #[cfg(all(feature = "zstd", feature = "ruzstd"))]
    #[test]
    fn zstd_in_rust_reads_what_libzstd_reads() {
        use super::*;
        let cluster = 65536;
        let data: Vec<u8> = (0..cluster as u32)
            .map(|i| ((i >> 6) ^ ((i * i) >> 9)) as u8)
            .collect();
        let packed = zstd::bulk::compress(&data, 3).unwrap();
        let stored = [&packed[..], &[0x55; 300]].concat();
        let ours = |packed: &[u8], cluster: usize| {
            let mut out = Vec::new();
            unpack_zstd_in_rust(packed, cluster, &mut out).map(|_| out)
        };
        assert_eq!(ours(&stored, cluster).unwrap(), data);
        assert_eq!(inflate(Compression::Zstd, &stored, cluster).unwrap(), data);
        // A frame that has more than a cluster is cut, as with libzstd; one that ends early is not a cluster.
        let small = cluster / 2;
        assert_eq!(ours(&stored, small).unwrap(), data[..small]);
        assert_eq!(
            inflate(Compression::Zstd, &stored, small).unwrap(),
            data[..small]
        );
        assert!(ours(&packed[..packed.len() / 2], cluster).map_or(true, |out| out.len() < cluster));
        assert!(ours(&[0; 512], cluster).is_err());
    }
}
