//! Requests, kernel → server: argument structs, and the cursor that takes them apart.
//!
//! The kernel is trusted to be well-meaning but not to be of our version: every length is
//! checked, and a request that is too short is answered with an error instead of a panic.

use super::flags::EXT_GROUPS;
use super::{Opcode, wire};
use smallvec::SmallVec;
use std::fmt;
use zerocopy::FromBytes;

wire! {
    /// In front of every request. `total_extlen` is the size of the extensions at its end, in units of 8
    /// bytes.
    pub struct InHeader: 40 {
        pub len: u32,
        pub opcode: u32,
        pub unique: u64,
        pub nodeid: u64,
        pub uid: u32,
        pub gid: u32,
        pub pid: u32,
        pub total_extlen: u16,
        pub padding: u16,
    }

    /// FORGET.
    pub struct ForgetIn: 8 {
        pub nlookup: u64,
    }

    /// BATCH_FORGET; `count` × [`ForgetOne`] follow.
    pub struct BatchForgetIn: 8 {
        pub count: u32,
        pub dummy: u32,
    }

    /// One node of BATCH_FORGET.
    pub struct ForgetOne: 16 {
        pub nodeid: u64,
        pub nlookup: u64,
    }

    /// GETATTR.
    pub struct GetAttrIn: 16 {
        pub getattr_flags: u32,
        pub dummy: u32,
        pub fh: u64,
    }

    /// STATX.
    pub struct StatxIn: 24 {
        pub getattr_flags: u32,
        pub reserved: u32,
        pub fh: u64,
        pub sx_flags: u32,
        pub sx_mask: u32,
    }

    /// SETATTR.
    pub struct SetAttrIn: 88 {
        pub valid: u32,
        pub padding: u32,
        pub fh: u64,
        pub size: u64,
        pub lock_owner: u64,
        pub atime: i64,
        pub mtime: i64,
        pub ctime: i64,
        pub atimensec: u32,
        pub mtimensec: u32,
        pub ctimensec: u32,
        pub mode: u32,
        pub unused4: u32,
        pub uid: u32,
        pub gid: u32,
        pub unused5: u32,
    }

    /// MKNOD; the name follows.
    pub struct MkNodIn: 16 {
        pub mode: u32,
        pub rdev: u32,
        pub umask: u32,
        pub padding: u32,
    }

    /// MKDIR; the name follows.
    pub struct MkDirIn: 8 {
        pub mode: u32,
        pub umask: u32,
    }

    /// RENAME; old and new name follow.
    pub struct RenameIn: 8 {
        pub newdir: u64,
    }

    /// RENAME2; old and new name follow.
    pub struct Rename2In: 16 {
        pub newdir: u64,
        pub flags: u32,
        pub padding: u32,
    }

    /// LINK; the new name follows.
    pub struct LinkIn: 8 {
        pub oldnodeid: u64,
    }

    /// OPEN, OPENDIR.
    pub struct OpenIn: 8 {
        pub flags: u32,
        pub open_flags: u32,
    }

    /// CREATE, TMPFILE; the name follows.
    pub struct CreateIn: 16 {
        pub flags: u32,
        pub mode: u32,
        pub umask: u32,
        pub open_flags: u32,
    }

    /// READ, READDIR, READDIRPLUS.
    pub struct ReadIn: 40 {
        pub fh: u64,
        pub offset: u64,
        pub size: u32,
        pub read_flags: u32,
        pub lock_owner: u64,
        pub flags: u32,
        pub padding: u32,
    }

    /// WRITE; the data follow.
    pub struct WriteIn: 40 {
        pub fh: u64,
        pub offset: u64,
        pub size: u32,
        pub write_flags: u32,
        pub lock_owner: u64,
        pub flags: u32,
        pub padding: u32,
    }

    /// RELEASE, RELEASEDIR.
    pub struct ReleaseIn: 24 {
        pub fh: u64,
        pub flags: u32,
        pub release_flags: u32,
        pub lock_owner: u64,
    }

    /// FLUSH.
    pub struct FlushIn: 24 {
        pub fh: u64,
        pub unused: u32,
        pub padding: u32,
        pub lock_owner: u64,
    }

    /// FSYNC, FSYNCDIR.
    pub struct FsyncIn: 16 {
        pub fh: u64,
        pub fsync_flags: u32,
        pub padding: u32,
    }

    /// SETXATTR without `SETXATTR_EXT`; name and value follow.
    pub struct SetXattrInCompat: 8 {
        pub size: u32,
        pub flags: u32,
    }

    /// SETXATTR with `SETXATTR_EXT`; name and value follow.
    pub struct SetXattrIn: 16 {
        pub size: u32,
        pub flags: u32,
        pub setxattr_flags: u32,
        pub padding: u32,
    }

    /// GETXATTR (the name follows), LISTXATTR. `size` 0 asks how large the answer would be.
    pub struct GetXattrIn: 8 {
        pub size: u32,
        pub padding: u32,
    }

    /// ACCESS.
    pub struct AccessIn: 8 {
        pub mask: u32,
        pub padding: u32,
    }

    /// INIT before 7.36.
    pub struct InitInCompat: 16 {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
    }

    /// INIT.
    pub struct InitIn: 64 {
        pub major: u32,
        pub minor: u32,
        pub max_readahead: u32,
        pub flags: u32,
        pub flags2: u32,
        pub unused: [u32; 11],
    }

    /// INTERRUPT.
    pub struct InterruptIn: 8 {
        pub unique: u64,
    }

    /// IOCTL; `in_size` bytes follow.
    pub struct IoctlIn: 32 {
        pub fh: u64,
        pub flags: u32,
        pub cmd: u32,
        pub arg: u64,
        pub in_size: u32,
        pub out_size: u32,
    }

    /// FALLOCATE.
    pub struct FallocateIn: 32 {
        pub fh: u64,
        pub offset: u64,
        pub length: u64,
        pub mode: u32,
        pub padding: u32,
    }

    /// LSEEK.
    pub struct LseekIn: 24 {
        pub fh: u64,
        pub offset: u64,
        pub whence: u32,
        pub padding: u32,
    }

    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    pub struct CopyFileRangeIn: 56 {
        pub fh_in: u64,
        pub off_in: u64,
        pub nodeid_out: u64,
        pub fh_out: u64,
        pub off_out: u64,
        pub len: u64,
        pub flags: u64,
    }

    /// In front of every extension. `size` includes this header.
    pub struct ExtHeader: 8 {
        pub size: u32,
        pub kind: u32,
    }
}

