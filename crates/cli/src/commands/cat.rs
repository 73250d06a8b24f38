//! `cat`.

use crate::args::CatArgs;
use crate::failure::{At, Failure, Result, Tally};
use crate::image::{Access, Images};
use crate::operand::Inside;
use std::ffi::OsStr;
use std::io::Write;

const BUFFER_BYTES: usize = 1 << 20;

/// Runs `cat`.
///
/// # Errors
/// As printed; the other operands were written.
pub fn cat(args: &CatArgs) -> Result<()> {
    let mut images = Images::new(Access::Read);
    let mut tally = Tally::default();
    let mut buffer = vec![0u8; BUFFER_BYTES];
    for path in &args.paths {
        let result = one(&mut images, path, &mut buffer);
        tally.note(result)?;
    }
    images.close()?;
    tally.finish()
}

fn one(images: &mut Images, argument: &OsStr, buffer: &mut [u8]) -> Result<()> {
    let operand = Inside::parse(argument);
    if operand.is_root() {
        return Err(Failure::usage("a file is needed: IMAGE:/path").at(operand));
    }
    let image = images.get(&operand.image)?;
    let inode = image.resolve(&operand.path, true)?;
    let file = image.open_file(&inode, &operand.path)?;
    let mut out = crate::output::stdout();
    let mut offset = 0;
    loop {
        let read = file.read_at(buffer, offset).at(&operand)?;
        if read == 0 {
            break;
        }
        out.write_all(&buffer[..read])?;
        offset += read as u64;
    }
    out.flush()?;
    Ok(())
}
