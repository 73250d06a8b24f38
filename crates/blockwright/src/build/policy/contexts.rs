//! SELinux labels of files by their paths: `file_contexts`, as `selabel_file(5)` and `matchpathcon` read it.
//!
//! A line is an expression over whole paths, optionally a kind of file (`--`, `-d`, `-l`, `-c`, `-b`, `-p`, `-s`), and a
//! label or `<<none>>`. Among the lines that match a file, one without special characters counts before those with some;
//! otherwise the last one counts. Beside `FILE`, `FILE.homedirs` and `FILE.local` are read after it, and
//! `FILE.subs` and `FILE.subs_dist` say which directories are labelled like others.
//!
//! Expressions are those of the `regex` crate, matched over bytes: in time that grows with the path's length alone.
//! Features that only PCRE has (look-ahead, look-behind, back references) are refused. An expression is compiled when a
//! path begins with its literal part for the first time.

use crate::build::progress::{Meter, unheard};
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::FileKind;
use regex::bytes::{Regex, RegexBuilder};
use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The attribute that has the label. Its value ends with a zero byte, as the tools of SELinux store it.
pub(crate) const ATTRIBUTE: &[u8] = b"security.selinux";
/// The most bytes of one file, and the most lines of all.
const FILE_BYTES_MAX: u64 = 16 << 20;
const SPECS_MAX: usize = 1 << 15;
/// The most that one expression takes compiled, in bytes; usual ones take a few thousand.
const EXPRESSION_BYTES_MAX: usize = 256 << 10;
/// Compiling an expression takes about as long as reading so many bytes.
const COMPILED_AS_BYTES: u64 = 64 << 10;
/// The longest label.
const LABEL_BYTES_MAX: usize = 4096;
/// The first bytes of a compiled `file_contexts.bin`.
const COMPILED_MAGIC: [u8; 4] = 0xF97C_FF8A_u32.to_le_bytes();

/// Labels by path.
#[derive(Debug, Default)]
pub struct FileContexts {
    specs: Vec<Spec>,
    /// Of specs without special characters: by their path.
    exact: HashMap<Vec<u8>, Vec<usize>>,
    /// Of the other ones, ascending: by the first component of the path, where it has no special characters.
    by_stem: HashMap<Vec<u8>, Vec<usize>>,
    /// Those where it has some.
    without_stem: Vec<usize>,
    /// First those of `.subs`, then those of `.subs_dist`. The last line that suits counts.
    substitutions: [Vec<(Vec<u8>, Vec<u8>)>; 2],
}

#[derive(Debug)]
struct Spec {
    /// For messages.
    place: (usize, usize),
    expression: String,
    /// What every path that matches begins with.
    prefix: Vec<u8>,
    kind: Option<FileKind>,
    /// `None`: `<<none>>`.
    label: Option<Vec<u8>>,
    compiled: OnceLock<std::result::Result<Regex, String>>,
}

/// The fixed prefix of an expression, and whether the prefix is the whole expression.
struct Literal {
    prefix: Vec<u8>,
    whole: bool,
}

/// The literal part at an expression's beginning.
fn literal(expression: &str) -> Literal {
    let bytes = expression.as_bytes();
    let mut prefix: Vec<u8> = Vec::new();
    let mut whole = true;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => match bytes.get(at + 1) {
                Some(next) if next.is_ascii_punctuation() => {
                    prefix.push(*next);
                    at += 2;
                    continue;
                }
                _ => {
                    whole = false;
                    break;
                }
            },
            b'?' | b'*' | b'{' => {
                // It is about the character before.
                prefix.pop();
                while prefix.last().is_some_and(|b| !b.is_ascii()) {
                    prefix.pop();
                }
                whole = false;
                break;
            }
            b'.' | b'^' | b'$' | b'+' | b'|' | b'[' | b'(' => {
                whole = false;
                break;
            }
            _ => prefix.push(byte),
        }
        at += 1;
    }
    if !whole && has_alternatives(bytes) {
        prefix.clear();
    }
    Literal { prefix, whole }
}

