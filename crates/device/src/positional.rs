//! Positional I/O on files of any host, and where their holes are.

use std::fs::File;
use std::io;

/// Reads into `buf` from offset `at`, as much as the host gives at once: 0 at the end of the file.
///
/// # Errors
/// Those of the host.
pub fn read_at(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
    host::read(file, buf, at)
}

/// Writes from `buf` to offset `at`, as much as the host takes at once.
///
/// # Errors
/// Those of the host.
pub fn write_at(file: &File, buf: &[u8], at: u64) -> io::Result<usize> {
    host::write(file, buf, at)
}

/// Fills `buf` from offset `at`.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] when the file ends before; those of the host.
pub fn read_exact_at(file: &File, mut buf: &mut [u8], mut at: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match host::read(file, buf, at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                buf = &mut buf[read..];
                at += read as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `buf` to offset `at`.
///
/// # Errors
/// Those of the host; any part may be written then.
pub fn write_all_at(file: &File, mut buf: &[u8], mut at: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match host::write(file, buf, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                buf = &buf[written..];
                at += written as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// The next run of data at `at` or behind it, within the `size` bytes of the file: its begin and end. `None` when only a hole follows. A host that does not
/// tell holes (all but Linux here) has one run: the rest of the file.
///
/// # Errors
/// Those of the host.
pub fn next_run(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{SeekFrom, seek};
        let begin = match seek(file, SeekFrom::Data(at)) {
            Ok(begin) if begin < size => begin,
            Ok(_) | Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let end = seek(file, SeekFrom::Hole(begin))?.min(size);
        Ok(Some((begin, end)))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _everything_is_data = file;
        Ok(Some((at, size)))
    }
}

#[cfg(unix)]
mod host {
    use std::fs::File;
    use std::io;
    use std::os::unix::fs::FileExt;

    pub(super) fn read(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
        file.read_at(buf, at)
    }

    pub(super) fn write(file: &File, buf: &[u8], at: u64) -> io::Result<usize> {
        file.write_at(buf, at)
    }
}

/// They move the file's own position, which nothing here uses.
#[cfg(windows)]
mod host {
    use std::fs::File;
    use std::io;
    use std::os::windows::fs::FileExt;

    /// `ERROR_HANDLE_EOF`.
    const END: i32 = 38;

    pub(super) fn read(file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
        match file.seek_read(buf, at) {
            Err(e) if e.raw_os_error() == Some(END) => Ok(0),
            result => result,
        }
    }

    pub(super) fn write(file: &File, buf: &[u8], at: u64) -> io::Result<usize> {
        file.seek_write(buf, at)
    }
}

/// The standard library has no positional I/O for WASI, so a lock makes one step of position and transfer.
#[cfg(target_os = "wasi")]
mod host {
    use parking_lot::Mutex;
    use std::fs::File;
    use std::io::{self, Read, Seek, SeekFrom, Write};

    static POSITION: Mutex<()> = Mutex::new(());

    pub(super) fn read(mut file: &File, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let _position = POSITION.lock();
        file.seek(SeekFrom::Start(at))?;
        file.read(buf)
    }

    pub(super) fn write(mut file: &File, buf: &[u8], at: u64) -> io::Result<usize> {
        let _position = POSITION.lock();
        file.seek(SeekFrom::Start(at))?;
        file.write(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_were_put() {
        let path = std::env::temp_dir().join(format!("bw-positional-{}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        write_all_at(&file, b"later", 100_000).unwrap();
        write_all_at(&file, b"first", 0).unwrap();
        let mut buf = [0; 5];
        read_exact_at(&file, &mut buf, 100_000).unwrap();
        assert_eq!(&buf, b"later");
        assert_eq!(read_at(&file, &mut buf, 100_005).unwrap(), 0);
        let end = read_exact_at(&file, &mut buf, 100_003).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        let (begin, end) = next_run(&file, 0, 100_005).unwrap().unwrap();
        assert!(begin == 0 && (5..=100_005).contains(&end));
        assert_eq!(next_run(&file, 100_005, 100_005).unwrap(), None);
        drop(file);
        std::fs::remove_file(path).unwrap();
    }
}
