//! Permission bits and owners as chmod(1) and chown(1) take them.

use crate::failure::{Failure, Result};

/// A change of permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModeChange {
    /// These bits.
    Set(u32),
    /// Symbolic clauses, applied in order.
    Clauses(Vec<Clause>),
}

/// One clause of a symbolic mode: `u+x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    /// The bits of the classes it concerns (with their set-id and sticky bits).
    who: u32,
    /// No class was given: the umask's bits are left alone.
    masked: bool,
    operator: u8,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Bits in all three classes, set-id and sticky bits; `conditional`: `X`.
    Bits { bits: u32, conditional: bool },
    /// A class's present bits: a shift.
    Copy(u32),
}

const USER: u32 = 0o4700;
const GROUP: u32 = 0o2070;
const OTHER: u32 = 0o1007;
const SET_IDS: u32 = 0o6000;

/// Octal digits.
///
/// # Errors
/// What is not octal, or too large.
pub fn parse_octal(text: &str) -> Result<u32> {
    let fail = || {
        Failure::usage(format_args!(
            "`{text}` is not a mode (octal, as 644, or symbolic, as u+x,go=r)"
        ))
    };
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(fail());
    }
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(fail)
}

impl ModeChange {
    /// Parses a mode.
    ///
    /// # Errors
    /// What chmod(1) would not take.
    pub fn parse(text: &str) -> Result<Self> {
        if text.bytes().next().is_some_and(|b| b.is_ascii_digit()) {
            return parse_octal(text).map(ModeChange::Set);
        }
        let fail = || {
            Failure::usage(format_args!(
                "`{text}` is not a mode (octal, as 644, or symbolic, as u+x,go=r)"
            ))
        };
        let mut clauses = Vec::new();
        for part in text.split(',') {
            let mut bytes = part.bytes().peekable();
            let mut who = 0;
            while let Some(class) = bytes.peek() {
                who |= match class {
                    b'u' => USER,
                    b'g' => GROUP,
                    b'o' => OTHER,
                    b'a' => USER | GROUP | OTHER,
                    _ => break,
                };
                bytes.next();
            }
            let masked = who == 0;
            if masked {
                who = USER | GROUP | OTHER;
            }
            if bytes.peek().is_none() {
                return Err(fail());
            }
            while let Some(operator) = bytes.next() {
                if !matches!(operator, b'+' | b'-' | b'=') {
                    return Err(fail());
                }
                let what = match bytes.peek() {
                    Some(b'u') => Some(6),
                    Some(b'g') => Some(3),
                    Some(b'o') => Some(0),
                    _ => None,
                };
                let what = if let Some(shift) = what {
                    bytes.next();
                    What::Copy(shift)
                } else {
                    let (mut bits, mut conditional) = (0, false);
                    while let Some(letter) = bytes.peek() {
                        match letter {
                            b'r' => bits |= 0o444,
                            b'w' => bits |= 0o222,
                            b'x' => bits |= 0o111,
                            b'X' => conditional = true,
                            b's' => bits |= SET_IDS,
                            b't' => bits |= 0o1000,
                            _ => break,
                        }
                        bytes.next();
                    }
                    What::Bits { bits, conditional }
                };
                clauses.push(Clause {
                    who,
                    masked,
                    operator,
                    what,
                });
            }
        }
        Ok(ModeChange::Clauses(clauses))
    }

    /// The bits after the change.
    pub fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        let clauses = match self {
            // Numeric modes keep a directory's set-id bits unless they name them, as chmod(1) does.
            ModeChange::Set(bits) if is_dir => return bits | (mode & SET_IDS),
            ModeChange::Set(bits) => return *bits,
            ModeChange::Clauses(clauses) => clauses,
        };
        let mut mode = mode & 0o7777;
        for clause in clauses {
            let bits = match clause.what {
                What::Copy(shift) => ((mode >> shift) & 7) * 0o111,
                What::Bits { bits, conditional } => {
                    let execute = conditional && (is_dir || mode & 0o111 != 0);
                    bits | if execute { 0o111 } else { 0 }
                }
            };
            // The sticky bit needs no class; everything else goes only where the classes say.
            let who =
                clause.who | (bits & 0o1000 & if clause.masked { 0o1000 } else { clause.who });
            let mut bits = bits & who;
            if clause.masked {
                bits &= !umask;
            }
            match clause.operator {
                b'+' => mode |= bits,
                b'-' => mode &= !bits,
                _ => {
                    let mut cleared = clause.who;
                    if is_dir {
                        cleared &= !(SET_IDS & !bits);
                    }
                    mode = (mode & !cleared) | bits;
                }
            }
        }
        mode
    }
}