/// Whether there is a `|` outside of all brackets.
fn has_alternatives(expression: &[u8]) -> bool {
    let (mut depth, mut escaped, mut class) = (0usize, false, false);
    for byte in expression {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b']' => class = false,
            _ if class => {}
            b'[' => class = true,
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b'|' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// The expression in the syntax of the `regex` crate: inside a class, `[`, `&` and `~` mean themselves to PCRE.
fn translated(expression: &str) -> String {
    let mut out = String::with_capacity(expression.len() + 8);
    out.push_str("^(?:");
    let mut chars = expression.chars().peekable();
    let mut class = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                out.push(c);
                out.extend(chars.next());
            }
            '[' if !class => {
                class = true;
                out.push(c);
                if chars.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                // A bracket right at the beginning means itself.
                if chars.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            '[' if chars.peek() == Some(&':') => {
                // [:digit:]
                out.push(c);
                while let Some(c) =
                    chars.next_if(|c| *c == ':' || c.is_ascii_lowercase() || *c == '^')
                {
                    out.push(c);
                }
                if chars.next_if_eq(&']').is_some() {
                    out.push(']');
                }
            }
            '[' | '&' | '~' if class => {
                out.push('\\');
                out.push(c);
            }
            ']' if class => {
                class = false;
                out.push(c);
            }
            '{' if !class && !chars.peek().is_some_and(char::is_ascii_digit) => out.push_str("\\{"),
            _ => out.push(c),
        }
    }
    out.push_str(")$");
    out
}

fn compile(expression: &str) -> std::result::Result<Regex, String> {
    RegexBuilder::new(&translated(expression))
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(EXPRESSION_BYTES_MAX)
        .dfa_size_limit(EXPRESSION_BYTES_MAX)
        .nest_limit(64)
        .build()
        .map_err(|e| match e {
            regex::Error::CompiledTooBig(_) => {
                "it takes more than 256 KiB when compiled".to_owned()
            }
            e => {
                // The crate shows the expression with a mark beneath; the last line has the reason.
                let text = e.to_string();
                let reason = text.lines().last().unwrap_or_default();
                reason.trim_start_matches("error: ").to_owned()
            }
        })
}

fn kind(text: &str) -> Option<FileKind> {
    Some(match text {
        "--" => FileKind::Regular,
        "-d" => FileKind::Directory,
        "-l" => FileKind::Symlink,
        "-c" => FileKind::CharDevice,
        "-b" => FileKind::BlockDevice,
        "-p" => FileKind::Fifo,
        "-s" => FileKind::Socket,
        _ => return None,
    })
}

/// The files that [`FileContexts::read`] reads beside the one that is named, where they are there.
#[must_use]
pub fn companions(path: &Path) -> [PathBuf; 4] {
    ["homedirs", "local", "subs", "subs_dist"].map(|end| {
        let mut name = path.as_os_str().to_owned();
        name.push(".");
        name.push(end);
        name.into()
    })
}

/// A file's text; `None` when there is none.
fn text(path: &Path) -> Result<Option<String>> {
    let fail = |e: std::io::Error| Error::from(e).at(path);
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail(e)),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(fail)?;
    let invalid = |what: &str| Error::new(ErrorKind::Invalid, what).at(path);
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(invalid("longer than 16 MiB"));
    }
    if bytes.starts_with(&COMPILED_MAGIC) {
        return Err(invalid(
            "a compiled file_contexts; the text that it was made from is needed",
        ));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| invalid("it is not UTF-8 text"))
}

/// The lines that say something, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let line = line.trim_start();
        let fields: Vec<&str> = line.split_ascii_whitespace().take(4).collect();
        (!fields.is_empty() && !line.starts_with('#')).then_some((index + 1, fields))
    })
}

impl FileContexts {
    /// Reads a `file_contexts` and its companions.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for what is none, naming file and line. Expressions are looked at when they are needed:
    /// [`FileContexts::label`].
    pub fn read(path: &Path) -> Result<Self> {
        let mut contexts = FileContexts::default();
        let missing = || Error::new(ErrorKind::NotFound, "no such file").at(path);
        let main = text(path)?.ok_or_else(missing)?;
        contexts.add(0, &main).map_err(|e| e.at(path))?;
        let [homedirs, local, subs, subs_dist] = companions(path);
        for (index, path) in [homedirs, local].iter().enumerate() {
            if let Some(text) = text(path)? {
                contexts.add(index + 1, &text).map_err(|e| e.at(path))?;
            }
        }
        for (index, path) in [subs, subs_dist].iter().enumerate() {
            if let Some(text) = text(path)? {
                contexts.substitute(index, &text).map_err(|e| e.at(path))?;
            }
        }
        Ok(contexts)
    }