/// A request that is not what the protocol says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// Shorter than its header or its arguments.
    TooShort {
        /// Bytes that were needed.
        needed: usize,
        /// Bytes that were there.
        found: usize,
    },
    /// The length in the header is not the number of bytes that came.
    WrongLength {
        /// The header.
        header: u32,
        /// Bytes that came.
        found: usize,
    },
    /// A name lacks its terminator.
    UnterminatedName,
    /// The extensions at the end do not fit their stated size.
    BadExtension,
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRequest::TooShort { needed, found } => {
                write!(
                    f,
                    "FUSE request too short: {needed} bytes needed, {found} found"
                )
            }
            BadRequest::WrongLength { header, found } => {
                write!(f, "FUSE request of {found} bytes says it has {header}")
            }
            BadRequest::UnterminatedName => f.write_str("FUSE request with an unterminated name"),
            BadRequest::BadExtension => f.write_str("FUSE request with damaged extensions"),
        }
    }
}

impl std::error::Error for BadRequest {}

/// Supplementary groups as an extension carries them.
pub type Groups = SmallVec<[u32; 8]>;

/// One request, still in the transport's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its header.
    pub header: InHeader,
    /// The arguments, extensions taken off.
    pub body: &'a [u8],
    /// The extensions.
    pub extensions: &'a [u8],
}

impl<'a> Request<'a> {
    /// Takes a request apart.
    ///
    /// # Errors
    /// When the lengths contradict each other.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BadRequest> {
        let Ok((header, rest)) = InHeader::read_from_prefix(bytes) else {
            return Err(BadRequest::TooShort {
                needed: size_of::<InHeader>(),
                found: bytes.len(),
            });
        };
        if usize::try_from(header.len) != Ok(bytes.len()) {
            return Err(BadRequest::WrongLength {
                header: header.len,
                found: bytes.len(),
            });
        }
        let ext_bytes = usize::from(header.total_extlen) * 8;
        let Some(split) = rest.len().checked_sub(ext_bytes) else {
            return Err(BadRequest::BadExtension);
        };
        let (body, extensions) = rest.split_at(split);
        Ok(Request {
            header,
            body,
            extensions,
        })
    }

    /// A request that was taken apart before, from the same bytes.
    #[must_use]
    pub fn again(header: InHeader, bytes: &'a [u8]) -> Self {
        let rest = bytes.get(size_of::<InHeader>()..).unwrap_or_default();
        let ext_bytes = usize::from(header.total_extlen) * 8;
        let (body, extensions) = rest.split_at(rest.len().saturating_sub(ext_bytes));
        Request {
            header,
            body,
            extensions,
        }
    }

    /// The opcode, if it is known.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_wire(self.header.opcode)
    }

    /// A cursor over the arguments.
    #[must_use]
    pub fn args(&self) -> Args<'a> {
        Args { rest: self.body }
    }

    /// The supplementary groups that came along; empty when there were none.
    ///
    /// # Errors
    /// When the extensions are damaged.
    pub fn groups(&self) -> Result<Groups, BadRequest> {
        let mut rest = self.extensions;
        let mut groups = Groups::new();
        while !rest.is_empty() {
            let Ok((head, _)) = ExtHeader::read_from_prefix(rest) else {
                return Err(BadRequest::BadExtension);
            };
            let size = usize::try_from(head.size).unwrap_or(usize::MAX);
            if size < size_of::<ExtHeader>() || size > rest.len() {
                return Err(BadRequest::BadExtension);
            }
            if head.kind == EXT_GROUPS {
                let mut args = Args {
                    rest: &rest[size_of::<ExtHeader>()..size],
                };
                let count = args.take::<u32>()?;
                for _ in 0..count {
                    groups.push(args.take::<u32>()?);
                }
            }
            // Extensions are padded to 8 bytes; the last one may end exactly at the end.
            rest = rest.get(size.next_multiple_of(8)..).unwrap_or_default();
        }
        Ok(groups)
    }
}

