//! Lines become words: quotes, escapes, comments, patterns. Paths become absolute.

/// A word of a line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Word {
    /// The word without its quotes.
    pub text: String,
    /// The same as a pattern, if it has `*`, `?` or `[` outside of quotes.
    pub pattern: Option<String>,
}

/// A line, as far as it goes.
#[derive(Debug, Default)]
struct Line {
    /// The words. The last one may be incomplete.
    words: Vec<Word>,
    /// The quote that is open at the end, or a backslash.
    open: Option<char>,
}

/// Splits a line.
fn scan(line: &str) -> Line {
    let mut out = Line::default();
    let mut chars = line.chars().peekable();
    let mut word: Option<(Word, String, bool)> = None;
    while let Some(c) = chars.next() {
        if c.is_whitespace() {
            finish(&mut out, &mut word);
            continue;
        }
        if c == '#' && word.is_none() {
            break;
        }
        let (now, pattern, wild) = word.get_or_insert_default();
        let mut literal = |c: char, now: &mut Word| {
            now.text.push(c);
            if "*?[]{}\\".contains(c) {
                pattern.push('\\');
            }
            pattern.push(c);
        };
        match c {
            '\\' => match chars.next() {
                Some(c) => literal(c, now),
                None => out.open = Some('\\'),
            },
            '\'' | '"' => {
                out.open = Some(c);
                while let Some(inner) = chars.next() {
                    if inner == c {
                        out.open = None;
                        break;
                    }
                    let escapes = c == '"' && inner == '\\';
                    let next = chars.peek().copied();
                    match next.filter(|next| escapes && "\"\\".contains(*next)) {
                        Some(next) => {
                            chars.next();
                            literal(next, now);
                        }
                        None => literal(inner, now),
                    }
                }
            }
            '*' | '?' | '[' | ']' => {
                *wild |= c != ']';
                now.text.push(c);
                pattern.push(c);
            }
            c => literal(c, now),
        }
    }
    finish(&mut out, &mut word);
    out
}

fn finish(out: &mut Line, word: &mut Option<(Word, String, bool)>) {
    if let Some((mut word, pattern, wild)) = word.take() {
        word.pattern = wild.then_some(pattern);
        out.words.push(word);
    }
}

/// The words of a whole line.
///
/// # Errors
/// A quote that is not closed.
pub fn split(line: &str) -> Result<Vec<Word>, String> {
    let line = scan(line);
    match line.open {
        None => Ok(line.words),
        Some('\\') => Err("nothing follows the backslash at the end".to_owned()),
        Some(quote) => Err(format!("the quote {quote} is not closed")),
    }
}

/// A path as an absolute one. `.` and `..` stay: commands refuse some of them, and a `..` behind a link is not the link's own parent.
/// A slash at the end stays.
pub fn absolute(directory: &str, path: &str) -> String {
    let start = if path.starts_with('/') { "" } else { directory };
    let names = start.split('/').chain(path.split('/'));
    let mut out = String::new();
    for name in names.filter(|name| !name.is_empty()) {
        out.push('/');
        out.push_str(name);
    }
    if path.ends_with('/') || out.is_empty() {
        out.push('/');
    }
    out
}

/// An absolute path without `.`, `..` and a slash at its end, for `cd`: as in sh, `..` goes back the way that was taken.
pub fn normalised(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        split(line).unwrap().into_iter().map(|w| w.text).collect()
    }

    #[test]
    fn quotes_and_escapes() {
        assert_eq!(
            texts(r#"a  'b c' "d \" e"f g\ h # rest"#),
            ["a", "b c", "d \" ef", "g h"]
        );
        assert_eq!(texts("'' a#b"), ["", "a#b"]);
        assert_eq!(texts(r#""a\n""#), [r"a\n"]);
        assert!(texts("  # nothing").is_empty());
        assert!(split("a 'b").is_err() && split("a \\").is_err());
    }

    #[test]
    fn patterns_are_what_is_outside_of_quotes() {
        let words = split(r#"a* 'b*' c\* "d?"? [x]"#).unwrap();
        let patterns: Vec<_> = words.iter().map(|w| w.pattern.as_deref()).collect();
        assert_eq!(
            patterns,
            [Some("a*"), None, None, Some(r"d\??"), Some("[x]")]
        );
    }

    #[test]
    fn paths_become_absolute() {
        for (directory, path, expected) in [
            ("/", "etc", "/etc"),
            ("/etc", "../usr//./lib/", "/etc/../usr/./lib/"),
            ("/a/b", "..", "/a/b/.."),
            ("/a", "/x//y", "/x/y"),
            ("/a", "", "/a"),
            ("/a", "/", "/"),
        ] {
            assert_eq!(absolute(directory, path), expected, "{directory} {path}");
        }
        for (path, expected) in [
            ("/etc/../usr/./lib/", "/usr/lib"),
            ("/a/b/../../..", "/"),
            ("/", "/"),
        ] {
            assert_eq!(normalised(path), expected, "{path}");
        }
    }
}
