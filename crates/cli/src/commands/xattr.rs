//! `getxattr` and `setxattr`.

use crate::args::{GetxattrArgs, SetxattrArgs};
use crate::commands::each::{each_operand, show_each};
use crate::failure::{At, Failure, Result};
use crate::image::{Access, Image};
use crate::operand::Inside;
use crate::output::{Out, base64, base64_unless_text, from_base64, from_hex, text};
use blockwright_vfs::{ErrorKind, XattrMode};
use serde::Serialize;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

#[derive(Serialize)]
struct AttributeJson {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
    /// The value, when it is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The value, when it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
}

#[derive(Serialize)]
struct FileAttributes {
    image: String,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<String>,
    xattrs: Vec<AttributeJson>,
}

/// Whether a value can be shown as it is.
fn is_text(value: &[u8]) -> bool {
    std::str::from_utf8(value).is_ok_and(|text| !text.chars().any(char::is_control))
}

type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

fn read(image: &Image, operand: &Inside, args: &GetxattrArgs) -> Result<Attributes> {
    let inode = image.resolve(&operand.path, !args.symlinks)?;
    let mut names = match &args.name {
        Some(name) => vec![name.as_bytes().to_vec()],
        None => image.vfs().list_xattr(image.cred(), &inode).at(operand)?,
    };
    names.sort();
    let value = |name: Vec<u8>| {
        let place = format!("{operand}: {}", text(&name));
        let value = match image.vfs().get_xattr(image.cred(), &inode, &name) {
            Err(e) if e.kind() == ErrorKind::Unsupported && !has_namespace(&name) => {
                return Err(no_namespace(&name).at(operand));
            }
            value => value.at(place)?,
        };
        Ok((name, value))
    };
    names.into_iter().map(value).collect()
}

/// Runs `getxattr`.
///
/// # Errors
/// As printed; the other operands were shown.
pub fn get(args: &GetxattrArgs) -> Result<()> {
    show_each(
        (&args.paths, args.json),
        |image, operand| read(image, operand, args),
        |operand, found| FileAttributes {
            image: operand.image.display().to_string(),
            path: text(&operand.path),
            path_base64: base64_unless_text(&operand.path),
            xattrs: found.into_iter().map(to_json).collect(),
        },
        print,
    )
}

fn to_json((name, value): (Vec<u8>, Vec<u8>)) -> AttributeJson {
    AttributeJson {
        name: text(&name),
        name_base64: base64_unless_text(&name),
        value: std::str::from_utf8(&value).ok().map(str::to_owned),
        value_base64: base64_unless_text(&value),
    }
}

/// In the format of getfattr(1), so that its readers understand it.
fn print(out: &mut Out, operand: &Inside, found: Attributes) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    write!(out, "# file: ")?;
    out.name(operand.to_string().as_bytes())?;
    writeln!(out)?;
    for (name, value) in found {
        out.name(&name)?;
        if is_text(&value) {
            let escaped = text(&value).replace('\\', "\\\\").replace('"', "\\\"");
            writeln!(out, "=\"{escaped}\"")?;
        } else {
            writeln!(out, "=0s{}", base64(&value))?;
        }
    }
    Ok(writeln!(out)?)
}

/// A value as the command line has it: text, `0x…` or `0s…`.
fn value(text: &OsStr) -> Result<Vec<u8>> {
    let bytes = text.as_bytes();
    match bytes {
        [b'0', b'x' | b'X', digits @ ..] => from_hex(digits)
            .ok_or_else(|| Failure::usage("0x is followed by pairs of hexadecimal digits")),
        [b'0', b's' | b'S', digits @ ..] => {
            from_base64(digits).ok_or_else(|| Failure::usage("0s is followed by base64"))
        }
        _ => Ok(bytes.to_vec()),
    }
}

fn has_namespace(name: &[u8]) -> bool {
    const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
    NAMESPACES.iter().any(|space| name.starts_with(space))
}

fn no_namespace(name: &[u8]) -> Failure {
    let shown = text(name);
    Failure::new(format_args!(
        "`{shown}` does not begin with a namespace (user., trusted., security. or system.): perhaps `user.{shown}`"
    ))
}

/// Bytes of an attribute's name with its namespace, as Linux has it (`XATTR_NAME_MAX`).
const NAME_MAX: usize = 255;

/// Why an attribute is not set, with a hint.
fn refused(image: &Image, name: &[u8], value: &[u8], e: blockwright_vfs::Error) -> Failure {
    let shown = text(name);
    // A volume that has room left has none for this attribute: its inode, and the one block beside it, are full.
    let room = || image.vfs().statfs().is_ok_and(|s| s.blocks_free > 0);
    match e.kind() {
        ErrorKind::Unsupported | ErrorKind::Invalid if !has_namespace(name) => no_namespace(name),
        ErrorKind::Unsupported | ErrorKind::Invalid if name.ends_with(b".") => Failure::new(
            format_args!("`{shown}` is a namespace, with no name behind it"),
        ),
        ErrorKind::TooBig | ErrorKind::Range if name.len() > NAME_MAX => {
            Failure::new(format_args!(
                "{shown}: the name has {} bytes, and {NAME_MAX} are the most",
                name.len()
            ))
        }
        ErrorKind::TooBig | ErrorKind::Range => Failure::new(format_args!(
            "{shown}: {} bytes are more than the volume stores of an attribute",
            value.len()
        )),
        ErrorKind::NoSpace if room() => Failure::new(format_args!(
            "{shown}: {} bytes do not fit beside the file's other attributes (ext4 stores larger ones after mkfs -O \
             ea_inode)",
            value.len()
        )),
        _ => e.into(),
    }
}

/// Runs `setxattr`.
///
/// # Errors
/// As printed; the other operands were changed.
pub fn set(args: &SetxattrArgs) -> Result<()> {
    let value = value(&args.value)?;
    each_operand(Access::Write, &args.paths, |image, operand| {
        let inode = image.resolve(&operand.path, !args.symlinks)?;
        let (vfs, cred) = (image.vfs(), image.cred());
        match (&args.name, &args.remove) {
            (_, Some(name)) => vfs.remove_xattr(cred, &inode, name.as_bytes()),
            (Some(name), None) => {
                let name = name.as_bytes();
                let set = vfs.set_xattr(cred, &inode, name, &value, XattrMode::Any);
                return set.map_err(|e| refused(image, name, &value, e).at(operand));
            }
            (None, None) => Ok(()),
        }
        .at(operand)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_command_line() {
        let parse = |text: &str| value(OsStr::new(text)).ok();
        assert_eq!(parse("plain"), Some(b"plain".to_vec()));
        assert_eq!(parse("0x00fF"), Some(vec![0, 255]));
        assert_eq!(parse("0sZm9v"), Some(b"foo".to_vec()));
        assert_eq!(parse("0x1"), None);
        assert_eq!(parse("0xzz"), None);
        assert_eq!(parse("0s***"), None);
    }
}