    /// From the text of a `file_contexts`.
    ///
    /// # Errors
    /// As [`FileContexts::read`].
    pub fn parse(text: &str) -> Result<Self> {
        let mut contexts = FileContexts::default();
        contexts.add(0, text)?;
        Ok(contexts)
    }

    /// Adds the rules of one file. Of several that match a path, later ones and those of later files count; `file` is its number.
    fn add(&mut self, file: usize, text: &str) -> Result<()> {
        for (line, fields) in lines(text) {
            let invalid =
                |what: &str| Error::new(ErrorKind::Invalid, format!("line {line}: {what}"));
            let (expression, kind, label) = match fields[..] {
                [expression, label] => (expression, None, label),
                [expression, mark, label] => {
                    let kind = kind(mark)
                        .ok_or_else(|| invalid("the kind is none of -- -d -l -c -b -p -s"))?;
                    (expression, Some(kind), label)
                }
                _ => return Err(invalid("not of the form EXPRESSION [KIND] LABEL")),
            };
            if label.len() > LABEL_BYTES_MAX || label.contains('\0') {
                return Err(invalid(
                    "the label is longer than 4096 bytes, or has a zero byte",
                ));
            }
            if self.specs.len() == SPECS_MAX {
                return Err(invalid("more than 32768 lines"));
            }
            let index = self.specs.len();
            let literal = literal(expression);
            if literal.whole {
                let specs = self.exact.entry(literal.prefix.clone()).or_default();
                specs.push(index);
            } else if let Some(stem) = stem(&literal.prefix) {
                self.by_stem.entry(stem.to_vec()).or_default().push(index);
            } else {
                self.without_stem.push(index);
            }
            self.specs.push(Spec {
                place: (file, line),
                expression: expression.to_owned(),
                prefix: literal.prefix,
                kind,
                label: (label != "<<none>>").then(|| label.as_bytes().to_vec()),
                compiled: OnceLock::new(),
            });
        }
        Ok(())
    }

    fn substitute(&mut self, index: usize, text: &str) -> Result<()> {
        for (line, fields) in lines(text) {
            let [from, to] = fields[..] else {
                let what = format!("line {line}: not of the form PATH PATH");
                return Err(Error::new(ErrorKind::Invalid, what));
            };
            let pair = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
            self.substitutions[index].push(pair);
        }
        Ok(())
    }

    /// The label of a file: its path begins with a slash and ends with none, except the root. `None` when no line matches,
    /// and when the one that counts says `<<none>>`.
    ///
    /// # Errors
    /// `Invalid` for an expression that cannot be used, naming its line.
    pub fn label(&self, path: &[u8], kind: FileKind) -> Result<Option<&[u8]>> {
        self.find(path, kind, &mut Meter::new(&unheard))
    }

    /// As [`FileContexts::label`]; `meter` can stop it between expressions.
    pub(crate) fn find(
        &self,
        path: &[u8],
        kind: FileKind,
        meter: &mut Meter<'_>,
    ) -> Result<Option<&[u8]>> {
        let mut path = std::borrow::Cow::Borrowed(path);
        for list in &self.substitutions {
            let found = list.iter().rev().find_map(|(from, to)| {
                let rest = path.strip_prefix(&from[..])?;
                (rest.is_empty() || rest.starts_with(b"/")).then(|| match (&to[..], rest) {
                    (b"/", b"") => b"/".to_vec(),
                    (b"/", rest) => rest.to_vec(),
                    (to, rest) => [to, rest].concat(),
                })
            });
            if let Some(found) = found {
                path = found.into();
            }
        }
        let suits = |spec: &Spec| spec.kind.is_none_or(|wanted| wanted == kind);
        let exact = self.exact.get(&path[..]).map_or(&[][..], Vec::as_slice);
        for index in exact.iter().rev() {
            if suits(&self.specs[*index]) {
                return Ok(self.specs[*index].label.as_deref());
            }
        }
        let stem = stem(&path).and_then(|stem| self.by_stem.get(stem));
        let mut with = stem.map_or(&[][..], Vec::as_slice);
        let mut without = &self.without_stem[..];
        // Both ascend; the last line first.
        loop {
            let from = match (with.last(), without.last()) {
                (None, None) => return Ok(None),
                (Some(a), Some(b)) if a > b => &mut with,
                (Some(_), None) => &mut with,
                _ => &mut without,
            };
            let Some((index, rest)) = from.split_last() else {
                return Ok(None);
            };
            *from = rest;
            let spec = &self.specs[*index];
            if suits(spec) && path.starts_with(&spec.prefix) {
                let compiled = spec.compiled.get().is_some();
                meter.read(match compiled {
                    true => path.len() as u64,
                    false => COMPILED_AS_BYTES,
                })?;
                if spec.matches(&path)? {
                    return Ok(spec.label.as_deref());
                }
            }
        }
    }
}

