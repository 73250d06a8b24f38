//! A file's bytes through a shared mapping, for tests that mix mappings with reads and writes. Rooms without `unsafe` have it from here.
//!
//! A [`MappedRange`] copies bytes in and out and never lends them: the kernel, other mappings and other processes change
//! them at any time.
//!
//! Not responsible for: files that get shorter. Touching a page past a file's end ends the process (`SIGBUS`).

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::ffi::c_void;
use std::io;
use std::os::fd::AsFd;

/// Pages are of this size, or mappings that begin at a multiple of it are refused.
const PAGE_BYTES: u64 = 4096;

/// A range of a file, mapped shared for reading and writing.
#[derive(Debug)]
pub struct MappedRange {
    /// Of the first page.
    base: *mut c_void,
    /// Of whole mapping, in bytes.
    mapped: usize,
    /// Bytes of the first page that are before the range.
    skip: usize,
    /// Bytes of the range.
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; the one value that knows of it copies bytes only. It is not `Sync`: `write`
// and `read` of two threads would race within this program.
unsafe impl Send for MappedRange {}

impl MappedRange {
    /// Maps `len` bytes from offset `at` of a file, which must be open for reading and writing.
    ///
    /// # Errors
    /// What mmap(2) says; `InvalidInput` for an empty range.
    pub fn new(file: impl AsFd, at: u64, len: usize) -> io::Result<Self> {
        let start = at / PAGE_BYTES * PAGE_BYTES;
        let skip = (at - start) as usize;
        let mapped = skip
            .checked_add(len)
            .filter(|_| len > 0)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at a place that the kernel chooses overlaps no other memory; this value alone knows of it, and
        // unmaps it when it goes.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapped,
                both,
                MapFlags::SHARED,
                file,
                start,
            )?
        };
        Ok(MappedRange {
            base,
            mapped,
            skip,
            len,
        })
    }

    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(
            at.checked_add(len).is_some_and(|end| end <= self.len),
            "{at} + {len} in a mapping of {}",
            self.len
        );
        self.base.cast::<u8>().wrapping_add(self.skip + at)
    }

    /// Copies bytes out of the mapping, from offset `at` of the range.
    ///
    /// # Panics
    /// Past the end of the range.
    pub fn read(&self, at: usize, into: &mut [u8]) {
        let from = self.place(at, into.len());
        // SAFETY: `place` has checked that the bytes are inside of the mapping, which lives as long as `self`; no reference to
        // them exists, and `into` does not overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes into the mapping, at offset `at` of the range.
    ///
    /// # Panics
    /// Past the end of the range.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let to = self.place(at, bytes.len());
        // SAFETY: as in `read`; the mapping may be written to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// msync(2): returns when what was changed is where fsync would have it.
    ///
    /// # Errors
    /// What the kernel says; an error of writing among it.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the whole mapping, as it was made.
        unsafe { msync(self.base, self.mapped, MsyncFlags::SYNC)? };
        Ok(())
    }
}

impl Drop for MappedRange {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, as it was made; nothing can refer to it after this.
        let _ = unsafe { munmap(self.base, self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_mapped_is_the_file() {
        let file = tempfile();
        file.write_all_at(&[b'.'; 10_000], 0).expect("written");
        let mut range = MappedRange::new(&file, 5000, 4000).expect("mapped");
        range.write(10, b"through");
        range.sync().expect("synced");
        let mut seen = [0; 9];
        file.read_exact_at(&mut seen, 5009).expect("read");
        assert_eq!(&seen, b".through.");
        file.write_all_at(b"back", 8996).expect("written");
        let mut seen = [0; 5];
        range.read(3995, &mut seen);
        assert_eq!(&seen, b".back");
    }

    #[test]
    fn ranges_end_where_they_end() {
        let file = tempfile();
        file.set_len(8192).expect("a size");
        assert!(MappedRange::new(&file, 0, 0).is_err());
        let range = MappedRange::new(&file, 0, 5000).expect("mapped");
        let past = std::panic::catch_unwind(|| range.read(4999, &mut [0; 2]));
        assert!(past.is_err());
    }

    fn tempfile() -> std::fs::File {
        let path = std::env::temp_dir().join(format!(
            "bw-mapped-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .expect("a file");
        std::fs::remove_file(path).expect("removed");
        file
    }
}