/// A cursor over a request's arguments.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    rest: &'a [u8],
}

impl<'a> Args<'a> {
    /// The next struct.
    ///
    /// # Errors
    /// When there are too few bytes.
    pub fn take<T: FromBytes>(&mut self) -> Result<T, BadRequest> {
        match T::read_from_prefix(self.rest) {
            Ok((value, rest)) => {
                self.rest = rest;
                Ok(value)
            }
            Err(_) => Err(BadRequest::TooShort {
                needed: size_of::<T>(),
                found: self.rest.len(),
            }),
        }
    }

    /// The next zero-terminated name, without its terminator.
    ///
    /// # Errors
    /// When there is no terminator.
    pub fn name(&mut self) -> Result<&'a [u8], BadRequest> {
        let end = self
            .rest
            .iter()
            .position(|&b| b == 0)
            .ok_or(BadRequest::UnterminatedName)?;
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// When there are too few bytes.
    pub fn bytes(&mut self, len: u32) -> Result<&'a [u8], BadRequest> {
        let needed = usize::try_from(len).unwrap_or(usize::MAX);
        if needed > self.rest.len() {
            return Err(BadRequest::TooShort {
                needed,
                found: self.rest.len(),
            });
        }
        let (bytes, rest) = self.rest.split_at(needed);
        self.rest = rest;
        Ok(bytes)
    }

    /// Number of bytes left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn message(opcode: Opcode, body: &[u8], extensions: &[u8]) -> Vec<u8> {
        assert_eq!(extensions.len() % 8, 0);
        let header = InHeader {
            len: (size_of::<InHeader>() + body.len() + extensions.len()) as u32,
            opcode: opcode as u32,
            unique: 7,
            nodeid: 1,
            total_extlen: (extensions.len() / 8) as u16,
            ..InHeader::default()
        };
        [header.as_bytes(), body, extensions].concat()
    }

    #[test]
    fn names_and_structs_come_out_in_order() {
        let body = [
            Rename2In {
                newdir: 9,
                flags: 1,
                padding: 0,
            }
            .as_bytes(),
            b"old\0new\0",
        ]
        .concat();
        let bytes = message(Opcode::Rename2, &body, &[]);
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(request.opcode(), Some(Opcode::Rename2));
        let mut args = request.args();
        assert_eq!(args.take::<Rename2In>().unwrap().newdir, 9);
        assert_eq!(args.name().unwrap(), b"old");
        assert_eq!(args.name().unwrap(), b"new");
        assert_eq!(args.remaining(), 0);
        assert_eq!(args.name(), Err(BadRequest::UnterminatedName));
    }

    #[test]
    fn supplementary_groups_are_read_from_the_extension() {
        let ext: Vec<u8> = [16u32, EXT_GROUPS, 1, 4711]
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        let bytes = message(Opcode::MkDir, &[0; 8], &ext);
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(request.body.len(), 8);
        assert_eq!(request.groups().unwrap().as_slice(), &[4711]);
    }

    #[test]
    fn unknown_extensions_are_skipped_and_damaged_ones_refused() {
        let mut ext: Vec<u8> = [16u32, 99, 0, 0, 16, EXT_GROUPS, 1, 5]
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        let bytes = message(Opcode::MkDir, &[], &ext);
        assert_eq!(
            Request::parse(&bytes).unwrap().groups().unwrap().as_slice(),
            &[5]
        );
        // Three groups promised, one there.
        ext[24] = 3;
        let bytes = message(Opcode::MkDir, &[], &ext);
        assert!(Request::parse(&bytes).unwrap().groups().is_err());
        // A size that would never advance.
        ext[0] = 0;
        let bytes = message(Opcode::MkDir, &[], &ext);
        assert_eq!(
            Request::parse(&bytes).unwrap().groups(),
            Err(BadRequest::BadExtension)
        );
    }

    #[test]
    fn short_and_lying_requests_are_refused() {
        assert!(matches!(
            Request::parse(&[0; 39]),
            Err(BadRequest::TooShort { .. })
        ));
        let mut bytes = message(Opcode::Lookup, b"x\0", &[]);
        bytes.push(0);
        assert!(matches!(
            Request::parse(&bytes),
            Err(BadRequest::WrongLength { .. })
        ));
        let mut bytes = message(Opcode::Lookup, b"x\0", &[]);
        bytes[36] = 1; // eight bytes of extensions, of which only two are there
        assert!(matches!(
            Request::parse(&bytes),
            Err(BadRequest::BadExtension)
        ));
        let bytes = message(Opcode::Write, &[0; 39], &[]);
        assert!(
            Request::parse(&bytes)
                .unwrap()
                .args()
                .take::<WriteIn>()
                .is_err()
        );
        let bytes = message(Opcode::Write, &[0; 4], &[]);
        assert!(Request::parse(&bytes).unwrap().args().bytes(5).is_err());
    }
}
