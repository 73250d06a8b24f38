//! The works of others in the program: whether their licences go with ours, and one file with all that the licences ask to be given on.
//! Made from what cargo has downloaded, without a network.

use crate::tools::{cargo_home, cargo_path, compiler, host, output, output_in};
use crate::workspace;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Licences that go with MIT OR Apache-2.0 in a program.
const LICENCES: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "BSL-1.0",
    "Unlicense",
    "CC0-1.0",
    "Unicode-3.0",
    "CDLA-Permissive-2.0",
];

/// Crates under other licences that only a test uses. Nothing that is shipped contains them.
const OF_TESTS: &[(&str, &str)] = &[
    // Generates the C header, which a test compares.
    ("cbindgen", "MPL-2.0"),
];

/// Crates of others whose licences give no choice from the list.
pub(crate) fn refused(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let foreign = packages.iter().filter(|p| p["source"].is_string());
    let of_tests = |p: &&Value| {
        OF_TESTS.contains(&(
            p["name"].as_str().unwrap_or_default(),
            p["license"].as_str().unwrap_or_default(),
        ))
    };
    foreign
        .filter(|p| !of_tests(p))
        .filter(|p| !p["license"].as_str().is_some_and(is_allowed))
        .map(|p| {
            let text = |key: &str| p[key].as_str().unwrap_or("none").to_owned();
            format!(
                "{} {}: licence {}",
                text("name"),
                text("version"),
                text("license")
            )
        })
        .collect()
}

/// Whether an SPDX expression can be met by licences of the list. `/` is what crates wrote for OR before.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let mut words = Vec::new();
    for word in expression
        .replace('(', " ( ")
        .replace(')', " ) ")
        .split_whitespace()
    {
        words.push(word.to_owned());
    }
    let mut at = 0;
    any_of(&words, &mut at) == Some(true) && at == words.len()
}

/// `A OR B`, where AND binds more tightly. `None` when that is no expression.
fn any_of(words: &[String], at: &mut usize) -> Option<bool> {
    let mut met = all_of(words, at)?;
    while words.get(*at).is_some_and(|w| w == "OR") {
        *at += 1;
        met |= all_of(words, at)?;
    }
    Some(met)
}

fn all_of(words: &[String], at: &mut usize) -> Option<bool> {
    let mut met = one_of(words, at)?;
    while words.get(*at).is_some_and(|w| w == "AND") {
        *at += 1;
        met &= one_of(words, at)?;
    }
    Some(met)
}

fn one_of(words: &[String], at: &mut usize) -> Option<bool> {
    let word = words.get(*at)?;
    *at += 1;
    if word == "(" {
        let met = any_of(words, at)?;
        words.get(*at).filter(|w| *w == ")")?;
        *at += 1;
        return Some(met);
    }
    let mut name = word.clone();
    if words.get(*at).is_some_and(|w| w == "WITH") {
        name = format!("{name} WITH {}", words.get(*at + 1)?);
        *at += 2;
    }
    Some(LICENCES.contains(&name.as_str()))
}

const USAGE: &str = "usage: cargo xtask licences [--target TARGET] OUTPUT";

