//! The house's rule against import circles: inside a crate, files import each other in one direction only.
//!
//! A parent and the modules inside it may import each other, because they are one part in several files. Test modules are not
//! looked at. A circle is told from the text of `use` declarations and of paths that begin with `crate::` or `super::`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms that still have circles. A room leaves this list when its last circle is gone; none may be added.
pub(crate) const EXCUSED: &[&str] = &["vfs"];

/// A module's path inside its crate; the crate's root is empty.
type Module = Vec<String>;

/// The circles among a crate's files: each as the modules that can reach each other, named from the crate's root.
pub(crate) fn circles(src: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut texts = BTreeMap::new();
    for file in files {
        if let Some(module) = module_of(src, file) {
            texts.insert(module, fs::read_to_string(file).unwrap_or_default());
        }
    }
    find(&texts)
}

fn module_of(src: &Path, file: &Path) -> Option<Module> {
    let inside = file.strip_prefix(src).ok()?.with_extension("");
    let mut module: Module = inside
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if module.first().is_some_and(|first| first == "bin") {
        return None;
    }
    let last = module.last()?;
    if last == "mod" || (module.len() == 1 && (last == "lib" || last == "main")) {
        module.pop();
    }
    Some(module)
}

fn find(texts: &BTreeMap<Module, String>) -> Vec<String> {
    let mut edges: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for (module, text) in texts {
        for path in imports(module, text) {
            let target = (0..=path.len())
                .rev()
                .find_map(|n| texts.get_key_value(&path[..n]).map(|(key, _)| key));
            let Some(target) = target else { continue };
            // A parent and what is inside it are one part.
            if !target.starts_with(module) && !module.starts_with(target) {
                edges.entry(module).or_default().insert(target);
            }
        }
    }
    let reached = |from: &Module| {
        let mut seen: BTreeSet<&Module> = BTreeSet::new();
        let mut next: Vec<&Module> = edges.get(from).into_iter().flatten().copied().collect();
        while let Some(module) = next.pop() {
            if seen.insert(module) {
                next.extend(edges.get(module).into_iter().flatten());
            }
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<&Module>> =
        texts.keys().map(|m| (m, reached(m))).collect();
    let mut told = BTreeSet::new();
    let mut found = Vec::new();
    for (module, targets) in &reach {
        if !targets.contains(module) || told.contains(module) {
            continue;
        }
        let circle: Vec<&Module> = targets
            .iter()
            .copied()
            .filter(|other| reach[other].contains(module))
            .collect();
        let names: Vec<String> = circle.iter().map(|m| m.join("::")).collect();
        found.push(names.join(", "));
        told.extend(circle);
    }
    found
}

/// The absolute paths that a module's text names.
fn imports(module: &Module, text: &str) -> Vec<Module> {
    let code: Vec<&str> = text
        .lines()
        .take_while(|line| *line != "#[cfg(test)]" && *line != "mod tests;")
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let code = code.join("\n");
    let mut paths = Vec::new();
    let word = |c: char| c.is_alphanumeric() || c == '_';
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| word(c) || c == ':' || c == '$') {
                continue;
            }
            expand(&code[at..], &mut Vec::new(), &mut paths);
        }
    }
    paths
        .into_iter()
        .filter_map(|path| absolute(module, &path))
        .collect()
}

/// Adds the paths of a use tree, which may end in a list in braces. Returns how many bytes it takes.
fn expand(tree: &str, before: &mut Vec<String>, paths: &mut Vec<Module>) -> usize {
    let depth = before.len();
    let mut at = 0;
    loop {
        let rest = &tree[at..];
        let name = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        if name > 0 {
            before.push(rest[..name].to_owned());
            at += name;
        }
        let rest = &tree[at..];
        if let Some(more) = rest.strip_prefix("::") {
            at += 2;
            if !more.starts_with('{') {
                if more.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                    continue;
                }
                break;
            }
            at += 1;
            while at < tree.len() {
                let rest = &tree[at..];
                let skip = rest
                    .find(|c: char| !c.is_whitespace() && c != ',')
                    .unwrap_or(rest.len());
                at += skip;
                if tree[at..].starts_with('}') {
                    at += 1;
                    break;
                }
                let used = expand(&tree[at..], before, paths);
                // `as name`, and whatever is no path.
                let rest = &tree[at + used..];
                at += used + rest.find([',', '}']).unwrap_or(rest.len());
            }
            before.truncate(depth);
            return at;
        }
        break;
    }
    paths.push(before.clone());
    before.truncate(depth);
    at
}

/// From the crate's root.
fn absolute(module: &Module, path: &[String]) -> Option<Module> {
    let mut base = module.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        _ => {
            while rest.first().is_some_and(|first| first == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
    }
    base.extend(rest.iter().filter(|name| *name != "self").cloned());
    Some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let texts = files.iter().map(|(file, text)| {
            let module = module_of(Path::new("src"), &Path::new("src").join(file));
            (module.expect("a module"), (*text).to_owned())
        });
        find(&texts.collect())
    }

    #[test]
    fn a_circle_is_found_however_it_is_written() {
        for text in [
            "use crate::b::B;",
            "use super::b;",
            "use crate::{c, b::{self, B}};",
            "use crate::c::{\n    X,\n};\nfn f() -> crate::b::B {}",
        ] {
            let found = circles_of(&[
                ("a.rs", text),
                ("b.rs", "use crate::c::C;"),
                ("c.rs", "use crate::a::A;"),
                ("d.rs", "use crate::a::A;"),
            ]);
            assert!(
                found == ["a, b, c"] || found == ["a, c", "a, b, c"],
                "{text}: {found:?}"
            );
        }
    }

    #[test]
    fn parents_tests_and_comments_make_no_circle() {
        let found = circles_of(&[
            ("lib.rs", "pub use a::A;"),
            ("a/mod.rs", "use crate::b::B;\nuse inner::I;"),
            ("a/inner.rs", "use super::A;\nuse crate::Error;"),
            (
                "b.rs",
                "//! See crate::a.\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
            ),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
