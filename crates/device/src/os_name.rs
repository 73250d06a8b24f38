//! Names of the host's files as bytes, and back.
//!
//! File systems have names of bytes. So have Unix and WASI, and the conversion changes nothing. Windows has UTF-16: a name of a volume that is no UTF-8 becomes
//! one with U+FFFD in place of what is wrong, and a host's name with an unpaired surrogate becomes bytes that are no UTF-8.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

#[cfg(unix)]
use std::os::unix::ffi::{OsStrExt, OsStringExt};
#[cfg(target_os = "wasi")]
use std::os::wasi::ffi::{OsStrExt, OsStringExt};

/// The bytes of a name or path.
#[must_use]
pub fn bytes(name: &(impl AsRef<OsStr> + ?Sized)) -> &[u8] {
    #[cfg(any(unix, target_os = "wasi"))]
    return name.as_ref().as_bytes();
    #[cfg(not(any(unix, target_os = "wasi")))]
    return name.as_ref().as_encoded_bytes();
}

/// The bytes of a name or path that is no longer needed.
#[must_use]
pub fn into_bytes(name: OsString) -> Vec<u8> {
    #[cfg(any(unix, target_os = "wasi"))]
    return name.into_vec();
    #[cfg(not(any(unix, target_os = "wasi")))]
    return name.into_encoded_bytes();
}

/// The name or path with these bytes.
#[must_use]
pub fn of(bytes: &[u8]) -> Cow<'_, OsStr> {
    #[cfg(any(unix, target_os = "wasi"))]
    return Cow::Borrowed(OsStr::from_bytes(bytes));
    #[cfg(not(any(unix, target_os = "wasi")))]
    return match String::from_utf8_lossy(bytes) {
        Cow::Borrowed(name) => Cow::Borrowed(OsStr::new(name)),
        Cow::Owned(name) => Cow::Owned(name.into()),
    };
}

/// The name or path with these bytes.
#[must_use]
pub fn of_vec(bytes: Vec<u8>) -> OsString {
    #[cfg(any(unix, target_os = "wasi"))]
    return OsString::from_vec(bytes);
    #[cfg(not(any(unix, target_os = "wasi")))]
    return of(&bytes).into_owned();
}

/// The path of a name in a directory of a volume, whose paths have `/` on every host.
#[must_use]
pub fn join(dir: &Path, name: &OsStr) -> PathBuf {
    let mut path = dir.as_os_str().to_owned();
    if !path.is_empty() && !bytes(&path).ends_with(b"/") {
        path.push("/");
    }
    path.push(name);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for name in ["", "a", "a/b.c", "\u{e9}\u{1f600}"] {
            assert_eq!(bytes(name), name.as_bytes());
            assert_eq!(of(name.as_bytes()), OsStr::new(name));
            assert_eq!(into_bytes(of_vec(name.into())), name.as_bytes());
        }
        let odd = b"caf\xe9";
        match cfg!(windows) {
            false => assert_eq!(bytes(&*of(odd)), odd),
            true => assert_eq!(of(odd), OsStr::new("caf\u{fffd}")),
        }
    }

    #[test]
    fn paths_in_volumes_have_slashes() {
        for (dir, name, path) in [
            ("/", "a", "/a"),
            ("/b", "a", "/b/a"),
            ("b/", "a", "b/a"),
            ("", "a", "a"),
        ] {
            assert_eq!(join(Path::new(dir), OsStr::new(name)).as_os_str(), path);
        }
    }
}