/// An owner, a group, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Owner {
    /// The user, if it is to change.
    pub uid: Option<u32>,
    /// The group, if it is to change.
    pub gid: Option<u32>,
}

impl Owner {
    /// Parses `UID`, `UID:GID`, `UID:` (with the group of the same number) or `:GID`.
    ///
    /// # Errors
    /// What is none of these.
    pub fn parse(text: &str) -> Result<Self> {
        let number = |part: &str| -> Result<u32> {
            part.parse().ok().filter(|id| *id != u32::MAX).ok_or_else(|| {
                Failure::usage(format_args!(
                    "`{text}` is not UID, UID:GID or :GID (numbers: names of this host mean nothing in an image)"
                ))
            })
        };
        match text.split_once(':') {
            None => Ok(Owner {
                uid: Some(number(text)?),
                gid: None,
            }),
            Some(("", gid)) => Ok(Owner {
                uid: None,
                gid: Some(number(gid)?),
            }),
            Some((uid, "")) => Ok(Owner {
                uid: Some(number(uid)?),
                gid: Some(number(uid)?),
            }),
            Some((uid, gid)) => Ok(Owner {
                uid: Some(number(uid)?),
                gid: Some(number(gid)?),
            }),
        }
    }

    /// Parses what must be both user and group: `UID:GID`, or `UID` for the group of the same number.
    ///
    /// # Errors
    /// What is neither.
    pub fn parse_pair(text: &str) -> Result<(u32, u32)> {
        let owner = Owner::parse(text)?;
        match (owner.uid, owner.gid) {
            (Some(uid), gid) => Ok((uid, gid.unwrap_or(uid))),
            (None, _) => Err(Failure::usage(format_args!("`{text}` is not UID:GID"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, mode: u32, is_dir: bool) -> u32 {
        ModeChange::parse(text)
            .unwrap_or_else(|e| panic!("{e}"))
            .apply(mode, is_dir, 0o022)
    }

    #[test]
    fn numeric_modes() {
        assert_eq!(changed("644", 0o4755, false), 0o644);
        assert_eq!(changed("755", 0o2700, true), 0o2755);
        assert_eq!(changed("1777", 0, true), 0o1777);
        for bad in ["8", "77777", "", "u", "u+q", "z+x", "+x,", "6 4 4"] {
            assert!(ModeChange::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn symbolic_modes() {
        assert_eq!(changed("u+x", 0o644, false), 0o744);
        assert_eq!(changed("u+x,go-r", 0o644, false), 0o700);
        assert_eq!(changed("a=rX", 0o700, false), 0o555);
        assert_eq!(changed("a=rX", 0o600, false), 0o444);
        assert_eq!(changed("+X", 0o600, true), 0o711);
        assert_eq!(changed("g=u", 0o740, false), 0o770);
        assert_eq!(changed("o=", 0o777, false), 0o770);
        assert_eq!(changed("u+s,g+s", 0o755, false), 0o6755);
        assert_eq!(changed("ug-s", 0o6755, false), 0o755);
        assert_eq!(changed("+t", 0o755, true), 0o1755);
        assert_eq!(changed("u=rwx,go=rx", 0, false), 0o755);
        assert_eq!(changed("u=rw+x-w", 0, false), 0o500);
    }

    #[test]
    fn the_umask_counts_when_no_class_is_named() {
        assert_eq!(changed("+w", 0o444, false), 0o644);
        assert_eq!(changed("a+w", 0o444, false), 0o666);
        assert_eq!(changed("-w", 0o666, false), 0o466);
    }

    #[test]
    fn owners() {
        let both = |uid, gid| Some(Owner { uid, gid });
        let parse = |text| Owner::parse(text).ok();
        assert_eq!(parse("5"), both(Some(5), None));
        assert_eq!(parse("5:6"), both(Some(5), Some(6)));
        assert_eq!(parse(":6"), both(None, Some(6)));
        assert_eq!(parse("5:"), both(Some(5), Some(5)));
        assert_eq!(parse("root"), None);
        assert_eq!(parse("4294967295"), None);
        assert_eq!(Owner::parse_pair("7").ok(), Some((7, 7)));
        assert!(Owner::parse_pair(":7").is_err());
    }
}
