//! The house's rule against import circles: inside a crate, files import each other in one direction only.
//!
//! A parent and the modules inside it may import each other, because they are one part in several files. Modules and other
//! items that tests alone have are not looked at. A circle is found in the text of `use` declarations and of paths that begin with `crate::` or `super::`. A name that
//! a module takes from another one (`pub use`, as in `lib.rs`, but also `use`) counts as the file that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

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
    let codes: BTreeMap<&Module, String> = texts.iter().map(|(m, t)| (m, code(t))).collect();
    let borrowed: BTreeMap<(Module, String), Module> = (codes.iter())
        .flat_map(|(module, code)| borrowed_names(module, code, texts))
        .collect();
    for (&module, code) in &codes {
        for path in imports(module, code) {
            let path = defined_at(path, &borrowed, texts);
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

/// A module's text without its comments and without the items that only tests have.
fn code(text: &str) -> String {
    let mut code = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let condition = line
            .strip_prefix("#[cfg(")
            .and_then(|l| l.strip_suffix(")]"));
        if condition.is_some_and(implies_test) {
            // The item ends at a semicolon or a brace, in a line that begins in the first column.
            lines.find(|line| !line.starts_with(' ') && line.ends_with([';', '}']));
            continue;
        }
        code.push(line.split("//").next().unwrap_or_default());
    }
    code.join("\n")
}

/// Whether a condition of `cfg` holds in builds of tests only.
fn implies_test(condition: &str) -> bool {
    let list = |name: &str| {
        let inside = condition.strip_prefix(name)?.strip_prefix('(')?;
        inside.strip_suffix(')')
    };
    match (list("all"), list("any")) {
        (Some(all), _) => conditions(all).any(implies_test),
        (_, Some(any)) => conditions(any).all(implies_test),
        _ => condition == "test",
    }
}

/// The conditions of a list: what commas outside of parentheses separate.
fn conditions(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        depth == 0 && c == ','
    })
    .map(str::trim)
}

/// The absolute paths that a module's code names.
fn imports(module: &Module, code: &str) -> Vec<Module> {
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
        .filter_map(|(path, _)| absolute(module, &path))
        .collect()
}

/// The names that a module takes from others of its crate by `use` at its top level, each with the absolute path that it stands for.
fn borrowed_names(
    module: &Module,
    code: &str,
    texts: &BTreeMap<Module, String>,
) -> Vec<((Module, String), Module)> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        if ["", "pub ", "pub(crate) ", "pub(super) "].contains(&&code[line..at]) {
            expand(&code[at + "use ".len()..], &mut Vec::new(), &mut paths);
        }
    }
    let mut names = Vec::new();
    for (path, name) in paths {
        let inside = path.first().is_some_and(|first| {
            let mut child = module.clone();
            child.push(first.clone());
            ["crate", "super", "self"].contains(&first.as_str()) || texts.contains_key(&child)
        });
        if let Some(target) = inside.then(|| absolute(module, &path)).flatten() {
            names.push(((module.clone(), name), target));
        }
    }
    names
}

/// The path at which a name is defined that modules may have borrowed from each other.
fn defined_at(
    mut path: Module,
    borrowed: &BTreeMap<(Module, String), Module>,
    texts: &BTreeMap<Module, String>,
) -> Module {
    // A chain of `use` is shorter than this, unless it is one that does not compile.
    for _ in 0..16 {
        let module = (0..path.len())
            .rev()
            .find(|n| texts.contains_key(&path[..*n]));
        let Some(n) = module.filter(|n| !texts.contains_key(&path[..=*n])) else {
            return path;
        };
        let Some(target) = borrowed.get(&(path[..n].to_vec(), path[n].clone())) else {
            return path;
        };
        path = target.iter().chain(&path[n + 1..]).cloned().collect();
    }
    path
}

/// Adds the paths of a use tree, which may end in a list in braces, each with its name in the module. Returns how many bytes it takes.
fn expand(tree: &str, before: &mut Vec<String>, paths: &mut Vec<(Module, String)>) -> usize {
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
    let mut last = before.iter().rev().filter(|name| *name != "self");
    let alias = tree[at..].strip_prefix(" as ").unwrap_or_default();
    let end = alias.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = match &alias[..end.unwrap_or(alias.len())] {
        "" => last.next().cloned().unwrap_or_default(),
        alias => alias.to_owned(),
    };
    paths.push((before.clone(), name));
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
    fn a_name_counts_as_the_file_that_defines_it() {
        for text in [
            "use crate::B;",
            "use crate::{Other as O, Named};",
            "fn f(x: crate::inner::B) {}",
        ] {
            let found = circles_of(&[
                (
                    "lib.rs",
                    "pub use b::{B, C as Named};\npub(crate) use b::D as Other;",
                ),
                ("a.rs", text),
                ("b.rs", "use crate::a::A;"),
                ("inner/mod.rs", "use super::B;"),
            ]);
            assert_eq!(found, ["a, b"], "{text}");
        }
    }

    #[test]
    fn a_name_from_elsewhere_makes_no_circle() {
        let found = circles_of(&[
            (
                "lib.rs",
                "pub use b::B;\npub use c::C;\nfn f() { use b::D; }",
            ),
            ("a.rs", "use crate::C;\nuse crate::D;"),
            ("b.rs", "use crate::a::A;"),
            ("c.rs", ""),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn code_behind_tests_counts() {
        for test in ["mod tests;", "mod tests {\n    use x::{a, b};\n}"] {
            let found = circles_of(&[
                ("a.rs", &format!("#[cfg(test)]\n{test}\nuse crate::b::B;")),
                ("b.rs", "use crate::a::A;"),
            ]);
            assert_eq!(found, ["a, b"], "{test}");
        }
    }

    /// Items that tests alone have end at a semicolon or a brace in the first column.
    #[test]
    fn conditions_that_imply_tests_make_no_circle() {
        let found = |condition: &str, item: &str| {
            circles_of(&[
                ("a.rs", "use crate::b::B;"),
                ("b.rs", &format!("#[cfg({condition})]\n{item}\nfn f() {{}}")),
            ])
        };
        for item in [
            "use crate::a::A;",
            "fn f() { crate::a::A }",
            "#[allow(unused)]\nmod tests {\n    use crate::a::A;\n}",
        ] {
            for only in [
                "test",
                "all(test, unix)",
                "all(feature = \"x\", test)",
                "all(not(y), all(any(unix, windows), test))",
                "any(test, all(test, unix))",
            ] {
                assert!(found(only, item).is_empty(), "{only}: {item}");
            }
            for also in [
                "not(test)",
                "doctest",
                "any(test, unix)",
                "all(any(test, unix), x)",
                "all(not(test), unix)",
                "feature = \"test\"",
            ] {
                assert_eq!(found(also, item), ["a, b"], "{also}: {item}");
            }
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
