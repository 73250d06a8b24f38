//! What FUSE over io_uring looks like to the kernel: structs, commands, submission entries.
//!
//! Reference: the kernel's Documentation/filesystems/fuse/fuse-io-uring.rst and its public header
//! `linux/fuse.h` (protocol 7.42).

use io_uring::{opcode, squeue, types};
use std::os::fd::RawFd;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `FUSE_IO_URING_CMD_REGISTER`: gives an entry's memory to the kernel and waits for a request.
const CMD_REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: replies, and waits for the next request.
const CMD_COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_req_header`: the first of an entry's two pieces of memory.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct EntryHeader {
    /// The request's header; in the reply, the reply's.
    pub(super) in_out: [u8; 128],
    /// The first argument, when that is a struct.
    pub(super) op_in: [u8; 128],
    /// `struct fuse_uring_ent_in_out`.
    pub(super) flags: u64,
    /// The identity of the reply.
    pub(super) commit_id: u64,
    /// Bytes in the second piece: further arguments; in the reply, all of it but its header.
    pub(super) payload_bytes: u32,
    pub(super) padding: u32,
    pub(super) reserved: u64,
}

const _: () = assert!(size_of::<EntryHeader>() == 288);

/// `struct fuse_uring_cmd_req`, in a submission entry's command area.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 6],
}

const _: () = assert!(size_of::<Command>() == 24);

/// Where a submission entry keeps the length of what `addr` points to (`struct io_uring_sqe.len`).
const SQE_LEN_AT: usize = 24;
/// The pieces of memory of an entry.
const PIECES: u32 = 2;

fn command(fd: RawFd, op: u32, queue: u16, commit_id: u64) -> opcode::UringCmd80 {
    let mut area = [0; 80];
    let command = Command {
        flags: 0,
        commit_id,
        queue,
        padding: [0; 6],
    };
    area[..size_of::<Command>()].copy_from_slice(command.as_bytes());
    opcode::UringCmd80::new(types::Fd(fd), op).cmd(area)
}

/// Registers an entry with the queue of a CPU. `pieces`: its header and its payload.
///
/// The kernel copies `pieces` when the entry is submitted; the memory they name belongs to the kernel until
/// the entry completes.
pub(super) fn register(
    fd: RawFd,
    queue: u16,
    pieces: *const [libc::iovec; 2],
    user_data: u64,
) -> squeue::Entry128 {
    let mut entry = command(fd, CMD_REGISTER, queue, 0)
        .addr(Some(pieces as u64))
        .build()
        .user_data(user_data);
    // SAFETY: an entry is the kernel's 128-byte struct, plain data, and `len` are the four bytes at this
    // offset of it; the crate has no setter for it in commands.
    unsafe {
        (&raw mut entry)
            .cast::<u8>()
            .add(SQE_LEN_AT)
            .cast::<u32>()
            .write_unaligned(PIECES);
    }
    entry
}

/// Replies with what the entry's memory holds, and waits for the next request.
pub(super) fn commit_and_fetch(
    fd: RawFd,
    queue: u16,
    commit_id: u64,
    user_data: u64,
) -> squeue::Entry128 {
    command(fd, CMD_COMMIT_AND_FETCH, queue, commit_id)
        .build()
        .user_data(user_data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entry: &squeue::Entry128) -> &[u8; 128] {
        // SAFETY: 128 bytes of plain data, all written by `build`.
        unsafe { &*std::ptr::from_ref(entry).cast() }
    }

    #[test]
    fn entries_are_as_the_kernel_reads_them() {
        let pieces = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 2];
        let entry = register(7, 3, &raw const pieces, 99);
        let sqe = bytes(&entry);
        assert_eq!(sqe[0], 46, "IORING_OP_URING_CMD");
        assert_eq!(sqe[4..8], 7i32.to_ne_bytes(), "fd");
        assert_eq!(sqe[8..12], 1u32.to_ne_bytes(), "cmd_op");
        assert_eq!(
            sqe[16..24],
            (&raw const pieces as u64).to_ne_bytes(),
            "addr"
        );
        assert_eq!(sqe[24..28], 2u32.to_ne_bytes(), "len");
        assert_eq!(sqe[32..40], 99u64.to_ne_bytes(), "user_data");
        assert_eq!(sqe[64..66], 3u16.to_ne_bytes(), "the command's queue");

        let entry = commit_and_fetch(7, 3, 0x1234_5678_9abc, 1);
        let sqe = bytes(&entry);
        assert_eq!(sqe[8..12], 2u32.to_ne_bytes(), "cmd_op");
        assert_eq!(
            sqe[56..64],
            0x1234_5678_9abc_u64.to_ne_bytes(),
            "the command's commit_id"
        );
    }
}
