//! The structure of the sources: which module names which.
//!
//! Every path in `src/` that leads to another module counts, in `use` and elsewhere; tests inside modules do not. A module
//! and those below it may name each other, as a type and the parts of its implementation do. Modules side by side may not
//! form a circle: each can then be read, and changed, after those that it names.

mod paths;

use std::collections::{BTreeMap, BTreeSet};

use paths::{Module, Modules, top};

/// The layers of `src/lib.rs`, from the top. Modules of one layer do not name each other, except in the last one.
const LAYERS: &[&[&str]] = &[
    &["commands"],
    &["report"],
    &["settings"],
    &["outer"],
    &["identity"],
    &["lease", "child"],
    &["backend"],
    &[
        "clock",
        "duration",
        "exit",
        "glob",
        "hex",
        "input",
        "lock",
        "name_services",
        "priority",
        "process_limit",
        "random",
        "readiness",
        "secret",
        "signal_mask",
        "thread",
    ],
];

#[test]
fn modules_side_by_side_form_no_circle() {
    let modules = Modules::read();
    let circles: BTreeMap<String, Vec<String>> = modules
        .folders()
        .into_iter()
        .map(|folder| (folder.join("::"), circle_in(&folder, &modules)))
        .filter(|(_, circle)| !circle.is_empty())
        .collect();
    assert!(circles.is_empty(), "modules that name each other in a circle: {circles:#?}");
}

/// What the rest of dlock asks of a location is joined with the store in the root of each store's folder.
#[test]
fn no_module_of_a_store_names_the_root_of_its_folder() {
    let modules = Modules::read();
    let mut roots = 0;
    for location in modules.all().filter(|module| module.len() == 3 && module.ends_with(&["location".into()]))
    {
        let root = &location[..2];
        roots += 1;
        let inside = modules.all().filter(|module| module.len() > 2 && module.starts_with(root));
        let naming: Vec<_> = inside.filter(|module| modules.named_by(module).contains_key(root)).collect();
        assert!(naming.is_empty(), "{} is named by {naming:?}", root.join("::"));
    }
    assert!(roots >= 7, "{roots} stores were found");
}

#[test]
fn layers_are_named_only_from_above() {
    let modules = Modules::read();
    let layer_of = |module: &[String]| {
        let name = module.first()?;
        LAYERS.iter().position(|layer| layer.contains(&name.as_str()))
    };
    let mut upwards = Vec::new();
    for module in modules.all().filter(|module| !module.is_empty()) {
        let layer = layer_of(module).unwrap_or_else(|| panic!("{} is in no layer", top(module)));
        for (named, names) in modules.named_by(module) {
            let Some(other) = layer_of(named) else { continue };
            let is_beside = other == layer && other + 1 < LAYERS.len() && top(named) != top(module);
            if other < layer || is_beside {
                upwards.push(format!("{} names {}: {names:?}", module.join("::"), named.join("::")));
            }
        }
    }
    assert!(upwards.is_empty(), "{upwards:#?}");
}

/// Returns the modules in a folder that depend on each other in a circle, each with what it names of the others; empty if
/// there is no circle.
fn circle_in(folder: &[String], modules: &Modules) -> Vec<String> {
    let child = |module: &[String]| -> Option<String> {
        module.starts_with(folder).then(|| module.get(folder.len()).cloned()).flatten()
    };
    let mut names: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for module in modules.all() {
        let Some(from) = child(module) else { continue };
        for (named, what) in modules.named_by(module) {
            let Some(to) = child(named).filter(|to| *to != from) else { continue };
            names.entry(from.clone()).or_default().entry(to).or_default().extend(what.clone());
        }
    }
    // What names nothing, or is named by nothing, is in no circle.
    loop {
        let naming: BTreeSet<String> = names.keys().cloned().collect();
        let named: BTreeSet<String> = names.values().flat_map(|others| others.keys().cloned()).collect();
        let before = names.values().map(BTreeMap::len).sum::<usize>();
        names.retain(|from, others| {
            others.retain(|to, _| naming.contains(to));
            named.contains(from) && !others.is_empty()
        });
        if names.values().map(BTreeMap::len).sum::<usize>() == before {
            break;
        }
    }
    let line = |(from, others): (String, BTreeMap<String, BTreeSet<String>>)| {
        others.into_iter().map(move |(to, what)| format!("{from} names {to}: {what:?}"))
    };
    names.into_iter().flat_map(line).collect()
}

/// Whether modules form a circle is decided on what is read of them.
#[test]
fn paths_are_found_in_every_form() {
    let sources = [
        ("lib.rs", "mod a; mod b; mod c;"),
        (
            "a.rs",
            "// use crate::c;\nuse crate::b::{self, Thing as Other, inner::{Deep}};\nlet s = \"crate::c::X\";",
        ),
        ("b.rs", "mod inner;\npub use self::inner::Deep;\nfn f() { super::c::run('\"', \"//\") }"),
        ("b/inner.rs", "#[cfg(test)]\nmod tests {\n use crate::a::A;\n}\n"),
        ("c.rs", "use super::b::Deep;"),
    ];
    let modules = Modules::of(sources.map(|(path, text)| (path.to_owned(), text.to_owned())));
    let named = |module: &str| {
        let module: Module = module.split("::").map(str::to_owned).collect();
        modules.named_by(&module).keys().map(|named| named.join("::")).collect::<Vec<_>>()
    };
    assert_eq!(named("a"), ["b", "b::inner"]);
    assert_eq!(named("b"), ["c"]);
    assert_eq!(named("b::inner"), [""; 0]);
    // What a module passes on belongs to the module that defines it.
    assert_eq!(named("c"), ["b::inner"]);
    assert_eq!(circle_in(&[], &modules), ["b names c: {\"super::c::run\"}", "c names b: {\"Deep\"}"]);
}