/// Writes [`notices`] of the program for a target, or for this host.
pub(crate) fn run(args: &[String]) -> ExitCode {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let (target, to) = match words[..] {
        ["--target", target, to] => (Ok(target.to_owned()), to),
        [to] if !to.starts_with('-') => (host(), to),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let notices = |target: String| notices(&target, &Sources::here());
    let written = target.and_then(notices).and_then(|text| {
        let path = workspace().join(to);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all);
        made.and_then(|()| fs::write(&path, text))
            .map_err(|e| format!("{}: {e}", path.display()))
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(told) => {
            eprintln!("xtask licences: {told}");
            ExitCode::FAILURE
        }
    }
}

/// Texts without repetition, numbered from one in the order of their first use.
#[derive(Default)]
struct Texts {
    /// Each with what it is compared by: its words.
    known: Vec<(String, String)>,
}

impl Texts {
    /// The number of this text. Other line ends and another indentation make no other text.
    fn number(&mut self, text: &str) -> usize {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let at = self.known.iter().position(|(known, _)| *known == words);
        let at = at.unwrap_or_else(|| {
            let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
            let text = lines.join("\n").trim_matches('\n').to_owned();
            self.known.push((words, text));
            self.known.len() - 1
        });
        at + 1
    }

    fn numbers(&mut self, texts: &[String]) -> String {
        let numbers: BTreeSet<usize> = texts.iter().map(|text| self.number(text)).collect();
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        numbers.join(", ")
    }
}

/// Where the program's source is, and what cargo has downloaded for it.
pub(crate) struct Sources {
    pub(crate) workspace: PathBuf,
    pub(crate) cargo_home: PathBuf,
}

impl Sources {
    fn here() -> Self {
        Sources {
            workspace: workspace(),
            cargo_home: cargo_home(),
        }
    }

    fn cargo(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(cargo_path());
        command.args(args).env("CARGO_HOME", &self.cargo_home);
        output_in(&mut command, &self.workspace)
    }

    fn apache(&self) -> Result<String, String> {
        read(&self.workspace.join("LICENSE-APACHE"))
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// One file of text: each work of others that is linked into the program for this target, its version, its licence, and the texts that come with it.
///
/// # Errors
/// A work has no text and no licence whose text is known, or cargo or the compiler do not say what is needed.
pub(crate) fn notices(target: &str, from: &Sources) -> Result<String, String> {
    let mut texts = Texts::default();
    let mut list = String::new();
    let (linked, metadata) = (linked(target, from)?, metadata(target, from)?);
    let apache = from.apache()?;
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata: no packages")?;
    for (name, version) in &linked {
        let package = packages
            .iter()
            .find(|p| p["name"] == **name && p["version"] == **version);
        let package = package.ok_or_else(|| format!("cargo metadata: no {name} {version}"))?;
        if !package["source"].is_string() {
            // Our own.
            continue;
        }
        let said = |key: &str| package[key].as_str().unwrap_or_default();
        let dir = Path::new(said("manifest_path"))
            .parent()
            .unwrap_or(Path::new(""));
        let shipped = texts_of(dir, package["license_file"].as_str());
        let (shipped, note) = chosen(shipped, said("license"), &apache)
            .map_err(|e| format!("{name} {version}: {e}"))?;
        let numbers = texts.numbers(&shipped);
        entry(
            &mut list,
            &format!("{name} {version}"),
            said("license"),
            &format!("{numbers}{note}"),
            said("repository"),
        );
    }
    let sysroot = PathBuf::from(output(Command::new("rustc").args(["--print", "sysroot"]))?.trim());
    standard_library(target, &sysroot, &apache, &mut list, &mut texts)?;
    if target.ends_with("-musl") {
        let text = fs::read_to_string(MUSL)
            .map_err(|e| format!("{MUSL}: {e}: it is in Debian's package musl"))?;
        let number = texts.number(&text).to_string();
        entry(
            &mut list,
            "musl, the C library",
            "MIT and others",
            &number,
            "https://musl.libc.org",
        );
    }
    let mut all = format!("{HEAD}{list}");
    for (at, (_, text)) in texts.known.iter().enumerate() {
        let rule = "-".repeat(72);
        let _ = write!(all, "\n{rule}\nText {}\n{rule}\n\n{text}\n", at + 1);
    }
    Ok(all)
}

const HEAD: &str = "\
The program blockwright is licensed under MIT or Apache-2.0. It contains the
following works of others. Where a licence gives a choice that includes one of
the GNU licences, the other one was chosen, and the GNU text is left out.
";

/// What Debian says of musl. The static program has musl from Rust's toolchain.
const MUSL: &str = "/usr/share/doc/musl/copyright";

fn entry(list: &mut String, name: &str, licence: &str, texts: &str, place: &str) {
    let _ = write!(list, "\n{name}\n  licence: {licence}\n  texts: {texts}\n");
    if !place.is_empty() {
        let _ = writeln!(list, "  source: {place}");
    }
}

/// The texts that a crate's licence is shown by, and a note. Apache-2.0 needs no name in it, so it stands in for a text that a crate forgot.
fn chosen(
    shipped: Vec<String>,
    licence: &str,
    apache: &str,
) -> Result<(Vec<String>, &'static str), String> {
    if !shipped.is_empty() {
        return Ok((shipped, ""));
    }
    if !["Apache-2.0", "MIT OR Apache-2.0", "Apache-2.0 OR MIT"].contains(&licence) {
        return Err(format!("it ships no text of its licence, {licence}"));
    }
    Ok((vec![apache.to_owned()], " (its source has none)"))
}

/// Name and version of each crate that is linked into the program: no build script, no procedural macro.
fn linked(target: &str, from: &Sources) -> Result<BTreeSet<(String, String)>, String> {
    let edges = ["--edges", "normal,no-proc-macro"];
    let form = ["--prefix", "none", "--no-dedupe", "--format", "{p}"];
    let of = ["tree", "--package", "blockwright-cli", "--target", target];
    let listed = from.cargo(&[&of[..], &edges, &form].concat())?;
    let pair = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        Some((name, words.next()?.strip_prefix('v')?.to_owned()))
    };
    Ok(listed.lines().filter_map(pair).collect())
}

fn metadata(target: &str, from: &Sources) -> Result<Value, String> {
    let words = [
        "metadata",
        "--format-version",
        "1",
        "--filter-platform",
        target,
    ];
    serde_json::from_str(&from.cargo(&words)?).map_err(|e| format!("cargo metadata: {e}"))
}

/// The texts of licences in a crate's folder and below, without those of the GNU licences.
fn texts_of(dir: &Path, named: Option<&str>) -> Vec<String> {
    let mut files: Vec<PathBuf> = named.map(|name| dir.join(name)).into_iter().collect();
    licence_files(dir, &mut files);
    files.sort();
    files.dedup();
    let texts = files.iter().filter_map(|file| fs::read(file).ok());
    let texts = texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    texts
        .filter(|text| !text.trim().is_empty() && !is_gnu(text))
        .collect()
}

fn licence_files(dir: &Path, files: &mut Vec<PathBuf>) {
    const BEGINNINGS: &[&str] = &[
        "LICENSE",
        "LICENCE",
        "UNLICENSE",
        "COPYING",
        "COPYRIGHT",
        "NOTICE",
    ];
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_code = path.extension().is_some_and(|e| {
            ["rs", "sh", "py", "c", "h", "toml"]
                .iter()
                .any(|code| e == *code)
        });
        if path.is_dir() {
            licence_files(&path, files);
        } else if !is_code
            && BEGINNINGS
                .iter()
                .any(|beginning| name.starts_with(beginning))
        {
            files.push(path);
        }
    }
}

fn is_gnu(text: &str) -> bool {
    let title = text.lines().find(|line| !line.trim().is_empty());
    title.is_some_and(|line| line.trim_start().to_uppercase().starts_with("GNU "))
}

/// Crates in Rust's standard library whose notices its page does not have. Their licences give a choice that includes Apache-2.0, or ask for nothing.
const STD_OTHERS: &[(&str, &str)] = &[
    ("addr2line", "Apache-2.0 OR MIT"),
    ("adler2", "0BSD OR MIT OR Apache-2.0"),
    ("memchr", "Unlicense OR MIT"),
    ("miniz_oxide", "MIT OR Zlib OR Apache-2.0"),
    ("object", "Apache-2.0 OR MIT"),
];

/// Rust's standard library and what is in it, by the page that comes with the toolchain.
///
/// # Errors
/// The toolchain lacks a page, a text or the libraries, or the page names none of them: a list without them would look whole.
fn standard_library(
    target: &str,
    sysroot: &Path,
    apache: &str,
    list: &mut String,
    texts: &mut Texts,
) -> Result<(), String> {
    let number = texts.number(apache).to_string();
    let name = format!("Rust's standard library {}", compiler("release")?);
    entry(
        list,
        &name,
        "MIT OR Apache-2.0",
        &number,
        "https://github.com/rust-lang/rust",
    );
    let with_toolchain = |path: &str| {
        let told = |e| format!("{e}: Rust's toolchains have it since 1.88");
        read(&sysroot.join("share/doc/rust").join(path)).map_err(told)
    };
    let exception = with_toolchain("licenses/LLVM-exception.txt")?;
    let llvm = format!("{number}, {}", texts.number(&exception));
    entry(
        list,
        "LLVM's compiler-rt and libunwind, in Rust's standard library",
        "Apache-2.0 WITH LLVM-exception",
        &llvm,
        "https://llvm.org",
    );
    let page = with_toolchain("COPYRIGHT-library.html")?;
    let dir = sysroot.join("lib/rustlib").join(target).join("lib");
    let libraries = fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let libraries: BTreeSet<String> = libraries
        .flatten()
        .filter_map(|e| library_name(&e.file_name().to_string_lossy()))
        .collect();
    let mut named = 0;
    for (name, licence, notices) in sections(&page) {
        let crate_name = name
            .rsplit_once('-')
            .map_or(&*name, |(name, _)| name)
            .replace('-', "_");
        if libraries.contains(&crate_name) {
            named += 1;
            let (notices, note) =
                chosen(notices, &licence, apache).map_err(|e| format!("{name}: {e}"))?;
            let numbers = texts.numbers(&notices);
            entry(
                list,
                &format!("{name}, in Rust's standard library"),
                &licence,
                &format!("{numbers}{note}"),
                "",
            );
        }
    }
    if named == 0 {
        return Err(
            "COPYRIGHT-library.html names none of the standard library's crates".to_owned(),
        );
    }
    for (name, licence) in STD_OTHERS
        .iter()
        .filter(|(name, _)| libraries.contains(*name))
    {
        let text = match licence.contains("Apache-2.0") {
            true => &*number,
            false => "none (public domain)",
        };
        entry(
            list,
            &format!("{name}, in Rust's standard library"),
            licence,
            text,
            "",
        );
    }
    Ok(())
}

/// `libgimli-b6f0df7f.rlib` is `gimli`.
fn library_name(file: &str) -> Option<String> {
    let name = file.strip_prefix("lib")?.strip_suffix(".rlib")?;
    Some(name.rsplit_once('-')?.0.to_owned())
}

/// Name with version, licence and texts of each crate on the page of notices of Rust's standard library.
fn sections(page: &str) -> Vec<(String, String, Vec<String>)> {
    let between = |text: &str, from: &str, to: &str| -> Option<String> {
        let (_, rest) = text.split_once(from)?;
        Some(unescaped(rest.split_once(to)?.0))
    };
    let section = |text: &str| {
        let name = unescaped(text.split_once("</h3>")?.0);
        let name = name
            .trim_start_matches(|c: char| !c.is_ascii_alphanumeric())
            .to_owned();
        let licence = between(text, "<b>License:</b>", "</p>")?.trim().to_owned();
        let notices = text
            .split("<pre>")
            .skip(1)
            .filter_map(|t| Some(unescaped(t.split_once("</pre>")?.0)));
        Some((
            name,
            licence,
            notices.filter(|text| !is_gnu(text)).collect(),
        ))
    };
    page.split("<h3>").skip(1).filter_map(section).collect()
}

/// HTML's escapes that the page uses.
fn unescaped(html: &str) -> String {
    let mut text = html.to_owned();
    for (escape, meaning) in [
        ("&#60;", "<"),
        ("&lt;", "<"),
        ("&#62;", ">"),
        ("&gt;", ">"),
        ("&#34;", "\""),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&#38;", "&"),
        ("&amp;", "&"),
    ] {
        text = text.replace(escape, meaning);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All crates of this host's program: each has a text, and no text is that of a licence that binds.
    #[test]
    fn the_program_names_all_that_it_contains() {
        let host = host().unwrap();
        let here = Sources::here();
        let text = notices(&host, &here).unwrap();
        let again = notices(&host, &here).unwrap();
        assert_eq!(again, text, "it is made again as it was");
        let linked = linked(&host, &here).unwrap();
        for (name, version) in &linked {
            let is_named = text.contains(&format!("\n{name} {version}\n"));
            assert_eq!(is_named, !name.starts_with("blockwright"), "{name}");
        }
        let names: Vec<&str> = linked.iter().map(|(name, _)| &**name).collect();
        // C code comes with its crate, a macro is not in the program.
        assert!(
            names.contains(&"zstd-sys") && !names.contains(&"syn"),
            "{names:?}"
        );
        for needed in [
            "For Zstandard software",
            "XZ Utils Licensing",
            "Permission is hereby granted, free of charge",
            "Rust's standard library",
        ] {
            assert!(text.contains(needed), "{needed}");
        }
        assert!(!text.contains("GNU GENERAL PUBLIC LICENSE\n"));
        assert!(!text.contains(&*workspace().to_string_lossy()));
        let mut shown = text
            .lines()
            .filter_map(|line| line.strip_prefix("  texts: "));
        assert!(shown.all(|numbers| {
            numbers.starts_with(|c: char| c.is_ascii_digit()) || numbers == "none (public domain)"
        }));
    }

    #[test]
    fn a_text_is_written_once() {
        let mut texts = Texts::default();
        assert_eq!(texts.number("\n  One\ntwo \n"), 1);
        assert_eq!(texts.number("other"), 2);
        assert_eq!(texts.number("One\r\n   two"), 1);
        assert_eq!(texts.known[0].1, "  One\ntwo");
        assert_eq!(
            texts.numbers(&["other".into(), "One two".into(), "new".into()]),
            "1, 2, 3"
        );
    }

    #[test]
    fn files_of_licences() {
        let dir = std::env::temp_dir().join(format!("bw-licences-{}", std::process::id()));
        fs::create_dir_all(dir.join("inner")).unwrap();
        for (file, text) in [
            ("License-MIT.txt", "mit"),
            ("inner/COPYING", "copying"),
            ("inner/COPYING.GPLv2", "\n   GNU GENERAL PUBLIC LICENSE\n"),
            ("license.rs", "code"),
            ("README.md", "readme"),
            ("terms", "named"),
            ("NOTICE", " \n"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        let found: BTreeSet<String> = texts_of(&dir, Some("terms")).into_iter().collect();
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["copying", "mit", "named"]
        );
        fs::remove_dir_all(&dir).unwrap();
        assert!(chosen(vec![], "MIT OR Apache-2.0", "text").is_ok());
        assert!(chosen(vec![], "MIT", "text").is_err());
    }

    #[test]
    fn the_page_of_the_standard_library() {
        let page = "<h3>\u{1f4e6} cfg-if-1.0.4</h3>\n<p><b>License:</b> MIT OR Apache-2.0</p>\n<pre>\n&#34;Software&#34; &#60;a@b&#62;\n</pre><pre>two</pre>\n<h3>x-1.0.0</h3><p><b>License:</b> MPL-2.0</p>";
        let found = sections(page);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].0, "cfg-if-1.0.4");
        assert_eq!(found[0].2, ["\n\"Software\" <a@b>\n", "two"]);
        assert_eq!((&*found[1].1, found[1].2.len()), ("MPL-2.0", 0));
        assert_eq!(
            library_name("libcfg_if-473c.rlib").as_deref(),
            Some("cfg_if")
        );
        assert_eq!(library_name("self-contained"), None);
    }

    /// Each part that a toolchain must have is missed when it is not there.
    #[test]
    fn a_toolchain_without_notices_is_an_error() {
        let dir = std::env::temp_dir().join(format!("bw-sysroot-{}", std::process::id()));
        let page = "<h3>gimli-0.1.0</h3><p><b>License:</b> MIT</p><pre>gimli's</pre>";
        let parts = [
            ("share/doc/rust/licenses/LLVM-exception.txt", "an exception"),
            ("share/doc/rust/COPYRIGHT-library.html", page),
            ("lib/rustlib/t/lib/libgimli-1.rlib", ""),
        ];
        let made = |without: Option<usize>, page: Option<&str>| {
            let _ = fs::remove_dir_all(&dir);
            for (at, (path, text)) in parts.iter().enumerate() {
                let path = dir.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                if without != Some(at) {
                    let text = page.filter(|_| at == 1).unwrap_or(text);
                    fs::write(path, text).unwrap();
                }
            }
            let (mut list, mut texts) = (String::new(), Texts::default());
            standard_library("t", &dir, "apache", &mut list, &mut texts).map(|()| list)
        };
        let list = made(None, None).unwrap();
        assert!(list.contains("gimli-0.1.0, in Rust's") && list.contains("texts: 1, 2"));
        for (at, (path, _)) in parts.iter().enumerate() {
            let told = made(Some(at), None).unwrap_err();
            let named = path.rsplit('/').next().unwrap();
            assert!(told.contains(named) || at == 2, "{path}: {told}");
        }
        assert!(made(None, Some("another page")).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn expressions_of_licences() {
        for free in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-2.0 OR MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
            "Zlib OR (Apache-2.0 AND ISC)",
        ] {
            assert!(is_allowed(free), "{free}");
        }
        for bound in [
            "",
            "GPL-2.0",
            "MIT AND GPL-2.0",
            "(MIT OR GPL-3.0) AND LGPL-2.1",
            "MIT OR",
            "(MIT",
            "MIT Apache-2.0",
            "Apache-2.0 WITH Classpath-exception-2.0",
        ] {
            assert!(!is_allowed(bound), "{bound}");
        }
    }

    #[test]
    fn a_licence_that_binds_is_named() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "ours", "version": "1.0.0", "license": null, "source": null },
            { "name": "good", "version": "1.0.0", "license": "MIT", "source": "registry" },
            { "name": "bad", "version": "2.0.0", "license": "GPL-3.0", "source": "registry" },
            { "name": "odd", "version": "3.0.0", "license": null, "source": "registry" },
        ]});
        assert_eq!(
            refused(&metadata),
            ["bad 2.0.0: licence GPL-3.0", "odd 3.0.0: licence none"]
        );
    }
}