/// The first component of a path, if another one follows.
fn stem(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().skip(1).position(|b| *b == b'/')?;
    (path[0] == b'/').then(|| &path[..=end])
}

impl Spec {
    fn matches(&self, path: &[u8]) -> Result<bool> {
        match self.compiled.get_or_init(|| compile(&self.expression)) {
            Ok(regex) => Ok(regex.is_match(path)),
            Err(why) => {
                let shown: String = self.expression.chars().take(80).collect();
                let (file, line) = self.place;
                let file = ["", "homedirs, ", "local, "][file];
                Err(Error::new(
                    ErrorKind::Invalid,
                    format!("file contexts: {file}line {line}: `{shown}`: {why}"),
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(contexts: &FileContexts, path: &str, kind: FileKind) -> String {
        let found = contexts.label(path.as_bytes(), kind).expect("good lines");
        found.map_or_else(String::new, |l| String::from_utf8_lossy(l).into_owned())
    }

    #[test]
    fn the_last_line_counts_and_exact_ones_before_all() {
        let contexts = FileContexts::parse(
            "# comment\n\
             /etc/exact  exact\n\
             /.*   default\n\
             /etc(/.*)?  etc\n\
             /etc/a.*  -d  directory\n\
             /etc/a.*  --  file\n\
             \t/etc/b\\.c  escaped\n\
             /etc/none  <<none>>\n\
             /dev/[^/]+ -c device\n\
             /x/a|/y/b either\n\
             /x/[[:digit:]]+[[&~]? class\n\
             / -d root\n",
        )
        .expect("contexts");
        use FileKind::{CharDevice, Directory, Regular};
        for (path, kind, expected) in [
            ("/", Directory, "root"),
            ("/etc", Directory, "etc"),
            ("/etc/x", Regular, "etc"),
            ("/etc/exact", Regular, "exact"),
            ("/etc/abc", Directory, "directory"),
            ("/etc/abc", Regular, "file"),
            ("/etc/abc", CharDevice, "etc"),
            ("/etc/b.c", Regular, "escaped"),
            ("/etc/bxc", Regular, "etc"),
            ("/etc/none", Regular, ""),
            ("/etcx", Regular, "default"),
            ("/dev/null", CharDevice, "device"),
            ("/dev/null", Regular, "default"),
            ("/dev/a/null", CharDevice, "default"),
            ("/x/a", Regular, "either"),
            ("/y/b", Regular, "either"),
            ("/x/ab", Regular, "default"),
            ("/x/12[", Regular, "class"),
            ("/x/12&", Regular, "class"),
            ("/x/12]", Regular, "default"),
            ("/new\nline", Regular, "default"),
        ] {
            assert_eq!(label(&contexts, path, kind), expected, "{path} {kind:?}");
        }
        let none = FileContexts::parse("/a x\n").expect("contexts");
        assert_eq!(label(&none, "/b", Regular), "");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, why) in [
            ("/a\n", "line 1: not of the form"),
            ("\n/a -x label\n", "line 2: the kind"),
            ("/a -- label more\n", "line 1: not of the form"),
        ] {
            let e = FileContexts::parse(text).expect_err(text);
            assert!(e.to_string().contains(why), "{text}: {e}");
        }
        for (expression, why) in [
            ("/(?!a).*", "look-around"),
            (r"/(.)\1", "backreference"),
            (
                "/(((((((((((a{50}){50}){50}){50}){50}){50}){50}){50}){50}){50}){50})",
                "256 KiB",
            ),
            ("/[", "unclosed"),
            ("/a(", "unclosed"),
        ] {
            let contexts = FileContexts::parse(&format!("{expression} x\n")).expect("contexts");
            let e = contexts
                .label(b"/a", FileKind::Regular)
                .expect_err(expression);
            assert_eq!(e.kind(), ErrorKind::Invalid);
            let text = e.to_string();
            assert!(
                text.contains("line 1") && text.contains(why),
                "{expression}: {e}"
            );
        }
        let many = "/a x\n".repeat(SPECS_MAX + 1);
        let e = FileContexts::parse(&many).expect_err("too many");
        assert!(e.to_string().contains("line 32769"), "{e}");
    }
}
