//! Files of a listing that are read ahead.

use super::*;

/// A program that reads the files of each listing finds them in memory; one that only lists causes no reads.
#[test]
fn files_of_a_listing_are_read_ahead() {
    const FILES: u64 = 40;
    let kernel = Kernel::new(&FuseOptions::default());
    let contents =
        |n: u64| -> Vec<u8> { (0..3000 + n * 100).map(|at| (at * 7 + n) as u8).collect() };
    let mut nodes = Vec::new();
    for n in 0..FILES {
        let (entry, open) = kernel.create(&format!("file-{n}"), libc::O_RDWR);
        kernel
            .write(entry.nodeid, open.fh, 0, &contents(n))
            .unwrap();
        nodes.push((entry.nodeid, open.fh));
    }
    kernel.volume.vfs.sync().unwrap();
    kernel.volume.vfs.drop_caches();
    let list = || {
        let head = ReadIn {
            size: 64 << 10,
            ..ReadIn::default()
        };
        let list = kernel.call(Opcode::ReadDirPlus, ROOT_ID, head.as_bytes());
        assert!(!list.unwrap().is_empty());
    };
    for _ in 0..3 {
        list();
    }
    assert_eq!(counted(&kernel, "fuse_files_read_ahead"), 0);
    let check = |n: u64| {
        let (node, fh) = nodes[n as usize];
        let read = kernel.read(node, fh, 0, 64 << 10).unwrap();
        assert!(read == contents(n), "file {n}");
    };
    (0..2).for_each(check);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while counted(&kernel, "fuse_files_read_ahead") < FILES - 2 {
        assert!(std::time::Instant::now() < deadline, "not read ahead");
        std::thread::yield_now();
    }
    let misses = counted(&kernel, "cache_misses");
    // Changed after it was read ahead.
    let (node, fh) = nodes[5];
    kernel.write(node, fh, 0, b"other").unwrap();
    (2..FILES).filter(|n| *n != 5).for_each(check);
    let read = kernel.read(node, fh, 0, 64 << 10).unwrap();
    assert_eq!(&read[..5], b"other");
    assert_eq!(read[5..], contents(5)[5..]);
    assert_eq!(counted(&kernel, "cache_misses"), misses, "all in memory");
    assert_eq!(counted(&kernel, "fuse_files_read_ahead_used"), FILES - 2);
    kernel.dispatcher.close();
}
