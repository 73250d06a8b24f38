//! dm-verity: a tree of hashes over a volume.

use crate::call::{call, out};
use crate::error::{Fault, Result, bw_error, bw_status};
use crate::raw::{Input, Text, Versioned, sized};
use blockwright::verity::{Verity, VerityOptions, seal};
use std::mem::MaybeUninit;

/// Bytes of the longest salt.
pub const BW_VERITY_SALT_BYTES: usize = 256;

/// How a tree is made. A structure of zeroes with `struct_size` set has the defaults, as null has.
#[repr(C)]
pub struct bw_verity_options {
    /// `sizeof(bw_verity_options)`.
    pub struct_size: usize,
    /// The file that the tree goes to, which is replaced unless it holds a volume or a disk; null: behind the volume, in the image.
    pub tree: Text,
    /// The salt.
    pub salt: Input,
    /// Its bytes, at most `BW_VERITY_SALT_BYTES`; 0: a salt of 32 bytes that follow from the UUID.
    pub salt_bytes: usize,
    /// UUID of the tree. That of the volume is a good choice.
    pub uuid: [u8; 16],
}

// SAFETY: numbers, a text, bytes and their pointer after `struct_size`.
unsafe impl Versioned for bw_verity_options {}

/// What `veritysetup open` and the kernel's command line need.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_verity_tree {
    /// The one thing that must come from elsewhere than the image.
    pub root_hash: [u8; 32],
    /// The salt.
    pub salt: [u8; BW_VERITY_SALT_BYTES],
    /// Its bytes.
    pub salt_bytes: u32,
    /// Bytes per block: 4096.
    pub block_bytes: u32,
    /// Blocks that are covered.
    pub data_blocks: u64,
    /// Where the tree begins in its file, in bytes.
    pub hash_offset: u64,
    /// Bytes of the tree.
    pub tree_bytes: u64,
}

fn options_of(options: Option<&bw_verity_options>) -> Result<VerityOptions> {
    let mut made = VerityOptions::default();
    let Some(o) = options else {
        return Ok(made);
    };
    made.uuid = o.uuid;
    if o.salt_bytes != 0 {
        made.salt = Some(o.salt.slice(o.salt_bytes, "options.salt")?.to_vec());
    }
    if o.tree.optional().is_some() {
        made.tree = Some(o.tree.path("options.tree")?.to_owned());
    }
    Ok(made)
}

fn told(verity: &Verity) -> Result<bw_verity_tree> {
    let mut salt = [0; BW_VERITY_SALT_BYTES];
    let to = salt.get_mut(..verity.salt.len());
    let to = to.ok_or_else(|| Fault::Misuse("the salt is too long".to_owned()))?;
    to.copy_from_slice(&verity.salt);
    Ok(bw_verity_tree {
        root_hash: verity.root_hash,
        salt,
        salt_bytes: verity.salt.len() as u32,
        block_bytes: 4096,
        data_blocks: verity.data_blocks,
        hash_offset: verity.hash_offset,
        tree_bytes: verity.tree_bytes,
    })
}

/// Makes a tree of hashes (dm-verity) over the first `bytes` of the image or block device at `path`: `bytes` of `bw_made`. An image that is in use gives
/// `BW_BUSY`; with `tree`, one that is open for reading only is taken. A volume that is written to afterwards no longer matches its tree. `options` may be null.
///
/// `BW_INVALID`: the image is shorter than `bytes` or its volume longer; behind `bytes`, an image file has something else than zeroes and an earlier tree; `tree` is
/// the image, or holds a volume or a disk. `BW_UNSUPPORTED`: the image is in a container, such as qcow2. What a block device has behind `bytes` is overwritten.
#[unsafe(no_mangle)]
pub extern "C" fn bw_verity_seal(
    path: Text,
    bytes: u64,
    options: *const bw_verity_options,
    tree: Option<&mut MaybeUninit<bw_verity_tree>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let tree = out(tree, "tree")?;
        let path = path.path("path")?;
        let options = options_of(sized(options, "options")?)?;
        tree.write(told(&seal(path, bytes, &options)?)?);
        Ok(())
    })
}
