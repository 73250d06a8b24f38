//! Request numbers.
//!
//! A number that is not in the table gets `ENOSYS`, after which the kernel does not send it again.

use zerocopy::{IntoBytes, TryFromBytes};

/// The operation that a request asks for. The names of its variants are labels in statistics, which never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes)]
#[repr(u32)]
#[allow(missing_docs)] // The names are the kernel's.
pub enum Opcode {
    Lookup = 1,
    /// Has no reply.
    Forget = 2,
    GetAttr = 3,
    SetAttr = 4,
    ReadLink = 5,
    Symlink = 6,
    MkNod = 8,
    MkDir = 9,
    Unlink = 10,
    RmDir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    Fsync = 20,
    SetXattr = 21,
    GetXattr = 22,
    ListXattr = 23,
    RemoveXattr = 24,
    Flush = 25,
    Init = 26,
    OpenDir = 27,
    ReadDir = 28,
    ReleaseDir = 29,
    FsyncDir = 30,
    GetLk = 31,
    SetLk = 32,
    SetLkW = 33,
    Access = 34,
    Create = 35,
    /// Has no reply of its own.
    Interrupt = 36,
    Bmap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    /// Answers a notification; has no reply.
    NotifyReply = 41,
    /// Has no reply.
    BatchForget = 42,
    Fallocate = 43,
    ReadDirPlus = 44,
    Rename2 = 45,
    Lseek = 46,
    CopyFileRange = 47,
    SetupMapping = 48,
    RemoveMapping = 49,
    SyncFs = 50,
    TmpFile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

impl Opcode {
    /// The opcode of this number, if it is known.
    #[must_use]
    pub fn from_wire(value: u32) -> Option<Self> {
        Self::try_read_from_bytes(value.as_bytes()).ok()
    }

    /// Whether the kernel waits for a reply to this request. A reply it does not expect is refused
    /// with `ENOENT`, so none must be sent.
    #[must_use]
    pub const fn has_reply(self) -> bool {
        !matches!(
            self,
            Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Opcode;

    #[test]
    fn numbers_go_both_ways() {
        let mut known = 0;
        for value in 0..64 {
            if let Some(op) = Opcode::from_wire(value) {
                assert_eq!(op as u32, value);
                known += 1;
            }
        }
        assert_eq!(known, 51);
        assert_eq!(Opcode::from_wire(7), None);
        assert_eq!(Opcode::from_wire(19), None);
        assert_eq!(Opcode::from_wire(54), None);
        assert!(!Opcode::Forget.has_reply());
        assert!(Opcode::Lookup.has_reply());
    }
}
